"""Copies between peers, on CPU tensors, and the loop of GEMMs and collectives, on streams that remember their order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.cuda.backend import Session
from makeway.act.cuda.copies import CopyGroup, pull_order, symmetric_group
from makeway.act.cuda.overlap import (
    Loop,
    collective,
    copied,
    run_comm,
    run_compute,
    run_overlapped,
    run_sequential,
    timed_ns,
)
from makeway.act.triton.config import GemmConfig
from makeway.values.errors import InputError, UnsupportedError

# --- copies between peers -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch without numpy warns when it is loaded
        return pytest.importorskip("torch")


class SharedBuffers:
    """The symmetric buffers of all ranks of one host, seen by one of them."""

    def __init__(self, buffers: list[Any], rank: int, log: list[str]) -> None:
        self.buffers, self.rank, self.world_size, self.log = buffers, rank, len(buffers), log

    def get_buffer(self, rank: int, sizes: Any, dtype: Any) -> Any:
        assert rank != self.rank, "a rank must not go through the peer path for its own buffer"
        assert (tuple(sizes), dtype) == (tuple(self.buffers[rank].shape), self.buffers[rank].dtype)
        self.log.append(f"pull {rank}")
        return self.buffers[rank]

    def barrier(self) -> None:
        self.log.append("barrier")


class SideStream:
    def __init__(self) -> None:
        self.waited: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.waited.append(other)


class SideStreams:
    def __init__(self) -> None:
        self.main, self.made, self.now = SideStream(), list[SideStream](), list[SideStream]()

    def Stream(self, *, priority: int = 0) -> SideStream:  # noqa: N802
        self.made.append(SideStream())
        return self.made[-1]

    def current_stream(self) -> SideStream:
        return self.main

    @contextmanager
    def stream(self, stream: SideStream) -> Iterator[None]:
        self.now.append(stream)
        yield


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_copies_gather_and_exchange_what_collectives_would(real_torch: Any, ranks: int) -> None:
    buffers = [real_torch.arange(6 * ranks).reshape(2 * ranks, 3) + 1000 * rank for rank in range(ranks)]
    for rank in range(ranks):
        group = CopyGroup(peers=SharedBuffers(buffers, rank, []), streams=SideStreams())
        assert real_torch.equal(group.all_gather(buffers[rank]), real_torch.cat(buffers))
        expected = real_torch.cat([buffer.chunk(ranks)[rank] for buffer in buffers])
        assert real_torch.equal(group.all_to_all(buffers[rank]), expected)


def test_each_peer_has_its_own_stream_between_two_barriers_and_all_are_waited_for(real_torch: Any) -> None:
    log: list[str] = []
    buffers, streams = [real_torch.ones(4, 2) for _ in range(4)], SideStreams()
    group = CopyGroup(peers=SharedBuffers(buffers, 1, log), streams=streams)
    group.all_gather(buffers[1])
    group.all_gather(buffers[1])
    assert log == 2 * ["barrier", "pull 0", "pull 3", "pull 2", "barrier"]
    assert len(streams.made) == 3
    assert streams.now == 2 * streams.made
    assert streams.main.waited == 2 * streams.made
    assert all(side.waited == 2 * [streams.main] for side in streams.made)


def test_pieces_that_cannot_be_divided_are_refused(real_torch: Any) -> None:
    buffers = [real_torch.ones(3, 2), real_torch.ones(3, 2)]
    with pytest.raises(InputError, match="3 rows cannot be divided among 2 ranks"):
        CopyGroup(peers=SharedBuffers(buffers, 0, []), streams=SideStreams()).all_to_all(buffers[0])


@given(st.integers(1, 16))
def test_at_every_step_every_peer_is_asked_by_exactly_one_rank(ranks: int) -> None:
    orders = [pull_order(rank, ranks) for rank in range(ranks)]
    for rank, order in enumerate(orders):
        assert sorted([*order, rank]) == list(range(ranks))
    for step in range(ranks - 1):
        assert {order[step] for order in orders} == set(range(ranks))


def test_a_copy_group_is_a_rendezvous_of_symmetric_memory() -> None:
    symmetric = SimpleNamespace(rendezvous=lambda buffer, group: ("handle", buffer, group))
    torch = SimpleNamespace(distributed=SimpleNamespace(_symmetric_memory=symmetric), cuda=SideStreams())
    peers: object = symmetric_group(torch, "buffer", "group").peers
    assert peers == ("handle", "buffer", "group")
    without = SimpleNamespace(distributed=SimpleNamespace())
    with pytest.raises(UnsupportedError, match="no symmetric memory"):
        symmetric_group(without, "buffer", "group")


# --- the loop ---------------------------------------------------------------------------------


class Ordered:
    """A torch.cuda that runs nothing and remembers what must come before what."""

    def __init__(self) -> None:
        self.cuda = self
        self.before: dict[str, set[str]] = {}
        self._current = [OrderedStream("main")]

    def Stream(self) -> OrderedStream:  # noqa: N802
        return OrderedStream(f"side {len(self.before)}")

    def current_stream(self) -> OrderedStream:
        return self._current[-1]

    @contextmanager
    def stream(self, stream: OrderedStream) -> Iterator[None]:
        self._current.append(stream)
        yield
        self._current.pop()

    def launch(self, name: str) -> None:
        stream = self.current_stream()
        self.before[name] = set(stream.done)
        stream.done.add(name)

    def loop(self, iterations: int, in_flight: int) -> Loop:
        gemms, comms = iter(range(iterations)), iter(range(iterations))
        nccl = OrderedStream("nccl")

        def collective(index: int) -> Any:
            name = f"comm {next(comms)}"
            assert name == f"comm {index}"
            nccl.wait_stream(self.current_stream())
            self.before[name] = set(nccl.done)
            nccl.done.add(name)
            return SimpleNamespace(wait=lambda: self.current_stream().wait_stream(nccl))

        return Loop(
            gemm=lambda index: self.launch(f"gemm {next(gemms)}"),
            collective=collective,
            iterations=iterations,
            in_flight=in_flight,
        )


class OrderedStream:
    def __init__(self, name: str) -> None:
        self.name, self.priority = name, 0
        self.done: set[str] = set()

    def wait_stream(self, other: OrderedStream) -> None:
        self.done |= other.done

    def record_event(self) -> frozenset[str]:
        return frozenset(self.done)

    def wait_event(self, event: frozenset[str]) -> None:
        self.done |= event


@given(st.integers(1, 8), st.integers(1, 4))
def test_a_collective_waits_for_its_gemm_and_gemms_wait_for_their_stream_only(iterations: int, in_flight: int) -> None:
    torch = Ordered()
    torch.launch("earlier")
    run_overlapped(torch, torch.loop(iterations, in_flight))
    for index in range(iterations):
        comm, gemm = torch.before[f"comm {index}"], torch.before[f"gemm {index}"]
        assert f"gemm {index}" in comm
        assert gemm == {"earlier"} | {f"gemm {other}" for other in range(index % in_flight, index, in_flight)}
        assert not any(f"gemm {other}" in comm for other in range(index + 1, iterations))
    everything = {f"{kind} {index}" for kind in ("gemm", "comm") for index in range(iterations)}
    assert torch.current_stream().done == everything | {"earlier"}


@given(st.integers(1, 8))
def test_sequential_is_one_after_the_other(iterations: int) -> None:
    torch = Ordered()
    run_sequential(torch.loop(iterations, 1))
    for index in range(iterations):
        assert torch.before[f"gemm {index}"] >= {f"comm {other}" for other in range(index)}


def test_a_confined_compute_stream_takes_every_gemm_and_a_priority_stream_the_collectives() -> None:
    torch, compute, comm = Ordered(), OrderedStream("compute"), OrderedStream("comm")
    session = SimpleNamespace(compute_stream=compute, comm_stream=comm)
    run_overlapped(torch, torch.loop(3, 2), session)  # type: ignore[arg-type]
    assert compute.done == {f"gemm {index}" for index in range(3)}
    assert comm.done >= compute.done


def test_times_are_those_of_events_around_the_work() -> None:
    log: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("record")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, end: object) -> float:
            return 1.5

    torch = SimpleNamespace(cuda=SimpleNamespace(Event=Event, synchronize=lambda: log.append("quiet")))
    assert timed_ns(torch, lambda: log.append("run")) == 1.5e6
    assert log == ["quiet", "record", "run", "record", "wait"]


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "all-to-all"])
def test_a_collective_runs_in_the_sessions_group(kind: Any) -> None:
    calls: list[tuple[Any, ...]] = []

    def called(name: str) -> Any:
        return lambda *tensors, group, async_op: calls.append((name, tensors, group, async_op))

    names = {"all_reduce": "all-reduce", "all_gather_into_tensor": "all-gather", "all_to_all_single": "all-to-all"}
    torch = SimpleNamespace(distributed=SimpleNamespace(**{name: called(word) for name, word in names.items()}))
    collective(torch, session(), kind, "sent", "received")()
    tensors = ("received",) if kind == "all-reduce" else ("received", "sent")
    assert calls == [(kind, tensors, "group", True)]


@pytest.mark.parametrize("kind", ["all-gather", "all-to-all"])
def test_copies_put_their_result_where_it_is_wanted(real_torch: Any, kind: Any) -> None:
    buffers = [real_torch.arange(8).reshape(4, 2) + 100 * rank for rank in range(2)]
    symmetric = SimpleNamespace(rendezvous=lambda buffer, group: SharedBuffers(buffers, 1, []))
    torch = SimpleNamespace(distributed=SimpleNamespace(_symmetric_memory=symmetric), cuda=SideStreams())
    received = real_torch.zeros(8 if kind == "all-gather" else 4, 2, dtype=real_torch.int64)
    copied(torch, session(), kind, buffers[1], received)().wait()
    pieces = buffers if kind == "all-gather" else [buffer[2:] for buffer in buffers]
    assert real_torch.equal(received, real_torch.cat(pieces))


def test_copies_do_not_add() -> None:
    symmetric = SimpleNamespace(rendezvous=lambda buffer, group: SharedBuffers([], 0, []))
    torch = SimpleNamespace(distributed=SimpleNamespace(_symmetric_memory=symmetric), cuda=SideStreams())
    with pytest.raises(UnsupportedError, match="copy engines cannot add"):
        copied(torch, session(), "all-reduce", "sent", "received")
    with pytest.raises(UnsupportedError, match="not reduce-scatter"):
        collective(torch, None, "reduce-scatter", "sent", "received")


def session() -> Session:
    return Session(
        controls=(),
        options=None,
        group="group",
        compute_stream=None,
        comm_stream=None,
        copy_engine=True,
        gemm=GemmConfig(),
    )


@given(st.integers(1, 8), st.integers(1, 4))
def test_gemms_alone_run_as_they_do_beside_collectives_and_are_waited_for(iterations: int, in_flight: int) -> None:
    torch = Ordered()
    run_compute(torch, torch.loop(iterations, in_flight))
    for index in range(iterations):
        assert torch.before[f"gemm {index}"] == {
            f"gemm {other}" for other in range(index % in_flight, index, in_flight)
        }
    assert torch.current_stream().done == {f"gemm {index}" for index in range(iterations)}


@given(st.integers(1, 8), st.booleans())
def test_independent_collectives_wait_for_no_gemm_and_may_be_launched_first(iterations: int, first: bool) -> None:
    torch = Ordered()
    run_overlapped(torch, replace(torch.loop(iterations, 1), dependent=False, comm_first=first))
    launched = list(torch.before)
    for index in range(iterations):
        assert torch.before[f"comm {index}"] == {f"comm {other}" for other in range(index)}
        assert (launched.index(f"comm {index}") < launched.index(f"gemm {index}")) == first
    assert len(torch.current_stream().done) == 2 * iterations


@given(st.integers(1, 8))
def test_collectives_alone_run_one_after_the_other(iterations: int) -> None:
    torch = Ordered()
    run_comm(torch.loop(iterations, 1))
    assert torch.current_stream().done == {f"comm {index}" for index in range(iterations)}
    assert not any(name.startswith("gemm") for name in torch.before)


def test_a_loop_without_iterations_is_refused() -> None:
    with pytest.raises(InputError, match="a loop needs"):
        loop(iterations=0)
    with pytest.raises(InputError, match="cannot be launched before it"):
        loop(iterations=1, comm_first=True)


def loop(**more: Any) -> Loop:
    return Loop(gemm=lambda index: None, collective=lambda index: SimpleNamespace(wait=lambda: None), **more)
