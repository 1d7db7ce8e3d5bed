"""Receipts: what became of each control, from whoever carried it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from makeway.values.control import Control

Status = Literal["applied", "refused", "no effect", "not seen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of one control on one rank.

    Applied: something the program does was acted on, and `evidence` or `detail` says what. Refused: the carrier or the
    system turned it down, and nothing changed. No effect: it was set, and nothing the program does reads it. Not seen:
    no process reported it, or nothing that it applies to ever ran.
    """

    control: Control
    status: Status
    detail: str
    carrier: str = ""  # a name of the support table: "launch shim", "torch on CPU", "NCCL environment" ...
    rank: int | None = None  # None: the launcher, or a process without a rank
    evidence: tuple[tuple[str, int], ...] = ()  # what was counted: ("launches seen", 12), ("launches padded", 10) ...
