"""How good plans are: against published heuristics on published workloads, and against trying everything.

Prints tables; all times are predicted by makeway's own simulator, nothing is measured on a GPU. Plans are made for all
dispatch policies that a device may follow and for each by itself, and judged by the score they were made with and,
where that is quick enough, by the per-block engine.

    bench_planning.py [WORKLOADS]   random workloads for the third table (default 20; 200 takes 10 to 30 minutes)
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import Pool
from statistics import fmean, median

from makeway.decide.planning.candidates import Candidates, candidates
from makeway.decide.planning.heuristics import heuristic_controls, heuristic_names, isolated_times
from makeway.decide.planning.planner import BUDGET_MS
from makeway.decide.planning.planner import plan as make_plan
from makeway.decide.planning.score import Fidelity, Score, Scorer, dispatch_policies
from makeway.decide.planning.search import best
from makeway.decide.planning.thinning import settled
from makeway.model.presets import PresetOptions, load_preset, preset_names
from makeway.model.residency import resident_blocks
from makeway.values.collective import Collective
from makeway.values.control import Control, describe
from makeway.values.device import Device, load_device
from makeway.values.kernel import KernelResources
from makeway.values.plan import Forecast, Plan, Search
from makeway.values.workload import CollectiveOp, KernelOp, Measured, Workload

WORKERS = 2
CONCCL = tuple(name for name in preset_names() if name.startswith("conccl-"))
TILING = ("cb-ar", "cb-a2a", "mb-ar", "mb-a2a")
TILING_DEVICES = ("A40", "A100-SXM4-40GB", "H100-SXM5-80GB", "MI250X")
TILING_GRIDS: tuple[tuple[int, int] | None, ...] = ((32, 32),)  # 1,024 blocks; None, one per tile, takes longer
MOST_BLOCKS = 12_000  # for the per-block engine to be quick enough
NOTHING = 0.05  # percent
POINTS = 2_000
WITHIN = 0.01


def words(controls: tuple[Control, ...]) -> str:
    return ", ".join(map(describe, controls)) or "leave as is"


def parts(plan: Plan) -> tuple[Forecast, Search]:
    assert plan.predicted is not None
    assert plan.search is not None
    return plan.predicted, plan.search


# --- 1. published workloads --------------------------------------------------------------------


def conccl_shares(name: str) -> tuple[str, dict[str, float], dict[str, float], Plan]:
    """Share of ideal of the plan and of each heuristic, with spread block times and with equal ones."""
    device = load_device("MI300X")
    workload = load_preset(name, device)
    plan = make_plan(workload, device)
    predicted, search = parts(plan)
    shares = {heuristic: baseline.share_of_ideal or 0.0 for heuristic, baseline in search.baselines.items()}
    shares["plan"] = predicted.share_of_ideal_plan or 0.0
    scorer = Scorer(workload, device, dispatch_policies(device))
    equal = {heuristic: _share(scorer, baseline.controls) for heuristic, baseline in search.baselines.items()}
    equal["plan"] = _share(scorer, plan.controls)
    return name, shares, equal, plan


def _share(scorer: Scorer, controls: tuple[Control, ...]) -> float:
    return scorer.share_of_ideal(scorer.score(controls).t_ns) or 0.0


def print_conccl(pool: Pool) -> None:  # type: ignore[valid-type]
    rows = pool.map(conccl_shares, CONCCL, chunksize=1)  # type: ignore[attr-defined]
    print("ConCCL's scenarios on MI300X: average share of ideal, %")
    names = (*heuristic_names(), "plan")
    for label, index in (("as judged by the planner", 1), ("class engine, equal block times", 2)):
        means = {name: 100 * fmean(row[index][name] for row in rows) for name in names}
        print(f"  {label:<34}", "  ".join(f"{name} {mean:.1f}" for name, mean in means.items()))
    worse = [row[0] for row in rows if row[1]["plan"] < max(row[1].values()) - 1e-9]
    print(f"  plans below the best heuristic: {', '.join(worse) or 'none'}")
    for kind in sorted({words(row[3].controls) for row in rows}):
        print(f"  {sum(words(row[3].controls) == kind for row in rows):3d} x {kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One workload of arXiv 2606.09200 on one device, planned for one dispatch rule or for all: % saved of naive."""

    device: str
    name: str
    grid: tuple[int, int] | None
    rule: str
    controls: tuple[Control, ...]
    gains: dict[str, tuple[float, float, float]]  # by engine: plan, best found, published setting
    seconds: float


