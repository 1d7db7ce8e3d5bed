"""A program that fills SMs: resident_program.py KERNELS STEPS, with STEPS as JSON.

A step is {"kernel", "grid", "extra_bytes", "stream", "carve_out"}. A grid of null is sized as persistent kernels size
theirs: the blocks that the driver says fit, on every SM. It prints each grid and what synchronising returned.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cuda.bindings import driver  # type: ignore[import-untyped, unused-ignore]
from tests.standin.programs.bindings_program import COMM, INT, POINTER, SIZE, Program, check


def main(kernels: Path, steps: list[dict[str, Any]]) -> None:
    program = Program(kernels)
    streams = [program.compute, program.comm]
    streams += [check(driver.cuStreamCreateWithPriority(1, -1))]
    a, b, c = (int(buffer) for buffer in program.buffers)
    count = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    sms = check(driver.cuDeviceGetAttribute(count, check(driver.cuDeviceGet(0))))
    grids = []
    for step in steps:
        name = step["kernel"]
        function, figures = program.functions[name], program.figures[f"{name}.{program.arch}"]
        smem = figures["smem_bytes"] + step.get("extra_bytes", 0)
        attribute = driver.CUfunction_attribute
        if step.get("extra_bytes"):
            check(driver.cuFuncSetAttribute(function, attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem))
        if (carve_out := step.get("carve_out")) is not None:
            chosen = attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            check(driver.cuFuncSetAttribute(function, chosen, carve_out))
        grid = step.get("grid")
        if grid is None:
            threads = figures["threads"]
            grid = sms * check(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, smem))
        values: tuple[int, ...] = (a, b, SIZE) if name == COMM else (a, b, c, SIZE, SIZE)
        types: tuple[Any, ...] = (POINTER, POINTER, INT) if name == COMM else (POINTER,) * 3 + (INT,) * 2
        arguments = ((*values, 0, 0), (*types, POINTER, POINTER))
        where = streams[step.get("stream", 0)]
        check(driver.cuLaunchKernel(function, grid, 1, 1, figures["threads"], 1, 1, smem, where, arguments, 0))
        grids.append(grid)
    (result,) = driver.cuCtxSynchronize()
    print(json.dumps({"sms": sms, "grids": grids, "synchronize": result.name}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
