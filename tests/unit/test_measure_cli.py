"""`makeway bench`: one document, and one clear message for what cannot be run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from makeway.act.measure.experiment import PAPER_SIDES
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
        (("--link", "2gbit", "--control", "copy-engine"), "bypasses --link"),
        (("--on", "cuda", "--link", "2gbit"), "GPUs and simulated devices have their own"),
        (("--on", "cuda", "ddp"), "was built without CUDA"),
        (("cb-ar", "--grid", "0x4"), "--grid: cannot use '0x4'; write sides of 1 or more"),
        (("cb-ar", "--grid", "4"), "for example 4x4"),
        (("cb-ar", "--grid", "2x2,2x2"), "names one twice"),
        (("cb-ar", "--grid", "papers"), "not 'papers'; did you mean 'paper'"),
        (("cb-ar", "--grid", "4x4", "--tile", "64x64"), "--tile: cannot use '64x64'"),
        (("ddp", "--grid", "4x4"), "of one GEMM; ddp has many"),
        (("cb-ar", "--tile", "64x64x32"), "does nothing on CPU ranks"),
        (("cb-ar", "--grid", "paper", "--control", "priority"), "leave --control out"),
        (("cb-ar", "--grid", "paper", "--perfetto", "trace.json"), "name one grid"),
        (("cb-ar", "--grid", "paper", "--device", "host.toml"), "leave --device out"),
        (("cb-ar", "--on", "sim:A40", "--tile", "64x64x32,64x64x64"), "name grids too"),
        (("ddp", "--on", "sim:A40", "--grid", "4x4"), "takes no grid"),
        (("--library", "nccl-2.27.5/ring-simple"), "--library is of simulated collectives"),
        (("--on", "sim:A40", "--device", "A40"), "names its device already"),
        (("--device", "A40"), "calibrate this host with `makeway doctor --calibrate"),
        (("--ranks", "0"), "a collective needs at least 2 ranks, got 0"),
        (("--ranks", "1"), "a collective needs at least 2 ranks, got 1"),
        (("--on", "sim:A40", "--ranks", "1"), "a collective needs at least 2 ranks, got 1"),
        (("--control", "chunks=2+chunks=4"), "twice"),
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
    script = "import sys, makeway.cli.bench, makeway.act.measure.launch; sys.exit('torch' in sys.modules)"
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


def test_several_grids_are_a_table_and_maps(capsys: pytest.CaptureFixture[str]) -> None:
    grids = ("--grid", "2x2,64x64", "--tile", "64x64x32,64x64x64")
    assert main(["bench", "cb-ar", "--on", "sim:A40", *grids]) == 0
    out, progress = capsys.readouterr()
    header = next(line for line in out.splitlines() if "t_seq" in line)
    assert header.split()[:2] == ["grid", "t_seq"]
    assert {"2x2", "64x64"} <= {line.split()[0] for line in out.splitlines() if line.strip()}
    for title in ("TimeRatio: plain overlap / sequential", "normalised time: with priority / without", "overlap rate"):
        assert title in out
    assert "normalised time of tile 64x64x64 over 64x64x32" in out
    assert "grid 64x64 (2 of 2)" in progress


def test_several_grids_of_one_tile_are_the_document_of_an_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cb-ar", "--on", "sim:A40", "--grid", "squares", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["origin"], found["on"], found["tile"], found["verified"]) == (
        "predicted",
        "sim:A40",
        [64, 64, 32],
        None,
    )
    assert [(cell["grid_x"], cell["grid_y"]) for cell in found["cells"]] == [(side, side) for side in PAPER_SIDES]


def test_one_grid_is_a_plain_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cb-ar", "--on", "sim:A40", "--grid", "64x64", "--no-plan", "--json"]) == 0
    assert {"sequential", "overlap"} <= set(json.loads(capsys.readouterr().out)["variants"])


@pytest.mark.long
def test_grids_are_measured_on_real_ranks_and_verified(capsys: pytest.CaptureFixture[str]) -> None:
    quick = ("--ranks", "2", "--scale", "0.01", "--steps", "2", "--repeats", "2", "--warmup", "0", "--json")
    tiles = ("--grid", "2x2", "--tile", "16x16x32,16x16x64")
    assert main(["bench", "cb-a2a", *tiles, *quick]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["tile"] for one in found["experiments"]] == [[16, 16, 32], [16, 16, 64]]
    for one in found["experiments"]:
        assert (one["origin"], one["verified"], one["n"]) == ("measured", True, 2)
        assert "in 2x2 calls" in one["notes"][0]
    (ratios,) = found["tile_ratios"]
    assert ratios["against"] == [16, 16, 32]
    assert ratios["cells"][0]["ratio"] > 0


def test_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--list"])
    assert ended.value.code == 0
    assert {"gemm-ar", "ddp", "fsdp2", "tp", "ep", "cb-ar", "conccl-30"} <= {
        line.split()[0] for line in capsys.readouterr().out.splitlines()
    }
