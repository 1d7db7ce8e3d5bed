"""The director of `run --tune`: tries candidates inside a running job, keeps the fastest, and watches it.

Successive halving over blocks of steps: every candidate gets a short block beside one of the setting in force, the
better third a longer one, until few are left. Those are confirmed in pairs of blocks, and only a candidate that is
shown to be faster takes over. Exploration is paid from two budgets: a share of the job's steps, and a share of its time
that candidates may lose. Between trials the setting in force runs alone; when its step time drifts, candidates get
another chance.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from makeway.act.launch.directors import SETTLE, Next
from makeway.act.launch.step_files import Block
from makeway.decide.analysis.alternation import Alternation, alternation, log_time

WATCH = "watch"
FIRST_STEPS, MORE_STEPS, PAIR_STEPS = 3, 6, 4  # of a block that count: first and later halving, confirmation
FEW = 2  # candidates that are confirmed rather than halved
MOST_PAIRS = 12  # of a confirmation
LOST = 0.16  # of the share of steps: the share of the time that trials may lose against the setting in force
ASSUMED = 1.3  # a candidate not yet tried is taken to need so many times the step in force
LEAST_WATCHED, WATCHED_SHARE = 40, 0.05  # steps of a watching block, and their part of the steps so far
DRIFT = 0.10  # of the step time, in two watching blocks in a row, that starts a new trial
ROUGH, HOPEFUL = 0.2, 0.02  # a candidate slower by more than this is dropped: after its first block, and later

Stage = Literal["halving", "confirming"]
What = Literal["dropped", "kept", "adopted", "not shown", "drift"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What the director learned or decided about a setting."""

    step: int  # of the job, when it was decided
    setting: int
    stage: Stage
    what: What
    difference: float  # logarithm of the step time over that of the setting in force; of a drift, over the one before
    low: float | None = None
    high: float | None = None


