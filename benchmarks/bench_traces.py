"""How fast traces are read: against bare JSON decoding, and end to end against HolisticTraceAnalysis (HTA).

    python benchmarks/bench_traces.py
    python benchmarks/grow_trace.py ../shared/traces/hta/a100_w8_rank3.json.gz /tmp/large.json --times 33
    python benchmarks/bench_traces.py --large /tmp/large.json [--hta-too]

Goals, A100 trace (34.8 MB of JSON): reading takes at most 1.5 times inflating and decoding it with msgspec; the whole
command is at least 8 times faster than HTA. A trace of 1.16 GB: at least 25 times faster, with a fifth of the memory.
HTA needs pandas below 3, so it gets an environment of its own; it is skipped where there is none:

    python -m venv .venv-hta && .venv-hta/bin/pip install HolisticTraceAnalysis==0.5.0 'pandas<3'
    export MAKEWAY_HTA_PYTHON=.venv-hta/bin/python      # this path is also the default
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from timing import interleaved, line

from makeway.read.traces import stream
from makeway.read.traces.kineto_events import Event
from makeway.read.traces.read import read_trace

ROOT = Path(__file__).parents[1]
RECORDINGS = Path(os.environ.get("MAKEWAY_TRACES", ROOT.parent / "shared" / "traces"))
TRACE = RECORDINGS / "hta" / "a100_w8_rank3.json.gz"
HTA_PYTHON = Path(os.environ.get("MAKEWAY_HTA_PYTHON", ROOT / ".venv-hta" / "bin" / "python"))

# HTA's counterpart of `makeway analyze --json`: the figures that both compute.
HTA = """
import json, logging, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
path = Path(sys.argv[1]).resolve()
analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
overlap = analysis.get_comm_comp_overlap(visualize=False)
analysis.get_temporal_breakdown(visualize=False)
print(json.dumps({"ranks": [{"overlap_percent": float(overlap["comp_comm_overlap_pctg"].iloc[0])}]}))
"""


@dataclass(frozen=True)
class Process:
    """One run of a command as a user starts it: imports, reading, figures, ledger, what-if and printing."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    overlap_percent: float


class Document(msgspec.Struct):
    traceEvents: list[Event]  # noqa: N815 (the name in the file)


def decoded(path: Path) -> int:
    """The least that reading typed events can cost: all in memory, nothing looked at."""
    gc.disable()
    data = path.read_bytes()
    if data.startswith(stream.GZIP_MAGIC):
        data = stream.inflate.decompress(data, stream.GZIP_WINDOW)
    events = len(msgspec.json.decode(data, type=Document).traceEvents)
    gc.enable()
    return events


def process(command: list[str]) -> Process:
    """The whole process and its children, by the clock on the wall and by the processor time that it took."""
    with tempfile.TemporaryFile() as output:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{command[0]} ended with exit code {child.returncode}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        output.seek(0)
        answer = json.loads(output.read())
    return Process(
        wall_s=wall_s,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        peak_mb=usage.ru_maxrss / 1024,
        overlap_percent=answer["ranks"][0]["overlap_percent"],
    )


def against_decoding(path: Path) -> None:
    seconds = interleaved({"read_trace": lambda: read_trace(path), "msgspec alone": lambda: decoded(path)}, rounds=15)
    print(f"{path.name}: inflated with {stream.inflate.__name__}")
    for name, values in seconds.items():
        print(line(name, values))
    ratio = statistics.median(seconds["read_trace"]) / statistics.median(seconds["msgspec alone"])
    print(f"read_trace / msgspec alone: {ratio:.2f} (goal: at most 1.50)")


def end_to_end(path: Path, *, rounds: int, hta_rounds: int, goal: int) -> None:
    commands = {
        "makeway": [sys.executable, "-m", "makeway", "analyze", str(path), "--json"],
        "HTA": [str(HTA_PYTHON), "-c", HTA, str(path)],
    }
    runs: dict[str, list[Process]] = {"makeway": [], "HTA": []}
    for number in range(rounds):  # in turn, so that both meet the same load
        runs["makeway"].append(process(commands["makeway"]))
        if number < hta_rounds:
            runs["HTA"].append(process(commands["HTA"]))
    print(f"{path.name}: the whole command, a process each, what-if included")
    for name, results in runs.items():
        if results:
            walls = sorted(result.wall_s for result in results)
            print(
                f"{name:<10} {statistics.median(walls):8.2f} s  ({walls[0]:.2f} to {walls[-1]:.2f}, n={len(walls)})  "
                f"processor {statistics.median(result.cpu_s for result in results):.2f} s  "
                f"peak {max(result.peak_mb for result in results):,.0f} MB  overlap {results[0].overlap_percent:.2f} %"
            )
    if runs["HTA"]:
        wall, cpu, peak = (
            statistics.median(getattr(result, figure) for result in runs["HTA"])
            / statistics.median(getattr(result, figure) for result in runs["makeway"])
            for figure in ("wall_s", "cpu_s", "peak_mb")
        )
        print(f"HTA / makeway: {wall:.1f} times (goal: at least {goal}); processor time {cpu:.1f} times")
        print(f"memory: HTA takes {peak:.1f} times as much (goal: at least 5)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=Path, help="a trace made with grow_trace.py")
    parser.add_argument("--hta-too", action="store_true", help="HTA on the large trace too: minutes, and 5 GB")
    options = parser.parse_args()
    has_hta = HTA_PYTHON.exists()
    if not has_hta:
        print(f"HTA is skipped: no {HTA_PYTHON}; the top of this file says how to make it")
    if TRACE.exists():
        against_decoding(TRACE)
        end_to_end(TRACE, rounds=7, hta_rounds=7 if has_hta else 0, goal=8)
    else:
        print(f"skipped: no recording {TRACE}; name the place of the recordings in MAKEWAY_TRACES")
    if options.large is not None:
        end_to_end(options.large, rounds=3, hta_rounds=1 if has_hta and options.hta_too else 0, goal=25)


if __name__ == "__main__":
    main()
