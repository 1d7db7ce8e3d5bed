"""Reports of plans and predictions as values: what they hold, and their JSON."""

from __future__ import annotations

import json

import msgspec
from makeway.show.report_file import report_document

from makeway.decide.planning.planner import make_plan
from makeway.model.presets import load_preset
from makeway.model.simulate.predict import simulate
from makeway.show.blocks import Room, Table
from makeway.show.page import html_page
from makeway.show.predicted_report import plan_report, room_of, simulation_report
from makeway.values.control import SmemPad
from makeway.values.device import load_device

H100, A100 = load_device("H100-SXM5-80GB"), load_device("A100-SXM4-80GB")


def test_the_json_document_holds_every_block_of_the_page() -> None:
    workload = load_preset("gemm-ar", A100)
    made = simulation_report(simulate(workload, A100), workload, A100, arguments="makeway simulate", version="1")
    document = json.loads(msgspec.json.encode(report_document(made)))
    assert document["headline"]["origin"] == "predicted"
    blocks = [block for section in document["sections"] for block in section["blocks"]]
    assert [block["block"] for block in blocks] == ["bars", "words", "timeline", "room", "facts", "notes"]
    spans = [span for stream in blocks[2]["ranks"][0]["streams"] for span in stream["spans"]]
    assert {span[1] for span in spans} == {"compute", "comm"}
    assert all(end >= start for _, _, start, end, _ in spans)


def test_a_plan_report_names_each_control_its_reason_and_what_was_turned_down() -> None:
    workload = load_preset("gemm-ar", H100)
    planned = make_plan(workload, H100, budget_ms=100)
    timelines = [("as it comes", simulate(workload, H100).timeline)]
    made = plan_report(planned, workload, H100, timelines, notes=(), arguments="makeway plan", version="1")
    page = html_page(made)
    for reason in planned.reasons:
        assert reason in page
    assert all(item.reason.partition("'")[0] in page for item in planned.rejected)
    rows = next(
        block for section in made.sections for block in section.blocks if getattr(block, "name", "") == "policies"
    )
    assert isinstance(rows, Table)
    assert len(rows.rows) == 1 + len(planned.baselines)


def test_the_room_of_a_workload_is_that_of_its_largest_kernel_under_the_plans_pad() -> None:
    workload = load_preset("gemm-ar", A100)
    room = room_of(workload, A100, [SmemPad(4096)])
    assert isinstance(room, Room)
    assert room.pad_bytes == 4096
    assert room.compute == workload.kernels[0].resources
    assert room.compute.smem_bytes + room.most_pad_bytes == A100.sm.smem_block_bytes
