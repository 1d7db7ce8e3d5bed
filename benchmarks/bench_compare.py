"""`makeway compare` on recordings of real Gloo ranks: how often its verdict is right.

Two ranks train a small model and record it again and again: unchanged twice, with more work in each step, and with
gradients through shared memory. Each repetition compares the unchanged recording with the other three. The order of the
four changes from one repetition to the next, so that other load on the host favours none of them.

    python benchmarks/bench_compare.py [--repetitions 20] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

VARIANTS = ("plain", "again", "slow", "control")
STEPS, WIDTH, BATCH, LAYERS = 16, 512, 256, 4
EXTRA = 8  # products of the size of a layer that "slow" adds to each step
RUNS = 5  # of each side, in the comparison of several runs
TRUE_DIFFERENCE = 10.0  # percent; a smaller one need not be shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the recordings there; compare them if it exists"
    )
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        record(options.keep, options.repetitions)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        if not list(folder.glob("*/plain")):
            start(folder, options.repetitions)
        return judge(folder)


def start(folder: Path, repetitions: int) -> None:
    own = [__file__, "--rank", "--keep", str(folder), "--repetitions", str(repetitions)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *own]
    subprocess.run(command, check=True, timeout=60 + 60 * repetitions, stderr=subprocess.DEVNULL)


# --- one rank ------------------------------------------------------------------------------------


def record(folder: Path, repetitions: int) -> None:
    """Make all recordings of this rank."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile, schedule

    from makeway.torch import prepare_ddp
    from makeway.values.control import CopyEngine
    from makeway.values.plan import Plan

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    def layers() -> torch.nn.Module:
        return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))

    plain = DistributedDataParallel(layers(), bucket_cap_mb=2)
    controlled, receipts = prepare_ddp(layers(), Plan(controls=(CopyEngine(),)), bucket_cap_mb=2)
    batch, weight = torch.randn(BATCH, WIDTH), torch.randn(WIDTH, WIDTH)

    def train(variant: str, steps: int, profiler: profile | None = None) -> None:
        model = controlled if variant == "control" else plain
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for _ in range(steps):
            for _ in range(EXTRA if variant == "slow" else 0):
                torch.mm(batch, weight)
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if profiler is not None:
                profiler.step()

    train("control", 1)
    assert all(receipt.status == "applied" for receipt in receipts), list(receipts)
    for variant in VARIANTS:
        train(variant, 5)
    for repetition in range(repetitions):
        turn = repetition % len(VARIANTS)
        for variant in VARIANTS[turn:] + VARIANTS[:turn]:
            dist.barrier()
            with profile(
                activities=[ProfilerActivity.CPU],
                schedule=schedule(wait=1, warmup=1, active=STEPS),
                record_shapes=True,
            ) as profiler:
                train(variant, STEPS + 2, profiler)
            place = folder / str(repetition) / variant
            place.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(place / f"rank{dist.get_rank()}.json.gz"))
    dist.destroy_process_group()


# --- all recordings ------------------------------------------------------------------------------


def judge(folder: Path) -> int:
    """Compare, print the table, and return 1 where a line of it misses."""
    from makeway import Comparison, compare

    repetitions = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: int(path.name))
    several_runs(repetitions)
    missed = False
    print(f"{len(repetitions)} repetitions, {STEPS} steps each, 2 ranks; difference of the medians of all steps")
    print(f"{'pair':<18}{'true %':>8}{'verdicts':>42}  right")
    for variant in VARIANTS[1:]:
        results: list[Comparison] = [compare(place / "plain", place / variant) for place in repetitions]
        true = 100 * (
            statistics.median(result.after.step_ns for result in results)
            / statistics.median(result.before.step_ns for result in results)
            - 1
        )
        verdicts: Counter[str] = Counter(result.verdict for result in results)
        expected = "no difference shown" if variant == "again" else "slower" if true > 0 else "faster"
        counted = variant == "again" or abs(true) > TRUE_DIFFERENCE
        needed = 0.9 if variant == "again" else 1.0
        missed |= counted and verdicts[expected] < needed * len(results)
        shown = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        right = f"{verdicts[expected]} of {len(results)}" if counted else "not counted"
        print(f"{'plain, ' + variant:<18}{true:>8.1f}{shown:>42}  {right}")
        for place, result in zip(repetitions, results, strict=True):
            low, high = result.interval_pct or (float("nan"), float("nan"))
            print(f"  {place.name:>3}  {result.difference_pct:+7.1f} % [{low:+.1f}, {high:+.1f}]  {result.verdict}")
    return int(missed)


def several_runs(repetitions: Sequence[Path]) -> None:
    """The same with RUNS repetitions as the runs of each side."""
    from makeway import compare

    for variant in VARIANTS[1:]:
        verdicts: Counter[str] = Counter()
        for first in range(0, len(repetitions) - RUNS + 1, RUNS):
            with tempfile.TemporaryDirectory() as temporary:
                for side, name in (("before", "plain"), ("after", variant)):
                    (Path(temporary) / side).mkdir()
                    for place in repetitions[first : first + RUNS]:
                        (Path(temporary) / side / place.name).symlink_to((place / name).resolve())
                verdicts[compare(Path(temporary) / "before", Path(temporary) / "after").verdict] += 1
        shown = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        print(f"{RUNS} runs of each side, plain, {variant}: {shown}")


if __name__ == "__main__":
    sys.exit(main())
