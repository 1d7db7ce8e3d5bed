"""Plans, and the difference between two, as reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, assert_never

from makeway.decide.planning.difference import PlanDifference
from makeway.decide.planning.recorded import NothingToPlan
from makeway.show.blocks import Bars, Cell, Column, Headline, Notes, Paragraph, Report, Section, Table
from makeway.show.data import plain, record
from makeway.show.numbers import count, number, percent, time_text
from makeway.show.prediction import ideal_bars, room_section, share_text, time_bar, timeline_section
from makeway.show.provenance import provenance
from makeway.values.control import Control, control_word, describe
from makeway.values.plan import Forecast, MadeFor, Plan, Search
from makeway.values.support import Support
from makeway.values.timeline import Origin

_MS = 1e6
_NOT_SHOWN = ("workload", "device", "summary", "routes", "notes", "timelines")  # elsewhere, or not data
_NO_CARRIER = "nothing that makeway knows"
_OF_A_ROUTE = ("carrier", "how", "verified", "since", "limits")
_NUMBERS = "predicted by simulation, not measured"
_TIMES = ("t_naive_ms", "t_plan_ms", "t_ideal_ms", "t_sequential_ms", "share_of_ideal_naive", "share_of_ideal_plan")


def report(result: Plan | PlanDifference | NothingToPlan, *, arguments: str = "") -> Report:
    """A plan with its reasons and baselines, two plans side by side, or why there is no plan."""
    match result:
        case Plan():
            return _plan_report(result, arguments)
        case PlanDifference():
            return _difference_report(result, arguments)
        case NothingToPlan():
            return _nothing_report(result, arguments)
        case _:
            assert_never(result)


# --- a plan ------------------------------------------------------------------------------------


def _plan_report(plan: Plan, arguments: str) -> Report:
    search, forecast, made_for = plan.search, plan.predicted, plan.made_for or MadeFor()
    verdict = search.summary[0] if search else f"A plan of {count(len(plan.controls), 'control')}"
    notes = search.notes if search else ()
    tried = _how(search) if search else ()
    return Report(
        result="plan",
        over=f"makeway plan, {made_for.workload or 'a workload'} on {made_for.device or 'a device'}",
        headline=Headline(
            sentence=verdict,
            origin="predicted",
            value=forecast.t_plan_ns / _MS if forecast else None,
            unit="ms" if forecast else None,
        ),
        lead=tuple(Paragraph(text=sentence) for sentence in (search.summary[1:] if search else ())),
        sections=(
            *_sections(plan, search, forecast),
            provenance(arguments, numbers=_NUMBERS, facts=tried, notes=notes),
        ),
        data=_plan_data(plan, made_for),
        notes=notes,
        arguments=arguments,
    )


def _how(search: Search) -> tuple[tuple[str, str], ...]:
    return (
        ("sets of controls searched", f"{search.evaluations:,}"),
        ("predictions that decided", f"{search.judged:,}"),
        ("engine", search.engine),
        ("error of differences", f"{percent(100 * search.error_of_difference, '.1f')}: {search.error_basis}"),
    )


def _sections(plan: Plan, search: Search | None, forecast: Forecast | None) -> Iterator[Section]:
    reasons = zip(plan.controls, plan.reasons, strict=True)
    table = _controls("controls", plan, "What to set, and why", reasons, nothing="Nothing to set.")
    applied = search is not None and plan.controls
    routes = (_routes(plan, search.routes, search.destination),) if search is not None and applied else ()
    rows = _rows(plan, search, forecast) if search is not None and forecast is not None else []
    if forecast is not None and rows:
        yield Section(name="time", title="Time", blocks=(_bars(rows, forecast),), detail=True)
    yield Section(name="plan", title="Plan", blocks=(table, *routes))
    if search is not None and search.baselines and rows:
        yield Section(name="compared", title="Compared with published heuristics", blocks=(_heuristics(rows),))
    yield _rejections(plan)
    if search is not None:
        if search.timelines:
            yield timeline_section(search.timelines)
        if search.workload is not None:
            yield from room_section(search.workload, search.device, plan.controls)


def _rejections(plan: Plan, origin: Origin = "predicted") -> Section:
    rejected = ((item.control, item.reason) for item in plan.rejected)
    table = _controls(
        "rejected",
        plan,
        "What is not in the plan, and why",
        rejected,
        nothing="Nothing was rejected.",
        brief_rows=3,
        origin=origin,
    )
    return Section(name="rejections", title="Rejected", blocks=(table,))


def _controls(
    name: str,
    plan: Plan,
    caption: str,
    reasons: Iterable[tuple[Control, str]],
    *,
    nothing: str,
    brief_rows: int = 8,
    origin: Origin = "predicted",
) -> Table:
    return Table(
        name=name,
        caption=caption,
        columns=(Column("control", "name"), Column("meaning", "wide", brief=False), Column("reason", "wide")),
        rows=tuple(
            (Cell(control_word(control)), Cell(plan.describe(control)), Cell(reason)) for control, reason in reasons
        ),
        origin=origin,
        nothing=nothing,
        filtered=True,
        brief_rows=brief_rows,
    )


def _routes(plan: Plan, routes: tuple[tuple[Support, ...], ...], destination: str | None) -> Notes:
    """What can apply each control; for one destination also how, and what verifies it."""
    applied = zip(plan.controls, routes, strict=True)
    if destination is not None:
        return Notes(sentences=tuple(_route(control, row) for control, rows in applied for row in rows))
    return Notes(
        sentences=tuple(
            f"{control_word(control)} is applied by: {', '.join(row.carrier for row in rows) or _NO_CARRIER}"
            for control, rows in applied
        )
    )


def _route(control: Control, row: Support) -> str:
    conditions = (f"since {row.since}" if row.since else "", f"limits: {row.limits}" if row.limits else "")
    more = "".join(f"; {condition}" for condition in conditions if condition)
    return f"{control_word(control)} by {row.carrier}: {row.how}{more}. Verification: {row.verified}"


_Row = tuple[str, int, float | None, tuple[Control, ...]]
_PLAN = "this plan"


def _rows(plan: Plan, search: Search, forecast: Forecast) -> list[_Row]:
    """Name, time, share of ideal and controls of the plan and of each heuristic, the fastest first."""
    rows = [(_PLAN, forecast.t_plan_ns, forecast.share_of_ideal_plan, plan.controls)]
    rows += [(name, item.t_ns, item.share_of_ideal, item.controls) for name, item in search.baselines.items()]
    return sorted(rows, key=lambda row: (row[1], row[0] != _PLAN))


def _heuristics(rows: list[_Row]) -> Table:
    return Table(
        name="heuristics",
        caption="The plan, and what published heuristics would set",
        columns=(
            Column("heuristic", "name"),
            Column("ms", "number"),
            Column("share of ideal %", "number"),
            Column("controls", "wide"),
        ),
        rows=tuple(
            (Cell(name), number(t_ns, scale=_MS), _share(share), Cell(" ".join(map(control_word, controls)) or "–"))
            for name, t_ns, share, controls in rows
        ),
        origin="predicted",
    )


def _share(share: float | None) -> Cell:
    return number(None if share is None else 100 * share, 0)


def _bars(rows: list[_Row], forecast: Forecast) -> Bars:
    sequential = forecast.t_sequential_ns
    bars = [] if sequential is None else [time_bar("sequential", sequential, "memory")]
    bars += [
        time_bar(name, t_ns, "overlapped" if name == _PLAN else "compute", share_text(share))
        for name, t_ns, share, _ in reversed(rows)
    ]
    return ideal_bars(tuple(bars), forecast.t_ideal_ns)


def _plan_data(plan: Plan, made_for: MadeFor) -> dict[str, Any]:
    search = plan.search
    searched = record(search, without=_NOT_SHOWN) if search else {}
    routes = search.routes if search else ((),) * len(plan.controls)
    return {
        "workload": made_for.workload,
        "device": made_for.device,
        "origin": "predicted",
        "controls": _control_data(plan, routes),
        **(record(plan.predicted) if plan.predicted else {}),
        "rejected": plain(plan.rejected),
        "reasons": [*(search.summary if search else ()), *plan.reasons],
        **searched,
    }


def _control_data(plan: Plan, routes: tuple[tuple[Support, ...], ...]) -> list[dict[str, Any]]:
    return [
        {
            "control": control_word(control),
            "words": plan.describe(control),
            "reason": reason,
            "carriers": [row.carrier for row in rows],
            "routes": [{key: getattr(row, key) for key in _OF_A_ROUTE} for row in rows],
        }
        for control, reason, rows in zip(plan.controls, plan.reasons, routes, strict=True)
    ]


# --- recordings without a plan -----------------------------------------------------------------


def _nothing_report(nothing: NothingToPlan, arguments: str) -> Report:
    sentence = f"No control can be chosen: {nothing.reason}"
    return Report(
        result="plan",
        over=f"makeway plan, a recording on {nothing.device}",
        headline=Headline(sentence=sentence, origin="imported"),
        sections=(provenance(arguments, numbers=_NUMBERS, notes=nothing.notes),),
        data={
            "device": nothing.device,
            "leave_as_is": True,
            "baselines": {},
            **dict.fromkeys(_TIMES),
            "controls": [],
            "rejected": [],
            "reasons": [sentence],
        },
        notes=nothing.notes,
        arguments=arguments,
    )


# --- two plans ---------------------------------------------------------------------------------


def _difference_report(difference: PlanDifference, arguments: str) -> Report:
    a_ns, b_ns = difference.t_a_ns, difference.t_b_ns
    headline = Headline(
        sentence="The cost of the change is not known: give the workload and --device", origin="predicted"
    )
    times: tuple[Section, ...] = ()
    if a_ns is not None and b_ns is not None:
        change = percent(100 * (b_ns / a_ns - 1), "+.1f")
        sentence = f"{time_text(a_ns)} with A, {time_text(b_ns)} with B: {change}"
        headline = Headline(sentence=sentence, origin="predicted", value=b_ns / _MS, unit="ms")
        bars = (time_bar("plan A", a_ns, "compute"), time_bar("plan B", b_ns, "overlapped"))
        chart = Bars(name="times", caption="Times", bars=bars, origin="predicted")
        times = (Section(name="time", title="Time", blocks=(chart,), detail=True),)
    changes = [
        (sign, control)
        for sign, controls in (("-", difference.removed), ("+", difference.added))
        for control in controls
    ]
    table = Table(
        name="changes",
        caption="From plan A (-) to plan B (+)",
        columns=(Column(""), Column("control", "name"), Column("meaning", "wide")),
        rows=tuple((Cell(sign), Cell(control_word(control)), Cell(describe(control))) for sign, control in changes),
        nothing="Both plans have the same controls.",
    )
    return Report(
        result="plan-difference",
        over="makeway plan --compare",
        headline=headline,
        sections=(
            Section(name="difference", title="Difference", blocks=(table,)),
            *times,
            provenance(arguments, numbers=_NUMBERS),
        ),
        data=record(difference) | {"origin": "predicted"},
        arguments=arguments,
    )
