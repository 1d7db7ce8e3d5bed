"""The search: combinations of kinds with coarse values, then refined around the best few over all values.

Its cost is bounded by construction: by the number of kinds and values, never by a clock, so the same inputs give the
same plan on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from makeway.decide.planning.control_sets import INTRUSIVENESS, Candidates, Option
from makeway.decide.planning.score import Controls, Score
from makeway.values.control import CommBlocks, Control, CopyEngine, SmPartition

# Times this close tie: another seed moves the block engine's median by 0.003 (docs/control-map.md).
TIE = 0.003
MANY_OPERATIONS = 64  # a recorded step: tens of milliseconds for each score
MOST_ROUNDS = 8  # of coordinate descent; two are nearly always enough

TimeOf = Callable[[Controls], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breadth:
    """How widely a search looks."""

    values: int  # coarse values of each axis
    kinds: int  # at most so many kinds in a combination; descent may add more
    beam: int  # combinations that are refined
    finalists: int  # that the judge sees


def breadth(operations: int, *, crowded: bool, settled: bool = False, effort: int = 1) -> Breadth:
    """The breadth for a workload: less for those that are slow to score, least where no gain can count (`settled`).

    `effort` 10 is for tests of the search; it does not rely on `settled`.
    """
    if settled and effort == 1:
        return Breadth(values=1, kinds=1, beam=0, finalists=1)
    if operations > MANY_OPERATIONS:
        narrow = Breadth(values=1, kinds=1, beam=1, finalists=2)
    elif crowded:
        narrow = Breadth(values=1, kinds=2, beam=2, finalists=3)
    else:
        narrow = Breadth(values=2, kinds=3, beam=4, finalists=5)
    if effort == 1:
        return narrow
    return Breadth(
        values=narrow.values + 2, kinds=narrow.kinds + 1, beam=narrow.beam * 3, finalists=2 * narrow.finalists
    )


def search(time_of: TimeOf, offered: Candidates, seeds: Sequence[Controls], width: Breadth) -> dict[Controls, Score]:
    """Every set of controls that was scored, with its time."""
    explorer = _Explorer(time_of, offered)
    for controls in ((), *seeds):
        explorer.score(offered.point(controls))
    for controls in _coarse(offered, width):
        explorer.score(controls)
    for start in best_by_kinds(explorer.scores.values())[: width.beam]:
        explorer.descend(start)
    return explorer.scores


def best_by_kinds(scores: Iterable[Score]) -> list[Score]:
    """The fastest set of each combination of kinds, the fastest first; none where fewer of its kinds do as well."""
    best: dict[frozenset[tuple[type[Control], str]], Score] = {}
    for score in sorted(scores, key=fastest):
        best.setdefault(frozenset((type(item), getattr(item, "kernel", "")) for item in score.controls), score)
    return [
        score
        for kinds, score in best.items()
        if not any(fewer < kinds and other.t_ns <= score.t_ns * (1 + TIE) for fewer, other in best.items())
    ]


def chosen(scores: Iterable[Score]) -> Score:
    """The least intrusive of the scores that tie with the best."""
    known = list(scores)
    limit = min(score.t_ns for score in known) * (1 + TIE)
    return min((score for score in known if score.t_ns <= limit), key=preference)


def preference(score: Score) -> tuple[object, ...]:
    """Fewer controls first, then less intrusive ones, then the faster."""
    ranks = sorted(map(intrusiveness, score.controls), reverse=True)
    return (len(ranks), ranks, score.t_ns, repr(score.controls))


def intrusiveness(control: Control) -> float:
    """How much a control interferes; how copy engines copy is set by less than that they copy."""
    special = isinstance(control, CopyEngine) and control != CopyEngine()
    return INTRUSIVENESS[type(control)] + (0.5 if special else 0.0)


def fastest(score: Score) -> tuple[object, ...]:
    return (score.t_ns, *preference(score))


def simplifications(controls: Controls, forced: Controls) -> Iterator[tuple[Controls, Controls]]:
    """What may be left out or made plainer, and the set without it: one control, or a partition with its channels."""
    for control in controls:
        if control not in forced:
            rest = tuple(other for other in controls if other != control)
            yield (control,), rest
            if isinstance(control, CopyEngine) and control != CopyEngine():
                yield (control,), tuple(CopyEngine() if other == control else other for other in controls)
    pair = tuple(control for control in controls if isinstance(control, SmPartition | CommBlocks))
    if len(pair) == 2 and not set(pair) & set(forced):
        yield pair, tuple(control for control in controls if control not in pair)


def _coarse(offered: Candidates, width: Breadth) -> Iterator[Controls]:
    """All combinations of up to so many kinds, with a few values of each; where there is time, each value by itself."""
    if width.values > 1:
        for axis in offered.axes:
            yield from (offered.point(option) for option in axis)
    few = [_spread(axis, width.values) for axis in offered.axes]
    for count in range(1, width.kinds + 1):
        for axes in combinations(few, count):
            for options in product(*axes):
                controls: Controls = ()
                for option in options:
                    controls = offered.replaced(controls, option)
                yield offered.point(controls)


def _spread(axis: Sequence[Option], count: int) -> list[Option]:
    """So many values from the middles of as many equal parts of an axis."""
    if len(axis) <= count:
        return list(axis)
    return [axis[(2 * index + 1) * len(axis) // (2 * count)] for index in range(count)]


@dataclass
class _Explorer:
    time_of: TimeOf
    offered: Candidates
    scores: dict[Controls, Score] = field(default_factory=dict)
    refused: set[Controls] = field(default_factory=set)

    def score(self, controls: Controls) -> Score | None:
        if controls not in self.scores and controls not in self.refused:
            t_ns = self.time_of(controls)
            if t_ns is None:
                self.refused.add(controls)
            else:
                self.scores[controls] = Score(controls=controls, t_ns=t_ns)
        return self.scores.get(controls)

    def descend(self, current: Score) -> None:
        """Coordinate descent over all values of every axis until nothing improves."""
        for _ in range(MOST_ROUNDS):
            before = current
            for axis in self.offered.axes:
                sets = [self.offered.without(current.controls, axis)]
                sets += [self.offered.replaced(current.controls, option) for option in axis]
                tried = [self.score(self.offered.point(controls)) for controls in sets]
                current = min([current, *(score for score in tried if score is not None)], key=fastest)
            if current.controls == before.controls:
                return
