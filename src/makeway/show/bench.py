"""A bench as a report: the collective, times of every variant, what ran when, and the receipt of each control."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from makeway.act.measure.outcome import Bench, Limit, VariantResult
from makeway.act.measure.statistics import Comparison
from makeway.act.measure.variants import BASELINES, OVERLAP, PLANNED, SEQUENTIAL, TORCHRUN
from makeway.decide.analysis.difference import LEVEL
from makeway.show.blocks import (
    Bar,
    Bars,
    Cell,
    Column,
    Headline,
    Lines,
    Paragraph,
    Part,
    Report,
    Section,
    Table,
)
from makeway.show.data import milliseconds, record, rounded
from makeway.show.numbers import count, number, percent, time_text
from makeway.show.provenance import provenance
from makeway.show.tracks import compared_tracks
from makeway.values.control import control_word, lossy
from makeway.values.timeline import Span, Timeline

_MS, _US, _GB = 1e6, 1e3, 1e9
_FORMULA = "share of ideal = (t_seq / t - 1) / (t_seq / max(t_compute, t_comm) - 1), each part alone in the same rounds"


_INTERVAL = f"of the paired difference, {100 * LEVEL:.0f} % interval from the order of the rounds' differences"


def report(bench: Bench, *, arguments: str = "") -> Report:
    """All variants of one workload."""
    sections = [
        Section(name="time", title="Time", blocks=(bench_bars(bench),), detail=True),
        Section(name="collective", title="Collective", blocks=(_nccl_table(bench),)),
        Section(name="variants", title="Variants", blocks=(_variant_table(bench), _parts(bench))),
    ]
    if bench.timeline is not None:
        text = "The last round of each variant on the first rank, each from its own start."
        blocks = (Paragraph(text=text, origin=bench.origin), bench_lines(bench))
        sections.append(Section(name="timeline", title="Timeline", blocks=blocks, detail=True))
    sections.append(Section(name="controls", title="Controls", blocks=(_receipts(bench),), detail=True))
    return Report(
        result="bench",
        over=f"makeway bench, {bench.workload} on {bench.on}, {count(bench.ranks, 'rank')}",
        headline=bench_headline(bench),
        lead=planned_words(bench),
        sections=(*sections, provenance(arguments, numbers=bench.origin, facts=_conditions(bench), notes=bench.notes)),
        data=bench_data(bench),
        notes=bench.notes,
        arguments=arguments,
    )


def bench_headline(bench: Bench) -> Headline:
    """The planned variant, or the fastest controlled one, against the baseline."""
    controlled, baseline, gain = bench.controlled, bench.baseline, bench.gain
    if controlled is None or baseline is None or gain is None:
        right = [variant for variant in bench.variants if variant.wrong is None]
        fastest = min(right or bench.variants, key=lambda variant: variant.median_ns)
        return _verdict(bench, fastest, f"{time_text(fastest.median_ns)} ({fastest.name})")
    if not controlled.controls:  # planning chose to leave things as they are
        return _verdict(bench, baseline, f"leave as is; {baseline_text(bench)} takes {time_text(baseline.median_ns)}")
    how = "as planned" if controlled.name == PLANNED else f"with {controlled.name}{_picked(bench)}"
    return _verdict(
        bench,
        controlled,
        f"{time_text(controlled.median_ns)} {how} against {time_text(baseline.median_ns)} by {baseline_text(bench)} "
        f"({percent(100 * gain.relative, '+.1f')}{_interval(gain)}, "
        f"n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{gain.n})",
    )


def _interval(gain: Comparison) -> str:
    if gain.low is None or gain.high is None:
        return ""
    doubt = "; no difference shown" if gain.verdict == "no difference shown" else ""
    return f", between {percent(100 * gain.low, '+.1f')} and {percent(100 * gain.high, '+.1f')}{doubt}"


def _verdict(bench: Bench, variant: VariantResult, sentence: str) -> Headline:
    share = bench.share_of_ideal(variant.name) if variant.name != SEQUENTIAL else None
    return Headline(
        sentence=f"{bench.workload}: {sentence}" + ("" if share is None else f", {percent(100 * share)} of ideal"),
        origin=bench.origin,
        value=variant.median_ns / _MS,
        unit="ms",
    )


def baseline_text(bench: Bench) -> str:
    """The baseline as prose."""
    defaults = {OVERLAP: "torch's default", TORCHRUN: "torchrun's default"} if bench.on == "cpu" else {}
    return defaults.get(bench.baseline.name, "plain overlap") if bench.baseline else "no baseline"


def planned_words(bench: Bench) -> tuple[Paragraph, ...]:
    """What planning chose, and a warning where the machine is busy."""
    sentences = (f"Planned: {bench.choice}." if bench.choice else "", f"{bench.busy}." if bench.busy else "")
    return tuple(Paragraph(text=sentence, origin=bench.origin) for sentence in sentences if sentence)


# --- tables --------------------------------------------------------------------------------------


def _nccl_table(bench: Bench) -> Table:
    """One row in the columns of nccl-tests."""
    exchange, controlled = bench.exchange, bench.controlled
    share = bench.share_of_ideal(controlled.name) if controlled else None
    titles = ("#size", "type", "time", "algbw", "busbw", "t_seq", "t_naive", "t_ctrl", "%ideal")
    times = (bench.variant(SEQUENTIAL), bench.baseline, controlled)
    return Table(
        name="nccl",
        caption="The collective alone, as nccl-tests shows it (B, us, GB/s), and whole rounds (ms)",
        origin=bench.origin,
        columns=tuple(Column(title, "" if title == "type" else "number") for title in titles),
        rows=(
            (
                Cell(str(exchange.size_bytes), exchange.size_bytes) if exchange else number(None),
                Cell(exchange.kind if exchange else "several"),
                number(bench.comm_step_ns, 1, scale=_US),
                *(number(bandwidth, 2) for bandwidth in _gigabytes_per_s(bench)),
                *(_short_ms(variant) for variant in times),
                number(None if share is None else 100 * share, 0),
            ),
        ),
    )


def _gigabytes_per_s(bench: Bench) -> tuple[float | None, float | None]:
    """Algorithm and bus bandwidth."""
    if bench.bandwidths is None:
        return None, None
    return round(bench.bandwidths[0] / _GB, 4), round(bench.bandwidths[1] / _GB, 4)


def _short_ms(variant: VariantResult | None) -> Cell:
    """A median in few characters: the row has nine columns."""
    if variant is None:
        return number(None)
    return number(variant.median_ns, 3 if variant.median_ns < 100 * _MS else 1, scale=_MS)


def _variant_table(bench: Bench) -> Table:
    predicted = any(variant.predicted_ns is not None for variant in bench.variants)
    baseline = f"; change: median of the paired differences from {bench.baseline.name}" if bench.baseline else ""
    columns = (
        Column("variant", "name"),
        Column("median ms", "number"),
        *((Column("predicted ms", "number", "predicted"),) if predicted else ()),
        Column("spread ms", "number", hint="interquartile range"),
        Column("n", "number"),
        Column("change %", "number"),
        Column("from", "number", hint=_INTERVAL, brief=False),
        Column("to", "number", hint=_INTERVAL, brief=False),
        Column("of ideal %", "number", hint=_FORMULA),
        Column("threads", "number", hint="compute threads of each rank", brief=False),
        Column("far out", "number", hint="rounds more than 3 interquartile ranges beyond a quartile", brief=False),
        Column("beside compute %", "number", hint="share of communication time with compute beside it", brief=False),
        Column("results", "wide", brief=bench.verified is False),
    )
    return Table(
        name="variant-times",
        caption=f"Medians of rounds in which all variants take turns{baseline}",
        origin=bench.origin,
        columns=columns,
        rows=tuple(_variant_row(bench, variant, predicted=predicted) for variant in bench.variants),
        brief_rows=len(bench.variants),
    )


def _variant_row(bench: Bench, variant: VariantResult, *, predicted: bool) -> tuple[Cell, ...]:
    share, rate = bench.share_of_ideal(variant.name), variant.overlap_rate
    change = low = high = None
    if bench.baseline is not None and variant.name != bench.baseline.name:
        comparison = bench.against(variant.name, bench.baseline.name)
        change, low, high = comparison.relative, comparison.low, comparison.high
    right = "verified" if bench.origin == "measured" else "–"
    return (
        Cell(variant.name if variant.same_as is None else f"{variant.name} = {variant.same_as}"),
        number(variant.median_ns, scale=_MS),
        *((number(variant.predicted_ns, scale=_MS),) if predicted else ()),
        number(variant.spread_ns, scale=_MS),
        number(variant.n, 0),
        *(Cell("–") if part is None else Cell(f"{100 * part:+.1f}", 100 * part) for part in (change, low, high)),
        number(None if share is None else 100 * share, 0),
        number(variant.threads, 0),
        number(variant.outliers, 0),
        number(None if rate is None else 100 * rate, 0),
        Cell(right if variant.wrong is None else f"WRONG: {variant.wrong}"),
    )


def _parts(bench: Bench) -> Paragraph:
    some_lossy = any(lossy(control) for variant in bench.variants for control in variant.controls)
    right = " Every result of a lossless variant is verified." if some_lossy else " Every result is verified."
    verified = {None: "", True: right, False: " RESULTS DIFFER: see the column `results`."}
    return Paragraph(
        text=f"Alone: compute {time_text(bench.compute.median_ns)}, communication {time_text(bench.comm.median_ns)}; "
        f"ideal {time_text(bench.ideal_ns)}{_reachable(bench)}.{verified[bench.verified]}"
    )


def _picked(bench: Bench) -> str:
    """How the fastest was picked where nothing was planned: in the rounds that it is shown with, which flatters it."""
    tried = sum(bool(variant.controls) for variant in bench.variants)
    return f", the fastest of {tried} in the same rounds," if tried > 1 and bench.origin == "measured" else ""


_LIMITS: dict[Limit, str] = {
    "compute": "compute alone",
    "communication": "communication alone",
    "processors": "the processor time of both, over all cores",
    "order": "the order within a step: data leaves when it exists, and the rest waits for all of it",
    "order and processors": "the order within a step, where communication takes processor time from compute",
}


def _reachable(bench: Bench) -> str:
    if bench.reachable_ns is None:
        return ""
    return f", reachable {time_text(bench.reachable_ns)} ({_LIMITS[bench.reachable_by or 'compute']})"


def _receipts(bench: Bench) -> Table:
    rows = [(variant.name, receipt) for variant in bench.variants for receipt in variant.receipts]
    columns = ("variant", "name"), ("control", "name"), ("carrier", ""), ("status", ""), ("detail", "wide")
    return Table(
        name="receipts",
        caption="What became of each control, as read back after it was set",
        origin=bench.origin,
        columns=tuple(Column(title, style) for title, style in columns),  # type: ignore[arg-type]
        rows=tuple(
            (
                Cell(name),
                Cell(control_word(receipt.control)),
                Cell(receipt.carrier),
                Cell(receipt.status),
                Cell(receipt.detail),
            )
            for name, receipt in rows
        ),
        nothing="No control was applied.",
    )


# --- charts --------------------------------------------------------------------------------------


def bench_bars(bench: Bench, name: str = "times") -> Bars:
    """One bar for each variant, with its spread, and the ideal as a line."""
    return Bars(
        name=name,
        caption="Medians of rounds in which all variants take turns; the whisker is the interquartile range (IQR)",
        origin=bench.origin,
        bars=tuple(_bar(bench, variant) for variant in bench.variants),
        mark_ns=bench.ideal_ns,
        mark="ideal",
    )


def _bar(bench: Bench, variant: VariantResult) -> Bar:
    share = bench.share_of_ideal(variant.name)
    others = "compute" if variant.name in BASELINES else "comm"
    colour = {SEQUENTIAL: "memory", PLANNED: "overlapped"}.get(variant.name, others)
    note = "results differ" if variant.wrong else "" if share is None else f"{percent(100 * share)} of ideal"
    return Bar(
        label=variant.name,
        parts=(Part("time", variant.median_ns, colour),),
        spread_ns=variant.spread_ns if bench.origin == "measured" else None,
        samples=variant.n,
        note=note,
    )


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


def _conditions(bench: Bench) -> tuple[tuple[str, str], ...]:
    return (
        ("on", f"{bench.on}, {count(bench.ranks, 'rank')}"),
        ("link", bench.link or "the device's own"),
        ("rounds of each part alone", str(bench.compute.n)),
        ("formula", _FORMULA),
    )


# --- data ----------------------------------------------------------------------------------------


def bench_data(bench: Bench) -> dict[str, Any]:
    """A bench's figures: times in milliseconds, medians with their interquartile range."""
    exchange, baseline, (algbw, busbw) = bench.exchange, bench.baseline, _gigabytes_per_s(bench)
    others = [variant for variant in bench.variants if baseline is not None and variant is not baseline]
    return {
        "origin": bench.origin,
        "on": bench.on,
        "ranks": bench.ranks,
        "workload": bench.workload,
        "link": bench.link,
        "collective": exchange and {"kind": exchange.kind, "bytes": exchange.size_bytes},
        "collective_ms": milliseconds(bench.comm_step_ns),
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": busbw,
        "variants": {
            variant.name: record(variant, without=("name", "times_ns", "overlap_rate")) for variant in bench.variants
        },
        "isolated": {
            "compute_ms": milliseconds(bench.compute.median_ns),
            "comm_ms": milliseconds(bench.comm.median_ns),
            "compute_spread_ms": milliseconds(bench.compute.spread_ns),
            "comm_spread_ms": milliseconds(bench.comm.spread_ns),
            "n": bench.compute.n,
        },
        "ideal_ms": milliseconds(bench.ideal_ns),
        "reachable_ms": milliseconds(bench.reachable_ns),
        "reachable_by": bench.reachable_by,
        "reached": {variant.name: _reached(bench, variant.name) for variant in bench.variants},
        "busy": bench.busy is not None,
        "share_of_ideal": {
            variant.name: rounded(bench.share_of_ideal(variant.name))
            for variant in bench.variants
            if variant.name != SEQUENTIAL
        },
        "overlap_rate": {variant.name: rounded(variant.overlap_rate) for variant in bench.variants},
        "baseline": baseline and baseline.name,
        "against_baseline": {variant.name: _comparison(bench, variant.name) for variant in others},
        "choice": bench.choice,
        "verified": bench.verified,
        "timeline": bench.timeline_path,
    }


def _reached(bench: Bench, name: str) -> dict[str, Any] | None:
    reached = bench.reached(name)
    if reached is None:
        return None
    parts = {"share": reached.relative, "low": reached.low, "high": reached.high}
    return {key: None if part is None else rounded(1 + part) for key, part in parts.items()}


def _comparison(bench: Bench, name: str) -> dict[str, Any]:
    assert bench.baseline is not None
    comparison = bench.against(name, bench.baseline.name)
    return {
        "relative": rounded(comparison.relative),
        "low": rounded(comparison.low),
        "high": rounded(comparison.high),
        "verdict": comparison.verdict,
        "faster": comparison.faster,
        "n": comparison.n,
    }
