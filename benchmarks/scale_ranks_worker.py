"""A rank of bench_scale_ranks.py: trains the cells of a job with public torch alone, and times probes of other shapes.

Compute probes run on all ranks at once, so that they share cores and memory as training does. Gloo carries everything.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, pairwise
from threading import Thread

import msgspec
import torch
import torch.distributed as dist
from scale_ranks_cells import step_of
from scale_ranks_job import COMM_BYTES, Probe, RanksAnswer, RanksJob
from torch.nn import functional

from makeway.act.measure.launch import REPORT_VARIABLE
from makeway.act.measure.ranks.main import Reporter, verdict
from makeway.act.measure.ranks.world import World, join, leave

WINDOW_S, WINDOWS = 0.15, 3
# No shape of a cell: rows, columns, inner dimension.
PRODUCTS = ((384, 448, 320), (640, 896, 448), (192, 640, 896), (320, 1280, 320), (448, 320, 1280))
PASS_BYTES, POOL = 3 << 18, 48  # tensors of 0.75 MiB, together larger than the caches
ATTENTION = ((2, 5, 96, 64), (3, 6, 160, 64))  # batch, heads, sequence, head size
BESIDE_BYTES, BESIDE_S = 3 << 20, 0.6
Sets = Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]  # operands of products


def main() -> int:
    reporter = Reporter(int(os.environ[REPORT_VARIABLE]))
    reporter("start")
    torch.set_num_threads(1)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=RanksJob)
    try:
        world = join(job.timeout_s)
        reporter("met", met=True)
        answer = answered(job, world, reporter)
        leave()
    except Exception as error:
        reporter(**verdict(error))
        return 1
    reporter(result=msgspec.to_builtins(answer) if world.rank == 0 else None, done=True)
    return 0


def answered(job: RanksJob, world: World, reporter: Reporter) -> RanksAnswer:
    probes: list[Probe] = []
    for made in (comm_probes, compute_probes, beside_probes):
        reporter(made.__name__)
        probes += made(world)
    return RanksAnswer(probes=tuple(probes), steps_s=interleaved(job, world, reporter))


def interleaved(job: RanksJob, world: World, reporter: Reporter) -> tuple[tuple[float, ...], ...]:
    """Seconds of the steps of each cell; the cells take turns, so that noise hits all alike."""
    itself = [dist.new_group([rank]) for rank in range(world.ranks)][world.rank]
    steps: list[Callable[[], None]] = []
    for cell in job.cells:
        reporter(cell.name)
        steps.append(step_of(cell, world, itself if cell.alone else None))
        for _ in range(job.warmup):
            steps[-1]()
    times: list[list[float]] = [[] for _ in steps]
    for number in range(job.steps):
        reporter(f"round {number + 1} of {job.steps}")
        for step, own in zip(steps, times, strict=True):
            world.barrier()
            started = time.perf_counter()
            step()
            own.append(time.perf_counter() - started)
    return tuple(map(tuple, times))


def window_s(world: World, run: Callable[[], object], *, window: float = WINDOW_S) -> float:
    """Seconds of one call, over windows in which all ranks call at once."""
    run()
    each = []
    for _ in range(WINDOWS):
        world.barrier()
        calls, started = 0, time.perf_counter()
        while time.perf_counter() - started < window:
            run()
            calls += 1
        each.append((time.perf_counter() - started) / calls)
    return statistics.median(each)


def _sets(m: int, n: int, k: int) -> int:
    """Operands of a product that are together larger than the caches."""
    return -(-POOL * PASS_BYTES // (4 * (m * k + n * k + m * n)))


def compute_probes(world: World) -> Iterator[Probe]:
    for m, n, k in PRODUCTS:
        # A step comes back to a weight when all others have passed through the caches; so do these.
        sets = cycle([(torch.randn(m, k), torch.randn(n, k), torch.randn(m, n)) for _ in range(_sets(m, n, k))])

        # As a linear layer multiplies: forward, gradient of its input, gradient of its weight.
        def by_layer(sets: Sets = sets) -> torch.Tensor:
            x, w, _ = next(sets)
            return x @ w.t()

        def by_input(sets: Sets = sets) -> torch.Tensor:
            _, w, y = next(sets)
            return y @ w

        def by_weight(sets: Sets = sets) -> torch.Tensor:
            x, _, y = next(sets)
            return y.t() @ x

        yield Probe("product", (m, n, k), window_s(world, by_layer))
        yield Probe("product", (m, k, n), window_s(world, by_input))
        yield Probe("product", (n, k, m), window_s(world, by_weight))
    pool = [torch.randn(PASS_BYTES // 4) for _ in range(POOL)]

    def passes() -> list[torch.Tensor]:
        return [first + second for first, second in pairwise(pool)]

    yield Probe("pass", (3.0 * PASS_BYTES * (POOL - 1),), window_s(world, passes))
    for batch, heads, seq, size in ATTENTION:
        inputs = [torch.randn(batch, heads, seq, size, requires_grad=True) for _ in range(3)]

        def forward(inputs: list[torch.Tensor] = inputs) -> torch.Tensor:
            query, key, value = inputs
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

        gradient = torch.randn(batch, heads, seq, size)
        one_way = window_s(world, forward)
        both = window_s(world, lambda f=forward, g=gradient: f().backward(g))  # type: ignore[misc]
        scores = batch * heads * seq * seq / 2
        yield Probe("attention", (4.0 * scores * size,), one_way)
        yield Probe("attention dx", (10.0 * scores * size,), both - one_way)


def collective(kind: str, size: int, world: World) -> Callable[[], dist.Work | None]:
    """One collective of `size` bytes, as nccl-tests counts them, started and not awaited."""
    elements = size // 4 // world.ranks * world.ranks
    whole, part = torch.ones(elements), torch.ones(elements // world.ranks)
    match kind:
        case "all-reduce":
            return lambda: dist.all_reduce(whole, async_op=True)
        case "all-gather":
            return lambda: dist.all_gather_single(whole, part, async_op=True)
        case "reduce-scatter":
            return lambda: dist.reduce_scatter_single(part, whole, async_op=True)
        case _:  # rank 0 to rank 1 and back
            return lambda: _ping(whole, world.rank)


def _ping(tensor: torch.Tensor, rank: int) -> dist.Work | None:
    if rank == 0:
        dist.send(tensor, 1)
        return dist.irecv(tensor, 1)
    if rank == 1:
        dist.recv(tensor, 0)
        return dist.isend(tensor, 0)
    return None


def awaited(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


def await_all(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        awaited(work)


def comm_probes(world: World) -> Iterator[Probe]:
    """Collectives alone; the number of calls follows from the first, so that all ranks make the same."""
    for kind in ("all-reduce", "all-gather", "reduce-scatter", "send-recv"):
        for size in COMM_BYTES:
            start = collective(kind, size, world)
            awaited(start())
            world.barrier()
            began = time.perf_counter()
            awaited(start())
            once = world.broadcast(lambda began=began: time.perf_counter() - began, float)  # type: ignore[misc]
            calls = max(3, min(40, round(0.3 / max(once, 1e-4))))
            each = []
            for _ in range(WINDOWS):
                world.barrier()
                began = time.perf_counter()
                for _ in range(calls):
                    awaited(start())
                each.append((time.perf_counter() - began) / calls)
            trips = 2 if kind == "send-recv" else 1
            yield Probe(kind, (float(size),), statistics.median(each) / trips)


def beside_probes(world: World) -> Iterator[Probe]:
    """What moving bytes takes from a product beside it: products alone, and while collectives are under way."""
    m, n, k = PRODUCTS[1]
    x, w = torch.randn(m, k), torch.randn(k, n)
    for kind in ("all-reduce", "all-gather", "reduce-scatter"):
        start = collective(kind, BESIDE_BYTES, world)
        alone = window_s(world, lambda: x @ w)
        world.barrier()
        began = time.perf_counter()
        awaited(start())
        once = world.broadcast(lambda began=began: time.perf_counter() - began, float)  # type: ignore[misc]
        count = max(4, min(60, round(BESIDE_S / once)))
        world.barrier()
        calls, began = 0, time.perf_counter()
        works = [start() for _ in range(count)]
        waiting = Thread(target=await_all, args=(works,))
        waiting.start()
        while waiting.is_alive():
            x @ w
            calls += 1
        took = time.perf_counter() - began
        world.barrier()
        yield Probe(f"beside {kind}", (float(BESIDE_BYTES * count), took), took - calls * alone)


if __name__ == "__main__":
    sys.exit(main())