@dataclass(slots=True)
class Tuning:
    """Names the next block from those so far; replaying the same blocks gives the same answers and events."""

    settings: int  # their number; 0 is the program as it is
    share: float
    job_steps: int | None
    seed: int
    incumbent: int = 0
    events: list[Event] = field(default_factory=list)
    explored: int = 0  # steps under another setting than the one in force
    steps: int = 0
    lost_ns: float = 0.0
    spent_ns: float = 0.0
    _plain_ns: float | None = None  # a step under the setting in force
    _reference_ns: float | None = None  # the same when the last trial ended
    _drifted: int = 0
    _seen: int = 0
    _in_force: int = 0
    _trial: Iterator[tuple[int, int]] | None = None  # asks for pairs: a candidate, and steps that count
    _asked: tuple[int, int] | None = None
    _wanted: list[tuple[int, int]] = field(default_factory=list)  # blocks of the pair under way: setting, steps
    _pair: dict[int, Sequence[int]] = field(default_factory=dict)
    _measured: tuple[Sequence[int], Sequence[int]] = ((), ())  # the last pair: in force, candidate
    _begun: bool = False
    _ratios: dict[int, float] = field(default_factory=dict)  # the last known, by candidate

    def next(self, blocks: Sequence[Block]) -> Next:
        for block in blocks[self._seen :]:
            self._take(block)
        self._seen = len(blocks)
        if self._plain_ns is None:
            return self._watching(LEAST_WATCHED // 2)
        if not self._wanted:
            self._ask()
        if self._asked is None or not (self._wanted and self._affordable()):
            return self._watching(max(LEAST_WATCHED, int(WATCHED_SHARE * self.steps)))
        setting, counted = self._wanted.pop(0)
        return self._block(setting, SETTLE + counted, SETTLE, "trial")

    # --- what blocks say -----------------------------------------------------------------------

    def _take(self, block: Block) -> None:
        self.steps += block.count
        if block.tag == WATCH:
            self._watched(median(block.measured_ns), block.count)
            return
        typical = self._plain_ns or median(block.times_ns)
        self.spent_ns += sum(block.times_ns)
        costly = block.times_ns  # of the setting in force only the steps that settle
        if block.setting == self.incumbent:
            costly = block.times_ns[: block.dropped]
            self._plain_ns = median(block.measured_ns)
        else:
            self.explored += block.count
        self.lost_ns += sum(costly) - typical * len(costly)
        self._pair[block.setting] = block.measured_ns
        if len(self._pair) == 2:
            self._end_pair()

    def _end_pair(self) -> None:
        assert self._asked is not None
        candidate = self._asked[0]
        self._measured = (self._pair[self.incumbent], self._pair[candidate])
        self._ratios[candidate] = math.exp(self._last)
        self._pair, self._asked = {}, None

    @property
    def _last(self) -> float:
        """The difference of the last pair."""
        in_force, candidate = self._measured
        return log_time(candidate) - log_time(in_force)

    def _watched(self, step_ns: float, steps: int) -> None:
        self.spent_ns += step_ns * steps
        self._plain_ns = step_ns
        if self._trial is not None:
            return
        if self._reference_ns is None:
            self._reference_ns = step_ns
            return
        change = math.log(step_ns / self._reference_ns)
        self._drifted = self._drifted + 1 if abs(change) > math.log1p(DRIFT) else 0
        if self._drifted >= 2:
            self._note(self.incumbent, "halving", "drift", change)
            self._reference_ns, self._drifted = None, 0
            self._ratios.clear()
            self._trial = self._explore()

    # --- what to do next -----------------------------------------------------------------------

    def _ask(self) -> None:
        """The next pair of blocks that the trial wants, in random order; none when it is over."""
        if not self._begun:
            self._begun, self._trial = True, self._explore()
        if self._trial is None or self._asked is not None:
            return
        try:
            self._asked = next(self._trial)
        except StopIteration:
            self._trial, self._reference_ns = None, None
            return
        candidate, counted = self._asked
        pair = [(self.incumbent, counted), (candidate, counted)]
        if random.Random(f"{self.seed}/{self._seen}").random() < 0.5:
            pair.reverse()
        self._wanted = pair

    def _affordable(self) -> bool:
        """Whether a pair may begin; one that has begun goes on."""
        assert self._asked is not None
        assert self._plain_ns is not None
        if len(self._wanted) == 1:
            return True
        candidate, counted = self._asked
        steps = SETTLE + counted
        length = self.job_steps or self.steps
        may_lose_ns = LOST * self.share * max(self.spent_ns, length * self._plain_ns)
        expected_ns = steps * self._plain_ns * max(0.0, self._ratios.get(candidate, ASSUMED) - 1)
        return self.explored + steps <= self.share * length and self.lost_ns + expected_ns <= may_lose_ns

    def _explore(self) -> Iterator[tuple[int, int]]:
        """One trial: pairs to measure, one after another; between them `_last` is the pair's difference."""
        alive = [setting for setting in range(self.settings) if setting != self.incumbent]
        counted = FIRST_STEPS
        while True:
            scores = {}
            for setting in alive:
                yield setting, counted
                scores[setting] = self._last
            ordered = sorted(alive, key=lambda setting: scores[setting])
            limit = ROUGH if counted == FIRST_STEPS else HOPEFUL
            best = ordered[: max(FEW, math.ceil(len(alive) / 3))]
            kept = [setting for setting in best if scores[setting] < math.log1p(limit)]
            for setting in ordered:
                self._note(setting, "halving", "kept" if setting in kept else "dropped", scores[setting])
            small = len(alive) <= FEW and counted == MORE_STEPS
            alive, counted = kept, MORE_STEPS
            if small or not alive:
                break
        for setting in alive:
            shown = yield from self._confirm(setting)
            if shown.verdict == "faster":
                self._note(setting, "confirming", "adopted", shown)
                self.incumbent = setting
                return
            self._note(setting, "confirming", "not shown", shown)

    def _confirm(self, setting: int) -> Generator[tuple[int, int], None, Alternation]:
        pairs: list[tuple[Sequence[int], Sequence[int]]] = []
        while True:
            yield setting, PAIR_STEPS
            pairs.append(self._measured)
            seen = alternation(pairs, (), most_pairs=MOST_PAIRS)
            if seen.over or (len(pairs) >= FEW and seen.difference.estimate > math.log1p(HOPEFUL)):
                return seen

    def _note(self, setting: int, stage: Stage, what: What, shown: float | Alternation) -> None:
        difference = shown if isinstance(shown, float) else shown.difference.estimate
        low, high = (None, None) if isinstance(shown, float) else (shown.difference.low, shown.difference.high)
        self.events.append(
            Event(step=self.steps, setting=setting, stage=stage, what=what, difference=difference, low=low, high=high)
        )

    def _watching(self, steps: int) -> Next:
        switched = self._in_force != self.incumbent
        return self._block(self.incumbent, steps + (SETTLE if switched else 0), SETTLE if switched else 0, WATCH)

    def _block(self, setting: int, steps: int, dropped: int, tag: str) -> Next:
        switches = tag != WATCH or setting != self._in_force
        self._in_force = setting
        watching = tag == WATCH
        return Next(
            setting=setting, steps=steps, dropped=dropped, tag=tag, switches=switches, brief=watching, keeps=watching
        )
