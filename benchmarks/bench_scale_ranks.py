"""Predicted steps beside measured ones: DDP, FSDP2, tensor parallelism and a pipeline on 2 and 4 ranks of this host.

    python benchmarks/bench_scale_ranks.py [--quick] [--ranks 2,4] [--links none,2gbit,500mbit] [--shapes narrow,wide]
        [--calibration] [--out FILE.json]
    python benchmarks/bench_scale_ranks.py --again FILE.json...     (predict saved columns again, judge all together)

`makeway.decide.scale` predicts every cell with this host as its device. Its numbers come from the same launch, over the
same link, and from other shapes: products, passes over memory, attention, Gloo's collectives, and training steps of two
decoders that no cell has (`CALIBRATION`). Nothing is taken from a cell. Ranks share the cores: with 4 ranks on 2 cores
a device is half a core, and probes and calibration share it too.

Goal: within 15 % for at least 80 % of the cells. Needs a quiet machine, root or user namespaces, and iproute2; a column
is quiet if others took at most 5 % of the cores meanwhile.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec
from scale_ranks_host import RankHost, predicted_step, rank_host
from scale_ranks_job import CALIBRATION, TINY, Cell, RanksAnswer, RanksJob, Shape, ways

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
# than a pass over the page, and how many there are depends on the history of the heap. Before version 2.38 glibc cannot
# put an aligned tensor where one of the same size was (BZ 14581), so the heap grows for many steps: pages of 2 MiB make
# that cheap.
ENVIRONMENT = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
}
WARMUP = 2
MOST_OTHERS = 0.05  # of the cores' time: more, and the machine was not quiet
GOAL_ERROR, GOAL_SHARE = 0.15, 0.80
UNPACED = "none"


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of ranks: what it ran, what was timed, and what else took the cores meanwhile."""

    ranks: int
    link: str
    shapes: tuple[str, ...]
    answer: RanksAnswer
    cores: int
    others: float  # of the cores' time: other processes, and what the hypervisor took
    cells: tuple[Cell, ...]

    @property
    def quiet(self) -> bool:
        return self.others <= MOST_OTHERS

    @property
    def host(self) -> RankHost:
        times = dict(zip(self.cells, map(statistics.median, self.answer.steps_s), strict=True))
        calibration = {cell: times[cell] for cell in CALIBRATION}
        return rank_host(
            self.answer.probes, calibration, self.ranks, cores=self.cores, link_bytes_per_s=_rate(self.link)
        )

    @property
    def rows(self) -> list[Row]:
        host, times = self.host, dict(zip(self.cells, self.answer.steps_s, strict=True))
        return [
            Row(self.ranks, self.link, name, cell, times[cell], predicted_step(cell, host, self.ranks))
            for name in self.shapes
            for cell in ways(SHAPES[name])
        ]

    @property
    def calibration_rows(self) -> list[Row]:
        """The steps that gave the host its numbers, predicted with them."""
        host, times = self.host, dict(zip(self.cells, self.answer.steps_s, strict=True))
        return [
            Row(self.ranks, self.link, "alone" if cell.alone else "tiny" if cell.shape == TINY else "middle", cell,
                times[cell], predicted_step(cell, host, self.ranks))
            for cell in CALIBRATION
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One cell, measured and predicted."""

    ranks: int
    link: str
    shape: str
    cell: Cell
    times_s: tuple[float, ...]
    step: Step

    @property
    def measured_s(self) -> float:
        return statistics.median(self.times_s)

    @property
    def error(self) -> float:
        return self.step.step_ns / 1e9 / self.measured_s - 1

    def __str__(self) -> str:
        low, _, high = statistics.quantiles(self.times_s, n=4)
        lines = {line.kind: line.ns for line in self.step.ledger}
        parts = ", ".join(f"{kind} {ns / 1e6:.1f}" for kind, ns in lines.items())
        return (
            f"{self.ranks:>5} {self.link:>8} {self.shape:>7} {self.cell.name:<13} {1e3 * self.measured_s:8.1f} "
            f"({1e3 * low:.1f} to {1e3 * high:.1f})".ljust(66)
            + f"{self.step.step_ns / 1e6:8.1f} {self.error:+7.1%}  {parts}"
        )


def measured(ranks: int, link: str, *, steps: int, shapes: Sequence[str]) -> Column:
    """Probes, calibration and the cells of these shapes over a link."""
    cells = (*CALIBRATION, *(cell for name in shapes for cell in ways(SHAPES[name])))
    before = taken_s()
    with ExitStack() as stack:
        way = LOOPBACK if link == UNPACED else stack.enter_context(paced_link(parse_rate(link)))
        if link != UNPACED and not way.paced:
            raise SystemExit(f"no paced link here: {way.description}")
        result = run_ranks(
            ranks,
            WORKER,
            job=msgspec.json.encode(RanksJob(cells=cells, steps=steps, warmup=WARMUP)),
            env=ENVIRONMENT,
            limits=Limits(start_s=120, silence_s=240),
            link=way,
            progress=lambda stage: print(f"  {ranks} ranks, {link}: {stage}", file=sys.stderr),
        )
    after = taken_s()
    return Column(
        ranks=ranks,
        link=link,
        shapes=tuple(shapes),
        answer=msgspec.convert(result, RanksAnswer),
        cores=cores(),
        others=(after[0] - before[0]) / (after[1] - before[1]),
        cells=cells,
    )


def taken_s() -> tuple[float, float]:
    """Seconds of the cores so far that went to others than this process and its children, and all seconds.

    Interrupts are left out: those of a paced link are ours.
    """
    user, nice, system, idle, waiting, _, _, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
    tick = 1 / os.sysconf("SC_CLK_TCK")
    own = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return (user + nice + system + stolen) * tick - own, (user + nice + system + idle + waiting + stolen) * tick


def _rate(link: str) -> float | None:
    return None if link == UNPACED else parse_rate(link).bits_per_s / 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one shape, few steps: to see that it runs, not to judge")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks (default: 2,4)")
    parser.add_argument("--links", default="none,2gbit,500mbit", help="rates of the link; none: not paced")
    parser.add_argument("--shapes", default=",".join(SHAPES), help=f"default: {','.join(SHAPES)}")
    parser.add_argument("--steps", type=int, default=6, help="timed steps of each cell (default: 6)")
    parser.add_argument("--out", type=Path, help="also write what was timed as JSON")
    parser.add_argument("--again", type=Path, nargs="+", help="predict what files that --out wrote have timed")
    parser.add_argument("--calibration", action="store_true", help="show the calibration steps, too")
    options = parser.parse_args()
    steps = 4 if options.quick else options.steps
    shapes = [name for name in options.shapes.split(",") if name][: 1 if options.quick else None]
    print(f"{cores()} cores; ms, median and quartiles measured, then predicted")
    print("ranks     link   shape cell           measured                  predicted   error  predicted parts")
    columns: list[Column] = []
    if options.again:
        columns = [
            column for path in options.again for column in msgspec.json.decode(path.read_bytes(), type=list[Column])
        ]
        for column in columns:
            _show(column, calibration=options.calibration)
    else:
        for ranks, link in product(map(int, options.ranks.split(",")), options.links.split(",")):
            columns.append(measured(ranks, link, steps=steps, shapes=shapes))
            if options.out is not None:
                options.out.write_bytes(msgspec.json.encode(columns))
            _show(columns[-1], calibration=options.calibration)
    _judge([row for column in columns for row in column.rows])


def _show(column: Column, *, calibration: bool) -> None:
    quiet = "quiet" if column.quiet else f"NOT quiet: more than {MOST_OTHERS:.0%}"
    print(f"{column.ranks} ranks, {column.link}: others took {column.others:.1%} of the cores, {quiet}")
    print(f"  {column.host.described}")
    for row in (*(column.calibration_rows if calibration else ()), *column.rows):
        print(row, flush=True)


def _judge(rows: Sequence[Row]) -> None:
    close = [row for row in rows if abs(row.error) <= GOAL_ERROR]
    if not rows:
        return
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
