"""Compiles the launch shim with the system's compiler, once per machine, compiler and source version."""

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
from functools import cache as cached
from pathlib import Path

from makeway.act.preload.prebuilt import PLACE, prebuilt_library, source_digest, source_files
from makeway.act.private import TemporaryPlace, intruder, make_private
from makeway.values.errors import UnsupportedError

SOURCES = PLACE.parent
FLAGS = (
    *("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden"),
    "-Wl,-Bsymbolic-functions",  # our own names mean our own functions, also where a tracer is loaded before us
)
LIBRARIES = ("-ldl", "-lpthread")
MACHINES = ("x86_64", "aarch64")  # the dlsym stub is written in assembler
_TIMEOUT_S = 120


def library(cache: Path | None = None, *, warn: Callable[[str], None] = lambda message: None) -> Path:
    """The compiled shim, from the cache (`$XDG_CACHE_HOME/makeway`) or compiled now; the package's without a compiler.

    Programs load it as this user, so nobody else may be able to put anything in its place: a cache, or a file in it,
    that others can change is left alone, and a private directory among the temporary files replaces it. So does it
    where the cache is not writable. Processes may race: each compiles to a temporary name and renames the result.
    """
    if not sys.platform.startswith("linux") or platform.machine() not in MACHINES:
        raise UnsupportedError(
            f"the launch shim needs Linux on {' or '.join(MACHINES)}, this is {sys.platform} on {platform.machine()}; "
            "run without pads and launch priority"
        )
    try:
        command = compiler()
    except UnsupportedError as error:
        return _without_compiler(error)
    name = f"launch-{_key(command)}.so"
    where = default_cache() if cache is None else cache
    try:
        return _in(where, name, command)
    except _UntrustedError as reason:
        warn(f"the cache of compiled launch shims is not used: {reason}")
    except OSError:
        pass
    private = Path(tempfile.gettempdir()) / f"makeway-{os.getuid()}"
    try:
        return _in(private, name, command)
    except (_UntrustedError, OSError):  # somebody else was there first
        pass
    try:
        return _in(_place_of_this_process(), name, command)
    except (_UntrustedError, OSError) as error:
        raise UnsupportedError(
            f"there is no safe place for the launch shim: {error}\nSet XDG_CACHE_HOME to a directory of your own."
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


def _in(place: Path, name: str, command: tuple[str, ...]) -> Path:
    """The shim in a directory that only we and root can change, so that what is checked now is what is loaded later."""
    make_private(place)
    if reason := intruder(place):
        raise _UntrustedError(reason)
    target = Path(os.path.realpath(place)) / name
    try:
        descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return _compile(command, target)
    except OSError as error:  # ELOOP: a link
        raise _UntrustedError(f"{target} is not a plain file ({error.strerror})") from None
    facts = os.fstat(descriptor)
    os.close(descriptor)
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in (os.getuid(), 0) or facts.st_mode & 0o022:
        raise _UntrustedError(f"{target} is not a file that only this user can write")
    return target


def default_cache() -> Path:
    """The directory of compiled shims: `$XDG_CACHE_HOME/makeway`, by default ~/.cache/makeway."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "makeway"


def compiler() -> tuple[str, ...]:
    """The C compiler's command: `$CC`, or the first of cc, gcc and clang on the PATH."""
    command = shlex.split(os.environ.get("CC", ""))
    if command:
        if shutil.which(command[0]) is None:
            raise UnsupportedError(
                f"CC names {command[0]!r}, which is not on the PATH; the launch shim is compiled on first use.\n"
                "Set CC to a C compiler, or unset it."
            )
        return tuple(command)
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return (path,)
    raise UnsupportedError(
        "no C compiler found (looked for cc, gcc, clang); the launch shim is compiled on first use.\n"
        "Install one (Debian: apt install gcc, Fedora: dnf install gcc), or set CC."
    )


def sources() -> tuple[Path, ...]:
    """The C files and headers of the shim."""
    return source_files()


def _key(command: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\0".join((*command, _version(command), platform.machine(), *FLAGS, *LIBRARIES)).encode())
    for path in sources():
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
def _place_of_this_process() -> Path:
    place = TemporaryPlace()
    atexit.register(place.remove)
    return place.path


def _compile(command: tuple[str, ...], target: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".launch-", suffix=".so")
    os.close(handle)
    made = Path(name)
    try:
        named = f'-DSHIM_SOURCES="{source_digest()}"'
        _run([*command, *FLAGS, named, *map(str, SOURCES.glob("*.c")), "-o", name, *LIBRARIES])
        made.chmod(0o700)
        os.replace(made, target)
    finally:
        made.unlink(missing_ok=True)
    return target


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"the C compiler {command[0]} does not run: {error}\nSet CC to one.") from None
    if done.returncode:
        raise UnsupportedError(
            f"{shlex.join(command[:1])} could not compile the launch shim:\n{done.stderr.strip()[-2000:]}\n"
            "Set CC to another C compiler."
        )
