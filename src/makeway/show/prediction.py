"""Predictions and sweeps as reports: predicted times, the timeline, and the room on an SM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from makeway.decide.analysis.analyze import analysis_of
from makeway.model.simulate.predict import Alternative, Prediction
from makeway.model.simulate.sweep import Sweep
from makeway.show.analysis_ledger import ledger_data, ledger_sections
from makeway.show.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Facts,
    Headline,
    Lines,
    Notes,
    Paragraph,
    Part,
    Report,
    Room,
    Section,
    Table,
)
from makeway.show.data import milliseconds, record, rounded
from makeway.show.numbers import number, percent, time_text
from makeway.show.provenance import provenance
from makeway.show.tracks import compared_tracks
from makeway.values.collective import load_footprint
from makeway.values.control import CommThreads, Control, SmemPad, describe
from makeway.values.device import Device
from makeway.values.timeline import Rank, Timeline
from makeway.values.workload import Workload

_SPAN_DETAILS = ("launch", "launched_ns", "exchange", "priority", "rule", "inputs")  # that simulated spans do not have


def report(result: Prediction | Sweep, *, arguments: str = "") -> Report:
    """One prediction, or one knob over its values."""
    return _sweep_report(result, arguments) if isinstance(result, Sweep) else _prediction_report(result, arguments)


# --- one prediction --------------------------------------------------------------------------------


def _prediction_report(prediction: Prediction, arguments: str) -> Report:
    share, where = prediction.share_of_ideal, f"{prediction.workload.name} on {prediction.device.name}"
    controls = ", ".join(describe(control) for control in prediction.controls) or "no controls"
    analysis = analysis_of([_first_rank(prediction)], what_if=False)
    return Report(
        result="prediction",
        over=f"makeway simulate, {where}",
        headline=Headline(
            sentence=f"{prediction.workload.name} takes {time_text(prediction.t_ns)} on {prediction.device.name}: "
            + gain_text(share, prediction.t_sequential_ns),
            origin="predicted",
            value=milliseconds(prediction.t_ns),
            unit="ms",
        ),
        lead=(Paragraph(text=f"With {controls}."),),
        sections=(
            Section(name="time", title="Time", blocks=(_times(prediction),)),
            *_alternatives_section(prediction.alternatives),
            *(replace(section, detail=True) for section in ledger_sections(analysis)),
            timeline_section((("predicted", prediction.timeline),)),
            *room_section(prediction.workload, prediction.device, prediction.controls),
            _conditions(prediction),
            provenance(arguments, numbers="predicted by simulation, not measured"),
        ),
        data=prediction_data(prediction)
        | {"ledger": ledger_data(analysis.ledger, analysis.wording)}
        | _timeline_data(prediction.timeline),
        notes=tuple(f"no effect: {text}" for text in prediction.without_effect),
        arguments=arguments,
    )


def _first_rank(prediction: Prediction) -> Timeline:
    """The timeline of the first rank, as analysis takes a recorded one."""
    timeline = prediction.timeline
    spans = tuple(span for span in timeline.spans if span.rank == 0)
    return replace(timeline, spans=spans, holdings=(), ranks=(Rank(rank=0, device=prediction.device.name),))


def _times(prediction: Prediction) -> Bars:
    rate, naive = prediction.overlap_rate, prediction.t_naive_ns
    beside = "" if rate is None else f"{percent(100 * rate)} beside compute"
    return ideal_bars(
        (
            time_bar("compute alone", prediction.t_compute_ns, "compute"),
            time_bar("communication alone", prediction.t_comm_ns, "comm", beside),
            time_bar("sequential", prediction.t_sequential_ns, "memory"),
            *(() if not prediction.controls or naive is None else (_naive_bar(prediction, naive),)),
            time_bar("predicted", prediction.t_ns, "overlapped", share_text(prediction.share_of_ideal)),
        ),
        prediction.ideal_ns,
    )


def _naive_bar(prediction: Prediction, naive_ns: float) -> Bar:
    return time_bar("without controls", naive_ns, "overlapped", share_text(prediction.share_of_ideal_naive))


def _alternatives_section(alternatives: Sequence[Alternative]) -> tuple[Section, ...]:
    if not alternatives:
        return ()
    table = Table(
        name="alternatives",
        caption=f"Under other hardware policies, with {percent(100 * alternatives[0].jitter)} spread of block times",
        origin="predicted",
        columns=(Column("dispatch"), Column("HBM"), Column("ms", "number"), Column("share of ideal %", "number")),
        rows=tuple(
            (Cell(other.dispatch), Cell(other.hbm), number(milliseconds(other.t_ns)), _share_cell(other.share_of_ideal))
            for other in alternatives
        ),
    )
    return (Section(name="policies", title="Other hardware policies", blocks=(table,)),)


def _conditions(prediction: Prediction) -> Section:
    facts = Facts(
        pairs=(
            ("engine", f"{prediction.engine} ({prediction.fallback})" if prediction.fallback else prediction.engine),
            ("dispatch", prediction.dispatch),
            ("HBM", prediction.hbm),
            ("spread of block times", percent(100 * prediction.jitter)),
        )
    )
    blocks: tuple[Block, ...] = (facts, Notes(sentences=tuple(f"assumed: {text}" for text in prediction.assumed)))
    return Section(name="conditions", title="Conditions", blocks=blocks, detail=True)


def prediction_data(prediction: Prediction) -> dict[str, Any]:
    """A prediction's figures, without its timeline."""
    data = record(prediction, without=("workload", "device", "timeline", "blocks"))
    return {
        "origin": "predicted",
        "workload": prediction.workload.name,
        "device": prediction.device.name,
        **data,
        "alternatives": [
            record(other) | {"share_of_ideal": rounded(other.share_of_ideal)} for other in prediction.alternatives
        ],
        "share_of_ideal": rounded(prediction.share_of_ideal),
        "share_of_ideal_naive": rounded(prediction.share_of_ideal_naive),
        "overlap_rate": rounded(prediction.overlap_rate),
    }


