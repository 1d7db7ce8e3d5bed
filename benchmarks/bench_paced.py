"""A small transformer under DistributedDataParallel over paced links: plain, tuned, and tuned with compression.

    python benchmarks/bench_paced.py [--rounds N] [--links 200mbit,1gbit] [--only priority,chunks=8] [--keep DIRECTORY]

Columns, in ms per round of training steps: `plain` is torchrun's default. `tuned` is the best of the sets that
`run --tune` tries over a network, `+ lossless` the best of all measured sets that keep results, `+ compression` the
best lossy one. Each is picked in every other round and timed in the rounds between, so that the luck of the pick does
not count. Below, every set in all rounds.

`reachable` is the least that overlap can take without compression (docs/numbers.md, `reachable_ms`), with the limit
that binds. The part of it that is reached is paired by rounds, with the interval of the median. A share above 100 % is
possible with compression, which moves fewer bytes.

`--keep` appends the rounds to files in a directory and judges all that are there: short runs on a quiet machine add up.

Goal: tuned reaches 95 % of `reachable` over every link. Needs a quiet machine, root or user namespaces, and iproute2.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from makeway.act.launch.candidates import candidate_sets
from makeway.act.measure.bench import cores, run_bench, with_variants
from makeway.act.measure.job import Job
from makeway.act.measure.link import parse_rate
from makeway.act.measure.outcome import Bench
from makeway.act.measure.statistics import Comparison
from makeway.act.measure.variants import (
    OVERLAP,
    SEQUENTIAL,
    TORCHRUN,
    Controls,
    candidate_controls,
    parse_variant,
    variant_name,
)
from makeway.act.measure.wire import decode_bench, encode_bench
from makeway.values.control import CommPriority, Compress, CopyEngine, lossy

RANKS = 2
LINKS = ("200mbit", "1gbit", "2gbit", "8gbit")
GOAL = 0.95
TUNED, LOSSLESS, COMPRESSED = "tuned", "+ lossless", "+ compression"
PICKING, JUDGING = slice(0, None, 2), slice(1, None, 2)  # rounds
TIMES = ("compute_ns", "comm_ns", "compute_cpu_ns", "comm_cpu_ns", "ordered_ns", "joint_ns")


def control_sets(only: str | None) -> list[Controls]:
    """Every set that is measured."""
    if only:
        return [parse_variant(word) for word in only.split(",")]
    sets = candidate_controls(cores(), shared_memory=False, wide=True, compressible=True)
    return [
        *dict.fromkeys((*tuned_sets(), *sets)),
        *((CommPriority(), Compress(method)) for method in ("bf16", "powersgd", "topk")),
    ]


def tuned_sets() -> list[Controls]:
    """What `run --tune` tries where ranks share no memory."""
    return [controls for controls in candidate_sets(cores()) if CopyEngine() not in controls]


def column_of(controls: Controls) -> str:
    if any(map(lossy, controls)):
        return COMPRESSED
    return TUNED if controls in tuned_sets() else LOSSLESS


def measured(link: str, rounds: int, sets: list[Controls]) -> Bench:
    """torch's own default, a thread per core in every rank, is left out: it takes several times as long."""
    job = Job(
        workload="ddp",
        ranks=RANKS,
        link=parse_rate(link),
        controls=tuple(sets),
        allow_lossy=True,
        plan=False,
        repeats=rounds,
        warmup=1,
        timeout_s=60,
    )
    job = with_variants(job, RANKS)
    return run_bench(replace(job, variants=tuple(each for each in job.variants if each.name != OVERLAP)))


def joined(pieces: list[Bench]) -> Bench:
    """The rounds of several runs of the same variants as those of one."""
    first = pieces[0]
    variants = tuple(
        replace(each, times_ns=tuple(chain.from_iterable(piece.variant(each.name).times_ns for piece in pieces)))
        for each in first.variants
    )
    times: dict[str, Any] = {
        name: tuple(chain.from_iterable(getattr(piece, name) for piece in pieces)) for name in TIMES
    }
    return replace(first, variants=variants, **times)


