"""What bench_scale_ranks.py asks of its ranks: shapes, cells and probes, and what they answer."""

from __future__ import annotations

from typing import Literal

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

    @property
    def name(self) -> str:
        return self.parallel if self.compression == "none" else f"{self.parallel} {self.compression}"


class RanksJob(msgspec.Struct, frozen=True):
    """For one launch of ranks."""

    probes: Literal["none", "link", "all"]  # link: what Gloo's collectives take alone
    cells: tuple[Cell, ...]
    steps: int
    warmup: int
    timeout_s: float = 120.0


class Probe(msgspec.Struct, frozen=True):
    """One thing that was timed; `sizes` say of what, by kind."""

    kind: str
    sizes: tuple[float, ...]
    seconds: float


# Shapes that no cell has: one so small that only the framework's own time counts, and one for the hooks of compression.
TINY = Shape(layers=2, hidden=64, heads=4, vocab=64, seq=16, batch=4)
HOOKED = Shape(layers=3, hidden=320, heads=5, vocab=512, seq=32, batch=1)


class RanksAnswer(msgspec.Struct, frozen=True):
    """What rank 0 saw."""

    probes: tuple[Probe, ...]
    steps_s: tuple[tuple[float, ...], ...]  # of each cell
