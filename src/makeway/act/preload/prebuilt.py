"""The launch shim that a wheel carries, for machines without a C compiler: made with `scripts/wheel`.

It is compiled from the same sources. The library names them by their digest, so that one of other sources is
recognised and left alone. A plain install carries none, and compiles on first use.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from makeway.act.private import intruder
from makeway.values.errors import UnsupportedError

SOURCES = Path(__file__).parent
PLACE = SOURCES / "built"
NEWEST_GLIBC = (2, 28)  # of manylinux_2_28, which the -runtime images of CUDA 12 and ROCm 6 satisfy
_FLAGS = (
    *("-std=gnu11", "-D_GNU_SOURCE=", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden", "-s"),
    *("-Wl,-Bsymbolic-functions", "-Wl,--build-id=none"),
)
# Named in full, since a glibc of 2.34 or later offers them only as empty archives; an older one needs them loaded.
_LIBRARIES = ("-Wl,--no-as-needed", "-l:libdl.so.2", "-l:libpthread.so.0")
_IDENTITY = re.compile(rb"makeway-sources:([0-9a-f]{64})\0")
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)(?:\.\d+)?\0")


def source_files() -> tuple[Path, ...]:
    """The C files and headers of the shim."""
    return tuple(sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")]))


def source_digest() -> str:
    """The SHA-256 of the sources' names and contents."""
    digest = hashlib.sha256()
    for path in source_files():
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def build_command(compiler: Sequence[str], out: Path) -> list[str]:
    """The command that compiles a shim to ship: no debug information, and nothing newer than glibc 2.28."""
    include = ("-include", str(SOURCES / "old_glibc.h"), f'-DSHIM_SOURCES="{source_digest()}"')
    code = (str(path) for path in source_files() if path.suffix == ".c")
    return [*compiler, *_FLAGS, *include, *code, "-o", str(out), *_LIBRARIES]


def identity(library: Path) -> str | None:
    """The digest of the sources that a shim was compiled from; None where it does not say."""
    match = _IDENTITY.search(library.read_bytes())
    return match[1].decode() if match else None


def newest_glibc(library: Path) -> tuple[int, int]:
    """The newest version of glibc whose functions a shim uses."""
    from makeway.read.binaries.elf import parse_elf  # only who builds a wheel needs it

    elf = parse_elf(library.read_bytes())
    names = b"".join(elf.content(section) for section in elf.sections if section.name == ".dynstr")
    return max(((int(major), int(minor)) for major, minor in _GLIBC.findall(names)), default=(0, 0))


def prebuilt_library(place: Path = PLACE) -> Path:
    """The shim of this machine that came with the package; an UnsupportedError says why there is none to use."""
    library = place / f"launch-{platform.machine()}.so"
    if not library.is_file():
        raise UnsupportedError(f"this install of makeway carries no compiled launch shim for {platform.machine()}")
    if reason := intruder(library):
        raise UnsupportedError(f"the launch shim of the package is not used: {reason}")
    if identity(library) != source_digest():
        raise UnsupportedError(f"the launch shim {library} was compiled from other sources than this package has")
    return Path(os.path.realpath(library))
