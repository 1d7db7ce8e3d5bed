"""Map where each control helps: device x kernel x collective's block, under policies that vendors do not publish.

Writes docs/control-map.csv (one row per cell) and docs/control-map.svg, and prints counts for docs/control-map.md.
Everything is predicted by the per-block engine; nothing is measured.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from statistics import mean
from typing import Any

from control_map_figure import CONTROLS, WORTH, figure

from makeway.model.residency import blocks_beside, pad_range, resident_blocks, room_beside, shortages
from makeway.model.simulate.compile import compile_program
from makeway.model.simulate.device_numbers import saturation
from makeway.model.simulate.driver import run
from makeway.model.simulate.fitting import Fitting
from makeway.model.simulate.network import collective_cost
from makeway.model.simulate.policies import DISPATCHES, HBM_POLICIES, Dispatch, SharingPolicy
from makeway.model.simulate.predict import vendor_dispatch
from makeway.model.simulate.program import Program
from makeway.model.simulate.run_result import RunResult
from makeway.values.collective import Collective, load_footprint
from makeway.values.control import CommPriority, Control, CopyEngine, LaunchOrder, SmemPad, SmPartition
from makeway.values.device import Device, load_device
from makeway.values.kernel import KernelResources
from makeway.values.workload import BlockWork, CollectiveOp, KernelOp, Workload

DOCS = Path(__file__).parents[1] / "docs"
WORKERS = 2

# --- what is run -------------------------------------------------------------------------------

COMM_BLOCKS = {"A40": 8, "A100-SXM4-80GB": 24, "H100-SXM5-80GB": 24, "B200": 16, "MI250X": 32, "MI300X": 32}
KERNEL_NS = 1e6  # alone, before jitter
ARRIVAL_NS = 50_000.0  # the collective is launched so much later than the kernel
COMM_OVER_KERNEL = 0.8
JITTER = 0.05
RANKS = 8
WAVES, FEWEST_WAVES, MOST_BLOCKS = 12, 6, 4000
PARTITION_STEP = 8  # SMs: the granularity of green contexts on Hopper
ALL_RESIDENCIES = 4  # a kernel with more blocks per SM is padded to a few residencies only
MANY_BLOCKS = 8  # one with more than these is slow to simulate: main footprints and one HBM policy only
MAIN_FOOTPRINTS = ("ring 544", "small 256x128", "RCCL 256")
SOONER_NS = KERNEL_NS / 10  # less is not a sign of more room
AMD_LDS_KIB = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A compute kernel; `hbm` is the part of the device's HBM rate it asks for, None when it asks for all and more."""

    name: str
    block: tuple[int, int, int]  # threads, registers, shared memory in KiB
    share: float
    hbm: float | None
    persistent: bool = False

    def resources(self, device: Device) -> KernelResources:
        threads, registers, kib = self.block
        kib = min(kib, AMD_LDS_KIB) if device.vendor == "amd" else kib
        return KernelResources(threads=threads, registers_per_thread=registers, smem_bytes=kib * 1024)

    def runs_on(self, device: Device) -> bool:
        return not self.name.startswith("Hopper") or self.block[2] * 1024 <= device.sm.smem_block_bytes

    def work(self, device: Device, waves: int | None) -> BlockWork:
        """Whole waves that take KERNEL_NS alone: by their HBM bytes, or by arithmetic beside them."""
        each = resident_blocks(device, self.resources(device))
        wave = each * device.sms
        blocks = wave * (waves or max(FEWEST_WAVES, min(WAVES, MOST_BLOCKS // wave)))
        whole_bytes = (device.hbm_bytes_per_s or 0.0) * KERNEL_NS / 1e9
        if self.hbm is None:
            return BlockWork(blocks=blocks, hbm_bytes_per_block=whole_bytes / blocks)
        busy = each * self.share
        busy = busy / (1 + busy - self.share) if saturation(device) == "soft" else min(1.0, busy)
        return BlockWork(
            blocks=blocks,
            flops_per_block=busy * (device.fp16_flops_per_s or 0.0) * KERNEL_NS / 1e9 / blocks,
            hbm_bytes_per_block=self.hbm * whole_bytes / blocks,
            dtype="fp16",
        )


TRITON, HOPPER = (256, 98, 48), (384, 168, 200)
FAMILIES = (
    Family(name="GEMM 128x128", block=(128, 222, 80), share=0.6, hbm=0.35),
    Family(name="Triton GEMM", block=TRITON, share=0.6, hbm=0.35),
    Family(name="Triton GEMM, persistent", block=TRITON, share=0.6, hbm=0.35, persistent=True),
    Family(name="Hopper GEMM", block=HOPPER, share=1.0, hbm=0.35),
    Family(name="Hopper GEMM, persistent", block=HOPPER, share=1.0, hbm=0.35, persistent=True),
    Family(name="small-tile GEMM", block=(256, 64, 16), share=0.5, hbm=0.8),
    Family(name="attention", block=(128, 255, 64), share=0.6, hbm=0.15),
    Family(name="norm", block=(256, 40, 1), share=0.25, hbm=None),
    Family(name="elementwise 128", block=(128, 32, 0), share=0.125, hbm=None),
    Family(name="elementwise 512", block=(512, 32, 0), share=0.5, hbm=None),
    Family(name="elementwise 1024", block=(1024, 32, 0), share=1.0, hbm=None),
)
MEMORY_BOUND = {family.name for family in FAMILIES if family.hbm is None}
RING = "nccl-2.32.3/ring-simple"


def footprints(device: Device) -> dict[str, str]:
    """Names of the map and what the simulator reads; the library's default first."""
    if device.vendor == "amd":
        return {"RCCL 256": "rccl-5.4.3/generic"}
    known = {"ring 544": RING, "ring 288": f"{RING},threads=288"}
    known["symmetric 512"] = written_out("nccl-2.32.3/symmetric", device)
    known["small 256x128"] = "threads=256,registers=128"
    if device.sm.max_cluster > 1:
        known["ring 544, cluster 1"] = written_out(RING, device)
    if device.name != "B200":
        known["ring 160"] = f"{RING},threads=160"
    if device.name == "H100-SXM5-80GB":
        known["ring 288, cluster 1"] = written_out(f"{RING},threads=288", device)
        known["NCCL 2.27 ring 288, cluster 1"] = written_out("nccl-2.27.5/ring-simple,threads=288", device)
    return known


def written_out(name: str, device: Device) -> str:
    """A footprint as a block of one's own: it starts alone whatever clusters the library uses, at the ring's rates."""
    block = load_footprint(name, device.arch).block
    assert block is not None
    resources = f"threads={block.threads},registers={block.registers_per_thread},smem={block.smem_bytes}"
    return f"{resources},barriers={block.barriers}"


def dispatches(device: Device) -> tuple[Dispatch, Dispatch]:
    """What the vendor's hardware is taken to do, and the other possibility."""
    return vendor_dispatch(device), DISPATCHES["backfill" if device.vendor == "nvidia" else "shader-engines"]


def collective_of(device: Device, time_ns: float) -> Collective:
    """The all-gather that the device's links finish in `time_ns` with the library's own ring."""
    path = "ring-simple" if device.vendor == "nvidia" else "generic"
    cost = collective_cost(device, Collective(kind="all-gather", size_bytes=2**30, ranks=RANKS), path=path)
    wire = cost.rate_bytes_per_s(COMM_BLOCKS[device.name]) * (time_ns - cost.latency_ns) / 1e9
    return Collective(kind="all-gather", size_bytes=round(wire * RANKS / (RANKS - 1)), ranks=RANKS)


# --- simulations, each once --------------------------------------------------------------------


@dataclass
class Runs:
    """Simulations by what decides them: programs that differ only in names and unused space run once."""

    seed: int = 0
    jitter: float = JITTER
    known: dict[object, RunResult] = field(default_factory=dict)
    asked: int = 0

    def result(self, program: Program, dispatch: Dispatch, hbm: SharingPolicy) -> RunResult:
        self.asked += 1
        key = _decisive(program, dispatch, hbm)
        if key not in self.known:
            self.known[key] = run(program, engine="block", dispatch=dispatch, hbm=hbm)
        return self.known[key]


def _decisive(program: Program, dispatch: Dispatch, hbm: SharingPolicy) -> object:
    """All that a run depends on: no dispatch policy where nothing shares SMs, no HBM policy where HBM never binds."""
    ops, sms = program.ops, sum(site.sms for site in program.sites)
    placed = [op.block for op in ops if op.block]
    alone = dispatch.gpcs == 1 and len({op.part for op in ops if op.block}) == len(placed)
    times = [sms if op.kind == "kernel" else 1 for op in ops]
    wishes = (
        (program.hbm_per_ns, sum(op.hbm_per_ns * count for op, count in zip(ops, times, strict=True))),
        (program.l2_per_ns, sum(op.l2_per_ns * count for op, count in zip(ops, times, strict=True))),
    )
    short = any(limit is not None and wish > limit for limit, wish in wishes)
    return (
        tuple(replace(op, name="", group=None, block=None) for op in ops),
        tuple(block.cluster for block in placed),
        program.sites,
        (program.jitter, program.seed),
        (program.hbm_per_ns, program.l2_per_ns, hbm.name) if short else None,
        None if alone else dispatch.name,
        _fits(program),
    )


def _fits(program: Program) -> tuple[int, ...]:
    """How many blocks of each kernel fit beside every mixture of blocks: all that an engine asks of resources."""
    needs = list(dict.fromkeys(op.block for op in program.ops if op.block))
    fitting = Fitting(program.sm, needs)
    mixtures: list[tuple[tuple[int, int], ...]] = [()]
    for kind in range(len(needs)):
        counts = range(1, fitting.capacity(kind, ()) + 1)
        mixtures += [(*held, (kind, count)) for held in mixtures for count in counts]
    return tuple(fitting.capacity(kind, held) for held in mixtures for kind in range(len(needs)))


# --- one cell ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell: what runs where, under which policies."""

    device: Device
    family: Family
    footprint: str
    library: str
    dispatch: Dispatch
    hbm: SharingPolicy
    comm_over_kernel: float = COMM_OVER_KERNEL
    waves: int | None = None  # None: as many as the number of blocks allows

    @property
    def comm_block(self) -> KernelResources:
        block = load_footprint(self.library, self.device.arch).block
        assert block is not None
        return block

    @property
    def kernel(self) -> KernelResources:
        return self.family.resources(self.device)

    @property
    def residency(self) -> int:
        return resident_blocks(self.device, self.kernel)

    @property
    def most_beside(self) -> int:
        """The most compute blocks beside which a block of the collective still fits."""
        counts = range(self.residency + 1)
        return max(count for count in counts if blocks_beside(self.device, self.kernel, count, self.comm_block))

    def workload(self) -> Workload:
        time_ns = KERNEL_NS * self.comm_over_kernel
        kernel = KernelOp(
            name="kernel",
            resources=self.kernel,
            work=self.family.work(self.device, self.waves),
            share=self.family.share,
            persistent=self.family.persistent,
        )
        comm = CollectiveOp(
            name="comm",
            collective=collective_of(self.device, time_ns),
            library=self.library,
            blocks=COMM_BLOCKS[self.device.name],
            time_ns=time_ns,
        )
        return Workload(name=self.family.name, operations=(kernel, comm), ranks=RANKS, host_launch_ns=ARRIVAL_NS)

    def partition(self) -> SmPartition:
        """SMs for all blocks of the collective at once."""
        sms = -(-COMM_BLOCKS[self.device.name] // resident_blocks(self.device, self.comm_block))
        return SmPartition(-(-sms // PARTITION_STEP) * PARTITION_STEP)

    def pads(self) -> dict[int, int]:
        """No pad and the smallest pad of each residency worth trying, with the residency."""
        each = self.residency
        tried = set(range(1, each))
        if each > ALL_RESIDENCIES:
            tried &= {1, 2, each // 2, self.most_beside} - ({2} if each > MANY_BLOCKS else set())
        pads = {blocks: pad_range(self.device, self.kernel, blocks) for blocks in sorted(tried)}
        return {0: each, **{pad.smallest_bytes: blocks for blocks, pad in pads.items() if pad}}


@dataclass(frozen=True, slots=True)
class Timed:
    """Total time, when the collective's first block became resident, and when it ended."""

    t_ns: float
    entered_ns: float
    comm_ended_ns: float

    @property
    def early(self) -> bool:
        return self.entered_ns < ARRIVAL_NS + KERNEL_NS / 4


def timed(case: Case, runs: Runs, *controls: Control, of: Workload | None = None, unlimited: bool = False) -> Timed:
    """The cell under these controls; `unlimited`: as if HBM and L2 were never short."""
    workload = of or case.workload()
    compiled = compile_program(
        workload, case.device, controls, dispatch=case.dispatch, jitter=runs.jitter, seed=runs.seed
    )
    program = replace(compiled.program, hbm_per_ns=None, l2_per_ns=None) if unlimited else compiled.program
    result = runs.result(program, case.dispatch, case.hbm)
    comm = [times for op, times in zip(program.ops, result.times, strict=True) if op.kind != "kernel"]
    return Timed(result.end_ns, *((comm[0].started_ns, comm[0].ended_ns) if comm else (0.0, 0.0)))


Row = dict[str, Any]


def row_of(case: Case, runs: Runs) -> Row:
    """One row of the map."""
    at = partial(timed, case, runs)
    pads = case.pads()
    padded = {pad: at(*([SmemPad(pad)] if pad else [])) for pad in pads}
    first = {pad: at(CommPriority(), *([SmemPad(pad)] if pad else [])) for pad in pads}
    best, best_first = (min(runs, key=lambda pad: runs[pad].t_ns) for runs in (padded, first))
    naive, priority = padded[0], first[0]
    workload = case.workload()
    sequential = at(of=replace(workload, operations=workload.kernels)).t_ns + KERNEL_NS * case.comm_over_kernel
    t_ns: dict[str, float | None] = {
        "pad": padded[best].t_ns,
        "priority": priority.t_ns,
        "priority_pad": first[best_first].t_ns,
        "order": at(LaunchOrder()).t_ns,
        "partition": at(case.partition()).t_ns,
        "copy": None,
    }
    if case.device.copy_engines is not None:  # the copy replaces the library's own ring, whatever this cell's block
        default = replace(case, library=next(iter(footprints(case.device).values())))
        t_ns["copy"] = at(CopyEngine(), of=default.workload()).t_ns
    gains = {name: None if t is None else percent(t, naive.t_ns) for name, t in t_ns.items()}
    row: Row = {
        "device": case.device.name, "kernel": case.family.name, "footprint": case.footprint,
        "dispatch": case.dispatch.name, "hbm": case.hbm.name,
        "blocks_per_sm": pads[0], "comm_fits_beside": case.most_beside,
        "t_sequential_ms": f"{sequential / 1e6:.4f}", "naive": f"{naive.t_ns / sequential:.4f}",
    }  # fmt: skip
    for name in CONTROLS:
        t, gain = t_ns[name], gains[name]
        row[name] = "" if t is None else f"{t / sequential:.4f}"
        row[f"{name}_gain_pct"] = "" if gain is None else gain
    return row | {
        "pad_over_priority_pct": percent(first[best_first].t_ns, priority.t_ns),
        "worst_pad_pct": percent(max(run.t_ns for run in padded.values()), naive.t_ns),
        "pad_bytes": best,
        "priority_pad_bytes": best_first,
        "pad_reason": _pad_reason(case, padded, best, at),
        "priority_reason": _priority_reason(case, naive, priority),
        "priority_pad_reason": _pad_reason(case, first, best_first, partial(at, CommPriority()), goes_first=True),
        "order_reason": _other_reason(gains["order"], "first in queue", "nothing: in already or second wave"),
        "partition_reason": _other_reason(gains["partition"], "own SMs", "nothing: SMs lost to compute"),
        "copy_reason": _other_reason(gains["copy"], "no SM", "nothing: slower copies or HBM"),
    }


def percent(t: float, reference: float) -> float:
    """What is saved against the reference, to a tenth of a percent."""
    return round(100.0 * (reference - t) / reference, 1) + 0.0  # + 0.0: no minus zero


# --- why ---------------------------------------------------------------------------------------


def _other_reason(gain: float | None, if_so: str, if_not: str) -> str:
    return "not known" if gain is None else if_so if gain >= WORTH else if_not


def _priority_reason(case: Case, naive: Timed, priority: Timed) -> str:
    waits = case.dispatch.name in ("strict", "held-queue")  # and nobody takes the room that comes free meanwhile
    if percent(priority.t_ns, naive.t_ns) >= WORTH:
        return "room beside" if case.most_beside >= (1 if waits else max(case.residency - 1, 1)) else "whole drain"
    if naive.early:
        return "nothing: in already"
    if case.family.persistent:
        return "nothing: one wave"
    return "nothing: costs what it frees" if priority.early else _kept_out(case, {0: case.residency}, retired=1)


def _pad_reason(
    case: Case, runs: dict[int, Timed], best: int, again: Callable[..., Timed], *, goes_first: bool = False
) -> str:
    """Why the best pad helps, or why none does; `again` runs the same cell under more controls."""
    without, with_pad, pads = runs[0], runs[best], case.pads()
    waits = not goes_first and not case.family.persistent and case.dispatch.name in ("strict", "held-queue")
    if percent(with_pad.t_ns, without.t_ns) >= WORTH:
        if without.early and _gone_without_limits(again, best, percent(with_pad.t_ns, without.t_ns)):
            return "less contention"
        joined = min(pads[best], case.most_beside)
        if max(without.entered_ns - with_pad.entered_ns, without.comm_ended_ns - with_pad.comm_ended_ns) > SOONER_NS:
            return "room beside" if joined else "whole drain"
        return "shorter waves"
    if without.early:
        return "nothing: priority is enough" if goes_first else "nothing: in already"
    if any(run.early for run in runs.values()):
        return "nothing: costs what it frees"
    if waits:
        return "nothing: queue order"
    return _kept_out(case, pads, retired=1 if goes_first and not case.family.persistent else 0)


def _gone_without_limits(again: Callable[..., Timed], pad: int, gain: float) -> bool:
    """Whether most of the pad's gain is gone when HBM is never short."""
    return percent(again(SmemPad(pad), unlimited=True).t_ns, again(unlimited=True).t_ns) < gain / 2


def _kept_out(case: Case, pads: dict[int, int], *, retired: int) -> str:
    """What keeps a block of the collective off an SM where `retired` compute blocks have ended, under every pad."""
    short: dict[int, list[str]] = {}
    for pad, blocks in pads.items():
        room = room_beside(case.device, case.kernel.padded(pad), max(blocks - retired, 0))
        short[blocks] = [item.resource.value for item in shortages(case.device, room, case.comm_block)]
    if all(short.values()):
        return f"nothing: short of {' and '.join(short[min(short)])}"
    cluster = case.comm_block.cluster
    return f"nothing: cluster of {cluster}" if cluster > 1 else "nothing: costs what it frees"


# --- all cells ---------------------------------------------------------------------------------


def cases(device: Device, family: Family) -> Iterator[Case]:
    """The cells of one kernel on one device, thinned where many blocks make them slow."""
    many = resident_blocks(device, family.resources(device)) > MANY_BLOCKS
    for footprint, library in footprints(device).items():
        main = footprint in MAIN_FOOTPRINTS
        # HBM sharing is varied where the kernel asks HBM for all it has: elsewhere it hardly ever binds.
        rules = [rule for name, rule in HBM_POLICIES.items() if name == "proportional" or (main and not many)]
        for dispatch in dispatches(device) if main or not many else ():
            for hbm in rules if family.hbm is None else rules[:1]:
                yield Case(
                    device=device, family=family, footprint=footprint, library=library, dispatch=dispatch, hbm=hbm
                )


def rows_of(task: tuple[str, str, int]) -> tuple[list[Row], int, int]:
    """The rows of one kernel on one device, and the number of simulations requested and run."""
    name, kernel, seed = task
    device, family, runs = (
        load_device(name),
        next(family for family in FAMILIES if family.name == kernel),
        Runs(seed=seed),
    )
    rows = [row_of(case, runs) for case in cases(device, family)]
    return rows, runs.asked, len(runs.known)


def all_rows(seed: int) -> tuple[list[Row], int, int]:
    """All rows in a stable order, and the number of simulations requested and run."""
    tasks = [
        (name, family.name, seed) for name in COMM_BLOCKS for family in FAMILIES if family.runs_on(load_device(name))
    ]
    slow_first = sorted(tasks, key=lambda task: task[1] not in ("elementwise 128", "norm"))
    done: dict[tuple[str, str, int], tuple[list[Row], int, int]] = {}
    started = time.perf_counter()
    with Pool(WORKERS) as pool:
        for task, result in zip(slow_first, pool.imap(rows_of, slow_first), strict=True):
            done[task] = result
            seconds = time.perf_counter() - started
            print(f"{len(done)}/{len(tasks)} {task[0]}, {task[1]}: {result[2]} runs, {seconds:.0f} s", file=sys.stderr)
    rows = [row for task in tasks for row in done[task][0]]
    return rows, sum(result[1] for result in done.values()), sum(result[2] for result in done.values())


def write_csv(rows: Sequence[Row], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


# --- the counts that the page quotes -----------------------------------------------------------


def print_counts(rows: Sequence[Row]) -> None:
    policy = ("vendor", "dispatch")
    savings = ("pad_gain_pct", "priority_gain_pct", "pad_over_priority_pct")
    marked = [
        row
        | {
            "vendor": row["device"] if row["device"].startswith("MI") else "NVIDIA",
            "bound": "memory" if row["kernel"] in MEMORY_BOUND else "compute",
        }
        for row in rows
    ]
    tiled = [row for row in marked if "persistent" not in row["kernel"]]
    _print_table("kernels of many waves", tiled, policy, savings)
    one_wave = [row for row in marked if "persistent" in row["kernel"]]
    _print_table("persistent kernels", one_wave, policy, [f"{name}_gain_pct" for name in CONTROLS])
    few = [row for row in tiled if row["kernel"] != "elementwise 128"]  # those with all policies and footprints
    main = [row for row in few if row["footprint"] in MAIN_FOOTPRINTS]
    _print_table("HBM policies, main footprints", main, (*policy, "bound", "hbm"), savings[1:])
    plain = [row for row in few if row["hbm"] == "proportional"]
    _print_table("footprints, t / t_sequential", plain, ("device", "dispatch", "footprint"), ("naive", *CONTROLS))
    for name in CONTROLS[:3]:
        _print_table(f"{name}: reasons", marked, (*policy, f"{name}_reason"), ())


def _print_table(title: str, rows: Sequence[Row], keys: Sequence[str], columns: Sequence[str]) -> None:
    """For each group of rows: how many, and of each column the mean, the largest and how many reach WORTH."""
    print(f"\n{title}")
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    for group, mine in sorted(groups.items()):
        parts = [f"{', '.join(group):<50} n={len(mine)}"]
        for column in columns:
            values = [float(row[column]) for row in mine if row[column] != ""]
            if not values:  # copies on a device whose engines are not known
                continue
            helped = sum(value >= WORTH for value in values)
            digits = 1 if column.endswith("pct") else 3
            more = f" (max {max(values):.1f}, {helped} helped)" if digits == 1 else ""
            parts.append(f"{column.removesuffix('_gain_pct')} {mean(values):.{digits}f}{more}")
        print("; ".join(parts))


def print_sensitivity(seed: int) -> None:
    """What the assumptions decide, on cells that hinge on them."""
    a100, a40 = load_device("A100-SXM4-80GB"), load_device("A40")
    gemm, norm = FAMILIES[0], next(family for family in FAMILIES if family.name == "norm")
    base = partial(Case, footprint="ring 544", library=RING, hbm=HBM_POLICIES["proportional"])
    strict, backfill = DISPATCHES["strict"], DISPATCHES["backfill"]
    columns = ("naive", "pad", "priority", "priority_pad", "partition", "copy")

    def show(label: str, case: Case, jitter: float = JITTER) -> None:
        row = row_of(case, Runs(seed=seed, jitter=jitter))
        print(f"{label:<44} {case.dispatch.name:<9}", *(f"{name} {float(row[name]):.3f}" for name in columns))

    print("\nsensitivity, t / t_sequential")
    for share in (0.6, 0.75, 0.85, 0.95):
        for policy in (strict, backfill):
            case = base(device=a100, family=replace(gemm, share=share), dispatch=policy)
            show(f"A100 GEMM 128x128, share {share}", case)
    for jitter in (0.0, 0.02, 0.05, 0.10):
        show(f"A100 GEMM 128x128, jitter {jitter}", base(device=a100, family=gemm, dispatch=backfill), jitter)
    for ratio in (0.3, 0.8, 1.2):
        for policy in (strict, backfill):
            case = base(device=a100, family=gemm, dispatch=policy, comm_over_kernel=ratio)
            show(f"A100 GEMM 128x128, comm / kernel {ratio}", case)
    for waves in (3, 6, 12, 24):
        show(f"A40 norm, {waves} waves", base(device=a40, family=norm, dispatch=strict, waves=waves))


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else DOCS
    started = time.perf_counter()
    rows, asked, done = all_rows(seed)
    write_csv(rows, out / "control-map.csv")
    (out / "control-map.svg").write_text(figure(rows))
    print(f"{len(rows)} cells, {asked} simulations requested, {done} run, {time.perf_counter() - started:.0f} s")
    print_counts(rows)
    print_sensitivity(seed)


if __name__ == "__main__":
    main()
