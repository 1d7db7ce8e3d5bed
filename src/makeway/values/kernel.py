"""What one block of a kernel occupies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from makeway.values.errors import InvalidKernelError, suggestion
from makeway.values.units import check_whole, parse_bytes

MAX_THREADS = 1024  # per block, on every CUDA device since 2.0 and every CDNA device
MAX_REGISTERS = 512  # per thread: 512 (VGPR + AGPR) on CDNA, 255 on NVIDIA


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResources:
    """What one block of a kernel occupies while resident on an SM."""

    threads: int
    registers_per_thread: int  # AMD: vector registers, accumulation registers included
    smem_bytes: int = 0  # static + dynamic as requested; the device rounds it
    cluster: int = 1  # blocks that must become resident together
    barriers: int = 1  # hardware barriers; counted from sm_90 on
    scalar_registers: int | None = None  # AMD only; None: unknown

    def __post_init__(self) -> None:
        _check("threads", self.threads, 1, MAX_THREADS)
        _check("registers", self.registers_per_thread, 1, MAX_REGISTERS)
        _check("smem", self.smem_bytes, 0, 2**31)
        _check("cluster", self.cluster, 1, 64)
        _check("barriers", self.barriers, 0, 16)
        if self.scalar_registers is not None:
            _check("scalar registers", self.scalar_registers, 1, 128)

    def padded(self, pad_bytes: int) -> KernelResources:
        """The same block with `pad_bytes` more dynamic shared memory."""
        return replace(self, smem_bytes=self.smem_bytes + pad_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One enqueue of a kernel, as a profiler records it: how many blocks, and what each occupies."""

    blocks: int
    threads: int  # per block
    resources: KernelResources | None = None  # None where registers and shared memory were not recorded
    grid: tuple[int, int, int] | None = None  # blocks along each side, where recorded

    def __post_init__(self) -> None:
        _check("blocks of a launch", self.blocks, 1, None)
        _check("threads", self.threads, 1, MAX_THREADS)


_check = partial(check_whole, error=InvalidKernelError)
_KEYS = ("threads", "registers", "smem", "cluster", "barriers", "sgprs")


def parse_resources(text: str) -> KernelResources:
    """The block that "threads=256,registers=98,smem=48KiB" describes (also cluster, barriers, sgprs)."""
    given = dict(_pair(part, text) for part in text.split(","))
    for key in given:
        if key not in _KEYS:
            raise InvalidKernelError(
                f"unknown key {key!r} in {text!r}{suggestion(key, _KEYS)}; known: {', '.join(_KEYS)}"
            )
    for key in ("threads", "registers"):
        if key not in given:
            raise InvalidKernelError(f"{text!r} lacks {key}=; write for example threads=256,registers=98,smem=48KiB")
    return KernelResources(
        threads=_whole(given["threads"], "threads"),
        registers_per_thread=_whole(given["registers"], "registers"),
        smem_bytes=parse_bytes(given.get("smem", "0")),
        cluster=_whole(given.get("cluster", "1"), "cluster"),
        barriers=_whole(given.get("barriers", "1"), "barriers"),
        scalar_registers=_whole(given["sgprs"], "sgprs") if "sgprs" in given else None,
    )


def _pair(part: str, text: str) -> tuple[str, str]:
    key, equals, value = part.partition("=")
    if not equals or not value.strip():
        raise InvalidKernelError(
            f"cannot read {part!r} in {text!r}; write for example threads=256,registers=98,smem=48KiB"
        )
    return key.strip(), value.strip()


def _whole(value: str, what: str) -> int:
    try:
        return int(value.replace(",", "").replace("_", ""))
    except ValueError:
        raise InvalidKernelError(f"{what} must be a whole number, got {value!r}") from None
