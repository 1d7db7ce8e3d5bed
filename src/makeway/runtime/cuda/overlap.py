"""The loop of arXiv 2606.09200 on a real GPU: GEMM i, then collective i. Not yet run on hardware.

Collective i waits for GEMM i; GEMM i + 1 waits for no collective, and with several compute streams for no other GEMM
either (section 3.2; the number of streams is not given there and is ours to set). The collective's buffer is its own:
what orders the two is an event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from makeway.errors import InputError
from makeway.runtime.cuda.backend import Session
from makeway.runtime.cuda.copies import symmetric_group
from makeway.runtime.cuda.machine import symmetric_memory
from makeway.runtime.triton.config import GemmConfig

LoopCollective = Literal["all-reduce", "all-to-all"]


class Handle(Protocol):
    """A collective under way: `wait` makes the current stream wait for it."""

    def wait(self) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What one iteration launches on the current stream, and how many there are."""

    gemm: Callable[[int], object]  # of an iteration
    collective: Callable[[], Handle]
    iterations: int
    in_flight: int = 1  # compute streams

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.in_flight < 1:
            raise InputError(f"a loop needs iterations and streams, got {self.iterations} and {self.in_flight}")


def run_sequential(loop: Loop) -> None:
    """Every GEMM and every collective one after the other, on the current stream."""
    for index in range(loop.iterations):
        loop.gemm(index)
        loop.collective().wait()


def run_overlapped(torch: Any, loop: Loop, session: Session | None = None) -> None:
    """The loop with compute and communication on streams of their own; the current stream waits for all of it.

    A compute stream that a control confined takes every GEMM: a green context's streams would not be confined alike.
    """
    main = torch.cuda.current_stream()
    confined = session.compute_stream if session else None
    compute = [confined] if confined is not None else [torch.cuda.Stream() for _ in range(loop.in_flight)]
    comm = session.comm_stream if session and session.comm_stream is not None else torch.cuda.Stream()
    for stream in (*compute, comm):
        stream.wait_stream(main)
    handles = []
    for index in range(loop.iterations):
        stream = compute[index % len(compute)]
        with torch.cuda.stream(stream):
            loop.gemm(index)
        comm.wait_event(stream.record_event())
        with torch.cuda.stream(comm):
            handles.append(loop.collective())
    for handle in handles:
        handle.wait()
    for stream in (*compute, comm):
        main.wait_stream(stream)


def timed_ns(torch: Any, run: Callable[[], None]) -> float:
    """How long the device takes for what `run` launches, by events around it on the current stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e6


# --- the published work --------------------------------------------------------------------------


def published_loop(
    torch: Any,
    session: Session,
    *,
    shape: tuple[int, int, int],
    kind: LoopCollective,
    size_bytes: int,
    iterations: int,
    in_flight: int = 1,
    multiply: Callable[[Any, Any, GemmConfig, Any], object] | None = None,
) -> Loop:
    """GEMMs of our own kernel and collectives of 2-byte elements, as the session's controls have them.

    `multiply(a, b, config, out)` stands in for the kernel.
    """
    if multiply is None:
        from makeway.runtime.triton.gemm import matmul  # loads Triton

        def multiply(a: Any, b: Any, config: GemmConfig, out: Any) -> object:
            return matmul(a, b, config, out=out)

    (m, n, k), config, launch = shape, session.gemm, multiply
    number = torch.float16 if config.dtype == "fp16" else torch.float32
    a, b = (torch.randn(size, dtype=number, device="cuda") for size in ((m, k), (k, n)))
    outs = [torch.empty((m, n), dtype=number, device="cuda") for _ in range(in_flight)]
    return Loop(
        gemm=lambda index: launch(a, b, config, outs[index % in_flight]),
        collective=_collective(torch, session, kind, size_bytes // 2),
        iterations=iterations,
        in_flight=in_flight,
    )


@dataclass(frozen=True, slots=True)
class _OnStream:
    """Copies are ordered by the stream they were given to: there is nothing more to wait for."""

    def wait(self) -> None:
        return None


def _collective(torch: Any, session: Session, kind: LoopCollective, elements: int) -> Callable[[], Handle]:
    dist, group = torch.distributed, session.group
    if kind == "all-reduce":
        buffer = torch.zeros(elements, dtype=torch.bfloat16, device="cuda")  # sums of zeros stay finite
        return lambda: dist.all_reduce(buffer, group=group, async_op=True)
    ranks = dist.get_world_size(group)
    rows = elements // ranks * ranks
    module = symmetric_memory(torch) if session.copy_engine else None
    if module is None:
        sent, received = (torch.ones(rows, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        return lambda: dist.all_to_all_single(received, sent, group=group, async_op=True)
    shared = module.empty(rows, dtype=torch.bfloat16, device="cuda").fill_(1)
    copies = symmetric_group(torch, shared, group if group is not None else dist.group.WORLD)

    def exchange() -> Handle:
        copies.all_to_all(shared)
        return _OnStream()

    return exchange
