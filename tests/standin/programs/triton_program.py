"""A program that uses Triton: triton_program.py [LAUNCHES [EXIT_CODE]].

Triton compiles the kernels for the device it finds and launches them with its own launcher, without torch, on two
streams. It knows nothing of makeway.
"""

from __future__ import annotations

import sys
import warnings

warnings.simplefilter("ignore")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from cuda.bindings import driver  # type: ignore[import-untyped, unused-ignore]  # noqa: E402
from triton.backends.nvidia.driver import CudaDriver  # noqa: E402

SIZE = 256  # of the square matrices


@triton.jit  # type: ignore[untyped-decorator]
def gemm(a, b, c, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        left = tl.load(a + rows[:, None] * k + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * n + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


@triton.jit  # type: ignore[untyped-decorator]
def ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x, y, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N802, N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine = tl.load(x + at, mask=at < count)
    tl.store(y + at, mine + tl.load(y + at, mask=at < count), mask=at < count)


class Buffer:
    """Device memory with the two things that Triton asks of a tensor."""

    def __init__(self, size: int) -> None:
        error, self.address = driver.cuMemAlloc(size)
        assert error == driver.CUresult.CUDA_SUCCESS
        self.dtype = "float16"

    def data_ptr(self) -> int:
        return int(self.address)


def main(launches: int) -> None:
    driver.cuInit(0)
    active = CudaDriver()
    triton.runtime.driver.set_active(active)  # before torch can be found and asked
    active.set_current_device(0)
    compute, comm = (int(driver.cuStreamCreateWithPriority(1, 0)[1]) for _ in range(2))
    a, b, c = (Buffer(SIZE * SIZE * 2) for _ in range(3))
    for _ in range(launches):
        active.get_current_stream = lambda device: compute
        gemm[(SIZE // 64, SIZE // 64)](a, b, c, SIZE, SIZE, BM=64, BN=64, BK=32, num_warps=4)
        active.get_current_stream = lambda device: comm
        ncclDevKernel_AllReduce_Sum_bf16_RING_LL[(8,)](a, b, SIZE, BLOCK=1024, num_warps=4)
    print(f"launched {launches} gemm and {launches} comm")


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *("3", "0")[len(sys.argv) - 1 :]]
    main(int(arguments[0]))
    sys.exit(int(arguments[1]))
