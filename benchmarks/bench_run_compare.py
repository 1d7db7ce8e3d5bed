"""How often `makeway run --compare` is right on real ranks, and what `--tune` costs where nothing helps.

python benchmarks/bench_run_compare.py --jobs 20 --slower 0 0.05 0.1 0.2
python benchmarks/bench_run_compare.py --tune-pairs 5

Two Gloo ranks under torchrun train with DistributedDataParallel. In comparisons the "plan" is empty, or sleeps for a
share of the step (MAKEWAY_TEST_SLEEP): one line per job, then the verdicts of each share. For the cost of tuning, jobs
of 2,000 steps run with and without `--tune` in turns; compute is long and gradients are small, so no control helps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[1] / "tests" / "ranks" / "programs" / "ddp_train.py"
RUN = (sys.executable, "-m", "makeway", "run")
RANKS = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAM))


def compared(slower: float, seed: int, *, steps: int, width: int, keep: Path | None) -> dict[str, Any]:
    """The JSON document of one job."""
    with tempfile.TemporaryDirectory() as place:
        plan, document = Path(place) / "plan.toml", Path(place) / "compared.json"
        plan.write_text("version = 2\n")
        options = ("--plan", plan, "--compare", "--seed", seed, "--compare-steps", steps, "--out", document)
        program = (*RANKS, "--steps", steps + 20, "--width", width)
        _started((*RUN, *options, "--", *program), MAKEWAY_TEST_SLEEP=str(slower))
        if keep is not None:
            (keep / f"{slower:g}-{seed}.json").write_bytes(document.read_bytes())
        result: dict[str, Any] = json.loads(document.read_text())
        return result


def _started(command: tuple[object, ...], **variables: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return done.stdout


def show_verdicts(options: argparse.Namespace) -> None:
    for slower in options.slower:
        verdicts: Counter[str] = Counter()
        for job in range(options.jobs):
            done = compared(slower, job, steps=options.steps, width=options.width, keep=options.keep)
            verdicts[done["verdict"]] += 1
            print(
                f"slower by {slower:.0%}: {done['verdict']}, {done['difference_pct']:+.1f} % "
                f"({done['interval_pct'][0]:+.1f} to {done['interval_pct'][1]:+.1f}), {done['pairs']} pairs, "
                f"{done['without_step_ms']:.1f} ms, noise {done['noise_pct']:.1f} %",
                flush=True,
            )
        print(f"slower by {slower:.0%}: {dict(verdicts)}", flush=True)


# --- the cost of tuning --------------------------------------------------------------------------


def timed_job(*, tuned: bool, steps: int) -> tuple[float, float, dict[str, Any] | None]:
    """Seconds of a whole job, those of its steps after the first, and what tuning reports."""
    with tempfile.TemporaryDirectory() as place:
        document = Path(place) / "tuned.json"
        under = (*RUN, "--tune", "--job-steps", steps, "--out", document, "--") if tuned else ()
        begun = time.perf_counter()
        said = _started((*under, *RANKS, "--steps", steps, "--width", 256, "--batch", 512))
        seconds = time.perf_counter() - begun
        per_step = re.search(r"^([0-9.]+) ms per step", said, re.MULTILINE)
        assert per_step is not None
        report = json.loads(document.read_text()) if tuned else None
        return seconds, float(per_step[1]) * (steps - 1) / 1e3, report


def show_cost(options: argparse.Namespace) -> None:
    draw = random.Random(options.seed)
    jobs: list[float] = []
    loops: list[float] = []
    for pair in range(options.tune_pairs):
        sides = draw.sample([False, True], 2)
        took = {tuned: timed_job(tuned=tuned, steps=options.job_steps) for tuned in sides}
        jobs.append(took[True][0] / took[False][0])
        loops.append(took[True][1] / took[False][1])
        tuned = took[True][2]
        assert tuned is not None
        print(
            f"pair {pair + 1}: untuned {took[False][1]:.1f} s, tuned {took[True][1]:.1f} s, {loops[-1]:.3f} times "
            f"(whole job {jobs[-1]:.3f}); plan {' '.join(tuned['plan']) or 'as is'}, explored "
            f"{100 * tuned['explored_share']:.1f} % of steps, lost {100 * tuned['lost_share']:.2f} % of the time",
            flush=True,
        )
    for name, ratios in (("steps", loops), ("whole jobs", jobs)):
        print(f"{name}: tuned over untuned, median {statistics.median(ratios):.3f}, most {max(ratios):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20, help="of each share (default: 20)")
    parser.add_argument("--slower", type=float, nargs="+", default=[0.0, 0.05, 0.1, 0.2], help="shares of a step")
    parser.add_argument("--steps", type=int, default=1000, help="at most compared (default: 1000)")
    parser.add_argument("--width", type=int, default=2048, help="of the model (default: 2048)")
    parser.add_argument("--keep", type=Path, help="a directory for the JSON documents of comparisons")
    parser.add_argument(
        "--tune-pairs", type=int, default=0, help="measure the cost of tuning, in so many pairs of jobs"
    )
    parser.add_argument("--job-steps", type=int, default=2000, help="of a tuned job (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of tuned and untuned jobs")
    options = parser.parse_args()
    if options.tune_pairs:
        show_cost(options)
    else:
        show_verdicts(options)


if __name__ == "__main__":
    main()
