"""What changes from one plan to another, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from makeway.decide.planning.score import judged
from makeway.model.simulate.policies import Dispatch
from makeway.values.control import Control
from makeway.values.device import Device
from makeway.values.plan import Plan
from makeway.values.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDifference:
    """Controls that plan B adds to A and removes from it; predicted times, None where they are not known."""

    SHOWN: ClassVar = ("change_ns",)

    added: tuple[Control, ...]
    removed: tuple[Control, ...]
    kept: tuple[Control, ...]
    t_a_ns: int | None
    t_b_ns: int | None

    @property
    def change_ns(self) -> int | None:
        return None if self.t_a_ns is None or self.t_b_ns is None else self.t_b_ns - self.t_a_ns


def compare_plans(
    a: Plan, b: Plan, workload: Workload | None = None, device: Device | None = None, dispatch: Dispatch | None = None
) -> PlanDifference:
    """Plan B against plan A.

    Times are predicted for the workload on the device. Without them they are those in the plans, if both were made
    for the same.
    """
    times: list[int | None] = [None, None]
    if workload is not None and device is not None:
        times = [round(judged(workload, device, plan.controls, dispatch).t_ns) for plan in (a, b)]
    elif a.made_for is not None and a.made_for == b.made_for:
        times = [plan.predicted.t_plan_ns if plan.predicted else None for plan in (a, b)]
    return PlanDifference(
        added=tuple(control for control in b.controls if control not in a.controls),
        removed=tuple(control for control in a.controls if control not in b.controls),
        kept=tuple(control for control in b.controls if control in a.controls),
        t_a_ns=times[0],
        t_b_ns=times[1],
    )
