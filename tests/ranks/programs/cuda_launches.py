"""A CUDA program that knows nothing of makeway: launches a kernel of a cubin, through the public driver API.

usage: cuda_launches.py CUBIN KERNEL DYNAMIC_SMEM_BYTES LAUNCHES
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from cuda.bindings import driver  # type: ignore[import-untyped, unused-ignore]


def done(answer: tuple[Any, ...]) -> Any:
    """The results of a call; the program ends at the first that fails."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        sys.exit(f"failed: {answer[0]}")
    return answer[1] if len(answer) > 1 else None


def main() -> None:
    cubin, kernel, smem_bytes, launches = sys.argv[1:]
    done(driver.cuInit(0))
    done(driver.cuCtxSetCurrent(done(driver.cuDevicePrimaryCtxRetain(done(driver.cuDeviceGet(0))))))
    function = done(driver.cuModuleGetFunction(done(driver.cuModuleLoad(cubin.encode())), kernel.encode()))
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    done(driver.cuFuncSetAttribute(function, limit, int(smem_bytes)))
    nothing = ctypes.c_uint64(0)  # every argument: on the stand-in no kernel reads any
    arguments = (ctypes.c_void_p * 64)(*[ctypes.addressof(nothing)] * 64)
    for _ in range(int(launches)):
        where = ctypes.addressof(arguments)
        done(driver.cuLaunchKernel(function, 8, 8, 1, 256, 1, 1, int(smem_bytes), 0, where, 0))
    done(driver.cuCtxSynchronize())
    print(f"{launches} launches done")


if __name__ == "__main__":
    main()
