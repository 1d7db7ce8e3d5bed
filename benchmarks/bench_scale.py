"""Time of `makeway scale`: one layout by GPUs and micro batches, and a search: python benchmarks/bench_scale.py

Cost must not depend on replicas or micro batches, only on stages x chunks. A search is timed per layout. Cold figures
include the runs of the one-GPU model, which later layouts share.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from makeway.decide.scale.layouts import Bounds
from makeway.decide.scale.search import search
from makeway.decide.scale.step import predict_step
from makeway.read.presets import load_cluster, load_model
from makeway.values.layout import Layout
from makeway.values.layout_word import parse_layout

REPEATS = 5
DGX = load_cluster("dgx-h100")


def shortest_s(call: Callable[[], object]) -> float:
    """The shortest of a few runs, in seconds of this process: other processes' load is left out."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def one_layout(model: str, layout: Layout) -> None:
    value = load_model(model)
    start = time.process_time()
    predict_step(value, layout, DGX)
    cold = time.process_time() - start
    warm = shortest_s(lambda: predict_step(value, layout, DGX))
    print(
        f"{model:>14} {layout.gpus:7,} GPUs  pp {layout.pp:2} x {layout.chunks}  {layout.micro_batches:5,} micro "
        f"batches  cold {1e3 * cold:8.1f} ms  warm {1e3 * warm:7.1f} ms"
    )


def one_search(model: str, gpus: int) -> tuple[int, float]:
    """Layouts of a search, and its seconds of CPU; wall time says more about the machine's other load."""
    value = load_model(model)
    start, wall = time.process_time(), time.perf_counter()
    _, answer = search(value, DGX, Bounds(gpus=gpus, global_batch=4 * gpus))
    took, wall = time.process_time() - start, time.perf_counter() - wall
    print(
        f"{model:>16} {gpus:7,} GPUs  {answer.considered:6,} layouts, {answer.fitting:6,} fit: {took:5.1f} s of CPU, "
        f"{wall:5.1f} s of wall time"
    )
    return answer.considered, took


def main() -> None:
    base = "tp=8,pp=4,vp=5,mbs=1,sp,sharding=zero1,overlap=dp+pp"
    print("growth with GPUs, the same micro batches:")
    for gpus in (64, 1024, 16384, 102400):
        one_layout("llama-3-70b", parse_layout(f"{base},gbs={gpus}", gpus=gpus))
    print("growth with micro batches:")
    for micro_batches in (8, 64, 512, 4096):
        one_layout("llama-3-70b", parse_layout(f"{base},gbs={micro_batches * 32}", gpus=1024))
    print("growth with stages:")
    for pp in (2, 8, 16):
        one_layout("llama-3-70b", parse_layout(f"tp=8,pp={pp},mbs=1,sp,sharding=zero1,gbs=4096", gpus=2048))
    print("search:")
    models = ("llama-3-70b", "nemotron-4-340b", "llama-3-405b", "mixtral-8x22b", "deepseek-v3", "qwen3-235b-a22b")
    searches = [one_search(model, 4096) for model in models]
    layouts, took = sum(count for count, _ in searches), sum(each for _, each in searches)
    print(f"all searches: {layouts:,} layouts, {took:.1f} s of CPU, {10_000 * took / layouts:.1f} s per 10,000")


if __name__ == "__main__":
    main()
