"""Programs of other frameworks under torchrun: as they are, and under what `makeway run --tune` found for them.

    python benchmarks/bench_programs.py [--programs NAME...] [--tune-steps 400] [--compare-steps 400]

Each program of examples/jobs goes through the commands that a user types. It is recorded once: the share of
communication in a step. It is tuned once, in a job of its own. Then `run --compare` measures the plan that tuning ended
with against the program as it is, in a fresh job, with the interval of its own. Last, the program runs plain and under
the plan for a few steps: weights must be equal to the bit. torchrun's default of one thread per rank holds everywhere.

Goal: at least 15 % less time in three of four programs whose communication takes more than 15 % of a step; within 1 %
of the program as it is elsewhere. `accumulated` is the Trainer with eight batches in a step, for the same gradients.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

JOBS = Path(__file__).parents[1] / "examples" / "jobs"
PROGRAMS = {
    "hf_trainer": ("hf_trainer.py",),
    "lightning_fit": ("lightning_fit.py",),
    "accelerate_loop": ("accelerate_loop.py",),
    "resnet_ddp": ("resnet_ddp.py",),
    "fsdp2_transformer": ("fsdp2_transformer.py",),
    "accumulated": ("hf_trainer.py", "--batches", "8"),
}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MAKEWAY = (sys.executable, "-m", "makeway")
WEIGHED_STEPS = 30  # of the runs whose weights are compared
_WEIGHTS = re.compile(r"rank \d: weights [0-9a-f]+")


def ran(*command: str) -> str:
    """What it prints; without a number of threads, so that torchrun sets its own."""
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environ |= {"PYTHONWARNINGS": "ignore", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def job(name: str, steps: int) -> tuple[str, ...]:
    file, *arguments = PROGRAMS[name]
    return (*TORCHRUN, str(JOBS / file), *arguments, "--steps", str(steps))


def run_document(place: Path, options: Sequence[str], program: Sequence[str]) -> dict[str, Any]:
    """The JSON document of `makeway run`."""
    document = place / "document.json"
    ran(*MAKEWAY, "run", *options, "--out", str(document), "--", *program)
    answer: dict[str, Any] = json.loads(document.read_text())
    return answer


def comm_shares(name: str, recorded: Path) -> tuple[float, float]:
    """Communication in the recorded time, of the rank that has most of it; the same without waiting for each other."""
    ran(*MAKEWAY, "record", "--out", str(recorded), "--", *job(name, 20))
    analysis = json.loads(ran(*MAKEWAY, "analyze", str(recorded), "--json"))
    span_ms = max(float(rank["span_ms"]) for rank in analysis["ranks"])
    share = max(float(rank["comm_ms"] / rank["span_ms"]) for rank in analysis["ranks"])
    return share, float(analysis["collectives"]["transfer_ms"]) / span_ms


def weights(*command: str) -> list[str]:
    return sorted(_WEIGHTS.findall(ran(*command)))


def measured(name: str, options: argparse.Namespace) -> None:
    """Tune one program and print what that brought."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        plan = place / "plan.toml"
        share, transfers = comm_shares(name, place / "recorded")
        tuning = ("--tune", "--tune-share", str(options.share), "--job-steps", str(options.tune_steps))
        tuned = run_document(place, (*tuning, "--plan-out", str(plan)), job(name, options.tune_steps))
        controls = " ".join(tuned["plan"]) or "as it is"
        print(
            f"{name}: communication {share:.0%} of a recorded step, {transfers:.0%} without waiting; tuned to "
            f"{controls}; trials lost {100 * tuned['lost_share']:.2f} % of the time by its own account",
            flush=True,
        )
        if not tuned["plan"]:
            return
        steps = options.compare_steps
        options_of_compare = ("--plan", str(plan), "--compare", "--compare-steps", str(steps))
        compared = run_document(place, options_of_compare, job(name, steps + 20))
        low, high = compared["interval_pct"]
        few = job(name, WEIGHED_STEPS)
        same = weights(*few) == weights(*MAKEWAY, "run", "--plan", str(plan), "--", *few)
        print(
            f"{name}: {compared['without_step_ms']:.1f} ms as it is, {compared['with_step_ms']:.1f} ms tuned: "
            f"{compared['difference_pct']:+.1f} % ({low:+.1f} to {high:+.1f} %, level {compared['level_pct']:.1f} %), "
            f"{compared['pairs']} pairs of blocks, {compared['verdict']}; weights "
            f"{'equal to the bit' if same else 'DIFFER'}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS, metavar="NAME")
    parser.add_argument("--tune-steps", type=int, default=400, help="of the job that is tuned (default: 400)")
    parser.add_argument("--share", type=float, default=0.5, help="of its steps for trials (default: 0.5)")
    parser.add_argument("--compare-steps", type=int, default=400, help="of the job that is compared (default: 400)")
    options = parser.parse_args()
    for name in options.programs:
        measured(name, options)


if __name__ == "__main__":
    main()
