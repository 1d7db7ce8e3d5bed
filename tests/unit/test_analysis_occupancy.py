"""Laws of occupancy: its limits, how grid and shared memory move it, and where Kineto's formula parts from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.decide.analysis.occupancy import kineto_percent, occupancy, occupancy_percent
from makeway.model.residency import resident_blocks
from makeway.values.device import Device, device_names, load_device
from makeway.values.errors import InputError
from makeway.values.kernel import KernelResources, Launch
from makeway.values.timeline import Span

GPUS = [device for device in map(load_device, device_names()) if device.limits]
A100 = load_device("A100-SXM4-80GB")
KIB = 1024


def launch(blocks: int, threads: int, *, registers: int = 32, smem_bytes: int = 0) -> Launch:
    block = KernelResources(threads=threads, registers_per_thread=registers, smem_bytes=smem_bytes)
    return Launch(blocks=blocks, threads=threads, resources=block)


devices = st.sampled_from(GPUS)
launches = st.builds(
    launch,
    st.integers(1, 100_000),
    st.integers(1, 1024),
    registers=st.integers(1, 255),
    smem_bytes=st.integers(0, 100 * KIB),
)


@given(devices, launches)
def test_occupancy_is_a_percentage_and_zero_only_for_a_block_that_cannot_reside(device: Device, one: Launch) -> None:
    assert one.resources is not None
    percent = occupancy_percent(device, one)
    assert 0 <= percent <= 100
    assert (percent == 0) == (resident_blocks(device, one.resources) == 0)


@given(devices, launches, st.integers(1, 1000))
def test_more_blocks_never_lower_occupancy(device: Device, one: Launch, more: int) -> None:
    assert occupancy_percent(device, replace(one, blocks=one.blocks + more)) >= occupancy_percent(device, one)


@given(devices, launches, st.integers(1, 40 * KIB))
def test_more_shared_memory_never_raises_occupancy(device: Device, one: Launch, pad: int) -> None:
    assert one.resources is not None
    padded = replace(one, resources=one.resources.padded(pad))
    assert occupancy_percent(device, padded) <= occupancy_percent(device, one)


@given(devices, launches, st.integers(1, 16))
def test_kineto_agrees_on_whole_warps_within_the_default_limit_and_says_nothing_above(
    device: Device, one: Launch, warps: int
) -> None:
    assert one.resources is not None
    threads = warps * device.sm.warp_threads
    one = replace(one, threads=threads, resources=replace(one.resources, threads=threads))
    assert one.resources is not None
    above = one.resources.smem_bytes > device.sm.smem_default_block_bytes
    expected = 0.0 if above else occupancy_percent(device, one)
    assert kineto_percent(device, one) == pytest.approx(expected)


def test_two_worked_examples_on_an_a100() -> None:
    # 8 blocks of 256 threads fill the 64 warps of an SM, and 108 SMs get 10 each.
    assert occupancy_percent(A100, launch(1080, 256)) == 100.0
    # 24 blocks of NCCL, 17 warps each: 24 / 108 of a block per SM.
    nccl = launch(24, 544, registers=96, smem_bytes=88_016)
    assert occupancy_percent(A100, nccl) == pytest.approx(100 * 24 / 108 * 17 / 64)
    assert kineto_percent(A100, nccl) == 0.0


def span(one: Launch | None, duration_ns: int) -> Span:
    return Span(name="kernel", kind="compute", stream="7", start_ns=0, end_ns=duration_ns, launch=one)


def test_the_mean_is_weighted_by_time_and_counts_what_kineto_gets_wrong() -> None:
    full, nccl = launch(1080, 256), launch(24, 544, registers=96, smem_bytes=88_016)
    found = occupancy([span(full, 300), span(nccl, 100), span(nccl, 100), span(None, 1_000)], A100)
    assert (found.kernels, found.kineto_wrong) == (3, 2)
    assert found.mean_percent == pytest.approx((3 * 100.0 + 2 * occupancy_percent(A100, nccl)) / 5)


def test_without_recorded_resources_there_is_no_occupancy() -> None:
    bare = Launch(blocks=8, threads=256)
    assert occupancy([span(bare, 100)], A100).mean_percent is None
    with pytest.raises(InputError, match="needs registers and shared memory"):
        occupancy_percent(A100, bare)
