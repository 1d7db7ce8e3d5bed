"""Controls: the closed set of run-time knobs.

A control has one name, on the command line, in plan files, in JSON and in prose: `SmemPad.name` is "pad".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, assert_never, get_args

from makeway.values.errors import InputError, suggestion
from makeway.values.units import KIB, check_whole, format_bytes, parse_bytes

DmaVariant = Literal["parallel-copy", "broadcast", "one-engine", "swap"]
MOST_CLUSTER = 8  # NCCL, src/include/comm.h, NCCL_MAX_CGA_CLUSTER_SIZE
CompressMethod = Literal["fp16", "bf16", "powersgd", "topk"]
DEFAULT_RANK = 4  # of PowerSGD's approximation: the largest in its paper (arXiv 1905.13727)
DEFAULT_SHARE = 0.01  # of the elements that top-k sends


@dataclass(frozen=True, slots=True)
class SmemPad:
    """Extra dynamic shared memory per block of the compute kernels whose name matches."""

    name: ClassVar[str] = "pad"
    pad_bytes: int
    kernel: str = "*"

    def __post_init__(self) -> None:
        check_whole("pad_bytes", self.pad_bytes, 1)


@dataclass(frozen=True, slots=True)
class TileChoice:
    """Another tile for kernels that offer one."""

    name: ClassVar[str] = "tile"
    tile_m: int
    tile_n: int
    tile_k: int
    kernel: str = "*"

    def __post_init__(self) -> None:
        for what in ("tile_m", "tile_n", "tile_k"):
            check_whole(what, getattr(self, what), 1)


@dataclass(frozen=True, slots=True)
class CommPriority:
    """Communication at a higher stream priority than compute."""

    name: ClassVar[str] = "priority"


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """Communication launched before the compute that does not feed it."""

    name: ClassVar[str] = "comm-first"


@dataclass(frozen=True, slots=True)
class CommBlocks:
    """Blocks (channels, CTAs) of each collective, and how many of them must start together.

    A library that forms clusters does so only where `cluster` divides the blocks; 1 lets each block start by itself.
    """

    name: ClassVar[str] = "comm-blocks"
    blocks: int
    cluster: int | None = None  # None: the library's own

    def __post_init__(self) -> None:
        check_whole("blocks", self.blocks, 1)
        if self.cluster is not None:
            check_whole("cluster", self.cluster, 1)
            if self.cluster > MOST_CLUSTER:
                raise InputError(f"NCCL's clusters have at most {MOST_CLUSTER} blocks, not {self.cluster}")


@dataclass(frozen=True, slots=True)
class CommThreads:
    """Threads of each block of a collective."""

    name: ClassVar[str] = "comm-threads"
    threads: int

    def __post_init__(self) -> None:
        check_whole("threads", self.threads, 32)


@dataclass(frozen=True, slots=True)
class SmPartition:
    """SMs reserved for communication; compute gets the rest."""

    name: ClassVar[str] = "partition"
    comm_sms: int

    def __post_init__(self) -> None:
        check_whole("comm_sms", self.comm_sms, 0)


@dataclass(frozen=True, slots=True)
class OwnCores:
    """All threads of a rank on a CPU host, those that communicate too, on the rank's own share of the processors.

    Left to itself, Linux may run the communication of several ranks beside the compute of one: that rank is late, and
    the others wait for it.
    """

    name: ClassVar[str] = "own-cores"


@dataclass(frozen=True, slots=True)
class CopyEngine:
    """Collectives that need no arithmetic on copy engines."""

    name: ClassVar[str] = "copy-engine"
    variant: DmaVariant = "parallel-copy"
    prelaunch: bool = False

    def __post_init__(self) -> None:
        if self.variant not in get_args(DmaVariant):
            raise InputError(
                f"unknown copy-engine variant {self.variant!r}{suggestion(self.variant, get_args(DmaVariant))}"
            )


@dataclass(frozen=True, slots=True)
class Chunks:
    """Each collective, and the kernel that feeds it, split into pieces."""

    name: ClassVar[str] = "chunks"
    pieces: int

    def __post_init__(self) -> None:
        check_whole("pieces", self.pieces, 1)


@dataclass(frozen=True, slots=True)
class Compress:
    """Gradients encoded in fewer bytes before they are all-reduced. Lossy: the program's results change."""

    name: ClassVar[str] = "compress"
    method: CompressMethod
    rank: int | None = None  # of powersgd's approximation; set where the method is powersgd
    share: float | None = None  # of the elements that topk sends; set where the method is topk

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", method_word(self.method))
        if self.method not in get_args(CompressMethod):
            raise InputError(
                f"unknown compression {self.method!r}{suggestion(str(self.method), get_args(CompressMethod))}; "
                f"known: {', '.join(get_args(CompressMethod))}"
            )
        for what, value, method, default in (
            ("rank", self.rank, "powersgd", DEFAULT_RANK),
            ("share", self.share, "topk", DEFAULT_SHARE),
        ):
            if value is None and self.method == method:
                object.__setattr__(self, what, default)
            elif value is not None and self.method != method:
                raise InputError(f"{what} is for {method}, not for {self.method}")
        if self.rank is not None:
            check_whole("rank", self.rank, 1)
        if self.share is not None:
            number = isinstance(self.share, int | float) and not isinstance(self.share, bool)
            if not number or not 0 < self.share <= 1:
                raise InputError(f"share must be above 0 and at most 1, got {self.share!r}")
            object.__setattr__(self, "share", float(self.share))


