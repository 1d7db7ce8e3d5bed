"""Controls: the closed set of run-time knobs, how they are written, and plan files that hold them."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never, get_args

from makeway.errors import DataFileError, InputError, suggestion
from makeway.facts import parse_toml, read_file, refuse_unknown
from makeway.units import format_bytes, parse_bytes

DmaVariant = Literal["parallel-copy", "broadcast", "one-engine", "swap"]


def _whole(what: str, value: object, low: int) -> None:
    if type(value) is not int or value < low:
        raise InputError(f"{what} must be a whole number of {low} or more, got {value!r}")


@dataclass(frozen=True, slots=True)
class SmemPad:
    """Extra dynamic shared memory per block of the compute kernels whose name matches."""

    pad_bytes: int
    kernel: str = "*"

    def __post_init__(self) -> None:
        _whole("pad_bytes", self.pad_bytes, 1)


@dataclass(frozen=True, slots=True)
class TileChoice:
    """Another tile for kernels that offer one."""

    tile_m: int
    tile_n: int
    tile_k: int
    kernel: str = "*"

    def __post_init__(self) -> None:
        for what in ("tile_m", "tile_n", "tile_k"):
            _whole(what, getattr(self, what), 1)


@dataclass(frozen=True, slots=True)
class CommPriority:
    """Communication at a higher stream priority than compute."""


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """Communication launched before the compute that does not feed it."""


@dataclass(frozen=True, slots=True)
class CommBlocks:
    """Blocks (channels, CTAs) of each collective."""

    blocks: int

    def __post_init__(self) -> None:
        _whole("blocks", self.blocks, 1)


@dataclass(frozen=True, slots=True)
class CommThreads:
    """Threads of each block of a collective."""

    threads: int

    def __post_init__(self) -> None:
        _whole("threads", self.threads, 32)


@dataclass(frozen=True, slots=True)
class SmPartition:
    """SMs set apart for communication; compute gets the rest."""

    comm_sms: int

    def __post_init__(self) -> None:
        _whole("comm_sms", self.comm_sms, 0)


@dataclass(frozen=True, slots=True)
class CopyEngine:
    """Collectives that need no arithmetic on copy engines."""

    variant: DmaVariant = "parallel-copy"
    prelaunch: bool = False

    def __post_init__(self) -> None:
        if self.variant not in get_args(DmaVariant):
            raise InputError(
                f"unknown copy-engine variant {self.variant!r}{suggestion(self.variant, get_args(DmaVariant))}"
            )


@dataclass(frozen=True, slots=True)
class Chunks:
    """Each collective, and the kernel that feeds it, in so many pieces."""

    pieces: int

    def __post_init__(self) -> None:
        _whole("pieces", self.pieces, 1)


Control = (
    SmemPad | TileChoice | CommPriority | LaunchOrder | CommBlocks | CommThreads | SmPartition | CopyEngine | Chunks
)
_TYPES: dict[str, type[Control]] = {kind.__name__: kind for kind in get_args(Control)}


def describe(control: Control) -> str:
    """A control in plain words."""
    match control:
        case SmemPad(pad, kernel):
            return f"pad {format_bytes(pad)} of shared memory per block of {_kernels(kernel)}"
        case TileChoice(m, n, k, kernel):
            return f"tile {m}x{n}x{k} for {_kernels(kernel)}"
        case CommPriority():
            return "communication at high priority"
        case LaunchOrder():
            return "communication launched first"
        case CommBlocks(blocks):
            return f"{blocks} communication blocks"
        case CommThreads(threads):
            return f"{threads} threads per communication block"
        case SmPartition(sms):
            return f"{sms} SMs set apart for communication"
        case CopyEngine(variant, prelaunch):
            return f"communication on copy engines ({variant}{', prelaunched' if prelaunch else ''})"
        case Chunks(pieces):
            return f"collectives in {pieces} pieces"
        case _:
            assert_never(control)


def _kernels(pattern: str) -> str:
    return "every compute kernel" if pattern == "*" else f"kernels named {pattern}"


_WORDS = {
    "pad": "pad=48KiB or pad=48KiB:gemm*",
    "tile": "tile=64x64x32",
    "priority": "priority",
    "comm-first": "comm-first",
    "comm-blocks": "comm-blocks=16",
    "comm-threads": "comm-threads=288",
    "partition": "partition=32",
    "copy-engine": "copy-engine or copy-engine=broadcast,prelaunch",
    "chunks": "chunks=4",
}


def parse_control(text: str) -> Control:
    """The control that a word of the command line names, for example "priority" or "pad=48KiB"."""
    word, _, value = text.partition("=")
    value, _, kernel = value.partition(":")
    match word:
        case "pad":
            return SmemPad(parse_bytes(value), kernel or "*")
        case "tile":
            found = re.fullmatch(r"(\d+)x(\d+)x(\d+)", value)
            if not found:
                raise InputError(f"cannot read tile {value!r}; write {_WORDS['tile']}")
            return TileChoice(int(found[1]), int(found[2]), int(found[3]), kernel or "*")
        case "priority" if not value:
            return CommPriority()
        case "comm-first" if not value:
            return LaunchOrder()
        case "comm-blocks":
            return CommBlocks(_number(value, word))
        case "comm-threads":
            return CommThreads(_number(value, word))
        case "partition":
            return SmPartition(_number(value, word))
        case "copy-engine":
            variant, _, rest = value.partition(",")
            return CopyEngine(variant or "parallel-copy", rest == "prelaunch")  # type: ignore[arg-type]
        case "chunks":
            return Chunks(_number(value, word))
        case _:
            raise InputError(f"unknown control {text!r}{suggestion(word, _WORDS)}\nKnown: {'; '.join(_WORDS.values())}")


def _number(value: str, word: str) -> int:
    if not value.isdigit():
        raise InputError(f"{word} needs a whole number; write {_WORDS[word]}")
    return int(value)


# --- plan files --------------------------------------------------------------------------------

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An ordered set of controls, each with the reason for it."""

    controls: tuple[Control, ...]
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kinds = [(type(control), getattr(control, "kernel", "*")) for control in self.controls]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise InputError(f"a plan sets {kind[0].__name__} twice for the same kernels")


def load_plan(path: Path) -> Plan:
    """The plan in a TOML file: `version = 1` and one `[[control]]` table per control."""
    where = str(path)
    document = parse_toml(read_file(path, "plan"), where=where)
    refuse_unknown(document, ("version", "control"), where=where)
    if document.get("version") != PLAN_VERSION:
        raise DataFileError(
            f"{where}: version is {document.get('version')!r}; this makeway reads version {PLAN_VERSION}"
        )
    tables = document.get("control", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise DataFileError(f"{where}: write each control as a [[control]] table")
    reasons = tuple(str(table.get("reason", "")) for table in tables)
    return Plan(controls=tuple(_control(table, where) for table in tables), reasons=reasons)


def _control(table: dict[str, Any], where: str) -> Control:
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise DataFileError(f"{where}: unknown control kind {kind!r}{suggestion(str(kind), _TYPES)}")
    names = [item.name for item in dataclasses.fields(_TYPES[kind])]
    refuse_unknown(table, ("kind", "reason", *names), where=f"{where}: {kind}")
    try:
        return _TYPES[kind](**{name: table[name] for name in names if name in table})
    except (TypeError, InputError) as error:
        raise DataFileError(f"{where}: {kind}: {error}") from None
