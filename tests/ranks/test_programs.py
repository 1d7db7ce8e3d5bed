"""Programs of other people's frameworks, unmodified: each is recorded, planned, compared and tuned on two ranks."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.hosts import calibration
from tests.ranks.test_run_ddp import ENDED_WITHIN_S, TORCHRUN, run

from makeway.read.plan_file import load_plan

pytestmark = pytest.mark.timeout(6 * ENDED_WITHIN_S)
JOBS = Path(__file__).parents[2] / "examples" / "jobs"
SELF_TUNED = str(Path(__file__).parent / "programs" / "self_tuned.py")
MAKEWAY = (sys.executable, "-m", "makeway")
# Each with the package that it needs and the arguments that make it small.
PROGRAMS = {
    "hf_trainer": ("transformers", "--width", "32"),
    "lightning_fit": ("lightning", "--width", "64"),
    "accelerate_loop": ("accelerate", "--width", "32"),
    "fsdp2_transformer": ("torch", "--width", "32"),
    "resnet_ddp": ("transformers", "--pixels", "8"),
}
QUIET = {"PYTHONWARNINGS": "ignore", "TRANSFORMERS_VERBOSITY": "error"}


def weights(out: str) -> list[str]:
    return sorted(re.findall(r"rank \d: weights [0-9a-f]{16}", out))


def command(name: str, steps: int) -> tuple[str, ...]:
    package, *small = PROGRAMS[name]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return (*TORCHRUN, str(JOBS / f"{name}.py"), "--steps", str(steps), *small)


QUICK: tuple[str, ...] = ()  # each takes half a minute; test_run_compare records a small program


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in PROGRAMS])
def test_a_program_is_recorded_and_a_plan_is_made_for_it(name: str, tmp_path: Path) -> None:
    few = ("--steps", "1", "--warm-up", "1")
    recorded, plan = tmp_path / "recorded", tmp_path / "plan.toml"
    code, out, said = run(*MAKEWAY, "record", *few, "--out", str(recorded), "--", *command(name, 6), **QUIET)
    assert code == 0, said
    assert len(weights(out)) == 2
    host = tmp_path / "host.toml"
    host.write_text(calibration().text)
    code, out, said = run(
        *MAKEWAY, "plan", str(recorded), "--device", str(host), "--for", "run", "--out", str(plan), "--json"
    )
    assert code == 0, said
    document = json.loads(out)
    assert document["t_plan_ms"] <= document["t_naive_ms"]
    assert {item["control"] for item in document["controls"]} <= {"copy-engine"}
    assert len(load_plan(plan).controls) == len(document["controls"])


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_goes_through_the_whole_chain(name: str, tmp_path: Path) -> None:
    steps = 260
    code, out, said = run(*command(name, steps), **QUIET)
    assert code == 0, said
    plain = weights(out)
    recorded, plan, host = str(tmp_path / "recorded"), str(tmp_path / "plan.toml"), tmp_path / "host.toml"
    host.write_text(calibration().text)
    code, out, said = run(*MAKEWAY, "record", "--out", recorded, "--", *command(name, steps), **QUIET)
    assert (code, weights(out)) == (0, plain), said
    code, out, said = run(*MAKEWAY, "analyze", recorded, "--json")
    assert code == 0, said
    assert len(json.loads(out)["ranks"]) == 2
    code, _, said = run(
        *MAKEWAY, "plan", recorded, "--device", str(host), "--control", "copy-engine", "--for", "run", "--out", plan
    )
    assert code == 0, said
    for kind in (("--plan", plan, "--compare", "--compare-steps", "200"), ("--tune", "--tune-share", "0.4")):
        document = tmp_path / f"{kind[0]}.json"
        code, out, said = run(*MAKEWAY, "run", *kind, "--out", str(document), "--", *command(name, steps), **QUIET)
        assert (code, weights(out)) == (0, plain), said
        answer = json.loads(document.read_text())
        assert answer["problem"] is None
        statuses = {receipt["status"] for control in answer["receipts"] for receipt in control["receipts"]}
        assert statuses <= {"applied"}
        decided = "--compare" in kind and answer["verdict"] != "no difference shown"  # then it stops
        assert answer["steps"] > 90 or decided


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        "loop",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("lightning", "transformers", "accelerate")),
    ],
)
def test_a_program_tunes_itself_and_computes_the_same(kind: str) -> None:
    if find_spec(kind if kind != "loop" else "torch") is None:
        pytest.skip(f"{kind} is not installed")
    code, out, said = run(*TORCHRUN, SELF_TUNED, kind, "--plain", **QUIET)
    assert code == 0, said
    plain = re.findall(r"weights \w+", out)
    code, out, said = run(*TORCHRUN, SELF_TUNED, kind, **QUIET)
    assert code == 0, said
    assert re.findall(r"weights \w+", out) == plain
    match = re.search(r"tuned (\d+) steps, explored (\d+), problem None", out)
    assert match is not None, out
    assert int(match[1]) > 100
    assert int(match[2]) > 0
