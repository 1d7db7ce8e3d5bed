"""`makeway bench`: one document, and one clear message for what cannot be run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from makeway.cli.main import main


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["bench", *arguments]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    return said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gemm-arr",), "did you mean 'gemm-ar'"),
        (("--on", "cuda"), "was built without CUDA; measure on this host with --on cpu"),
        (("--on", "rocm"), "was built without ROCm; measure on this host with --on cpu"),
        (("--on", "tpu"), "--on cpu, cuda, rocm or sim:DEVICE"),
        (("--on", "sim:H100-SXM5-80G"), "did you mean"),
        (("--on", "sim:A40", "--link", "2gbit"), "paces real ranks"),
        (("--link", "quick"), "2gbit"),
        (("--link", "2gbit", "--control", "copy-engine"), "round the link"),
        (("--ranks", "0"), "--ranks must be 1 or more"),
        (("--repeats", "0"), "repeats must be 1 or more"),
        (("--control", "hurry"), "unknown control 'hurry'"),
        (("--size", "big"), "'big' is not a size"),
        (("--timeout", "0"), "above 0 seconds"),
    ],
)
def test_what_cannot_be_run_is_answered_with_one_message(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    said = refused(capsys, *arguments)
    assert words in said
    assert said.startswith("makeway bench: ")


def test_without_torch_the_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    assert "pip install 'makeway[torch]'" in refused(capsys)


def test_the_command_loads_no_torch() -> None:
    script = "import sys, makeway.cli.bench, makeway.measure.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


def test_a_simulated_bench_has_the_same_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gemm-ar", "--on", "sim:A100-SXM4-80GB", "--control", "priority", "--no-plan", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["origin"], found["on"]) == ("predicted", "sim:A100-SXM4-80GB")
    assert {"sequential", "overlap", "priority"} <= set(found["variants"])
    assert found["ideal_ms"] > 0


def test_the_table_starts_as_nccl_tests_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gemm-ar", "--on", "sim:A100-SXM4-80GB", "--control", "priority", "--no-plan"]) == 0
    header = next(line for line in capsys.readouterr().out.splitlines() if "algbw" in line)
    assert header.split() == ["#size", "type", "time", "algbw", "busbw", "t_seq", "t_naive", "t_ctrl", "%ideal"]


def test_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--workloads"])
    assert ended.value.code == 0
    assert {"gemm-ar", "ddp", "fsdp2", "tp", "ep", "cb-ar", "conccl-30"} <= {
        line.split()[0] for line in capsys.readouterr().out.splitlines()
    }
