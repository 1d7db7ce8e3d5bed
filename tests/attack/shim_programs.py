"""The compiled programs of the shim matrix, built once per change of their sources, and how they are run."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.attack.running import LIMIT_S, Ended, environment, run
from tests.preload.programs import HERE as SCRIPTED
from tests.preload.programs import compile_program, shim_library
from tests.standin.build import shared_place

from makeway.act.preload.build import SOURCES
from makeway.act.preload.receipts import LaunchReceipts, read_receipts
from makeway.act.preload.rules import Rules, encode_rules

HERE = Path(__file__).parent / "shim"
SHARED = ("-fPIC", "-shared", "-Wl,-Bsymbolic-functions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """What the matrix runs."""

    shim: Path
    cuda: Path  # a directory with libcuda.so.1
    other_cuda: Path  # another one
    program: Path
    plugin: Path
    tracer: Path
    naming_tracer: Path  # finds the driver by name, not by RTLD_NEXT
    linked: Path  # bound to the driver
    traced: Path  # bound to the tracer, which is bound to the driver
    early: Path  # linked, with a library whose constructor launches
    linked_plugin: Path  # the same as a plug-in
    host: Path
    hip_plugins: dict[str, Path]  # by version of the HIP runtime: in a directory with libamdhip64.so.VERSION only


@cache
def binaries() -> Binaries:
    """Compiled now unless an earlier run left them."""
    home = shared_place() / f"attack-{_key()}"
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=shared_place()) as scratch:
            made = Path(scratch, "out")
            made.mkdir()
            _compile(made, home)
            try:
                made.rename(home)
            except OSError:  # another process was quicker
                if not home.exists():
                    raise
    return Binaries(
        shim=home / "shim.so",
        cuda=home / "cuda",
        other_cuda=home / "other",
        program=home / "program",
        plugin=home / "plugin.so",
        tracer=home / "libtracer.so",
        naming_tracer=home / "naming" / "libtracer.so",
        linked=home / "linked",
        traced=home / "traced",
        early=home / "early",
        linked_plugin=home / "linked.so",
        host=home / "host",
        hip_plugins={version: home / f"hip{version}" / "plugin.so" for version in ("6", "7")},
    )


def _key() -> str:
    digest = hashlib.sha256(str(HERE).encode())
    for path in sorted([*HERE.glob("*.c"), *SCRIPTED.glob("*.c"), *SOURCES.glob("*.[ch]"), Path(__file__)]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(made: Path, home: Path) -> None:
    shim_library(made / "shim.so")
    for name in ("cuda", "other"):
        (made / name).mkdir()
        soname = "-Wl,-soname,libcuda.so.1"
        compile_program(made / name / "libcuda.so.1", *SHARED, soname, str(HERE / "driver.c"))
    # Found without LD_LIBRARY_PATH too, which a setuid program does not see.
    found = (f"-Wl,-rpath,{home / 'cuda'}", f"-Wl,-rpath,{home}")
    cuda = str(made / "cuda" / "libcuda.so.1")
    linked = ("-Wl,--no-as-needed", *found, str(HERE / "linked.c"))
    compile_program(made / "program", str(HERE / "program.c"), *found)
    compile_program(made / "plugin.so", *SHARED, str(HERE / "plugin.c"))
    compile_program(made / "empty.so", *SHARED, "-DEMPTY", str(HERE / "plugin.c"))
    # A call that ends in a call is a jump, and a recursion that is a jump never runs out of stack.
    tracer = ("-fno-optimize-sibling-calls", "-Wl,-soname,libtracer.so", str(HERE / "tracer.c"))
    compile_program(made / "libtracer.so", *SHARED, *tracer)
    (made / "naming").mkdir()
    compile_program(made / "naming" / "libtracer.so", *SHARED, "-DBY_HANDLE", *tracer)
    compile_program(made / "libearly.so", *SHARED, "-Wl,-soname,libearly.so", str(HERE / "early.c"), cuda)
    compile_program(made / "early", *linked, str(made / "libearly.so"), cuda)
    local = ("-fPIC", "-shared", "-Dmain=plugin_main", *linked)
    compile_program(made / "linked.so", *local, cuda)
    compile_program(made / "linked", *linked, cuda)
    compile_program(made / "traced", *linked, str(made / "libtracer.so"), cuda)
    compile_program(made / "host", str(HERE / "host.c"))
    for version in ("6", "7"):
        hip = made / f"hip{version}"
        hip.mkdir()
        name = f"libamdhip64.so.{version}"
        compile_program(hip / name, *SHARED, f"-Wl,-soname,{name}", str(SCRIPTED / "hip_driver.c"))
        plugin = ("-fPIC", "-shared", "-Dmain=plugin_main", str(SCRIPTED / "hip_client.c"))
        compile_program(hip / "plugin.so", *plugin, str(hip / name), f"-Wl,-rpath,{home / hip.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a program printed of its launches, what the driver accepted, and what the shim wrote down."""

    ended: Ended
    results: tuple[int, ...]
    launches: tuple[tuple[str, str, int], ...]  # function, kernel, bytes
    receipts: tuple[LaunchReceipts, ...]


def run_under_shim(
    place: Path,
    program: Path,
    *words: str | Path,
    rules: Rules | None,
    preload: Sequence[Path] | None = None,
    limit_s: float = LIMIT_S,
    prepare: Callable[[], None] | None = None,
    before: tuple[str, ...] = (),
) -> Ran:
    """Run a program with the shim preloaded; `rules` None: without a rules file; `before`: a command in front of it."""
    receipts, record = place / "receipts", place / "record"
    receipts.mkdir(parents=True)
    variables = {
        "LD_LIBRARY_PATH": str(binaries().cuda),
        "LD_PRELOAD": ":".join(map(str, (binaries().shim,) if preload is None else preload)),
        "MAKEWAY_RECEIPTS": str(receipts),
        "DRIVER_RECORD": str(record),
        "EMPTY_PLUGIN": str(binaries().plugin.with_name("empty.so")),
    }
    if rules is not None:
        (place / "rules").write_bytes(encode_rules(rules))
        variables["MAKEWAY_RULES"] = str(place / "rules")
    settings = [f"{name}={value}" for name, value in variables.items()]
    ended = run(*before, "env", *settings, program, *words, env=environment(), limit_s=limit_s, prepare=prepare)
    lines = [line.split() for line in record.read_text().splitlines()] if record.exists() else []
    return Ran(
        ended=ended,
        results=tuple(int(line) for line in ended.out.split()),
        launches=tuple((line[0], line[1], int(line[2])) for line in lines),
        receipts=read_receipts(receipts),
    )
