"""`makeway run`: the contract for scripts, launchers of ranks, and wrong input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from makeway.act.doctor.gpus import gpu_platform
from makeway.cli.main import main

BLOCKS = 'version = 2\n[[control]]\nkind = "comm-blocks"\nblocks = 16\n'
PAD = 'version = 2\n[[control]]\nkind = "pad"\npad_bytes = 1024\n'
SHOWS = (sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))")
# Prints its options the way both families of mpirun do, then runs the program behind them without what they export.
FAKE_MPIRUN = """#!/bin/sh
if [ "$1" = --version ]; then echo "$VERSION_OF_FAKE"; exit; fi
while :; do
  case $1 in
    -x) echo "-x $2"; shift 2 ;;
    -genv) echo "-genv $2"; shift 3 ;;
    -np) shift 2 ;;
    *) break ;;
  esac
done
for rank in 0 1; do RANK=$rank "$@" || exit; done
"""


@pytest.fixture
def plan(tmp_path: Path) -> str:
    file = tmp_path / "plan.toml"
    file.write_text(BLOCKS)
    return str(file)


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def makeway(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "MAKEWAY_R"))}
    return subprocess.run(
        [sys.executable, "-m", "makeway", "run", *arguments],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_document_is_alone_on_stdout(plan: str) -> None:
    done = makeway("--plan", plan, "--json", "--", "echo", "hello")
    document = json.loads(done.stdout)
    assert document.keys() == {
        "schema", "makeway", "verdict", "program", "rank", "exit_code", "killed_by", "all_applied", "applied",
        "controls", "variables", "notes",
    }  # fmt: skip
    assert document["schema"] == "makeway/run/1"
    [control] = document["controls"]
    assert (control["control"], control["status"]) == ("comm-blocks=16", "not seen")
    assert control["receipts"][0].keys() == {"control", "carrier", "rank", "status", "detail", "evidence"}
    assert (document["exit_code"], document["killed_by"], document["all_applied"]) == (0, None, False)
    assert done.stderr == "hello\n"


def test_the_table_goes_to_stderr_and_stdout_is_the_programs(plan: str) -> None:
    done = makeway("--plan", plan, "--", "echo", "hello")
    assert done.stdout == "hello\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "makeway run: exit code 0; 0 of 1 control applied (measured)."
    assert "control         outcome   ranks  detail" in lines
    assert "set: NCCL_MAX_CTAS=16" in done.stderr


def test_the_program_gets_the_variables_and_keeps_its_own(plan: str) -> None:
    seen = json.loads(makeway("--plan", plan, "--", *SHOWS, MINE="1", PYTHONPATH="/own", LD_PRELOAD="").stdout)
    assert (seen["NCCL_MIN_CTAS"], seen["NCCL_MAX_CTAS"], seen["MINE"]) == ("16", "16", "1")
    assert seen["PYTHONPATH"].split(":")[1:] == ["/own"]
    assert seen["LD_PRELOAD"] == ""
    kept = makeway("--plan", plan, "--", *SHOWS, NCCL_MAX_CTAS="8")
    assert json.loads(kept.stdout)["NCCL_MAX_CTAS"] == "8"
    assert "kept: NCCL_MAX_CTAS=8 was set by you; the plan wants 16 (--force replaces it)" in unwrapped(kept.stderr)
    forced = makeway("--plan", plan, "--force", "--", *SHOWS, NCCL_MAX_CTAS="8")
    assert json.loads(forced.stdout)["NCCL_MAX_CTAS"] == "16"


@pytest.mark.parametrize(("program", "expected"), [("exit 0", 1), ("exit 3", 3)])
def test_strict_fails_a_program_that_ended_well_and_leaves_other_codes(plan: str, program: str, expected: int) -> None:
    assert makeway("--plan", plan, "--strict", "--", "sh", "-c", program).returncode == expected


def test_strict_is_content_with_a_plan_without_controls() -> None:
    command = [sys.executable, "-m", "makeway", "run", "--plan", "-", "--strict", "--", "true"]
    done = subprocess.run(command, input=b"version = 2\n", stderr=subprocess.DEVNULL, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_has_gone_does_not_change_the_exit_code(plan: str, stream: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "makeway", "run", "--plan", plan, *(["--json"] if stream == "stdout" else [])]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: writing}
    done = subprocess.run([*command, "--", "sh", "-c", "exit 3"], check=False, **streams)  # type: ignore[call-overload]
    os.close(writing)
    assert done.returncode == 3


def test_options_of_the_program_are_its_own(plan: str) -> None:
    assert makeway("--plan", plan, "--", "echo", "--json", "--strict", "--", "--plan").stdout == (
        "--json --strict -- --plan\n"
    )


def test_a_dry_run_starts_nothing(capsys: pytest.CaptureFixture[str], plan: str, tmp_path: Path) -> None:
    started = tmp_path / "started"
    assert main(["run", "--plan", plan, "--dry-run", "--", "touch", str(started)]) == 0
    shown = capsys.readouterr()
    assert unwrapped(shown.out).startswith(f"would run touch {started} with 2 variables set")
    assert "comm-blocks=16  environment  set: NCCL_MIN_CTAS=16" in shown.out
    assert shown.err == ""
    assert main(["run", "--plan", plan, "--dry-run", "--json", "--", "touch", str(started)]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {
        "schema", "makeway", "verdict", "program", "variables", "launch_shim", "conditions", "no_variable", "notes",
        "tuner_plugin", "refused",
    }  # fmt: skip
    assert not started.exists()


# --- the launch shim ----------------------------------------------------------------------------


def test_without_a_compiler_the_program_runs_and_the_refusal_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pad.toml").write_text(PAD)
    (tmp_path / "cache").mkdir()
    environ = {"CC": "/nowhere/cc", "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/nowhere"}
    done = makeway("--plan", str(tmp_path / "pad.toml"), "--json", "--", sys.executable, "-c", "exit(5)", **environ)
    assert done.returncode == 5
    [control] = json.loads(done.stdout)["controls"]
    assert control["status"] == "refused"
    assert "compiler" in control["receipts"][0]["detail"]
    strict = makeway("--plan", str(tmp_path / "pad.toml"), "--strict", "--", sys.executable, "-c", "", **environ)
    assert strict.returncode == 1


@pytest.mark.parametrize(("kernel", "warned"), [("*", True), ("*gemm*", False)])
def test_a_pad_that_names_no_kernel_is_warned_about(tmp_path: Path, kernel: str, warned: bool) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(f'{PAD}kernel = "{kernel}"\n')
    done = makeway("--plan", str(file), "--", sys.executable, "-c", "pass")
    assert ("pads every compute kernel" in unwrapped(done.stderr)) == warned


def test_a_plan_with_a_pad_preloads_the_shim_behind_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "pad.toml").write_text(PAD)
    done = makeway(
        "--plan", str(tmp_path / "pad.toml"), "--", *SHOWS, XDG_CACHE_HOME=str(tmp_path), LD_PRELOAD="libc.so.6"
    )
    seen = json.loads(done.stdout)
    first, second = seen["LD_PRELOAD"].split(":")
    assert first == "libc.so.6"
    assert Path(second).is_relative_to(tmp_path)
    assert seen["MAKEWAY_RULES"]
    assert "no process launched a kernel" in unwrapped(done.stderr)


# --- trials on CPU ranks -------------------------------------------------------------------------

FOR_GPUS = ("makeway.act.export", "makeway.act.cuda.options", "makeway.act.preload.rules", "makeway.act.tuner.agreed")
LARGE = ("makeway.read.traces", "makeway.model", "makeway.decide.planning", "makeway.show", "rich")


@pytest.mark.parametrize(
    "loaded",
    ["makeway.act.torch.process, makeway.act.torch.trial", "makeway.act.launch.tune_run, makeway.act.launch.run"],
    ids=["ranks", "launcher"],
)
def test_a_job_does_not_wait_for_what_only_gpus_and_reports_need(loaded: str) -> None:
    code = f"import sys, {loaded}; print([name for name in sys.modules if name.startswith({FOR_GPUS + LARGE})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(gpu_platform() is not None, reason="this machine has GPUs, where a trial has the launch shim")
def test_a_job_that_is_tuned_without_gpus_has_no_launch_shim(tmp_path: Path) -> None:
    done = makeway("--tune", "--", *SHOWS, XDG_CACHE_HOME=str(tmp_path), LD_PRELOAD="libc.so.6")
    seen = json.loads(done.stdout)
    assert seen["LD_PRELOAD"] == "libc.so.6"
    assert seen["MAKEWAY_PLAN"]
    assert "MAKEWAY_RULES" not in seen
    assert not list(tmp_path.iterdir()), "something was built"


# --- launchers of ranks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("mpirun (Open MPI) 4.1.4", ["-x NCCL_MIN_CTAS", "-x NCCL_MAX_CTAS", "-x MAKEWAY_PLAN"]),
        ("HYDRA build details:", ["-genv NCCL_MIN_CTAS", "-genv NCCL_MAX_CTAS", "-genv MAKEWAY_PLAN"]),
    ],
)
def test_mpirun_exports_the_variables(plan: str, version: str, options: list[str], tmp_path: Path) -> None:
    (tmp_path / "mpirun").write_text(FAKE_MPIRUN)
    (tmp_path / "mpirun").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = makeway("--plan", plan, "--", "mpirun", "-np", "2", "echo", "ran", PATH=path, VERSION_OF_FAKE=version)
    lines = done.stdout.splitlines()
    assert lines[:3] == options
    assert lines[-2:] == ["ran", "ran"]


def test_makeway_may_be_started_once_for_each_rank(plan: str, tmp_path: Path) -> None:
    receipts = tmp_path / "receipts"
    for rank in ("0", "1"):
        done = makeway("--plan", plan, "--receipts", str(receipts), "--", "true", RANK=rank)
        assert done.stderr.startswith(f"makeway run (rank {rank}): exit code 0; ")
    assert sorted(path.name for path in receipts.iterdir()) == ["rank-0", "rank-1"]


# --- wrong input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plan", "PLAN"], "no program to run"),
        (["--plan", "PLAN", "--"], "no program to run"),
        (["--plan", "PLAN", "--dry-run"], "no program to run"),
        (["--plan", "PLAN", "--", "no-such-program"], "cannot start 'no-such-program': no such program"),
        (["--plan", "PLAN", "--", "NOT_EXECUTABLE"], "it is not executable"),
        (["--plan", "PLAN", "--", "USED"], "it is a directory"),
        (["--plan", "UNKNOWN", "--", "true"], "Known: pad, tile"),
        (["--plan", "PLAN", "--step-marker", "a:b", "--", "true"], "--step-marker needs --compare or --tune"),
        (["--plan", "PLAN", "--warm-up", "3", "--", "true"], "--warm-up needs --compare or --tune"),
        (["--plan", "PLAN", "--fail-if", "slower", "--", "true"], "--fail-if needs --compare or --tune"),
        (["--plan", "PLAN", "--compare", "--dry-run", "--", "true"], "there is nothing to compare"),
        (["--plan", "PLAN", "--compare", "--compare-steps", "3", "--", "true"], "--compare-steps 3 is too few"),
        (["--plan", "PAD", "--compare", "--", "true"], "pad=1KiB: CPU ranks have nothing to switch for this"),
        (["--plan", "missing.toml", "--", "true"], "cannot read plan 'missing.toml'"),
        (["--plan", "NEWER", "--", "true"], "it comes from a newer makeway"),
        (["--plan", "BROKEN", "--", "true"], "not a TOML file"),
        (["--", "true"], "--plan is needed"),
        (["--plan", "PLAN", "--receipts", "/proc/nowhere", "--", "true"], "cannot make '/proc/nowhere'"),
        (["--plan", "PLAN", "--receipts", "USED", "--", "true"], "has receipts of an earlier run"),
    ],
)
def test_wrong_input_gets_one_clear_message_and_exit_2(arguments: list[str], said: str, tmp_path: Path) -> None:
    for name, content in (
        ("PLAN", BLOCKS),
        ("NEWER", "version = 9\n"),
        ("BROKEN", "version ="),
        ("UNKNOWN", 'version = 2\n[[control]]\nkind = "nonsense"\n'),
        ("PAD", 'version = 2\n[[control]]\nkind = "pad"\npad_bytes = 1024\n'),
        ("NOT_EXECUTABLE", ""),
    ):
        (tmp_path / name).write_text(content)
    (tmp_path / "USED").mkdir()
    (tmp_path / "USED" / "torch-1.json").write_text("{}")
    done = makeway(*(str(tmp_path / word) if word.isupper() else word for word in arguments))
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--plan is needed: name a plan file, or find one in the job itself with --tune"),
        (("--plan", "x.toml", "--allow-lossy"), "need --tune"),
        (("--tune", "--tune-share", "0"), "--tune-share takes a share above 0"),
        (("--tune", "--job-steps", "0"), "--job-steps takes 1 or more"),
        (("--tune", "--compare"), "--compare does not go with --tune"),
        (("--tune", "--strict"), "--strict does not go with --tune"),
        (("--plan", "x.toml", "--log", "x.jsonl"), "need --tune"),
    ],
)
def test_wrong_options_of_tuning_are_refused_before_the_program_starts(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments, "--", "true"]) == 2
    assert message in unwrapped(capsys.readouterr().err)


def test_a_limit_that_nothing_was_measured_for_is_not_kept(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('version = 2\n[[control]]\nkind = "priority"\n')
    done = makeway("--plan", str(plan), "--compare", "--fail-if", "slower", "--", "true")
    assert done.returncode == 2
    assert "The limit (slower) was not checked." in unwrapped(done.stderr)
    document = makeway("--plan", str(plan), "--compare", "--step-marker", "no.such:step", "--json", "--", "true").stdout
    compared = json.loads(document)
    assert (compared["verdict"], compared["level_pct"]) == ("no difference shown", None)
    assert "called no.such:step; name a function that the program calls" in compared["problem"]


def test_strict_holds_in_a_comparison_too(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('version = 2\n[[control]]\nkind = "priority"\n')
    assert makeway("--plan", str(plan), "--compare", "--", "true").returncode == 0
    assert makeway("--plan", str(plan), "--compare", "--strict", "--", "true").returncode == 1


def test_the_verdict_of_tuning_is_one_of_three(tmp_path: Path) -> None:
    done = makeway("--tune", "--json", "--", "true")
    tuned = json.loads(done.stdout)
    assert (tuned["verdict"], tuned["plan"], tuned["tried"]) == ("no difference shown", [], [])
    assert {"explored_share", "difference_pct", "interval_pct", "steps", "receipts", "exit_code"} <= set(tuned)


@pytest.mark.parametrize(
    "more", [("--allow-lossy",), ("--plan", "chunks.toml"), ("--allow-lossy", "--plan", "fp16.toml")], ids=" ".join
)
def test_several_settings_of_one_control_may_be_tried_and_the_programs_end_stays(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    """Tuning tries four methods of compression, and `chunks=8` beside the plan's 4."""
    (tmp_path / "chunks.toml").write_text('version = 2\n[[control]]\nkind = "chunks"\npieces = 4\n')
    (tmp_path / "fp16.toml").write_text('version = 2\n[[control]]\nkind = "compress"\nmethod = "fp16"\n')
    document = tmp_path / "tuned.json"
    given = (str(tmp_path / word) if word.endswith(".toml") else word for word in more)
    done = makeway("--tune", *given, "--out", str(document), "--", "sh", "-c", "exit 3")
    assert done.returncode == 3, done.stderr
    tuned = json.loads(document.read_text())
    words = [word.partition("=")[0] for controls in tuned["candidates"] for word in controls]
    assert words.count("chunks") + words.count("compress") > 2
    assert tuned["exit_code"] == 3
