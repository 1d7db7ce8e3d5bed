"""Who says what comes next in a trial: a director sees the blocks so far and names the next one.

A director runs on rank 0 only, and keeps no clock and no randomness of its own but its seed: the same blocks give the
same answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

import msgspec

from makeway.act.launch.step_files import Block, StepSettings
from makeway.decide.analysis.alternation import Alternation, alternation
from makeway.values.control import Chunks, Compress, Control, CopyEngine
from makeway.values.errors import InputError

SETTLE = 2  # steps after a switch that do not count: a new reducer lays out its buckets in the second of them
OF_REDUCERS = (CopyEngine, Chunks, Compress)  # controls that give modules a new reducer
MEASURED = 6  # steps of a block that count
NOISE_PAIRS = 3
NOISE, PAIRED = "noise", "pair"
WITHOUT, WITH = 0, 1


class Next(msgspec.Struct, frozen=True, kw_only=True):
    """The next block: `steps` under a setting, the first `dropped` of which do not count."""

    setting: int
    steps: int
    dropped: int = 0
    tag: str = ""
    switches: bool = True  # undo and apply; False: touch nothing
    brief: bool = False  # only its median is kept
    last: bool = False  # the setting stays, and the trial is over
    keeps: bool = False  # the setting is the best that is known so far
    refusal: str | None = None  # why there can be no trial


class Director(Protocol):
    def next(self, blocks: Sequence[Block]) -> Next:
        """What follows these blocks."""


def director_of(settings: StepSettings) -> Director:
    """The director of a kind of trial."""
    match settings.kind:
        case "compare":
            return Comparing(steps=settings.steps, seed=settings.seed)
        case "tune":
            from makeway.act.launch.tuning import Tuning

            options = settings.options
            job_steps = int(options["job_steps"]) if "job_steps" in options else None
            sets = settings.controls
            return Tuning(
                len(sets),
                share=options["share"],
                job_steps=job_steps,
                seed=settings.seed,
                settle=lambda before, after: settling_steps(sets[before], sets[after]),
            )
        case _:
            raise InputError(f"no trial of kind {settings.kind!r}")


def settling_steps(before: Sequence[Control], after: Sequence[Control]) -> int:
    """Steps after a switch that do not count: none where nothing changes, fewer where reducers stay."""
    if set(before) == set(after):
        return 0
    kept, new = ({control for control in controls if isinstance(control, OF_REDUCERS)} for controls in (before, after))
    return SETTLE if kept != new else SETTLE - 1


class Comparing:
    """Pairs of blocks without (setting 0) and with the plan (setting 1), until the difference shows or steps run out.

    First come pairs without the plan on both sides. Every block begins with a switch, so that all are treated alike.
    """

    def __init__(self, *, steps: int, seed: int) -> None:
        self._seed = seed
        self.most_pairs = most_pairs(steps)

    def next(self, blocks: Sequence[Block]) -> Next:
        so_far = of_blocks(blocks, most_pairs=self.most_pairs)
        if so_far.over:
            return Next(setting=WITH if so_far.verdict == "faster" else WITHOUT, steps=0, last=True, keeps=True)
        number = len(blocks)
        tag = NOISE if number < 2 * NOISE_PAIRS else PAIRED
        pair, second = divmod(number, 2)
        with_first = random.Random(f"{self._seed}/{pair}").random() < 0.5
        setting = WITHOUT if tag == NOISE else (WITH if with_first != bool(second) else WITHOUT)
        return Next(setting=setting, steps=SETTLE + MEASURED, dropped=SETTLE, tag=tag)


def most_pairs(steps: int) -> int:
    """Pairs that fit so many steps, after those for the noise."""
    return max(0, steps // (2 * (SETTLE + MEASURED)) - NOISE_PAIRS)


def of_blocks(blocks: Sequence[Block], *, most_pairs: int) -> Alternation:
    """What the blocks of a comparison show so far."""
    noise = [block.measured_ns for block in blocks if block.tag == NOISE]
    paired = [block for block in blocks if block.tag == PAIRED]
    pairs = []
    for first, second in zip(paired[::2], paired[1::2], strict=False):
        without, under = (first, second) if first.setting == WITHOUT else (second, first)
        pairs.append((without.measured_ns, under.measured_ns))
    return alternation(pairs, list(zip(noise[::2], noise[1::2], strict=False)), most_pairs=most_pairs)
