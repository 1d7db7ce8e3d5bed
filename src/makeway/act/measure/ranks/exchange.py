"""The collectives of a workload, the transports that carry them, and the spans of both collectives and compute."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, assert_never

import torch
import torch.distributed as dist

from makeway.act.cpu.direct import DirectGroup
from makeway.act.measure.order import Moment, Ready, StepOrder
from makeway.values.collective import CollectiveKind
from makeway.values.errors import UnsupportedError
from makeway.values.timeline import SpanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What one collective moves; an all-reduce works in `receive` alone."""

    kind: CollectiveKind
    send: torch.Tensor
    receive: torch.Tensor


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> Any: ...

    def get_future(self) -> Any: ...


Memory = Literal["own", "shared"]


class Transport(Protocol):
    """Starts collectives; the same calls in the same order on every rank."""

    span_kind: SpanKind
    memory: Memory  # that it moves best

    def start(self, transfer: Transfer) -> Pending: ...

    def buffer(self, *shape: int) -> torch.Tensor:
        """Memory for fp32 numbers that its collectives read; every rank asks for the same in the same order."""
        ...


@dataclass(slots=True)
class GlooTransport:
    """torch.distributed's own collectives."""

    span_kind: SpanKind = "comm"
    memory: Memory = "own"

    def buffer(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape)

    def start(self, transfer: Transfer) -> Pending:
        work: Pending
        match transfer.kind:
            case "all-reduce":
                work = dist.all_reduce(transfer.receive, async_op=True)
            case "all-gather":
                work = dist.all_gather_into_tensor(transfer.receive, transfer.send, async_op=True)
            case "reduce-scatter":
                work = dist.reduce_scatter_tensor(transfer.receive, transfer.send, async_op=True)
            case "all-to-all":
                work = dist.all_to_all_single(transfer.receive, transfer.send, async_op=True)
            case "send-recv":
                raise NotImplementedError("no workload sends from rank to rank")
            case _:
                assert_never(transfer.kind)
        return work


@dataclass(slots=True)
class DirectTransport:
    """Collectives through memory that the ranks of one host share: a CPU host's copy engine."""

    group: DirectGroup
    span_kind: SpanKind = "copy"
    memory: Memory = "shared"
    no_shared_memory: str | None = None  # why a buffer is not in shared memory, where one is not

    def buffer(self, *shape: int) -> torch.Tensor:
        """A shared tensor, which peers read in place; where none is left, ordinary memory, which is copied twice.

        Creating a shared tensor fails on every rank or on none: all ranks have the same kind.
        """
        try:
            return self.group.shared_tensor(*shape)
        except UnsupportedError as error:
            self.no_shared_memory = str(error)
            return torch.empty(shape)

    def start(self, transfer: Transfer) -> Pending:
        work: Pending | None
        match transfer.kind:
            case "all-reduce":
                work = self.group.all_reduce(transfer.receive, async_op=True)
            case "all-gather":
                work = self.group.all_gather_into_tensor(transfer.receive, transfer.send, async_op=True)
            case "reduce-scatter":
                work = self.group.reduce_scatter_tensor(transfer.receive, transfer.send, async_op=True)
            case "all-to-all":
                work = self.group.all_to_all_single(transfer.receive, transfer.send, async_op=True)
            case "send-recv":
                raise NotImplementedError("no workload sends from rank to rank")
            case _:
                assert_never(transfer.kind)
        assert work is not None
        return work


@dataclass(frozen=True, slots=True)
class RawSpan:
    """A span before it knows its rank."""

    name: str
    kind: SpanKind
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Recorder:
    """Spans of one round on this rank."""

    spans: list[RawSpan] = field(default_factory=list)
    _opened: int = 0
    _ready: list[Ready] = field(default_factory=list)
    _steps: list[tuple[Moment, Moment]] = field(default_factory=list)  # when each resumed, and ended
    _resumed: Moment | None = None
    _running: tuple[str, int] | None = None

    @contextmanager
    def compute(self, name: str) -> Iterator[None]:
        start = time.perf_counter_ns()
        yield
        self.spans.append(RawSpan(name, "compute", start, time.perf_counter_ns()))

    def computing(self, name: str) -> None:
        """From here on this rank computes, until it is `idle` or computes something else."""
        self.idle()
        self._running = name, time.perf_counter_ns()

    def idle(self) -> None:
        if self._running is not None:
            name, start = self._running
            self._running = None
            self.spans.append(RawSpan(name, "compute", start, time.perf_counter_ns()))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A time within compute during which this rank only waits."""
        running = self._running
        self.idle()
        yield
        if running is not None:
            self.computing(running[0])

    def started(self, name: str, transport: Transport, transfer: Transfer) -> Pending:
        """The collective, started."""
        span = self.opened(name, transport.span_kind)
        pending = transport.start(transfer)
        # Gloo's reduce-scatter has no future ("Work::getFuture not implemented."): its span ends when it is waited for.
        with suppress(RuntimeError):
            pending.get_future().add_done_callback(span.end)
        return _Recorded(pending, span)

    def hand_over(self, size_bytes: int) -> None:
        """Compute has made data that communication could take now."""
        self._ready.append(Ready(Moment.now(), size_bytes))

    def resume(self) -> None:
        """From here on the step needs the result of all communication."""
        self._resumed = Moment.now()

    def end_step(self) -> None:
        assert self._resumed is not None
        self._steps.append((self._resumed, Moment.now()))

    def order(self, start: Moment) -> tuple[StepOrder, ...]:
        """The steps of a round that started then; empty where compute handed nothing over."""
        if not self._ready:
            return ()
        starts = [start, *(end for _, end in self._steps)]
        return tuple(
            StepOrder(start, resumed, end, tuple(self._handed_over(start, end)))
            for start, (resumed, end) in zip(starts, self._steps, strict=False)
        )

    def _handed_over(self, after: Moment, until: Moment) -> Iterator[Ready]:
        return (ready for ready in self._ready if after.at_ns < ready.when.at_ns <= until.at_ns)

    def opened(self, name: str, kind: SpanKind) -> OpenSpan:
        """A span that starts now."""
        self._opened += 1
        return OpenSpan(name, kind, time.perf_counter_ns(), self.spans)

    def settle(self, timeout_s: float = 1.0) -> None:
        """Wait for the ends of open spans: a thread of the transport may be about to report one."""
        until = time.perf_counter() + timeout_s
        while sum(span.kind != "compute" for span in self.spans) < self._opened and time.perf_counter() < until:
            time.sleep(0)


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """A span under way. It ends once, when the transport's thread or whoever waited says so first."""

    name: str
    kind: SpanKind
    start_ns: int
    spans: list[RawSpan]
    _open: list[bool] = field(default_factory=lambda: [True])

    def end(self, _: object = None) -> None:
        with suppress(IndexError):
            self._open.pop()  # atomic: only one thread gets it
            self.spans.append(RawSpan(self.name, self.kind, self.start_ns, time.perf_counter_ns()))


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A collective whose span is over when its wait is, if not before."""

    pending: Pending
    span: OpenSpan

    def wait(self) -> None:
        self.pending.wait()
        self.span.end()

    def get_future(self) -> Any:
        return self.pending.get_future()
