"""Times of a search on disk: the second plan for the same workload searches without simulating.

A search is deterministic, so the times in the order in which it asked for them are enough. They are kept beside the
simulated runs (`makeway.model.simulate.disk_cache`), under a hash of the question and of everything that decides them:
the sources of the model and the planner, and the data files.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import makeway
from makeway.decide.planning.score import Controls
from makeway.decide.planning.search import TimeOf
from makeway.model.simulate.disk_cache import DiskCache

_CANNOT_RUN = -1.0
_DECIDING = ("model/simulate", "model", "values", "decide/planning", "data", "data/*")


class SearchMemo:
    """The times of one search: read before it, and written after it if any was missing."""

    def __init__(self, question: object) -> None:
        self._cache = DiskCache("runs", ("search", _version()))
        self._question = question
        self._kept = self._cache.read(question) or []
        self._times: list[float] = []

    def replayed(self, time_of: TimeOf) -> TimeOf:
        """`time_of`, answered from the kept times as far as they go."""

        def answer(controls: Controls) -> float | None:
            at = len(self._times)
            t_ns = self._kept[at] if at < len(self._kept) else time_of(controls)
            self._times.append(_CANNOT_RUN if t_ns is None else t_ns)
            return None if t_ns is None or t_ns < 0 else t_ns

        return answer

    def keep(self) -> None:
        if len(self._times) > len(self._kept):
            self._cache.write(self._question, self._times)


@cache
def _version() -> str:
    root = Path(makeway.__file__).parent
    files = sorted(
        {path for folder in _DECIDING for path in root.glob(f"{folder}/*.*") if path.suffix in (".py", ".toml")}
    )
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
