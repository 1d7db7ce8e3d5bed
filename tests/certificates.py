"""A certificate made of synthetic samples, for tests: an A40 whose every check is as the model says."""

from __future__ import annotations

from makeway.act.doctor.certificate import Step
from makeway.act.doctor.samples import BesideRun, Block, DriverFacts, Line, OccupancyRow, RatesRun
from makeway.model.residency import pad_range, resident_blocks
from makeway.values.device import Device, load_device
from makeway.values.kernel import KernelResources
from makeway.values.recorded_device import RecordedLimits

A40 = load_device("A40")
HOLD = KernelResources(threads=128, registers_per_thread=16)
HOLD_NS = 2_000_000


def limits_of(device: Device, arch: str | None = None) -> RecordedLimits:
    sm = device.sm
    return RecordedLimits(
        vendor=device.vendor,
        arch=arch or device.arch,
        sms=device.sms,
        memory_bytes=device.memory_bytes,
        registers=sm.registers,
        threads=sm.max_warps * sm.warp_threads,
        max_threads_per_block=sm.max_threads_per_block,
        warp_threads=sm.warp_threads,
        smem_bytes=sm.smem_bytes,
        smem_block_bytes=sm.smem_block_bytes,
        smem_default_block_bytes=sm.smem_default_block_bytes,
    )


def driver_facts(device: Device = A40, name: str = "NVIDIA A40") -> DriverFacts:
    blocks = [HOLD.padded(extra) for extra in (0, 1024, 20_000, 60_000)]
    return DriverFacts(
        device=name,
        driver_version=13_000,
        limits=limits_of(device),
        smem_reserved_bytes=device.sm.smem_reserved_bytes,
        max_blocks=device.sm.max_blocks,
        clock_hz=1.74e9,
        l2_bytes=device.l2_bytes,
        copy_engines=3,
        occupancy=tuple(
            OccupancyRow(kernel="makeway_hold", block=block, blocks=resident_blocks(device, block)) for block in blocks
        ),
    )


def beside_run(case: str, *, held_pad: int, other_pad: int, other_start_ns: int, waves: int = 1) -> BesideRun:
    sms = range(A40.sms)
    held = tuple(Block(sm, wave * HOLD_NS, (wave + 1) * HOLD_NS) for wave in range(waves) for sm in sms)
    other = tuple(Block(sm, other_start_ns, other_start_ns + HOLD_NS) for sm in sms)
    return BesideRun(
        case=case,
        device="NVIDIA A40",
        held=HOLD.padded(held_pad),
        held_per_sm=1,
        other=HOLD.padded(other_pad),
        held_blocks=held,
        other_blocks=other,
        limits=limits_of(A40),
    )


def beside_runs(*, queue_start_ns: int = HOLD_NS, room_start_ns: int = 1000) -> tuple[BesideRun, ...]:
    pads = pad_range(A40, HOLD, 1)
    assert pads is not None
    half = pads.smallest_bytes
    return (
        beside_run("room", held_pad=half, other_pad=0, other_start_ns=room_start_ns),
        beside_run("no room", held_pad=half, other_pad=half, other_start_ns=HOLD_NS),
        beside_run("queue", held_pad=half, other_pad=0, other_start_ns=queue_start_ns, waves=2),
        beside_run("default carve-out", held_pad=24_000, other_pad=63_000, other_start_ns=HOLD_NS),
        beside_run("largest carve-out", held_pad=24_000, other_pad=63_000, other_start_ns=1000),
    )


def rates_run(name: str = "NVIDIA A40") -> RatesRun:
    return RatesRun(
        device=name,
        fp16_flops_per_s=120e12,
        tf32_flops_per_s=60e12,
        hbm_bytes_per_s=600e9,
        pcie_bytes_per_s=25e9,
        link_bytes_per_s=50e9,
        rounds=9,
    )


def steps(name: str = "NVIDIA A40") -> tuple[Step, ...]:
    return (
        Step(name="versions", lines=(Line(check="versions", versions={"device": name}),)),
        Step(name="occupancy", lines=(Line(check="occupancy", driver=driver_facts(name=name)),)),
        Step(name="beside", lines=(Line(check="beside"), Line(check="beside", beside=beside_runs()))),
        Step(name="copies", lines=(Line(check="copies"),), trouble="it did not finish within 120 s"),
        Step(name="rates", lines=(Line(check="rates", rates=rates_run(name)),)),
    )
