"""Simulated runs on disk: numbers under a hash of everything they depend on, the simulator's own source included.

One small file per run in a folder of `$XDG_CACHE_HOME/makeway` (default ~/.cache/makeway), readable by its owner
only: `pairs` for the fluid engine's pairs, `runs` for whole programs. A folder may be deleted at any time, and its
oldest files go when it grows beyond `MOST_FOLDER_BYTES`. What is damaged, or belongs to somebody else, is not read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

from makeway.model import residency
from makeway.values.own_files import own_bytes, own_folder, write_whole

MOST_BYTES = 1 << 20  # of one file
MOST_FOLDER_BYTES = 64 << 20
_WRITES_PER_CHECK = 64
Folder = Literal["pairs", "runs"]
_writes: Counter[Path] = Counter()  # of this process, by folder


class DiskCache:
    """The runs that share a folder and a prefix: engine, policies and, for pairs, the device."""

    def __init__(self, folder: Folder, prefix: object) -> None:
        self._directory = own_folder(folder, closed=0o022)
        self._prefix = f"{_model_version()}\0{prefix!r}\0"

    def read(self, key: object) -> list[float] | None:
        """The numbers kept under a key; None where there are none that can be trusted."""
        if self._directory is None:
            return None
        try:
            content = own_bytes(self._directory / self._name(key), most_bytes=MOST_BYTES).decode("ascii")
            digest, _, text = content.partition("\n")
            numbers = json.loads(text)
        except (OSError, ValueError):
            return None
        if digest != _digest(text) or not isinstance(numbers, list):
            return None
        finite = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        return [float(number) for number in numbers] if finite else None

    def write(self, key: object, numbers: list[float]) -> None:
        """Keep numbers for other processes; where the disk refuses, they are computed again next time."""
        text = json.dumps(numbers, allow_nan=False)
        if self._directory is None or len(text) >= MOST_BYTES:
            return
        if _writes[self._directory] % _WRITES_PER_CHECK == 0:
            _drop_oldest(self._directory)
        _writes[self._directory] += 1
        with suppress(OSError):
            write_whole(self._directory / self._name(key), f"{_digest(text)}\n{text}".encode("ascii"))

    def _name(self, key: object) -> str:
        return f"{_digest(f'{self._prefix}{key!r}')}.json"


def _drop_oldest(directory: Path) -> None:
    """Delete the oldest files where a folder is too large, until a quarter of it is free again."""
    try:
        with os.scandir(directory) as entries:
            facts = [(entry.stat(follow_symlinks=False), entry.path) for entry in entries]
        files = sorted((item.st_mtime_ns, item.st_size, path) for item, path in facts)
        size = sum(size for _, size, _ in files)
        if size <= MOST_FOLDER_BYTES:
            return
        for _, file_bytes, path in files:
            if size <= MOST_FOLDER_BYTES * 3 // 4:
                return
            os.unlink(path)
            size -= file_bytes
    except OSError:  # another process drops them too
        return


@cache
def _model_version() -> str:
    """A hash of the simulator's source: a changed model never reads what another one computed."""
    sources = [*sorted(Path(__file__).parent.glob("*.py")), Path(residency.__file__)]
    return _digest("\0".join(f"{path.name}\0{path.read_text(encoding='utf-8')}" for path in sources))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]
