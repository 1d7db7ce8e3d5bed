"""What each rank checks of makeway.torch; run by test_torch_overlap.py.

    torch_checks.py DIRECTORY RANKS...     worlds of so many ranks, in turn

A check is called once in every rank of a world; what it returns is None, and what it raises is the finding.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DistributedDataParallel would load it in every rank
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from makeway.act.cpu.controls import CpuBackend
from makeway.act.cpu.threads import REALTIME, cores_of, name_of, niceness_of, policy_of, readings, thread_ids
from makeway.act.torch.autostart import begin
from makeway.act.torch.collectives import Copies, rerouted
from makeway.act.torch.meeting import shared_memory
from makeway.act.torch.modules import _WAITING
from makeway.read.plan_file import dump_plan
from makeway.torch import overlap, prepare_ddp, prepare_fsdp2
from makeway.values.control import Chunks, CommPriority, Control, CopyEngine, LaunchOrder, SmemPad, SmPartition
from makeway.values.errors import InputError
from makeway.values.plan import Plan

DIRECTORY = Path(*sys.argv[1:2])
RANK, RANKS = 0, 1  # set in each rank
MOVED = (torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool, torch.bfloat16)


OPTIONS: list[tuple[dict[str, Any], bool]] = [  # of DistributedDataParallel; whether a layer is skipped
    ({}, False),
    ({"gradient_as_bucket_view": True}, False),
    ({"find_unused_parameters": True}, True),
    ({"static_graph": True}, False),
    ({"bucket_cap_mb": 1}, False),
]
EXPECTED: list[list[torch.Tensor]] = []  # what torch alone learns with each
JOINED: list[list[torch.Tensor]] = []  # and from uneven inputs: divided by all ranks, by those left, also later


def drawn(count: int, dtype: torch.dtype = torch.float32, *, rank: int | None = None) -> torch.Tensor:
    source = torch.Generator().manual_seed(1000 + (RANK if rank is None else rank))
    return (torch.randn(count, generator=source) * 50).to(dtype)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


class Net(nn.Module):
    """A net with a buffer, a layer that some inputs skip and an odd number of parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.skipped, self.last = nn.Linear(33, 65), nn.Linear(65, 65), nn.Linear(65, 3)
        self.norm = nn.BatchNorm1d(65)

    def forward(self, given: torch.Tensor, *, skip: bool = False) -> torch.Tensor:
        inner: torch.Tensor = self.norm(self.first(given)).relu()
        found: torch.Tensor = self.last(inner if skip else self.skipped(inner))
        return found


def trained(model: nn.Module, steps: int = 4, **arguments: Any) -> list[torch.Tensor]:
    """Parameters after some steps, with other data in every rank."""
    source = torch.Generator().manual_seed(RANK)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 33, generator=source), **arguments).square().mean().backward()
        optimizer.step()
    return [value.detach().clone() for value in model.parameters()]


def refused(act: Callable[[], None]) -> str:
    try:
        act()
    except InputError as error:
        return str(error)
    raise AssertionError("it was not refused")


def joined(*, divide_by_initial_world_size: bool) -> list[torch.Tensor]:
    """Parameters after steps of which each rank has one more than the one before."""
    model = DistributedDataParallel(Net())
    with model.join(divide_by_initial_world_size=divide_by_initial_world_size):
        return trained(model, 2 + RANK)


def joined_later() -> list[torch.Tensor]:
    """As `joined`, dividing by the ranks left, after a step outside the join."""
    model = DistributedDataParallel(Net())
    trained(model, 1)
    with model.join(divide_by_initial_world_size=False):
        return trained(model, 2 + RANK)


def same_learning(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """The same bits with up to two ranks; with more, sums that are added in another order."""
    for one, other in zip(found, expected, strict=True):
        if RANKS <= 2:
            assert same_bits(one, other)
        else:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def receipts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DIRECTORY / "receipts" / f"torch-{os.getpid()}.json").read_text())
    return found


def status(word: str) -> tuple[str, str]:
    return next((one["status"], one["detail"]) for one in receipts()["receipts"] if one["control"] == word)


