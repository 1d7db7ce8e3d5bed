"""How good and how fast plans are. Prints tables; all times are predicted, nothing is measured on a GPU.

bench_planning.py conccl    ConCCL's 30 scenarios on MI300X: share of ideal of plans and published heuristics
bench_planning.py speed     every preset on three devices: seconds of a plan in a new process, cold and warm
bench_planning.py effort    every preset on three devices: what ten times the effort changes
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import Pool
from statistics import fmean, median

from makeway.decide.planning.heuristics import heuristic_names
from makeway.decide.planning.planner import plan as make_plan
from makeway.model.presets import load_preset, preset_names
from makeway.values.control import control_word
from makeway.values.device import load_device
from makeway.values.plan import Forecast, Plan, Search

WORKERS = 2
CONCCL = tuple(name for name in preset_names() if name.startswith("conccl-"))
DEVICES = ("H100-SXM5-80GB", "A100-SXM4-80GB", "MI300X")
CLOSE = 0.005  # of the plan's time

Cell = tuple[str, str]  # preset, device


def parts(plan: Plan) -> tuple[Forecast, Search]:
    assert plan.predicted is not None
    assert plan.search is not None
    return plan.predicted, plan.search


def set_of(plan: Plan) -> str:
    return " ".join(map(control_word, plan.controls)) or "leave as is"


# --- quality -----------------------------------------------------------------------------------


def conccl_shares(name: str) -> tuple[str, dict[str, float], str]:
    """Share of ideal of the plan, of the fastest set and of each heuristic."""
    device = load_device("MI300X")
    plan = make_plan(load_preset(name, device), device)
    predicted, search = parts(plan)
    shares = {heuristic: baseline.share_of_ideal or 0.0 for heuristic, baseline in search.baselines.items()}
    assert predicted.t_sequential_ns is not None
    gain, most = predicted.t_sequential_ns / search.t_best_ns - 1, predicted.t_sequential_ns / predicted.t_ideal_ns - 1
    return name, shares | {"plan": predicted.share_of_ideal_plan or 0.0, "fastest set": gain / most}, set_of(plan)


def print_conccl() -> None:
    with Pool(WORKERS) as pool:
        rows = pool.map(conccl_shares, CONCCL, chunksize=1)
    print("ConCCL's scenarios on MI300X: average share of ideal, %")
    for name in (*heuristic_names(), "plan", "fastest set"):
        print(f"  {name:<14} {100 * fmean(shares[name] for _, shares, _ in rows):5.1f}")
    for controls in sorted({controls for _, _, controls in rows}):
        print(f"  {sum(row[2] == controls for row in rows):3d} x {controls}")


# --- speed -------------------------------------------------------------------------------------


def seconds(cell: Cell, cache: str) -> float:
    """Processor time of `makeway plan` in a new process."""
    before = os.times()
    subprocess.run(
        [sys.executable, "-m", "makeway", "plan", cell[0], "--device", cell[1], "--json"],
        env=os.environ | {"XDG_CACHE_HOME": cache},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def cells() -> Iterator[Cell]:
    for preset in preset_names():
        if not preset.startswith("conccl-") or preset in CONCCL[::10]:
            yield from ((preset, device) for device in DEVICES)


def print_speed() -> None:
    cold, warm = [], []
    print("seconds of processor time for one plan, cold and warm")
    for cell in cells():
        with tempfile.TemporaryDirectory() as cache:
            cold.append(seconds(cell, cache))
            warm.append(seconds(cell, cache))
        print(f"  {cell[0]:<16} {cell[1]:<15} {cold[-1]:7.2f} {warm[-1]:6.2f}", flush=True)
    print(f"cold: median {median(cold):.2f}, at most {max(cold):.2f}; warm: median {median(warm):.2f}, {max(warm):.2f}")


# --- effort ------------------------------------------------------------------------------------


def print_effort() -> None:
    changed = []
    started = time.perf_counter()
    for preset, name in (grid := list(cells())):
        device = load_device(name)
        workload = load_preset(preset, device)
        normal, wide = (make_plan(workload, device, effort=effort) for effort in (1, 10))
        (mine, search), (other, wider) = parts(normal), parts(wide)
        apart = mine.t_plan_ns / other.t_plan_ns - 1
        if search.leave_as_is != wider.leave_as_is or abs(apart) > CLOSE:
            changed.append((preset, name))
            print(f"  {preset} on {name}: {set_of(normal)}; with ten times the effort {set_of(wide)} ({apart:+.2%})")
    print(f"{len(grid)} cells, {len(changed)} changed; {time.perf_counter() - started:.0f} s")


def main() -> None:
    tables = {"conccl": print_conccl, "speed": print_speed, "effort": print_effort}
    for name in sys.argv[1:] or tables:
        tables[name]()


if __name__ == "__main__":
    main()
