"""How often `makeway run --compare` is right on real ranks.

python benchmarks/bench_run_compare.py --jobs 20 --slower 0 0.05 0.1 0.2 --keep results --minutes 4

Two Gloo ranks under torchrun train with DistributedDataParallel. The "plan" is empty, or sleeps for a share of the step
(MAKEWAY_TEST_SLEEP): one line per job, then the verdicts of each share. Such a switch replaces no reducer, so that no
steps are left out after it: `--plan` names a plan whose switches do.

With `--keep`, every job leaves its result there; jobs whose results are there are not run again. `--minutes` begins no
job after so long: call it again for the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[1] / "tests" / "ranks" / "programs" / "ddp_train.py"
RUN = (sys.executable, "-m", "makeway", "run")
RANKS = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAM))


class Kept:
    """Results of jobs by name: in a directory, or for this call only; `measure` runs a job that has none."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._place: Path | None = options.keep
        self._until = time.monotonic() + 60 * options.minutes if options.minutes is not None else None
        if self._place is not None:
            self._place.mkdir(parents=True, exist_ok=True)

    def of(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The result; None: there is none, and no time for it."""
        path = self._place / f"{name}.json" if self._place is not None else None
        if path is not None and path.exists():
            result: dict[str, Any] = json.loads(path.read_text())
            return result
        if self._until is not None and time.monotonic() > self._until:
            return None
        measured = measure()
        if path is not None:
            path.write_text(json.dumps(measured))
        return measured


def compared(slower: float, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The JSON document of one job, without its blocks."""
    with tempfile.TemporaryDirectory() as place:
        plan, document = options.plan or Path(place) / "plan.toml", Path(place) / "compared.json"
        if options.plan is None:
            plan.write_text("version = 2\n")
        asked = ("--plan", plan, "--compare", "--seed", seed, "--compare-steps", options.steps, "--out", document)
        program = (*RANKS, "--steps", options.steps + 20, "--width", options.width)
        _started((*RUN, *asked, "--", *program), MAKEWAY_TEST_SLEEP=str(slower))
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
    kept = Kept(options)
    for slower in options.slower:
        verdicts: Counter[str] = Counter()
        for job in range(options.seed, options.seed + options.jobs):
            done = kept.of(f"{slower:g}-{job}", partial(compared, slower, job, options))
            if done is None:
                continue
            verdicts[done["verdict"]] += 1
            print(
                f"slower by {slower:.0%}: {done['verdict']}, {done['difference_pct']:+.1f} % "
                f"({done['interval_pct'][0]:+.1f} to {done['interval_pct'][1]:+.1f}), {done['steps']} steps, "
                f"{done['without_step_ms']:.1f} ms, noise {done['noise_pct']:.1f} %",
                flush=True,
            )
        print(f"slower by {slower:.0%}: {dict(verdicts)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20, help="of each share (default: 20)")
    parser.add_argument("--slower", type=float, nargs="+", default=[0.0, 0.05, 0.1, 0.2], help="shares of a step")
    parser.add_argument("--steps", type=int, default=2000, help="at most compared (default: 2000)")
    parser.add_argument("--plan", type=Path, help="to compare with in place of an empty one")
    parser.add_argument("--width", type=int, default=2048, help="of the model (default: 2048)")
    parser.add_argument("--keep", type=Path, help="a directory of results, of earlier calls and of this one")
    parser.add_argument("--minutes", type=float, help="begin no job after so long")
    parser.add_argument("--seed", type=int, default=0, help="of the first comparison (default: 0)")
    show_verdicts(parser.parse_args())


if __name__ == "__main__":
    main()
