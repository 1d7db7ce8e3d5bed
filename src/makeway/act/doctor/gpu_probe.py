"""The measurements of the self-test on the first NVIDIA GPU, as lines of JSON. Not yet run on hardware.

python -m makeway.act.doctor.gpu_probe CHECK... runs in a process of its own, so that what a check does to the driver
ends with it. The functions here only measure; makeway.act.doctor.verdicts judges.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
import triton

from makeway.act.cuda.backend import CudaBackend
from makeway.act.cuda.graph import shape_torch_graph
from makeway.act.cuda.streams import green_stream, prioritised_stream
from makeway.act.doctor.kernels import COLUMNS, NAME, WARPS, makeway_hold
from makeway.act.doctor.samples import Block, CopyRun, Line, PaddedRun, PartitionRun, PriorityRun
from makeway.act.triton.gemm import padded
from makeway.model.residency import pad_range, resident_blocks
from makeway.read.binaries.cubin import cubin_kernels
from makeway.read.binaries.elf import parse_elf
from makeway.values.control import SmemPad, SmPartition
from makeway.values.device import Device, load_device
from makeway.values.errors import MakewayError, UnsupportedError
from makeway.values.kernel import KernelResources
from makeway.values.plan import Plan
from makeway.values.units import MIB

HOLD_NS = 2_000_000  # much longer than the microseconds it takes to fill a device
WAVE_NS = 300_000
LONG_HOLD_NS = 200_000_000  # much longer than a copy of COPY_BYTES over PCIe
COPY_BYTES = 16 * MIB
WAVES = 8
COMM_SMS = 16
TARGETS = (8, 4, 2, 1)  # blocks per SM
_CUDA: Any = torch.cuda  # its types are incomplete


def main(checks: Sequence[str]) -> None:
    measures: dict[str, Callable[[], Line]] = {
        "versions": lambda: Line(check="versions", versions=loaded_versions()),
        "residency": lambda: Line(check="residency", padded=measure_residency()),
        "as launched": lambda: Line(check="as launched", padded=(measure_pad(0),)),
        "graph": lambda: Line(check="graph", padded=(measure_graph(),)),
        "priority": lambda: Line(check="priority", priority=measure_priority()),
        "partition": lambda: Line(check="partition", partition=measure_partition()),
        "copies": lambda: Line(check="copies", copy=measure_copy()),
    }
    for check in checks:
        _write(Line(check=check))
        try:
            line = measures[check]()
        except MakewayError as error:
            line = Line(check=check, refused=" ".join(str(error).split()))
        _write(line)


def _write(line: Line) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def loaded_versions() -> dict[str, str]:
    """Versions of the libraries that this process loaded; package lists may differ."""
    nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    return {
        "device": torch.cuda.get_device_name(0),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "nccl": ".".join(map(str, _CUDA.nccl.version())) if nccl else "none",
        "triton": str(triton.__version__),
    }


# --- the kernel ----------------------------------------------------------------------------------


def _device() -> Device:
    return load_device(torch.cuda.get_device_name(0))


def _rows(blocks: int) -> Any:
    return torch.zeros((blocks, COLUMNS), dtype=torch.int64, device="cuda")


def _kernel(rows: Any, hold_ns: int) -> Any:
    return makeway_hold.warmup(rows, hold_ns, grid=(1,), num_warps=WARPS)


def _resources(kernel: Any) -> KernelResources:
    (compiled,) = cubin_kernels(parse_elf(kernel.asm["cubin"]))
    return compiled.resources(threads=WARPS * 32, smem_dynamic_bytes=kernel.metadata.shared)


def _hold(rows: Any, hold_ns: int, pad_bytes: int = 0) -> None:
    """Launch on the current stream, one block per row."""
    grid = (rows.shape[0], 1, 1)
    if pad_bytes:
        padded(_kernel(rows, hold_ns), pad_bytes)[grid](rows, hold_ns)
    else:
        makeway_hold[grid](rows, hold_ns, num_warps=WARPS)


def _blocks(rows: Any) -> tuple[Block, ...]:
    torch.cuda.synchronize()
    return tuple(Block(*map(int, row)) for row in rows.tolist())


def _capacity(pad_bytes: int = 0) -> int:
    """Blocks of the kernel that fit on the whole device, by makeway's residency."""
    device, block = _device(), _resources(_kernel(_rows(1), HOLD_NS))
    return device.sms * resident_blocks(device, block.padded(pad_bytes))


# --- measurements --------------------------------------------------------------------------------


def measure_residency() -> tuple[PaddedRun, ...]:
    """The kernel without a pad, and with the smallest pad for each target residency."""
    device, block = _device(), _resources(_kernel(_rows(1), HOLD_NS))
    ranges = (pad_range(device, block, target) for target in TARGETS)
    return tuple(measure_pad(pad) for pad in (0, *(pads.smallest_bytes for pads in ranges if pads)))


