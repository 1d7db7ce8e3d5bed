"""How well plans are predicted on this host: it is calibrated, then each step is predicted and measured.

    python benchmarks/bench_host_plan.py [ROUNDS]

Goal: the predicted time of the planned step within 15 % of the measured one for at least 8 of 10 workloads. Sizes and
depths differ from those the host was calibrated with; the control is the predicted one, not a measured choice.
"""

from __future__ import annotations

import sys

from makeway.act.measure.bench import cores, run_bench
from makeway.act.measure.calibrate import calibrate, gemm_flops
from makeway.act.measure.job import Job
from makeway.act.measure.link import parse_rate
from makeway.act.measure.outcome import Bench
from makeway.act.measure.variants import COMM, COMPUTE, SEQUENTIAL, Variant, fair_threads, variant_name
from makeway.decide.planning.host import HostStep, predict_host_step
from makeway.values.collective import Collective
from makeway.values.units import MIB

# workload, MiB of the collective, depth against K = 256, link
CASES = (
    ("gemm-ar", 8, 1.0, None),
    ("gemm-ar", 24, 3.0, None),
    ("gemm-ag", 8, 2.0, None),
    ("gemm-ag", 24, 1.0, None),
    ("gemm-a2a", 12, 1.0, None),
    ("gemm-ar", 8, 1.0, "8gbit"),
    ("gemm-ag", 12, 2.0, "8gbit"),
    ("gemm-ar", 8, 2.0, "2gbit"),
    ("gemm-ag", 8, 4.0, "2gbit"),
    ("gemm-a2a", 12, 3.0, "2gbit"),
)
WITHIN, WANTED = 0.15, 8
RANKS = 2


def measured(workload: str, size: int, scale: float, link: str | None, variant: Variant, rounds: int) -> Bench:
    threads = fair_threads(cores(), RANKS)
    variants = (
        Variant(name=COMPUTE, mode="compute", threads=threads),
        Variant(name=COMM, mode="comm", threads=threads),
        Variant(name=SEQUENTIAL, mode="sequential", threads=threads),
        variant,
    )
    rate = parse_rate(link) if link else None
    size_bytes = size * MIB
    return run_bench(
        Job(
            workload=workload,
            ranks=RANKS,
            link=rate,
            variants=variants,
            repeats=rounds,
            size_bytes=size_bytes,
            scale=scale,
        )
    )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    device = calibrate(ranks=RANKS, rounds=rounds).device
    good = 0
    print("workload      MiB  depth  link    predicted ms  measured ms  error  sequential error  control")
    for workload, size, scale, link in CASES:
        kind = {"gemm-ar": "all-reduce", "gemm-ag": "all-gather", "gemm-a2a": "all-to-all"}[workload]
        exchange = Collective(kind=kind, size_bytes=size * MIB, ranks=RANKS)  # type: ignore[arg-type]
        elements = size * MIB / 4 / (RANKS if kind == "all-gather" else 1)
        bytes_per_s = parse_rate(link).bits_per_s / 8 if link else None
        step = HostStep(
            flops=2 * elements * round(scale * 256),
            outputs=elements,
            collective=exchange,
            link_bytes_per_s=bytes_per_s,
        )
        predicted = predict_host_step(device, step)
        variant = Variant(name="planned", controls=predicted.planned, threads=fair_threads(cores(), RANKS))
        bench = measured(workload, size, scale, link, variant, rounds)
        assert abs(gemm_flops(bench, scale) / step.flops - 1) < 0.05
        took = bench.variant("planned").median_ns / bench.exchanges
        in_turn = bench.variant(SEQUENTIAL).median_ns / bench.exchanges
        error = predicted.planned_ns / took - 1
        good += abs(error) <= WITHIN
        print(
            f"{workload:<12} {size:>4} {scale:>6g}  {link or '-':<6} {predicted.planned_ns / 1e6:>13.1f} "
            f"{took / 1e6:>12.1f} {error:>+6.0%} {predicted.sequential_ns / in_turn - 1:>+17.0%}  "
            f"{variant_name(predicted.planned) or 'as is'}"
        )
    print(f"within {WITHIN:.0%} for {good} of {len(CASES)} (goal: {WANTED})")


if __name__ == "__main__":
    main()
