"""What `makeway simulate` and `makeway plan` have to say, as reports: predicted times, timelines, room on an SM."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from makeway.collective import load_footprint
from makeway.control import CommThreads, Control, SmemPad, control_word, describe
from makeway.device import Device
from makeway.planning.planner import PLANNER, Planned
from makeway.report.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Facts,
    Headline,
    Lines,
    Notes,
    Part,
    Report,
    Room,
    Section,
    Table,
    Words,
)
from makeway.report.numbers import number, percent, time_text
from makeway.report.tracks import compared_tracks
from makeway.simulate.predict import Prediction
from makeway.timeline import Timeline
from makeway.workload import Workload

_MS = 1e6


def simulation_report(
    prediction: Prediction, workload: Workload, device: Device, *, arguments: str, version: str
) -> Report:
    """A workload on a device under controls."""
    share = prediction.share_of_ideal
    bars = (
        _bar("compute alone", prediction.t_compute_ns, "compute"),
        _bar("communication alone", prediction.t_comm_ns, "comm"),
        _bar("one after the other", prediction.t_sequential_ns, "memory"),
        _bar("predicted", prediction.t_ns, "overlapped", _share(share)),
    )
    controls = ", ".join(describe(control) for control in prediction.controls) or "no controls"
    return Report(
        command="simulate",
        over=f"makeway simulate, {prediction.workload} on {prediction.device}",
        headline=Headline(
            sentence=f"{prediction.workload} takes {time_text(prediction.t_ns)} on {prediction.device}: "
            + _gain(share, prediction.t_sequential_ns),
            origin="predicted",
            value=prediction.t_ns / _MS,
            unit="ms",
        ),
        lead=(Words(text=f"With {controls}.", origin="predicted"),),
        sections=(
            Section(name="time", title="Time", blocks=(_bars(bars, prediction.ideal_ns),)),
            _timeline_section((("predicted", prediction.timeline),)),
            *_room_section(workload, device, prediction.controls),
            _provenance(
                arguments,
                version,
                facts=(
                    ("engine", prediction.engine),
                    ("dispatch", prediction.dispatch),
                    ("HBM", prediction.hbm),
                    ("jitter", f"{prediction.jitter:g}"),
                ),
                notes=(*(f"no effect: {text}" for text in prediction.without_effect), *prediction.assumed),
            ),
        ),
        arguments=arguments,
        version=version,
    )


def plan_report(
    planned: Planned,
    workload: Workload,
    device: Device,
    timelines: Sequence[tuple[str, Timeline]],
    *,
    notes: Sequence[str],
    arguments: str,
    version: str,
) -> Report:
    """A plan, its reasons, what was turned down, and what it was held against."""
    change = 100 * (planned.t_plan_ns / planned.t_naive_ns - 1)
    words = (
        f"Leave {workload.name} as it is ({time_text(planned.t_naive_ns)}): no set of controls is predicted to gain "
        "more than the model may be off by"
        if planned.leave_as_is
        else f"{time_text(planned.t_plan_ns)} with the plan against {time_text(planned.t_naive_ns)} without "
        f"({percent(change, '+.1f')})"
    )
    return Report(
        command="plan",
        over=f"makeway plan, {workload.name} on {device.name}",
        headline=Headline(sentence=words, origin="predicted", value=planned.t_plan_ns / _MS, unit="ms"),
        lead=tuple(Words(text=sentence, origin="predicted") for sentence in planned.summary),
        sections=(
            Section(name="time", title="Time", blocks=_policy_blocks(planned)),
            Section(name="plan", title="Plan", blocks=_plan_blocks(planned)),
            _timeline_section(timelines),
            *_room_section(workload, device, planned.controls),
            _provenance(
                arguments,
                version,
                facts=(
                    ("times", f"the worst of the dispatch rules {', '.join(planned.dispatchers)}"),
                    ("sets of controls tried", str(planned.evaluations)),
                ),
                notes=(*planned.notes, *notes),
            ),
        ),
        arguments=arguments,
        version=version,
    )


# --- time ----------------------------------------------------------------------------------------


def _bar(label: str, time_ns: float, colour: str, note: str = "") -> Bar:
    return Bar(label=label, parts=(Part("time", time_ns, colour),), note=note)


def _bars(bars: tuple[Bar, ...], ideal_ns: float) -> Bars:
    caption = "Predicted times; the line is the ideal, the longer of compute and communication alone."
    return Bars(name="times", caption=caption, bars=bars, origin="predicted", mark_ns=ideal_ns, mark="ideal")


def _gain(share: float | None, t_sequential_ns: float) -> str:
    if share is None:
        return "there is nothing to gain"
    if share < 0:
        return f"longer than one after the other ({time_text(t_sequential_ns)})"
    return f"{percent(100 * share)} of the ideal gain over one after the other"


def _share(share: float | None) -> str:
    return "" if share is None else f"{percent(100 * share)} of ideal"


def _policy_blocks(planned: Planned) -> tuple[Block, ...]:
    rows = [(PLANNER, planned.t_plan_ns, planned.share_of_ideal_plan, planned.controls)]
    rows += [(name, one.t_ns, one.share_of_ideal, one.controls) for name, one in planned.baselines.items()]
    rows.sort(key=lambda row: (row[1], row[0] != PLANNER))
    bars = (
        _bar("one after the other", planned.t_sequential_ns, "memory"),
        *(
            _bar(name, t_ns, "overlapped" if name == PLANNER else "compute", _share(share))
            for name, t_ns, share, _ in reversed(rows)
        ),
    )
    table = Table(
        name="policies",
        caption="The plan, and what published rules would do.",
        origin="predicted",
        columns=(
            Column("policy"),
            Column("ms", "number"),
            Column("share of ideal", "number"),
            Column("controls", "wide"),
        ),
        rows=tuple(
            (
                Cell(name),
                number(t_ns, scale=_MS),
                number(share, 2),
                Cell(" ".join(control_word(control) for control in controls) or "–"),
            )
            for name, t_ns, share, controls in rows
        ),
    )
    return _bars(bars, planned.t_ideal_ns), table


def _plan_blocks(planned: Planned) -> tuple[Block, ...]:
    return (
        Table(
            name="controls",
            caption="What to set, and why.",
            origin="predicted",
            columns=(Column("control", "wide"), Column("as typed", "name"), Column("why", "wide")),
            rows=tuple(
                (Cell(describe(control)), Cell(control_word(control)), Cell(reason))
                for control, reason in zip(planned.controls, planned.reasons, strict=True)
            ),
            nothing="Nothing to set.",
        ),
        Table(
            name="rejected",
            caption="What was looked at and turned down.",
            origin="predicted",
            columns=(Column("control", "wide"), Column("why not", "wide")),
            rows=tuple((Cell(describe(item.control)), Cell(item.reason)) for item in planned.rejected),
            nothing="Nothing was turned down.",
            filtered=True,
        ),
    )


def _timeline_section(timelines: Sequence[tuple[str, Timeline]]) -> Section:
    words = Words(text="What runs when, on the first rank.", origin="predicted")
    return Section(
        name="timeline", title="Timeline", blocks=(words, Lines(name="spans", ranks=compared_tracks(timelines)))
    )


# --- room ----------------------------------------------------------------------------------------


def _room_section(workload: Workload, device: Device, controls: Sequence[Control]) -> tuple[Section, ...]:
    room = room_of(workload, device, controls)
    return () if room is None else (Section(name="room", title="Room on an SM", blocks=(room,)),)


def room_of(workload: Workload, device: Device, controls: Sequence[Control]) -> Room | None:
    """The workload's largest kernel and its first collective on one SM; None where one of them is missing."""
    kernels, collectives = workload.kernels, workload.collectives
    if not kernels or not collectives:
        return None
    kernel = max(kernels, key=lambda one: one.work.blocks)
    pads = [one.pad_bytes for one in controls if isinstance(one, SmemPad) and fnmatchcase(kernel.name, one.kernel)]
    threads = next((one.threads for one in controls if isinstance(one, CommThreads)), None)
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


# --- provenance ----------------------------------------------------------------------------------


def _provenance(arguments: str, version: str, *, facts: Sequence[tuple[str, str]], notes: Sequence[str]) -> Section:
    pairs = (("command", arguments), ("makeway", version), ("numbers", "predicted by simulation, not measured"), *facts)
    blocks: tuple[Block, ...] = (Facts(pairs=pairs, code=("command",)), Notes(sentences=tuple(notes)))
    return Section(name="provenance", title="Provenance", blocks=blocks)
