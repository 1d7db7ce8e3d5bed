"""The words for what ran: kernels on a GPU, or operators on the threads of a host.

Names of ledger lines, causes and columns come from here, so that text, page and JSON of one recording agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from makeway.decide.analysis.findings import CauseKind
from makeway.decide.analysis.ledger import LedgerLine, LineKind
from makeway.read.traces.cpu_ranks import CPU_HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How a report speaks of one kind of hardware."""

    lines: Mapping[LineKind, str]  # of a ledger
    causes: Mapping[CauseKind, str]  # that have another name than their kind
    idle: Mapping[LineKind, str]  # why nothing runs, in the verdict
    late: str  # why most exposed time is a late launch, in the verdict
    device: str  # the column
    subject: str  # what is idle
    busy: str  # what is busy
    kernel: str
    kernels: str
    launches: str
    launched: str  # how long before its start, in the tooltip of a span
    alike: str  # what kernels of one group have in common
    stamped: str  # which step a kernel belongs to
    counted: str  # what may count as communication

    def line(self, line: LedgerLine) -> str:
        return self.line_of(line.kind, line.rank)

    def line_of(self, kind: LineKind, rank: int | None) -> str:
        """The name of a line; `rank` is the one that others wait for."""
        if kind == "waiting" and rank is None:
            return "exposed: waiting for other ranks"
        return self.lines[kind].format(rank=rank)

    def cause(self, kind: str) -> str:
        """The shown name of a cause, or of the line that advice is about."""
        return {str(known): name for known, name in self.causes.items()}.get(kind, kind)


ON_GPU = Wording(
    lines={
        "compute": "compute",
        "transfer": "exposed: transfer",
        "waiting": "exposed: waiting for rank {rank}",
        "late-launch": "exposed: late launch",
        "no-room": "exposed: no room",
        "copies": "copies",
        "host": "idle: waiting for launches",
        "synchronisation": "idle: synchronisation",
        "loading": "idle: data loading",
        "allocator": "idle: allocator",
        "gaps": "idle: gaps between kernels",
        "other": "idle: other",
    },
    causes={},
    idle={
        "host": "waiting for the host's launches",
        "synchronisation": "while the host synchronises",
        "loading": "while the host loads data",
        "allocator": "while the host allocates device memory",
        "gaps": "between queued kernels",
        "other": "for reasons that the recording does not show",
    },
    late="mostly since the host launches compute late",
    device="GPU",
    subject="The GPU",
    busy="GPU is",
    kernel="kernel",
    kernels="kernels",
    launches="launches",
    launched="launched",
    alike="of one name and grid",
    stamped="A kernel belongs to the profiler step in which the host launches it.",
    counted="Kernels and copies",
)

# A thread launches nothing: the program calls one operator after another, and runs Python in between.
ON_CPU = replace(
    ON_GPU,
    lines={
        **ON_GPU.lines,
        "late-launch": "exposed: next operator late",
        "host": "idle: between operators",
        "gaps": "idle: gaps between operators",
    },
    causes={"launch-bound": "late-operator"},
    idle={
        **ON_GPU.idle,
        "host": "between operators",
        "synchronisation": "while the program waits in a call",
        "loading": "while the program loads data",
        "allocator": "while memory is allocated",
        "gaps": "between short operators",
    },
    late="mostly since the next operator starts late",
    device="processor",
    subject="The host",
    busy="threads are",
    kernel="operator",
    kernels="operators",
    launches="calls",
    launched="due",  # a collective when it was called, an operator when its thread had nothing else to do
    alike="of one name",
    stamped="An operator belongs to the profiler step in which it starts.",
    counted="Operators",
)


def on_cpu(devices: Iterable[str | None]) -> bool:
    """Whether reports on these devices of a recording's ranks speak of CPUs; every table of words asks here."""
    return set(devices) == {CPU_HOST}


def wording_for(devices: Iterable[str | None]) -> Wording:
    """The words for the devices of a recording's ranks."""
    return ON_CPU if on_cpu(devices) else ON_GPU
