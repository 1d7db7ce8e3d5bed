"""Checkups, calibrations and exports in three renderings: text fits its width, and no rendering lacks a fact."""

from __future__ import annotations

import html
import json as json_module
import re
from dataclasses import replace

import pytest

from makeway.act.doctor.checkup import doctor
from makeway.act.doctor.facts import Torch, look_around
from makeway.act.doctor.gpus import Gpus
from makeway.act.doctor.works import PLATFORMS
from makeway.act.export.targets import TARGETS, export
from makeway.act.measure.calibrate import Calibration
from makeway.show.json import json
from makeway.show.page import page
from makeway.show.report import report_of
from makeway.show.text import text
from makeway.values.control import Chunks, CommBlocks, CommPriority
from makeway.values.plan import Plan
from makeway.values.support import CONTROL_NAMES

HERE = look_around({})
H100 = replace(
    HERE,
    nvidia=Gpus(names=("NVIDIA H100 80GB HBM3",) * 8, driver="570.124.06"),
    torch=Torch(version="2.13.0", cuda="13.0", green_contexts=True, symmetric_memory=True),
    nccl="2.30.7",
    triton="3.9.0",
)
CALIBRATION = Calibration(facts={"core_flops": 1.5e9, "copy_bytes_per_s": 2.25e9}, cores=2, rounds=7, machine="a host")


def flat(words: str) -> str:
    return re.sub(r"\s+", " ", words)


@pytest.mark.parametrize("machine", [HERE, H100], ids=["here", "H100"])
def test_a_checkup_says_the_same_as_text_page_and_json(machine: object) -> None:
    checkup = doctor(machine=machine)  # type: ignore[arg-type]
    report = report_of(checkup)
    lines = text(report, width=80, verbose=True)
    shown, drawn, document = flat(lines), flat(html.unescape(page(report))), json_module.loads(json(report))
    assert max(map(len, lines.splitlines())) <= 80
    assert document["schema"] == "makeway/checkup/1"
    assert document["verdict"] in flat(text(report, width=400))
    working = {
        platform: {each["control"] for each in document["controls"] if each["platform"] == platform and each["works"]}
        for platform in PLATFORMS
    }
    for platform in PLATFORMS:
        assert f"{len(working[platform])} on {platform}" in document["verdict"]
        assert len(working[platform]) == checkup.working(platform)
    wide = flat(text(report, width=400, verbose=True))
    for answer in document["controls"]:
        absent = document["platforms"][answer["platform"]]["absent"]
        assert answer["detail"] in wide
        assert flat(answer["detail"]) in drawn
        assert absent is None or absent == answer["detail"]
    for name in CONTROL_NAMES:
        assert name in shown


@pytest.mark.parametrize("target", TARGETS)
def test_an_export_says_the_same_as_text_page_and_json(target: str) -> None:
    report = report_of(export(Plan(controls=(CommPriority(), CommBlocks(16), Chunks(4))), target))
    lines = text(report, width=80, verbose=True)
    wide, drawn, document = (
        flat(text(report, width=4000)),
        flat(html.unescape(page(report))),
        json_module.loads(json(report)),
    )
    assert max(map(len, lines.splitlines())) <= 80
    assert wide.startswith(document["verdict"])
    for entry in document["carried"]:
        for setting in entry["settings"]:
            assert setting in wide
            assert setting in drawn
    for entry in document["not_carried"]:
        assert entry["reason"] in wide
        assert flat(entry["reason"]) in drawn


def test_a_calibration_says_the_same_as_text_page_and_json() -> None:
    report = report_of(CALIBRATION)
    document = json_module.loads(json(report))
    assert document["facts"] == CALIBRATION.facts
    assert (document["cores"], document["rounds"]) == (2, 7)
    for rendering in (text(report), page(report)):
        assert "medians of 7 rounds on 2 cores" in flat(rendering)
        assert all(f"{value:g}" in rendering for value in CALIBRATION.facts.values())
