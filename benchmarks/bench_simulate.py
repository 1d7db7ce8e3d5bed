"""How fast the engines are: a 4,096-block GEMM with a 24-block collective on an H100, and a sweep of 1,000 points.

Goals, one core: class engine at most 1 ms, per-block engine at most 100 ms, the sweep under 5 s. Beside them the same
case in simpy, which knows no shared bandwidth and no priorities: fixed times, one process per block.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import simpy
from timing import interleaved, line

from makeway import load_device, load_footprint, parse_resources
from makeway.model.residency import need
from makeway.model.simulate.driver import run
from makeway.model.simulate.predict import Settings, simulate
from makeway.model.simulate.program import EngineOp, Program, Site
from makeway.values.control import CommBlocks, CommPriority, SmemPad
from makeway.values.workload import Gemm, WorkloadBuilder

SMS, GEMM_BLOCKS, COMM_BLOCKS, RESIDENT = 132, 4096, 24, 2
WORK_NS = 100e3


def program() -> Program:
    device = load_device("H100-SXM5-80GB")
    comm = load_footprint("nccl-2.32.3/ring-simple", device.arch).block
    assert comm is not None
    gemm = need(device.sm, parse_resources("threads=256,registers=98,smem=48KiB"))
    return Program(
        sm=device.sm,
        sites=(Site(part=None, gpc=0, sms=SMS),),
        ranks=1,
        hbm_per_ns=3350.0,
        ops=(
            EngineOp(
                name="gemm", kind="kernel", block=gemm, blocks=GEMM_BLOCKS, work_ns=WORK_NS, share=0.6, hbm_per_ns=20.0
            ),
            EngineOp(
                name="all-reduce",
                kind="collective",
                stream="comm",
                launch_ns=50e3,
                priority=1,
                block=need(device.sm, replace(comm, cluster=1)),
                blocks=COMM_BLOCKS,
                work_ns=2e6,
                share=0.0,
                hbm_per_ns=900.0,
                group="all-reduce",
            ),
        ),
    )


def in_simpy() -> float:
    """The GEMM's blocks on two slots per SM, fixed times; the collective takes both slots of its SMs."""
    env = simpy.Environment()
    slots = simpy.PriorityResource(env, capacity=SMS * RESIDENT)

    def block(env: simpy.Environment, time_ns: float, slots: simpy.PriorityResource, priority: int):  # type: ignore[no-untyped-def]
        with slots.request(priority=priority) as request:
            yield request
            yield env.timeout(time_ns)

    for _ in range(GEMM_BLOCKS):
        env.process(block(env, WORK_NS * RESIDENT, slots, 1))
    for _ in range(COMM_BLOCKS * RESIDENT):
        env.process(block(env, 2e6, slots, 0))
    env.run()
    return float(env.now)


def sweep_seconds(points: int) -> float:
    device = load_device("A100-SXM4-80GB")
    builder = WorkloadBuilder("gemm and all-reduce", ranks=8)
    builder.kernel("gemm", parse_resources("threads=256,registers=98,smem=48KiB"), Gemm(m=8192, n=8192, k=8192))
    builder.collective("reduce", "all-reduce", 2**28, "nccl-2.27.5/ring-simple")
    workload, started = builder.done(), time.perf_counter()
    for index in range(points):
        controls = (CommPriority(), CommBlocks(1 + index % 32), SmemPad(1 + 512 * (index // 32)))
        simulate(workload, device, controls, Settings(engine="class"))
    return time.perf_counter() - started


def main() -> None:
    plain = program()
    spread = replace(plain, jitter=0.05)
    quick = interleaved({"class engine": lambda: run(plain, engine="class")}, rounds=300)
    slow = interleaved(
        {
            "per-block engine, equal block times": lambda: run(plain, engine="block"),
            "per-block engine, 5 % jitter": lambda: run(spread, engine="block"),
            "simpy, fixed times": in_simpy,
        },
        rounds=15,
    )
    print(f"{GEMM_BLOCKS:,} GEMM blocks and {COMM_BLOCKS} collective blocks on {SMS} SMs, HBM shared")
    medians = {}
    for name, seconds in (quick | slow).items():
        print(line(name, seconds))
        medians[name] = statistics.median(seconds)
    simpy_s = medians.pop("simpy, fixed times")
    for name, median in medians.items():
        print(f"simpy / {name}: {simpy_s / median:.0f} times")
    runs = sorted(sweep_seconds(1000) for _ in range(3))
    print(
        f"sweep of 1,000 points through simulate(): {runs[1]:.2f} s (of three: {runs[0]:.2f} to {runs[2]:.2f}; "
        "goal: 5 s)"
    )


if __name__ == "__main__":
    main()
