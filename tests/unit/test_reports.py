"""Reports of plans and predictions as values: what they hold, and their JSON."""

from __future__ import annotations

import json

import msgspec
from makeway.show.report_file import report_document

from makeway.model.presets import load_preset
from makeway.model.simulate.predict import simulate
from makeway.show.blocks import Room
from makeway.show.prediction import room_of
from makeway.show.report import report_of
from makeway.values.control import SmemPad
from makeway.values.device import load_device

H100, A100 = load_device("H100-SXM5-80GB"), load_device("A100-SXM4-80GB")


def test_the_json_document_holds_every_block_of_the_page() -> None:
    workload = load_preset("gemm-ar", A100)
    made = report_of(simulate(workload, A100), arguments="makeway simulate")
    document = json.loads(msgspec.json.encode(report_document(made)))
    assert document["headline"]["origin"] == "predicted"
    blocks = [block for section in document["sections"] for block in section["blocks"]]
    assert [block["block"] for block in blocks] == ["bars", "words", "timeline", "room", "facts", "notes"]
    spans = [span for stream in blocks[2]["ranks"][0]["streams"] for span in stream["spans"]]
    assert {span[1] for span in spans} == {"compute", "comm"}
    assert all(end >= start for _, _, start, end, _ in spans)


def test_the_room_of_a_workload_is_that_of_its_largest_kernel_under_the_plans_pad() -> None:
    workload = load_preset("gemm-ar", A100)
    room = room_of(workload, A100, [SmemPad(4096)])
    assert isinstance(room, Room)
    assert room.pad_bytes == 4096
    assert room.compute == workload.kernels[0].resources
    assert room.compute.smem_bytes + room.most_pad_bytes == A100.sm.smem_block_bytes
