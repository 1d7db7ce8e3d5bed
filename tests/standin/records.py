"""What a stand-in driver recorded, as values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch as the driver got it; `error` is the result it gave, 0 when it went through."""

    kernel: str
    call: str
    via: str  # "stream", "capture" (became a node) or "graph" (a node that was run)
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem_bytes: int  # dynamic
    static_bytes: int
    stream: int  # 0 is the default stream, others count from 1 as they were made
    priority: int
    attributes: Mapping[str, Any]
    parameters: str  # digest of the arguments
    resident_blocks: int  # by NVIDIA's occupancy calculator (HIP: as ROCm counts)
    pid: int
    thread: int
    error: int
    refused: bool  # because the test asked for it
    carve_out: int = -1  # percent of the memory that is shared memory; -1: the driver's choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream that was made."""

    id: int
    asked: int  # the priority that the program wanted
    priority: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionAttribute:
    """A function attribute that was set, or not."""

    kernel: str
    attribute: int
    value: int
    error: int
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParams:
    """Parameters of a graph's kernel node that were given or changed."""

    call: str
    index: int
    smem_bytes: int
    error: int
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAttribute:
    """An attribute of a graph's kernel node that was changed."""

    index: int
    attribute: int
    error: int
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A kernel that ran on the simulated SMs, by the virtual clock."""

    kernel: str
    stream: int
    grid: int  # blocks
    resident: int  # the most at one time
    peak_per_sm: int
    waves: int
    start_ns: int
    last_start_ns: int  # of a block
    first_end_ns: int
    end_ns: int
    carve_out_waits: int  # 1: it had to wait for SMs with another carve-out to empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A kernel that never ends: it waits for blocks that have no room, or for such a kernel."""

    kernel: str
    stream: int
    grid: int
    resident: int  # blocks that wait on the SMs
    carve_out_waits: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """A call that the stand-in does not implement."""

    call: str


@dataclass(frozen=True, slots=True)
class Other:
    """Anything else: "module", "capture", "instantiate", "graph_launch", "update"."""

    kind: str
    values: Mapping[str, Any]


Record: TypeAlias = Launch | Stream | FunctionAttribute | NodeParams | NodeAttribute | Ran | Hang | Unknown | Other


def read_record(path: Path) -> list[Record]:
    """All records of a file in the order they were written; none when there is no file."""
    if not path.exists():
        return []
    return [_record(json.loads(line)) for line in path.read_text().splitlines()]


def launches(path: Path) -> list[Launch]:
    """The launches that a file records, captured ones left out: their nodes are launches when the graph runs."""
    return [record for record in read_record(path) if isinstance(record, Launch) and record.via != "capture"]


def _record(document: dict[str, Any]) -> Record:
    ((kind, body),) = document.items()
    match kind:
        case "launch":
            return Launch(**body | {"grid": tuple(body["grid"]), "block": tuple(body["block"])})
        case "stream":
            return Stream(**body)
        case "attribute":
            return FunctionAttribute(**body)
        case "node":
            return NodeParams(**body)
        case "node_attribute":
            return NodeAttribute(**body)
        case "ran":
            return Ran(**body)
        case "hang":
            return Hang(**body)
        case "unknown":
            return Unknown(body)
        case _:
            return Other(kind, body)
