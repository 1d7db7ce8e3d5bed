"""What `makeway analyze` has to say, as a report: where the time went, when, why, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from makeway.decide.analysis.causes import CauseGroup, cause_groups
from makeway.decide.analysis.findings import Advice, Cause, Findings, RankFindings
from makeway.decide.analysis.names import short_name
from makeway.decide.planning.what_if import WhatIf
from makeway.show.analysis_details import provenance_blocks, slowdown_blocks, step_blocks, what_if_blocks
from makeway.show.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Go,
    Headline,
    Lines,
    Part,
    Report,
    Section,
    Table,
    Words,
)
from makeway.show.numbers import count, number, percent, time_text
from makeway.show.tracks import RankTracks, rank_tracks
from makeway.values.control import describe
from makeway.values.errors import InputError
from makeway.values.timeline import Timeline

_MS = 1e6
_LONGEST_CAUSES = 200  # rows of the table of single causes
_LINES = "spans"


def analysis_report(
    findings: Findings, timelines: Sequence[Timeline], what_if: WhatIf | None, *, arguments: str, version: str
) -> Report:
    """It only tells what `findings` and `what_if` hold."""
    if not findings.ranks or not timelines:
        raise InputError("there is no rank to show: give at least one trace that holds GPU kernels")
    origin = " and ".join(sorted({timeline.origin for timeline in timelines}))
    lines = Lines(name=_LINES, ranks=_with_replay(rank_tracks(timelines, findings.causes), what_if))
    sections = [
        Section(name="time", title="Time", blocks=_time(findings, origin)),
        Section(name="timeline", title="Timeline", blocks=(_timeline_words(what_if, origin), lines)),
        Section(name="causes", title="Causes", blocks=_causes(findings, origin)),
        Section(name="advice", title="Advice", blocks=(_advice(findings, origin),)),
    ]
    if what_if is not None:
        sections.append(Section(name="what-if", title="What if", blocks=what_if_blocks(what_if, origin)))
    if any(rank.slowdowns.groups for rank in findings.ranks):
        sections.append(Section(name="slowdowns", title="Slow-downs", blocks=slowdown_blocks(findings, origin)))
    if any(rank.steps for rank in findings.ranks):
        sections.append(Section(name="steps", title="Steps", blocks=step_blocks(findings, origin)))
    sections.append(
        Section(
            name="provenance",
            title="Provenance",
            blocks=provenance_blocks(findings, timelines, arguments=arguments, version=version),
        )
    )
    return Report(
        result="analysis",
        over=f"makeway analyze, {count(len(findings.ranks), 'rank')}",
        headline=headline(findings, origin),
        lead=(_lead(findings, origin),),
        sections=tuple(sections),
        arguments=arguments,
    )


def _with_replay(ranks: tuple[RankTracks, ...], what_if: WhatIf | None) -> tuple[RankTracks, ...]:
    """The simulated step below the rank it was recorded on, by the same clock."""
    if what_if is None or what_if.replay.timeline is None:
        return ranks
    [replay] = rank_tracks([what_if.replay.timeline], ())
    drawn = replace(replay, label=f"rank {what_if.rank}, simulated", added=replay.added[:2])  # no causes in it
    return tuple(one for rank in ranks for one in ((rank, drawn) if rank.rank.rank == what_if.rank else (rank,)))


def _timeline_words(what_if: WhatIf | None, origin: str) -> Words:
    if what_if is None or what_if.replay.timeline is None:
        return Words(text="Recorded spans:", origin=origin)
    words = f"Recorded spans ({origin}), and below rank {what_if.rank} the same step by the simulator (predicted):"
    return Words(text=words)


# --- the first screen ----------------------------------------------------------------------------


def headline(findings: Findings, origin: str) -> Headline:
    """The one number that matters: the most exposed communication of any rank."""
    worst = max(findings.ranks, key=lambda rank: (rank.figures.exposed_ns, -rank.rank))
    figures = worst.figures
    if not figures.comm_ns:
        return Headline(sentence=f"No communication in the recorded {time_text(figures.span_ns)}", origin=origin)
    if not figures.exposed_ns:
        words = f"All {time_text(figures.comm_ns)} of communication run beside compute"
        return Headline(sentence=words, origin=origin, value=0.0, unit="ms")
    where = f" on rank {worst.rank}" if len(findings.ranks) > 1 else ""
    words = (
        f"{time_text(figures.exposed_ns)} of communication is exposed{where}: "
        f"{percent(figures.exposed_percent or 0.0)} of the recorded {time_text(figures.span_ns)}"
    )
    return Headline(sentence=words, origin=origin, value=figures.exposed_ns / _MS, unit="ms")


def _lead(findings: Findings, origin: str) -> Words:
    sentences = []
    if len(findings.ranks) > 1:
        exposed = [rank.figures.exposed_ns for rank in findings.ranks]
        sentences.append(
            f"That is the most of {len(exposed)} ranks; the least is {time_text(min(exposed))}. "
            "Exposed is communication with no compute running beside it."
        )
    else:
        sentences.append("Exposed is communication with no compute running beside it.")
    matching = findings.matching
    if matching.straggler_rank is not None and matching.straggler_share is not None:
        sentences.append(
            f"Rank {matching.straggler_rank} came last: {percent(100 * matching.straggler_share)} of all waiting "
            "inside collectives was for it."
        )
    groups = [group for group in cause_groups(findings.causes) if group.of == "exposed"]
    if groups:
        where = " on the rank with most of it" if len(findings.ranks) > 1 else ""
        sentences.append(
            f"The largest cause of exposed time is {groups[0].kind}: {time_text(groups[0].rank_ns)}{where}."
        )
    return Words(text=" ".join(sentences), origin=origin)


def _time(findings: Findings, origin: str) -> tuple[Block, ...]:
    waiting = exposed_waiting_ns(findings)
    bars = tuple(
        Bar(label=f"rank {rank.rank}", parts=time_parts(rank, waiting.get(rank.rank, 0))) for rank in findings.ranks
    )
    caption = "Where the recorded time of each rank went, first kernel to last."
    return (
        Bars(name="time-parts", caption=caption, origin=origin, bars=bars),
        _rank_table(findings, origin),
    )


def exposed_waiting_ns(findings: Findings) -> dict[int, int]:
    """By rank: the exposed time that was waiting for another rank to come."""
    waiting: dict[int, int] = {}
    for cause in findings.causes:
        if cause.kind == "straggler" and cause.of == "exposed":
            waiting[cause.rank] = waiting.get(cause.rank, 0) + cause.time_ns
    return waiting


def time_parts(rank: RankFindings, waiting_ns: int) -> tuple[Part, ...]:
    """The recorded time of a rank in parts that add up to it."""
    figures = rank.figures
    memory_ns = figures.span_ns - figures.idle_ns - figures.compute_ns - figures.exposed_ns
    return (
        Part("compute alone", figures.compute_ns - figures.overlap_ns, "compute"),
        Part("compute and communication", figures.overlap_ns, "overlapped"),
        Part("exposed communication", figures.exposed_ns - waiting_ns, "exposed"),
        Part("exposed, waiting for another rank", waiting_ns, "waiting"),
        Part("only copies and fills", memory_ns, "memory"),
        Part("idle", figures.idle_ns, "idle"),
    )


def _rank_table(findings: Findings, origin: str) -> Table:
    waiting = dict(findings.matching.waiting_ns)
    columns = (
        Column("rank", "number"),
        Column("GPU", "name"),
        Column("span ms", "number", None, "recorded: first start to last end"),
        Column("exposed ms", "number", None, "communication without compute beside it"),
        Column("exposed %", "number", None, "of the recorded time"),
        Column("overlap %", "number", None, "of the communication time: compute runs beside it"),
        Column("comm ms", "number"),
        Column("waiting ms", "number", None, "inside collectives, for the last rank; needs the traces of all ranks"),
        Column("compute ms", "number"),
        Column("idle ms", "number", None, "neither compute nor communication nor copies"),
        Column("ideal %", "number", None, "share of the overlap that the longer side could have hidden"),
        Column("occupancy %", "number", "predicted", "mean over kernel time, from the recorded resources"),
    )
    rows = tuple(_rank_row(rank, waiting.get(rank.rank)) for rank in findings.ranks)
    return Table(
        name="ranks", caption="Per rank; times are unions of intervals.", origin=origin, columns=columns, rows=rows
    )


def _rank_row(rank: RankFindings, waiting_ns: int | None) -> tuple[Cell, ...]:
    figures, ideal = rank.figures, rank.figures.share_of_ideal
    return (
        Cell(str(rank.rank), rank.rank),
        Cell(rank.device or "not recorded"),
        number(figures.span_ns, 2, scale=_MS),
        number(figures.exposed_ns, 2, scale=_MS),
        number(figures.exposed_percent, 1),
        number(figures.overlap_percent, 1),
        number(figures.comm_ns, 2, scale=_MS),
        number(waiting_ns, 2, scale=_MS),
        number(figures.compute_ns, 2, scale=_MS),
        number(figures.idle_ns, 2, scale=_MS),
        number(None if ideal is None else 100 * ideal, 1),
        number(rank.occupancy.mean_percent if rank.occupancy else None, 1),
    )


# --- why, and what to change ---------------------------------------------------------------------


def _causes(findings: Findings, origin: str) -> tuple[Block, ...]:
    groups = Table(
        name="cause-groups",
        caption="Why communication was late, exposed or slowed, added up over ranks; the evidence is of the longest.",
        origin=origin,
        columns=(
            Column("cause"),
            Column("time is"),
            Column("all ranks ms", "number"),
            Column("worst rank ms", "number"),
            Column("times", "number"),
            Column("confidence"),
            Column("evidence", "wide"),
        ),
        rows=tuple(
            (
                Cell(group.kind),
                Cell(group.of),
                number(group.time_ns, scale=_MS),
                number(group.rank_ns, scale=_MS),
                number(group.count, 0),
                Cell(group.confidence),
                Cell(_evidence(group), hint=group.kernel),
            )
            for group in cause_groups(findings.causes)
        ),
        nothing="Nothing was late, exposed or slowed.",
        filtered=True,
    )
    return groups, *_single_causes(findings.causes, origin)


def _evidence(group: CauseGroup) -> str:
    told = [group.evidence]
    if group.short_by:
        told.append(f"a block of it was short of {group.short_by} (predicted from the device's limits)")
    if group.record_next:
        told.append(f"to be surer, record {group.record_next}")
    return "; ".join(told)


def _single_causes(causes: Sequence[Cause], origin: str) -> tuple[Table, ...]:
    placed = sorted((cause for cause in causes if cause.of != "slowed"), key=lambda cause: -cause.time_ns)
    shown = placed[:_LONGEST_CAUSES]
    if not shown:
        return ()
    rest = "" if len(shown) == len(placed) else f" (the longest {len(shown)} of {len(placed):,})"
    return (
        Table(
            name="causes-one-by-one",
            caption=f"One by one{rest}; the time leads to its place in the timeline.",
            origin=origin,
            columns=(
                Column("ms", "number"),
                Column("rank", "number"),
                Column("time is"),
                Column("cause"),
                Column("confidence"),
                Column("collective", "name"),
                Column("evidence", "wide"),
            ),
            rows=tuple(_cause_row(cause) for cause in shown),
            filtered=True,
        ),
    )


def _cause_row(cause: Cause) -> tuple[Cell, ...]:
    place = Go(lines=_LINES, rank=cause.rank, start_ns=cause.at_ns, time_ns=cause.time_ns)
    return (
        Cell(f"{cause.time_ns / _MS:,.3f}", cause.time_ns / _MS, go=place),
        Cell(str(cause.rank), cause.rank),
        Cell(cause.of),
        Cell(cause.kind),
        Cell(cause.confidence),
        Cell(short_name(cause.collective), hint=cause.collective),
        Cell(cause.evidence),
    )


def _advice(findings: Findings, origin: str) -> Table:
    return Table(
        name="advice-table",
        caption="What can be changed, and what it can bring at most: the time that its cause accounts for.",
        origin=origin,
        columns=(
            Column("change", "wide"),
            Column("at most ms", "number", None, "per rank"),
            Column("gain ms", "number", "predicted", "by the simulator, for the recorded step"),
            Column("cause"),
            Column("why", "wide"),
            Column("controls", "name"),
        ),
        rows=tuple(_advice_row(item) for item in findings.advice),
        nothing="No advice: nothing stands out that a change could improve.",
        filtered=True,
    )


def _advice_row(item: Advice) -> tuple[Cell, ...]:
    return (
        Cell(item.title),
        number(item.bound_ns, scale=_MS),
        number(item.predicted_gain_ns, scale=_MS),
        Cell(item.cause),
        Cell(item.why),
        Cell("; ".join(describe(control) for control in item.controls) or "a change in the program"),
    )
