"""Measured pairs on disk: numbers under a hash of everything they depend on, the simulator's own source included.

One small file per measurement in `$XDG_CACHE_HOME/makeway/pairs` (default ~/.cache/makeway/pairs), readable by its
owner only. The directory may be deleted at any time. What is damaged, or belongs to somebody else, is not read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from makeway.model import residency

MOST_BYTES = 1 << 20  # of one file


class PairCache:
    """The measurements that share a prefix: device, engine and policies."""

    def __init__(self, prefix: object) -> None:
        self._directory = _own_directory()
        self._prefix = f"{_model_version()}\0{prefix!r}\0"

    def read(self, key: object) -> list[float] | None:
        """The numbers kept under a key; None where there are none that can be trusted."""
        if self._directory is None:
            return None
        try:
            digest, _, text = _own_text(self._directory / self._name(key)).partition("\n")
            numbers = json.loads(text)
        except (OSError, ValueError):
            return None
        if digest != _digest(text) or not isinstance(numbers, list):
            return None
        finite = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        return [float(number) for number in numbers] if finite else None

    def write(self, key: object, numbers: list[float]) -> None:
        """Keep numbers for other processes; where the disk refuses, they are measured again next time."""
        if self._directory is None:
            return
        text = json.dumps(numbers, allow_nan=False)
        try:
            handle, name = tempfile.mkstemp(dir=self._directory, prefix=".pair-")
            try:
                with os.fdopen(handle, "w", encoding="ascii") as file:
                    file.write(f"{_digest(text)}\n{text}")
                os.replace(name, self._directory / self._name(key))
            except BaseException:
                os.unlink(name)
                raise
        except OSError:
            return

    def _name(self, key: object) -> str:
        return f"{_digest(f'{self._prefix}{key!r}')}.json"


def default_directory() -> Path:
    """The directory of measured pairs."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "makeway" / "pairs"


def _own_directory() -> Path | None:
    """The directory, created where it is missing; None unless only its owner, this user, may write to it."""
    try:
        path = default_directory()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        facts = path.lstat()
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022
    return path if own else None


def _own_text(path: Path) -> str:
    """The text of a plain file of this user."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="ascii") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_size > MOST_BYTES:
            raise ValueError(f"{path} is not a file of this user")
        return file.read()


@cache
def _model_version() -> str:
    """A hash of the simulator's source: a changed model never reads what another one measured."""
    sources = [*sorted(Path(__file__).parent.glob("*.py")), Path(residency.__file__)]
    return _digest("\0".join(f"{path.name}\0{path.read_text(encoding='utf-8')}" for path in sources))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]