# --- the program knows nothing of the plan: run in this order, in one process ---------------------


def check_01_a_plan_is_applied_when_the_program_makes_its_group() -> None:
    assert (receipts()["pid"], receipts()["rank"], receipts()["backend"]) == (os.getpid(), RANK, "cpu")
    assert receipts()["error"] is None
    assert [one["control"] for one in receipts()["receipts"]] == ["copy-engine", "chunks=8", "priority", "pad=1KiB"]
    assert status("pad=1KiB") == ("refused", "CPU kernels have no shared memory to pad")
    assert status("copy-engine")[0] == "no effect"
    assert status("chunks=8")[0] == "no effect"


def check_02_gradients_are_those_of_torch_and_the_receipt_counts_them() -> None:
    same_learning(trained(DistributedDataParallel(Net())), EXPECTED[0])
    if RANKS > 1:
        assert status("copy-engine")[0] == "applied"
        assert "through shared memory" in status("copy-engine")[1]


def check_03_options_of_the_module_keep_working() -> None:
    for (arguments, skip), expected in zip(OPTIONS, EXPECTED, strict=True):
        same_learning(trained(DistributedDataParallel(Net(), **arguments), skip=skip), expected)
    of_its_own = dist.new_group(list(range(RANKS)))
    same_learning(trained(DistributedDataParallel(Net(), process_group=of_its_own)), EXPECTED[0])


def check_04_a_hook_of_the_program_stays() -> None:
    seen = []

    def own(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen.append(bucket.index())
        return allreduce_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]

    own.__annotations__.clear()  # strings in this file, which torch would not take
    before = DistributedDataParallel(Net())
    before.register_comm_hook(None, own)
    trained(before, 1)
    assert seen
    seen.clear()
    after = DistributedDataParallel(Net())
    trained(after, 1)
    assert not seen
    after.register_comm_hook(None, own)
    trained(after, 1)
    assert seen
    if RANKS > 1:
        assert "its own hook" in status("copy-engine")[1]


def check_05_modules_can_be_saved_before_and_after_their_first_step() -> None:
    for steps in (0, 1):
        model = DistributedDataParallel(Net())
        trained(model, steps)
        torch.save(model.state_dict(), DIRECTORY / f"{RANKS}-{RANK}.pt")
        saved = pickle.dumps(model)
        assert b"makeway" not in saved  # it can be loaded without a plan, too
        assert isinstance(pickle.loads(saved), DistributedDataParallel)


def check_06_large_modules_have_their_buckets_cut() -> None:
    model = DistributedDataParallel(nn.Linear(1024, 1024, bias=False).requires_grad_())
    assert model.bucket_bytes_cap == 25 * 1024 * 1024 // 8
    assert status("chunks=8")[0] == "applied"
    chosen = DistributedDataParallel(nn.Linear(4, 4), bucket_cap_mb=2)
    assert chosen.bucket_bytes_cap == 2 * 1024 * 1024


def check_07_sparse_gradients_go_the_way_of_the_group() -> None:
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Embedding(20, 4, sparse=True))
    model(torch.tensor([RANK, 5])).sum().backward()
    gradient = model.module.weight.grad.to_dense()
    expected = torch.zeros(20, 4)
    expected[5] = 1.0
    expected[:RANKS] = 1.0 / RANKS
    torch.testing.assert_close(gradient, expected)


def check_08_uneven_inputs_end_where_torch_ends() -> None:
    same_learning(joined(divide_by_initial_world_size=True), JOINED[0])


def check_09_a_join_that_divides_by_the_ranks_left_is_not_hooked() -> None:
    same_learning(joined(divide_by_initial_world_size=False), JOINED[1])
    if RANKS > 1:
        assert "divides by the ranks that are left" in status("copy-engine")[1]


def check_10_such_a_join_after_the_first_step_ends_where_torch_ends() -> None:
    same_learning(joined_later(), JOINED[2])


