"""Reduce-scatter and gather in place of an all-reduce: ranks are threads, and the collectives a strict stand-in.

The stand-in's rules: one stream runs a group's collectives in the order of the calls (PyTorch,
torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, one stream per device); in place means that a rank's part lies at its
place in the whole (NCCL user guide, in-place operations); copy engines take only symmetric windows to receive into
(NCCL, src/ce_coll.cc).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from makeway.act.torch.split import SEVERAL_HOSTS, SplitGradients, agreed_refusal, split_all_reduce, split_hook


class Job:
    """What the ranks share."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.met = threading.Barrier(ranks, timeout=20)
        self.given: list[Any] = [None] * ranks


class Rank:
    """torch.distributed as one rank sees it."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.windows: set[int] = set()
        self.calls: list[str] = []

    def get_world_size(self, group: Any) -> int:
        return self.job.ranks

    def get_rank(self, group: Any) -> int:
        return self.rank

    def window(self, numbers: int, dtype: Any) -> torch.Tensor:
        tensor = torch.full((numbers,), float("nan"), dtype=dtype)
        self.windows.add(tensor.data_ptr())
        return tensor

    def _exchange(self, mine: Any) -> list[Any]:
        self.job.given[self.rank] = mine
        self.job.met.wait()
        everything = list(self.job.given)
        self.job.met.wait()
        return everything

    def _in_place(self, part: torch.Tensor, whole: torch.Tensor) -> None:
        assert whole.data_ptr() in self.windows, "copy engines fill symmetric windows only"
        assert whole.numel() == part.numel() * self.job.ranks
        assert part.data_ptr() == whole.data_ptr() + self.rank * part.nbytes

    def reduce_scatter_tensor(self, output: torch.Tensor, given: torch.Tensor, *, group: Any, async_op: bool) -> None:
        self._in_place(output, given)
        assert async_op
        parts = [whole.view(self.job.ranks, -1)[self.rank] for whole in self._exchange(given.clone())]
        output.copy_(torch.stack(parts).sum(0))
        self.calls.append("reduce-scatter")

    def all_gather_into_tensor(self, output: torch.Tensor, given: torch.Tensor, *, group: Any, async_op: bool) -> Any:
        self._in_place(given, output)
        assert async_op
        output.copy_(torch.cat(self._exchange(given.clone())))
        self.calls.append("all-gather")
        future: Any = torch.futures.Future()
        future.set_result([output])
        return SimpleNamespace(get_future=lambda: future)

    def all_gather(self, answers: list[Any], mine: Any, *, group: Any) -> None:
        answers[:] = self._exchange(mine)


def on_ranks(count: int, work: Callable[[Rank], Any]) -> list[Any]:
    job = Job(count)
    results: list[Any] = [None] * count

    def one_rank(rank: int) -> None:
        try:
            results[rank] = work(Rank(job, rank))
        except BaseException as error:
            results[rank] = error
            job.met.abort()

    threads = [threading.Thread(target=one_rank, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def bucket(tensor: torch.Tensor, index: int) -> Any:
    return SimpleNamespace(buffer=lambda: tensor, index=lambda: index)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(6, 12), (7, 1)], ids=["equal parts", "with a remainder"])
def test_every_rank_gets_the_average_of_every_bucket(ranks: int, sizes: tuple[int, ...]) -> None:
    gradients = [[torch.arange(size) * 1.5 + rank for size in sizes] for rank in range(ranks)]

    def steps(rank: Rank) -> list[torch.Tensor]:
        state = SplitGradients(None, refusal=None, make_window=rank.window, on=rank)
        before = state.receipt
        for _ in range(2):
            buckets = [bucket(tensor.clone(), index) for index, tensor in enumerate(gradients[rank.rank])]
            averages = [split_hook(state, each).wait().clone() for each in buckets]
        assert rank.calls == ["reduce-scatter", "all-gather"] * len(sizes) * 2
        assert len(rank.windows) == len(sizes)  # made once, and kept
        assert dict(state.receipt.evidence) == {"gradient buckets": 2 * len(sizes), "bytes": 2 * 4 * sum(sizes)}
        assert (before.status, state.receipt.status) == ("not seen", "applied")
        return averages

    for averages in on_ranks(ranks, steps):
        for index, average in enumerate(averages):
            wanted = torch.stack([gradients[rank][index] for rank in range(ranks)]).mean(0)
            torch.testing.assert_close(average, wanted)


def test_rebuilt_buckets_get_other_windows() -> None:
    def steps(rank: Rank) -> int:
        state = SplitGradients(None, refusal=None, make_window=rank.window, on=rank)
        for size in (4, 8, 8):
            split_hook(state, bucket(torch.ones(size), 0)).wait()
        return len(state._windows)

    assert on_ranks(2, steps) == [1, 1]


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("as_view", [False, True])
def test_the_real_reducer_takes_gradients_from_windows(alone: None, as_view: bool) -> None:
    rank = Rank(Job(1), 0)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(33, 17), torch.nn.Linear(17, 5))
    state = SplitGradients(None, refusal=None, make_window=rank.window, on=rank)
    module = DistributedDataParallel(model, gradient_as_bucket_view=as_view, bucket_cap_mb=0.001)
    dist._register_comm_hook(module.reducer, state, split_hook)  # type: ignore[attr-defined]
    given = torch.randn(4, 33)
    for _ in range(3):  # buckets are rebuilt after the first
        module.zero_grad()
        module(given).sum().backward()
    averaged = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    plain = torch.autograd.grad(model(given).sum(), list(model.parameters()))
    assert state.buckets >= 3
    for mine, wanted in zip(averaged, plain, strict=True):
        assert torch.equal(mine, wanted)


def test_a_module_on_cpus_stays_as_it_is(alone: None) -> None:
    state = split_all_reduce(DistributedDataParallel(torch.nn.Linear(2, 2)))
    assert state.receipt.status == "refused"
    assert "copy engines belong to GPUs" in state.receipt.detail


# --- all ranks decide the same --------------------------------------------------------------------


def test_one_rank_that_cannot_keeps_all_from_it() -> None:
    probed: list[int] = []

    def decide(rank: Rank) -> str | None:
        own = "no policy" if rank.rank == 1 else None
        return agreed_refusal(own, None, probe=lambda: probed.append(rank.rank), on=rank)

    assert on_ranks(3, decide) == ["no policy"] * 3
    assert not probed


def test_a_window_that_fails_on_one_rank_is_used_on_none() -> None:
    def decide(rank: Rank) -> str | None:
        def probe() -> None:
            if rank.rank == 2:
                raise RuntimeError("out of memory")

        return agreed_refusal(None, None, probe=probe, on=rank)

    assert on_ranks(3, decide) == ["no symmetric window: RuntimeError: out of memory"] * 3


def test_ranks_on_several_hosts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_ranks(2, lambda rank: agreed_refusal(None, None, probe=lambda: None, on=rank)) == [None, None]
    monkeypatch.setattr("socket.gethostname", lambda: threading.current_thread().name)
    assert on_ranks(2, lambda rank: agreed_refusal(None, None, probe=lambda: None, on=rank)) == [SEVERAL_HOSTS] * 2
