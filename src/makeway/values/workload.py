"""Workloads: kernels and collectives on streams, with dependencies, on one or more ranks.

A workload names no device. A kernel says what one block occupies and how much work there is: a matrix
product's shape, flops and bytes per block, or a measured time. Streams keep their order; `after` names
operations of other streams that must end first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from makeway.values.collective import Collective, CollectiveKind
from makeway.values.errors import InputError, suggestion
from makeway.values.kernel import KernelResources
from makeway.values.units import check_whole

DataType = Literal["fp32", "tf32", "fp16", "bf16"]
ELEMENT_BYTES: dict[DataType, int] = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}

# Library kernels on large shapes reach 0.6 to 0.8 of peak; ConCCL's MI300X GEMMs about 0.55 (arXiv 2412.14335).
DEFAULT_EFFICIENCY = 0.6

# The host needs 2 to 5 microseconds for one launch. Assumed.
HOST_LAUNCH_NS = 4_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """C[m,n] = A[m,k] B[k,n], one block per tile, or `grid` blocks that loop over the tiles."""

    m: int
    n: int
    k: int
    dtype: DataType = "bf16"
    tile: tuple[int, int, int] = (128, 128, 32)
    grid: tuple[int, int] | None = None
    efficiency: float = DEFAULT_EFFICIENCY  # of the device's peak, with all SMs full

    def __post_init__(self) -> None:
        for what, value in (("m", self.m), ("n", self.n), ("k", self.k), *zip("xy", self.grid or (1, 1), strict=True)):
            check_whole(f"gemm {what}", value, 1)
        for value in self.tile:
            check_whole("gemm tile", value, 1)
        if self.dtype not in ELEMENT_BYTES:
            raise InputError(f"unknown data type {self.dtype!r}; known: {', '.join(ELEMENT_BYTES)}")
        if not 0 < self.efficiency <= 1:
            raise InputError(f"gemm efficiency must be above 0 and at most 1, got {self.efficiency!r}")

    @property
    def blocks(self) -> int:
        down, across = -(-self.m // self.tile[0]), -(-self.n // self.tile[1])
        if self.grid is None:
            return down * across
        return min(self.grid[0], across) * min(self.grid[1], down)

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def min_bytes(self) -> float:
        """Each matrix read or written once."""
        return float(self.m * self.k + self.k * self.n + self.m * self.n) * ELEMENT_BYTES[self.dtype]

    @property
    def l2_bytes(self) -> float:
        """What the tiles read through L2: each its rows of A and columns of B."""
        tiles = -(-self.m // self.tile[0]) * -(-self.n // self.tile[1])
        return float(tiles * (self.tile[0] + self.tile[1]) * self.k) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWork:
    """Blocks with the same number of operations and HBM bytes each."""

    blocks: int
    flops_per_block: float = 0.0
    hbm_bytes_per_block: float = 0.0
    dtype: DataType = "fp32"

    def __post_init__(self) -> None:
        check_whole("blocks", self.blocks, 1)
        if self.flops_per_block < 0 or self.hbm_bytes_per_block < 0:
            raise InputError("flops and bytes per block cannot be negative")
        if not self.flops_per_block and not self.hbm_bytes_per_block:
            raise InputError("a kernel needs flops_per_block or hbm_bytes_per_block above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A kernel's blocks and the time it took alone."""

    time_ns: float
    blocks: int
    hbm_bytes: float = 0.0  # of the whole kernel

    def __post_init__(self) -> None:
        check_whole("blocks", self.blocks, 1)
        if not self.time_ns > 0:
            raise InputError(f"a measured time must be above 0, got {self.time_ns!r}")
        if self.hbm_bytes < 0:
            raise InputError("hbm_bytes cannot be negative")


