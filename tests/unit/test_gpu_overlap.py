"""Copies between peers, on CPU tensors, and the loop of GEMMs and collectives, on streams that remember their order."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
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
from makeway.act.cuda.barriers import DriverOperations, KernelBarrier, StreamBarrier, memory_operations, pull_order
from makeway.act.cuda.copies import CopyGroup, HeldStreams, side_streams
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
        """A kernel of one block (PyTorch, torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu, `barrier`)."""
        self.log.append("barrier")


class SideStream:
    def __init__(self, priority: int = 0) -> None:
        self.waited: list[object] = []
        self.priority = max(priority, -5)

    def priority_range(self) -> tuple[int, int]:
        return 0, -5

    def wait_stream(self, other: object) -> None:
        self.waited.append(other)


class SideStreams:
    def __init__(self) -> None:
        self.main, self.made, self.now = SideStream(), list[SideStream](), list[SideStream]()
        self.current_device = lambda: 0

    def Stream(self, *, device: int | None = None, priority: int = 0) -> SideStream:  # noqa: N802
        self.made.append(SideStream(priority))
        return self.made[-1]

    def current_stream(self) -> SideStream:
        return self.main

    @contextmanager
    def stream(self, stream: SideStream) -> Iterator[None]:
        self.now.append(stream)
        yield


def copy_group(peers: SharedBuffers, streams: SideStreams, sides: int = 3) -> CopyGroup:
    made = [streams.Stream() for _ in range(sides)]
    return CopyGroup(peers=peers, streams=streams, sides=made, barrier=peers.barrier)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_copies_gather_and_exchange_what_collectives_would(real_torch: Any, ranks: int) -> None:
    buffers = [real_torch.arange(6 * ranks).reshape(2 * ranks, 3) + 1000 * rank for rank in range(ranks)]
    for rank in range(ranks):
        group = copy_group(SharedBuffers(buffers, rank, []), SideStreams())
        assert real_torch.equal(group.all_gather(buffers[rank]), real_torch.cat(buffers))
        expected = real_torch.cat([buffer.chunk(ranks)[rank] for buffer in buffers])
        assert real_torch.equal(group.all_to_all(buffers[rank]), expected)


def test_peers_take_turns_on_the_streams_between_two_barriers_and_all_are_waited_for(real_torch: Any) -> None:
    log: list[str] = []
    buffers, streams = [real_torch.ones(4, 2) for _ in range(4)], SideStreams()
    group = copy_group(SharedBuffers(buffers, 1, log), streams, sides=2)
    group.all_gather(buffers[1])
    group.all_gather(buffers[1])
    assert log == 2 * ["barrier", "pull 0", "pull 3", "pull 2", "barrier"]
    first, second = streams.made
    assert streams.now == 2 * [first, second, first]
    assert streams.main.waited == 2 * [first, second]
    assert all(side.waited == 2 * [streams.main] for side in streams.made)


def test_pieces_that_cannot_be_divided_are_refused(real_torch: Any) -> None:
    buffers = [real_torch.ones(3, 2), real_torch.ones(3, 2)]
    with pytest.raises(InputError, match="3 rows cannot be divided among 2 ranks"):
        copy_group(SharedBuffers(buffers, 0, []), SideStreams()).all_to_all(buffers[0])


@given(st.integers(1, 16))
def test_at_every_step_every_peer_is_asked_by_exactly_one_rank(ranks: int) -> None:
    orders = [pull_order(rank, ranks) for rank in range(ranks)]
    for rank, order in enumerate(orders):
        assert sorted([*order, rank]) == list(range(ranks))
    for step in range(ranks - 1):
        assert {order[step] for order in orders} == set(range(ranks))


def test_without_symmetric_memory_there_are_no_copies() -> None:
    without = SimpleNamespace(distributed=SimpleNamespace())
    with pytest.raises(UnsupportedError, match="no symmetric memory"):
        HeldStreams(without).copies("buffer", "group")


# --- streams that nothing else uses ---------------------------------------------------------------


@given(st.integers(2, 72), st.integers(1, 4), st.booleans(), st.sampled_from(["", "1", "32"]))
def test_no_two_streams_of_a_bench_share_a_hardware_queue(ranks: int, in_flight: int, amd: bool, asked: str) -> None:
    environ = {"GPU_MAX_HW_QUEUES" if amd else "CUDA_DEVICE_MAX_CONNECTIONS": asked} if asked else {}
    queues, others = int(asked or (4 if amd else 8)), in_flight + 2
    sides = side_streams(ranks, others, amd=amd, environ=environ)
    assert 1 <= sides <= max(ranks - 1, 1)
    assert sides == 1 or sides + others <= queues


def pooled_torch(streams: SideStreams, buffers: list[Any]) -> Any:
    symmetric = SimpleNamespace(rendezvous=lambda buffer, group: SharedBuffers(buffers, 0, []))
    return SimpleNamespace(
        version=SimpleNamespace(hip="7.1"), cuda=streams, distributed=SimpleNamespace(_symmetric_memory=symmetric)
    )


def test_streams_are_created_once_however_often_they_are_asked_for(real_torch: Any) -> None:
    streams, buffers = SideStreams(), [real_torch.ones(4, 2) for _ in range(4)]
    held = HeldStreams(pooled_torch(streams, buffers), environ={"GPU_MAX_HW_QUEUES": "8"})
    groups = [held.copies(buffers[0], "group") for _ in range(20)]
    kept = [*held.compute(2), held.comm, *groups[0].sides]
    assert all([*held.compute(2), held.comm, *group.sides] == kept for group in groups)
    assert len({id(stream) for stream in kept}) == len(kept) == 6
    assert len(streams.made) == 8  # and two for the barrier: one to ask its priorities, one of the highest


# --- barriers -------------------------------------------------------------------------------------


class Words:
    """Memory operations of streams, on the host's memory: each rank is a thread, and a wait holds it.

    A wait is cyclic: it ends when (int32)(*address - value) >= 0 (CUDA driver API, cuStreamWaitValue32).
    """

    def __init__(self) -> None:
        self.written = 0

    def write(self, stream: int, address: int, value: int) -> None:
        self.written += 1
        ctypes.c_uint32.from_address(address).value = value

    def wait(self, stream: int, address: int, value: int) -> None:
        deadline = time.monotonic() + 30
        while ctypes.c_int32(ctypes.c_uint32.from_address(address).value - value).value < 0:
            assert time.monotonic() < deadline, "a peer never arrived"
            time.sleep(1e-4)


class Flags(SharedBuffers):
    def barrier(self) -> None:
        raise AssertionError("a kernel, which a full GPU would not start")


@pytest.mark.parametrize("first_round", [0, 2**32 - 10])
def test_a_stream_barrier_keeps_ranks_together_without_a_kernel(real_torch: Any, first_round: int) -> None:
    """Each rank rewrites its buffer after every gather; a rank that came too early or too late would read it wrong."""
    ranks, rounds = 3, 20
    flags = [real_torch.zeros(ranks + 1, dtype=real_torch.int32) for _ in range(ranks)]
    for words in flags:
        words.fill_(first_round - 2**32 if first_round >= 2**31 else first_round)  # torch has no unsigned words
    buffers = [real_torch.zeros(2) for _ in range(ranks)]
    errors: list[BaseException] = []

    def rank_main(rank: int) -> None:
        try:
            streams = SideStreams()
            streams.main.cuda_stream = rank  # type: ignore[attr-defined]
            barrier = StreamBarrier(Flags(flags, rank, []), flags[rank], Words(), streams)
            barrier._round = first_round
            peers = SharedBuffers(buffers, rank, [])
            group = CopyGroup(peers=peers, streams=streams, sides=[streams.Stream()], barrier=barrier)
            for number in range(rounds):
                time.sleep(1e-3 * ((rank * 7 + number * 3) % 4))
                buffers[rank].fill_(100 * rank + number)
                expected = [100 * peer + number for peer in range(ranks) for _ in range(2)]
                assert group.all_gather(buffers[rank]).tolist() == expected
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


class Driver:
    """cuda.bindings.driver: calls answer a tuple that begins with the status."""

    CUstreamWaitValue_flags = SimpleNamespace(CU_STREAM_WAIT_VALUE_GEQ=0, CU_STREAM_WAIT_VALUE_EQ=1)

    def __init__(self, status: int = 0) -> None:
        self.status, self.words = status, Words()

    def cuStreamWriteValue32(self, stream: int, address: int, value: int, flags: int) -> tuple[int]:  # noqa: N802
        assert flags == 0  # without 1, NO_MEMORY_BARRIER: earlier writes of the stream come first
        self.words.write(stream, address, value)
        return (self.status,)

    def cuStreamWaitValue32(self, stream: int, address: int, value: int, flags: int) -> tuple[int]:  # noqa: N802
        assert flags == 0  # at least: a peer may be a round ahead
        self.words.wait(stream, address, value)
        return (self.status,)


@pytest.mark.parametrize(
    ("driver", "amd", "offered"),
    [(Driver(), False, True), (Driver(status=801), False, False), (None, False, False), (Driver(), True, False)],
    ids=["works", "refused", "no bindings", "HIP"],
)
def test_memory_operations_are_used_once_the_driver_has_shown_them(
    real_torch: Any, driver: Any, amd: bool, offered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    torch = SimpleNamespace(
        version=SimpleNamespace(hip="7.1" if amd else None),
        int32=real_torch.int32,
        zeros=lambda count, dtype, device: real_torch.zeros(count, dtype=dtype),
        cuda=SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=7), synchronize=lambda: None),
    )
    operations = memory_operations(torch)
    assert (operations == DriverOperations(driver)) == offered
    assert (operations is None) != offered


def test_the_bindings_have_what_the_barrier_calls() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    assert int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ) == 0
    assert {"cuStreamWriteValue32", "cuStreamWaitValue32", "cuStreamGetGreenCtx"} <= set(dir(driver))


def test_a_barrier_with_a_block_has_the_highest_priority_and_the_stream_waits_for_it(real_torch: Any) -> None:
    log: list[str] = []
    streams, peers = SideStreams(), SharedBuffers([real_torch.ones(1)], 0, log)
    urgent = streams.Stream(priority=-5)
    KernelBarrier(peers, streams, urgent)()
    assert (log, streams.now) == (["barrier"], [urgent])
    assert (urgent.waited, streams.main.waited) == ([streams.main], [urgent])


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


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "all-to-all", "reduce-scatter"])
def test_a_collective_runs_in_the_sessions_group(kind: Any) -> None:
    calls: list[tuple[Any, ...]] = []

    def called(name: str) -> Any:
        return lambda *tensors, group, async_op: calls.append((name, tensors, group, async_op))

    names = {"all_reduce": "all-reduce", "all_gather_into_tensor": "all-gather", "all_to_all_single": "all-to-all"}
    names["reduce_scatter_tensor"] = "reduce-scatter"
    torch = SimpleNamespace(distributed=SimpleNamespace(**{name: called(word) for name, word in names.items()}))
    collective(torch, session(), kind, "sent", "received")()
    tensors = ("received",) if kind == "all-reduce" else ("received", "sent")
    assert calls == [(kind, tensors, "group", True)]


@pytest.mark.parametrize("kind", ["all-gather", "all-to-all"])
def test_copies_put_their_result_where_it_is_wanted(real_torch: Any, kind: Any) -> None:
    buffers = [real_torch.arange(8).reshape(4, 2) + 100 * rank for rank in range(2)]
    symmetric = SimpleNamespace(rendezvous=lambda buffer, group: SharedBuffers(buffers, 1, []))
    torch = SimpleNamespace(
        distributed=SimpleNamespace(_symmetric_memory=symmetric),
        cuda=SideStreams(),
        version=SimpleNamespace(hip="7.1"),
    )
    received = real_torch.zeros(8 if kind == "all-gather" else 4, 2, dtype=real_torch.int64)
    copied(torch, session(), kind, buffers[1], received)().wait()
    pieces = buffers if kind == "all-gather" else [buffer[2:] for buffer in buffers]
    assert real_torch.equal(received, real_torch.cat(pieces))


def test_copies_do_not_add() -> None:
    symmetric = SimpleNamespace(rendezvous=lambda buffer, group: SharedBuffers([], 0, []))
    torch = SimpleNamespace(distributed=SimpleNamespace(_symmetric_memory=symmetric), cuda=SideStreams())
    with pytest.raises(UnsupportedError, match="copy engines cannot add"):
        copied(torch, session(), "all-reduce", "sent", "received")
    with pytest.raises(UnsupportedError, match="not send-recv"):
        collective(torch, None, "send-recv", "sent", "received")


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