def tiling_cells(task: tuple[str, str, tuple[int, int] | None]) -> list[Cell]:
    name, preset, grid = task
    device = load_device(name)
    workload = load_preset(preset, device, PresetOptions(grid=grid))
    rules = dispatch_policies(device)
    asked = {"all rules": None} if len(rules) == 1 else {"all rules": None, **{rule.name: rule for rule in rules}}
    cells = []
    for label, rule in asked.items():
        started = time.process_time()
        plan = make_plan(workload, device, dispatch=rule)
        seconds = time.process_time() - started
        predicted, search = parts(plan)
        published = search.baselines["cui-pericas"]
        times_ns = (predicted.t_plan_ns, search.t_best_ns, published.t_ns)
        gains = {"the planner's": _saved(predicted.t_naive_ns, *times_ns)}
        if sum(kernel.work.blocks for kernel in workload.kernels) <= MOST_BLOCKS:
            scorer = Scorer(workload, device, dispatch_policies(device, rule), Fidelity(engine="block"))
            sets = ((), plan.controls, search.best_controls, published.controls)
            gains["per-block"] = _saved(*(scorer.score(controls).t_ns for controls in sets))
        cells.append(
            Cell(
                device=device.name, name=preset, grid=grid, rule=label, controls=plan.controls, gains=gains,
                seconds=seconds,
            )
        )  # fmt: skip
    return cells


def _saved(naive: float, *times_ns: float) -> tuple[float, float, float]:
    plan, found, published = (100 * (1 - time_ns / naive) for time_ns in times_ns)
    return plan, found, published


def print_tiling(pool: Pool) -> None:  # type: ignore[valid-type]
    tasks = [(device, preset, grid) for device in TILING_DEVICES for preset in TILING for grid in TILING_GRIDS]
    found = pool.map(tiling_cells, tasks, chunksize=1)  # type: ignore[attr-defined]
    cells = [cell for some in found for cell in some]
    print(
        "\narXiv 2606.09200: % saved against naive: plan (best found) / published setting; * behind the published one"
    )
    for cell in cells:
        said = []
        for engine, (plan, best_found, published) in cell.gains.items():
            more = f" ({best_found:.1f})" if abs(best_found - plan) > NOTHING else ""
            said.append(f"{engine} {plan:.1f}{more}/{published:.1f}{'*' if plan < published - NOTHING else ''}")
        grid = "x".join(map(str, cell.grid)) if cell.grid else "tiles"
        print(
            f"  {cell.device:<15} {cell.name:<7} {grid:<6} {cell.rule:<9} {'; '.join(said)}  [{words(cell.controls)}]"
        )
    for engine in ("the planner's", "per-block"):
        mine = [cell.gains[engine] for cell in cells if engine in cell.gains]
        behind = [published - plan for plan, _, published in mine if plan < published - NOTHING]
        unmet = [published - best_found for _, best_found, published in mine if best_found < published - NOTHING]
        print(
            f"  {engine} engine, {len(mine)} plans: behind the published setting in {len(behind)} (by at most "
            f"{max(behind, default=0):.1f} points), the best found in {len(unmet)} ({max(unmet, default=0):.1f})"
        )
    seconds = [cell.seconds for cell in cells]
    print(f"  planning took {median(seconds):.1f} s of processor time (median), {max(seconds):.1f} at most")


# --- 2. large workloads ------------------------------------------------------------------------


def large_workload(operations: int, seed: int) -> Workload:
    """As from a trace: measured kernels of a dozen shapes, a collective after every seventh."""
    draw = random.Random(seed)
    shapes = [(random_block(draw), draw.choice((50, 108, 500, 2000, 8000))) for _ in range(12)]
    ops: list[KernelOp | CollectiveOp] = []
    for index in range(operations):
        if index % 8 == 7:
            kind = draw.choice(("all-gather", "reduce-scatter"))
            exchange = Collective(kind=kind, size_bytes=draw.randrange(2**20, 2**27), ranks=8)  # type: ignore[arg-type]
            ops.append(
                CollectiveOp(
                    name=f"comm {index}", collective=exchange, library="nccl-2.21.5/ring-simple",
                    after=(ops[-1].name,), time_ns=draw.uniform(1e5, 1e6),
                )
            )  # fmt: skip
        else:
            block, blocks = draw.choice(shapes)
            work = Measured(time_ns=draw.uniform(5e3, 5e5), blocks=blocks)
            ops.append(KernelOp(name=f"kernel {index}", resources=block, work=work))
    return Workload(name=f"{operations} operations", operations=tuple(ops), ranks=8)


def random_block(draw: random.Random) -> KernelResources:
    return KernelResources(
        threads=draw.choice((128, 256, 512)),
        registers_per_thread=draw.choice((32, 64, 98, 128)),
        smem_bytes=draw.choice((0, 16, 32, 48)) * 1024,
    )


def print_large() -> None:
    device = load_device("A100-SXM4-80GB")
    print("\nlarge workloads on A100, as from a trace (processor time; goal: 2 s)")
    for operations in (100, 200, 400):
        workload = large_workload(operations, seed=0)
        started = time.process_time()
        plan = make_plan(workload, device)
        seconds = time.process_time() - started
        print(
            f"  {operations} operations: {seconds:.2f} s, {parts(plan)[1].evaluations} scores, {words(plan.controls)}"
        )


