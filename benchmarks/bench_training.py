"""A small transformer under DistributedDataParallel (plain, fp16 gradients, PowerSGD) and fully_shard, over links.

First, whether the losses of 20 steps are those of torch's own defaults, in every variant. Then times: the
same goals as bench_overlap.py. Needs a quiet machine; some minutes.
"""

from __future__ import annotations

from bench_overlap import LINKS, RANKS, Cell, parsed, run_cells

from makeway.act.measure.bench import run_bench
from makeway.act.measure.job import Job
from makeway.values.control import Chunks, CopyEngine

LOSS_STEPS = 20
LOSS_SCALE = 0.25


def print_losses(workload: str, compress: str) -> None:
    """Whether every loss of 20 steps is that of stock, in a smaller model: every step is compared in every variant."""
    job = Job(
        workload=workload,
        ranks=RANKS,
        controls=((CopyEngine(),), (Chunks(2),)),
        plan=False,
        repeats=1,
        warmup=0,
        steps=LOSS_STEPS,
        scale=LOSS_SCALE,
        compress=compress,
        timeout_s=60,
    )
    bench = run_bench(job)
    names = ", ".join(variant.name for variant in bench.variants)
    verdict = "as stock, each within 1e-4" if bench.verified else "NOT as stock"
    print(f"{workload} {compress}: losses of {LOSS_STEPS} steps {verdict} ({names})", flush=True)


def main() -> None:
    options = parsed(__doc__)
    kinds = (("ddp", "none"), ("ddp", "fp16"), ("ddp", "powersgd"), ("fsdp2", "none"))
    for workload, compress in kinds:
        print_losses(workload, compress)
    cells = [Cell(workload=workload, link=link, compress=compress) for workload, compress in kinds for link in LINKS]
    run_cells(cells, repeats=3 if options.quick else 15, wide=not options.quick)


if __name__ == "__main__":
    main()