Control = (
    SmemPad
    | TileChoice
    | CommPriority
    | LaunchOrder
    | CommBlocks
    | CommThreads
    | SmPartition
    | OwnCores
    | CopyEngine
    | Chunks
    | Compress
)
LOSSY: tuple[type[Control], ...] = (Compress,)
NEEDS_LOSSY = "it changes the program's results; --allow-lossy permits it"


def method_word(text: str) -> str:
    """The one spelling of a method of compression, for controls and for layouts."""
    return "topk" if text == "top-k" else text


def lossy(control: Control) -> bool:
    """Whether a control changes the results of the program; all others leave them as they are."""
    return isinstance(control, LOSSY)


def refuse_lossy(controls: Iterable[Control], *, allowed: bool) -> None:
    """An error for the first lossy control, unless such controls are allowed."""
    for control in controls:
        if lossy(control) and not allowed:
            raise InputError(f"{control_word(control)} is refused: {NEEDS_LOSSY}")


def describe(control: Control) -> str:
    """A control in prose."""
    match control:
        case SmemPad(pad, kernel):
            return f"pad {format_bytes(pad)} of shared memory per block of {_kernels(kernel)}"
        case TileChoice(m, n, k, kernel):
            return f"tile {m}x{n}x{k} for {_kernels(kernel)}"
        case CommPriority():
            return "communication at high priority"
        case LaunchOrder():
            return "communication launched first"
        case CommBlocks(blocks, cluster):
            return f"{blocks} communication block{_s(blocks)}{_in_clusters(cluster)}"
        case CommThreads(threads):
            return f"{threads} threads per communication block"
        case SmPartition(sms):
            return f"{sms} SM{_s(sms)} set apart for communication"
        case OwnCores():
            return "each rank on processors of its own"
        case CopyEngine(variant, prelaunch):
            return f"communication on copy engines ({variant}{', prelaunched' if prelaunch else ''})"
        case Chunks(pieces):
            return f"collectives in {pieces} pieces"
        case Compress("powersgd", rank):
            return f"gradients compressed by PowerSGD of rank {rank} (lossy)"
        case Compress("topk", _, share):
            return f"the largest {100 * (share or 0):g} % of gradients sent, the rest kept for later steps (lossy)"
        case Compress(method):
            return f"gradients sent as {method} (lossy)"
        case _:
            assert_never(control)


def describe_on_host(control: Control) -> str:
    """A control in prose, for a CPU host: it has processors and threads, but no SMs and no blocks."""
    match control:
        case SmemPad(pad, kernel):
            return f"pad {format_bytes(pad)} for {_kernels(kernel)}"
        case LaunchOrder():
            return "communication started first"
        case CommBlocks(blocks):
            return f"{blocks} thread{_s(blocks)} that copy"
        case CommThreads(threads):
            return f"{threads} threads per copier"
        case SmPartition(processors):
            return f"{processors} processor{_s(processors)} set apart for communication"
        case CopyEngine(variant):
            return f"communication through shared memory ({variant})"
        case _:
            return describe(control)


def _s(number: int) -> str:
    return "" if number == 1 else "s"


def _in_clusters(cluster: int | None) -> str:
    if cluster is None:
        return ""
    return ", each started by itself" if cluster == 1 else f" in clusters of {cluster}"


def _kernels(pattern: str) -> str:
    return "every compute kernel" if pattern == "*" else f"kernels named {pattern}"


