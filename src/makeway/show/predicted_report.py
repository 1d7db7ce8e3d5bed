"""What `makeway simulate` and `makeway plan` have to say, as reports: predicted times, timelines, room on an SM."""

from __future__ import annotations

from collections.abc import Sequence

from makeway.decide.planning.planner import PLANNER, Planned
from makeway.show.blocks import (
    Block,
    Cell,
    Column,
    Headline,
    Report,
    Section,
    Table,
    Words,
)
from makeway.show.numbers import number, percent, time_text
from makeway.show.prediction import ideal_bars, room_section, share_text, time_bar, timeline_section
from makeway.show.provenance import provenance
from makeway.values.control import control_word, describe
from makeway.values.device import Device
from makeway.values.timeline import Timeline
from makeway.values.workload import Workload

_MS = 1e6


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
        result="plan",
        over=f"makeway plan, {workload.name} on {device.name}",
        headline=Headline(sentence=words, origin="predicted", value=planned.t_plan_ns / _MS, unit="ms"),
        lead=tuple(Words(text=sentence, origin="predicted") for sentence in planned.summary),
        sections=(
            Section(name="time", title="Time", blocks=_policy_blocks(planned)),
            Section(name="plan", title="Plan", blocks=_plan_blocks(planned)),
            timeline_section(timelines),
            *room_section(workload, device, planned.controls),
            provenance(
                arguments,
                numbers="predicted by simulation, not measured",
                facts=(
                    ("times", f"the worst of the dispatch rules {', '.join(planned.dispatchers)}"),
                    ("sets of controls tried", str(planned.evaluations)),
                ),
                notes=(*planned.notes, *notes),
            ),
        ),
        arguments=arguments,
    )


# --- time ---


def _policy_blocks(planned: Planned) -> tuple[Block, ...]:
    rows = [(PLANNER, planned.t_plan_ns, planned.share_of_ideal_plan, planned.controls)]
    rows += [(name, one.t_ns, one.share_of_ideal, one.controls) for name, one in planned.baselines.items()]
    rows.sort(key=lambda row: (row[1], row[0] != PLANNER))
    bars = (
        time_bar("one after the other", planned.t_sequential_ns, "memory"),
        *(
            time_bar(name, t_ns, "overlapped" if name == PLANNER else "compute", share_text(share))
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
    return ideal_bars(bars, planned.t_ideal_ns), table


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
