"""Thousands of damaged traces: each is a timeline or one of our own errors, and none takes long."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from makeway.read.traces.read import read_trace
from makeway.values.errors import MakewayError
from makeway.values.timeline import Timeline

ROUNDS = 5200
STRANGE: list[Any] = [
    *(None, True, False, 0, -1, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.5, -1e300, 1e-300),
    *("", "x", "-1", "1e999", "NaN", "ProfilerStep#1", "\0", "\ud7ff", '},{"ph":', "[0, 1", "kernel", "nccl" * 50),
    *([], [[]], [1, 2], [1, 2, 3, 4], {}, {"a": 1}, {"id": 0}, [{"id": 0, "name": "GPU"}], [None, "a", 3]),
]


def sample() -> dict[str, Any]:
    def event(cat: str, name: str, ts: Any, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 5.25, "args": args}

    on_gpu = {"device": 0, "stream": 7, "correlation": 3, "grid": [4, 1, 1], "block": [64, 1, 1], "priority": 0}
    size = {"registers per thread": 32, "shared memory": 1024}
    moved = {"Collective name": "allreduce", "In msg nelems": 5, "Out msg nelems": 5, "dtype": "Float", "Seq": 4}
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    wait = {"stream": 8, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 4, "correlation": 5, "device": 0}
    return {
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}],
        "distributedInfo": {"rank": 1, "world_size": 2, "nccl_version": "2.20", "pg_config": [{"pg_name": "0"}]},
        "traceEvents": [
            event("user_annotation", "ProfilerStep#3", 90),
            event("cuda_runtime", "cudaLaunchKernel", 99.5, correlation=3),
            event("cuda_runtime", "cudaEventRecord", 99.75, correlation=4),
            event("cuda_sync", "Stream Wait Event", 100, **wait),
            event("kernel", 'void gemm<{lambda()#1}>(\\, "a")', 101, **on_gpu, **size),
            event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 102.125, **on_gpu, **size, **moved, **group),
            event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 103, **on_gpu),
            {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        ],
        "baseTimeNanoseconds": 1767189312000000000,
    }


def changed_bytes(data: bytes, draw: random.Random) -> bytes:
    """A few bytes flipped, dropped, repeated, moved or replaced by others that mean something in JSON."""
    out = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at, size = draw.randrange(len(out) + 1), draw.choice((1, 1, 2, 8, 64))
        match draw.randrange(5):
            case 0 if at < len(out):
                out[at] ^= 1 << draw.randrange(8)
            case 1:
                del out[at : at + size]
            case 2:
                out[at:at] = out[at : at + size]
            case 3:
                out[at : at + 1] = draw.choice((b'"', b"{", b"}", b"[", b"]", b",", b"\\", b":", b"-", b"e9", b"\xff"))
            case _:
                other = draw.randrange(len(out) + 1)
                out[at:at] = out[other : other + size]
    return bytes(out)


def changed_values(document: dict[str, Any], draw: random.Random) -> bytes:
    """A few values replaced, dropped or repeated; the file stays JSON."""
    document = copy.deepcopy(document)
    for _ in range(draw.randint(1, 4)):
        place: Any = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw.choice(keys)
            if isinstance(place[key], dict | list) and place[key] and draw.random() < 0.8:
                place = place[key]
                continue
            match draw.randrange(4):
                case 0:
                    del place[key]
                case 1 if isinstance(place, list):
                    place.insert(key, copy.deepcopy(place[key]))
                case _:
                    place[key] = copy.deepcopy(draw.choice(STRANGE))
            break
    return json.dumps(document, indent=draw.choice((None, 1))).encode()


def read_anyhow(path: Path, data: bytes) -> Timeline | None:
    path.unlink(missing_ok=True)  # writing over a file can wait for the disk
    path.write_bytes(data)
    try:
        return read_trace(path)
    except MakewayError:
        return None


def survived(path: Path, draw: random.Random, damage: Callable[[random.Random], bytes], rounds: int) -> int:
    """How many of the damaged traces could still be read; any error that is not ours fails the test by itself."""
    read = 0
    for _ in range(rounds):
        data = damage(draw)
        timeline = read_anyhow(path, gzip.compress(data, 1) if draw.random() < 0.2 else data)
        if timeline is not None:
            read += 1
            assert timeline.spans
            assert timeline.ranks
            assert {span.rank for span in timeline.spans} <= {rank.rank for rank in timeline.ranks}
    return read


def test_changed_bytes_never_surprise_the_reader(tmp_path: Path, draw: random.Random) -> None:
    layouts = [json.dumps(sample(), indent=indent).encode() for indent in (None, 1)]
    read = survived(tmp_path / "t", draw, lambda draw: changed_bytes(draw.choice(layouts), draw), ROUNDS // 2)
    assert read > ROUNDS // 4


def test_changed_values_never_surprise_the_reader(tmp_path: Path, draw: random.Random) -> None:
    whole = sample()
    read = survived(tmp_path / "t", draw, lambda draw: changed_values(whole, draw), ROUNDS // 2)
    assert ROUNDS // 4 < read < ROUNDS // 2


def test_changed_gzip_data_never_surprise_the_reader(tmp_path: Path, draw: random.Random) -> None:
    packed = gzip.compress(json.dumps(sample()).encode(), mtime=0)
    for _ in range(ROUNDS // 6):
        read_anyhow(tmp_path / "t", changed_bytes(packed, draw))


def test_deep_nesting_ends_in_an_error_or_a_note(tmp_path: Path) -> None:
    deep = b"[" * 100_000
    for data in (
        deep,
        b'{"a":' * 100_000,
        b'{"traceEvents":' + deep,
        b'{"traceEvents":[{"args":' + deep,
        b'[{"ph":' + deep,
    ):
        assert read_anyhow(tmp_path / "t", data) is None