_EXAMPLES = {
    "pad": "pad=48KiB or pad=48KiB:gemm*",
    "tile": "tile=64x64x32",
    "priority": "priority",
    "comm-first": "comm-first",
    "comm-blocks": "comm-blocks=16 or comm-blocks=16,cluster=1",
    "comm-threads": "comm-threads=288",
    "partition": "partition=32",
    "own-cores": "own-cores",
    "copy-engine": "copy-engine or copy-engine=broadcast,prelaunch",
    "chunks": "chunks=4",
    "compress": "compress=fp16, compress=bf16, compress=powersgd:4 or compress=topk:0.01",
}


def parse_control(text: str) -> Control:
    """The control that a command-line word names, for example "priority" or "pad=48KiB"."""
    word, _, value = text.partition("=")
    value, _, kernel = value.partition(":")
    match word:
        case "pad":
            return SmemPad(parse_bytes(value), kernel or "*")
        case "tile":
            sides = re.fullmatch(r"(\d+)x(\d+)x(\d+)", value)
            if not sides:
                raise InputError(f"cannot read tile {value!r}; write {_EXAMPLES['tile']}")
            return TileChoice(int(sides[1]), int(sides[2]), int(sides[3]), kernel or "*")
        case "priority" if not value:
            return CommPriority()
        case "comm-first" if not value:
            return LaunchOrder()
        case "comm-blocks":
            count, comma, cluster = value.partition(",cluster=")
            return CommBlocks(_number(count, word), _number(cluster, word) if comma else None)
        case "comm-threads":
            return CommThreads(_number(value, word))
        case "partition":
            return SmPartition(_number(value, word))
        case "own-cores" if not value:
            return OwnCores()
        case "copy-engine":
            variant, _, rest = value.partition(",")
            if rest not in ("", "prelaunch"):
                raise InputError(f"cannot read {rest!r} in {text!r}; write {_EXAMPLES['copy-engine']}")
            return CopyEngine(variant or "parallel-copy", rest == "prelaunch")  # type: ignore[arg-type]
        case "chunks":
            return Chunks(_number(value, word))
        case "compress":
            return _compress(value, kernel)
        case _:
            raise InputError(
                f"unknown control {text!r}{suggestion(word, _EXAMPLES)}\nKnown: {'; '.join(_EXAMPLES.values())}"
            )


def control_word(control: Control) -> str:
    """The word that names a control everywhere; `parse_control` reads it back."""
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
        case CommBlocks(blocks, cluster):
            return f"comm-blocks={blocks}{'' if cluster is None else f',cluster={cluster}'}"
        case CommThreads(threads):
            return f"comm-threads={threads}"
        case SmPartition(sms):
            return f"partition={sms}"
        case OwnCores():
            return "own-cores"
        case CopyEngine("parallel-copy", False):
            return "copy-engine"
        case CopyEngine(variant, prelaunch):
            return f"copy-engine={variant}{',prelaunch' if prelaunch else ''}"
        case Chunks(pieces):
            return f"chunks={pieces}"
        case Compress("powersgd", rank):
            return f"compress=powersgd:{rank}"
        case Compress("topk", _, share):
            return f"compress=topk:{share:g}" if share == float(f"{share:g}") else f"compress=topk:{share!r}"
        case Compress(method):
            return f"compress={method}"
        case _:
            assert_never(control)


def _for_kernels(pattern: str) -> str:
    if not pattern:
        raise InputError("a control needs a kernel name; use * for every kernel")
    return "" if pattern == "*" else f":{pattern}"


def _compress(method: str, amount: str) -> Compress:
    """Read "powersgd:4", "topk:0.01" or a method without a number."""
    match method_word(method):
        case "powersgd" if amount:
            return Compress("powersgd", rank=_number(amount, "compress"))
        case "topk" if amount:
            if not re.fullmatch(r"\d*\.?\d+(?:e-?\d+)?", amount):
                raise InputError(f"compress=topk needs a share of the elements; write {_EXAMPLES['compress']}")
            return Compress("topk", share=float(amount))
        case _ if amount:
            raise InputError(f"compress={method} takes no number; write {_EXAMPLES['compress']}")
        case _:
            return Compress(method)  # type: ignore[arg-type]


def _number(value: str, word: str) -> int:
    if not value.isdigit():
        raise InputError(f"{word} needs a whole number; write {_EXAMPLES[word]}")
    return int(value)
