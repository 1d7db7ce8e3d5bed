"""Collectives: what is exchanged, and what one block of the exchange occupies, by library, version and path.

A footprint is named "LIBRARY-VERSION/PATH", for example "nccl-2.32.3/ring-simple"; the part before
the slash is a file in data/footprints. Any other block (DeepEP, a custom all-reduce) is written out:
"threads=768,registers=64,smem=160KiB".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, assert_never, get_args

from makeway.values.errors import DataFileError, InputError, UnknownNameError, UnsupportedError, suggestion
from makeway.values.facts import Fact, data_files, parse_toml, read_facts, refuse_unknown, texts, whole_fact
from makeway.values.kernel import KernelResources, parse_resources

CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv"]
ADDING: tuple[CollectiveKind, ...] = ("all-reduce", "reduce-scatter")  # which copy engines cannot do


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """An exchange between ranks.

    `size_bytes` is counted as nccl-tests counts it: the buffer of one rank for all-reduce and all-to-all, the
    gathered buffer for all-gather, the buffer before scattering for reduce-scatter, the message for send-recv.
    """

    kind: CollectiveKind
    size_bytes: int
    ranks: int

    def __post_init__(self) -> None:
        if self.kind not in get_args(CollectiveKind):
            raise InputError(f"unknown collective {self.kind!r}{suggestion(self.kind, get_args(CollectiveKind))}")
        if type(self.size_bytes) is not int or self.size_bytes < 1:
            raise InputError(f"a collective needs at least 1 byte, got {self.size_bytes!r}")
        if type(self.ranks) is not int or self.ranks < 2:
            raise InputError(f"a collective needs at least 2 ranks, got {self.ranks!r}")

    @property
    def wire_bytes(self) -> float:
        """Bytes that one rank sends, and receives, with bandwidth-optimal algorithms.

        2(n-1)/n of the buffer for all-reduce, (n-1)/n for gather, scatter and all-to-all: nccl-tests' bus
        bandwidth is this over the time.
        """
        share = (self.ranks - 1) / self.ranks
        match self.kind:
            case "all-reduce":
                return 2 * share * self.size_bytes
            case "all-gather" | "reduce-scatter" | "all-to-all":
                return share * self.size_bytes
            case "send-recv":
                return float(self.size_bytes)
            case _:
                assert_never(self.kind)

    @property
    def needs_arithmetic(self) -> bool:
        """Whether values are added on the way: copy engines cannot."""
        return self.kind in ADDING


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadChoice:
    """A block size that a collective can have, and the setting for it."""

    threads: int
    setting: str | None  # None: the library's default


@dataclass(frozen=True, slots=True, kw_only=True)
class CommFootprint:
    """What one block of a collective occupies on an SM, and the block sizes it can have.

    `block` is None for a path that uses no SM at all (copy engines).
    """

    name: str
    arch: str
    block: KernelResources | None
    choices: tuple[ThreadChoice, ...] = ()
    max_blocks: int | None = None  # of one collective on one device; None: unknown
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()  # that another version stands for the one asked for
    facts: Mapping[str, Fact]

    @property
    def unconfirmed(self) -> dict[str, str]:
        """The facts of this footprint that are not confirmed, and why."""
        return {key: fact.unconfirmed for key, fact in self.facts.items() if fact.unconfirmed}

    def with_threads(self, threads: int) -> CommFootprint:
        """The same footprint at another of its block sizes."""
        if self.block is None or threads not in [choice.threads for choice in self.choices]:
            sizes = ", ".join(str(choice.threads) for choice in self.choices) or "none"
            raise InputError(f"{self.name} cannot have {threads} threads; its block sizes: {sizes}")
        return replace(self, block=replace(self.block, threads=threads))


_VERSION = re.compile(r"([a-z]{2,12})-(\d{1,4})\.(\d{1,4})(?:\.\d{1,6}){0,3}")


def library_names() -> tuple[str, ...]:
    """All "LIBRARY-VERSION" names with known footprints."""
    names = [entry.name.removesuffix(".toml") for entry in data_files("footprints").iterdir()]
    return tuple(sorted(name for name in names if not name.startswith("_")))


def path_names(library: str) -> tuple[str, ...]:
    """The paths (algorithm and protocol) of one library version, as "LIBRARY-VERSION/PATH"."""
    return tuple(f"{library}/{path}" for path in _load(library)["path"])


@cache
def load_footprint(wanted: str, arch: str) -> CommFootprint:
    """The footprint of that name on `arch`, or of a block written out as key=value pairs.

    The nearest known version stands for one that is not known, and a note says so. A name may carry a block size:
    "nccl-2.32.3/ring-simple,threads=288".
    """
    name, comma, extra = wanted.partition(",")
    if "=" in name:
        return CommFootprint(name="user-given block", arch=arch, block=parse_resources(wanted), facts={})
    asked, slash, path = name.partition("/")
    library = nearest_library(asked, arch)
    document = _load(library)
    known = path_names(library)
    if not slash or path not in document["path"]:
        raise UnknownNameError(f"no footprint {name!r}{suggestion(name, known)}\nKnown paths: {', '.join(known)}")
    footprint = _footprint(document, library, path, arch)
    if library != asked:
        stands = f"no footprint of {asked} is known: {library}, the nearest version, stands for it"
        footprint = replace(footprint, assumed=(stands,))
    if not comma:
        return footprint
    key, _, value = extra.partition("=")
    if key != "threads" or not value.isdigit():
        raise InputError(f"cannot read {extra!r} in {wanted!r}; only threads=N may follow the name")
    return footprint.with_threads(int(value))


def nearest_library(asked: str, arch: str) -> str:
    """The library version whose footprints stand for those of `asked` on `arch`: itself, else the nearest version.

    Versions are compared by major and minor number; of two that are equally near, the older one. A name that is no
    version of a known library stays as it is, which is an error where it is loaded.
    """
    known = library_names()
    version = _VERSION.fullmatch(asked)
    if asked in known or version is None:
        return asked
    relatives = [name for name in known if name.startswith(f"{version[1]}-")]
    served = [name for name in relatives if _serving(_load(name), arch)] or relatives
    return min(served, key=lambda name: _distance(version, name), default=asked)


def _distance(version: re.Match[str], name: str) -> tuple[int, bool, str]:
    other = _VERSION.fullmatch(name)
    if other is None:  # a recording whose version is not known
        return (1 << 30, False, name)
    ahead = _ordinal(other) - _ordinal(version)
    return (abs(ahead), ahead > 0, name)


def _ordinal(version: re.Match[str]) -> int:
    return 1000 * int(version[2]) + int(version[3])


@cache
def _load(library: str) -> Mapping[str, Any]:
    known = library_names()
    if library not in known:
        raise UnknownNameError(
            f"no footprints known for library {library!r}{suggestion(library, known)}\n"
            f"Known: {', '.join(known)}; or write the block out: threads=512,registers=96,smem=80KiB"
        )
    where = f"{library}.toml"
    document = parse_toml(data_files("footprints").joinpath(where).read_bytes(), where=where)
    refuse_unknown(document, ("sources", "facts", "arch", "path", "notes"), where=where)
    if not isinstance(document.get("arch"), dict) or not isinstance(document.get("path"), dict):
        raise DataFileError(f"{where}: [arch.*] and [path.*] are missing")
    return document


def _footprint(document: Mapping[str, Any], library: str, path: str, arch: str) -> CommFootprint:
    where, table = f"{library}.toml", document["path"][path]
    refuse_unknown(table, ("facts", "choice", "no_block", "notes"), where=f"{where}: path.{path}")
    notes = (*texts(document, "notes", where=where), *texts(table, "notes", where=where))
    code = _code_for(document, arch, library)
    sourced = {"sources": document.get("sources", {})}
    facts = {
        **read_facts(document, "facts", where=where),
        **read_facts({**sourced, "facts": code}, "facts", where=f"{where}: arch"),
        **read_facts({**sourced, "facts": table.get("facts", {})}, "facts", where=f"{where}: path.{path}"),
    }
    if table.get("no_block"):
        return CommFootprint(name=f"{library}/{path}", arch=arch, block=None, notes=notes, facts={})
    whole = partial(whole_fact, facts, where=where)
    choices = tuple(
        ThreadChoice(threads=int(entry["threads"]), setting=entry.get("setting")) for entry in table["choice"]
    )
    return CommFootprint(
        name=f"{library}/{path}",
        arch=arch,
        block=KernelResources(
            threads=choices[0].threads,
            registers_per_thread=whole("registers_per_thread"),
            smem_bytes=whole("smem_static_bytes") + whole("smem_dynamic_bytes"),
            cluster=whole("cluster", default=1),
            barriers=whole("barriers", default=1),
            scalar_registers=whole("scalar_registers") if "scalar_registers" in facts else None,
        ),
        choices=choices,
        max_blocks=whole("max_blocks") if "max_blocks" in facts else None,
        notes=notes,
        facts=facts,
    )


def _code_for(document: Mapping[str, Any], arch: str, library: str) -> dict[str, Any]:
    """The facts of the code that runs on `arch`, which may be that of an older architecture."""
    name = _serving(document, arch)
    if name is not None:
        return {key: entry for key, entry in document["arch"][name].items() if key != "serves"}
    others = [other for other in library_names() if _serving(_load(other), arch)]
    raise UnsupportedError(
        f"{library} has no code for {arch}; it has: {', '.join(document['arch'])}\n"
        f"Libraries that have it: {', '.join(others) or 'none known; write the block out: threads=...,registers=...'}"
    )


def _serving(document: Mapping[str, Any], arch: str) -> str | None:
    """The architecture whose code runs on `arch`, if the library has any."""
    tables = document["arch"].items()
    return next((name for name, table in tables if arch == name or arch in table.get("serves", [])), None)
