"""What a bench asks of its ranks, and what they answer: values that travel as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from makeway.act.measure.variants import Setting
from makeway.values.control import control_word, parse_control
from makeway.values.errors import InputError

DEFAULT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One workload and the ways to run it, as every rank is told."""

    workload: str
    settings: tuple[Setting, ...]
    on: str = "cpu"  # or cuda, rocm
    candidates: tuple[Setting, ...] = ()  # tried for the "planned" variant; none: nothing is planned
    repeats: int = 10
    warmup: int = 2
    steps: int = 4  # of the workload in one round
    size_bytes: int | None = None  # None: the workload's own
    scale: float | None = None
    in_flight: int = 1
    grid: tuple[int, int] | None = None  # X x Y blocks of the GEMM, which loop over its tiles; None: as the GEMM has it
    tile: tuple[int, int, int] | None = None
    bucket_mb: float = 1.0
    compress: str = "none"
    timeout_s: float = DEFAULT_TIMEOUT_S  # for one collective
    trial_rounds: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for what, least in (("repeats", 1), ("warmup", 0), ("steps", 1), ("in_flight", 1), ("trial_rounds", 2)):
            if getattr(self, what) < least:
                raise InputError(f"{what} must be {least} or more, got {getattr(self, what)}")
        for side in (*(self.grid or ()), *(self.tile or ())):
            if side < 1:
                raise InputError(f"sides of grids and tiles must be 1 or more, got {self.grid or self.tile}")
        if self.timeout_s <= 0:
            raise InputError(f"a timeout must be above 0 seconds, got {self.timeout_s}")


def encode_job(job: Job) -> bytes:
    """One line of JSON; controls as words of the command line."""
    fields: dict[str, Any] = {name: getattr(job, name) for name in Job.__dataclass_fields__}
    for name in ("settings", "candidates"):
        fields[name] = [
            {
                "name": one.name,
                "mode": one.mode,
                "controls": [control_word(control) for control in one.controls],
                "threads": one.threads,
            }
            for one in fields[name]
        ]
    return msgspec.json.encode(fields)


def decode_job(text: bytes) -> Job:
    fields = msgspec.json.decode(text)
    for name in ("settings", "candidates"):
        fields[name] = tuple(
            Setting(**(one | {"controls": tuple(parse_control(word) for word in one["controls"])}))
            for one in fields[name]
        )
    for name in ("grid", "tile"):
        fields[name] = fields[name] and tuple(fields[name])
    return Job(**fields)
