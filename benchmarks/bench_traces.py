"""How fast traces are read: against bare JSON decoding, and end to end against HolisticTraceAnalysis (HTA).

    python benchmarks/bench_traces.py
    python benchmarks/grow_trace.py ../shared/traces/hta/a100_w8_rank3.json.gz /tmp/large.json --times 33
    python benchmarks/bench_traces.py --large /tmp/large.json [--hta-too]

Goals, A100 trace (34.8 MB of JSON): at most 1.5 times inflating and decoding it with msgspec; at least 8 times faster
than HTA. A trace of 1.16 GB: at least 25 times faster, under 300 MB. HTA needs pandas below 3, so it gets an
environment of its own; it is skipped where there is none:

    python -m venv .venv-hta && .venv-hta/bin/pip install HolisticTraceAnalysis==0.5.0 'pandas<3'
    export MAKEWAY_HTA_PYTHON=.venv-hta/bin/python      # this path is also the default
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from timing import interleaved, line

from makeway.read.traces import stream
from makeway.read.traces.kineto_events import Event
from makeway.read.traces.read import read_trace

ROOT = Path(__file__).parents[1]
RECORDINGS = Path(os.environ.get("MAKEWAY_TRACES", ROOT.parent / "shared" / "traces"))
TRACE = RECORDINGS / "hta" / "a100_w8_rank3.json.gz"
HTA_PYTHON = Path(os.environ.get("MAKEWAY_HTA_PYTHON", ROOT / ".venv-hta" / "bin" / "python"))

# Each prints its seconds without imports (which favours HTA), the overlap in percent, and its peak memory in MB.
OURS = """
import json, resource, sys, time
from pathlib import Path
from makeway.decide.analysis.figures import figures
from makeway.read.traces.read import read_trace
started = time.perf_counter()
result = figures(read_trace(Path(sys.argv[1])).spans)
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([seconds, 100 * result.overlap_ns / result.comm_ns, peak / 1024]))
"""
HTA = """
import json, logging, resource, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
started = time.perf_counter()
path = Path(sys.argv[1]).resolve()
analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
overlap = analysis.get_comm_comp_overlap(visualize=False)
analysis.get_temporal_breakdown(visualize=False)
seconds = time.perf_counter() - started
peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps([seconds, float(overlap["comp_comm_overlap_pctg"].iloc[0]), peak / 1024]))
"""


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


def process(python: str | Path, script: str, path: Path) -> tuple[float, float, float]:
    done = subprocess.run([str(python), "-c", script, str(path)], check=True, capture_output=True, text=True)
    seconds, overlap, peak_mb = json.loads(done.stdout.splitlines()[-1])
    return seconds, overlap, peak_mb


def against_decoding(path: Path) -> None:
    seconds = interleaved({"read_trace": lambda: read_trace(path), "msgspec alone": lambda: decoded(path)}, rounds=15)
    print(f"{path.name}: inflated with {stream.inflate.__name__}")
    for name, values in seconds.items():
        print(line(name, values))
    ratio = statistics.median(seconds["read_trace"]) / statistics.median(seconds["msgspec alone"])
    print(f"read_trace / msgspec alone: {ratio:.2f} (goal: at most 1.50)")


def end_to_end(path: Path, *, rounds: int, hta_rounds: int, goal: int) -> None:
    runs: dict[str, list[Any]] = {"makeway": [], "HTA": []}
    for number in range(rounds):
        runs["makeway"].append(process(sys.executable, OURS, path))
        if number < hta_rounds:
            runs["HTA"].append(process(HTA_PYTHON, HTA, path))
    print(f"{path.name}: loaded and analysed, a process each, imports not counted")
    medians = {}
    for name, results in runs.items():
        if results:
            seconds = sorted(result[0] for result in results)
            medians[name] = statistics.median(seconds)
            print(
                f"{name:<10} {medians[name]:8.2f} s  ({seconds[0]:.2f} to {seconds[-1]:.2f}, n={len(seconds)})  "
                f"peak {max(result[2] for result in results):,.0f} MB  overlap {results[0][1]:.2f} %"
            )
    if "HTA" in medians:
        print(f"HTA / makeway: {medians['HTA'] / medians['makeway']:.1f} times (goal: at least {goal})")


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
