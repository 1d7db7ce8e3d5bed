"""The picture of an SM in reports of plans and predictions."""

from __future__ import annotations

from makeway.model.presets import load_preset
from makeway.show.blocks import Room
from makeway.show.prediction import room_of
from makeway.values.control import SmemPad
from makeway.values.device import load_device

A100 = load_device("A100-SXM4-80GB")


def test_the_room_of_a_workload_is_that_of_its_largest_kernel_under_the_plans_pad() -> None:
    workload = load_preset("gemm-ar", A100)
    room = room_of(workload, A100, [SmemPad(4096)])
    assert isinstance(room, Room)
    assert room.pad_bytes == 4096
    assert room.compute == workload.kernels[0].resources
    assert room.compute.smem_bytes + room.most_pad_bytes == A100.sm.smem_block_bytes