def kept(bench: Bench, path: Path) -> Bench:
    """The bench with all rounds in a file, to which its own are added."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(encode_bench(replace(bench, timeline=None))) + "\n")
    return joined([decode_bench(json.loads(line)) for line in path.read_text().splitlines()])


def winners(bench: Bench, sets: list[Controls]) -> dict[str, str]:
    """The variant of each column, picked in every other round; a default, or a smaller set, may win, too."""
    known = {variant.name for variant in bench.variants if variant.wrong is None}
    best, picked = [name for name in (TORCHRUN, SEQUENTIAL) if name in known], {}
    for column in (TUNED, LOSSLESS, COMPRESSED):
        names = [variant_name(controls) for controls in sets if column_of(controls) == column]
        best += [name for name in names if name in known]
        picked[column] = min(best, key=lambda name: median(bench.variant(name).times_ns[PICKING]))
    return picked


def row(bench: Bench, name: str, rounds: slice) -> str:
    """Median, part of reachable and change against plain."""
    times = bench.variant(name).times_ns[rounds]
    change, reached = bench.against(name, TORCHRUN, rounds), bench.reached(name, rounds)
    share = "unknown" if reached is None else interval(reached, "{:.1%}", 1)
    return f"{median(times) / 1e6:9.1f}   {share:<25} of reachable   {interval(change, '{:+.1%}', 0):<26} {name}"


def interval(comparison: Comparison, form: str, whole: int) -> str:
    ends = [end for end in (comparison.low, comparison.high) if end is not None]
    between = f" ({' to '.join(form.format(whole + end) for end in ends)})" if ends else ""
    return form.format(whole + comparison.relative) + between


def lines(link: str, bench: Bench, sets: list[Controls]) -> Iterator[str]:
    picked = winners(bench, sets)
    limits = ", ".join(f"{name} {median(times) / 1e6:.1f}" for name, times in bench.limits_ns.items())
    yield f"\n{link}: {bench.link}; {bench.compute.n} rounds"
    reachable_ns = bench.reachable_ns or bench.ideal_ns
    yield f"  {'reachable':<13} {reachable_ns / 1e6:9.1f}   by {bench.reachable_by} ({limits})"
    if bench.busy:
        yield f"  {bench.busy}"
    yield f"  {'plain':<13} {row(bench, TORCHRUN, JUDGING)}"
    for column, name in picked.items():
        yield f"  {column:<13} {row(bench, name, JUDGING)}"
    reached = bench.reached(picked[TUNED], JUDGING)
    share = 1 + reached.relative if reached else float("nan")
    yield f"  {'pass' if share >= GOAL else 'MISS'}: tuned reaches {share:.1%} of reachable, goal {GOAL:.0%}"
    for limit in ("order", "processors"):  # each by itself allows less time than a step can have
        alone = bench.reached(picked[TUNED], JUDGING, limit=limit) if limit in bench.limits_ns else None
        yield f"  {limit} by itself: {'unknown' if alone is None else interval(alone, '{:.1%}', 1)}"
    for variant in bench.variants:
        yield f"  {'all rounds':<13} {row(bench, variant.name, slice(None))}{' WRONG' if variant.wrong else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24, help="of every variant over each link (default: 24)")
    parser.add_argument("--links", default=",".join(LINKS), help=f"rates (default: {','.join(LINKS)})")
    parser.add_argument("--only", metavar="SETS", help="sets of controls to measure (default: all that planning tries)")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="append rounds here, and judge all of them")
    options = parser.parse_args()
    sets = control_sets(options.only)
    print(f"ddp, {RANKS} ranks on {cores()} cores, half of the rounds to pick; medians in ms; measured")
    for link in options.links.split(","):
        bench = measured(link, options.rounds, sets)
        if options.keep:
            bench = kept(bench, options.keep / f"{link}.jsonl")
        print("\n".join(lines(link, bench, sets)), flush=True)


if __name__ == "__main__":
    main()
