"""The later sections of an analysis report: controls simulated, kernels beside communication, timeline and steps."""

from __future__ import annotations

from dataclasses import replace

from makeway.decide.analysis.analyze import Analysis
from makeway.decide.analysis.findings import Figures
from makeway.decide.analysis.names import short_name, without_arguments
from makeway.decide.analysis.what_if import TRUSTED_ERROR, WhatIf
from makeway.show.blocks import Cell, Column, Lines, Notes, Paragraph, Section, Table
from makeway.show.numbers import count, number, percent, time_text
from makeway.show.tracks import RankTracks, rank_tracks
from makeway.values.control import control_word, describe

_MS = 1e6
_US = 1e3
FIGURE_COLUMNS = (
    Column("span ms", "number", None, "recorded: first start to last end"),
    Column("exposed ms", "number", None, "communication without compute beside it"),
    Column("exposed %", "number", None, "of the recorded time", brief=False),
    Column("overlap %", "number", None, "of the communication time: compute runs beside it"),
    Column("comm ms", "number"),
    Column("compute ms", "number"),
    Column("idle ms", "number", None, "no compute, communication or copies"),
)


def figure_cells(figures: Figures) -> tuple[Cell, ...]:
    """The cells of `FIGURE_COLUMNS`."""
    return (
        number(figures.span_ns, scale=_MS),
        number(figures.exposed_ns, scale=_MS),
        number(figures.exposed_percent, 1),
        number(figures.overlap_percent, 1),
        number(figures.comm_ns, scale=_MS),
        number(figures.compute_ns, scale=_MS),
        number(figures.idle_ns, scale=_MS),
    )


def what_if_sections(analysis: Analysis) -> tuple[Section, ...]:
    """The recorded step under each control, or why it was not simulated."""
    answers = analysis.what_if
    if answers is None:
        why = (analysis.no_what_if or "").partition("\n")[0]
        return (
            Section(name="what-if", title="What if", blocks=(Paragraph(text=f"Controls are not simulated: {why}."),)),
        )
    blocks = (Paragraph(text=_replay_sentences(answers, analysis.origin)), _control_table(answers))
    assumed = (Paragraph(text="Assumed, since the trace does not say:"), Notes(sentences=answers.assumed))
    return (
        Section(name="what-if", title="What if", blocks=blocks),
        *(
            (Section(name="assumed", title="Assumed", blocks=assumed, detail=True, folded=True),)
            if answers.assumed
            else ()
        ),
    )


def _replay_sentences(answers: WhatIf, origin: str) -> str:
    replay = answers.replay
    limit = percent(100 * TRUSTED_ERROR)
    took = time_text(replay.recorded_ns)
    recorded = f"the recording, itself simulated, has {took}" if origin == "predicted" else f"it took {took} ({origin})"
    sentences = (
        f"The simulator replays the recorded step of rank {answers.rank} on {answers.device} in "
        f"{time_text(replay.predicted_ns)} (predicted); {recorded}. "
        f"The replay error is {percent(100 * replay.error, '+.1f')}, "
    )
    if not replay.trusted:
        return sentences + f"more than {limit}: read the gains as directions, not as numbers."
    sentences += f"within the {limit} up to which gains are worth reading."
    if not any((outcome.gain_ns or 0.0) >= replay.worth_ns for outcome in answers.outcomes):
        sentences += f" No control saves more than the {time_text(replay.worth_ns)} that the replay may be off by."
    return sentences


def _control_table(answers: WhatIf) -> Table:
    return Table(
        name="what-if-table",
        caption="Each control alone, relative to the simulated step; a negative gain is a loss.",
        origin="predicted",
        columns=(
            Column("control"),
            Column("gain ms", "number"),
            Column("gain %", "number", None, "of the simulated step"),
            Column("why not", "wide"),
        ),
        rows=tuple(
            (
                Cell(control_word(outcome.control), hint=describe(outcome.control)),
                number(outcome.gain_ns, scale=_MS),
                number(answers.gain_percent(outcome), 1),
                Cell(outcome.why_not or ""),
            )
            for outcome in answers.outcomes
        ),
        nothing="No control was tried.",
    )


