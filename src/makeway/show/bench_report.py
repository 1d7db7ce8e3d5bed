"""What `makeway bench` has to say, as a report: times of every variant, what ran when, what became of each control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from makeway.act.measure.experiment import TITLES, Experiment, Grid, Metric
from makeway.act.measure.outcome import BASELINES, OVERLAP, PLANNED, SEQUENTIAL, TORCHRUN, Bench, VariantResult
from makeway.act.measure.statistics import summary
from makeway.show.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Facts,
    Headline,
    HeatMap,
    Lines,
    Notes,
    Part,
    Report,
    Section,
    Table,
    Words,
)
from makeway.show.numbers import count, number, percent, time_text
from makeway.show.tracks import compared_tracks
from makeway.values.control import control_word
from makeway.values.timeline import Span, Timeline

DEFAULTS = {OVERLAP: "torch's default", TORCHRUN: "torchrun's default"}
_MS = 1e6
_FORMULA = "share of ideal = (t_seq / t - 1) / (t_seq / max(t_compute, t_comm) - 1), each part alone in the same rounds"


def bench_report(bench: Bench, *, arguments: str, version: str) -> Report:
    """All variants of one workload."""
    sections = [Section(name="time", title="Time", blocks=(bench_bars(bench), _variant_table(bench)))]
    if bench.timeline is not None:
        sections.append(Section(name="timeline", title="Timeline", blocks=(_timeline_words(bench), bench_lines(bench))))
    sections.append(Section(name="controls", title="Controls", blocks=_control_blocks(bench)))
    sections.append(Section(name="provenance", title="Provenance", blocks=_provenance(bench, arguments, version)))
    return Report(
        result="bench",
        over=f"makeway bench, {bench.workload} on {bench.on}, {count(bench.ranks, 'rank')}",
        headline=bench_headline(bench),
        lead=(Words(text=f"Planned: {bench.choice}.", origin=bench.origin),) if bench.choice else (),
        sections=tuple(sections),
        arguments=arguments,
    )


def bench_headline(bench: Bench) -> Headline:
    """The planned variant, or the fastest controlled one, against the better of the two defaults."""
    best, base = bench.controlled, bench.better_baseline
    if best is None or base is None:
        fastest = min(bench.variants, key=lambda one: one.summary.median_ns)
        words = f"{bench.workload} takes {time_text(fastest.summary.median_ns)} ({fastest.name})"
        return Headline(sentence=words, origin=bench.origin, value=fastest.summary.median_ns / _MS, unit="ms")
    t_ns, base_ns = best.summary.median_ns, base.summary.median_ns
    share = bench.share_of_ideal(best.name)
    ideal = "" if share is None else f", {percent(100 * share)} of ideal"
    how = "as planned" if best.name == PLANNED else f"with {best.name}"
    words = (
        f"{bench.workload}: {time_text(t_ns)} {how} against {time_text(base_ns)} by {DEFAULTS[base.name]} "
        f"({percent(100 * (t_ns / base_ns - 1), '+.1f')}){ideal}"
    )
    return Headline(sentence=words, origin=bench.origin, value=t_ns / _MS, unit="ms")


# --- time ----------------------------------------------------------------------------------------


def bench_bars(bench: Bench, name: str = "times") -> Bars:
    """One bar for each variant, with its spread, and the ideal as a line."""
    return Bars(
        name=name,
        caption="Medians of rounds in which all variants take turns; the whisker is the interquartile range.",
        origin=bench.origin,
        bars=tuple(_bar(bench, one) for one in bench.variants),
        mark_ns=bench.ideal_ns,
        mark="ideal",
    )


def _bar(bench: Bench, one: VariantResult) -> Bar:
    found, share = one.summary, bench.share_of_ideal(one.name)
    colour = {SEQUENTIAL: "memory", PLANNED: "overlapped"}.get(one.name, "compute" if one.name in BASELINES else "comm")
    note = "results differ" if one.wrong else "" if share is None else f"{percent(100 * share)} of ideal"
    return Bar(
        label=one.name,
        parts=(Part("time", found.median_ns, colour),),
        spread_ns=found.spread_ns if bench.origin == "measured" else None,
        samples=found.n,
        note=note,
    )


def _variant_table(bench: Bench) -> Table:
    return Table(
        name="variants",
        caption=_FORMULA,
        origin=bench.origin,
        columns=(
            Column("variant", "name"),
            Column("threads", "number", None, "compute threads of each rank"),
            Column("median ms", "number"),
            Column("spread ms", "number", None, "interquartile range"),
            Column("n", "number"),
            Column("far out", "number", None, "rounds more than 1.5 interquartile ranges away"),
            Column("of ideal %", "number"),
            Column("beside compute %", "number", None, "share of communication time with compute beside it"),
            Column("results", "wide"),
        ),
        rows=tuple(_variant_row(bench, one) for one in bench.variants),
    )


def _variant_row(bench: Bench, one: VariantResult) -> tuple[Cell, ...]:
    found, share, rate = one.summary, bench.share_of_ideal(one.name), one.overlap_rate
    right = "verified" if bench.origin == "measured" else "–"
    return (
        Cell(one.name),
        number(one.threads, 0),
        number(found.median_ns, scale=_MS),
        number(found.spread_ns, scale=_MS),
        number(found.n, 0),
        number(found.outliers, 0),
        number(None if share is None else 100 * share, 0),
        number(None if rate is None else 100 * rate, 0),
        Cell(right if one.wrong is None else f"WRONG: {one.wrong}"),
    )


def _timeline_words(bench: Bench) -> Words:
    return Words(text="The last round of each variant on the first rank, each from its own start.", origin=bench.origin)


def bench_lines(bench: Bench, name: str = "spans") -> Lines:
    """Every variant's last round, one below the other."""
    assert bench.timeline is not None
    return Lines(name=name, ranks=compared_tracks(_by_variant(bench.timeline)))


