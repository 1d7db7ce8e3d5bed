"""GEMMs and collectives of one rank on a real GPU, sequential or overlapped. Not yet run on hardware.

As in arXiv 2606.09200, section 3.2: collective i waits for GEMM i; GEMM i + 1 waits for no collective and, with several
compute streams, for no other GEMM (the paper does not give the number of streams). Where the two are independent
(ConCCL, arXiv 2412.14335), a collective waits only for the previous one. Events order the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from makeway.act.cuda.backend import Session
from makeway.act.cuda.copies import HeldStreams
from makeway.values.collective import CollectiveKind
from makeway.values.errors import InputError, UnsupportedError


class Handle(Protocol):
    """A running collective: `wait` makes the current stream wait for it."""

    def wait(self) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What each iteration launches on the current stream, and the number of iterations."""

    gemm: Callable[[int], object]  # by iteration
    collective: Callable[[int], Handle]
    iterations: int
    in_flight: int = 1  # compute streams
    dependent: bool = True  # collective i must wait for GEMM i
    comm_first: bool = False  # launch collective i before GEMM i; only where it does not depend on it
    held: HeldStreams | None = None  # what every loop of a process runs on; None: streams of this run only

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.in_flight < 1:
            raise InputError(f"a loop needs iterations and streams, got {self.iterations} and {self.in_flight}")
        if self.dependent and self.comm_first:
            raise InputError("a collective that waits for its GEMM cannot be launched before it")


def run_compute(torch: Any, loop: Loop, session: Session | None = None) -> None:
    """The GEMMs alone, on the same streams as beside collectives."""
    main, streams = torch.cuda.current_stream(), _compute_streams(torch, loop, session)
    _after(streams, main)
    for index in range(loop.iterations):
        with torch.cuda.stream(streams[index % len(streams)]):
            loop.gemm(index)
    _join(main, streams)


def run_comm(loop: Loop) -> None:
    """The collectives alone, sequential."""
    for index in range(loop.iterations):
        loop.collective(index).wait()


def run_sequential(loop: Loop) -> None:
    """GEMMs and collectives sequential on the current stream."""
    for index in range(loop.iterations):
        loop.gemm(index)
        loop.collective(index).wait()


def run_overlapped(torch: Any, loop: Loop, session: Session | None = None) -> None:
    """The loop with compute and communication on separate streams; the current stream waits for all of it.

    A confined compute stream takes every GEMM, since further streams would not be confined.
    """
    main, compute = torch.cuda.current_stream(), _compute_streams(torch, loop, session)
    comm = session.comm_stream if session is not None else None
    if comm is None:
        comm = (loop.held or HeldStreams(torch)).comm
    _after((*compute, comm), main)
    handles = []

    def exchange(index: int) -> None:
        with torch.cuda.stream(comm):
            handles.append(loop.collective(index))

    for index in range(loop.iterations):
        stream = compute[index % len(compute)]
        if loop.comm_first:
            exchange(index)
        with torch.cuda.stream(stream):
            loop.gemm(index)
        if loop.dependent:
            comm.wait_event(stream.record_event())
        if not loop.comm_first:
            exchange(index)
    for handle in handles:
        handle.wait()
    _join(main, (*compute, comm))


def _compute_streams(torch: Any, loop: Loop, session: Session | None) -> Sequence[Any]:
    if session is not None and session.compute_stream is not None:
        return [session.compute_stream]
    return (loop.held or HeldStreams(torch)).compute(loop.in_flight)


def _after(streams: Sequence[Any], main: Any) -> None:
    for stream in streams:
        stream.wait_stream(main)


def _join(main: Any, streams: Sequence[Any]) -> None:
    for stream in streams:
        main.wait_stream(stream)


def captured(torch: Any, run: Callable[[], None]) -> Any:
    """What `run` launches as a torch.cuda.CUDAGraph: everything joins the current stream, as a capture must.

    Errors are those of this thread's calls: NCCL's watchdog queries events on another one meanwhile (PyTorch,
    torch/cuda/graphs.py, `capture_error_mode`).
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph


def timed_ns(torch: Any, run: Callable[[], None]) -> float:
    """Device time of what `run` launches, from events around it on the current stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e6


# --- collectives of a session --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OnStream:
    """Copies are ordered by their stream: there is nothing else to wait for."""

    def wait(self) -> None:
        return None


def collective(
    torch: Any, session: Session | None, kind: CollectiveKind, sent: Any, received: Any
) -> Callable[[], Handle]:
    """A launch of one collective on the session's process group; an all-reduce uses `received` only."""
    dist, group = torch.distributed, session.group if session else None
    match kind:
        case "all-reduce":
            return lambda: dist.all_reduce(received, group=group, async_op=True)
        case "all-gather":
            return lambda: dist.all_gather_into_tensor(received, sent, group=group, async_op=True)
        case "all-to-all":
            return lambda: dist.all_to_all_single(received, sent, group=group, async_op=True)
        case "reduce-scatter":
            return lambda: dist.reduce_scatter_tensor(received, sent, group=group, async_op=True)
        case "send-recv":
            raise UnsupportedError("a loop on a GPU runs collectives of all ranks, not send-recv")
        case _:
            assert_never(kind)


def copied(
    torch: Any,
    session: Session,
    kind: CollectiveKind,
    sent: Any,
    received: Any,
    *,
    held: HeldStreams | None = None,
    in_flight: int = 1,
) -> Callable[[], Handle]:
    """The same by peer copies; `sent` is in symmetric memory. Creating it is a collective call."""
    group = session.group if session.group is not None else torch.distributed.group.WORLD
    if kind not in ("all-gather", "all-to-all"):
        raise UnsupportedError(f"copy engines cannot add: no {kind} by copies, only all-gather and all-to-all")
    copies = (held or HeldStreams(torch)).copies(sent, group, in_flight=in_flight)
    pull = copies.all_gather if kind == "all-gather" else copies.all_to_all

    def exchange() -> Handle:
        pull(sent, out=received)
        return _OnStream()

    return exchange
