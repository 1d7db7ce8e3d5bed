"""Running our own driver of the tuner interface with the plugin."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from makeway.act.preload.build import LIBRARIES
from makeway.act.tuner.build import PLUGIN
from makeway.act.tuner.tally import Tally, read_tallies

HERE = Path(__file__).parent
VERSIONS = (2, 3, 4, 5, 6, 7)
WARNINGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror")
BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = range(5)
TREE, RING, NVLS = 0, 1, 4
LL, LL128, SIMPLE = range(3)
MIB = 1 << 20


def compile_driver(target: Path, *flags: str) -> Path:
    return _compile(target, (*WARNINGS, *flags), [str(HERE / "driver.c")])


def compile_plugin(target: Path, *flags: str) -> Path:
    """The plugin as users get it, but with warnings as errors."""
    sources = [str(path) for path in PLUGIN.sources if path.suffix == ".c"]
    return _compile(target, (*PLUGIN.flags, "-Werror", *flags), sources)


def _compile(target: Path, flags: tuple[str, ...], sources: list[str]) -> Path:
    subprocess.run(["gcc", *flags, *sources, "-o", str(target), *LIBRARIES], check=True, timeout=120)
    return target


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the plugin answered, and what it counted."""

    code: int
    answers: tuple[tuple[int, ...], ...]  # channels, and what NCCL then takes: algorithm and protocol
    tallies: tuple[Tally, ...]
    stderr: str

    @property
    def tally(self) -> Tally:
        (tally,) = self.tallies
        return tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The driver, the plugin, and a place for files."""

    driver: Path
    plugin: Path
    home: Path
    extra: dict[str, str] = field(default_factory=dict)

    def environment(self, rules: Path | None, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKEWAY", "RANK", "NCCL"))}
        files = {} if rules is None else {"MAKEWAY_TUNER_RULES": str(rules)}
        mine = {"NCCL_TUNER_PLUGIN": str(self.plugin), "MAKEWAY_RECEIPTS": str(self.home)}
        return {**kept, **mine, **files, **self.extra, **more}

    def rules(self, content: bytes) -> Path:
        path = self.home / "channels"
        path.write_bytes(content)
        path.chmod(0o600)
        return path

    def ask(self, version: int, *steps: str | int, rules: bytes | Path | None, **more: str) -> Asked:
        path = self.rules(rules) if isinstance(rules, bytes) else rules
        for old in self.home.glob("tuner-*"):
            old.unlink()
        done = subprocess.run(
            [str(self.driver), str(version), *map(str, steps)],
            env=self.environment(path, **more),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Asked(
            code=done.returncode,
            answers=tuple(tuple(map(int, line.split())) for line in done.stdout.splitlines()),
            tallies=read_tallies(self.home),
            stderr=done.stderr,
        )
