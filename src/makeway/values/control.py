"""Controls: the closed set of run-time knobs, how they are written in words, and the plan that holds them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

from makeway.values.errors import InputError, suggestion
from makeway.values.units import KIB, format_bytes, parse_bytes

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
CONTROL_KINDS: dict[str, type[Control]] = {kind.__name__: kind for kind in get_args(Control)}


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
            if rest not in ("", "prelaunch"):
                raise InputError(f"cannot read {rest!r} in {text!r}; write {_WORDS['copy-engine']}")
            return CopyEngine(variant or "parallel-copy", rest == "prelaunch")  # type: ignore[arg-type]
        case "chunks":
            return Chunks(_number(value, word))
        case _:
            raise InputError(f"unknown control {text!r}{suggestion(word, _WORDS)}\nKnown: {'; '.join(_WORDS.values())}")


def parse_controls(texts: Iterable[str]) -> tuple[Control, ...]:
    """The controls of a command line; two that contradict or repeat each other are an error."""
    return Plan(controls=tuple(parse_control(text) for text in texts)).controls


def control_word(control: Control) -> str:
    """The word of the command line that names a control: `parse_control` gives the control back."""
    match control:
        case SmemPad(pad, kernel):
            size = f"{pad // KIB}KiB" if pad % KIB == 0 else str(pad)
            return f"pad={size}{_for_kernels(kernel)}"
        case TileChoice(m, n, k, kernel):
            return f"tile={m}x{n}x{k}{_for_kernels(kernel)}"
        case CommPriority():
            return "priority"
        case LaunchOrder():
            return "comm-first"
        case CommBlocks(blocks):
            return f"comm-blocks={blocks}"
        case CommThreads(threads):
            return f"comm-threads={threads}"
        case SmPartition(sms):
            return f"partition={sms}"
        case CopyEngine("parallel-copy", False):
            return "copy-engine"
        case CopyEngine(variant, prelaunch):
            return f"copy-engine={variant}{',prelaunch' if prelaunch else ''}"
        case Chunks(pieces):
            return f"chunks={pieces}"
        case _:
            assert_never(control)


def _for_kernels(pattern: str) -> str:
    if not pattern:
        raise InputError("a control for kernels without a name cannot be written; name them, or use * for every kernel")
    return "" if pattern == "*" else f":{pattern}"


def _number(value: str, word: str) -> int:
    if not value.isdigit():
        raise InputError(f"{word} needs a whole number; write {_WORDS[word]}")
    return int(value)


# --- the plan ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFor:
    """What a plan was made for; None where that is not known."""

    workload: str | None = None
    device: str | None = None
    gpus: int | None = None
    library: str | None = None  # a footprint: "nccl-2.32.3/ring-simple"

    def __post_init__(self) -> None:
        if self.gpus is not None:
            _whole("gpus", self.gpus, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Simulated times of a workload without and with a plan: predicted, never measured."""

    t_naive_ms: float
    t_plan_ms: float
    t_ideal_ms: float
    share_of_ideal_naive: float | None = None  # None: nothing to gain
    share_of_ideal_plan: float | None = None
    dispatchers: tuple[str, ...] = ()  # the times are the worst of these rules

    def __post_init__(self) -> None:
        for what in ("t_naive_ms", "t_plan_ms", "t_ideal_ms"):
            value = float(getattr(self, what))
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{what} must be a number above 0, got {value!r}")
            object.__setattr__(self, what, value)
        for what in ("share_of_ideal_naive", "share_of_ideal_plan"):
            share = getattr(self, what)
            if share is None:
                continue
            if not math.isfinite(share):
                raise InputError(f"{what} must be a number, got {share!r}")
            object.__setattr__(self, what, float(share))


@dataclass(frozen=True, slots=True)
class Rejected:
    """A control that was looked at and turned down, and why."""

    control: Control
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An ordered set of controls, each with the reason for it ("" where none is given).

    Controls that cannot hold together are an error. Controls that only make each other needless are not:
    CopyEngine goes with CommBlocks, CommThreads and SmPartition, since collectives that add still need blocks, and
    CommPriority goes with SmPartition, where it has nobody to overtake.
    """

    controls: tuple[Control, ...]
    reasons: tuple[str, ...] = ()
    made_for: MadeFor | None = None
    predicted: Forecast | None = None
    rejected: tuple[Rejected, ...] = ()

    def __post_init__(self) -> None:
        if not self.reasons:
            object.__setattr__(self, "reasons", ("",) * len(self.controls))
        if len(self.reasons) != len(self.controls):
            raise InputError(f"a plan of {len(self.controls)} controls has {len(self.reasons)} reasons; give each one")
        _refuse_two_of_a_kind(self.controls)
        _refuse_comm_without_a_place(self.controls)


def _refuse_two_of_a_kind(controls: tuple[Control, ...]) -> None:
    """One kernel cannot have two pads or two tiles, nor communication two numbers of blocks."""
    kernels: dict[type[Control], list[str]] = {}
    for control in controls:
        kernels.setdefault(type(control), []).append(getattr(control, "kernel", "*"))
    for kind, patterns in kernels.items():
        if len(set(patterns)) < len(patterns):
            raise InputError(f"a plan sets {kind.__name__} twice for the same kernels")
        if "*" in patterns and len(patterns) > 1:
            other = next(pattern for pattern in patterns if pattern != "*")
            raise InputError(
                f"a plan sets {kind.__name__} for every kernel and again for kernels named {other!r}; name both sets"
            )


def _refuse_comm_without_a_place(controls: tuple[Control, ...]) -> None:
    if SmPartition(0) in controls and not any(isinstance(control, CopyEngine) for control in controls):
        raise InputError(
            "a plan sets 0 SMs apart for communication and none of it on copy engines: it could run nowhere; "
            "give SmPartition at least 1 SM or add CopyEngine"
        )
