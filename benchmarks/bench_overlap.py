"""GEMM beside all-reduce and all-gather on real ranks of this host, over three links, against torch's two defaults.

Goals: planned is never more than 3 % slower than the better default; takes at least 15 % less time than torch's default
where that crowds the cores; reaches 85 % of ideal at 2 Gbit/s; and takes at least 10 % less than torchrun's default on
the same host. Needs a quiet machine; some minutes. `--quick` tries every cell with few rounds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from makeway.act.measure.bench import cores, run_bench
from makeway.act.measure.job import Job
from makeway.act.measure.link import parse_rate
from makeway.act.measure.outcome import Bench
from makeway.act.measure.variants import OVERLAP, PLANNED, SEQUENTIAL, TORCHRUN

RANKS = 2
LINKS = (None, "8gbit", "2gbit")
SLOWER, OVERSUBSCRIBED, OF_IDEAL, SAME_HOST = 0.03, 0.15, 0.85, 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One workload over one link."""

    workload: str
    link: str | None
    compress: str = "none"

    def __str__(self) -> str:
        compressed = "" if self.compress == "none" else f" {self.compress}"
        return f"{self.workload}{compressed}, {self.link or 'same host'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A goal in one cell, and whether it was met."""

    cell: Cell
    goal: str
    value: float
    passed: bool


def measured(cell: Cell, *, repeats: int, wide: bool) -> Bench:
    """The cell's bench; trial rounds grow with the rounds."""
    job = Job(
        workload=cell.workload,
        ranks=RANKS,
        link=parse_rate(cell.link) if cell.link else None,
        wide=wide,
        repeats=repeats,
        trial_rounds=max(repeats // 3, 2),
        compress=cell.compress,
        timeout_s=60,
    )
    return run_bench(job)


def verdicts(cell: Cell, bench: Bench) -> Iterable[Verdict]:
    """What each goal that concerns a cell says of it. Differences are medians of paired rounds."""
    base = bench.baseline
    if base is not None:
        behind = bench.against(PLANNED, base.name).relative
        yield Verdict(cell=cell, goal="vs better default, at most +3 %", value=behind, passed=behind <= SLOWER)
    if RANKS * cores() > cores():
        gain = bench.against(PLANNED, OVERLAP).relative
        yield Verdict(cell=cell, goal="vs torch's default, -15 %", value=gain, passed=gain <= -OVERSUBSCRIBED)
    if cell.link == "2gbit":
        share = bench.share_of_ideal(PLANNED) or 0.0
        yield Verdict(cell=cell, goal="85 % of ideal", value=share, passed=share >= OF_IDEAL)
    if cell.link is None:
        gain = bench.against(PLANNED, TORCHRUN).relative
        yield Verdict(cell=cell, goal="vs torchrun's default, -10 %", value=gain, passed=gain <= -SAME_HOST)


def run_cells(cells: Sequence[Cell], *, repeats: int, wide: bool) -> None:
    """Prints a row for each cell as it is done, then the goals."""
    print(f"medians in ms (interquartile range), {repeats} rounds, {RANKS} ranks on {cores()} cores; measured")
    names = (SEQUENTIAL, OVERLAP, TORCHRUN, PLANNED)
    print(f"{'cell':<24} {'ideal':>8} " + " ".join(f"{name:>18}" for name in names) + "   of ideal  planned")
    goals: list[Verdict] = []
    for cell in cells:
        bench = measured(cell, repeats=repeats, wide=wide)
        columns = [bench.variant(name) for name in names]
        times = " ".join(f"{each.median_ns / 1e6:10.1f} ({each.spread_ns / 1e6:5.1f})" for each in columns)
        share = bench.share_of_ideal(PLANNED)
        print(
            f"{cell!s:<24} {bench.ideal_ns / 1e6:8.1f} {times}   {'-' if share is None else f'{share:.0%}':>8}  "
            f"{bench.choice}{'' if bench.verified else '; RESULTS DIFFER'}",
            flush=True,
        )
        if cell.link is not None:
            print(f"{'':<24} {bench.link}")
        goals += verdicts(cell, bench)
    print()
    for verdict in goals:
        print(f"{'pass' if verdict.passed else 'MISS'}  {verdict.cell!s:<24} {verdict.goal:<34} {verdict.value:+.1%}")


def main() -> None:
    options = parsed(__doc__)
    cells = [Cell(workload=workload, link=link) for workload in ("gemm-ar", "gemm-ag") for link in LINKS]
    run_cells(cells, repeats=3 if options.quick else 15, wide=not options.quick)


def parsed(text: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it runs, not to judge")
    return parser.parse_args(sys.argv[1:])


if __name__ == "__main__":
    main()
