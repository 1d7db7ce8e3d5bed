"""Compare the planner with the control map, for every device, kernel and block of docs/control-map.csv.

The map tries single controls and priority with a pad, under each dispatch policy by itself. A plan is made for the
vendor's policy, unless one is named, so a control of the map helps when it saves time under that one. A plan agrees
when it holds a control (or pair) of the map that helps, or no control where none helps. Copy engines help nearly
everywhere, so the comparison is repeated without them, under the vendor's policy and under back-fill.

    planner_map.py   about four minutes on two cores
"""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import Pool

from control_map import COMM_BLOCKS, DOCS, FAMILIES, WORKERS, Case, footprints
from control_map_figure import WORTH

from makeway.decide.planning.error import error_of_difference
from makeway.decide.planning.planner import plan as make_plan
from makeway.decide.planning.score import Judge, dispatch_policies
from makeway.model.simulate.policies import DISPATCHES, HBM_POLICIES
from makeway.values.control import CommPriority, Control, CopyEngine, LaunchOrder, SmemPad, SmPartition, describe
from makeway.values.device import load_device

FAR = 0.02  # of the sequential time
KINDS: dict[str, frozenset[type[Control]]] = {
    "pad": frozenset({SmemPad}),
    "priority": frozenset({CommPriority}),
    "priority_pad": frozenset({CommPriority, SmemPad}),
    "order": frozenset({LaunchOrder}),
    "partition": frozenset({SmPartition}),
    "copy": frozenset({CopyEngine}),
}
IN_MAP = frozenset().union(*KINDS.values())

Key = tuple[str, str, str]  # device, kernel, footprint
Row = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a cell is planned."""

    rule: str | None = None  # dispatch policy; None: the vendor's
    copies: bool = True  # whether there are copy engines


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One cell: what the map says, and what the planner chose."""

    key: Key
    helps: dict[str, float]  # control of the map -> part of the sequential time that it saves
    controls: tuple[Control, ...]
    saved: float  # by the plan, judged in the same way by the map's own engine
    error: float  # of the model

    @property
    def agrees(self) -> bool:
        kinds = {type(control) for control in self.controls}
        if not kinds:
            return not self.helps
        return any(KINDS[name] <= kinds for name in self.helps)

    @property
    def near(self) -> bool:
        """Whether the plan saves as much as the map's best control, within the model's error."""
        return self.saved >= max(self.helps.values(), default=0.0) - self.error

    @property
    def why_not(self) -> str:
        if not self.controls:
            most = max(self.helps.values())
            return "gain within the model's error" if most <= self.error else "a help was missed"
        outside = [control for control in self.controls if type(control) not in IN_MAP]
        return "helped by controls that the map did not try" if outside else "other controls than the map's"


def row_of_cell(setting: Setting) -> dict[Key, Row]:
    """The row of each cell under the chosen dispatch policy, with HBM shared in proportion."""
    cells: dict[Key, Row] = {}
    with (DOCS / "control-map.csv").open() as file:
        for row in csv.DictReader(file):
            rules = [rule.name for rule in dispatch_policies(load_device(row["device"]))]
            if row["hbm"] == "proportional" and row["dispatch"] == (setting.rule or rules[0]) in rules:
                cells[row["device"], row["kernel"], row["footprint"]] = row
    return cells


def map_helps(row: Row, setting: Setting) -> dict[str, float]:
    """Controls that save at least 1 %, and the part of the sequential time that they save."""
    naive = float(row["naive"])
    times = {name: float(row[name]) for name in KINDS if row[name] and (setting.copies or name != "copy")}
    return {name: naive - t for name, t in times.items() if 100 * (1 - t / naive) >= WORTH}


def case_of(key: Key) -> Case:
    name, kernel, footprint = key
    device = load_device(name)
    family = next(family for family in FAMILIES if family.name == kernel)
    return Case(
        device=device,
        family=family,
        footprint=footprint,
        library=footprints(device)[footprint],
        dispatch=dispatch_policies(device)[0],
        hbm=HBM_POLICIES["proportional"],
    )


def verdict(task: tuple[Key, Row, Setting]) -> Verdict:
    key, row, setting = task
    case = case_of(key)
    device = case.device if setting.copies else replace(case.device, copy_engines=None)
    rule = None if setting.rule is None else DISPATCHES[setting.rule]
    plan = make_plan(case.workload(), device, dispatch=rule)
    judge = Judge(case.workload(), device, rule)
    naive_ns, plan_ns = (judge.score(controls).t_ns for controls in ((), plan.controls))
    return Verdict(
        key=key,
        helps=map_helps(row, setting),
        controls=plan.controls,
        saved=(naive_ns - plan_ns) / (float(row["t_sequential_ms"]) * 1e6),
        error=error_of_difference(device).value,
    )


def lines(verdicts: list[Verdict]) -> Iterator[str]:
    agree = sum(cell.agrees for cell in verdicts)
    yield f"{len(verdicts)} cells: {agree} agree with the map ({100 * agree / len(verdicts):.1f} %)"
    for device in COMM_BLOCKS:
        mine = [cell for cell in verdicts if cell.key[0] == device]
        picked = Counter(
            "+".join(sorted(type(control).__name__ for control in cell.controls)) or "leave as is" for cell in mine
        )
        kinds = ", ".join(f"{count} {name}" for name, count in picked.most_common())
        if mine:
            yield f"  {device:<15} {sum(cell.agrees for cell in mine)} of {len(mine)}: {kinds}"
    short = [max(cell.helps.values(), default=0.0) - cell.saved for cell in verdicts]
    yield (
        "  block by block the plan saves less than the map's best control, by over 2 % of the sequential time, in "
        f"{sum(gap > FAR for gap in short)} cells (at most {100 * max(short):.1f} %), more in "
        f"{sum(gap < -FAR for gap in short)}"
    )
    missed = [cell for cell in verdicts if not cell.agrees]
    reasons = Counter(cell.why_not for cell in missed).most_common()
    yield f"exceptions: {', '.join(f'{count} {why}' for why, count in reasons) or 'none'}"
    for cell in missed:
        helps = ", ".join(f"{name} {100 * saved:.1f}" for name, saved in cell.helps.items()) or "nothing"
        plan = ", ".join(map(describe, cell.controls)) or "leave as is"
        yield f"  {', '.join(cell.key)}: {cell.why_not}; the map: {helps}; the plan: {plan} ({100 * cell.saved:.1f})"


def main() -> None:
    settings = {
        "the vendor's policy": Setting(),
        "the vendor's policy, no copy engines": Setting(copies=False),
        "back-fill, no copy engines": Setting(rule="backfill", copies=False),
    }
    with Pool(WORKERS) as pool:
        for label, setting in settings.items():
            started = time.perf_counter()
            tasks = [(key, row, setting) for key, row in row_of_cell(setting).items()]
            verdicts = pool.map(verdict, tasks, chunksize=1)
            print(f"== {label} ({time.perf_counter() - started:.0f} s)")
            print("\n".join(lines(verdicts)))


if __name__ == "__main__":
    main()
