"""The room-making question: options are real, complete, and the verdict says what the numbers say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from makeway.model.residency import blocks_beside, resident_blocks
from makeway.model.room import make_room, verdict
from makeway.values.collective import CommFootprint, load_footprint
from makeway.values.control import SmemPad
from makeway.values.device import Device, load_device
from makeway.values.kernel import KernelResources

A100 = load_device("A100-SXM4-80GB")
H100 = load_device("H100-SXM5-80GB")
MI250X = load_device("MI250X")

pairs = st.sampled_from(
    [(A100, "nccl-2.27.5/ring-simple"), (H100, "nccl-2.32.3/ring-simple"), (MI250X, "rccl-5.4.3/generic")]
)
kernels = st.builds(
    KernelResources,
    threads=st.sampled_from([32, 64, 128, 256, 384, 512]),
    registers_per_thread=st.integers(16, 128),
    smem_bytes=st.integers(0, 40_000),
)


def own_block(**resources: int) -> CommFootprint:
    return CommFootprint(name="own", arch="any", block=KernelResources(**resources), facts={})


@given(pairs, kernels)
def test_every_option_does_what_it_says(pair: tuple[Device, str], compute: KernelResources) -> None:
    device, name = pair
    comm = load_footprint(name, device.arch)
    for option in make_room(device, compute, comm).options:
        block = comm.with_threads(option.comm_threads).block
        assert block is not None
        held = option.compute_blocks - (option.joins != "beside_full")
        assert (held == 0) == (option.joins == "whole_drain")
        for pad in (option.pad_bytes, (option.pad_bytes + option.pad_most_bytes) // 2, option.pad_most_bytes):
            padded = compute.padded(pad)
            assert resident_blocks(device, padded) == option.compute_blocks
            assert blocks_beside(device, padded, held, block) == option.comm_blocks > 0
        more = compute.padded(option.pad_most_bytes + 1)
        assert (
            more.smem_bytes > device.sm.smem_block_bytes
            or resident_blocks(device, more) < option.compute_blocks
            or blocks_beside(device, more, held, block) < option.comm_blocks
        )


@given(pairs, kernels)
def test_when_no_option_joins_a_full_sm_no_pad_does(pair: tuple[Device, str], compute: KernelResources) -> None:
    """The proof by one pad per residency, against trying pads one by one."""
    device, name = pair
    comm = load_footprint(name, device.arch)
    assert comm.block is not None
    answer = make_room(device, compute, comm)
    joined = {
        blocks: extra
        for extra in range(0, device.sm.smem_block_bytes - compute.smem_bytes, 512)
        if (blocks := resident_blocks(device, padded := compute.padded(extra)))
        and blocks_beside(device, padded, blocks, comm.block)
    }
    full = [o for o in answer.options if o.joins == "beside_full" and o.comm_threads == comm.block.threads]
    assert bool(full) >= bool(joined)
    if joined:
        assert full[0].compute_blocks >= max(joined)


@given(kernels)
def test_a_full_sm_that_has_room_needs_no_control(compute: KernelResources) -> None:
    answer = make_room(H100, compute, own_block(threads=32, registers_per_thread=16))
    if answer.beside_full.fits:
        assert answer.options[0].controls == ()
        assert answer.short_of == ()
        assert verdict(answer).startswith("Yes")


def test_a_pad_opens_a_hole_for_a_small_block() -> None:
    # Four blocks of 64 registers x 256 threads fill the registers; padded to three there is room.
    compute = KernelResources(threads=256, registers_per_thread=64)
    answer = make_room(A100, compute, own_block(threads=256, registers_per_thread=64))
    assert not answer.beside_full.fits
    best = answer.options[0]
    assert (best.controls, best.joins, best.compute_blocks) == ((SmemPad(best.pad_bytes),), "beside_full", 3)
    assert f"a pad of {best.pad_bytes:,} B" in verdict(answer)


def test_when_registers_bind_the_verdict_says_that_no_pad_helps() -> None:
    compute = KernelResources(threads=384, registers_per_thread=168, smem_bytes=200 * 1024)
    answer = make_room(H100, compute, load_footprint("nccl-2.32.3/tree-simple", "sm_90"))
    said = verdict(answer)
    assert [shortage.key for shortage in answer.short_of] == ["registers", "smem_bytes"]
    assert "No pad and no thread count" in said
    assert "partition" in said
    assert "clusters of 4" in said


def test_a_collective_on_copy_engines_needs_no_room() -> None:
    compute = KernelResources(threads=384, registers_per_thread=168, smem_bytes=200 * 1024)
    answer = make_room(H100, compute, load_footprint("nccl-2.32.3/zero-cta", "sm_90"))
    assert answer.options == ()
    assert "uses no SM" in verdict(answer)
