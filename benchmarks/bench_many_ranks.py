"""Thousands of ranks: the size of summaries, the speed of the map, and the time and memory of the reduce.

    python benchmarks/bench_many_ranks.py [--ranks 4096] [--collectives 20000] [--folder /tmp/many-ranks]

Ranks are grown from real recordings. The map is measured on whole traces of that many collectives: two recordings,
repeated. Exact repeats compress too well, so judge the size by the summaries of all ranks, on which the reduce is
measured: a rank repeats one of the recorded ranks, and every start and duration is shifted at random by up to 2 us.
Goals: a summary of at most 2 % of its trace; a map within 1.5 times of reading the file with msgspec and isal; a reduce
in 60 s and 2 GB.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from dataclasses import replace
from operator import add
from pathlib import Path
from typing import Any

import msgspec
from bench_traces import decoded
from grow_trace import grow

from makeway.decide.analysis.many.map_rank import MapOptions, summaries_of
from makeway.decide.analysis.many.summary import MAGIC, Lane, LaneColumns, StoredSummary, encoded, stored_summaries
from makeway.read.traces import stream
from makeway.read.traces.read import find_traces

ROOT = Path(__file__).parents[1]
RECORDINGS = Path(os.environ.get("MAKEWAY_TRACES", ROOT.parent / "shared" / "traces"))
WHOLE = (("hta/v100_w2_rank1.json.gz", 2020), ("astra-megatron-tp8/rank0.json.gz", 84))
TEMPLATES = {"exposed": "astra-megatron-tp8", "overlapped": "torchrec/a2a_opt4_w4"}
SHIFT_NS = 2_000
POOL = 1 << 20
MOST_SIZE, MOST_MAP, MOST_REDUCE_S, MOST_REDUCE_GB = 0.02, 1.5, 60.0, 2.0

REDUCE = """
import json, resource, sys, time
from pathlib import Path
from makeway.decide.analysis.many.analyze_job import merge
wall, cpu = time.perf_counter(), time.process_time()
job = merge([Path(sys.argv[1])])
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps([wall, cpu, peak, len(job.ranks), job.matched, len(job.communicators), job.late_ranks[:3]]))
"""


def verdict(value: float, limit: float) -> str:
    return f"{'hit' if value <= limit else 'MISS'} (at most {limit:g})"


# --- whole traces --------------------------------------------------------------------------------


def measure_map(folder: Path, collectives: int) -> None:
    for name, recorded in WHOLE:
        grown = folder / f"grown-{name.replace('/', '-')}"
        times = -(-collectives // recorded)
        if not grown.exists():
            grow(RECORDINGS / name, grown, times)
        data = summaries_of(grown, MapOptions(cached=False))
        size = grown.stat().st_size
        share = len(data) / size
        print(f"{name} x {times}: {times * recorded:,} collectives, {size:,} bytes compressed")
        print(f"  summary  {len(data):>12,} bytes, {100 * share:.2f} % of the compressed trace  {verdict(share, 0.02)}")
        plain = cpu_seconds(lambda: len(msgspec.json.decode(inflated(grown))))  # noqa: B023
        typed = cpu_seconds(lambda: decoded(grown))  # noqa: B023
        mapped = cpu_seconds(lambda: len(summaries_of(grown, MapOptions(cached=False))))  # noqa: B023
        print(f"  inflate and decode with {stream.inflate.__name__} and msgspec: {plain:.2f} s of CPU time")
        print(f"  inflate and decode only the fields that makeway needs:          {typed:.2f} s")
        print(f"  map: {mapped:.2f} s, {size / mapped / 2**20:.1f} MB/s compressed per core")
        print(f"  {mapped / plain:.2f} times decoding      {verdict(mapped / plain, MOST_MAP)}")
        print(f"  {mapped / typed:.2f} times the least decoding  {verdict(mapped / typed, MOST_MAP)}")


def inflated(path: Path) -> bytes:
    data: bytes = stream.inflate.decompress(path.read_bytes(), stream.GZIP_WINDOW)
    return data


def cpu_seconds(work: Any) -> float:
    gc.collect()
    gc.disable()  # as makeway does while it reads
    started = time.process_time()
    work()
    seconds = time.process_time() - started
    gc.enable()
    return seconds


# --- summaries of all ranks ----------------------------------------------------------------------


def grown_summaries(folder: Path, kind: str, ranks: int, collectives: int, group: int) -> Path:
    """A file with the summaries of all ranks, in groups of `group` ranks."""
    out = folder / f"{kind}-{ranks}-{collectives}-{group}.summary"
    if out.exists():
        return out
    template = folder / f"{kind}.summary"
    files = find_traces([RECORDINGS / TEMPLATES[kind]]).files
    template.write_bytes(MAGIC + b"".join(summaries_of(path, MapOptions(cached=False)) for path in files))
    recorded = stored_summaries([template])
    period = 1_000_000 + max(item.summary.figures.span_ns for item in recorded)
    draw = random.Random(1)
    pool = array("q", (draw.randrange(SHIFT_NS) for _ in range(POOL + collectives)))
    with out.open("wb") as file:
        file.write(MAGIC)
        for rank in range(ranks):
            source = recorded[rank % len(recorded)]
            file.write(grown_rank(source, rank, ranks, collectives, group, period, pool, draw))
    return out


def grown_rank(
    source: StoredSummary,
    rank: int,
    ranks: int,
    collectives: int,
    group: int,
    period: int,
    pool: array[int],
    draw: random.Random,
) -> bytes:
    """One rank's entry: its longest lane repeated, in its group, with random shifts."""
    summary = source.summary
    lane = max(summary.lanes, key=lambda lane: lane.rows)
    starts, durations = source.starts_ns(lane), source.durations_ns(lane)
    times = -(-collectives // lane.rows)
    shifts = [pool[at : at + times * lane.rows] for at in (draw.randrange(POOL), draw.randrange(POOL))]
    pieces = list(zip(*source.pieces(lane), strict=True))
    columns = LaneColumns(
        starts_ns=list(map(add, [start + n * period for n in range(times) for start in starts], shifts[0])),
        durations_ns=list(map(add, [*durations] * times, shifts[1])),
        keys=[*source.keys(lane)] * times,
        sequence=None,
        whole=[*source.whole(lane)] * times,
        piece_rows=[row + n * lane.rows for n in range(times) for row, _, _, _ in pieces],
        piece_offsets_ns=[offset for _, offset, _, _ in pieces] * times,
        piece_times_ns=[time for _, _, time, _ in pieces] * times,
        piece_labels=[label for _, _, _, label in pieces] * times,
    )
    first = rank - rank % group
    placed = Lane(
        rows=times * lane.rows,
        group=f"{first // group}",
        group_ranks=tuple(range(first, first + group)) if group < ranks else (),
        first_ns=columns.starts_ns[0],
        pieces=len(columns.piece_rows),
    )
    scaled = {name: times * amount for name, amount in summary.ledger.items()}
    grown = replace(
        summary,
        rank=rank,
        stamp=replace(summary.stamp, rank=rank, world=ranks),
        lanes=(placed,),
        ledger=scaled,
        notes=(),
    )
    return encoded(grown, [columns.packed()])


def measure_reduce(path: Path) -> None:
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", REDUCE, str(path)], capture_output=True, text=True, check=True)
    wall, cpu, peak, ranks, matched, groups, late = json.loads(done.stdout)
    size = path.stat().st_size
    print(f"{path.name}: {size / 2**20:,.0f} MB of summaries, {size / ranks / 1024:,.0f} KB per rank")
    print(f"  {ranks:,} ranks, {groups:,} communicators, {matched:,} collectives matched; late ranks {late}")
    print(f"  {cpu:.1f} s of CPU time on one core   {verdict(cpu, MOST_REDUCE_S)}; {wall:.1f} s of wall time")
    print(f"  {peak:.2f} GB at most   {verdict(peak, MOST_REDUCE_GB)}; {time.perf_counter() - started:.0f} s in all")


def layouts(ranks: int) -> Iterator[tuple[str, int]]:
    yield "exposed", ranks
    yield "exposed", 8
    yield "overlapped", min(64, ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--collectives", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/many-ranks"))
    parser.add_argument("--only", choices=("map", "reduce"))
    asked = parser.parse_args()
    if not RECORDINGS.is_dir():
        print(f"no recordings in {RECORDINGS}: nothing to grow")
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.only != "reduce":
        measure_map(asked.folder, asked.collectives)
    if asked.only != "map":
        for kind, group in layouts(asked.ranks):
            measure_reduce(grown_summaries(asked.folder, kind, asked.ranks, asked.collectives, group))


if __name__ == "__main__":
    main()