# --- 3. the fast search against all points -----------------------------------------------------


def random_workload(seed: int) -> tuple[Workload, Device]:
    """One or two kernels of a few waves on one or two streams, and one or two collectives."""
    draw = random.Random(seed)
    device = load_device(draw.choice(("A40", "A100-SXM4-80GB", "H100-SXM5-80GB", "MI250X", "MI300X")))
    library = "rccl-5.4.3/generic" if device.vendor == "amd" else "nccl-2.32.3/ring-simple"
    ops: list[KernelOp | CollectiveOp] = []
    for index in range(draw.randint(1, 2)):
        block = random_block(draw)
        wave = resident_blocks(device, block) * device.sms
        ops.append(
            KernelOp(
                name=f"kernel {index}",
                resources=block,
                work=Measured(
                    time_ns=draw.uniform(3e5, 2e6),
                    blocks=max(1, round(wave * draw.choice((0.5, 1.0, 2.5, 5.0)))),
                    hbm_bytes=draw.choice((0.0, 0.3, 0.9)) * 1e9,
                ),
                stream=f"compute{draw.randrange(2)}",
                persistent=draw.random() < 0.15,
            )
        )
    for index in range(draw.randint(1, 2)):
        kind = draw.choice(("all-gather", "all-reduce", "all-to-all"))
        exchange = Collective(kind=kind, size_bytes=draw.randrange(2**22, 2**28), ranks=8)  # type: ignore[arg-type]
        after = (ops[0].name,) if draw.random() < 0.4 else ()
        path = library if kind != "all-to-all" or device.vendor == "amd" else "nccl-2.32.3/sendrecv"
        comm = CollectiveOp(name=f"comm {index}", collective=exchange, library=path, after=after)
        ops.append(replace(comm, time_ns=draw.uniform(2e5, 2e6)))
    return Workload(name=f"random {seed}", operations=tuple(ops), ranks=8), device


def trimmed(offered: Candidates, points: int) -> Candidates:
    """The candidates with as many values dropped, from the longest axis, as leave at most so many points."""
    axes = [list(axis) for axis in offered.axes]
    while (found := replace(offered, axes=tuple(tuple(axis) for axis in axes if axis))).points > points:
        longest = max(axes, key=len)
        del longest[len(longest) // 2]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The fast search beside all points."""

    points: int
    tried: int
    worse: float  # than the best of all, as a part of its time
    gain: float  # of the best of all against naive


def agreement(seed: int, points: int = POINTS) -> Agreement:
    workload, device = random_workload(seed)
    offered = trimmed(candidates(workload, device), points)
    scorer = Scorer(settled(workload, device), device, dispatch_policies(device))
    isolated = isolated_times(workload, device)
    seeds = tuple(heuristic_controls(name, workload, device, isolated=isolated) for name in heuristic_names())
    kinds = {type(axis[0]): axis for axis in offered.axes}
    known = tuple(tuple(c for c in controls if c in kinds.get(type(c), ())) for controls in seeds)
    found = best(scorer, offered, seeds=known, budget_ms=min(BUDGET_MS, offered.points / 4))
    naive, least = scorer.score(()).t_ns, found.best.t_ns
    tried = found.evaluations
    for controls in all_points(offered):
        if isinstance(score := scorer.attempt(controls), Score):
            least = min(least, score.t_ns)
    return Agreement(points=offered.points, tried=tried, worse=found.best.t_ns / least - 1, gain=1 - least / naive)


def all_points(offered: Candidates) -> Iterator[tuple[Control, ...]]:
    for values in product(*((None, *axis) for axis in offered.axes)):
        yield offered.point([value for value in values if value is not None])


def print_agreement(pool: Pool, workloads: int) -> None:  # type: ignore[valid-type]
    started = time.perf_counter()
    found = pool.map(agreement, range(workloads), chunksize=1)  # type: ignore[attr-defined]
    close = sum(one.worse <= WITHIN for one in found)
    print(
        f"\nfast search against all of up to {POINTS:,} points, {workloads} random workloads: within 1 % in {close} "
        f"({100 * close / workloads:.1f} %; goal 95 %), worst {100 * max(one.worse for one in found):.1f} %"
    )
    print(
        f"  median {median(one.points for one in found):,.0f} points, {median(one.tried for one in found):.0f} scored "
        f"by the fast search; best gain {100 * median(one.gain for one in found):.0f} % (median); "
        f"{time.perf_counter() - started:.0f} s"
    )


def main() -> None:
    workloads = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with Pool(WORKERS) as pool:
        print_conccl(pool)
        print_tiling(pool)
        print_large()
        print_agreement(pool, workloads)


if __name__ == "__main__":
    main()
