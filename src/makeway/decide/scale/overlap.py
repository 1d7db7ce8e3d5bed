"""Communication beside compute: what stays exposed, and what compute loses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from makeway.values.collective import CollectiveKind

if TYPE_CHECKING:
    from makeway.decide.scale.stages import Pricing

PIECES = 4  # that a collective and its product are cut into, so that they overlap; Transformer Engine's default is tp


@dataclass(frozen=True, slots=True)
class Overlap:
    """A stretch of compute with communication beside it."""

    exposed_ns: float
    contention_ns: float  # compute that takes longer


def hidden(pricing: Pricing, compute_ns: float, comm_ns: float, kind: CollectiveKind) -> Overlap:
    """A collective cut into pieces beside the operation that uses its data."""
    return Overlap(max(0.0, comm_ns - compute_ns) + min(comm_ns, compute_ns) / PIECES, 0.0)


def beside(pricing: Pricing, compute_ns: float, comm_ns: float, kind: CollectiveKind) -> Overlap:
    """A collective of another layer beside compute that does not wait for it."""
    return Overlap(max(0.0, comm_ns - compute_ns), 0.0)
