"""Which ranks belong to one run: recordings of different runs must not be matched with each other.

Two recordings are of different runs if their headers name jobs of different sizes, or if they do not overlap in time
and lie further apart than clocks of one cluster do. Times count only where they are times of day: a clock that starts
with the host or the profiler says nothing about another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from makeway.values.errors import printable

MOST_SKEW_NS = 10_000_000_000  # hosts without NTP are seconds apart, not more
EARLIEST_DATE_NS = 1_000_000_000_000_000_000  # September 2001: below it, a time is not a time of day
_MOST_LISTED = 4  # files of a run in a note


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStamp:
    """When one rank was recorded, and what its header says about the job."""

    rank: int
    source: str = ""
    start_ns: int | None = None
    end_ns: int | None = None
    world: int | None = None


def runs(stamps: Sequence[RunStamp]) -> tuple[tuple[RunStamp, ...], ...]:
    """The ranks of each run, in order of time; one group where nothing says otherwise."""
    by_world: dict[int | None, list[RunStamp]] = defaultdict(list)
    for stamp in stamps:
        by_world[stamp.world].append(stamp)
    unknown = by_world.pop(None, [])
    if len(by_world) < 2:  # a recording without a header may belong to the only job there is
        groups = [[*unknown, *(stamp for group in by_world.values() for stamp in group)]]
    else:
        groups = [*by_world.values(), *([unknown] if unknown else [])]
    return tuple(part for group in groups if group for part in _apart(group))


def _apart(stamps: Sequence[RunStamp]) -> list[tuple[RunStamp, ...]]:
    """The stamps in groups that overlap in time, up to the skew of clocks."""
    dated = [stamp for stamp in stamps if stamp.start_ns is not None and stamp.start_ns >= EARLIEST_DATE_NS]
    if len(dated) < len(stamps):
        return [tuple(stamps)]
    groups: list[list[RunStamp]] = []
    latest = 0
    for stamp in sorted(dated, key=lambda item: (item.start_ns or 0, item.rank)):
        if not groups or (stamp.start_ns or 0) > latest + MOST_SKEW_NS:
            groups.append([])
        groups[-1].append(stamp)
        latest = max(latest, stamp.end_ns or 0)
    return [tuple(group) for group in groups]


def runs_note(groups: Sequence[Sequence[RunStamp]]) -> str | None:
    """One sentence that names the files of each run; None for a single run."""
    if len(groups) < 2:
        return None
    listed = "; ".join(
        f"run {number}{_when(groups, number)}: {_files(group)}" for number, group in enumerate(groups, 1)
    )
    return (
        f"these recordings are of {len(groups)} different runs, so collectives are matched within each run only "
        f"({listed})"
    )


def _when(groups: Sequence[Sequence[RunStamp]], number: int) -> str:
    group = groups[number - 1]
    worlds = {stamp.world for other in groups for stamp in other}
    if len(worlds) > 1:
        world = group[0].world
        return f" ({world} ranks)" if world else " (size not recorded)"
    first = min(stamp.start_ns or 0 for other in groups for stamp in other)
    later = min(stamp.start_ns or 0 for stamp in group) - first
    return f" ({later / 1e9:,.0f} s later)" if later else ""


def _files(group: Sequence[RunStamp]) -> str:
    names = list(
        dict.fromkeys(printable(Path(stamp.source)) if stamp.source else f"rank {stamp.rank}" for stamp in group)
    )
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more
