"""Every workload on real ranks: right results in every variant, and wrong ones found and never chosen."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from makeway.act.measure.job import Job
from makeway.act.measure.variants import OVERLAP, PLANNED, Variant, fixed_variants
from makeway.values.collective import Collective
from makeway.values.control import Chunks, Control, LaunchOrder, parse_control

RAN_WITHIN_S = 240
pytestmark = pytest.mark.timeout(RAN_WITHIN_S + 60)
QUICK = ("--repeats", "2", "--warmup", "1", "--no-plan", "--json")


def bench(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "makeway", "bench", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RAN_WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ("gemm-ar", "--size", "256KiB", "--control", "chunks=4", "--control", "copy-engine+chunks=2"),
        pytest.param(  # all-gather: also in the planned run below
            ("gemm-ag", "--size", "256KiB", "--scale", "0.5", "--control", "chunks=4", "--control", "copy-engine"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("gemm-a2a", "--size", "256KiB", "--scale", "0.5", "--control", "chunks=4", "--control", "copy-engine"),
            marks=pytest.mark.long,  # all-to-all: also in ep and mb-a2a
        ),
        pytest.param(
            ("gemm-rs", "--size", "256KiB", "--scale", "0.5", "--control", "chunks=4", "--control", "copy-engine"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("tp", "--scale", "0.25", "--steps", "2", "--control", "chunks=2", "--control", "priority"),
            marks=pytest.mark.long,
        ),
        pytest.param(  # all-to-all: also in mb-a2a
            ("ep", "--scale", "0.25", "--steps", "2", "--control", "chunks=2", "--control", "copy-engine"),
            marks=pytest.mark.long,
        ),
        pytest.param(("cb-ar", "--scale", "0.02", "--in-flight", "2"), marks=pytest.mark.long),  # as mb-a2a
        pytest.param(
            ("mb-a2a", "--scale", "0.01", "--control", "chunks=2", "--control", "partition=1"), marks=pytest.mark.long
        ),
        pytest.param(("conccl-16", "--scale", "0.02", "--control", "copy-engine"), marks=pytest.mark.long),
        pytest.param(
            (
                "ddp",
                "--scale",
                "0.25",
                "--bucket-mb",
                "0.1",
                "--control",
                "copy-engine+chunks=2",
                "--control",
                "priority",
            ),
            marks=pytest.mark.long,
        ),
        pytest.param(  # test_training_loss.py trains with it
            ("ddp", "--scale", "0.25", "--bucket-mb", "0.1", "--compress", "fp16"), marks=pytest.mark.long
        ),
        pytest.param(  # test_training_loss.py trains with it
            ("ddp", "--scale", "0.25", "--compress", "powersgd", "--steps", "4"), marks=pytest.mark.long
        ),
        pytest.param(("fsdp2", "--scale", "0.25", "--control", "copy-engine"), marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_every_variant_of_a_workload_gives_right_results(arguments: tuple[str, ...]) -> None:
    found = bench(*arguments, *QUICK)
    asked = [word for word in arguments if "=" in word or word in ("copy-engine", "priority")]
    assert found["verified"], found
    assert {"sequential", "overlap", "overlap_torchrun", *asked} == set(found["variants"])
    for name in asked:
        assert [one["status"] for one in found["variants"][name]["receipts"]] == ["applied"] * len(name.split("+"))
    rates = found["overlap_rate"]
    assert rates["sequential"] == 0
    if "powersgd" not in arguments:  # one bucket, sent when there is nothing left to compute
        assert rates["overlap"] > 0
    assert min(found["isolated"]["compute_ms"], found["isolated"]["comm_ms"]) > 0


@pytest.mark.long
def test_what_a_workload_cannot_do_is_refused_with_the_reason() -> None:
    found = bench("fsdp2", "--scale", "0.25", "--control", "chunks=2", *QUICK)
    assert "chunks=2" not in found["variants"]
    assert any("chunks=2 was refused: " in note and "one layer" in note for note in found["notes"])


def test_a_planned_run_says_what_it_chose_and_writes_its_timeline(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    words = ("gemm-ag", "--size", "1MiB", "--repeats", "2", "--control", "copy-engine", "--json")
    found = bench(*words, "--perfetto", str(trace))
    chosen = "copy-engine" if found["variants"]["planned"]["controls"] else "leave as is"
    assert found["choice"].startswith(chosen)
    assert found["timeline"] == str(trace)
    events = json.loads(trace.read_text())["traceEvents"]
    spans = {(event["pid"], event["cat"]) for event in events if event["ph"] == "X"}
    assert {(1, "compute"), (1, "comm"), (2, "compute"), (2, "comm"), (1, "copy")} <= spans


# --- the harness, in this process --------------------------------------------------------------


@dataclass
class Flawed:
    """A workload that is quick, and wrong, in two pieces."""

    description: str = "flawed"
    exchange: Collective | None = None
    exchanges: int = 1
    rounds: list[tuple[str, int]] = field(default_factory=list)

    def refusal(self, control: Control) -> str | None:
        return "not four" if control == Chunks(4) else None

    def prepare(self, schedule: Any) -> None: ...

    def run(self, schedule: Any) -> None:
        import time

        self.rounds.append((schedule.mode, schedule.pieces))
        time.sleep(0.001 if schedule.pieces == 2 else 0.004)

    def wrong(self, schedule: Any) -> str | None:
        return "other numbers" if schedule.pieces == 2 else None


@pytest.fixture
def flawed(monkeypatch: pytest.MonkeyPatch) -> Flawed:
    from makeway.act.measure.ranks import harness

    workload = Flawed()
    monkeypatch.setattr(harness, "rank_workload", lambda job, world: workload)
    return workload


def run_alone(job: Job) -> Any:
    from torch._C._distributed_c10d import HashStore

    from makeway.act.measure.ranks.harness import run_job
    from makeway.act.measure.ranks.world import World

    return run_job(job, World(rank=0, ranks=1, store=HashStore()), lambda stage: None)


def test_a_variant_with_wrong_results_is_reported_and_never_chosen(flawed: Flawed) -> None:
    chunks = Variant(name="chunks=2", controls=(parse_control("chunks=2"),), threads=1)
    variants = (*fixed_variants(2, 1), chunks)
    bench = run_alone(Job(workload="gemm-ar", variants=variants, candidates=(chunks,), repeats=2, warmup=1))
    by_name = {variant.name: variant for variant in bench.variants}
    assert by_name["chunks=2"].wrong == "rank 0: other numbers"
    assert by_name[PLANNED].wrong is None
    assert by_name[PLANNED].controls == ()
    assert bench.choice.startswith("leave as is")


def test_rounds_rotate_and_every_variant_gets_as_many(flawed: Flawed) -> None:
    bench = run_alone(Job(workload="gemm-ar", variants=fixed_variants(2, 1), repeats=5, warmup=0))
    assert {len(bench.compute_ns), len(bench.comm_ns), *(variant.n for variant in bench.variants)} == {5}
    firsts = [flawed.rounds[place] for place in range(0, 25, 5)]
    assert len({mode for mode, _ in firsts}) == 4  # compute, comm, sequential, overlap (twice)


def test_a_candidate_that_is_refused_is_noted_and_not_run(flawed: Flawed) -> None:
    candidates = (Variant(name="chunks=4", controls=(Chunks(4),)),)
    bench = run_alone(Job(workload="gemm-ar", variants=fixed_variants(2, 1), candidates=candidates, repeats=1))
    assert bench.notes == ("flawed", "chunks=4 was refused: not four")
    assert OVERLAP in {variant.name for variant in bench.variants}
    assert (("overlap", 4)) not in flawed.rounds


def test_an_order_that_holds_anyway_is_called_without_effect(flawed: Flawed) -> None:
    first = Variant(name="comm-first", controls=(parse_control("comm-first"),), threads=1)
    bench = run_alone(Job(workload="gemm-ar", variants=(*fixed_variants(2, 1), first), repeats=1))
    (receipt,) = bench.variant("comm-first").receipts
    assert (receipt.control, receipt.status, receipt.carrier) == (LaunchOrder(), "no effect", "torch on CPU")
