"""Other tools' errors on the rows that makeway predicts: their own published predictions, or runs of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING, Any

from makeway.values.facts import data_files, parse_toml, refuse_unknown

if TYPE_CHECKING:
    from makeway.decide.scale.validate import ScaleRow

_KEYS = ("name", "table", "error", "ms", "calibrated", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePeer:
    """Another tool and makeway on the same rows."""

    name: str
    rows: int
    peer_error: float
    error: float
    test_rows: int  # of them that none of our numbers was fitted to
    test_error: float | None
    peer_ms: float | None  # processor time per configuration; None: not known
    ms: float
    calibrated: str  # what the other tool's numbers had seen of the rows
    source: str


@cache
def known_peers() -> tuple[dict[str, Any], ...]:
    """Tools whose error on a table is known as one figure."""
    where = "peers.toml"
    document = parse_toml(data_files(where).read_bytes(), where=where)
    refuse_unknown(document, ("peer",), where=where)
    for entry in document["peer"]:
        refuse_unknown(entry, _KEYS, where=where)
    return tuple(document["peer"])


def peers_of(rows: Sequence[ScaleRow], ms: float) -> Iterable[ScalePeer]:
    """Every tool that predicts some of these rows; SimuMax from the rows' own column."""
    timed = [row for row in rows if row.error is not None and row.timed]
    for peer in known_peers():
        if group := [row for row in timed if row.table == peer["table"]]:
            yield _peer(f"{peer['name']}, {peer['table']}", group, peer["error"], ms, peer)
    shared = [row for row in timed if row.peer is not None]
    simumax = {
        "ms": 1400.0,
        "calibrated": "the efficiency of every shape was measured on the machine",
        "source": "MooreThreads/SimuMax, docs/b200, predictions printed beside the measurements; time of one example",
    }
    for kind in (True, False):
        if group := [row for row in shared if row.dense == kind]:
            off = fmean(abs((row.peer or 0.0) / (row.published or 1.0) - 1) for row in group)
            yield _peer(f"SimuMax, {'dense' if kind else 'experts'}", group, off, ms, simumax)


def _peer(name: str, group: Sequence[ScaleRow], off: float, ms: float, facts: dict[str, Any]) -> ScalePeer:
    test = [abs(row.error or 0.0) for row in group if row.status == "test"]
    return ScalePeer(
        name=name,
        rows=len(group),
        peer_error=off,
        error=fmean(abs(row.error or 0.0) for row in group),
        test_rows=len(test),
        test_error=fmean(test) if test else None,
        peer_ms=facts.get("ms"),
        ms=ms,
        calibrated=facts["calibrated"],
        source=facts["source"],
    )
