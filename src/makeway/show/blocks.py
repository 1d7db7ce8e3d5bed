"""A report: the verdict in one line, sections of blocks, and the result's figures as data.

`text`, `page` and `json` render it. They format values and compute none, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from makeway.values.errors import InputError

if TYPE_CHECKING:  # a job that was tuned ends when its report is shown: it should wait for little
    from makeway.show.tracks import RankTracks
    from makeway.values.device import SmLimits
    from makeway.values.kernel import KernelResources
    from makeway.values.timeline import Origin

ColumnStyle = Literal["", "number", "wide", "name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A paragraph, and whether its numbers were measured, imported or predicted."""

    text: str
    origin: Origin | str | None = None
    command: str = ""  # to type next: stays on one line, however long


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

    text: str
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
    brief: bool = True  # text shows it without --verbose, too


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
    brief_rows: int = 8  # that text shows without --verbose

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise InputError(f"table {self.name!r}: every row needs {len(self.columns)} cells")


# --- charts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unit:
    """How an amount is written: divided by `per`, to three digits, before `name`."""

    name: str
    per: float

    def text(self, amount: float) -> str:
        return f"{amount / self.per:,.3f} {self.name}"


MILLISECONDS = Unit("ms", 1e6)  # of nanoseconds
GIBIBYTES = Unit("GiB", 2.0**30)  # of bytes


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar, in nanoseconds or bytes; `colour` names one of the style sheet's."""

    name: str
    amount: float
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """An amount in parts, with its spread and a word about it ("85 % of ideal")."""

    label: str
    parts: tuple[Part, ...]
    spread_ns: float | None = None  # interquartile range of the samples
    reach_ns: tuple[float, float] | None = None  # the least and the most of few samples, in place of that range
    samples: int | None = None
    note: str = ""

    def spread_text(self, unit: Unit) -> str | None:
        """How far the samples spread, and how many there are."""
        if self.reach_ns is not None:
            return f"{unit.text(self.reach_ns[0])} to {unit.text(self.reach_ns[1])}, n = {self.samples}"
        return None if self.spread_ns is None else f"IQR {unit.text(self.spread_ns)}, n = {self.samples}"

    @property
    def whiskers(self) -> tuple[float, float] | None:
        """How far below and above the amount the samples spread; half of an interquartile range on each side."""
        if self.reach_ns is not None:
            return self.amount - self.reach_ns[0], self.reach_ns[1] - self.amount
        return None if self.spread_ns is None else (self.spread_ns / 2, self.spread_ns / 2)

    @property
    def amount(self) -> float:
        return sum(part.amount for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Bars on one scale; parts of the same name have the same colour."""

    name: str
    caption: str
    bars: tuple[Bar, ...]
    origin: Origin | str | None = None
    mark_ns: float | None = None  # a line across all bars, such as the ideal time; in the unit of the bars
    mark: str = ""
    unit: Unit = MILLISECONDS


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
    centre: float | None = None  # below it one colour, above it another: 0 for errors, 1 for ratios

    def __post_init__(self) -> None:
        if len(self.values) != len(self.rows) or any(len(row) != len(self.columns) for row in self.values):
            raise InputError(f"heat map {self.name!r}: {len(self.rows)} rows of {len(self.columns)} values are needed")


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart: a value at each of its places, None where there is none."""

    label: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Values over a number that grows by factors, such as GPUs."""

    name: str
    caption: str
    places: tuple[int, ...]
    place_title: str
    value_title: str
    curves: tuple[Curve, ...]
    origin: Origin | str | None = None
    digits: int = 1

    def __post_init__(self) -> None:
        if any(len(curve.values) != len(self.places) for curve in self.curves):
            raise InputError(f"curves {self.name!r}: each needs {len(self.places)} values")


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
    held: tuple[int, ...] = ()  # compute blocks on the SM, one text picture each


Block = Paragraph | Notes | Facts | Table | Bars | HeatMap | Curves | Lines | Room


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the report; `name` is its anchor."""

    name: str
    title: str
    blocks: tuple[Block, ...]
    detail: bool = False  # text shows it only with --verbose
    folded: bool = False  # the page shows its title, and the rest on a click
    lesson: Paragraph | None = None  # in a sentence or two; text always shows it
    lesson_after: int = 1  # blocks of the page that stand above it: the picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The verdict in one sentence, its one number, and where that comes from."""

    sentence: str
    origin: Origin | str
    value: float | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that one result shows a reader. Every figure in a block is in `data`, too."""

    result: str  # analysis, plan, prediction, bench, run ...: JSON has the schema makeway/<result>/1
    over: str  # above the headline: "makeway analyze, 8 ranks"
    headline: Headline
    lead: tuple[Paragraph, ...] = ()
    sections: tuple[Section, ...]
    data: Mapping[str, Any] = field(default_factory=dict)  # the result as plain data: the keys of --json
    notes: tuple[str, ...] = ()  # what a reader should know before trusting a figure
    arguments: str = ""  # the command line

    def __post_init__(self) -> None:
        names = [section.name for section in self.sections]
        names += [block.name for part in self.sections for block in part.blocks if hasattr(block, "name")]
        if len(set(names)) < len(names):
            raise InputError(f"names in a report must differ, got {', '.join(names)}")
