"""The self-test as a whole: processes that fail, certificates, exit codes; and CPU controls on two real ranks."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from makeway.act.doctor import checkup
from makeway.act.doctor import self_test as tests
from makeway.act.doctor.children import Output, read_lines, run_children
from makeway.act.doctor.facts import Machine, Torch, look_around
from makeway.act.doctor.gpus import Gpus
from makeway.act.doctor.samples import Block, Line, PartitionRun
from makeway.act.doctor.self_test import GPU_CHECKS, SelfTest, cpu_verdicts, gpu_verdicts, judged, proof
from makeway.act.doctor.verdicts import Check, Verdict
from makeway.cli.main import main
from makeway.values.support import CONTROL_NAMES

PARTITION = Check(name="partition", platform="cuda", control="partition", route="python")
BLOCKS = tuple(Block(sm, 0, 10) for sm in range(8))
GOOD = Line(check="partition", partition=PartitionRun(given_sms=8, device_sms=16, blocks=BLOCKS))
DATE = "2026-01-02T03:04:05Z"


def machine() -> Machine:
    return replace(look_around({}), torch=None, nvidia=Gpus(), amd=Gpus(), variables=())


def self_test_of(*verdicts: Verdict) -> SelfTest:
    return SelfTest(date=DATE, verdicts=verdicts, versions={})


# --- processes that measure ----------------------------------------------------------------------


def test_samples_survive_the_pipe_between_processes_and_chatter_in_between() -> None:
    text = f"loading...\n{msgspec.json.encode(GOOD).decode()}\n{{}}\n"
    assert read_lines(text) == (GOOD,)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("import os; os._exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
        ("import threading; threading.Event().wait()", "did not finish within 1 s"),
        ("int('no number')", "invalid literal"),
    ],
)
def test_how_a_process_ended_is_reported_and_it_is_gone(statement: str, words: str) -> None:
    timeout_s = 1.0 if "within" in words else 30.0
    (found,) = run_children("timeit", (("-n1", "-r1", statement),), timeout_s=timeout_s)
    assert words in (found.trouble or "")


def test_a_check_in_which_the_process_died_failed_and_later_ones_were_not_tested() -> None:
    died = Output(lines=(Line(check="partition"),), trouble="killed by SIGSEGV")
    assert judged(PARTITION, died).status == "failed"
    later = judged(replace(PARTITION, name="copies"), died)
    assert later.status == "not tested"
    assert "SIGSEGV" in later.detail


def test_a_check_that_was_refused_was_not_tested() -> None:
    refused = Output(lines=(Line(check="partition"), Line(check="partition", refused="no green contexts")))
    found = judged(PARTITION, refused)
    assert (found.status, found.detail) == ("not tested", "no green contexts")


def test_a_check_that_gave_samples_is_judged() -> None:
    assert judged(PARTITION, Output(lines=(Line(check="partition"), GOOD), trouble="exit code 1")).status == "proved"


# --- without a GPU -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "triton", "words"),
    [
        (None, "3.9.0", "makeway[torch]"),
        (Torch(version="2.13.0+cpu"), "3.9.0", "built without CUDA"),
        (Torch(version="2.13.0", cuda="13.0"), None, "makeway[triton]"),
    ],
)
def test_what_a_gpu_test_needs_is_named(torch: Torch | None, triton: str | None, words: str) -> None:
    here = replace(machine(), nvidia=Gpus(names=("NVIDIA A40",)), torch=torch, triton=triton)
    found = gpu_verdicts(here, {})
    assert len(found) == len(GPU_CHECKS) + len(tests.HARDWARE_CHECKS)
    assert all(verdict.status == "not tested" and words in verdict.detail for verdict in found)


A40 = replace(machine(), nvidia=Gpus(names=("NVIDIA A40",)), torch=Torch(version="2.13.0", cuda="13.0"), triton="3.9.0")


def test_a_gpu_that_torch_cannot_use_is_not_tested_and_no_further_process_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []

    def broken(module: str, arguments: tuple[tuple[str, ...]], **_: object) -> tuple[Output, ...]:
        started.append(arguments[0][0])
        return (Output(lines=(Line(check="versions"),), trouble="exit code 1: CUDA driver is insufficient"),)

    monkeypatch.setattr(tests, "run_children", broken)
    monkeypatch.setattr(tests, "cpu_verdicts", lambda machine: ())
    found = tests.run_self_test(A40)
    assert started == ["versions"]
    assert not found.tested
    assert all("driver is insufficient" in verdict.detail for verdict in found.verdicts[:-1])


def test_one_check_that_crashes_leaves_the_others_their_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(module: str, arguments: tuple[tuple[str, ...]], **_: object) -> tuple[Output, ...]:
        check = arguments[0][0]
        if check == "versions":
            return (Output(lines=(Line(check=check, versions={"nccl": "2.30.7"}),)),)
        if check == "partition":
            return (Output(lines=(Line(check=check), GOOD)),)
        return (Output(lines=(Line(check=check),), trouble="killed by SIGABRT"),)

    monkeypatch.setattr(tests, "run_children", half)
    monkeypatch.setattr(tests, "cpu_verdicts", lambda machine: ())
    found = tests.run_self_test(A40)
    assert found.versions == {"nccl": "2.30.7"}
    assert {verdict.check: verdict.status for verdict in found.verdicts} == {
        "residency": "failed",
        "graph": "failed",
        "shim": "not tested",  # it needs what the first one measures
        "priority": "failed",
        "partition": "proved",
        "copies": "failed",
        "occupancy": "failed",
        "beside": "failed",
        "launch cost": "failed",
        "rates": "failed",
        "overlap": "not tested",  # the stand-in for its process names another check
        "own table": "not tested",
        "all": "not tested",
    }


def test_gpu_controls_are_unproved_until_this_very_run_proved_them() -> None:
    here = replace(machine(), nvidia=Gpus(names=("NVIDIA A40",)))
    asked = (here, "cuda", "partition", "python")
    good = PARTITION.verdict(held=True, expected="", measured="")
    assert proof(None, *asked) == proof(self_test_of(PARTITION.untested("no")), *asked) == "not yet run on hardware"
    assert proof(self_test_of(good), *asked) == f"proved here on NVIDIA A40, {DATE}"
    assert proof(self_test_of(good), here, "cuda", "partition", "run") == "not yet run on hardware"
    assert "FAILED" in proof(self_test_of(good, PARTITION.broken("died")), *asked)


# --- the command ---------------------------------------------------------------------------------


def test_the_document_has_every_control_and_loads_no_torch() -> None:
    code = (
        "import sys; from makeway.cli.main import main; code = main(['doctor', '--json']); "
        "sys.exit(code or not sys.modules.keys().isdisjoint({'torch', 'triton', 'numpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"schema", "makeway", "verdict", "facts", "cautions", "platforms", "controls", "self_test"} <= found.keys()
    assert list(found["platforms"]) == ["cpu", "cuda", "rocm"]
    assert {each["control"] for each in found["controls"]} == set(CONTROL_NAMES)
    assert set(found["controls"][0]) == {"platform", "control", "route", "carrier", "works", "detail", "proof"}
    assert {each["proof"] for each in found["controls"] if each["platform"] != "cpu"} == {"not yet run on hardware"}
    assert found["self_test"] is None


def test_the_text_names_every_control_of_a_platform_that_is_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = replace(machine(), nvidia=Gpus(names=("NVIDIA A40", "NVIDIA A40"), driver="570.1"))
    monkeypatch.setattr(checkup, "look_around", lambda: gpu)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "2 x NVIDIA A40; driver 570.1" in out
    assert "not yet run on hardware" in out
    assert all(f"\n{control} " in out for control in CONTROL_NAMES)
    assert "rocm: no control can work here: no AMD GPU was found" in out


@pytest.mark.parametrize(
    ("verdict", "code", "written"),
    [
        (PARTITION.verdict(held=True, expected="8 SMs", measured="8 SMs"), 0, True),
        (PARTITION.verdict(held=False, expected="8 SMs", measured="16 SMs"), 1, True),
        (PARTITION.untested("no GPU"), 0, False),
    ],
)
def test_a_failure_is_exit_code_1_and_a_certificate_needs_a_test(
    verdict: Verdict,
    code: int,
    written: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkup, "look_around", machine)
    monkeypatch.setattr(checkup, "run_self_test", lambda machine, progress: self_test_of(verdict))
    out = tmp_path / "certificate.json"
    assert main(["doctor", "--self-test", "--out", str(out)]) == code
    assert out.exists() == written
    assert verdict.status in capsys.readouterr().out
    if written:
        found = json.loads(out.read_text())
        assert found["date"] == DATE
        assert found["results"][0]["status"] == verdict.status
        assert {"makeway", "device", "driver", "versions", "machine"} <= found.keys()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--out", "x.json"), "--self-test or"), (("--calibrate", "--self-test"), "run them separately")],
)
def test_options_that_do_not_go_together_are_one_message(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert main(["doctor", *arguments]) == 2
    assert words in capsys.readouterr().err


# --- real ranks ----------------------------------------------------------------------------------


def test_without_torch_no_rank_is_started() -> None:
    assert {verdict.status for verdict in cpu_verdicts(machine())} == {"not tested"}


def test_cpu_controls_are_proved_or_refused_on_two_real_ranks() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    here = look_around()
    partition, own, priority, copies = cpu_verdicts(here)
    assert copies.status == "proved", copies
    assert partition.status == ("proved" if here.cores > 1 else "not tested"), partition
    assert own.status == ("proved" if here.cores > 1 else "not tested"), own
    assert priority.status == ("proved" if here.priority_by else "not tested"), priority


def test_a_rank_that_dies_fails_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests, "run_children", lambda *_, **__: (Output(lines=(), trouble="killed by SIGKILL"),))
    found = cpu_verdicts(replace(machine(), torch=Torch(version="2.13.0")))
    assert all(verdict.status == "failed" and "SIGKILL" in verdict.detail for verdict in found)