def measure_pad(pad_bytes: int) -> PaddedRun:
    """One padded launch of twice the blocks that fit; the result does not include a pad that the shim adds."""
    rows = _rows(2 * _capacity(pad_bytes))
    _hold(rows, HOLD_NS, pad_bytes)
    torch.cuda.synchronize()  # the first launch loads the code
    _hold(rows, HOLD_NS, pad_bytes)
    return _padded_run(rows, pad_bytes)


def _padded_run(rows: Any, pad_bytes: int) -> PaddedRun:
    block = _resources(_kernel(rows, HOLD_NS))
    return PaddedRun(device=torch.cuda.get_device_name(0), block=block, pad_bytes=pad_bytes, blocks=_blocks(rows))


def measure_graph() -> PaddedRun:
    """The kernel captured without a pad, shaped to one block per SM, and replayed."""
    device, block = _device(), _resources(_kernel(_rows(1), HOLD_NS))
    wanted = pad_range(device, block, 1)
    if wanted is None:
        raise UnsupportedError(f"no pad brings the self-test's kernel to one block per SM of {device.name}")
    rows = _rows(2 * device.sms)
    _hold(rows, HOLD_NS)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        _hold(rows, HOLD_NS)
    shape_torch_graph(graph, Plan(controls=(SmemPad(wanted.smallest_bytes, NAME),)))
    graph.replay()
    return _padded_run(rows, wanted.smallest_bytes)


def measure_priority() -> PriorityRun:
    """The short kernel behind many waves of the long one, at the highest and at the default priority."""
    long_high, high = _behind(prioritised_stream(torch, 0))
    long_equal, equal = _behind(_CUDA.Stream())
    return PriorityRun(long_beside_high=long_high, high=high, long_beside_equal=long_equal, equal=equal)


def _behind(stream: Any) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    long, short = _rows(WAVES * _capacity()), _rows(_device().sms)
    _hold(_rows(1), WAVE_NS)
    torch.cuda.synchronize()
    with torch.cuda.stream(_CUDA.Stream()):
        _hold(long, WAVE_NS)
    with torch.cuda.stream(stream):
        _hold(short, WAVE_NS)
    return _blocks(long), _blocks(short)


def measure_partition() -> PartitionRun:
    """The kernel on a stream of a green context that leaves some SMs to communication."""
    if reason := CudaBackend(torch=torch).refusal(SmPartition(COMM_SMS)):
        raise UnsupportedError(reason)
    rows = _rows(2 * _capacity())
    _hold(_rows(1), HOLD_NS)
    torch.cuda.synchronize()
    with green_stream(torch, 0, COMM_SMS) as confined:
        with torch.cuda.stream(confined.stream):
            _hold(rows, HOLD_NS)
        blocks = _blocks(rows)
    return PartitionRun(given_sms=confined.sms, device_sms=_device().sms, blocks=blocks)


def measure_copy() -> CopyRun:
    """A copy beside a kernel that holds every SM: between GPUs where there are two, else from pinned memory."""
    rows = _rows(_capacity())
    peer = torch.cuda.device_count() > 1
    source = torch.arange(COPY_BYTES // 4, dtype=torch.int32)
    source = source.to("cuda:1") if peer else source.pin_memory()
    arrived = torch.zeros(COPY_BYTES // 4, dtype=torch.int32, device="cuda:0")
    _hold(_rows(1), LONG_HOLD_NS // 1000)
    arrived.copy_(source, non_blocking=True)  # the first copy opens the path
    torch.cuda.synchronize()
    arrived.zero_()
    torch.cuda.synchronize()
    begun, held, done = (_CUDA.Event(enable_timing=True) for _ in range(3))
    holding, copying = _CUDA.Stream(), _CUDA.Stream()
    with torch.cuda.stream(holding):
        begun.record()
        _hold(rows, LONG_HOLD_NS)
        held.record()
    with torch.cuda.stream(copying):
        arrived.copy_(source, non_blocking=True)
        done.record()
    blocks = _blocks(rows)
    starts, ends = [block.start_ns for block in blocks], [block.end_ns for block in blocks]
    return CopyRun(
        path="GPU 1 to GPU 0" if peer else "pinned host memory to GPU 0",
        size_bytes=COPY_BYTES,
        held_from_ns=max(starts) - min(starts),
        held_until_ns=round(begun.elapsed_time(held) * 1e6) - (max(ends) - min(ends)),
        copy_end_ns=round(begun.elapsed_time(done) * 1e6),
        intact=bool(torch.equal(arrived.cpu(), source.cpu())),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
