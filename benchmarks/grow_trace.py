"""A trace of any size, from a small one: SRC's events TIMES over, each copy later and with its own correlation ids.

    python benchmarks/grow_trace.py ../shared/traces/hta/a100_w8_rank3.json.gz /tmp/large.json --times 30

Thirty copies of that trace are 3.3 million events, 257,040 of them kernels. An OUT that ends in .gz is compressed.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from makeway.read.traces.stream import ByteSource, EventStream

GAP_US = 1000
STEP = re.compile(r"ProfilerStep#(\d+)")
Event = dict[str, Any]


def events_of(source: Path) -> Iterator[Event]:
    for piece in EventStream(ByteSource(source), msgspec.json.Decoder(list[Event])).pieces():
        yield from piece


def header_of(source: Path) -> Event:
    stream = EventStream(ByteSource(source), msgspec.json.Decoder(list[msgspec.Raw]))
    for _ in stream.pieces():
        pass
    return stream.header


def periods(source: Path) -> tuple[int, int, int]:
    """How far one copy lies from the next: microseconds, ids, profiler steps."""
    starts, ends, ids, steps = [], [], [0], [0]
    for event in events_of(source):
        if event.get("ph") == "X" and event.get("cat") != "Trace":
            starts.append(event["ts"])
            ends.append(event["ts"] + event["dur"])
        args = event.get("args", {})
        ids += [value for value in (args.get("correlation"), args.get("External id"), event.get("id")) if value]
        steps += [int(found[1]) for found in [STEP.match(str(event.get("name")))] if found]
    return int(max(ends) - min(starts)) + GAP_US, max(map(int, ids)) + 1, max(steps) + 1


def shifted(event: Event, us: int, ids: int, steps: int) -> Event:
    if "ts" in event:
        event["ts"] += us
    if "id" in event:
        event["id"] += ids
    args = event.get("args", {})
    for key in ("correlation", "External id"):
        if args.get(key):
            args[key] += ids
    if found := STEP.match(str(event.get("name"))):
        event["name"] = f"ProfilerStep#{int(found[1]) + steps}"
    return event


def grow(source: Path, out: Path, times: int) -> None:
    period_us, ids, steps = periods(source)
    head = msgspec.json.encode(header_of(source))[:-1]
    separator = b"," if len(head) > 1 else b""
    with cast(IO[bytes], gzip.open(out, "wb", compresslevel=6) if out.suffix == ".gz" else out.open("wb")) as file:
        file.write(head + separator + b'"traceEvents": [\n')
        between = b""
        for copy in range(times):
            for event in events_of(source):
                moved = shifted(event, copy * period_us, copy * ids, copy * steps)
                file.write(between + msgspec.json.format(msgspec.json.encode(moved), indent=1))
                between = b",\n"
        file.write(b"\n]}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--times", type=int, default=30)
    asked = parser.parse_args()
    grow(asked.source, asked.out, asked.times)
    print(f"{asked.out}: {asked.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
