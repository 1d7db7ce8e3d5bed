"""A plan as one JSON document, as a plan file, and for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from makeway.decide.planning.planner import PLANNER, Planned
from makeway.values.control import control_word, describe
from makeway.values.plan import Forecast, MadeFor, Plan


def as_plan(planned: Planned, made_for: MadeFor) -> Plan:
    """What goes into a plan file."""
    return Plan(
        controls=planned.controls,
        reasons=planned.reasons,
        made_for=made_for,
        predicted=Forecast(
            t_naive_ms=_ms(planned.t_naive_ns),
            t_plan_ms=_ms(planned.t_plan_ns),
            t_ideal_ms=_ms(planned.t_ideal_ns),
            share_of_ideal_naive=_rounded(planned.share_of_ideal_naive),
            share_of_ideal_plan=_rounded(planned.share_of_ideal_plan),
            dispatchers=planned.dispatchers,
        ),
        rejected=planned.rejected,
    )


def plan_document(planned: Planned, made_for: MadeFor, notes: tuple[str, ...]) -> dict[str, Any]:
    """The document that `makeway plan --json` prints."""
    return {
        "workload": made_for.workload,
        "device": made_for.device,
        "origin": "predicted",
        "leave_as_is": planned.leave_as_is,
        "controls": [
            {"control": control_word(control), "words": describe(control), "reason": reason}
            for control, reason in zip(planned.controls, planned.reasons, strict=True)
        ],
        "t_naive_ms": _ms(planned.t_naive_ns),
        "t_plan_ms": _ms(planned.t_plan_ns),
        "t_ideal_ms": _ms(planned.t_ideal_ns),
        "t_sequential_ms": _ms(planned.t_sequential_ns),
        "share_of_ideal_naive": _rounded(planned.share_of_ideal_naive),
        "share_of_ideal_plan": _rounded(planned.share_of_ideal_plan),
        "dispatchers": list(planned.dispatchers),
        "rejected": [{"control": control_word(item.control), "reason": item.reason} for item in planned.rejected],
        "baselines": {
            name: {
                "controls": [control_word(control) for control in baseline.controls],
                "t_ms": _ms(baseline.t_ns),
                "share_of_ideal": _rounded(baseline.share_of_ideal),
            }
            for name, baseline in planned.baselines.items()
        },
        "reasons": [*planned.summary, *planned.reasons],
        "evaluations": planned.evaluations,
        "notes": [*planned.notes, *notes],
    }


def print_plan(out: Console, planned: Planned) -> None:
    """Whether anything needs doing, what, why, and what it was held against."""
    for sentence in planned.summary:
        out.print(sentence, markup=False)
    out.print()
    for control, reason in zip(planned.controls, planned.reasons, strict=True):
        out.print(f"  {describe(control)}: {reason}", markup=False)
    if planned.controls:
        out.print()
    out.print(_baseline_table(planned))
    if planned.rejected:
        out.print()
        out.print("not in the plan:", markup=False)
        for item in planned.rejected:
            out.print(f"  {describe(item.control)}: {item.reason}", markup=False)


def _baseline_table(planned: Planned) -> Table:
    table = Table("policy", box=None, pad_edge=False)
    table.add_column("t ms (predicted)", justify="right")
    table.add_column("share of ideal", justify="right")
    table.add_column("controls")
    rows = [(PLANNER, planned.t_plan_ns, planned.share_of_ideal_plan, planned.controls)]
    rows += [(name, item.t_ns, item.share_of_ideal, item.controls) for name, item in planned.baselines.items()]
    for name, t_ns, share, controls in sorted(rows, key=lambda row: (row[1], row[0] != PLANNER)):
        words = " ".join(control_word(control) for control in controls) or "-"
        table.add_row(name, f"{_ms(t_ns):.3f}", "-" if share is None else f"{share:.2f}", words)
    return table


def _ms(time_ns: float) -> float:
    """Milliseconds to the nanosecond: the same digits on every machine."""
    return round(time_ns / 1e6, 6)


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 6)
