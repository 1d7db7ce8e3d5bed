"""An unmodified data-parallel program, as it is and under `makeway run`, taking turns; 2 Gloo ranks by torchrun.

Prints the step time of each, their ratio pair by pair, and whether the losses are the same to the bit. Some minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from makeway.read.plan_file import dump_plan
from makeway.values.control import parse_control
from makeway.values.plan import Plan

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "tests" / "ranks" / "programs" / "ddp_train.py"
STEPS = 30
WIDTHS = (4096, 16384)
PLANS = ("copy-engine", "copy-engine+priority", "priority")


@dataclass(frozen=True, slots=True)
class Ran:
    step_ms: float
    losses: tuple[str, ...]


def ran(width: int, plan: Path | None) -> Ran:
    under = [sys.executable, "-m", "makeway", "run", "--strict", "--plan", str(plan), "--"] if plan else []
    command = [
        *under, sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(PROGRAM), "--width", str(width), "--steps", str(STEPS),
    ]  # fmt: skip
    environ = os.environ | {"OMP_NUM_THREADS": "1"}  # torchrun's own default, without its warning
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    found = re.search(r"([\d.]+) ms per step", done.stdout)
    assert found is not None
    return Ran(float(found[1]), tuple(sorted(re.findall(r"rank \d+ step \d+ loss \S+", done.stdout))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    print(f"{STEPS} steps, {options.pairs} pairs of runs, 2 ranks; medians (quartiles); measured")
    with tempfile.TemporaryDirectory() as where:
        for width in WIDTHS:
            for words in PLANS:
                plan = Path(where, f"{words}.toml")
                plan.write_text(dump_plan(Plan(controls=tuple(parse_control(word) for word in words.split("+")))))
                print_pairs(width, words, plan, options.pairs)


def print_pairs(width: int, words: str, plan: Path, pairs: int) -> None:
    runs = [(ran(width, None), ran(width, plan)) for _ in range(pairs)]
    ratios = [plain.step_ms / shaped.step_ms for plain, shaped in runs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    same = all(plain.losses == shaped.losses for plain, shaped in runs)
    plain_ms, shaped_ms = (statistics.median(run.step_ms for run in column) for column in zip(*runs, strict=True))
    print(
        f"width {width:>6}  {words:<22} {plain_ms:8.2f} ms as it is  {shaped_ms:8.2f} ms under makeway  "
        f"{middle:.2f} times faster ({low:.2f} to {high:.2f})  losses {'equal to the bit' if same else 'DIFFER'}",
        flush=True,
    )


if __name__ == "__main__":
    main()
