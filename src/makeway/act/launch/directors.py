"""Who says what comes next in a trial: a director sees the blocks so far and names the next one.

A director runs on rank 0 only, and keeps no clock and no randomness of its own but its seed: the same blocks give the
same answer.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from makeway.act.launch.step_files import Block, StepSettings
from makeway.decide.analysis.alternation import Alternation, alternation, looks
from makeway.values.control import Chunks, CommBlocks, Compress, Control, CopyEngine
from makeway.values.errors import InputError

SETTLE = 2  # steps after a switch that do not count, at most
NEW_BUCKETS = (CopyEngine, Chunks, Compress)  # a reducer takes new memory for its buckets in its second step
MEASURED = 3  # steps of a block that count: of neighbouring short blocks less of the noise remains
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

    def prepare(self, *, refused: Collection[int], start_ns: int) -> None:
        """Said before the first block: settings that no block can have, and what came before the first step."""


def director_of(settings: StepSettings) -> Director:
    """The director of a kind of trial."""
    match settings.kind:
        case "compare":
            return Comparing(steps=settings.steps, seed=settings.seed, settle=settling_steps(*settings.controls))
        case "tune":
            from makeway.act.launch.tuning import Tuning

            options = settings.options
            job_steps = None  # that it sees: those after the warm-up
            if "job_steps" in options:
                job_steps = max(1, int(options["job_steps"]) - settings.warm_up)
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
    """Steps after a switch that do not count: none where nothing changes, fewer where it takes effect at once."""
    if set(before) == set(after):
        return 0
    changed = {*before} ^ {*after}
    new_buckets = any(isinstance(control, NEW_BUCKETS) for control in changed)
    if new_buckets and any(isinstance(control, NEW_BUCKETS) for control in after):
        return SETTLE
    # Channels change one step after ranks have agreed on them.
    return SETTLE if any(isinstance(control, CommBlocks) for control in changed) else SETTLE - 1


class Comparing:
    """Pairs of blocks without (setting 0) and with the plan (setting 1), until the difference shows or steps run out.

    First come pairs without the plan on both sides. The order within a pair is random. `settle`: steps after a switch
    that do not count.
    """

    def __init__(self, *, steps: int, seed: int, settle: int = SETTLE) -> None:
        self._seed, self._settle = seed, settle
        self.most_pairs = 0
        left = steps - 2 * NOISE_PAIRS * MEASURED
        while (left := left - self._cost(self.most_pairs)) >= 0:
            self.most_pairs += 1
        self._looks = looks(self.most_pairs)

    def next(self, blocks: Sequence[Block]) -> Next:
        in_force = blocks[-1].setting if blocks else WITHOUT
        pair, second = divmod(len(blocks) - 2 * NOISE_PAIRS, 2)
        if not second and (pair in self._looks or pair >= self.most_pairs):
            so_far = of_blocks(blocks, most_pairs=self.most_pairs)
            if so_far.over:
                setting = WITH if so_far.verdict == "faster" else WITHOUT
                return Next(setting=setting, steps=0, switches=setting != in_force, last=True, keeps=True)
        if pair < 0:
            return Next(setting=WITHOUT, steps=MEASURED, tag=NOISE, switches=False)
        setting = self._order(pair)[second]
        dropped = self._settle if setting != in_force else 0
        return Next(
            setting=setting, steps=dropped + MEASURED, dropped=dropped, tag=PAIRED, switches=setting != in_force
        )

    def prepare(self, *, refused: Collection[int], start_ns: int) -> None:
        """Nothing changes: what the plan cannot do here, its receipts say."""

    def _order(self, pair: int) -> tuple[int, int]:
        with_first = random.Random(f"{self._seed}/{pair}").random() < 0.5
        return (WITH, WITHOUT) if with_first else (WITHOUT, WITH)

    def _cost(self, pair: int) -> int:
        """Steps of a pair."""
        before = self._order(pair - 1)[1] if pair else WITHOUT
        switches = 1 if before == self._order(pair)[0] else 2
        return 2 * MEASURED + switches * self._settle


def of_blocks(blocks: Sequence[Block], *, most_pairs: int, ended: bool = False) -> Alternation:
    """What the blocks of a comparison show so far; `ended`: none follow."""
    noise = [block.measured_ns for block in blocks if block.tag == NOISE]
    paired = [block for block in blocks if block.tag == PAIRED]
    pairs = []
    for first, second in zip(paired[::2], paired[1::2], strict=False):
        without, under = (first, second) if first.setting == WITHOUT else (second, first)
        pairs.append((without.measured_ns, under.measured_ns))
    noise_pairs = list(zip(noise[::2], noise[1::2], strict=False))
    return alternation(pairs, noise_pairs, most_pairs=most_pairs, ended=ended)
