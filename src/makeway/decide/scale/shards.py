"""Parts of a curve in files, for machines that share nothing: write one per shard, merge them to the whole curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from makeway.decide.analysis.many.analyze_job import Shard
from makeway.decide.scale.outcome import CompressedPoint, ControlTrial, ScaleCurve, ScalePoint
from makeway.decide.scale.sweep import Progress, SweepRequest, sweep_gpus
from makeway.read.fanout import OpenExecutor
from makeway.values.control import control_word, parse_control
from makeway.values.errors import InputError, printable
from makeway.values.facts import read_file
from makeway.values.layout_word import layout_word, parse_layout

SCHEMA = "makeway/scale-shard/1"
_MOST_SHARDS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveShard:
    """A part of a curve, as written."""

    shard: Shard
    gpus: tuple[int, ...]
    all_gpus: int
    content: bytes


def curve_shard(
    request: SweepRequest,
    gpus: Sequence[int],
    shard: Shard,
    *,
    open_executor: OpenExecutor | None = None,
    progress: Progress | None = None,
) -> CurveShard:
    """Every Nth number of GPUs, as the content of a file for `merge_curves`."""
    if shard.of > _MOST_SHARDS:
        raise InputError(f"--shard takes at most {_MOST_SHARDS:,} shards, got {shard.of:,}")
    own = tuple(gpus[shard.index - 1 :: shard.of])
    curve = sweep_gpus(request, own, open_executor=open_executor, progress=progress)
    document = {
        "schema": SCHEMA,
        "of": shard.of,
        "shard": shard.index,
        "gpus": list(gpus),
        "curve": {name: getattr(curve, name) for name in _HEAD},
        "points": [_written(point) for point in curve.points],
    }
    return CurveShard(shard=shard, gpus=own, all_gpus=len(gpus), content=msgspec.json.encode(document))


def is_curve_shard(path: Path) -> bool:
    """Whether a file begins as one of these."""
    return read_file(path, "shard")[:40].startswith(b'{"schema":"' + SCHEMA.encode())


def merge_curves(paths: Sequence[Path]) -> ScaleCurve:
    """The curve whose shards are in these files; all of them, each once, of one curve."""
    documents = [_read(path) for path in paths]
    first = documents[0]
    for path, document in zip(paths, documents, strict=True):
        if any(document[key] != first[key] for key in ("of", "gpus", "curve")):
            raise InputError(f"{printable(path)} is a shard of another curve than {printable(paths[0])}")
    given = sorted(document["shard"] for document in documents)
    missing = sorted(set(range(1, first["of"] + 1)) - set(given))
    if missing:
        raise InputError(f"shard {missing[0]}/{first['of']} is missing; {len(set(given))} of {first['of']} were given")
    if len(set(given)) < len(given):
        raise InputError("a shard was given twice; give each file once")
    points = sorted((point for document in documents for point in document["points"]), key=lambda point: point.gpus)
    if [point.gpus for point in points] != first["gpus"]:
        raise InputError(f"{printable(paths[0])} and the others do not hold the numbers of GPUs that they name")
    return ScaleCurve(points=tuple(points), **first["curve"])


_HEAD = ("model", "cluster", "device", "seq", "sequences_per_gpu")
_NUMBERS = (
    "gpus", "step_ns", "tokens_per_s_per_gpu", "mfu", "memory_bytes", "exposed_share", "contention_share",
    "bubble_share", "assumed", "reason",
)  # fmt: skip


def _written(point: ScalePoint) -> dict[str, Any]:
    return {name: getattr(point, name) for name in _NUMBERS} | {
        "layout": None if point.layout is None else layout_word(point.layout),
        "trials": [asdict(trial) | {"controls": list(map(control_word, trial.controls))} for trial in point.trials],
        "compressed": [asdict(item) for item in point.compressed],
    }


def _read(path: Path) -> dict[str, Any]:
    """The parts of one file; one that was not written by `curve_shard` is an error."""
    try:
        document = msgspec.json.decode(read_file(path, "shard"))
        if document["schema"] != SCHEMA:
            raise KeyError("schema")
        curve = {name: document["curve"][name] for name in _HEAD}
        points = [_point(entry) for entry in document["points"]]
        return {
            "of": int(document["of"]),
            "shard": int(document["shard"]),
            "gpus": [int(count) for count in document["gpus"]],
            "curve": curve,
            "points": points,
        }
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{printable(path)} is not a shard that makeway scale wrote ({error})") from None


def _point(entry: dict[str, Any]) -> ScalePoint:
    numbers = {name: entry[name] for name in _NUMBERS}
    numbers["assumed"] = tuple(numbers["assumed"])
    return ScalePoint(
        **numbers,
        layout=None if entry["layout"] is None else parse_layout(entry["layout"]),
        trials=tuple(
            ControlTrial(**trial | {"controls": tuple(map(parse_control, trial["controls"]))})
            for trial in entry["trials"]
        ),
        compressed=tuple(CompressedPoint(**item) for item in entry["compressed"]),
    )