def _by_variant(timeline: Timeline) -> list[tuple[str, Timeline]]:
    """A bench's timeline names its spans "variant: operation"."""
    spans: dict[str, list[Span]] = {}
    for span in timeline.spans:
        variant, _, name = span.name.rpartition(": ")
        spans.setdefault(variant or "all", []).append(replace(span, name=name))
    return [(variant, replace(timeline, spans=tuple(own), steps=())) for variant, own in spans.items()]


# --- controls ------------------------------------------------------------------------------------


def _control_blocks(bench: Bench) -> tuple[Block, ...]:
    rows = [(one.name, applied) for one in bench.variants for applied in one.applied]
    return (
        Table(
            name="applied",
            caption="What became of each control, as read back after it was set.",
            origin=bench.origin,
            columns=(Column("variant", "name"), Column("control", "name"), Column("status"), Column("detail", "wide")),
            rows=tuple(
                (Cell(name), Cell(control_word(one.control)), Cell(one.status), Cell(one.detail)) for name, one in rows
            ),
            nothing="No control was applied." if bench.origin == "measured" else "Controls were simulated.",
        ),
    )


def _provenance(bench: Bench, arguments: str, version: str) -> tuple[Block, ...]:
    compute, comm = summary(bench.compute_ns), summary(bench.comm_ns)
    pairs = [
        ("command", arguments),
        ("makeway", version),
        ("numbers", bench.origin),
        ("on", f"{bench.on}, {count(bench.ranks, 'rank')}"),
        ("link", bench.link or "the device's own"),
        ("compute alone", f"{time_text(compute.median_ns)}, n = {compute.n}"),
        ("communication alone", f"{time_text(comm.median_ns)}, n = {comm.n}"),
    ]
    return Facts(pairs=tuple(pairs), code=("command",)), Notes(sentences=bench.notes)


# --- the published experiment --------------------------------------------------------------------


def experiment_report(experiments: Sequence[Experiment], *, arguments: str, version: str) -> Report:
    """Heat maps of the published metrics over grids of blocks."""
    first = experiments[0]
    ratios = [cell.time_ratio for one in experiments for cell in one.cells]
    words = (
        f"{first.workload} on {first.on}: plain overlap takes {min(ratios):.2f} to {max(ratios):.2f} of the sequential "
        f"time over {len(ratios)} grids"
    )
    sections = tuple(
        Section(
            name=f"tile-{'x'.join(map(str, one.tile))}",
            title=f"Tile {'x'.join(map(str, one.tile))}",
            blocks=tuple(_heat(one, metric) for metric in one.metrics),
        )
        for one in experiments
    )
    pairs = (("command", arguments), ("makeway", version), ("numbers", first.origin), ("n", str(first.n)))
    provenance: tuple[Block, ...] = (Facts(pairs=pairs, code=("command",)), Notes(sentences=first.notes))
    return Report(
        result="bench",
        over=f"makeway bench, {first.workload} on {first.on}",
        headline=Headline(sentence=words, origin=first.origin),
        sections=(*sections, Section(name="provenance", title="Provenance", blocks=provenance)),
        arguments=arguments,
    )


def _heat(experiment: Experiment, metric: Metric) -> HeatMap:
    values = {cell.grid: value for cell in experiment.cells if (value := cell.metric(metric)) is not None}
    name = f"{metric.replace('_', '-')}-{'x'.join(map(str, experiment.tile))}"
    return grid_map(name, TITLES[metric], values, origin=experiment.origin)


def grid_map(
    name: str, caption: str, values: Mapping[Grid, float], *, origin: str, reach: tuple[float, float] | None = None
) -> HeatMap:
    """Values by the GEMM's grid, as the paper draws them."""
    across, down = sorted({x for x, _ in values}), sorted({y for _, y in values})
    return HeatMap(
        name=name,
        caption=caption,
        columns=tuple(map(str, across)),
        rows=tuple(map(str, down)),
        values=tuple(tuple(values.get((x, y)) for x in across) for y in down),
        column_title="X blocks",
        row_title="Y blocks",
        origin=origin,
        reach=reach,
    )