def slowdown_sections(analysis: Analysis) -> tuple[Section, ...]:
    """Kernels that ran both alone and beside communication, where there are any."""
    slow, origin, wording = analysis.slowdowns, analysis.origin, analysis.wording
    refused = (
        f"{count(len(slow.refused), wording.kernel)} {wording.alike} {'is' if len(slow.refused) == 1 else 'are'} no "
        f"evidence, for example {short_name(slow.refused[0].kernel)} (x{slow.refused[0].ratio:.2f}): "
        f"{slow.refused[0].why}."
        if slow.refused
        else ""
    )
    if not slow.groups:
        named = Paragraph(text=f"No {wording.kernel} shows a slow-down. {refused}", origin=origin)
        return (Section(name="slowdowns", title="Slow-downs", blocks=(named,)),) if slow.refused else ()
    share = "" if slow.covered_percent is None else f" ({percent(slow.covered_percent)})"
    summary = (
        f"These {wording.kernels} ran often enough both alone and beside communication: {time_text(slow.covered_ns)} "
        f"of the {time_text(slow.overlapped_ns)} of compute beside communication{share}."
    )
    if slow.gemm_ratio is not None:
        summary += f" GEMMs take {slow.gemm_ratio:.2f} times as long beside communication."
    summary = f"{summary} {refused}".strip()
    table = Table(
        name="slowdown-table",
        caption=f"Medians, ± interquartile range, and {wording.launches}.",
        origin=origin,
        columns=(
            Column(wording.kernel, "wide"),
            Column("rank", "number"),
            Column("blocks", "number", brief=False),
            Column("ratio", "number", None, "beside communication over alone"),
            Column("added ms", "number", None, f"over all {wording.launches} beside communication"),
            Column("alone us", "number", brief=False),
            Column("beside us", "number", brief=False),
        ),
        rows=tuple(
            (
                Cell(without_arguments(group.kernel), hint=group.kernel),
                Cell(str(group.rank), group.rank),
                number(group.blocks, 0),
                number(group.ratio, 2),
                number(group.cost_ns, scale=_MS),
                _sampled(group.alone_ns, group.alone_spread_ns, group.alone_samples),
                _sampled(group.beside_ns, group.beside_spread_ns, group.beside_samples),
            )
            for group in slow.groups
        ),
        filtered=True,
        brief_rows=5,
    )
    return (Section(name="slowdowns", title="Slow-downs", blocks=(Paragraph(text=summary, origin=origin), table)),)


def _sampled(median_ns: float, spread_ns: float, samples: int) -> Cell:
    return Cell(f"{median_ns / _US:,.1f} ± {spread_ns / _US:,.1f}, n = {samples}", median_ns / _US)


def timeline_sections(analysis: Analysis, name: str) -> tuple[Section, ...]:
    """The spans of every rank, where they were kept, with the replay below the rank it was recorded on."""
    if not analysis.timelines:
        return ()
    ranks = rank_tracks(analysis.timelines, analysis.causes)
    intro = Paragraph(text="Recorded spans:", origin=analysis.origin)
    answers = analysis.what_if
    if answers is not None and answers.replay.timeline is not None:
        ranks = _with_replay(ranks, answers)
        below = f"below rank {answers.rank} the same step by the simulator (predicted)"
        intro = Paragraph(text=f"Recorded spans ({analysis.origin}), and {below}:")
    return (Section(name="timeline", title="Timeline", blocks=(intro, Lines(name=name, ranks=ranks)), detail=True),)


def _with_replay(ranks: tuple[RankTracks, ...], answers: WhatIf) -> tuple[RankTracks, ...]:
    assert answers.replay.timeline is not None
    [replay] = rank_tracks([answers.replay.timeline], ())
    drawn = replace(replay, label=f"rank {answers.rank}, simulated", added=replay.added[:2])  # it has no causes
    rows = ((rank, drawn) if rank.rank.rank == answers.rank else (rank,) for rank in ranks)
    return tuple(track for row in rows for track in row)


def step_sections(analysis: Analysis) -> tuple[Section, ...]:
    """The figures of every profiler step, where steps are recorded."""
    if not any(rank.steps for rank in analysis.ranks):
        return ()
    table = Table(
        name="step-table",
        caption=analysis.wording.stamped,
        origin=analysis.origin,
        columns=(Column("rank", "number"), Column("step", "number"), *FIGURE_COLUMNS),
        rows=tuple(
            (Cell(str(rank.rank), rank.rank), Cell(str(step.number), step.number), *figure_cells(step.figures))
            for rank in analysis.ranks
            for step in rank.steps
        ),
    )
    return (Section(name="steps", title="Steps", blocks=(table,), detail=True, folded=True),)
