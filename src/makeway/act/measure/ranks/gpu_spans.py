"""Spans of GEMMs and collectives by events on their streams. Not yet run on hardware.

An event before a kernel completes when earlier work on that stream is done: a span thus includes the time that a
kernel waits for room on the device, which a profiler's does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from makeway.act.cuda.overlap import Handle, Loop
from makeway.act.measure.ranks.exchange import RawSpan
from makeway.values.timeline import SpanKind

T = TypeVar("T")

SPANS_NOTE = "spans are taken by events on streams: they include the time that a kernel waits for room"


@dataclass(slots=True)
class EventSpans:
    """Events around the launches of one round, read when the device is done."""

    torch: Any
    comm_kind: SpanKind = "comm"  # or copy
    _zero: Any = field(init=False)
    _marks: list[tuple[str, SpanKind, Any, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._zero = self._event()

    def around(self, loop: Loop) -> Loop:
        """The loop with an event before and after each launch.

        The stream of a collective waits for it before the event after it. That adds no ordering: the collectives of one
        process group run sequentially anyway.
        """

        def gemm(index: int) -> object:
            return self._marked(f"gemm {index}", "compute", lambda: loop.gemm(index))

        def collective(index: int) -> Handle:
            def waited() -> Handle:
                handle = loop.collective(index)
                handle.wait()
                return handle

            return self._marked(f"collective {index}", self.comm_kind, waited)

        return replace(loop, gemm=gemm, collective=collective)

    def start(self) -> None:
        """Times count from here on the current stream."""
        self._zero.record()

    def read(self, start_ns: int) -> list[RawSpan]:
        """The spans, on a clock that showed `start_ns` at the start; all work must be over."""
        return [
            RawSpan(name, kind, start_ns + self._since_ns(before), start_ns + self._since_ns(after))
            for name, kind, before, after in self._marks
        ]

    def _since_ns(self, event: Any) -> int:
        return round(float(self._zero.elapsed_time(event)) * 1e6)

    def _marked(self, name: str, kind: SpanKind, launch: Callable[[], T]) -> T:
        before, after = self._event(), self._event()
        before.record()
        result = launch()
        after.record()
        self._marks.append((name, kind, before, after))
        return result

    def _event(self) -> Any:
        return self.torch.cuda.Event(enable_timing=True)
