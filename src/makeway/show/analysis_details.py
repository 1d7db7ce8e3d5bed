"""The later parts of an analysis report: predictions, kernels beside communication, steps, and where it comes from."""

from __future__ import annotations

from collections.abc import Sequence

from makeway.decide.analysis.findings import Findings
from makeway.decide.planning.what_if import TRUSTED_ERROR, WhatIf
from makeway.show.blocks import Block, Cell, Column, Facts, Notes, Table, Words
from makeway.show.numbers import number, percent, time_text
from makeway.values.control import describe
from makeway.values.timeline import Timeline

_MS = 1e6
_US = 1e3
_LONGEST_NAME = 160


def what_if_blocks(answers: WhatIf, origin: str) -> tuple[Block, ...]:
    replay = answers.replay
    trust = (
        f"within the {percent(100 * TRUSTED_ERROR)} up to which gains are worth reading"
        if replay.trusted
        else f"more than {percent(100 * TRUSTED_ERROR)}: read the gains as directions, not as numbers"
    )
    rows = tuple(
        (
            Cell(describe(outcome.control)),
            number(outcome.gain_ns, scale=_MS),
            number(None if outcome.gain_ns is None else 100 * outcome.gain_ns / replay.predicted_ns, 1),
            Cell(outcome.why_not or ""),
        )
        for outcome in answers.outcomes
    )
    table = Table(
        name="what-if-table",
        caption="Each control alone, against the simulated step; a negative gain is a loss.",
        origin="predicted",
        columns=(
            Column("control", "wide"),
            Column("gain ms", "number"),
            Column("gain %", "number", None, "of the simulated step"),
            Column("why not", "wide"),
        ),
        rows=rows,
        nothing="No control was tried.",
    )
    replayed = Words(
        text=f"The recorded step of rank {answers.rank}, simulated on {answers.device}: "
        f"{time_text(replay.predicted_ns)} (predicted) against {time_text(replay.recorded_ns)} ({origin}). "
        f"The replay error is {percent(100 * replay.error, '+.1f')}, {trust}."
    )
    assumed = (Words(text="Assumed, since the trace does not say:"), Notes(sentences=answers.assumed))
    return replayed, table, *(assumed if answers.assumed else ())


def slowdown_blocks(findings: Findings, origin: str) -> tuple[Block, ...]:
    groups = sorted((group for rank in findings.ranks for group in rank.slowdowns.groups), key=lambda one: -one.cost_ns)
    covered = sum(rank.slowdowns.covered_ns for rank in findings.ranks)
    overlapped = sum(rank.slowdowns.overlapped_ns for rank in findings.ranks)
    share = f", {percent(100 * covered / overlapped)} of it" if overlapped else ""
    words = (
        f"Kernels seen often enough both alone and beside communication: {time_text(covered)} of the "
        f"{time_text(overlapped)} of compute beside communication{share}."
    )
    return (
        Words(text=words, origin=origin),
        Table(
            name="slowdown-table",
            caption="Medians, ± interquartile range, and launches.",
            origin=origin,
            columns=(
                Column("kernel", "wide"),
                Column("rank", "number"),
                Column("blocks", "number"),
                Column("ratio", "number", None, "beside communication over alone"),
                Column("added ms", "number", None, "over all launches beside communication"),
                Column("alone us", "number"),
                Column("beside us", "number"),
            ),
            rows=tuple(
                (
                    Cell(_shortened(group.kernel), hint=group.kernel),
                    Cell(str(group.rank), group.rank),
                    number(group.blocks, 0),
                    number(group.ratio, 2),
                    number(group.cost_ns, scale=_MS),
                    _sampled(group.alone_ns, group.alone_spread_ns, group.alone_samples),
                    _sampled(group.beside_ns, group.beside_spread_ns, group.beside_samples),
                )
                for group in groups
            ),
            filtered=True,
        ),
    )


def _shortened(name: str) -> str:
    # Template parameters tell kernels apart here, so they stay.
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _sampled(median_ns: float, spread_ns: float, samples: int) -> Cell:
    return Cell(f"{median_ns / _US:,.1f} ± {spread_ns / _US:,.1f}, n = {samples}", median_ns / _US)


def step_blocks(findings: Findings, origin: str) -> tuple[Block, ...]:
    return (
        Table(
            name="step-table",
            caption="A kernel belongs to the profiler step in which the host launched it.",
            origin=origin,
            columns=(
                Column("rank", "number"),
                Column("step", "number"),
                Column("span ms", "number"),
                Column("exposed ms", "number"),
                Column("exposed %", "number"),
                Column("overlap %", "number"),
                Column("comm ms", "number"),
                Column("compute ms", "number"),
                Column("idle ms", "number"),
            ),
            rows=tuple(
                (
                    Cell(str(rank.rank), rank.rank),
                    Cell(str(step.number), step.number),
                    number(step.figures.span_ns, scale=_MS),
                    number(step.figures.exposed_ns, scale=_MS),
                    number(step.figures.exposed_percent, 1),
                    number(step.figures.overlap_percent, 1),
                    number(step.figures.comm_ns, scale=_MS),
                    number(step.figures.compute_ns, scale=_MS),
                    number(step.figures.idle_ns, scale=_MS),
                )
                for rank in findings.ranks
                for step in rank.steps
            ),
        ),
    )


def provenance_blocks(
    findings: Findings, timelines: Sequence[Timeline], *, arguments: str, version: str
) -> tuple[Block, ...]:
    libraries = {rank.library for timeline in timelines for rank in timeline.ranks if rank.library}
    devices = {rank.device for rank in findings.ranks if rank.device}
    origins = {timeline.origin for timeline in timelines}
    pairs = (
        ("command", arguments),
        ("makeway", version),
        ("numbers", f"{' and '.join(sorted(origins))}; gains and room: predicted"),
        ("files", "\n".join(rank.source for rank in findings.ranks if rank.source) or "none"),
        ("GPU", ", ".join(sorted(devices)) or "not recorded"),
        ("library", ", ".join(sorted(libraries)) or "not recorded"),
        ("spans", f"{sum(len(timeline.spans) for timeline in timelines):,}"),
    )
    return (
        Facts(pairs=pairs, code=("command", "files")),
        Notes(sentences=findings.notes),
        Words(text="What each number means is defined in makeway's docs/numbers.md."),
    )
