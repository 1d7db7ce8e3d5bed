"""Scaling curves over GPUs, and shards of one, as reports."""

from __future__ import annotations

from collections.abc import Iterable

from makeway.decide.scale.outcome import ScaleCurve
from makeway.decide.scale.shards import CurveShard
from makeway.show.blocks import Cell, Column, Curve, Curves, Headline, Paragraph, Report, Section, Table
from makeway.show.numbers import count, number, percent
from makeway.show.provenance import provenance
from makeway.show.scale import NUMBERS, assumptions, controls_text, spaced
from makeway.show.scale_data import curve_data, gain_percent, share_percent


def report(result: ScaleCurve | CurveShard, *, arguments: str = "") -> Report:
    """A curve over GPUs, or the note that a part of one was written."""
    match result:
        case ScaleCurve():
            return _curve_report(result, arguments)
        case CurveShard():
            return _shard_report(result, arguments)


# --- a curve ----------------------------------------------------------------------------------------


def _curve_report(curve: ScaleCurve, arguments: str) -> Report:
    where = f"{curve.model} on {curve.cluster}"
    known = [point for point in curve.points if point.tokens_per_s_per_gpu is not None]
    value = None
    if known:
        first, last = known[0], known[-1]
        value = 100 * (last.tokens_per_s_per_gpu or 0.0) / (first.tokens_per_s_per_gpu or 1.0)
        sentence = f"{where} keeps {percent(value)} of its tokens/s per GPU from {first.gpus:,} to {last.gpus:,} GPUs"
    else:
        sentence = f"{where}: no number of GPUs has a layout that fits"
    return Report(
        result="scale-curve",
        over=f"makeway scale --sweep, {where}",
        headline=Headline(sentence=sentence, origin="predicted", value=value, unit="%" if known else None),
        sections=(
            Section(
                name="scaling",
                title="Scaling",
                blocks=(throughput(curve), gains(curve), *_compressed_curve(curve), _points(curve)),
            ),
            Section(
                name="conditions",
                title="Conditions",
                blocks=(assumptions(curve.assumed),),
                detail=True,
            ),
            provenance(arguments, numbers=NUMBERS),
        ),
        data=curve_data(curve) | ({"kept_percent": value} if known else {"kept_percent": None}),
        arguments=arguments,
    )


def throughput(curve: ScaleCurve) -> Curves:
    """Tokens/s per GPU without and with the best controls."""
    controlled = tuple(point.controlled_tokens_per_s_per_gpu for point in curve.points)
    return Curves(
        name="throughput",
        caption="Tokens/s per GPU",
        places=tuple(point.gpus for point in curve.points),
        place_title="GPUs",
        value_title="tokens/s per GPU",
        curves=(
            Curve("no controls", tuple(point.tokens_per_s_per_gpu for point in curve.points)),
            Curve("best controls", controlled),
        ),
        origin="predicted",
    )


def gains(curve: ScaleCurve) -> Curves:
    """What each set of controls gains over GPUs."""
    sets = dict.fromkeys(trial.controls for point in curve.points for trial in point.trials if trial.controls)
    rows = [{trial.controls: gain_percent(trial.gain) for trial in point.trials} for point in curve.points]
    return _gain_curves(
        curve,
        "gains",
        "Gain of each control in % of the step",
        (Curve(controls_text(controls), tuple(row.get(controls) for row in rows)) for controls in sets),
    )


def _compressed_curve(curve: ScaleCurve) -> tuple[Curves, ...]:
    names = dict.fromkeys(item.compression for point in curve.points for item in point.compressed)
    if not names:
        return ()
    rows = [{item.compression: gain_percent(item.gain) for item in point.compressed} for point in curve.points]
    plain = tuple(gain_percent(point.best.gain) if point.best else None for point in curve.points)
    caption = "Gain of the best controls in % of the step, by compression of gradients"
    compressed = (Curve(name, tuple(row.get(name) for row in rows)) for name in names)
    return (_gain_curves(curve, "gains-compressed", caption, (Curve("no compression", plain), *compressed)),)


def _gain_curves(curve: ScaleCurve, name: str, caption: str, curves: Iterable[Curve]) -> Curves:
    return Curves(
        name=name,
        caption=caption,
        places=tuple(point.gpus for point in curve.points),
        place_title="GPUs",
        value_title="gain %",
        curves=tuple(curves),
        origin="predicted",
        digits=2,
    )


def _points(curve: ScaleCurve) -> Table:
    return Table(
        name="points",
        caption="Every number of GPUs, without controls",
        origin="predicted",
        columns=(
            Column("GPUs", "number"),
            Column("layout", "wide"),
            Column("step s", "number"),
            Column("MFU %", "number"),
            Column("exposed %", "number"),
            Column("bubble %", "number", brief=False),
            Column("contention %", "number", brief=False),
            Column("best controls", brief=False),
        ),
        rows=tuple(
            (
                number(point.gpus, 0),
                Cell(point.reason or "" if point.layout is None else spaced(point.layout)),
                number(point.step_ns, scale=1e9),
                number(share_percent(point.mfu), 1),
                number(share_percent(point.exposed_share), 1),
                number(share_percent(point.bubble_share), 1),
                number(share_percent(point.contention_share), 1),
                Cell(controls_text(point.best.controls) if point.best else "–"),
            )
            for point in curve.points
        ),
        brief_rows=64,
    )


# --- a shard of a curve -----------------------------------------------------------------------------


def _shard_report(part: CurveShard, arguments: str) -> Report:
    return Report(
        result="scale-shard",
        over="makeway scale --shard",
        headline=Headline(
            sentence=f"Shard {part.shard} holds {count(len(part.gpus), 'number')} of GPUs of {part.all_gpus}",
            origin="predicted",
        ),
        sections=(
            Section(
                name="next",
                title="Next",
                blocks=(Paragraph(text="When all shards are written, `makeway merge FILES` gives the curve."),),
            ),
            provenance(arguments, numbers=NUMBERS),
        ),
        data={"shard": str(part.shard), "gpus": list(part.gpus), "all_gpus": part.all_gpus},
        arguments=arguments,
    )
