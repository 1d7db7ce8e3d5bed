"""The search for the best set of controls: exhaustive where sets are few, else coordinate descent from many starts.

Deterministic: fixed costs of what the engines do spend the budget, never a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from makeway.decide.planning.candidates import INTRUSIVENESS, Candidates
from makeway.decide.planning.score import Score, Scorer
from makeway.values.control import Chunks, Control

# Times this close tie: another seed moves the block engine's median by 0.003 (docs/control-map.md).
TIE = 0.003
PIECE_COST = 2.0  # pieces end at different moments: each costs more than its part
MOST_ROUNDS = 4  # of coordinate descent; two are nearly always enough

Controls = tuple[Control, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search scored."""

    best: Score
    scores: Mapping[Controls, Score]
    evaluations: int
    complete: bool  # every set was scored
    stopped_early: bool  # the budget ran out before the search ended


def best(scorer: Scorer, offered: Candidates, *, seeds: Sequence[Controls] = (), budget_ms: float) -> SearchResult:
    """The fastest set of controls; among ties the least intrusive.

    Every seed is scored first, so the result is never slower than the best of them.
    """
    search = _Explorer(scorer, offered, budget_ms)
    search.run(seeds)
    seeded = [search.scores[key] for seed in seeds if (key := offered.point(seed)) in search.scores]
    return SearchResult(
        best=search.pruned(chosen(search.scores.values(), seeded), seeded),
        scores=search.scores,
        evaluations=scorer.evaluations,
        complete=search.complete,
        stopped_early=search.stopped_early or search.left_out,
    )


def chosen(scores: Iterable[Score], floor: Sequence[Score] = ()) -> Score:
    """The least intrusive of the scores that tie with the best; never slower than the best of `floor`."""
    known = list(scores)
    least = min(score.t_ns for score in known)
    limit = min([least * (1 + TIE), *(score.t_ns for score in floor)])
    return min((score for score in known if score.t_ns <= limit), key=preference)


def preference(score: Score) -> tuple[object, ...]:
    """Fewer controls first, then less intrusive ones, then the faster."""
    ranks = sorted((INTRUSIVENESS[type(control)] for control in score.controls), reverse=True)
    return (len(ranks), ranks, score.t_ns, repr(score.controls))


def fastest(score: Score) -> tuple[object, ...]:
    return (score.t_ns, *preference(score))


def removals(controls: Controls, forced: Controls) -> Iterator[tuple[Control, Controls]]:
    """Each control that may be left out, and the set without it."""
    for control in controls:
        if control not in forced:
            yield control, tuple(other for other in controls if other != control)


@dataclass
class _Explorer:
    scorer: Scorer
    offered: Candidates
    budget_ms: float
    scores: dict[Controls, Score] = field(default_factory=dict)
    refused: set[Controls] = field(default_factory=set)  # sets that cannot run
    complete: bool = False
    stopped_early: bool = False
    left_out: bool = False  # whether some set would have cost more than was left

    def run(self, seeds: Sequence[Controls]) -> None:
        starts = dict.fromkeys([self.offered.point(()), *(self.offered.point(seed) for seed in seeds)])
        for start in starts:  # baselines are scored whatever the budget
            self._score(start, always=True)
        each_ms = self.scorer.spent_ms / max(self.scorer.evaluations, 1)
        if self.offered.points * each_ms <= self.budget_ms:
            for values in product(*((None, *axis) for axis in self.offered.axes)):
                self._score(self.offered.point([value for value in values if value is not None]))
            self.complete = not (self.stopped_early or self.left_out)
            return
        for axis in reversed(self.offered.axes):  # one value of each kind by itself, should the budget end soon
            self._score(self.offered.point([axis[len(axis) // 2]]))
        for score in sorted(self.scores.values(), key=fastest):
            self._descend(score)
        for corner in self._corners():
            if (corner_score := self._score(corner)) is not None:
                self._descend(corner_score)
        self._pairs()

    def pruned(self, plan: Score, floor: Sequence[Score]) -> Score:
        """The plan without controls whose removal costs nothing; each removal is scored whatever the budget."""
        while True:
            for _, rest in removals(plan.controls, self.offered.forced):
                self._score(self.offered.point(rest), always=True)
            simpler = chosen(self.scores.values(), floor)
            if simpler.controls == plan.controls:
                return plan
            plan = simpler

    def _score(self, controls: Controls, *, always: bool = False) -> Score | None:
        if controls in self.scores or controls in self.refused:
            return self.scores.get(controls)
        if not always and self.scorer.spent_ms >= self.budget_ms:
            self.stopped_early = True
            return None
        if not always and self._too_costly(controls):
            self.left_out = True
            return None
        answer = self.scorer.attempt(controls)
        if isinstance(answer, str):
            self.refused.add(controls)
            return None
        self.scores[controls] = answer
        return answer

    def _too_costly(self, controls: Controls) -> bool:
        """Whether a workload in pieces may cost more than is left."""
        pieces = next((control.pieces for control in controls if isinstance(control, Chunks)), 1)
        each_ms = self.scorer.spent_ms / max(self.scorer.evaluations, 1)
        return pieces > 1 and each_ms * pieces * PIECE_COST > self.budget_ms - self.scorer.spent_ms

    def _neighbours(self, controls: Controls, axes: Sequence[tuple[Control, ...]]) -> Iterator[Controls]:
        """Sets that differ in the kinds of these axes only."""
        kinds = {type(axis[0]) for axis in axes}
        rest = [control for control in controls if type(control) not in kinds]
        for values in product(*((None, *axis) for axis in axes)):
            yield self.offered.point([*rest, *(value for value in values if value is not None)])

    def _best_of(self, current: Score, axes: Sequence[tuple[Control, ...]]) -> Score:
        tried = [self._score(controls) for controls in self._neighbours(current.controls, axes)]
        return min([current, *(score for score in tried if score is not None)], key=fastest)

    def _descend(self, current: Score) -> Score:
        for _ in range(MOST_ROUNDS):
            before = current
            for axis in self.offered.axes:
                current = self._best_of(current, [axis])
            if current.controls == before.controls or self.stopped_early:
                break
        return current

    def _corners(self) -> Iterator[Controls]:
        """Starts that single steps may never reach: two or three kinds at their last (strongest) value."""
        for count in (2, 3):
            for axes in combinations(self.offered.axes, count):
                yield self.offered.point([axis[-1] for axis in axes])

    def _pairs(self) -> None:
        """Every two kinds at once, around the best so far."""
        current = min(self.scores.values(), key=fastest)
        for axes in combinations(self.offered.axes, 2):
            better = self._best_of(current, axes)
            current = self._descend(better) if better.controls != current.controls else current
