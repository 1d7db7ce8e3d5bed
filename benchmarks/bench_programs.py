"""Programs of other frameworks under torchrun: as they are, and tuned by `makeway run --tune`.

python benchmarks/bench_programs.py --rounds 5 --steps 200 --tune-steps 1500

Each program of examples/jobs is recorded once (the share of communication in a step), tuned once in a job of its own
(`--tune-steps`), then run plain and under the plan that tuning ended with, in turns and in random order. The program
itself says how long its steps took: the median of the second half. Plain runs know nothing of makeway; torchrun's
default of one thread per rank holds for both. Differences are medians over pairs, with an interval of 95 %; weights of
both must be equal to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from makeway.read.plan_file import load_plan
from makeway.values.control import control_word

JOBS = Path(__file__).parents[1] / "examples" / "jobs"
PROGRAMS = ("hf_trainer", "lightning_fit", "accelerate_loop", "fsdp2_transformer", "resnet_ddp")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MAKEWAY = (sys.executable, "-m", "makeway")
_LINE = re.compile(r"rank (\d): weights ([0-9a-f]+), ([0-9.]+) ms per step")


def ran(command: Sequence[str]) -> str:
    """What it prints; without a number of threads, so that torchrun sets its own."""
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environ |= {"PYTHONWARNINGS": "ignore", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def job(name: str, steps: int) -> tuple[str, ...]:
    return (*TORCHRUN, str(JOBS / f"{name}.py"), "--steps", str(steps))


def measured(command: Sequence[str]) -> tuple[float, list[str]]:
    """Milliseconds of a step, of the slower rank, and the weights of both ranks."""
    lines = sorted(_LINE.findall(ran(command)))
    return max(float(step) for _, _, step in lines), [weights for _, weights, _ in lines]


def interval(ratios: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """Of the median, by resampling; the same ratios give the same interval."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def comm_share(name: str, recorded: Path) -> float:
    """Communication in the recorded time of the rank that has most of it."""
    ran((*MAKEWAY, "record", "--out", str(recorded), "--", *job(name, 20)))
    ranks = json.loads(ran((*MAKEWAY, "analyze", str(recorded), "--json")))["ranks"]
    return max(float(rank["comm_ms"] / rank["span_ms"]) for rank in ranks)


def one(name: str, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        share = comm_share(name, place / "recorded")
        plan = place / "plan.toml"
        tuning = ("--tune", "--tune-share", str(options.share), "--job-steps", str(options.tune_steps))
        ran((*MAKEWAY, "run", *tuning, "--plan-out", str(plan), "--", *job(name, options.tune_steps)))
        controls = "+".join(map(control_word, load_plan(plan).controls)) or "as it is"
        print(f"{name}: communication {share:.0%} of a recorded step; tuning ended with {controls}", flush=True)
        commands = {
            "plain": job(name, options.steps),
            "tuned": (*MAKEWAY, "run", "--plan", str(plan), "--", *job(name, options.steps)),
        }
        times: dict[str, list[float]] = {side: [] for side in commands}
        weights: list[list[str]] = []
        for number in range(options.rounds):
            sides = list(commands)
            random.Random(f"{name}/{number}").shuffle(sides)
            for side in sides:
                step_ms, computed = measured(commands[side])
                times[side].append(step_ms)
                weights.append(computed)
        ratios = [tuned / plain - 1 for plain, tuned in zip(times["plain"], times["tuned"], strict=True)]
        low, high = interval(ratios)
        same = all(item == weights[0] for item in weights)
        print(
            f"{name}: {median(times['plain']):.1f} ms plain, {median(times['tuned']):.1f} ms tuned: "
            f"{median(ratios):+.1%} ({low:+.1%} to {high:+.1%}), {len(ratios)} pairs, weights "
            f"{'equal to the bit' if same else 'DIFFER'}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (default: 5)")
    parser.add_argument("--steps", type=int, default=200, help="of each run (default: 200)")
    parser.add_argument("--tune-steps", type=int, default=1500, help="of the job that is tuned (default: 1500)")
    parser.add_argument("--share", type=float, default=0.2, help="of its steps for trials (default: 0.2)")
    options = parser.parse_args()
    for name in options.programs:
        one(name, options)


if __name__ == "__main__":
    main()
