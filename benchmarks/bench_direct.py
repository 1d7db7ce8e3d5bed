"""Direct collectives against Gloo on this host: time, CPU time per byte, latency; results compared in the same run.

Size is the larger buffer of one rank, as in nccl-tests. Times are wall clock of the slowest rank, medians over rounds
that take turns; CPU time is the sum over ranks. Every rank runs one compute thread, as torchrun sets it.

    bench_direct.py [--ranks 2] [--sizes 1,16,64,256] [--rounds 7] [--pin]
"shared" rows give direct collectives tensors of `DirectGroup.shared_tensor`, which peers read in place; Gloo gets
ordinary ones.

    bench_direct.py --windows      which piece size and how many slots (16 and 64 MiB)
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from makeway.act.cpu import shared
from makeway.act.cpu.direct import PIECE_BYTES, SLOTS, DirectGroup
from makeway.values.units import KIB, MIB, format_bytes

TARGETS = {"all-gather": 4.0, "all-to-all": 4.0, "all-reduce": 2.5}  # times faster than Gloo, from 16 MiB on
TARGET_BYTES = 16 * MIB
# glibc streams past the cache from here on, and not only from most of the last-level cache; Gloo's copies as well.
STREAMING = "glibc.cpu.x86_non_temporal_threshold=0x100000"
LATENCY_BYTES, LATENCY_CALLS = 1 * KIB, 100
Run = Callable[[], object]
_SHARED: dict[int, torch.Tensor] = {}  # by size: they live as long as the group


def cases(group: DirectGroup, size: int) -> dict[str, tuple[Run, Run, torch.Tensor]]:
    """By collective: direct, Gloo, and the tensor that both write."""
    count, ranks = size // 4, group.ranks
    full = torch.rand(count)
    out, part = torch.empty(count), full[: count // ranks].clone()
    sums = torch.rand(count)
    piece = torch.empty(count // ranks)
    if count not in _SHARED:
        _SHARED[count] = group.shared_tensor(count)
    given = _SHARED[count]
    given.copy_(full)
    shares, adds = given[: count // ranks], given
    return {
        "all-gather, shared": (
            lambda: group.all_gather_into_tensor(out, shares),
            lambda: dist.all_gather_into_tensor(out, part),
            out,
        ),
        "all-to-all, shared": (
            lambda: group.all_to_all_single(out, given),
            lambda: dist.all_to_all_single(out, full),
            out,
        ),
        "all-reduce, shared": (lambda: group.all_reduce(adds), lambda: dist.all_reduce(adds), adds),
        "all-gather": (
            lambda: group.all_gather_into_tensor(out, part),
            lambda: dist.all_gather_into_tensor(out, part),
            out,
        ),
        "all-to-all": (lambda: group.all_to_all_single(out, full), lambda: dist.all_to_all_single(out, full), out),
        "reduce-scatter": (
            lambda: group.reduce_scatter_tensor(piece, full),
            lambda: dist.reduce_scatter_tensor(piece, full),
            piece,
        ),
        "all-reduce": (lambda: group.all_reduce(sums), lambda: dist.all_reduce(sums), sums),
        "broadcast": (lambda: group.broadcast(out), lambda: dist.broadcast(out, 0), out),
    }


def equal(name: str, direct: Run, gloo: Run, result: torch.Tensor, group: DirectGroup) -> bool:
    """Both give the same: to the bit where bytes only move or two ranks add, within rounding otherwise."""
    start = torch.rand_like(result)
    result.copy_(start)
    direct()
    found = result.clone()
    result.copy_(start)
    gloo()
    return torch.equal(found, result) if group.ranks == 2 else torch.allclose(found, result)


def timed(run: Run, times: int = 1) -> tuple[float, float]:
    """Seconds of the slowest rank, and CPU seconds of all ranks; per call of so many in a row."""
    dist.barrier()
    cpu, started = time.process_time(), time.perf_counter()
    for _ in range(times):
        run()
    spent = torch.tensor([time.perf_counter() - started, time.process_time() - cpu], dtype=torch.float64) / times
    slowest = spent[:1].clone()
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    dist.all_reduce(spent)
    return float(slowest), float(spent[1])


def row(name: str, size: int, group: DirectGroup, rounds: int, plain_copy_s: float) -> str:
    direct, gloo, result = cases(group, size)[name]
    same = equal(name, direct, gloo, result, group)
    times: dict[str, list[float]] = {"direct": [], "gloo": []}
    cpu: dict[str, list[float]] = {"direct": [], "gloo": []}
    for _ in range(rounds):
        if name.startswith("all-reduce"):
            result.fill_(1.0)
        for label, run in (("direct", direct), ("gloo", gloo)):
            seconds, cpu_seconds = timed(run, LATENCY_CALLS if size == LATENCY_BYTES else 1)
            times[label].append(seconds)
            cpu[label].append(cpu_seconds)
    ratio = statistics.median(times["gloo"]) / statistics.median(times["direct"])
    goal = TARGETS.get(name.partition(",")[0]) if size >= TARGET_BYTES and group.ranks == 2 else None
    limit = f"{statistics.median(times['direct']) / plain_copy_s:4.1f} plain copies"
    verdict = "" if goal is None else f"  target {goal:g}: {'reached' if ratio >= goal else 'MISSED'}"
    cells = "  ".join(f"{label} {_spread(times[label])} {_per_byte(cpu[label], size)}" for label in times)
    same_words = "equal" if same else "DIFFERENT"
    return f"{name:<19}{format_bytes(size):>9}  {cells}  {ratio:5.2f}x  {limit}  {same_words}{verdict}"


def _spread(seconds: list[float]) -> str:
    low, middle, high = (1e3 * value for value in statistics.quantiles(seconds, n=4))
    return f"{middle:8.2f} ms ({low:.2f} to {high:.2f})"


def _per_byte(cpu_seconds: list[float], size: int) -> str:
    return f"{1e9 * statistics.median(cpu_seconds) / size:5.2f} ns CPU/B"


def print_sizes(rank: int, sizes: list[int], rounds: int) -> None:
    with DirectGroup() as group:
        for size in (LATENCY_BYTES, *sizes):
            copy = _plain_copy(size)
            copy()  # the first touch of its memory
            copies = [timed(copy)[0] for _ in range(rounds)]
            if rank == 0:
                print(f"{'plain copy':<19}{format_bytes(size):>9}  {_spread(copies)}, every rank at once", flush=True)
            for name in cases(group, LATENCY_BYTES):
                text = row(name, size, group, rounds, statistics.median(copies))
                if rank == 0:
                    print(text, flush=True)


def _plain_copy(size: int) -> Run:
    """One copy of so many bytes: what no collective that fills such a buffer can beat."""
    source, into = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    return lambda: into.copy_(source)


def print_windows(rank: int, rounds: int) -> None:
    for piece in (128 * KIB, 256 * KIB, 512 * KIB, 1 * MIB, 2 * MIB, 4 * MIB):
        for slots in (2, 4, 8):
            with DirectGroup(piece_bytes=piece, slots=slots) as group:
                _SHARED.clear()  # those of the group before
                found = []
                for size in (16 * MIB, 64 * MIB):
                    for name in ("all-gather", "all-to-all", "all-reduce"):
                        direct, _, _ = cases(group, size)[name]
                        found.append(1e3 * statistics.median(timed(direct)[0] for _ in range(rounds)))
            if rank == 0:
                print(
                    f"{format_bytes(piece):>8} x {slots}  " + "  ".join(f"{each:7.2f} ms" for each in found), flush=True
                )


def print_sums(rank: int, rounds: int) -> None:
    """All-reduces of shared tensors by the bytes that are summed at a time; the sizes take turns."""
    pieces = (128 * KIB, 256 * KIB, 512 * KIB, 1 * MIB, 2 * MIB)
    with DirectGroup() as group:
        for size in (4 * MIB, 16 * MIB, 64 * MIB):
            direct, _, _ = cases(group, size)["all-reduce, shared"]
            seconds: dict[int, list[float]] = {piece: [] for piece in pieces}
            for _ in range(5 * rounds):
                for piece, times in seconds.items():
                    shared.SUMMED_BYTES = piece
                    times.append(timed(direct)[0])
            if rank == 0:
                medians = (
                    f"{format_bytes(at)} {1e3 * statistics.median(times):.2f} ms" for at, times in seconds.items()
                )
                print(f"sums of {format_bytes(size)}: " + ", ".join(medians), flush=True)


def run_rank(rank: int, ranks: int, port: int, sizes: list[int], rounds: int, windows: bool, pin: bool) -> None:
    if pin:
        os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    if windows:
        print_sums(rank, rounds)
        print_windows(rank, rounds)
    else:
        print_sizes(rank, sizes, rounds)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="1,16,64,256", help="MiB, with commas between")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--windows", action="store_true")
    parser.add_argument("--pin", action="store_true", help="each rank with all its threads on a core of its own")
    parser.add_argument(
        "--stock-memcpy", action="store_true", help="leave glibc's threshold for streaming copies alone"
    )
    asked = parser.parse_args()
    if not asked.stock_memcpy:
        os.environ.setdefault("GLIBC_TUNABLES", STREAMING)  # read when a process starts: here, in the ranks
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    print(f"{asked.ranks} ranks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    if asked.windows:
        print("piece x slots: all-gather, all-to-all, all-reduce at 16 MiB, then at 64 MiB")
    else:
        print(f"pieces of {format_bytes(PIECE_BYTES)}, {SLOTS} slots; median (quartiles), CPU time per byte of size")
    sizes = [int(size) * MIB for size in asked.sizes.split(",")]
    arguments = (asked.ranks, port, sizes, asked.rounds, asked.windows, asked.pin)
    spawn(run_rank, args=arguments, nprocs=asked.ranks)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