def check_11_compiled_modules_learn_the_same() -> None:
    model = DistributedDataParallel(Net())
    compiled = torch.compile(model, backend="eager")
    assert compiled is not model
    assert (model in _WAITING) == (RANKS > 1)
    same_learning(trained(compiled), EXPECTED[0])  # type: ignore[arg-type]
    assert model not in _WAITING  # it has our hook now


def check_12_threads_of_another_group_get_their_priority_too() -> None:
    if status("priority")[0] != "applied":
        return
    dist.new_group(list(range(RANKS)))
    backend = CpuBackend()
    if "real-time" in status("priority")[1]:
        policies = readings(backend.comm_threads(), policy_of)
        assert {*policies.values()} == {REALTIME}, (policies, readings(thread_ids(), name_of), status("priority"))
    elif "niceness" in status("priority")[1]:
        comm = max(readings(backend.comm_threads(), niceness_of).values())
        assert comm < niceness_of(0), (comm, niceness_of(0))


def check_13_all_is_told_and_undone_with_the_group_and_done_again_with_the_next() -> None:
    tensor = torch.full((5,), RANK + 1.0)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [RANKS * (RANKS + 1) / 2] * 5
    nice, make, reduce = niceness_of(0), DistributedDataParallel.__init__, dist.all_reduce
    dist.destroy_process_group()
    assert re.search(r"gradient buckets .* and \d+ collectives? \(", status("copy-engine")[1]) or RANKS == 1
    assert DistributedDataParallel.__init__ is not make
    assert dist.all_reduce is not reduce
    assert niceness_of(0) <= nice
    dist.init_process_group("gloo", init_method=f"file://{DIRECTORY}/again-{RANKS}", rank=RANK, world_size=RANKS)
    assert niceness_of(0) == nice
    assert status("copy-engine")[0] == "no effect"
    dist.destroy_process_group()


# --- called from Python ----------------------------------------------------------------------------


@contextmanager
def group(name: str) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{DIRECTORY}/{name}-{RANKS}", rank=RANK, world_size=RANKS)
    try:
        yield
    finally:
        dist.destroy_process_group()


def api_same_bits_for_every_collective_and_every_way_to_wait() -> None:
    with shared_memory(None) as direct:
        for dtype in MOVED:
            for name, call in CALLS.items():
                if dtype in (torch.bool, torch.uint8) and name in ("all_reduce", "reduce_scatter"):
                    continue
                expected = call(dtype, False)
                copies = Copies()
                with rerouted(direct, copies):
                    found, later = call(dtype, False), call(dtype, True)
                assert copies.calls == 2, (name, dtype, copies.calls)
                if RANKS <= 2 or name in ("all_gather", "all_to_all"):
                    assert same_bits(found, expected), (name, dtype)
                assert same_bits(found, later), (name, dtype)
                assert same_bits(call(dtype, False), expected)  # as before, after the block


def _awaited(work: Any, async_op: bool) -> None:
    assert (work is not None) == async_op
    if work is not None:
        assert isinstance(work, dist.Work)
        work.wait()
        assert work.is_completed()
        assert len(work.get_future().wait()) == 1


def _gather(dtype: torch.dtype, async_op: bool) -> torch.Tensor:
    into = torch.empty(RANKS * 37, dtype=dtype)
    _awaited(dist.all_gather_into_tensor(into, drawn(37, dtype), async_op=async_op), async_op)
    return into


def _reduce(dtype: torch.dtype, async_op: bool) -> torch.Tensor:
    tensor = drawn(64, dtype).view(8, 8).t()  # not contiguous
    _awaited(dist.all_reduce(tensor, async_op=async_op), async_op)
    return tensor


def _scatter(dtype: torch.dtype, async_op: bool) -> torch.Tensor:
    into = torch.empty(37, dtype=dtype)
    _awaited(dist.reduce_scatter_tensor(into, drawn(RANKS * 37, dtype), async_op=async_op), async_op)
    return into


def _exchange(dtype: torch.dtype, async_op: bool) -> torch.Tensor:
    gives = [RANK + peer + 1 for peer in range(RANKS)]
    into = torch.empty(sum(gives), dtype=dtype)
    _awaited(dist.all_to_all_single(into, drawn(sum(gives), dtype), gives, gives, async_op=async_op), async_op)
    return into