Work = Gemm | BlockWork | Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOp:
    """One launch of a compute kernel."""

    name: str
    resources: KernelResources
    work: Work
    stream: str = "compute"
    after: tuple[str, ...] = ()
    share: float | None = None  # of an SM that one block can use; None: from its warps
    persistent: bool = False  # as many blocks as fit, the work divided among them
    measured_as: KernelResources | None = None  # what a block occupied when its time was measured; None: as now
    launched_ns: float | None = None  # by the host, since the workload began; None: by its place in the order

    def __post_init__(self) -> None:
        if self.share is not None and not 0 < self.share <= 1:
            raise InputError(f"{self.name}: share must be above 0 and at most 1, got {self.share!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveOp:
    """One collective."""

    name: str
    collective: Collective
    library: str  # a footprint: "nccl-2.32.3/ring-simple", or a block written out
    stream: str = "comm"
    after: tuple[str, ...] = ()
    blocks: int | None = None  # None: the library's own choice
    time_ns: float | None = None  # measured alone; None: from the device's links
    timed: Collective | None = None  # whose time that is; None: of this one
    dtype: DataType | None = None  # of its elements; None: not known
    launched_ns: float | None = None  # as for a kernel

    def __post_init__(self) -> None:
        if self.blocks is not None:
            check_whole(f"{self.name}: blocks", self.blocks, 1)
        if self.time_ns is not None and not self.time_ns > 0:
            raise InputError(f"{self.name}: a measured time must be above 0, got {self.time_ns!r}")
        if self.dtype is not None and self.dtype not in ELEMENT_BYTES:
            raise InputError(f"{self.name}: unknown data type {self.dtype!r}; known: {', '.join(ELEMENT_BYTES)}")


Operation = KernelOp | CollectiveOp


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Operations in the order the host launches them; every rank runs all of them."""

    name: str
    operations: tuple[Operation, ...]
    ranks: int = 1
    assumed: tuple[str, ...] = ()  # what the description assumes, in plain sentences
    host_launch_ns: float = HOST_LAUNCH_NS  # from one launch to the next; 0: the host is far ahead of the device

    def __post_init__(self) -> None:
        if not self.operations:
            raise InputError(f"workload {self.name!r} has no operations")
        check_whole("ranks", self.ranks, 1)
        names: dict[str, None] = {}
        for operation in self.operations:
            if operation.name in names:
                raise InputError(f"workload {self.name!r} has two operations named {operation.name!r}")
            names[operation.name] = None
        for operation in self.operations:
            for earlier in operation.after:
                if earlier not in names:
                    raise InputError(
                        f"{operation.name} waits for unknown operation {earlier!r}{suggestion(earlier, names)}"
                    )
        _refuse_cycles(self.operations)

    @property
    def kernels(self) -> tuple[KernelOp, ...]:
        return tuple(operation for operation in self.operations if isinstance(operation, KernelOp))

    @property
    def collectives(self) -> tuple[CollectiveOp, ...]:
        return tuple(operation for operation in self.operations if isinstance(operation, CollectiveOp))


_MOST_NAMED = 3  # operations of a cycle


def _refuse_cycles(operations: tuple[Operation, ...]) -> None:
    """Raise the error that names a cycle of operations that wait for each other."""
    waits: dict[str, list[str]] = {}
    last: dict[str, str] = {}
    for operation in operations:
        before = [last[operation.stream]] if operation.stream in last else []
        waits[operation.name] = [*operation.after, *before]
        last[operation.stream] = operation.name
    done: set[str] = set()
    for start in waits:
        path: dict[str, None] = {}
        stack = [(start, iter(waits[start]))]
        while stack:
            name, rest = stack[-1]
            path[name] = None
            following = next((item for item in rest if item not in done), None)
            if following is None:
                done.add(name)
                del path[name]
                stack.pop()
            elif following in path:
                cycle = list(path)[list(path).index(following) :]
                others = f", and {len(cycle) - _MOST_NAMED:,} more" if len(cycle) > _MOST_NAMED else ""
                named = " waits for ".join([*cycle, following] if not others else cycle[:_MOST_NAMED])
                raise InputError(f"operations wait for each other in a cycle: {named}{others}")
            else:
                stack.append((following, iter(waits[following])))


@dataclass
class WorkloadBuilder:
    """Builds a workload operation by operation; each call returns the name that `after` takes."""

    name: str
    ranks: int = 1
    operations: list[Operation] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def kernel(self, name: str, resources: KernelResources, work: Work, **options: Any) -> str:
        self.operations.append(KernelOp(name=name, resources=resources, work=work, **options))
        return name

    def collective(self, name: str, kind: CollectiveKind, size_bytes: int, library: str, **options: Any) -> str:
        exchange = Collective(kind=kind, size_bytes=size_bytes, ranks=self.ranks)
        self.operations.append(CollectiveOp(name=name, collective=exchange, library=library, **options))
        return name

    def done(self) -> Workload:
        return Workload(
            name=self.name, operations=tuple(self.operations), ranks=self.ranks, assumed=tuple(self.assumed)
        )
