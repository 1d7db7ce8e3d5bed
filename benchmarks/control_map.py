"""The map of where each control helps: device x kernel x collective's block, under what hardware does not tell.

Writes docs/control-map.csv (one row per cell) and docs/control-map.svg, prints the counts that docs/control-map.md
quotes. Everything is predicted by the per-block engine; nothing is measured.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from multiprocessing import Pool
from pathlib import Path
from statistics import mean
from typing import Any

from makeway.collective import Collective, load_footprint
from makeway.control import CommPriority, Control, CopyEngine, LaunchOrder, SmemPad, SmPartition
from makeway.device import Device, load_device
from makeway.errors import UnsupportedError
from makeway.kernel import KernelResources
from makeway.residency import blocks_beside, pad_range, resident_blocks, room_beside, shortages
from makeway.simulate.compile import compile_program, saturation
from makeway.simulate.driver import RunResult, run
from makeway.simulate.fitting import Fitting
from makeway.simulate.network import collective_cost
from makeway.simulate.policies import DISPATCHES, HBM_RULES, Dispatch, HbmRule
from makeway.simulate.predict import vendor_dispatch
from makeway.simulate.program import Program
from makeway.workload import BlockWork, CollectiveOp, KernelOp, Workload

DOCS = Path(__file__).parents[1] / "docs"
WORKERS = 2

# --- what is run -------------------------------------------------------------------------------

DEVICES = {"A40": 8, "A100-SXM4-80GB": 24, "H100-SXM5-80GB": 24, "B200": 16, "MI250X": 32, "MI300X": 32}  # comm blocks
KERNEL_NS = 1e6  # alone, before jitter
ARRIVAL_NS = 50_000.0  # the collective is launched so much later than the kernel
COMM_OVER_KERNEL = 0.8
JITTER = 0.05
RANKS = 8
WAVES, FEWEST_WAVES, MOST_BLOCKS = 12, 6, 4000
PARTITION_STEP = 8  # SMs: the granularity of green contexts on Hopper
MANY_BLOCKS = 8  # kernels with more blocks per SM are slow to simulate: fewer pads, footprints and HBM rules
MAIN_FOOTPRINTS = ("ring 544", "small 256x128", "RCCL 256")
WORTH = 1.0  # percent: less is noise of the block times
AMD_LDS_KIB = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A compute kernel; `hbm` is the part of the device's HBM rate it asks for, None when it asks for all and more."""

    name: str
    threads: int
    registers: int
    smem_kib: int
    share: float
    hbm: float | None
    persistent: bool = False

    def resources(self, device: Device) -> KernelResources:
        kib = min(self.smem_kib, AMD_LDS_KIB) if device.vendor == "amd" else self.smem_kib
        return KernelResources(threads=self.threads, registers_per_thread=self.registers, smem_bytes=kib * 1024)

    def fits(self, device: Device) -> bool:
        hopper = self.name.startswith("Hopper")
        return self.smem_kib * 1024 <= device.sm.smem_block_bytes if hopper else True

    def work(self, device: Device) -> BlockWork:
        """Whole waves that take KERNEL_NS alone: by their HBM bytes, or by arithmetic beside them."""
        each = resident_blocks(device, self.resources(device))
        wave = each * device.sms
        blocks = wave * max(FEWEST_WAVES, min(WAVES, MOST_BLOCKS // wave))
        assert device.hbm_bytes_per_s and device.fp16_flops_per_s
        whole_bytes = device.hbm_bytes_per_s * KERNEL_NS / 1e9
        if self.hbm is None:
            return BlockWork(blocks=blocks, hbm_bytes_per_block=whole_bytes / blocks)
        busy = each * self.share
        busy = busy / (1 + busy - self.share) if saturation(device) == "soft" else min(1.0, busy)
        return BlockWork(
            blocks=blocks,
            flops_per_block=busy * device.fp16_flops_per_s * KERNEL_NS / 1e9 / blocks,
            hbm_bytes_per_block=self.hbm * whole_bytes / blocks,
            dtype="fp16",
        )


FAMILIES = (
    Family(name="GEMM 128x128", threads=128, registers=222, smem_kib=80, share=0.6, hbm=0.35),
    Family(name="Triton GEMM", threads=256, registers=98, smem_kib=48, share=0.6, hbm=0.35),
    Family(name="Triton GEMM, persistent", threads=256, registers=98, smem_kib=48, share=0.6, hbm=0.35, persistent=True),
    Family(name="Hopper GEMM", threads=384, registers=168, smem_kib=200, share=1.0, hbm=0.35),
    Family(name="Hopper GEMM, persistent", threads=384, registers=168, smem_kib=200, share=1.0, hbm=0.35, persistent=True),
    Family(name="small-tile GEMM", threads=256, registers=64, smem_kib=16, share=0.5, hbm=0.8),
    Family(name="attention", threads=128, registers=255, smem_kib=64, share=0.6, hbm=0.15),
    Family(name="norm", threads=256, registers=40, smem_kib=1, share=0.25, hbm=None),
    Family(name="elementwise 128", threads=128, registers=32, smem_kib=0, share=0.125, hbm=None),
    Family(name="elementwise 512", threads=512, registers=32, smem_kib=0, share=0.5, hbm=None),
    Family(name="elementwise 1024", threads=1024, registers=32, smem_kib=0, share=1.0, hbm=None),
)  # fmt: skip

RING = "nccl-2.32.3/ring-simple"
RCCL = "rccl-5.4.3/generic"


def footprints(device: Device) -> dict[str, str]:
    """Names of the map and what the simulator reads; blocks without rates of their own are written out."""
    if device.vendor == "amd":
        return {"RCCL 256": RCCL}
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
    """A footprint as a block of one's own, which starts alone whatever clusters the library uses."""
    block = load_footprint(name, device.arch).block
    assert block is not None
    return (
        f"threads={block.threads},registers={block.registers_per_thread},smem={block.smem_bytes},"
        f"barriers={block.barriers}"
    )


def dispatches(device: Device) -> tuple[Dispatch, Dispatch]:
    """What the vendor's hardware is taken to do, and the other possibility."""
    return vendor_dispatch(device), DISPATCHES["backfill" if device.vendor == "nvidia" else "shader-engines"]


def collective_of(device: Device, time_ns: float) -> Collective:
    """The all-gather that the device's links finish in `time_ns` with the library's own ring."""
    blocks, path = DEVICES[device.name], "ring-simple" if device.vendor == "nvidia" else "generic"
    cost = collective_cost(device, Collective(kind="all-gather", size_bytes=2**30, ranks=RANKS), path=path)
    wire = cost.rate_bytes_per_s(blocks) * (time_ns - cost.latency_ns) / 1e9
    return Collective(kind="all-gather", size_bytes=round(wire * RANKS / (RANKS - 1)), ranks=RANKS)


# --- one cell ----------------------------------------------------------------------------------


@dataclass
class Runs:
    """Simulations by what decides them: programs that differ only in names and unused room are run once."""

    seed: int = 0
    jitter: float = JITTER
    known: dict[object, RunResult] = field(default_factory=dict)
    asked: int = 0

    def result(self, program: Program, dispatch: Dispatch, hbm: HbmRule) -> RunResult:
        self.asked += 1
        key = self._key(program, dispatch, hbm)
        if key not in self.known:
            self.known[key] = run(program, engine="block", dispatch=dispatch, hbm=hbm)
        return self.known[key]

    def _key(self, program: Program, dispatch: Dispatch, hbm: HbmRule) -> object:
        ops = program.ops
        placed = [op for op in ops if op.block]
        alone = dispatch.engines == 1 and len({op.part for op in placed}) == len(placed)
        sms = sum(site.sms for site in program.sites)
        most = sum(op.hbm_per_ns * (sms if op.kind == "kernel" else 1) for op in ops)
        short = program.hbm_per_ns is not None and most > program.hbm_per_ns
        plain = tuple(replace(op, name="", group=None, block=None) for op in ops)
        clusters = tuple(op.block.cluster for op in placed if op.block)
        rules = (None if alone else dispatch.name, hbm.name if short else None)
        return (
            plain,
            clusters,
            program.sites,
            program.hbm_per_ns if short else None,
            program.jitter,
            _fits(program),
            rules,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell: who runs where, under which rules."""

    device: Device
    family: Family
    footprint: str
    library: str
    dispatch: Dispatch
    hbm: HbmRule
    comm_over_kernel: float = COMM_OVER_KERNEL

    @property
    def comm_block(self) -> KernelResources:
        block = load_footprint(self.library, self.device.arch).block
        assert block is not None
        return block

    @property
    def kernel(self) -> KernelResources:
        return self.family.resources(self.device)

    @property
    def most_beside(self) -> int:
        """The most compute blocks beside which a block of the collective still fits, shared memory permitting."""
        each = resident_blocks(self.device, self.kernel)
        return max(n for n in range(each + 1) if blocks_beside(self.device, self.kernel, n, self.comm_block))

    def workload(self) -> Workload:
        time_ns = KERNEL_NS * self.comm_over_kernel
        kernel = KernelOp(
            name="kernel",
            resources=self.kernel,
            work=self.family.work(self.device),
            share=self.family.share,
            persistent=self.family.persistent,
        )
        comm = CollectiveOp(
            name="comm",
            collective=collective_of(self.device, time_ns),
            library=self.library,
            blocks=DEVICES[self.device.name],
            time_ns=time_ns,
        )
        return Workload(name=self.family.name, operations=(kernel, comm), ranks=RANKS, host_launch_ns=ARRIVAL_NS)

    def partition(self) -> SmPartition:
        each = resident_blocks(self.device, self.comm_block)
        sms = -(-DEVICES[self.device.name] // each)
        return SmPartition(-(-sms // PARTITION_STEP) * PARTITION_STEP)

    def pads(self) -> dict[int, int]:
        """The smallest pad of each residency worth trying, by residency."""
        each = resident_blocks(self.device, self.kernel)
        tried = set(range(1, each))
        if each > MANY_BLOCKS:
            tried &= {1, 4, self.most_beside}
        found = {blocks: pad_range(self.device, self.kernel, blocks) for blocks in sorted(tried)}
        return {blocks: pad.smallest_bytes for blocks, pad in found.items() if pad}


Row = dict[str, Any]
CONTROLS = ("pad", "priority", "priority_pad", "order", "partition", "copy")


def row_of(case: Case, runs: Runs) -> Row:
    """One row of the map."""
    workload, device = case.workload(), case.device

    def timed(*controls: Control, unlimited: bool = False) -> tuple[float, float]:
        """Total time, and when the collective's first block became resident."""
        compiled = compile_program(
            workload, device, controls, dispatch=case.dispatch, jitter=runs.jitter, seed=runs.seed
        )
        program = replace(compiled.program, hbm_per_ns=None) if unlimited else compiled.program
        result = runs.result(program, case.dispatch, case.hbm)
        comm = next(index for index, op in enumerate(program.ops) if op.kind != "kernel")
        return result.end_ns, result.times[comm].started_ns

    pads = {0: (0, ()), **{pad: (blocks, (SmemPad(pad),)) for blocks, pad in case.pads().items()}}
    alone = replace(workload, operations=workload.kernels)
    program = compile_program(alone, device, (), dispatch=case.dispatch, jitter=runs.jitter, seed=runs.seed).program
    sequential = runs.result(program, case.dispatch, case.hbm).end_ns + KERNEL_NS * case.comm_over_kernel
    padded = {pad: timed(*control)[0] for pad, (_, control) in pads.items()}
    first = {pad: timed(CommPriority(), *control) for pad, (_, control) in pads.items()}
    naive, priority, entered = padded[0], first[0][0], first[0][1]
    best, best_first = min(padded, key=lambda pad: padded[pad]), min(first, key=lambda pad: first[pad][0])
    times: dict[str, float | None] = {
        "pad": padded[best],
        "priority": priority,
        "priority_pad": first[best_first][0],
        "order": timed(LaunchOrder())[0],
        "partition": timed(case.partition())[0],
    }
    try:
        times["copy"] = timed(CopyEngine())[0]
    except UnsupportedError:
        times["copy"] = None

    def contention(pad: int, *also: Control) -> bool:
        """Whether the pad's gain is gone once HBM is never short."""
        without, with_pad = timed(*also, unlimited=True)[0], timed(*also, SmemPad(pad), unlimited=True)[0]
        return percent(with_pad, without) < WORTH / 2

    gains = {name: percent(t, naive) for name, t in times.items() if t is not None}
    extra = percent(first[best_first][0], priority)
    reasons = {
        "pad": _pad_reason(case, gains["pad"], pads[best][0], lambda: contention(best), entered=None),
        "priority": _priority_reason(case, gains["priority"]),
        "priority_pad": _pad_reason(
            case, extra, pads[best_first][0], lambda: contention(best_first, CommPriority()), entered=entered
        ),
        "order": "first in queue" if gains["order"] >= WORTH else _no_wave(case, "nothing"),
        "partition": "own SMs" if gains["partition"] >= WORTH else "nothing: SMs lost to compute",
        "copy": "not known" if times["copy"] is None else "no SM" if gains["copy"] >= WORTH else "nothing: HBM",
    }
    result: Row = {
        "device": device.name, "kernel": case.family.name, "footprint": case.footprint,
        "dispatch": case.dispatch.name, "hbm": case.hbm.name,
        "blocks_per_sm": resident_blocks(device, case.kernel), "comm_fits_beside": case.most_beside,
        "t_sequential_ms": f"{sequential / 1e6:.4f}", "naive": f"{naive / sequential:.4f}",
    }  # fmt: skip
    for name in CONTROLS:
        t = times[name]
        result[name] = "" if t is None else f"{t / sequential:.4f}"
        result[f"{name}_gain_pct"] = "" if t is None else f"{gains[name]:.1f}"
    return result | {
        "pad_over_priority_pct": f"{extra:.1f}",
        "worst_pad_pct": f"{percent(max(padded.values()), naive):.1f}",
        "pad_bytes": best,
        "priority_pad_bytes": best_first,
        **{f"{name}_reason": reasons[name] for name in CONTROLS},
    }


def percent(t: float, reference: float) -> float:
    return 100.0 * (reference - t) / reference


# --- why ---------------------------------------------------------------------------------------


def _no_wave(case: Case, otherwise: str) -> str:
    return "nothing: one wave" if case.family.persistent else otherwise


def _priority_reason(case: Case, gain: float) -> str:
    each = resident_blocks(case.device, case.kernel)
    waits_for_room = case.dispatch.name in ("strict", "held-queue")
    enters_beside = case.most_beside if waits_for_room else case.most_beside if case.most_beside >= each - 1 else 0
    if gain >= WORTH:
        return "room beside" if enters_beside else "whole drain"
    if case.family.persistent:
        return "nothing: one wave"
    if waits_for_room:
        return "nothing"
    short = _short(case, each - 1)
    return f"nothing: starved, short of {short}" if short else _cluster(case, "nothing")


def _pad_reason(case: Case, gain: float, blocks: int, contention: Callable[[], bool], *, entered: float | None) -> str:
    """Why a pad helps on top of what it is compared with; `entered` is when priority alone let the collective in."""
    if gain >= WORTH:
        if contention():
            return "less contention"
        return "room beside" if min(blocks, case.most_beside) else "whole drain"
    if case.family.persistent:
        return "nothing: one wave"
    if entered is not None and entered < ARRIVAL_NS + KERNEL_NS / 4:
        return "nothing: priority is enough"
    if entered is None and case.dispatch.name == "strict":
        return "nothing: queue order"
    if not case.pads():
        return "nothing: one block per SM"
    short = _short(case, 1)
    return f"nothing: short of {short}" if short else _cluster(case, "nothing: costs what it frees")


def _cluster(case: Case, otherwise: str) -> str:
    cluster = case.comm_block.cluster
    return f"nothing: cluster of {cluster}" if cluster > 1 else otherwise


def _short(case: Case, held: int) -> str:
    room = room_beside(case.device, case.kernel, held)
    return " and ".join(item.resource.value for item in shortages(case.device, room, case.comm_block))


# --- all cells ---------------------------------------------------------------------------------


def cases(device: Device, family: Family) -> Iterator[Case]:
    """The cells of one kernel on one device, thinned where many blocks make them slow."""
    many = resident_blocks(device, family.resources(device)) > MANY_BLOCKS
    for footprint, library in footprints(device).items():
        if many and footprint not in MAIN_FOOTPRINTS:
            continue
        for dispatch in dispatches(device):
            for hbm in HBM_RULES.values():
                # HBM sharing is varied where the kernel asks HBM for all it has: elsewhere it hardly ever binds.
                if hbm.name == "proportional" or (family.hbm is None and not many and footprint in MAIN_FOOTPRINTS):
                    yield Case(
                        device=device, family=family, footprint=footprint, library=library, dispatch=dispatch, hbm=hbm
                    )


def rows_of(task: tuple[str, str, int]) -> tuple[list[Row], int, int]:
    """The rows of one kernel on one device, and how many simulations were asked for and run."""
    name, kernel, seed = task
    device, family, runs = load_device(name), next(one for one in FAMILIES if one.name == kernel), Runs(seed=seed)
    rows = [row_of(case, runs) for case in cases(device, family)]
    return rows, runs.asked, len(runs.known)


def all_rows(seed: int) -> tuple[list[Row], int, int]:
    """All rows in a stable order."""
    tasks = [(name, family.name, seed) for name in DEVICES for family in FAMILIES if family.fits(load_device(name))]
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


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else DOCS
    started = time.perf_counter()
    rows, asked, done = all_rows(seed)
    write_csv(rows, out / "control-map.csv")
    print(f"{len(rows)} cells, {asked} simulations asked for, {done} run, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
