"""The measurements of the self-test on the first GPU, NVIDIA or AMD, as lines of JSON. Not yet run on hardware.

python -m makeway.act.doctor.gpu_probe CHECK... runs in a process of its own, so that what a check does to the driver
ends with it. The functions here only measure; makeway.act.doctor.verdicts judges.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from statistics import median
from typing import Any

import torch
import triton

from makeway.act.cuda.backend import CudaBackend
from makeway.act.cuda.graph import shape_torch_graph
from makeway.act.cuda.streams import ConfinedStream, green_stream, prioritised_stream
from makeway.act.doctor.kernels import COLUMNS, NAME, WARPS, XCC_ARCHS, makeway_hold, makeway_hold_amd
from makeway.act.doctor.samples import (
    BesideRun,
    Block,
    CopyRun,
    Line,
    PaddedRun,
    PartitionRun,
    PriorityRun,
    RatesRun,
    sampled_device,
    write_checks,
)
from makeway.act.rocm.masks import check_split, hip_library, mask_words, masked_stream
from makeway.act.triton.gemm import padded
from makeway.model.residency import pad_range, resident_blocks
from makeway.read.binaries.cubin import cubin_kernels
from makeway.read.binaries.elf import parse_elf
from makeway.read.binaries.hsaco import hsaco_kernels
from makeway.values.control import SmemPad, SmPartition
from makeway.values.device import Device
from makeway.values.errors import UnsupportedError
from makeway.values.kernel import KernelResources
from makeway.values.plan import Plan
from makeway.values.recorded_device import RecordedLimits
from makeway.values.units import GIB, MIB

HOLD_NS = 2_000_000  # much longer than the microseconds it takes to fill a device
WAVE_NS = 300_000
LONG_HOLD_NS = 200_000_000  # much longer than a copy of COPY_BYTES over PCIe
COPY_BYTES = 16 * MIB
WAVES = 8
COMM_SMS = 16
ROUNDS = 9
MATRIX = 8192  # of the rates' matrix products
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
        "beside": lambda: Line(check="beside", beside=measure_beside()),
        "rates": lambda: Line(check="rates", rates=measure_rates()),
    }
    write_checks(checks, lambda check: measures[check]())


def loaded_versions() -> dict[str, str]:
    """Versions of the libraries that this process loaded; package lists may differ."""
    nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    return {
        "device": torch.cuda.get_device_name(0),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "hip": str(torch.version.hip),
        "nccl": ".".join(map(str, _CUDA.nccl.version())) if nccl else "none",
        "triton": str(triton.__version__),
    }


# --- the kernel ----------------------------------------------------------------------------------


def _amd() -> bool:
    return torch.version.hip is not None


def _limits() -> RecordedLimits:
    """What torch says of the device; a build that lacks a number leaves it out."""
    facts = torch.cuda.get_device_properties(0)
    arch = str(getattr(facts, "gcnArchName", "")).partition(":")[0]
    return RecordedLimits(
        vendor="amd" if _amd() else "nvidia",
        arch=arch if _amd() else f"sm_{facts.major}{facts.minor}",
        sms=facts.multi_processor_count,
        memory_bytes=facts.total_memory,
        registers=getattr(facts, "regs_per_multiprocessor", None),
        threads=getattr(facts, "max_threads_per_multi_processor", None),
        warp_threads=getattr(facts, "warp_size", None),
        smem_bytes=getattr(facts, "shared_memory_per_multiprocessor", None),
        smem_block_bytes=getattr(facts, "shared_memory_per_block_optin", None),
        smem_default_block_bytes=getattr(facts, "shared_memory_per_block", None),
    )


def _device() -> Device:
    return sampled_device(torch.cuda.get_device_name(0), _limits())


def _rows(blocks: int) -> Any:
    return torch.zeros((blocks, COLUMNS), dtype=torch.int64, device="cuda")


def _compiler() -> tuple[Any, dict[str, Any]]:
    """The kernel of this vendor, and its options."""
    if _amd():
        return makeway_hold_amd, {"XCC": _limits().arch in XCC_ARCHS, "num_warps": WARPS}
    return makeway_hold, {"num_warps": WARPS}


def _kernel(rows: Any, hold_ns: int) -> Any:
    kernel, options = _compiler()
    return kernel.warmup(rows, hold_ns, grid=(1,), **options)


def _resources(kernel: Any) -> KernelResources:
    if _amd():
        (compiled,) = hsaco_kernels(parse_elf(kernel.asm["hsaco"]))
    else:
        (compiled,) = cubin_kernels(parse_elf(kernel.asm["cubin"]))
    return compiled.resources(threads=WARPS * _device().sm.warp_threads, smem_dynamic_bytes=kernel.metadata.shared)


def _hold(rows: Any, hold_ns: int, pad_bytes: int = 0) -> None:
    """Launch on the current stream, one block per row."""
    grid = (rows.shape[0], 1, 1)
    kernel, options = _compiler()
    if pad_bytes:
        constants = (options["XCC"],) if _amd() else ()
        padded(_kernel(rows, hold_ns), pad_bytes)[grid](rows, hold_ns, *constants)
    else:
        kernel[grid](rows, hold_ns, **options)


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
    return PaddedRun(
        device=torch.cuda.get_device_name(0),
        block=block,
        pad_bytes=pad_bytes,
        blocks=_blocks(rows),
        limits=_limits(),
    )


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
    """The kernel on a stream that leaves some SMs to communication: of a green context, or with a CU mask."""
    if not _amd() and (reason := CudaBackend(torch=torch).refusal(SmPartition(COMM_SMS))):
        raise UnsupportedError(reason)
    rows = _rows(2 * _capacity())
    _hold(_rows(1), HOLD_NS)
    torch.cuda.synchronize()
    with _confined() as confined:
        with torch.cuda.stream(confined.stream):
            _hold(rows, HOLD_NS)
        blocks = _blocks(rows)
    return PartitionRun(given_sms=confined.sms, device_sms=_device().sms, blocks=blocks)


def _confined() -> AbstractContextManager[ConfinedStream]:
    if not _amd():
        return green_stream(torch, 0, COMM_SMS)
    limits = _limits()
    assert limits.sms is not None
    check_split(limits.sms, COMM_SMS, limits.arch or "")
    return masked_stream(torch, hip_library(), 0, mask_words(COMM_SMS, limits.sms - COMM_SMS))


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


# --- two kernels on one SM -----------------------------------------------------------------------


def measure_beside() -> tuple[BesideRun, ...]:
    """The cases that settle room beside, the carve-out and the order of the queue."""
    device, block = _device(), _resources(_kernel(_rows(1), HOLD_NS))
    sm, alone = device.sm, pad_range(device, block, 1)
    if alone is None:
        raise UnsupportedError(f"no pad brings the self-test's kernel to one block per SM of {device.name}")
    half = alone.smallest_bytes
    runs = [_beside("room", half, 0), _beside("no room", half, half), _beside("queue", half, 0, waves=2)]
    if not _amd():  # LDS has a fixed size
        quarter, most = sm.smem_bytes // 4 - sm.smem_reserved_bytes, sm.smem_block_bytes
        rest = min(sm.smem_bytes * 5 // 8, most) - sm.smem_reserved_bytes
        runs.append(_beside("default carve-out", quarter, rest))
        runs.append(_beside("largest carve-out", quarter, rest, carve_out=100))
    return tuple(runs)


def _beside(case: str, held_pad: int, other_pad: int, *, waves: int = 1, carve_out: int | None = None) -> BesideRun:
    device = _device()
    held_rows, other_rows = _rows(waves * device.sms), _rows(device.sms)
    held, other = (_loaded(rows, pad) for rows, pad in ((held_rows, held_pad), (other_rows, other_pad)))
    if carve_out is not None:
        _prefer_carve_out(held, carve_out)
    constants = (_compiler()[1]["XCC"],) if _amd() else ()
    for kernel, rows in ((held, held_rows), (other, other_rows)):
        kernel[(1, 1, 1)](rows, 0, *constants)  # the first launch loads the code
    torch.cuda.synchronize()
    for kernel, rows in ((held, held_rows), (other, other_rows)):
        with torch.cuda.stream(_CUDA.Stream()):
            kernel[(rows.shape[0], 1, 1)](rows, HOLD_NS, *constants)
    block = _resources(_kernel(held_rows, HOLD_NS))
    held_blocks, other_blocks = _blocks(held_rows), _blocks(other_rows)
    return BesideRun(
        case=case,
        device=torch.cuda.get_device_name(0),
        held=block.padded(held_pad),
        held_per_sm=1,
        other=block.padded(other_pad),
        held_blocks=held_blocks,
        other_blocks=other_blocks,
        limits=_limits(),
    )


def _loaded(rows: Any, pad_bytes: int) -> Any:
    """A copy of the kernel of its own, so that a preference set on it is not seen by the other."""
    kernel = padded(_kernel(rows, HOLD_NS), pad_bytes)
    kernel._init_handles()
    return kernel


def _prefer_carve_out(kernel: Any, percent: int) -> None:
    from cuda.bindings import driver  # type: ignore[import-untyped, unused-ignore]

    preferred = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    (error,) = driver.cuFuncSetAttribute(driver.CUfunction(kernel.function), preferred, percent)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise UnsupportedError(f"the carve-out could not be set: {error.name}")


# --- rates ---------------------------------------------------------------------------------------


def measure_rates() -> RatesRun:
    """What this device's arithmetic, memory and links give, by torch's own kernels and copies."""
    peer = torch.cuda.device_count() > 1
    return RatesRun(
        device=torch.cuda.get_device_name(0),
        fp16_flops_per_s=_matmul_rate(torch.float16),
        tf32_flops_per_s=None if _amd() else _matmul_rate(torch.float32),
        hbm_bytes_per_s=2 * _copy_rate(GIB, "cuda:0"),  # each byte is read and written
        pcie_bytes_per_s=_copy_rate(256 * MIB, "cpu"),
        link_bytes_per_s=_copy_rate(256 * MIB, "cuda:1") if peer else None,
        rounds=ROUNDS,
    )


def _matmul_rate(dtype: Any) -> float:
    torch.set_float32_matmul_precision("high")
    a, b = (torch.randn((MATRIX, MATRIX), device="cuda").to(dtype) for _ in range(2))
    return float(2 * MATRIX**3) / _seconds(lambda: torch.mm(a, b))


def _copy_rate(size_bytes: int, source: str) -> float:
    data = torch.zeros(size_bytes, dtype=torch.uint8, device=source)
    data = data.pin_memory() if source == "cpu" else data
    target = torch.empty(size_bytes, dtype=torch.uint8, device="cuda:0")
    return size_bytes / _seconds(lambda: target.copy_(data, non_blocking=True))


def _seconds(work: Callable[[], object]) -> float:
    """The median of a few rounds, by events of the device."""
    work()
    times: list[float] = []
    for _ in range(ROUNDS):
        begun, done = (_CUDA.Event(enable_timing=True) for _ in range(2))
        begun.record()
        work()
        done.record()
        torch.cuda.synchronize()
        times.append(float(begun.elapsed_time(done)) / 1e3)
    return median(times)


if __name__ == "__main__":
    main(sys.argv[1:])
