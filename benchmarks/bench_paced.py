"""A small transformer under DistributedDataParallel over paced links: plain, tuned, and tuned with compression.

    python benchmarks/bench_paced.py [--quick] [--rounds N] [--links 200mbit,1gbit]

Columns, in ms per round of training steps: `plain` is torchrun's default. `tuned` is the best single control that
keeps results, `+ lossless` the best set of up to two of them, `+ compression` the best lossy one. Each is picked in
every other round and timed in the rounds between, so that the luck of the pick does not count. `reachable` is the least
that overlap can take without compression: the longer part, or the processor time of compute and communication over all
cores. A share above 100 % is possible with compression, which moves fewer bytes.

Goal: tuned reaches 95 % of `reachable` over every link. Needs a quiet machine, root or user namespaces, and iproute2.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

from makeway.act.measure.bench import cores, run_bench
from makeway.act.measure.job import Job
from makeway.act.measure.link import parse_rate
from makeway.act.measure.outcome import Bench
from makeway.act.measure.statistics import compared
from makeway.act.measure.variants import OVERLAP, SEQUENTIAL, TORCHRUN, Controls, candidate_controls, variant_name
from makeway.values.control import CommPriority, Compress, lossy

RANKS = 2
LINKS = ("200mbit", "1gbit", "2gbit", "8gbit")
GOAL = 0.95
TUNED, LOSSLESS, COMPRESSED = "tuned", "+ lossless", "+ compression"


def control_sets() -> list[Controls]:
    """Every set that is measured."""
    sets = candidate_controls(cores(), shared_memory=False, wide=True, compressible=True)
    return [*sets, *((CommPriority(), Compress(method)) for method in ("bf16", "powersgd", "topk"))]


def column_of(controls: Controls) -> str:
    if any(map(lossy, controls)):
        return COMPRESSED
    return TUNED if len(controls) == 1 else LOSSLESS


def measured(link: str, rounds: int) -> Bench:
    job = Job(
        workload="ddp",
        ranks=RANKS,
        link=parse_rate(link),
        controls=tuple(control_sets()),
        allow_lossy=True,
        plan=False,
        repeats=rounds,
        timeout_s=60,
    )
    return run_bench(job)


def winners(bench: Bench) -> dict[str, str]:
    """The variant of each column, picked in every other round; a default, or a smaller set, may win, too."""
    known = {variant.name for variant in bench.variants if variant.wrong is None}
    best, picked = [name for name in (TORCHRUN, OVERLAP, SEQUENTIAL) if name in known], {}
    for column in (TUNED, LOSSLESS, COMPRESSED):
        names = [variant_name(controls) for controls in control_sets() if column_of(controls) == column]
        best += [name for name in names if name in known]
        picked[column] = min(best, key=lambda name: median(bench.variant(name).times_ns[::2]))
    return picked


def judged(times: Sequence[float]) -> Sequence[float]:
    return times[1::2]


def row(bench: Bench, name: str) -> str:
    """Median and change against plain with its interval, from the rounds that picked nothing."""
    times, plain = judged(bench.variant(name).times_ns), judged(bench.variant(TORCHRUN).times_ns)
    change = compared(times, plain)
    interval = "" if change.low is None or change.high is None else f" [{change.low:+.1%}, {change.high:+.1%}]"
    share = bench.reachable_ns / median(times) if bench.reachable_ns else float("nan")
    return f"{median(times) / 1e6:9.1f} {share:8.1%} of reachable  {change.relative:+7.1%}{interval}  {name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it runs, not to judge")
    parser.add_argument("--rounds", type=int, default=24, help="of every variant over each link (default: 24)")
    parser.add_argument("--links", default=",".join(LINKS), help=f"rates (default: {','.join(LINKS)})")
    options = parser.parse_args()
    rounds = 4 if options.quick else options.rounds
    print(f"ddp, {RANKS} ranks on {cores()} cores, {rounds} rounds, half of them to pick; medians in ms; measured")
    missed = 0
    for link in options.links.split(","):
        bench = measured(link, rounds)
        reachable = bench.reachable_ns or bench.ideal_ns
        print(f"\n{link}: {bench.link}")
        print(
            f"  reachable     {reachable / 1e6:9.1f}   compute alone {bench.compute.median_ns / 1e6:.1f}, comm alone",
            end="",
        )
        print(f" {bench.comm.median_ns / 1e6:.1f}{'; ' + bench.busy if bench.busy else ''}")
        print(f"  {'plain':<13} {row(bench, TORCHRUN)}")
        picked = winners(bench)
        for column, name in picked.items():
            print(f"  {column:<13} {row(bench, name)}", flush=True)
        reached = reachable / median(judged(bench.variant(picked[TUNED]).times_ns))
        missed += reached < GOAL
        print(f"  {'pass' if reached >= GOAL else 'MISS'}: tuned reaches {reached:.1%} of reachable, goal {GOAL:.0%}")
    print(f"\n{missed} of {len(options.links.split(','))} links miss the goal")


if __name__ == "__main__":
    main()