CALLS: dict[str, Callable[[torch.dtype, bool], torch.Tensor]] = {
    "all_gather": _gather,
    "all_reduce": _reduce,
    "reduce_scatter": _scatter,
    "all_to_all": _exchange,
}


def api_what_shared_memory_cannot_do_stays_with_gloo() -> None:
    half = dist.new_group([0])
    with shared_memory(None) as direct:
        copies = Copies()
        with rerouted(direct, copies):
            largest = torch.tensor([float(RANK)])
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            assert largest.item() == RANKS - 1
            if RANK == 0:
                dist.all_reduce(torch.ones(1), group=half)
            imaginary = torch.tensor([1j])
            dist.all_reduce(imaginary)
            assert imaginary.tolist() == [RANKS * 1j]
        assert copies.calls == 0


def api_an_error_of_ours_leaves_the_collective_to_gloo() -> None:
    with shared_memory(None) as direct:
        direct.all_reduce = lambda *_, **__: 1 // 0  # type: ignore
        copies = Copies()
        with rerouted(direct, copies):
            for async_op in (False, True):
                tensor = torch.full((64,), RANK + 1.0)
                work = dist.all_reduce(tensor, async_op=async_op)
                assert (work is not None) == async_op
                if work is not None:
                    work.wait()
                assert tensor.tolist() == [RANKS * (RANKS + 1) / 2] * 64
        assert (copies.calls, len(copies.refusals)) == (0, 2)
        assert copies.refusals[0].startswith("ZeroDivisionError: ")


WRONG: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((torch.ones(4),), {"bad": 1}), (("text",), {})]


def api_a_wrong_call_gets_the_error_of_torch() -> None:
    with shared_memory(None) as direct:
        copies, messages = Copies(), list[str]()
        for context in (nullcontext(), rerouted(direct, copies)):
            with context:
                for args, kwargs in WRONG:
                    try:
                        dist.all_reduce(*args, **kwargs)
                    except TypeError as error:
                        messages.append(str(error))
        assert messages[:2] == messages[2:]
        assert copies.refusals == []


def api_a_plan_holds_inside_the_block_and_nothing_is_left_after_it() -> None:
    def settings() -> Any:
        threads = thread_ids()
        settings = (readings(threads, read) for read in (niceness_of, policy_of, cores_of))
        return *settings, torch.get_num_threads(), dist.all_reduce

    torch.ones(300, 300) @ torch.ones(300, 300)  # starts OpenMP's threads
    gc.collect()  # groups of earlier checks, whose threads would end meanwhile
    before = settings()
    controls: list[Control] = [CommPriority(), SmPartition(1), CopyEngine()]
    for _ in range(2):
        with overlap(controls) as in_force:
            assert in_force.where == "cpu"
            assert len(in_force.table().splitlines()) == 3
            assert in_force.direct is not None
            assert [receipt.control for receipt in in_force.receipts] == controls
            assert {receipt.carrier for receipt in in_force.receipts} == {"torch on CPU"}
            tensor = torch.ones(9)
            dist.all_reduce(tensor)
            assert tensor.tolist() == [float(RANKS)] * 9
        assert not in_force.direct.usable
    try:
        with overlap(controls):
            raise KeyError("the program's own")
    except KeyError:
        pass
    after = settings()
    for one, other in zip(before[:3], after[:3], strict=True):
        assert {thread: one[thread] for thread in one} == {thread: other[thread] for thread in one if thread in other}
    assert before[3:] == after[3:]


def api_an_error_in_the_block_waits_for_no_peer() -> None:
    try:
        with overlap([CopyEngine()]):
            if RANK == 0:
                dist.all_reduce(torch.ones(5), async_op=True)  # the others never call it
            raise KeyError("the program's own")
    except KeyError:
        return
    raise AssertionError("the error was lost")


