"""What a binary says about one kernel."""

from __future__ import annotations

from dataclasses import dataclass

from makeway.values.errors import InputError
from makeway.values.kernel import KernelResources


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryKernel:
    """One kernel of a binary. What no file holds (dynamic shared memory, launch shape) is None.

    `smem_static_bytes` is the file's figure, the one cuobjdump prints. From sm_90 on it includes
    `smem_system_bytes`, the block's system reserve, whenever the kernel has a shared section.
    """

    name: str
    arch: str
    registers: int  # AMD: VGPRs, accumulation registers included
    threads: int | None  # the most a launch may use, where the compiler recorded it
    threads_required: bool = False  # a launch must use exactly that many
    smem_static_bytes: int
    smem_system_bytes: int = 0
    smem_dynamic_bytes: None = None  # a launch value: never in a file
    barriers: int | None = None
    cluster: int | None = None
    scalar_registers: int | None = None  # AMD
    accumulation_registers: int | None = None  # AMD, of `registers`

    def resources(self, *, threads: int | None = None, smem_dynamic_bytes: int) -> KernelResources:
        """What one block occupies when launched with these values, which only the launch knows."""
        threads = threads if threads is not None else self.threads
        if threads is None:
            raise InputError(f"{self.name}: the file records no thread count; say how many a block has")
        return KernelResources(
            threads=threads,
            registers_per_thread=max(self.registers, 1),
            smem_bytes=self.smem_static_bytes - self.smem_system_bytes + smem_dynamic_bytes,
            cluster=self.cluster or 1,
            barriers=1 if self.barriers is None else self.barriers,
            scalar_registers=self.scalar_registers,
        )
