"""A step's ledger as the first part of a report: the verdict, which time is which, and the lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from makeway.decide.analysis.analyze import Analysis
from makeway.decide.analysis.findings import RankFindings
from makeway.decide.analysis.ledger import IDLE, Ledger, LedgerLine
from makeway.decide.analysis.names import short_name
from makeway.decide.analysis.threshold import Gate
from makeway.decide.analysis.wording import Wording, wording_for
from makeway.show.blocks import Cell, Column, Headline, Paragraph, Section, Table
from makeway.show.data import milliseconds, rounded
from makeway.show.numbers import number, percent, time_text

if TYPE_CHECKING:
    from makeway.decide.analysis.many.job import JobAnalysis, JobRank

_MS = 1e6


def headline(analysis: Analysis | JobAnalysis) -> Headline:
    """The verdict: where most of the time goes that is not compute: exposed communication, idle time or copies.

    Where a job's communication is not recognised, no figure is to be trusted before that is known.
    """
    ledger, recorded = analysis.ledger, f"in the recorded {time_text(analysis.worst.ledger.total_ns)}"
    if analysis.communication.missing:
        sentence = f"No communication recognised {recorded}, though the job has {analysis.communication.world} ranks"
        return Headline(sentence=sentence, origin=analysis.origin)
    losses = {"exposed": ledger.exposed_ns, "idle": ledger.idle_ns, "copies": ledger.ns("copies")}
    loss = max(losses, key=lambda name: losses[name])
    if loss == "idle":
        return _idle_headline(analysis)
    if loss == "copies" and losses["copies"]:
        return _copies_headline(analysis)
    worst, figures = analysis.worst, analysis.worst.figures
    if not figures.comm_ns:
        return Headline(sentence=f"No communication {recorded}", origin=analysis.origin)
    if not figures.exposed_ns:
        sentence = f"All {time_text(figures.comm_ns)} of communication run beside compute"
        return Headline(sentence=sentence, origin=analysis.origin, value=0.0, unit="ms")
    exposed_ns, whole_ns = figures.exposed_ns, worst.ledger.total_ns or figures.span_ns
    where = f" on rank {worst.rank}" if len(analysis.ranks) > 1 else ""
    sentence = (
        f"{time_text(exposed_ns)} of communication is exposed{where}: "
        f"{percent(100 * exposed_ns / whole_ns)} of the recorded {time_text(whole_ns)}"
        f"{_mostly(worst, analysis.wording)}"
    )
    return Headline(sentence=sentence, origin=analysis.origin, value=exposed_ns / _MS, unit="ms")


def _mostly(rank: RankFindings | JobRank, wording: Wording) -> str:
    """What most of the exposed time is, if it is not transfer."""
    whole = rank.ledger.exposed_ns
    if 2 * rank.ledger.ns("waiting") > whole:
        waiting = [line for line in rank.ledger.lines if line.kind == "waiting" and 10 * line.ns > whole]
        named = " and ".join(str(line.rank) for line in sorted(waiting, key=lambda line: line.rank or 0))
        return (
            f", mostly waiting for rank{'s' if len(waiting) > 1 else ''} {named}"
            if len(waiting) in (1, 2)
            else ", mostly waiting for other ranks"
        )
    if 2 * rank.ledger.ns("late-launch") > whole:
        return f", {wording.late}"
    return ", mostly for lack of room" if 2 * rank.ledger.ns("no-room") > whole else ""


def _idle_headline(analysis: Analysis | JobAnalysis) -> Headline:
    worst = max(_ranks(analysis), key=lambda rank: (rank.ledger.idle_ns, -rank.rank))
    ledger = worst.ledger
    longest = max((line for line in ledger.lines if line.kind in IDLE), key=lambda line: line.ns)
    sentence = (
        f"{_subject(analysis, worst)} is idle for {percent(ledger.percent(ledger.idle_ns))} of the recorded "
        f"{time_text(ledger.total_ns)}, {percent(ledger.percent(longest.ns))} {analysis.wording.idle[longest.kind]}"
    )
    return Headline(sentence=sentence, origin=analysis.origin, value=ledger.idle_ns / _MS, unit="ms")


def _copies_headline(analysis: Analysis | JobAnalysis) -> Headline:
    worst = max(_ranks(analysis), key=lambda rank: (rank.ledger.ns("copies"), -rank.rank))
    ledger, copies_ns = worst.ledger, worst.ledger.ns("copies")
    sentence = (
        f"{_subject(analysis, worst)} only copies or fills memory for {percent(ledger.percent(copies_ns))} of "
        f"the recorded {time_text(ledger.total_ns)}"
    )
    return Headline(sentence=sentence, origin=analysis.origin, value=copies_ns / _MS, unit="ms")


def _ranks(analysis: Analysis | JobAnalysis) -> Sequence[RankFindings | JobRank]:
    return analysis.ranks


def _subject(analysis: Analysis | JobAnalysis, rank: RankFindings | JobRank) -> str:
    what = wording_for([rank.device]).subject
    return f"{what} of rank {rank.rank}" if len(analysis.ranks) > 1 else what


def lead(analysis: Analysis) -> Paragraph:
    """Which time is which, how much communication is exposed, and whom the ranks wait for."""
    several, sentences = len(analysis.ranks) > 1, [analysis.which_times]
    worst = analysis.worst
    if worst.figures.exposed_ns:
        where = f" on rank {worst.rank}, the most of {len(analysis.ranks)} ranks" if several else ""
        sentences.append(
            f"{time_text(worst.figures.exposed_ns)} of {time_text(worst.figures.comm_ns)} of communication is exposed"
            f"{where}: no compute runs beside it."
        )
    matching = analysis.matching
    if matching.straggler_rank is not None and matching.straggler_share is not None:
        sentences.append(
            f"Rank {matching.straggler_rank} arrives last: {percent(100 * matching.straggler_share)} of all waiting "
            "inside collectives is for it."
        )
    return Paragraph(text=" ".join(sentences), origin=analysis.origin)


# --- the lines -------------------------------------------------------------------------------------


def ledger_sections(analysis: Analysis | JobAnalysis) -> tuple[Section, ...]:
    """The ledger of the job; none where nothing was recorded."""
    if not analysis.ledger.lines:
        return ()
    several = len(analysis.ranks) > 1
    caption = (
        "Where the time of all ranks goes; the lines add up." if several else "Where the step goes; the lines add up."
    )
    return (Section(name="ledger", title="Ledger", blocks=(_job_table(analysis, caption, several=several),)),)


def _job_table(analysis: Analysis | JobAnalysis, caption: str, *, several: bool) -> Table:
    ledger, wording = analysis.ledger, analysis.wording
    return Table(
        name="ledger-table",
        caption=caption,
        origin=analysis.origin,
        columns=(
            Column("line"),
            Column("all ranks ms" if several else "ms", "number"),
            Column("%", "number", None, "of the whole"),
            *((Column("worst rank ms", "number"),) if several else ()),
            Column("most of it", "wide", None, f"{wording.kernels} that ran; for idle time, those that ran next"),
        ),
        rows=tuple(
            (
                Cell(wording.line(line)),
                number(line.ns, scale=_MS),
                number(ledger.percent(line.ns), 1),
                *((number(_most_ns(analysis, line), scale=_MS),) if several else ()),
                _top(line),
            )
            for line in sorted(ledger.lines, key=lambda line: -line.ns)
        ),
        brief_rows=8,
    )


def _most_ns(analysis: Analysis | JobAnalysis, line: LedgerLine) -> int:
    return max(
        own.ns for rank in analysis.ranks for own in rank.ledger.lines if (own.kind, own.rank) == (line.kind, line.rank)
    )


def _top(line: LedgerLine) -> Cell:
    kernels = dict.fromkeys(short_name(kernel) for kernel, _ in line.top)
    return Cell(", ".join(list(kernels)[:2]), hint="\n".join(kernel for kernel, _ in line.top) or None)


def rank_ledger_sections(analysis: Analysis) -> tuple[Section, ...]:
    """The ledger of each rank, for the details; none for a rank alone, whose ledger is the job's."""
    if len(analysis.ranks) == 1 or not analysis.ledger.lines:
        return ()
    table = Table(
        name="rank-ledgers",
        caption="The ledger of each rank; its lines add up to the wall time of its steps.",
        origin=analysis.origin,
        columns=(Column("rank", "number"), Column("line"), Column("ms", "number"), Column("%", "number")),
        rows=tuple(
            (
                Cell(str(rank.rank), rank.rank),
                Cell(analysis.wording.line(line)),
                number(line.ns, scale=_MS),
                number(rank.ledger.percent(line.ns), 1),
            )
            for rank in analysis.ranks
            for line in rank.ledger.lines
        ),
        filtered=True,
    )
    return (Section(name="ledgers", title="Ledgers of the ranks", blocks=(table,), detail=True, folded=True),)


def gate_data(gate: Gate | None) -> dict[str, Any]:
    """The limit of --fail-if and who misses it, where one was set."""
    if gate is None:
        return {}
    missed = [{"rank": rank, "value": value} for rank, value in gate.missed]
    return {"threshold": {"limit": str(gate.threshold), "missed": missed}}


def ledger_data(ledger: Ledger, wording: Wording) -> list[dict[str, Any]]:
    """The lines of a ledger, which add up to its total."""
    return [
        {
            "name": wording.line(line),
            "kind": line.kind,
            "ms": milliseconds(line.ns),
            "percent": rounded(ledger.percent(line.ns)),
            "rank": line.rank,
            "top": [{"kernel": kernel, "ms": milliseconds(time_ns)} for kernel, time_ns in line.top],
        }
        for line in ledger.lines
    ]
