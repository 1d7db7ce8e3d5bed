"""Compiles makeway's C libraries with the system's compiler, once per machine, compiler and source version."""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as cached
from pathlib import Path

from makeway.act.preload.prebuilt import PLACE, prebuilt_library, source_digest, source_files
from makeway.act.private import TemporaryPlace, intruder, make_private
from makeway.values.errors import UnsupportedError
from makeway.values.own_files import cache_root

SOURCES = PLACE.parent
FLAGS = (
    *("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden"),
    "-Wl,-Bsymbolic-functions",  # our own names mean our own functions, also where a tracer is loaded before us
)
LIBRARIES = ("-ldl", "-lpthread")
MACHINES = ("x86_64", "aarch64")  # the dlsym stub is written in assembler
_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A shared library that is compiled on first use."""

    name: str  # of its file
    title: str  # in messages
    without: str  # what to do on machines that cannot have it
    sources: tuple[Path, ...]  # C files and headers
    flags: tuple[str, ...] = FLAGS


SHIM = Product(
    name="launch",
    title="launch shim",
    without="run without pads and launch priority",
    sources=source_files(),
)


def library(
    cache: Path | None = None, *, product: Product = SHIM, warn: Callable[[str], None] = lambda message: None
) -> Path:
    """A compiled library, from the cache (`$XDG_CACHE_HOME/makeway`) or compiled now.

    Without a compiler: the launch shim that the package may carry.

    Programs load it as this user, so nobody else may be able to put anything in its place: a cache, or a file in it,
    that others can change is left alone, and a private directory among the temporary files replaces it. So does it
    where the cache is not writable. Processes may race: each compiles to a temporary name and renames the result.
    """
    if not sys.platform.startswith("linux") or platform.machine() not in MACHINES:
        raise UnsupportedError(
            f"the {product.title} needs Linux on {' or '.join(MACHINES)}, this is {sys.platform} on "
            f"{platform.machine()}; {product.without}"
        )
    try:
        command = compiler(product)
    except UnsupportedError as error:
        if product is not SHIM:
            raise
        return _without_compiler(error)
    where = cache_root() if cache is None else cache
    try:
        return _in(where, product, command)
    except _UntrustedError as reason:
        warn(f"the cache of compiled libraries is not used: {reason}")
    except OSError:
        pass
    private = Path(tempfile.gettempdir()) / f"makeway-{os.getuid()}"
    try:
        return _in(private, product, command)
    except (_UntrustedError, OSError):  # somebody else was there first
        pass
    try:
        return _in(_place_of_this_process(), product, command)
    except (_UntrustedError, OSError) as error:
        raise UnsupportedError(
            f"there is no safe place for the {product.title}: {error}\nSet XDG_CACHE_HOME to a directory of your own."
        ) from None


def _without_compiler(error: UnsupportedError) -> Path:
    """The shim that came with the package, unless the user named a compiler that is missing."""
    if os.environ.get("CC"):
        raise error
    try:
        return prebuilt_library()
    except UnsupportedError as reason:
        raise UnsupportedError(f"{error}\n{str(reason)[0].upper()}{str(reason)[1:]}.") from None


class _UntrustedError(Exception):
    """Somebody else could change what we would load."""


def _in(place: Path, product: Product, command: tuple[str, ...]) -> Path:
    """The library in a directory that only we and root can change: what is checked now is what is loaded later."""
    make_private(place)
    if reason := intruder(place):
        raise _UntrustedError(reason)
    target = Path(os.path.realpath(place)) / f"{product.name}-{_key(product, command)}.so"
    try:
        descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return _compile(product, command, target)
    except OSError as error:  # ELOOP: a link
        raise _UntrustedError(f"{target} is not a plain file ({error.strerror})") from None
    facts = os.fstat(descriptor)
    os.close(descriptor)
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in (os.getuid(), 0) or facts.st_mode & 0o022:
        raise _UntrustedError(f"{target} is not a file that only this user can write")
    return target


def compiler(product: Product = SHIM) -> tuple[str, ...]:
    """The C compiler's command: `$CC`, or the first of cc, gcc and clang on the PATH."""
    command = shlex.split(os.environ.get("CC", ""))
    if command:
        if shutil.which(command[0]) is None:
            raise UnsupportedError(
                f"CC names {command[0]!r}, which is not on the PATH; the {product.title} is compiled on first use.\n"
                "Set CC to a C compiler, or unset it."
            )
        return tuple(command)
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return (path,)
    raise UnsupportedError(
        f"no C compiler found (looked for cc, gcc, clang); the {product.title} is compiled on first use.\n"
        "Install one (Debian: apt install gcc, Fedora: dnf install gcc), or set CC."
    )


def _key(product: Product, command: tuple[str, ...]) -> str:
    words = (*command, _version(command), platform.machine(), *product.flags, *LIBRARIES)
    digest = hashlib.sha256("\0".join(words).encode())
    for path in product.sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:24]


@cached
def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"the C compiler {shlex.join(command)} does not run: {error}\nSet CC to one.") from None
    return done.stdout


@cached
def _named(product: Product) -> tuple[str, ...]:
    """What the shim is built from is written into it: a wheel's copy is compared with the sources."""
    return (f'-DSHIM_SOURCES="{source_digest()}"',) if product is SHIM else ()


def _place_of_this_process() -> Path:
    place = TemporaryPlace()
    atexit.register(place.remove)
    return place.path


def _compile(product: Product, command: tuple[str, ...], target: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{product.name}-", suffix=".so")
    os.close(handle)
    made = Path(name)
    files = [str(path) for path in product.sources if path.suffix == ".c"]
    try:
        _run([*command, *product.flags, *_named(product), *files, "-o", name, *LIBRARIES], product)
        made.chmod(0o700)
        os.replace(made, target)
    finally:
        made.unlink(missing_ok=True)
    return target


def _run(command: list[str], product: Product) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"the C compiler {command[0]} does not run: {error}\nSet CC to one.") from None
    if done.returncode:
        raise UnsupportedError(
            f"{shlex.join(command[:1])} could not compile the {product.title}:\n{done.stderr.strip()[-2000:]}\n"
            "Set CC to another C compiler."
        )
