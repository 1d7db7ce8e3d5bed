"""The director of `run --tune`: tries candidates inside a running job, keeps the fastest, and watches it.

Candidates race: in a round each gets a short block of steps, and so does the setting in force. After each round those
that cannot win leave, and at least half go where the budget is short. Only a candidate that is shown to be faster takes
over. Two budgets pay for all that tuning does: a share of the job's steps, and a share of its time that candidates,
switches and meetings may lose, less in a short job whose start has cost much. Between trials the setting in force runs
alone; when its step time drifts, candidates get another chance.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Literal

from makeway.act.launch.directors import SETTLE, Next
from makeway.act.launch.step_files import SHARE, Block
from makeway.decide.analysis.racing import MOST_ROUNDS, Standing, clipped_logs, standings, still_racing

WATCH, TRIAL = "watch", "trial"
COUNTED = 3  # steps of a block that count: with two that settle, 2 to 4 show most for their cost
FIRST_WATCHED = 10  # steps before anything is tried
LEAST_WATCHED, WATCHED_SHARE = 40, 0.05  # steps of a watching block, and their part of the steps so far
MEETING_SHARE, MOST_FOR_MEETING = 0.001, 400  # of the time that meetings take while watching; steps for its sake
ASSUMED_STEPS = 2000  # of a job whose length nobody says, at least
NEEDED = 12  # rounds that candidates should get: more candidates than can have them leave
LOST = 0.16  # of the share of steps: the share of the time that trials may lose against the setting in force
LOST_WITH_START = 0.28  # the same, with what came before the first step
ASSUMED_SWITCH_NS = 20e6  # until one was measured
ASSUMED = 1.3  # a candidate not yet tried is taken to need so many times the step in force
STALL_STEPS, STALL_NS = 10, 1e9  # a longer step or switch was the machine's fault: no more than this is counted
DRIFT = 0.10  # of the step time, in two watching blocks in a row, that starts a new trial
ROUGH, NOISY = 0.2, 2.5  # slower by more than this, and by so many standard errors, in one round: out at once

What = Literal["dropped", "adopted", "not shown", "drift"]
Settle = Callable[[int, int], int]  # steps that do not count, from one setting to another


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What the director learned or decided about a setting."""

    step: int  # of the job, when it was decided
    setting: int
    what: What
    rounds: int  # in which it was measured
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
    settle: Settle = lambda before, after: SETTLE if before != after else 0
    incumbent: int = 0
    events: list[Event] = field(default_factory=list)
    explored: int = 0  # steps under another setting than the one in force
    steps: int = 0
    lost_ns: float = 0.0
    spent_ns: float = 0.0
    start_ns: int = 0  # what tuning took before the first step
    _left_out: frozenset[int] = frozenset()
    _plain_ns: float | None = None  # a step under the setting in force
    _reference_ns: float | None = None  # the same when the last trial ended
    _switch_ns: float = ASSUMED_SWITCH_NS  # with its meeting: the mean over the blocks of trials
    _switches: int = 0
    _meeting_ns: float = 0.0  # of the last watching block
    _drifted: int = 0
    _seen: int = 0
    _in_force: int = 0
    _racing: list[int] = field(default_factory=list)  # candidates of the trial; none: no trial
    _rounds: list[dict[int, float]] = field(default_factory=list)  # of the trial
    _round: dict[int, float] = field(default_factory=dict)  # the one under way
    _wanted: list[int] = field(default_factory=list)  # settings that it still needs
    _noise: list[float] = field(default_factory=list)  # standard deviations of steps in a block

    def __post_init__(self) -> None:
        self._begin()

    def prepare(self, *, refused: Collection[int], start_ns: int) -> None:
        self._left_out = frozenset(refused)
        self.start_ns = start_ns
        self._begin()

    def next(self, blocks: Sequence[Block]) -> Next:
        for block in blocks[self._seen :]:
            self._take(block)
        self._seen = len(blocks)
        if self._plain_ns is None:
            return self._watching(FIRST_WATCHED)
        if self._may_lose_ns < 0 and self._round:  # the rest of the round is called off
            self._wanted = [setting for setting in self._wanted if setting == self.incumbent]
            if not self._wanted:
                self._end_round()
        if not self._wanted:
            self._wanted = self._order()
        if self._wanted:
            return self._block(self._wanted.pop(0), COUNTED, TRIAL)
        cheap = min(MOST_FOR_MEETING, int(self._meeting_ns / (MEETING_SHARE * self._plain_ns)))
        return self._watching(max(LEAST_WATCHED, cheap, int(WATCHED_SHARE * self.steps)))

    # --- what blocks say -----------------------------------------------------------------------

    def _take(self, block: Block) -> None:
        self.steps += block.count
        typical = self._plain_ns or median(block.times_ns)
        stall_ns = max(STALL_STEPS * typical, STALL_NS)
        self.lost_ns += min(block.overhead_ns, stall_ns)
        self.spent_ns += block.overhead_ns
        if block.tag == WATCH:
            self._meeting_ns = block.overhead_ns
            self._watched(median(block.measured_ns), block.count)
            return
        self.spent_ns += sum(block.times_ns)
        self._switches += 1
        self._switch_ns += (min(block.overhead_ns, stall_ns) - self._switch_ns) / self._switches
        costly = block.times_ns  # of the setting in force only the steps that settle
        if block.setting == self.incumbent:
            costly = block.times_ns[: block.dropped]
            self._plain_ns = median(block.measured_ns)
        else:
            self.explored += block.count
        self.lost_ns += sum(min(time, stall_ns) - typical for time in costly)
        logs = clipped_logs(block.measured_ns)
        self._round[block.setting] = fmean(logs)
        self._noise.append(fmean((value - fmean(logs)) ** 2 for value in logs))
        if not self._wanted:
            self._end_round()

    def _watched(self, step_ns: float, steps: int) -> None:
        self.spent_ns += step_ns * steps
        self._plain_ns = step_ns
        if self._racing:
            return
        if self._reference_ns is None:
            self._reference_ns = step_ns
            return
        change = math.log(step_ns / self._reference_ns)
        self._drifted = self._drifted + 1 if abs(change) > math.log1p(DRIFT) else 0
        if self._drifted >= 2:
            self.events.append(
                Event(step=self.steps, setting=self.incumbent, what="drift", rounds=0, difference=change)
            )
            self._begin()

    # --- the race ------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._reference_ns, self._drifted = None, 0
        self._racing = [setting for setting in range(self.settings) if setting not in {self.incumbent, *self._left_out}]
        self._rounds = []

    def _order(self) -> list[int]:
        """Settings of the next round in random order; none while there is no trial, or no means for one."""
        affordable = self._affordable()
        order = [self.incumbent, *affordable] if affordable else []
        random.Random(f"{self.seed}/{self._seen}").shuffle(order)
        return order

    def _affordable(self) -> list[int]:
        """The candidates that a round can have: those with few rounds first, then the fastest."""
        assert self._plain_ns is not None
        stand = standings(self._rounds, self.incumbent, self._racing)
        may_explore = self.share * (self.job_steps or self.steps) - self.explored
        may_lose_ns = self._may_lose_ns - self._switch_ns  # that to the setting in force
        chosen = []
        for setting in sorted(self._racing, key=lambda setting: _merit(stand.get(setting))):
            ratio = math.exp(stand[setting].difference) if setting in stand else ASSUMED
            steps = self.settle(self.incumbent, setting) + COUNTED
            may_explore -= steps
            may_lose_ns -= self._switch_ns + steps * self._plain_ns * max(0.0, ratio - 1)
            if may_explore < 0 or may_lose_ns < 0:
                break
            chosen.append(setting)
        return chosen

    @property
    def _may_lose_ns(self) -> float:
        """What is left of the time that tuning may lose."""
        return self.lost_limit * self._job_ns - self.lost_ns

    @property
    def lost_limit(self) -> float:
        """Of the job's time, what tuning may lose after the start; a share above the default is there in any case."""
        beside_start = LOST_WITH_START * self.share - self.start_ns / self._job_ns
        return max(0.0, LOST * (self.share - SHARE), min(LOST * self.share, beside_start))

    @property
    def _job_ns(self) -> float:
        """The time of the whole job, as far as it is known."""
        assert self._plain_ns is not None
        return max(self.spent_ns, (self.job_steps or self.steps) * self._plain_ns)

    def _end_round(self) -> None:
        self._rounds.append(self._round)
        in_round, self._round = set(self._round), {}
        most = self._most_rounds
        stand = standings(self._rounds, self.incumbent, self._racing)
        if not stand:
            return
        best = stand[min(stand, key=lambda setting: stand[setting].difference)]
        if best.faster(most):
            self._note(best, "adopted")
            self.incumbent = best.setting
            self._racing.remove(best.setting)
            stand = standings(self._rounds, self.incumbent, self._racing)
        left = self._left(stand)
        if in_round.issuperset(self._racing):
            left = left[: self._most_racing(len(self._racing))]
        if any(item.rounds >= most for item in stand.values()):
            left = []
        for setting in self._racing:
            if setting not in left:
                self._note(stand[setting], "not shown" if not left and setting == best.setting else "dropped")
        self._racing = left

    def _left(self, stand: Mapping[int, Standing]) -> list[int]:
        """The candidates that stay in the race, the fastest first; those not yet tried come last."""
        untried = [setting for setting in self._racing if setting not in stand]
        new = [setting for setting in stand if stand[setting].rounds == 1]
        error = math.sqrt(2 * fmean(self._noise) / (COUNTED - 1))  # after one round only the steps tell the spread
        limit = max(math.log1p(ROUGH), NOISY * error)
        racing = still_racing(self._rounds, self.incumbent, list(stand))
        left = [setting for setting in new if stand[setting].difference < limit]
        left += [setting for setting in racing if setting not in new]
        return sorted(left, key=lambda setting: stand[setting].difference) + untried

    @property
    def _most_rounds(self) -> int:
        """Of one trial: as many as the share of steps can pay for a single candidate."""
        length = self.job_steps or ASSUMED_STEPS
        return min(MOST_ROUNDS, max(NEEDED, int(self.share * length / (SETTLE + COUNTED))))

    def _most_racing(self, racing: int) -> int:
        """How many candidates the steps that are left can pay for; at least half of them stay."""
        length = self.job_steps or max(2 * self.steps, ASSUMED_STEPS)
        rounds = max(1, NEEDED - len(self._rounds))
        affordable = (self.share * length - self.explored) / (rounds * (SETTLE + COUNTED))
        return max(math.ceil(racing / 2), int(affordable))

    def _note(self, standing: Standing, what: What) -> None:
        self.events.append(self._event(standing, what))

    def _event(self, standing: Standing, what: What) -> Event:
        shown = standing.shown(self._most_rounds)
        return Event(
            step=self.steps,
            setting=standing.setting,
            what=what,
            rounds=standing.rounds,
            difference=shown.estimate,
            low=shown.low,
            high=shown.high,
        )

    def unfinished(self) -> list[Event]:
        """What is known of the candidates that still race: the job or the budget ended before the race."""
        stand = standings(self._rounds, self.incumbent, self._racing)
        return [self._event(standing, "not shown") for standing in stand.values()]

    # --- the next block ------------------------------------------------------------------------

    def _watching(self, steps: int) -> Next:
        return self._block(self.incumbent, steps, WATCH)

    def _block(self, setting: int, counted: int, tag: str) -> Next:
        dropped = self.settle(self._in_force, setting)
        switches = setting != self._in_force
        self._in_force = setting
        watching = tag == WATCH
        return Next(
            setting=setting, steps=dropped + counted, dropped=dropped, tag=tag, switches=switches, brief=watching,
            keeps=watching,
        )  # fmt: skip


def _merit(standing: Standing | None) -> tuple[int, float]:
    return (0, 0.0) if standing is None else (standing.rounds, standing.difference)
