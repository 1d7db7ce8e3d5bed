"""What a harness does whatever its ranks run on: results by setting, the search among candidates, the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from makeway.act.backend import Receipt
from makeway.act.measure.choice import Choice, choice, finalist, promising
from makeway.act.measure.ranks.exchange import RawSpan
from makeway.act.measure.record import SettingRecord, SpanRecord
from makeway.act.measure.statistics import summary
from makeway.act.measure.variants import Setting
from makeway.values.control import control_word

T = TypeVar("T")
Report = Callable[[str], None]
_CONFIRMING = 2  # times the trial rounds


class Telling(Protocol):
    """What ranks tell one another outside the timed parts."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    def barrier(self) -> None: ...
    def told(self, decide: Callable[[], T]) -> T: ...
    def gathered(self, value: T) -> list[T] | None: ...
    def everywhere(self, value: T) -> list[T]: ...


@dataclass(slots=True)
class Found:
    """What the rounds of one setting gave; times on rank 0 only."""

    times_ns: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    wrong: str | None = None
    receipts: tuple[Receipt, ...] = ()
    spans: list[RawSpan] = field(default_factory=list)

    def add(self, time_ns: float, rates: Sequence[float | None], wrongs: Sequence[str | None]) -> None:
        """One round: its time, and the overlap rate and fault of each rank."""
        self.times_ns.append(time_ns)
        self.rates += [rate for rate in rates if rate is not None]
        self.wrong = self.wrong or next((f"rank {rank}: {fault}" for rank, fault in enumerate(wrongs) if fault), None)


FoundBy = Mapping[str, Found]  # by name of the setting


def forget(found: FoundBy) -> None:
    """Drops times, but not what was wrong."""
    for one in found.values():
        one.times_ns.clear()
        one.rates.clear()


def times(found: FoundBy, names: Sequence[str]) -> dict[str, list[float]]:
    return {name: list(found[name].times_ns) for name in names}


def measured_choice(
    rounds: Callable[[Sequence[str], int], None],
    found: FoundBy,
    world: Telling,
    *,
    baselines: Sequence[str],
    candidates: Sequence[str],
    trial_rounds: int,
    report: Report,
) -> Choice:
    """The setting that a measured search picks, and why: trial rounds, early stops, then rounds to confirm."""
    first, alive = list(baselines), list(candidates)
    for done in range(trial_rounds):
        report(f"trial {done + 1} of {trial_rounds}: {len(alive)} candidates")
        rounds([*first, *alive], 1)
        tried = alive
        alive = world.told(lambda: _worth_another(found, first, tried, done + 1))  # noqa: B023  # told runs it at once
        if not alive:
            break
    candidate = world.told(lambda: finalist(times(found, [*first, *alive])))
    trials = times(found, first)
    forget(found)
    tried_last = [*first, *([candidate] if candidate else [])]
    report("confirming the choice")
    rounds(tried_last, _CONFIRMING * trial_rounds)
    return world.told(lambda: choice(times(found, tried_last), candidate, trials=trials))


def _worth_another(found: FoundBy, baselines: Sequence[str], alive: Sequence[str], rounds: int) -> list[str]:
    """Candidates to try again: right so far, and after two rounds not far behind."""
    right = [name for name in alive if not found[name].wrong]
    if rounds < 2:
        return right
    hopeful = promising(times(found, [*baselines, *right]))
    return [name for name in right if name in hopeful]


# --- the record ----------------------------------------------------------------------------------


def setting_record(setting: Setting, found: Found, *, threads: int | None) -> SettingRecord:
    return SettingRecord(
        name=setting.name,
        times_ns=[float(time_ns) for time_ns in found.times_ns],
        controls=[control_word(control) for control in setting.controls],
        threads=threads,
        overlap_rate=summary(found.rates).median_ns if found.rates else None,
        wrong=found.wrong,
        applied=[(control_word(one.control), one.status, one.detail) for one in found.receipts],
    )


def span_records(ranks: Sequence[Mapping[str, Sequence[RawSpan]]]) -> list[SpanRecord]:
    """The spans of every rank, by setting, in one list."""
    return [
        SpanRecord(setting=name, rank=rank, name=one.name, kind=one.kind, start_ns=one.start_ns, end_ns=one.end_ns)
        for rank, by_setting in enumerate(ranks)
        for name, raw in by_setting.items()
        for one in raw
    ]
