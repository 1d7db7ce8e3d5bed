"""Certificates: verdicts on what only hardware settles, hashes that show changes, and device files made from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.certificates import (
    A40,
    HOLD_NS,
    beside_run,
    beside_runs,
    driver_facts,
    rates_run,
    steps,
)

from makeway.act.doctor import self_test as tests
from makeway.act.doctor.calibrate import calibrate
from makeway.act.doctor.certificate import Step, hashes, read_certificate, sealed
from makeway.act.doctor.children import Output
from makeway.act.doctor.facts import Torch, look_around
from makeway.act.doctor.gpus import Gpus
from makeway.act.doctor.overlap_probe import outcome
from makeway.act.doctor.samples import Block, CostRun, Line
from makeway.act.doctor.self_test import SelfTest, gpu_verdicts, run_self_test
from makeway.act.doctor.settled import (
    judge_beside,
    judge_cost,
    judge_occupancy,
    judge_rates,
    own_table,
    settled,
    share_beside,
)
from makeway.act.doctor.verdicts import Check
from makeway.cli.main import main
from makeway.model.validate.run import validate
from makeway.values.device import load_device
from makeway.values.errors import DataFileError

CHECK = Check(name="beside", platform="cuda", control="model", route="*")
GPU = replace(
    look_around({}),
    nvidia=Gpus(names=("NVIDIA A40",)),
    amd=Gpus(),
    torch=Torch(version="2.13.0", cuda="13.0"),
    triton="3.9.0",
    variables=(),
)


# --- verdicts ------------------------------------------------------------------------------------


def test_occupancy_is_proved_only_if_every_answer_equals_the_model_s() -> None:
    facts = driver_facts()
    assert judge_occupancy(CHECK, facts).status == "proved"
    last = replace(facts.occupancy[-1], blocks=facts.occupancy[-1].blocks + 1)
    wrong = judge_occupancy(CHECK, replace(facts, occupancy=(*facts.occupancy[:-1], last)))
    assert (wrong.status, wrong.measured) == ("failed", "3 equal")
    assert "60,000 B: the driver says 2, the model 1" in wrong.detail
    assert judge_occupancy(CHECK, replace(facts, occupancy=())).status == "failed"


def test_two_kernels_on_one_sm_are_judged_case_by_case() -> None:
    good = judge_beside(CHECK, beside_runs())
    assert good.status == "proved"
    assert "default carve-out: not beside" in good.measured
    assert "default carve-out" not in good.expected  # the driver's choice is an answer, not an expectation
    assert settled(beside_runs())["queue"] == "head of line"
    filled = judge_beside(CHECK, beside_runs(queue_start_ns=1000))
    assert (filled.status, filled.detail) == ("failed", "unlike the model: queue")
    assert "queue: back-fill" in filled.measured
    shut = judge_beside(CHECK, beside_runs(room_start_ns=HOLD_NS))
    assert (shut.status, shut.detail) == ("failed", "unlike the model: room")


def test_samples_that_show_neither_are_unclear_and_prove_nothing() -> None:
    run = beside_run("room", held_pad=60_000, other_pad=0, other_start_ns=1000)
    mixed = tuple(replace_start(block, 1000 if block.sm % 4 == 0 else HOLD_NS) for block in run.other_blocks)
    assert settled([replace(run, other_blocks=mixed)]) == {"room": "unclear"}
    assert settled([replace(run, other_blocks=())]) == {"room": "unclear"}


def replace_start(block: Block, start_ns: int) -> Block:
    return Block(block.sm, start_ns, start_ns + HOLD_NS)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=20))
def test_no_block_is_beside_a_kernel_that_ended_before_or_is_on_another_sm(starts: list[tuple[int, int]]) -> None:
    other = [Block(sm, start, start + 1) for sm, start in starts]
    assert share_beside([Block(sm, 0, 51) for sm in range(4)], other) == 1
    assert share_beside([Block(sm, -9, 0) for sm in range(4)], other) == 0
    assert share_beside([Block(9, 0, 51)], other) == 0


@pytest.mark.parametrize(("extra", "spread", "status"), [(20, 1, "proved"), (80, 1, "failed"), (80, 100, "proved")])
def test_the_cost_of_a_launch_is_judged_beyond_the_spread_of_the_rounds(extra: int, spread: int, status: str) -> None:
    rounds = [1000.0 + spread * (number % 3 - 1) for number in range(30)]
    bare = CostRun(launches=200, round_ns=tuple(rounds))
    shim = CostRun(launches=200, round_ns=tuple(each + extra for each in rounds))
    verdict = judge_cost(CHECK, bare, shim)
    assert verdict.status == status
    assert f"+{extra} ns through the shim" in verdict.measured


def test_a_rate_above_the_device_s_peak_fails_since_the_file_is_of_another_device() -> None:
    assert judge_rates(CHECK, rates_run()).status == "proved"
    fast = judge_rates(CHECK, replace(rates_run(), hbm_bytes_per_s=5e12))
    assert (fast.status, fast.detail) == ("failed", "above the peak: hbm bytes")


def test_the_bench_s_own_cells_are_a_table_that_validate_takes(tmp_path: Path) -> None:
    cells = [{"grid_x": 8, "grid_y": 8, "time_ratio": 0.57}, {"grid_x": 16, "grid_y": 16, "time_ratio": 0.76}]
    table = tmp_path / "own.csv"
    table.write_text(own_table("A40", {"cells": cells}))
    assert validate(data=table).all.rows == 2
    assert outcome(0, json.dumps({"cells": cells}), "").document == {"cells": cells}
    refused = outcome(2, "", "makeway bench: --on cuda: there is 1 GPU\nmore").refused
    assert refused == "makeway bench ended with exit code 2: makeway bench: --on cuda: there is 1 GPU"


# --- every step is on its own --------------------------------------------------------------------


def all_outputs() -> dict[str, Output]:
    outputs = {step.name: Output(lines=step.lines, trouble=step.trouble) for step in steps()}
    cost = Line(check="launch cost", cost=CostRun(launches=200, round_ns=(1000.0, 1001.0, 1002.0, 1003.0)))
    cells = [{"grid_x": 16, "grid_y": 16, "time_ratio": 0.7638}]
    overlap = Line(check="overlap", document={"cells": cells, "verified": True, "verdict": "measured"})
    silent = Output(lines=(), trouble="killed by SIGSEGV")
    return {
        **dict.fromkeys(("residency", "graph", "priority", "partition"), silent),
        **outputs,
        "launch cost": Output(lines=(cost,)),
        "launch cost under the shim": Output(lines=(cost,)),
        "overlap": Output(lines=(overlap,)),
    }


def test_steps_that_crash_or_hang_leave_the_others_their_verdicts() -> None:
    verdicts = {verdict.check: verdict for verdict in gpu_verdicts(GPU, all_outputs())}
    assert {name for name, verdict in verdicts.items() if verdict.status == "proved"} >= {
        "occupancy", "beside", "launch cost", "rates", "overlap",
    }  # fmt: skip
    assert verdicts["copies"].status == "failed"
    assert "did not finish within 120 s" in verdicts["copies"].detail
    assert verdicts["own table"].status == "proved", verdicts["own table"]
    assert verdicts["residency"].status == "not tested"


def test_the_time_of_all_checks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100_000, 250))
    limits = []

    def slow(module: str, arguments: Any, *, timeout_s: float, **_: object) -> tuple[Output, ...]:
        limits.append(timeout_s)
        check = arguments[0][0]
        line = Line(check=check, refused="a stand-in")
        return (Output(lines=(replace(line, refused=None, versions={}) if check == "versions" else line,)),)

    monkeypatch.setattr("makeway.act.doctor.self_test.time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(tests, "run_children", slow)
    monkeypatch.setattr(tests, "cpu_verdicts", lambda machine: ())
    result = run_self_test(GPU)
    assert limits == [120.0, 100.0]  # the first two, and no more
    late = next(verdict for verdict in result.verdicts if verdict.check == "rates")
    assert (late.status, late.detail.endswith("the 600 s of all checks are over")) == ("not tested", True)


def test_an_amd_gpu_is_tried_with_its_own_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def silent(module: str, arguments: Any, **_: object) -> tuple[Output, ...]:
        started.append(arguments[0][0])
        return (Output(lines=(Line(check=arguments[0][0], versions={"device": "x"}),)),)

    amd = replace(GPU, nvidia=Gpus(), amd=Gpus(names=("gfx942, 304 CUs",)), torch=Torch(version="2.13.0", hip="7.1"))
    monkeypatch.setattr(tests, "run_children", silent)
    monkeypatch.setattr(tests, "cpu_verdicts", lambda machine: ())
    monkeypatch.setattr(tests, "_judged_line", lambda check, line: check.untested("a stand-in"))
    result = run_self_test(amd)
    assert started == ["versions", "residency", "priority", "partition", "copies", "beside", "rates", "rocm"]
    assert {verdict.platform for verdict in result.verdicts} == {"rocm"}


# --- the document --------------------------------------------------------------------------------


def written(path: Path, given: tuple[Step, ...], **changes: Any) -> Path:
    document = sealed({"makeway": "0.1.0", "date": "2026-01-02T03:04:05Z", **changes}, given)
    path.write_bytes(msgspec.json.encode(document))
    return path


def test_a_certificate_reads_back_as_it_was_and_any_change_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "certificate.json", steps())
    document, back = read_certificate(path)
    assert back == steps()
    assert set(document["hashes"]) == {*(step.name for step in steps()), "document"}
    assert document["hashes"] == hashes(document)
    for old, new, name in (
        ('"hbm_bytes_per_s":600000000000.0', '"hbm_bytes_per_s":700000000000.0', "rates"),
        ('"date":"2026', '"date":"2027', "document"),
    ):
        changed = tmp_path / "changed.json"
        changed.write_text(path.read_text().replace(old, new))
        with pytest.raises(DataFileError, match=f"'{name}' was changed after it was written"):
            read_certificate(changed)


HEAD = '{"schema": "makeway/certificate/1"'


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "\x00",
        '{"steps": ' * 20,
        f"{HEAD}}}",
        f'{HEAD}, "steps": [{{}}]}}',
        f'{HEAD}, "steps": [], "hashes": 3}}',
    ],
)
def test_a_file_that_is_no_certificate_is_one_message(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(content)
    assert main(["calibrate", str(path)]) == 2
    error = capsys.readouterr().err
    assert "certificate" in error
    assert "Traceback" not in error


def test_a_self_test_writes_the_certificate_that_calibrate_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from makeway.act.doctor import checkup

    verdicts = gpu_verdicts(GPU, all_outputs())
    result = SelfTest(date="2026-01-02T03:04:05Z", verdicts=verdicts, versions={}, steps=steps())
    monkeypatch.setattr(checkup, "look_around", lambda: GPU)
    monkeypatch.setattr(checkup, "run_self_test", lambda machine, progress: result)
    path, page, device = tmp_path / "certificate.json", tmp_path / "page.html", tmp_path / "gpu.toml"
    assert main(["doctor", "--self-test", "--out", str(path), "--html", str(page), "--json"]) == 1  # copies hung
    shown = json.loads(capsys.readouterr().out)["self_test"]
    document = json.loads(path.read_text())
    assert shown["hashes"] == document["hashes"]
    assert shown["settled"] == document["settled"] == settled(beside_runs())
    assert "head of line" in page.read_text()
    assert main(["calibrate", str(path), "--out", str(device)]) == 0
    assert load_device(str(device)).sms == A40.sms


# --- device files --------------------------------------------------------------------------------


def test_a_known_device_keeps_its_cited_peaks_and_takes_the_driver_s_limits(tmp_path: Path) -> None:
    calibrated = calibrate(written(tmp_path / "certificate.json", steps()))
    device = calibrated.device
    assert device.limits == A40.limits
    assert device.hbm_bytes_per_s == A40.hbm_bytes_per_s
    assert device.clock_hz == 1.74e9
    assert calibrated.measured["hbm_bytes_per_s"] == 600e9
    assert "hbm_bytes_per_s" not in calibrated.used
    assert any("queue: head of line" in note for note in device.notes)


@given(name=st.text(min_size=1, max_size=30))
@example(name=".toml")
def test_an_unknown_device_is_built_from_its_certificate_whatever_its_name(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    unknown = f"unknown GPU {name}"
    path = written(tmp_path_factory.mktemp("certificate") / "c.json", steps(unknown)[1:2] + steps(unknown)[4:])
    calibrated = calibrate(path)
    assert calibrated.device.name == f"{unknown} (measured)"
    assert calibrated.device.hbm_bytes_per_s == 600e9  # a borrowed rate gives way to a measured one
    assert "hbm_bytes_per_s" in calibrated.used
    assert calibrated.device.facts["hbm_bytes_per_s"].source.endswith(calibrated.certificate)
    out = path.with_suffix(".toml")
    out.write_text(calibrated.text)
    assert load_device(str(out)) == replace(calibrated.device, facts=load_device(str(out)).facts)


def test_a_certificate_without_a_gpu_says_so(tmp_path: Path) -> None:
    path = written(tmp_path / "certificate.json", (Step(name="versions", lines=(), trouble="no driver"),))
    with pytest.raises(DataFileError, match=r"no step says which GPU it ran on \(versions: no driver\)"):
        calibrate(path)
