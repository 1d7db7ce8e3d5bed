"""Predicted steps beside measured ones: DDP, FSDP2, tensor parallelism and a pipeline on 2 and 4 ranks of this host.

    python benchmarks/bench_scale_ranks.py [--quick] [--ranks 2,4] [--links none,2gbit,500mbit] [--shapes narrow,wide]
        [--out FILE.json] [--probes FILE.json]     (--links "" runs the probes alone; another run can take them)
    python benchmarks/bench_scale_ranks.py --again FILE.json...     (predict saved cells again, and judge all together)

`makeway.decide.scale` predicts every cell with this host as its device. Its numbers come from probes of other shapes:
products, passes over memory, attention, and Gloo's collectives at two other sizes over the same link. Nothing is taken
from a cell. Ranks share the cores: with 4 ranks on 2 cores a device is half a core, and the probes share it too.

Goal: within 15 % for at least 80 % of the cells. Needs a quiet machine, root or user namespaces, and iproute2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from scale_ranks_host import predicted_step, rank_host
from scale_ranks_job import Cell, Probe, RanksAnswer, RanksJob, Shape

from makeway.act.measure.bench import cores
from makeway.act.measure.launch import Limits, run_ranks
from makeway.act.measure.link import LOOPBACK, paced_link, parse_rate
from makeway.values.step import Step

WORKER = (sys.executable, str(Path(__file__).parent / "scale_ranks_worker.py"))
SHAPES = {
    "narrow": Shape(layers=4, hidden=256, heads=4, vocab=1024, seq=128, batch=4),
    "wide": Shape(layers=2, hidden=512, heads=8, vocab=1024, seq=64, batch=4),
}
# Freed memory stays with the process, as with the allocators that torch recommends on CPUs: a page fault costs more
# than a pass over the page, and how many there are depends on the history of the heap.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
GOAL_ERROR, GOAL_SHARE = 0.15, 0.80
UNPACED = "none"


@dataclass(frozen=True, slots=True)
class Row:
    """One cell, measured and predicted."""

    ranks: int
    link: str
    shape: str
    cell: Cell
    times_s: tuple[float, ...]
    step: Step
    link_probes: tuple[Probe, ...]

    @property
    def measured_s(self) -> float:
        return statistics.median(self.times_s)

    @property
    def error(self) -> float:
        return self.step.step_ns / 1e9 / self.measured_s - 1

    def __str__(self) -> str:
        low, _, high = statistics.quantiles(self.times_s, n=4)
        lines = {line.kind: line.ns for line in self.step.ledger}
        exposed = sum(ns for kind, ns in lines.items() if kind.startswith("exposed"))
        return (
            f"{self.ranks:>5} {self.link:>8} {self.shape:>7} {self.cell.name:<13} {1e3 * self.measured_s:8.1f} "
            f"({1e3 * low:.1f} to {1e3 * high:.1f})".ljust(66)
            + f"{self.step.step_ns / 1e6:8.1f} {self.error:+7.1%}  compute {lines.get('compute', 0) / 1e6:.1f}, "
            f"exposed {exposed / 1e6:.1f}"
        )


def cells(shapes: Sequence[str]) -> list[tuple[str, Cell]]:
    ways: list[tuple[str, Cell]] = []
    for name in shapes:
        shape = SHAPES[name]
        ways += [
            (name, Cell("ddp", shape)),
            (name, Cell("ddp", shape, "bf16")),
            (name, Cell("ddp", shape, "powersgd")),
            (name, Cell("ddp", shape, "topk")),
            (name, Cell("fsdp", shape)),
            (name, Cell("tp", shape)),
            (name, Cell("pp", shape, micro_batches=4)),
        ]
    return ways


def asked(ranks: int, link: str, job: RanksJob) -> RanksAnswer:
    """What the ranks answer over a link."""
    with ExitStack() as stack:
        way = LOOPBACK if link == UNPACED else stack.enter_context(paced_link(parse_rate(link)))
        if link != UNPACED and not way.paced:
            raise SystemExit(f"no paced link here: {way.description}")
        result = run_ranks(
            ranks,
            WORKER,
            job=msgspec.json.encode(job),
            env=ENVIRONMENT,
            limits=Limits(start_s=120, silence_s=240),
            link=way,
            progress=lambda stage: print(f"  {ranks} ranks, {link}: {stage}", file=sys.stderr),
        )
    return msgspec.convert(result, RanksAnswer)


def probed(ranks: int) -> tuple[Probe, ...]:
    job = RanksJob(probes="all", cells=(), steps=0, warmup=0)
    return asked(ranks, UNPACED, job).probes


def measured(ranks: int, link: str, probes: Sequence[Probe], *, steps: int, shapes: Sequence[str]) -> list[Row]:
    ways = cells(shapes)
    probed_too: Literal["none", "link"] = "none" if link == UNPACED else "link"
    job = RanksJob(probes=probed_too, cells=tuple(cell for _, cell in ways), steps=steps, warmup=2)
    answer = asked(ranks, link, job)
    host = rank_host(probes, ranks, _rate(link), answer.probes)
    return [
        Row(ranks, link, name, cell, times, predicted_step(cell, host, ranks), answer.probes)
        for (name, cell), times in zip(ways, answer.steps_s, strict=True)
    ]


def read_again(saved: dict[str, Any]) -> Iterator[Row]:
    """The cells of a saved run, predicted anew."""
    for row in saved["rows"]:
        ranks, link = int(row["ranks"]), str(row["link"])
        probes = msgspec.convert(saved[f"probes of {ranks} ranks"], tuple[Probe, ...])
        cell = next(cell for name, cell in cells([row["shape"]]) if cell.name == row["cell"])
        own = msgspec.convert(row.get("link_probes", ()), tuple[Probe, ...])
        step = predicted_step(cell, rank_host(probes, ranks, _rate(link), own), ranks)
        yield Row(ranks, link, str(row["shape"]), cell, tuple(row["times_s"]), step, own)


def _rate(link: str) -> float | None:
    return None if link == UNPACED else parse_rate(link).bits_per_s / 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one shape, few steps: to see that it runs, not to judge")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks (default: 2,4)")
    parser.add_argument("--links", default="none,2gbit,500mbit", help="rates of the link; none: not paced")
    parser.add_argument("--shapes", default=",".join(SHAPES), help=f"default: {','.join(SHAPES)}")
    parser.add_argument("--steps", type=int, default=6, help="timed steps of each cell (default: 6)")
    parser.add_argument("--probes", type=Path, help="take the probes from a file that --out wrote")
    parser.add_argument("--out", type=Path, help="also write probes, times and predictions as JSON")
    parser.add_argument("--again", type=Path, nargs="+", help="predict the cells of files that --out wrote")
    options = parser.parse_args()
    steps = 4 if options.quick else options.steps
    shapes = options.shapes.split(",")[: 1 if options.quick else None]
    print(f"{cores()} cores, {steps} steps of each cell; ms, median and quartiles measured, then predicted")
    print("ranks     link   shape cell           measured                  predicted   error  predicted parts")
    rows: list[Row] = []
    if options.again:
        rows = [row for path in options.again for row in read_again(json.loads(path.read_text()))]
        for row in rows:
            print(row)
        _judge(rows)
        return
    saved: dict[str, object] = {}
    for ranks in map(int, options.ranks.split(",")):
        key = f"probes of {ranks} ranks"
        if options.probes is not None:
            probes = msgspec.convert(json.loads(options.probes.read_text())[key], tuple[Probe, ...])
        else:
            probes = probed(ranks)
        saved[key] = msgspec.to_builtins(probes)
        print(f"{ranks} ranks: {rank_host(probes, ranks, None, ()).described}")
        if options.out is not None:
            options.out.write_text(json.dumps(saved, indent=1))
        for link in filter(None, options.links.split(",")):
            new = measured(ranks, link, probes, steps=steps, shapes=shapes)
            rows += new
            for row in new:
                print(row, flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(saved | {"rows": _saved(rows)}, indent=1))
    if rows:
        _judge(rows)


def _saved(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [
        {
            "ranks": row.ranks,
            "link": row.link,
            "shape": row.shape,
            "cell": row.cell.name,
            "times_s": row.times_s,
            "link_probes": msgspec.to_builtins(row.link_probes),
            "predicted_s": row.step.step_ns / 1e9,
            "ledger_ms": {line.kind: line.ns / 1e6 for line in row.step.ledger},
        }
        for row in rows
    ]


def _judge(rows: Sequence[Row]) -> None:
    close = [row for row in rows if abs(row.error) <= GOAL_ERROR]
    share = len(close) / len(rows)
    mean = statistics.mean(abs(row.error) for row in rows)
    verdict = "pass" if share >= GOAL_SHARE else "MISS"
    print(
        f"{verdict}: {len(close)} of {len(rows)} cells within {GOAL_ERROR:.0%} ({share:.0%}, goal {GOAL_SHARE:.0%}); "
        f"mean error {mean:.1%}"
    )
    for row in rows:
        if row not in close:
            print(f"  misses: {row}")


if __name__ == "__main__":
    main()
