"""A data-parallel training program that also launches GPU kernels in each step; it knows nothing of makeway.

usage: ddp_launches.py KERNELS STEPS [graph]. Gradients go over Gloo; the kernels, a GEMM twice and one named like
NCCL's, through cuda-bindings. With "graph", a step launches a captured graph instead.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cuda.bindings import driver  # type: ignore[import-untyped, unused-ignore]
from torch.nn.parallel import DistributedDataParallel

COMM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
ARCH = "sm_90"
ARGUMENTS = ((0,) * 16, (ctypes.c_void_p,) * 16)  # more than any of them takes; no kernel reads them on the stand-in


def done(answer: tuple[Any, ...]) -> Any:
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        sys.exit(f"failed: {answer[0]}")
    return answer[1] if len(answer) > 1 else None


class Kernels:
    """A GEMM and a comm kernel on a stream of their own."""

    def __init__(self, where: Path) -> None:
        done(driver.cuInit(0))
        done(driver.cuCtxSetCurrent(done(driver.cuDevicePrimaryCtxRetain(done(driver.cuDeviceGet(0))))))
        self.figures = json.loads((where / "kernels.json").read_text())
        self.functions = {}
        for name in ("gemm", COMM):
            module = done(driver.cuModuleLoadData((where / f"{name}.{ARCH}.cubin").read_bytes()))
            self.functions[name] = done(driver.cuModuleGetFunction(module, name.encode()))
        self.stream = done(driver.cuStreamCreate(1))

    def launch(self) -> None:
        for name in ("gemm", "gemm", COMM):
            figures = self.figures[f"{name}.{ARCH}"]
            smem, threads = figures["smem_bytes"], figures["threads"]
            done(driver.cuLaunchKernel(self.functions[name], 4, 4, 1, threads, 1, 1, smem, self.stream, ARGUMENTS, 0))

    def captured(self) -> Any:
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        done(driver.cuStreamBeginCapture(self.stream, mode))
        self.launch()
        return done(driver.cuGraphInstantiate(done(driver.cuStreamEndCapture(self.stream)), 0))


def main(where: Path, steps: int, graph: bool) -> None:
    dist.init_process_group("gloo")
    kernels = Kernels(where)
    executable = kernels.captured() if graph else None
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.Linear(1024, 64)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    own = torch.Generator().manual_seed(dist.get_rank())
    for step in range(steps):
        time.sleep(0.01)  # as for data: a switch is a small part of the job
        loss = model(torch.randn(64, 64, generator=own)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if executable is None:
            kernels.launch()
        else:
            done(driver.cuGraphLaunch(executable, kernels.stream))
        optimizer.step()
        sys.stdout.write(f"rank {dist.get_rank()} step {step} loss {loss.item().hex()}\n")
        sys.stdout.flush()
    done(driver.cuCtxSynchronize())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["graph"])
