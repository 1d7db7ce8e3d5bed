"""Building C programs for the tests of the launch shim, and running them under it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from makeway.act.preload.build import FLAGS, LIBRARIES, SOURCES
from makeway.act.preload.receipts import KernelCounts, LaunchReceipts, read_receipts
from makeway.act.preload.rules import LaunchRule, Rules, encode_rules, rules_of
from makeway.values.plan import Plan

HERE = Path(__file__).parent
WARNINGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{SOURCES}")
COMM_PATTERNS = rules_of(Plan(controls=())).comm_patterns
COMM = "_Z24ncclDevKernel_AllReduce_Sum_f32_RING_LL"  # a name that the patterns know


def compile_program(target: Path, *words: str) -> Path:
    """`target`, compiled from sources and flags, warnings being errors."""
    subprocess.run(["gcc", *WARNINGS, *words, "-o", str(target), *LIBRARIES], check=True, timeout=120)
    return target


def driver(where: Path, *flags: str) -> Path:
    """A directory that holds the scripted libcuda.so.1."""
    where.mkdir()
    shared = ("-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic-functions")
    compile_program(where / "libcuda.so.1", *shared, *flags, str(HERE / "driver.c"))
    return where


def shim_sources() -> list[str]:
    return [str(path) for path in sorted(SOURCES.glob("*.c"))]


def shim_library(target: Path) -> Path:
    """The shim as users get it, but with warnings as errors."""
    subprocess.run(["gcc", *FLAGS, "-Werror", *shim_sources(), "-o", str(target), *LIBRARIES], check=True, timeout=120)
    return target


def pads(pattern: str = "gemm*", pad_bytes: int = 60_000) -> Rules:
    return rules(LaunchRule(pattern=pattern, pad_bytes=pad_bytes))


def rules(*launches: LaunchRule, raise_comm_priority: bool = False) -> Rules:
    return Rules(launches=launches, comm_patterns=COMM_PATTERNS, raise_comm_priority=raise_comm_priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a program did, what the driver saw and what the shim says."""

    code: int
    results: tuple[int, ...]  # what each step returned to the program
    launches: tuple[tuple[str, str, int], ...]  # function, kernel, bytes: those the driver accepted
    priorities: tuple[int | None, ...]
    attributes: tuple[int, ...]  # number of launch attributes
    carve_outs: tuple[int | None, ...]  # in percent, None: the launch says nothing
    receipts: tuple[LaunchReceipts, ...]
    stderr: str

    def kernel(self, name: str) -> KernelCounts:
        (process,) = self.receipts
        return next(counts for counts in process.kernels if counts.kernel == name)

    @property
    def notes(self) -> tuple[str, ...]:
        (process,) = self.receipts
        return process.notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A client, a driver, and the shim (None: not loaded, or part of the client)."""

    client: Path
    driver: Path
    shim: Path | None
    home: Path
    extra: dict[str, str] = field(default_factory=dict)

    def run(
        self, *steps: str | int, rules: Rules | bytes | None, recorded: bool = True, check: bool = True, **more: str
    ) -> Ran:
        """Run the client; `rules` None starts it without a rules file."""
        place = self.home / str(len(list(self.home.iterdir())))
        (place / "receipts").mkdir(parents=True)
        record = place / "record"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("MAKEWAY", "LD_", "RANK"))},
            "LD_LIBRARY_PATH": str(self.driver),
            "MAKEWAY_RECEIPTS": str(place / "receipts"),
            **({"LD_PRELOAD": str(self.shim)} if self.shim else {}),
            **({"DRIVER_RECORD": str(record)} if recorded else {}),
            **self.extra,
            **more,
        }
        if rules is not None:
            (place / "rules").write_bytes(rules if isinstance(rules, bytes) else encode_rules(rules))
            environment["MAKEWAY_RULES"] = str(place / "rules")
        done = subprocess.run(
            [str(self.client), *map(str, steps)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        lines = [line.split() for line in record.read_text().splitlines()] if record.exists() else []
        return Ran(
            code=done.returncode,
            results=tuple(int(line) for line in done.stdout.split()),
            launches=tuple((line[0], line[1], int(line[2])) for line in lines),
            priorities=tuple(int(line[4]) if line[3] == "1" else None for line in lines),
            attributes=tuple(int(line[6]) for line in lines),
            carve_outs=tuple(int(line[7]) if line[7:] and line[7] != "-1" else None for line in lines),  # HIP has none
            receipts=read_receipts(place / "receipts"),
            stderr=done.stderr,
        )


def sent(ran: Ran) -> Sequence[int]:
    """The dynamic shared memory of each launch that the driver accepted."""
    return [smem for _, _, smem in ran.launches]
