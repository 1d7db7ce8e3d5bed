"""What bench_scale_ranks.py asks of its ranks: shapes, cells and probes, and what they answer."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Parallel = Literal["ddp", "fsdp", "tp", "pp"]
Compression = Literal["none", "bf16", "powersgd", "topk"]


class Shape(msgspec.Struct, frozen=True):
    """A small decoder, and the sequences that one replica trains on in a step."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    seq: int
    batch: int

    @property
    def ffn(self) -> int:
        return 4 * self.hidden


class Cell(msgspec.Struct, frozen=True):
    """One way to train one shape."""

    parallel: Parallel
    shape: Shape
    compression: Compression = "none"
    micro_batches: int = 1  # of a pipeline
    bucket_bytes: int = 4 << 20
    alone: bool = False  # every rank is a replica of its own: all compute at once, nobody exchanges

    @property
    def name(self) -> str:
        return self.parallel if self.compression == "none" else f"{self.parallel} {self.compression}"


class RanksJob(msgspec.Struct, frozen=True):
    """For one launch of ranks."""

    cells: tuple[Cell, ...]
    steps: int
    warmup: int
    timeout_s: float = 120.0


class Probe(msgspec.Struct, frozen=True):
    """One thing that was timed; `sizes` say of what, by kind."""

    kind: str
    sizes: tuple[float, ...]
    seconds: float


COMM_BYTES = (96 << 10, 6 << 20)  # of the collectives that are timed alone

# Shapes that no judged cell has: one so small that only the framework's own time counts, and one of a usual size.
TINY = Shape(layers=2, hidden=64, heads=4, vocab=64, seq=16, batch=4)
MIDDLE = Shape(layers=2, hidden=384, heads=12, vocab=640, seq=96, batch=4)


def ways(shape: Shape) -> tuple[Cell, ...]:
    """Every way to train a shape."""
    return (
        *(Cell("ddp", shape, compression) for compression in get_args(Compression)),
        Cell("fsdp", shape),
        Cell("tp", shape),
        Cell("pp", shape, micro_batches=4),
    )


# Steps that give the host its numbers; they take turns with the cells.
CALIBRATION = (
    *(cell for cell in ways(TINY) if cell.compression == "none"),
    Cell("ddp", MIDDLE, alone=True),
    *ways(MIDDLE),
)


class RanksAnswer(msgspec.Struct, frozen=True):
    """What rank 0 saw."""

    probes: tuple[Probe, ...]
    steps_s: tuple[tuple[float, ...], ...]  # of each cell
