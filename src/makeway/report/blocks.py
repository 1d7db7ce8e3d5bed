"""A report as data: a headline, sections of blocks, and where it all comes from. Renderers only show it.

Text, page and `report.json` are three views of the same value, so that they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from makeway.device import SmLimits
from makeway.errors import InputError
from makeway.kernel import KernelResources
from makeway.report.tracks import RankTracks
from makeway.timeline import Origin

REPORT_VERSION = 1
ColumnStyle = Literal["", "number", "wide", "name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A paragraph, and whether its numbers were measured, imported or predicted."""

    text: str
    origin: Origin | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Sentences, one below the other."""

    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Terms, each with what is known of it; `code` ones are shown as typed."""

    pairs: tuple[tuple[str, str], ...]
    code: tuple[str, ...] = ()


# --- tables --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """A place in one of the report's timelines: a rank, a time and a length, in the times of the spans."""

    lines: str  # the timeline's name
    rank: int
    start_ns: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Cell:
    """What one cell shows; `value` is what it sorts by, where that is not its text."""

    words: str
    value: float | None = None
    hint: str | None = None
    go: Go | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column: of numbers, of prose ("wide"), of names, or of short words."""

    title: str
    style: ColumnStyle = ""
    origin: Origin | str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells; `name` is unique in the report."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    origin: Origin | str | None = None  # of all numbers whose column does not say otherwise
    nothing: str = "Nothing to show."  # instead of a table without rows
    filtered: bool = False  # large enough to want a filter

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise InputError(f"table {self.name!r}: every row needs {len(self.columns)} cells")


# --- charts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar; `colour` names one of the style sheet's."""

    name: str
    time_ns: float
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A time in parts, with its spread and a word about it ("85 % of ideal")."""

    label: str
    parts: tuple[Part, ...]
    spread_ns: float | None = None  # interquartile range of the samples
    samples: int | None = None
    note: str = ""

    @property
    def time_ns(self) -> float:
        return sum(part.time_ns for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Bars on one scale; parts of the same name have the same colour."""

    name: str
    caption: str
    bars: tuple[Bar, ...]
    origin: Origin | str | None = None
    mark_ns: float | None = None  # a line across all bars, such as the ideal time
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Numbers over two axes; None where nothing was run."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]  # one tuple per row
    column_title: str = ""
    row_title: str = ""
    origin: Origin | str | None = None
    digits: int = 2
    reach: tuple[float, float] | None = None  # of the colours; None: from the least value to the most

    def __post_init__(self) -> None:
        if len(self.values) != len(self.rows) or any(len(row) != len(self.columns) for row in self.values):
            raise InputError(f"heat map {self.name!r}: {len(self.rows)} rows of {len(self.columns)} values are needed")


# --- time and room -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """A timeline: the rows of every rank; several of them share one time axis (measured beside predicted)."""

    name: str
    ranks: tuple[RankTracks, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One SM with a compute kernel's blocks and a collective's block, without and with a pad of shared memory."""

    name: str
    device: str
    sm: SmLimits
    compute_name: str
    compute: KernelResources
    comm_name: str | None
    comm: KernelResources | None
    pad_bytes: int = 0  # what the plan asks for
    most_pad_bytes: int = 0  # how far a pad can go on this device


Block = Words | Notes | Facts | Table | Bars | HeatMap | Lines | Room


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the report; `name` is its anchor."""

    name: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The one number that matters, in a sentence, and where it comes from."""

    sentence: str
    origin: Origin | str
    value: float | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a command has to say."""

    command: str  # analyze, plan, simulate, bench, run, demo
    over: str  # above the headline: "makeway analyze, 8 ranks"
    headline: Headline
    lead: tuple[Words, ...] = ()
    sections: tuple[Section, ...]
    arguments: str  # the command line
    version: str  # of makeway

    def __post_init__(self) -> None:
        names = [section.name for section in self.sections]
        names += [block.name for one in self.sections for block in one.blocks if hasattr(block, "name")]
        if len(set(names)) < len(names):
            raise InputError(f"names in a report must differ, got {', '.join(names)}")
