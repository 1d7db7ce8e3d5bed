"""How often `makeway run --compare` is right on real ranks: jobs without a difference, and jobs with a known one.

python benchmarks/bench_run_compare.py --jobs 20 --slower 0 0.05 0.1 0.2

Two Gloo ranks under torchrun train with DistributedDataParallel. The "plan" is empty, or sleeps for a share of the step
(MAKEWAY_TEST_SLEEP). One line per job, then the verdicts of each share.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[1] / "tests" / "ranks" / "programs" / "ddp_train.py"


def compared(slower: float, seed: int, *, steps: int, width: int) -> dict[str, Any]:
    """The JSON document of one job."""
    with tempfile.TemporaryDirectory() as place:
        plan, document = Path(place) / "plan.toml", Path(place) / "compared.json"
        plan.write_text("version = 2\n")
        launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        subprocess.run(
            [
                sys.executable,
                "-m",
                "makeway",
                "run",
                "--plan",
                str(plan),
                "--compare",
                "--seed",
                str(seed),
                "--compare-steps",
                str(steps),
                "--out",
                str(document),
                "--",
                sys.executable,
                "-m",
                *launcher,
                str(PROGRAM),
                "--steps",
                str(steps + 20),
                "--width",
                str(width),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", "MAKEWAY_TEST_SLEEP": str(slower)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        result: dict[str, Any] = json.loads(document.read_text())
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20, help="of each share (default: 20)")
    parser.add_argument("--slower", type=float, nargs="+", default=[0.0, 0.05, 0.1, 0.2], help="shares of a step")
    parser.add_argument("--steps", type=int, default=1000, help="at most compared (default: 1000)")
    parser.add_argument("--width", type=int, default=2048, help="of the model (default: 2048)")
    options = parser.parse_args()
    for slower in options.slower:
        verdicts: Counter[str] = Counter()
        for job in range(options.jobs):
            done = compared(slower, job, steps=options.steps, width=options.width)
            verdicts[done["verdict"]] += 1
            print(
                f"slower by {slower:.0%}: {done['verdict']}, {done['difference_pct']:+.1f} % "
                f"({done['interval_pct'][0]:+.1f} to {done['interval_pct'][1]:+.1f}), {done['pairs']} pairs, "
                f"{done['without_step_ms']:.1f} ms, noise {done['noise_pct']:.1f} %",
                flush=True,
            )
        print(f"slower by {slower:.0%}: {dict(verdicts)}", flush=True)


if __name__ == "__main__":
    main()
