"""What `--tune` costs in a job that no control helps: a tuned model beside an untuned twin, on real ranks.

    python benchmarks/bench_tune_cost.py [--pairs 12] [--wait-ms 8] [--jobs 5] [--batch 2048] [--starts 10]

On two Gloo ranks under torchrun. Compute is long and gradients are small: communication is next to nothing.

Whole jobs come first (`--pairs`): the same job with and without `makeway run --tune`, in turns, from the first line to
the prompt. On a shared machine equal jobs may differ by a fifth, which hides a cost of one or two per cent. So as
many pairs are of a small job that waits in every step (`--wait-ms`), as for data: equal jobs then differ less, since
only their start computes much, but what candidates do to compute does not show. Even these jobs may gain a little from
`priority` and `own-cores`. And the cost is measured in three parts, too:

- Steps while tuning only watches. Two equal models train in turns inside each job, some 50 steps at a time, and send no
  gradients: no control helps. One of them is tuned (`makeway.torch.tune`, as `run --tune` does it); its clock stands
  still while the other trains. They take turns only while no candidate is in force. The turns without trials give a
  trimmed mean with its interval, as in `run --compare`. `neither` is the same with no model tuned: what the method
  finds where there is nothing.
- Trials, switches and meetings, by tuning's own account of that job, and of the whole jobs.
- What comes before the first step and after the last (`--starts`): short jobs with and without `makeway run --tune` in
  turns.

Goal: a job of 2,000 steps takes at most 1.02 times its time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from timing import interleaved

from makeway.decide.analysis.alternation import log_time, paired_difference
from makeway.decide.analysis.difference import LEVEL, percent

HERE = Path(__file__).parent
TWINS = HERE / "tune_cost_twins.py"
JOB = HERE.parent / "tests" / "ranks" / "programs" / "ddp_train.py"
RANKS = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
GOAL = 1.02
WIDTH = 256  # as in the twins


def started(command: list[str]) -> None:
    variables = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}  # empty: modules are compiled only once
    subprocess.run(
        command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
    )


def twins(*, tuned: bool, seed: int, batch: int, steps: int) -> dict[str, Any]:
    """The turns of one job in seconds, and what tuning reports."""
    with tempfile.TemporaryDirectory() as place:
        document = Path(place) / "turns.json"
        asked = ["--steps", str(steps), "--batch", str(batch), "--seed", str(seed), "--out", str(document)]
        started([*RANKS, str(TWINS), *asked, *(["--tuned"] if tuned else [])])
        result: dict[str, Any] = json.loads(document.read_text())
        return result


def watching(turns: list[dict[str, Any]]) -> list[float]:
    """Logarithms of a step of the first model over one of the second, of each turn without trials."""
    return [log_time(turn["first_ns"]) - log_time(turn["second_ns"]) for turn in turns if not turn["tried"]]


def in_turns(pairs: int, *options: str) -> tuple[list[float], list[float], list[dict[str, Any]]]:
    """Seconds of a job as it is, and of the same job under `run --tune`, and what each of these reports."""
    job, reports = [*RANKS, str(JOB), *options], []
    with tempfile.TemporaryDirectory() as place:
        document = Path(place) / "tuned.json"
        tune = [sys.executable, "-m", "makeway", "run", "--tune", "--out", str(document), "--"]

        def tuned() -> None:
            started([*tune, *job])
            reports.append(json.loads(document.read_text()))

        seconds = interleaved({"plain": lambda: started(job), "tuned": tuned}, rounds=pairs)
    return seconds["plain"], seconds["tuned"], reports


def whole_jobs(what: str, pairs: int, *options: str) -> None:
    """Print the time of tuned jobs over that of the same jobs without tuning."""
    plain_s, tuned_s, reports = in_turns(pairs, *options)
    ratios = [tuned / plain for plain, tuned in zip(plain_s, tuned_s, strict=True)]
    shown = paired_difference([math.log(ratio) for ratio in ratios], level=LEVEL)
    low, high = ("?" if end is None else f"{math.exp(end):.3f}" for end in (shown.low, shown.high))
    print(
        f"{what}, whole jobs of {statistics.median(plain_s):.1f} s: {math.exp(shown.estimate):.3f} "
        f"times with `run --tune` ({low} to {high}): {', '.join(f'{ratio:.3f}' for ratio in sorted(ratios))}",
        flush=True,
    )
    for report, plain in zip(reports[1:], plain_s, strict=True):  # the first was to warm up
        total = 1 + report["lost_share"] + report["start_s"] / plain
        print(
            f"{what}, by its own account: {report['start_s']:.2f} s before the first step, {report['lost_share']:+.2%} "
            f"for trials, switches and meetings, {total:.4f} times; plan {'+'.join(report['plan']) or 'as it is'}",
            flush=True,
        )


def start_up(rounds: int) -> tuple[float, float]:
    """Seconds that `run --tune` adds before the first step and after the last, and the seconds of the short job."""
    plain_s, tuned_s, _ = in_turns(rounds, "--steps", "3")
    added = [tuned - plain for plain, tuned in zip(plain_s, tuned_s, strict=True)]
    return statistics.median(added), statistics.median(plain_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12, help="of whole jobs; 0: leave out (default: 12)")
    parser.add_argument("--jobs", type=int, default=5, help="of each size, and as many with neither tuned (default: 5)")
    parser.add_argument("--batch", type=int, nargs="+", default=[2048], help="rows of a batch: the size of a step")
    parser.add_argument("--steps", type=int, default=2000, help="of each model (default: 2000)")
    parser.add_argument("--starts", type=int, default=10, help="pairs of short jobs; 0: leave out (default: 10)")
    parser.add_argument("--wait-ms", type=float, default=8.0, help="of a step that waits; 0: none (default: 8)")
    options = parser.parse_args()
    steps = ("--steps", str(options.steps), "--width", str(WIDTH))
    if options.pairs and options.wait_ms:
        whole_jobs(f"{options.wait_ms:g} ms of waiting", options.pairs, *steps, "--wait-ms", str(options.wait_ms))
    if options.starts:
        added_s, start_s = start_up(options.starts)
        print(f"start and end: {added_s:+.2f} s with `run --tune`, of a short job's {start_s:.1f} s (measured)")
    for batch in options.batch:
        if options.pairs:
            whole_jobs(f"batch {batch}", options.pairs, *steps, "--batch", str(batch))
        for tuned in (True, False) if options.jobs else ():
            ratios: list[float] = []
            for seed in range(options.jobs):
                done = twins(tuned=tuned, seed=seed, batch=batch, steps=options.steps)
                ratios += watching(done["turns"])
                if tuned:
                    step_s = sum(sum(turn["second_ns"]) for turn in done["turns"]) / 1e9
                    print(
                        f"batch {batch}, job {seed}: {step_s:.1f} s of steps, explored {done['explored_share']:.1%}, "
                        f"trials, switches and meetings {done['lost_share']:+.2%}; plan {done['plan'] or 'as it is'}",
                        flush=True,
                    )
            shown = paired_difference(ratios, level=LEVEL)
            low, high = ("?" if end is None else f"{percent(end):+.2f}" for end in (shown.low, shown.high))
            print(
                f"batch {batch}, {'tuned' if tuned else 'neither'}: while watching a step takes "
                f"{percent(shown.estimate):+.2f} % ({low} to {high}, {len(ratios)} turns of {options.jobs} jobs)",
                flush=True,
            )
    print(f"goal: at most {GOAL} of the whole job")


if __name__ == "__main__":
    main()