def _timeline_data(timeline: Timeline) -> dict[str, Any]:
    return {
        "spans": [record(span, without=_SPAN_DETAILS) for span in timeline.spans],
        "residency": [
            {"time_ms": milliseconds(held.time_ns), "rank": held.rank, "sms": held.sms, "blocks": dict(held.blocks)}
            for held in timeline.holdings
        ],
    }


# --- a sweep ---------------------------------------------------------------------------------------


def _sweep_report(sweep: Sweep, arguments: str) -> Report:
    runs = [(outcome.label, outcome.prediction) for outcome in sweep.outcomes if outcome.prediction is not None]
    bars = tuple(
        time_bar(label, prediction.t_ns, "overlapped", share_text(prediction.share_of_ideal))
        for label, prediction in runs
    )
    best = min(runs, key=lambda run: run[1].t_ns, default=None)
    where = f"{sweep.workload.name} on {sweep.device.name}"
    headline = (
        Headline(sentence=f"No value of {sweep.kind} can run {where}", origin="predicted")
        if best is None
        else Headline(
            sentence=f"{where} is fastest with {best[0]}: {time_text(best[1].t_ns)}",
            origin="predicted",
            value=milliseconds(best[1].t_ns),
            unit="ms",
        )
    )
    failures = tuple(f"{item.label}: {item.error}" for item in sweep.outcomes if item.error is not None)
    return Report(
        result="sweep",
        over=f"makeway simulate --sweep {sweep.kind}, {where}",
        headline=headline,
        sections=(
            Section(
                name="time",
                title="Time",
                blocks=(
                    Bars(name="times", caption=f"Time by {sweep.kind}", bars=bars, origin="predicted"),
                    Notes(sentences=failures),
                ),
            ),
            provenance(arguments, numbers="predicted by simulation, not measured"),
        ),
        data={
            "origin": "predicted",
            "kind": sweep.kind,
            "points": [
                {"label": item.label, "error": item.error}
                if item.prediction is None
                else {"label": item.label} | prediction_data(item.prediction)
                for item in sweep.outcomes
            ],
        },
        arguments=arguments,
    )


# --- shared with plans -----------------------------------------------------------------------------


def time_bar(label: str, time_ns: float, colour: str, note: str = "") -> Bar:
    return Bar(label=label, parts=(Part("time", time_ns, colour),), note=note)


def ideal_bars(bars: tuple[Bar, ...], ideal_ns: float) -> Bars:
    caption = "Times; the ideal is the longer of compute and communication alone"
    return Bars(name="times", caption=caption, bars=bars, origin="predicted", mark_ns=ideal_ns, mark="ideal")


def gain_text(share: float | None, t_sequential_ns: float) -> str:
    """A share of ideal in prose."""
    if share is None:
        return "there is nothing to gain"
    if share < 0:
        return f"slower than sequential ({time_text(t_sequential_ns)})"
    return f"{percent(100 * share)} of the ideal gain over sequential"


def share_text(share: float | None) -> str:
    return "" if share is None else f"{percent(100 * share)} of ideal"


def _share_cell(share: float | None) -> Cell:
    return number(None if share is None else 100 * share, 0)


def timeline_section(timelines: Sequence[tuple[str, Timeline]]) -> Section:
    """Timelines below each other on one time axis."""
    caption = Paragraph(text="What runs when, on the first rank.", origin="predicted")
    lines = Lines(name="spans", ranks=compared_tracks(timelines))
    return Section(name="timeline", title="Timeline", blocks=(caption, lines), detail=True)


def room_section(workload: Workload, device: Device, controls: Sequence[Control]) -> tuple[Section, ...]:
    """One SM with the workload's kernel and its collective, where it has both."""
    room = room_of(workload, device, controls)
    return () if room is None else (Section(name="room", title="Room on an SM", blocks=(room,), detail=True),)


def room_of(workload: Workload, device: Device, controls: Sequence[Control]) -> Room | None:
    """The workload's largest kernel and its first collective on one SM; None where one of them is missing."""
    kernels, collectives = workload.kernels, workload.collectives
    if not kernels or not collectives:
        return None
    kernel = max(kernels, key=lambda op: op.work.blocks)
    pads = [pad.pad_bytes for pad in controls if isinstance(pad, SmemPad) and fnmatchcase(kernel.name, pad.kernel)]
    threads = next((control.threads for control in controls if isinstance(control, CommThreads)), None)
    footprint = load_footprint(collectives[0].library, device.arch)
    if threads is not None and footprint.block is not None:
        footprint = footprint.with_threads(threads)
    return Room(
        name="room-picture",
        device=device.name,
        sm=device.sm,
        compute_name=kernel.name,
        compute=kernel.resources,
        comm_name=footprint.name if footprint.block is not None else None,
        comm=footprint.block,
        pad_bytes=pads[0] if pads else 0,
        most_pad_bytes=max(device.sm.smem_block_bytes - kernel.resources.smem_bytes, 0),
    )
