"""The lines of a step's ledger in words."""

from __future__ import annotations

from makeway.values.step import StepLineKind

LINE_NAMES: dict[StepLineKind, str] = {
    "compute": "compute",
    "recompute": "recompute",
    "contention": "contention: compute slowed by communication",
    "exposed-tp": "exposed: tensor parallel",
    "exposed-cp": "exposed: context parallel",
    "exposed-ep": "exposed: expert parallel",
    "exposed-dp": "exposed: data parallel",
    "exposed-pp": "exposed: pipeline hops",
    "compression": "compression: encode and decode",
    "bubble": "bubble: waiting for another stage",
    "host": "idle: waiting for launches",
    "optimizer": "optimizer",
    "stragglers": "waiting for the slowest rank",
}
