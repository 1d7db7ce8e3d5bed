"""A plan as people hand it over: a Plan, the path of a plan file, or controls."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from makeway.read.plan_file import load_plan
from makeway.values.control import Control, parse_control
from makeway.values.plan import Plan

PlanLike = Plan | Path | str | Iterable[Control | str]


def plan_of(given: PlanLike) -> Plan:
    """The plan itself; a list may name controls as on the command line: "priority", "pad=48KiB"."""
    match given:
        case Plan():
            return given
        case str() | Path():
            return load_plan(Path(given))
        case _:
            return Plan(
                controls=tuple(parse_control(control) if isinstance(control, str) else control for control in given)
            )
