"""An analysis as a report: the verdict, each rank's time, what to change, and why communication is exposed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from makeway.decide.analysis.analyze import Analysis
from makeway.decide.analysis.findings import Advice, RankFindings, Slowdown
from makeway.decide.analysis.names import short_name
from makeway.decide.analysis.wording import Wording
from makeway.show.analysis_details import (
    FIGURE_COLUMNS,
    figure_cells,
    slowdown_sections,
    step_sections,
    timeline_sections,
    what_if_sections,
)
from makeway.show.analysis_evidence import communication_data, communication_sections
from makeway.show.analysis_ledger import gate_data, headline, lead, ledger_data, ledger_sections, rank_ledger_sections
from makeway.show.blocks import Bar, Bars, Block, Cell, Column, Go, Paragraph, Part, Report, Section, Table
from makeway.show.data import milliseconds, record
from makeway.show.numbers import count, number, time_text
from makeway.show.provenance import provenance
from makeway.values.control import control_word
from makeway.values.errors import InputError

_MS = 1e6
_US = 1e3
TIMELINE = "spans"  # the name of the block that the causes point into


def report(analysis: Analysis, *, arguments: str = "") -> Report:
    """What the analysis shows a reader; the timeline is part of it where spans were kept."""
    if not analysis.ranks:
        raise InputError("there is no rank to show: give at least one trace that holds GPU kernels")
    origin = analysis.origin
    return Report(
        result="analysis",
        over=f"makeway analyze, {count(len(analysis.ranks), 'rank')}",
        headline=headline(analysis),
        lead=(lead(analysis),),
        sections=(
            Section(name="time", title="Where the time went", blocks=(time_bars(analysis),), detail=True),
            Section(name="advice", title="What to change", blocks=(_advice_table(analysis),)),
            *ledger_sections(analysis),
            *what_if_sections(analysis),
            Section(name="causes", title="Causes", blocks=(_group_table(analysis),)),
            *timeline_sections(analysis, TIMELINE),
            Section(name="longest", title="Longest causes", blocks=(_cause_table(analysis),), detail=True),
            Section(name="per-rank", title="Ranks", blocks=_rank_blocks(analysis)),
            *rank_ledger_sections(analysis),
            *slowdown_sections(analysis),
            *communication_sections(analysis),
            *step_sections(analysis),
            provenance(
                arguments,
                numbers=f"{origin}; gains and room: predicted",
                facts=(
                    ("files", "\n".join(rank.source for rank in analysis.ranks if rank.source) or "none"),
                    (analysis.wording.device, _names(rank.device for rank in analysis.ranks)),
                    ("library", _names(rank.library for rank in analysis.ranks)),
                    ("spans", f"{analysis.spans:,}"),
                ),
                notes=(*analysis.notes, "What each number means: makeway's docs/numbers.md."),
            ),
        ),
        data=_data(analysis),
        notes=analysis.notes,
        arguments=arguments,
    )


def _names(names: Iterable[str | None]) -> str:
    return ", ".join(sorted({name for name in names if name})) or "not recorded"


# --- ranks -----------------------------------------------------------------------------------------


def time_bars(analysis: Analysis, name: str = "time-parts") -> Bars:
    """One bar for each rank, in parts that add up to its recorded time."""
    return Bars(
        name=name,
        caption=f"The recorded time of each rank, from its first {analysis.wording.kernel} to its last.",
        origin=analysis.origin,
        bars=tuple(Bar(label=f"rank {rank.rank}", parts=time_parts(rank)) for rank in analysis.ranks),
    )


def time_parts(rank: RankFindings) -> tuple[Part, ...]:
    """The recorded time of a rank in parts that add up to it."""
    figures = rank.figures
    return (
        Part("compute alone", figures.compute_alone_ns, "compute"),
        Part("compute and communication", figures.overlap_ns, "overlapped"),
        Part("exposed communication", rank.exposed_other_ns, "exposed"),
        Part("exposed, waiting for another rank", rank.exposed_waiting_ns, "waiting"),
        Part("only copies and fills", figures.memory_alone_ns, "memory"),
        Part("idle", figures.idle_ns, "idle"),
    )


def _rank_blocks(analysis: Analysis) -> tuple[Block, ...]:
    waiting = any(rank.waiting_ns is not None for rank in analysis.ranks)
    table = Table(
        name="ranks",
        caption="Each rank; times are unions of intervals.",
        origin=analysis.origin,
        columns=(
            Column("rank", "number"),
            Column(analysis.wording.device, "name", brief=False),
            *FIGURE_COLUMNS,
            Column("waiting ms", "number", None, "inside collectives, for the last rank; needs all ranks", waiting),
            Column("ideal %", "number", None, "share of the overlap that the longer side could hide", brief=False),
            Column("occupancy %", "number", "predicted", "mean over kernel time, from recorded resources", brief=False),
        ),
        rows=tuple(_rank_row(rank) for rank in analysis.ranks),
    )
    sentences = []
    matching, (wrong, kernels) = analysis.matching, analysis.kineto_wrong
    if matching.matched:
        sentences.append(
            f"{len(matching.matched):,} collectives match across {len(analysis.ranks)} ranks: "
            f"{time_text(matching.transfer_ns)} of transfer."
        )
    if wrong:
        sentences.append(
            f"Occupancy is makeway's own: Kineto's field is wrong for {wrong:,} of {kernels:,} kernels "
            "(0 % above 48 KB of shared memory)."
        )
    return table, *((Paragraph(text=" ".join(sentences)),) if sentences else ())


def _rank_row(rank: RankFindings) -> tuple[Cell, ...]:
    ideal = rank.figures.share_of_ideal
    return (
        Cell(str(rank.rank), rank.rank),
        Cell(rank.device or "not recorded"),
        *figure_cells(rank.figures),
        number(rank.waiting_ns, scale=_MS),
        number(None if ideal is None else 100 * ideal, 1),
        number(rank.occupancy.mean_percent if rank.occupancy else None, 1),
    )


# --- what to change, and why -----------------------------------------------------------------------


def _advice_table(analysis: Analysis) -> Table:
    return Table(
        name="advice-table",
        caption="What to change; the most it can gain is the time that it accounts for in the ledger.",
        origin=analysis.origin,
        columns=(
            Column("change", "wide"),
            Column("at most ms", "number", None, "per rank"),
            Column(
                "predicted gain", "wide", "predicted", "by the simulator, for the recorded step; or why there is none"
            ),
            Column("line", "name", None, "of the ledger, which holds at least that much", brief=False),
            Column("cause", brief=False),
            Column("why", "wide", brief=False),
        ),
        rows=tuple(
            (
                Cell(item.text),
                number(item.at_most_ns, scale=_MS),
                _gain(item),
                Cell(item.line),
                Cell(analysis.wording.cause(item.cause)),
                Cell(item.why),
            )
            for item in analysis.advice
        ),
        nothing="No advice: nothing stands out that a change could improve.",
        filtered=True,
        brief_rows=5,
    )


def _gain(item: Advice) -> Cell:
    if item.predicted_gain_ns is None:
        return Cell(f"none: {item.why_no_gain}" if item.why_no_gain else "none")
    controls = ", ".join(map(control_word, item.controls))
    return Cell(f"{item.predicted_gain_ns / _MS:,.3f} ms by {controls}", item.predicted_gain_ns / _MS)


def _group_table(analysis: Analysis) -> Table:
    return Table(
        name="cause-groups",
        caption="Why communication is late, exposed or slowed; the evidence is of the longest.",
        origin=analysis.origin,
        columns=(
            Column("cause"),
            Column("time is"),
            Column("all ranks ms", "number", brief=False),
            Column("worst rank ms", "number"),
            Column("times", "number", brief=False),
            Column("confidence"),
            Column("evidence", "wide"),
            Column("short by", "", "predicted", "what a block of the collective lacked", brief=False),
            Column("record next", "wide", None, "to be sure", brief=False),
        ),
        rows=tuple(
            (
                Cell(analysis.wording.cause(group.kind)),
                Cell(group.of),
                number(group.time_ns, scale=_MS),
                number(group.most_on_one_rank_ns, scale=_MS),
                number(group.count, 0),
                Cell(group.confidence),
                Cell(group.evidence, hint=group.kernel),
                Cell(group.short_by or ""),
                Cell(group.record_next or ""),
            )
            for group in analysis.groups
        ),
        nothing="Nothing is late, exposed or slowed.",
        filtered=True,
        brief_rows=4,
    )


def _cause_table(analysis: Analysis) -> Table:
    kept = bool(analysis.timelines)
    return Table(
        name="causes-one-by-one",
        caption=f"The longest {len(analysis.longest)} causes{'; the time links to the timeline' if kept else ''}.",
        origin=analysis.origin,
        columns=(
            Column("ms", "number"),
            Column("rank", "number"),
            Column("time is"),
            Column("cause"),
            Column("confidence", brief=False),
            Column("collective", "name"),
            Column("evidence", "wide"),
        ),
        rows=tuple(
            (
                Cell(
                    f"{cause.time_ns / _MS:,.3f}",
                    cause.time_ns / _MS,
                    go=Go(lines=TIMELINE, rank=cause.rank, start_ns=cause.at_ns, time_ns=cause.time_ns)
                    if kept
                    else None,
                ),
                Cell(str(cause.rank), cause.rank),
                Cell(cause.of),
                Cell(analysis.wording.cause(cause.kind)),
                Cell(cause.confidence),
                Cell(short_name(cause.collective), hint=cause.collective),
                Cell(cause.evidence),
            )
            for cause in analysis.longest
        ),
        nothing="Nothing is late or exposed.",
        filtered=True,
    )


# --- data ------------------------------------------------------------------------------------------


def _data(analysis: Analysis) -> dict[str, Any]:
    """The keys of `makeway analyze --json` (docs/numbers.md)."""
    matching, (wrong, kernels) = analysis.matching, analysis.kineto_wrong
    data: dict[str, Any] = {
        "ranks": [_rank_data(rank, analysis.wording) for rank in analysis.ranks],
        "collectives": {
            "matched": len(matching.matched),
            "unmatched": {str(rank): left for rank, left in matching.unmatched},
            "transfer_ms": milliseconds(matching.transfer_ns) if matching.matched else None,
            "waiting_ms": milliseconds(matching.mean_waiting_ns),
            "straggler_rank": matching.straggler_rank,
            "straggler_share": matching.straggler_share,
        },
        "communication": communication_data(analysis),
        "ledger": ledger_data(analysis.ledger, analysis.wording),
        "spans": analysis.spans,
        "occupancy": {"kernels": kernels, "kineto_wrong": wrong},
        "causes": [record(group) for group in analysis.groups],
        "longest_causes": [record(cause, without=("at_ns", "collective_ns")) for cause in analysis.longest],
        "slowdown": [_slowdown_data(group) for group in analysis.slowdowns.groups],
        "slowdown_refused": [record(item) for item in analysis.slowdowns.refused],
        "slowdown_coverage": record(analysis.slowdowns, without=("groups", "refused")),
        "advice": [record(item) for item in analysis.advice],
        "what_if": _what_if_data(analysis),
    }
    return data | gate_data(analysis.gate)


def _rank_data(rank: RankFindings, wording: Wording) -> dict[str, Any]:
    return {
        **record(rank, without=("figures", "ledger", "steps", "slowdowns", "notes")),
        **record(rank.figures),
        "ledger": ledger_data(rank.ledger, wording),
        "steps": [{"step": step.number, **record(step.figures)} for step in rank.steps],
        "slowdown_coverage": record(rank.slowdowns, without=("groups", "refused")),
    }


def _slowdown_data(group: Slowdown) -> dict[str, Any]:
    return {
        "kernel": group.kernel,
        "rank": group.rank,
        "blocks": group.blocks,
        "ratio": group.ratio,
        "separated": group.separated,
        "alone_us": group.alone_ns / _US,
        "alone_spread_us": group.alone_spread_ns / _US,
        "alone_samples": group.alone_samples,
        "beside_us": group.beside_ns / _US,
        "beside_spread_us": group.beside_spread_ns / _US,
        "beside_samples": group.beside_samples,
        "cost_ms": milliseconds(group.cost_ns),
    }


def _what_if_data(analysis: Analysis) -> dict[str, Any]:
    answers = analysis.what_if
    if answers is None:
        return {"available": False, "why_not": analysis.no_what_if}
    replay = answers.replay
    return {
        "available": True,
        "rank": answers.rank,
        "device": answers.device,
        "recorded_ms": milliseconds(replay.recorded_ns),
        "replayed_ms": milliseconds(replay.predicted_ns),
        "replay_error": replay.error,
        "trusted": replay.trusted,
        "worth_ms": milliseconds(replay.worth_ns),
        "controls": [
            {
                "control": control_word(outcome.control),
                "predicted_gain_ms": milliseconds(outcome.gain_ns),
                "predicted_gain_percent": answers.gain_percent(outcome),
                "why_not": outcome.why_not,
            }
            for outcome in answers.outcomes
        ],
        "assumed": list(answers.assumed),
    }