def api_a_decorated_function_may_call_itself_but_no_other_plan() -> None:
    @overlap([CopyEngine()])
    def factorial(number: int) -> int:
        return number * factorial(number - 1) if number else 1

    assert factorial(4) == 24
    with overlap([CopyEngine()]) as outer:
        with overlap([CopyEngine()]) as inner:
            assert inner is outer
        assert outer.direct.usable  # type: ignore[union-attr]

        def enter_another() -> None:
            with overlap([CommPriority()]):
                pass

        assert "copy-engine" in refused(enter_another)


def api_prepared_ddp_learns_what_plain_ddp_learns() -> None:
    expected = trained(DistributedDataParallel(Net()))
    model, found = prepare_ddp(Net(), [CopyEngine(), Chunks(4), CommPriority()])
    kinds = [Chunks, CopyEngine]
    assert [(type(one.control), one.status) for one in found] == [(kind, "no effect") for kind in kinds]
    same_learning(trained(model), expected)
    assert found[1].status == "applied"  # only now
    assert dict(found[1].evidence)["gradient buckets"] > 0


def api_prepared_ddp_says_applied_once_bytes_were_saved() -> None:
    model, found = prepare_ddp(Net(), ["compress=bf16"])
    assert [one.status for one in found] == ["no effect"]
    trained(model)
    assert found[0].status == "applied"
    counted = dict(found[0].evidence)
    assert counted["bytes after"] == counted["bytes before"] / 2 > 0


def sharded() -> nn.Module:
    model = Net()
    model.norm = nn.Identity()  # type: ignore[assignment]  # its statistics would differ between ranks
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in (model.first, model.skipped, model.last):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def locally(values: list[torch.Tensor]) -> list[torch.Tensor]:
    return [value.to_local() for value in values]  # type: ignore[attr-defined]


def api_prepared_fsdp2_learns_what_plain_fsdp2_learns() -> None:
    expected = locally(trained(sharded()))
    model = sharded()
    found = prepare_fsdp2(model, [LaunchOrder(), CopyEngine(), CommPriority()])
    assert [one.status for one in found] == ["applied", "applied", "no effect"], found
    assert "2 of 3" in found[0].detail
    same_learning(locally(trained(model)), expected)
    with overlap([CopyEngine()]):
        same_learning(locally(trained(sharded())), expected)


# --- a world --------------------------------------------------------------------------------------


def run_rank() -> None:
    torch.set_num_threads(1)
    found: dict[str, str | None] = {}

    def attempt(name: str, check: Callable[[], None]) -> None:
        try:
            check()
            found[name] = None
        except BaseException:
            found[name] = traceback.format_exc()
        (DIRECTORY / f"{RANKS}-{RANK}.json").write_text(json.dumps(found))

    checks = [(name, check) for name, check in globals().items() if name.startswith(("api_", "check_"))]
    for name, check in checks:
        if name.startswith("api_"):
            with group(name):
                attempt(name, check)
    with group("plain"):
        EXPECTED.extend(trained(DistributedDataParallel(Net(), **given), skip=skip) for given, skip in OPTIONS)
        JOINED.extend(joined(divide_by_initial_world_size=all_ranks) for all_ranks in (True, False))
        JOINED.append(joined_later())
    path = DIRECTORY / f"plan-{RANKS}-{RANK}.toml"
    path.write_text(dump_plan(Plan(controls=(CopyEngine(), Chunks(8), CommPriority(), SmemPad(1024)))))
    for _ in range(2):  # the second changes nothing
        begin(str(path), str(DIRECTORY / "receipts"))
    dist.init_process_group("gloo", init_method=f"file://{DIRECTORY}/world-{RANKS}", rank=RANK, world_size=RANKS)
    for name, check in checks:
        if name.startswith("check_"):
            attempt(name, check)


def main() -> None:
    """Fork the ranks of each world in turn: torch is loaded once."""
    global RANK, RANKS
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for ranks in map(int, sys.argv[2:]):
        children = []
        for rank in range(ranks):
            if (child := os.fork()) == 0:
                RANK, RANKS = rank, ranks
                try:
                    run_rank()
                except BaseException:
                    traceback.print_exc()
                os._exit(0)  # a process group that has lost a rank may not end by itself
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
