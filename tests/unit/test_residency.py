"""Laws of residency: one kernel alone, one beside another, and the pad that sets a residency."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from makeway.model.residency import (
    Resource,
    blocks_beside,
    blocks_in,
    check_launch,
    need,
    pad_range,
    residency,
    resident_blocks,
    room_beside,
    shortages,
)
from makeway.values.device import Device, device_names, load_device
from makeway.values.errors import InvalidKernelError, UnsupportedError
from makeway.values.kernel import KernelResources

H100 = load_device("H100-SXM5-80GB")
A100 = load_device("A100-SXM4-80GB")
MI250X = load_device("MI250X")
GPUS = [device for device in map(load_device, device_names()) if device.limits]

devices = st.sampled_from(GPUS)
kernels = st.builds(
    KernelResources,
    threads=st.integers(1, 1024),
    registers_per_thread=st.integers(1, 255),
    smem_bytes=st.integers(0, 60_000) | st.just(0),
    barriers=st.integers(0, 16),
    scalar_registers=st.none() | st.integers(1, 112),
)


@given(devices, kernels)
def test_resident_blocks_never_oversubscribe_an_sm(device: Device, kernel: KernelResources) -> None:
    blocks, block, sm = resident_blocks(device, kernel), need(device.sm, kernel), device.sm
    assert blocks <= sm.max_blocks
    assert blocks * block.warps <= sm.max_warps
    assert blocks * block.warps * block.registers_per_warp <= sm.registers
    assert blocks * block.smem_bytes <= sm.smem_bytes
    assert sm.barriers is None or blocks * block.barriers <= sm.barriers


@given(devices, kernels, st.integers(0, 8192))
def test_more_smem_never_admits_more_blocks(device: Device, kernel: KernelResources, extra: int) -> None:
    assert resident_blocks(device, kernel.padded(extra)) <= resident_blocks(device, kernel)


@given(devices, kernels)
def test_what_binds_is_what_one_more_block_lacks(device: Device, kernel: KernelResources) -> None:
    answer = residency(device, kernel)
    assume(answer.blocks > 0)
    missing = shortages(device, room_beside(device, kernel, answer.blocks), kernel)
    assert {shortage.resource for shortage in missing} == set(answer.binds)


@given(devices, kernels)
def test_a_kernel_beside_itself_fills_the_sm_as_it_does_alone(device: Device, kernel: KernelResources) -> None:
    alone = resident_blocks(device, kernel)
    for held in range(alone + 1):
        assert blocks_beside(device, kernel, held, kernel) == alone - held


@given(devices, kernels, kernels)
def test_beside_nothing_is_alone(device: Device, held: KernelResources, kernel: KernelResources) -> None:
    assert blocks_beside(device, held, 0, kernel) == resident_blocks(device, kernel)


@given(devices, kernels, kernels)
def test_more_held_blocks_never_leave_more_room(device: Device, held: KernelResources, kernel: KernelResources) -> None:
    room = [blocks_beside(device, held, count, kernel) for count in range(resident_blocks(device, held) + 1)]
    assert room == sorted(room, reverse=True)


@given(devices, kernels, kernels)
def test_two_kernels_together_never_oversubscribe_an_sm(
    device: Device, held: KernelResources, kernel: KernelResources
) -> None:
    sm = device.sm
    count = resident_blocks(device, held)
    joined = blocks_beside(device, held, count, kernel)
    one, other = need(sm, held), need(sm, kernel)
    assert count + joined <= sm.max_blocks
    assert count * one.warps + joined * other.warps <= sm.max_warps
    assert count * one.smem_bytes + joined * other.smem_bytes <= sm.smem_bytes
    both = count * one.warps * one.registers_per_warp + joined * other.warps * other.registers_per_warp
    assert both <= sm.registers


@given(devices, kernels, kernels)
def test_a_shortage_is_reported_exactly_when_nothing_fits(
    device: Device, held: KernelResources, kernel: KernelResources
) -> None:
    room = room_beside(device, held, min(1, resident_blocks(device, held)))
    missing = shortages(device, room, kernel)
    assert bool(missing) == (blocks_in(device, room, kernel) == 0)
    assert all(shortage.amount > 0 for shortage in missing)


@given(devices, kernels, st.integers(1, 33))
def test_pads_inside_the_range_give_the_residency_and_pads_outside_do_not(
    device: Device, kernel: KernelResources, blocks: int
) -> None:
    pad = pad_range(device, kernel, blocks)
    most = device.sm.smem_block_bytes - kernel.smem_bytes
    tried = range(0, most + 1, 997) if most >= 0 else ()
    if pad is None:
        assert all(resident_blocks(device, kernel.padded(extra)) != blocks for extra in tried)
        return
    assert resident_blocks(device, kernel.padded(pad.smallest_bytes)) == blocks
    assert resident_blocks(device, kernel.padded(pad.largest_bytes)) == blocks
    if pad.smallest_bytes > 0:
        assert resident_blocks(device, kernel.padded(pad.smallest_bytes - 1)) > blocks
    if pad.largest_bytes < most:
        assert resident_blocks(device, kernel.padded(pad.largest_bytes + 1)) < blocks
    inside = [extra for extra in tried if pad.smallest_bytes <= extra <= pad.largest_bytes]
    assert all(resident_blocks(device, kernel.padded(extra)) == blocks for extra in inside)


def test_a_worked_example_a_reader_can_check() -> None:
    # 256 threads are 8 warps; 98 registers x 32 threads round up to 3,328 a warp, and 4 warps of
    # them fit into a partition of 16,384: 16 warps, 2 blocks. Shared memory alone would allow 4.
    kernel = KernelResources(threads=256, registers_per_thread=98, smem_bytes=48 * 1024)
    assert residency(H100, kernel).blocks == 2
    assert residency(H100, kernel).binds == (Resource.REGISTERS,)


def test_registers_left_in_different_partitions_do_not_add_up() -> None:
    # A 128-thread block of 251 registers leaves 8,192 in each partition: two NCCL warps of 3,072 each,
    # 8 in all. Nine warps (288 threads) need 27,648 of the 32,768 that are free, and yet do not fit.
    held = KernelResources(threads=128, registers_per_thread=251, smem_bytes=100 * 1024)
    nccl = KernelResources(threads=288, registers_per_thread=96)
    (missing,) = shortages(H100, room_beside(H100, held, 1), nccl)
    assert (missing.resource, missing.in_partition, missing.amount) == (Resource.REGISTERS, True, 3 * 3072 - 8192)
    assert missing.key == "registers_in_a_partition"


def test_amd_workgroups_of_several_waves_are_held_to_sixteen_by_barriers() -> None:
    two_waves = KernelResources(threads=128, registers_per_thread=8)
    assert residency(MI250X, two_waves).binds == (Resource.WARPS, Resource.BARRIERS)
    assert resident_blocks(MI250X, two_waves) == 16
    assert resident_blocks(MI250X, replace(two_waves, threads=64)) == 32


def test_amd_registers_are_counted_per_simd() -> None:
    # RCCL's 259 VGPRs round up to 264 of 512: one wave per SIMD, one 4-wave workgroup per CU.
    rccl = KernelResources(threads=256, registers_per_thread=259, smem_bytes=1728)
    assert residency(MI250X, rccl).blocks == 1
    beside = [KernelResources(threads=256, registers_per_thread=count) for count in (248, 249)]
    assert [blocks_beside(MI250X, rccl, 1, kernel) for kernel in beside] == [1, 0]


def test_amd_scalar_registers_bind_above_one_hundred() -> None:
    kernel = KernelResources(threads=64, registers_per_thread=8, scalar_registers=100)
    assert resident_blocks(MI250X, kernel) == 32
    assert resident_blocks(MI250X, replace(kernel, scalar_registers=101)) == 28


def test_a_cpu_host_has_no_residency() -> None:
    with pytest.raises(UnsupportedError, match="CPU host"):
        resident_blocks(load_device("CPU-host"), KernelResources(threads=1, registers_per_thread=1))


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (KernelResources(threads=32, registers_per_thread=256), "256 registers per thread; .* at most 255"),
        (KernelResources(threads=32, registers_per_thread=8, smem_bytes=232_449), "232,449 B .* at most 227 KiB"),
        (KernelResources(threads=32, registers_per_thread=8, cluster=32), "clusters of 32 .* at most 16"),
        (KernelResources(threads=1024, registers_per_thread=128), "never fit on an SM"),
    ],
)
def test_a_launch_that_would_be_refused_is_refused_here(kernel: KernelResources, said: str) -> None:
    with pytest.raises(InvalidKernelError, match=said):
        check_launch(H100, kernel)
    assert resident_blocks(H100, kernel) == 0


def test_clusters_need_a_device_that_has_them() -> None:
    kernel = KernelResources(threads=32, registers_per_thread=8, cluster=2)
    assert residency(A100, kernel).binds == (Resource.CLUSTER,)
