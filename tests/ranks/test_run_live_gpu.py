"""Trials inside a running job on a machine with GPUs: what the stand-in driver saw in each step is what the log says.

Two ranks train over Gloo and launch kernels through cuda-bindings, on the stand-in driver. Which setting was in force
in which step follows from the log of rank 0; every launch of the step must have that setting's pad and priority.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.processes import free_port
from tests.ranks.test_run_ddp import ENDED_WITHIN_S, losses
from tests.standin.build import cuda_driver, environment, program_kernels, shared_place
from tests.standin.records import Launch, launches

from makeway.act.launch.step_files import StepLog, read_logs
from makeway.act.preload.receipts import read_receipts

pytestmark = pytest.mark.timeout(2 * ENDED_WITHIN_S)
HERE = Path(__file__).parent / "programs"
RANKS, PAD_BYTES, WARM_UP = 2, 16_384, 5
PER_STEP = 3  # launches: two GEMMs, one comm kernel
PLAN = f"""version = 2
[[control]]
kind = "pad"
pad_bytes = {PAD_BYTES}
kernel = "gemm"
[[control]]
kind = "priority"
"""


class Job:
    """What a job left behind."""

    def __init__(self, how: str, plan: str | None, steps: int, tried: int, place: Path, *more: str) -> None:
        self.receipts, self.record = place / "receipts", place / "record"
        kernels = program_kernels(shared_place())
        given = "-"
        if plan is not None:
            (place / "plan.toml").write_text(plan)
            given = str(place / "plan.toml")
        settings = environment(cuda_driver(shared_place()), device="H100-SXM5-80GB", record=self.record)
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS))
        port = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
        program = (str(HERE / "ddp_launches.py"), str(kernels), str(steps), *more)
        done = subprocess.run(
            [
                *(sys.executable, str(HERE / "on_gpu_machine.py"), how, given, str(self.receipts), str(tried)),
                *(*torchrun, *port, *program),
            ],
            env={**settings, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=ENDED_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.said = done.stderr
        self.document: dict[str, Any] = json.loads(done.stdout)
        self.losses = losses(done.stderr)

    @property
    def log(self) -> StepLog:
        return next(log for log in read_logs(self.receipts) if log.rank == 0)

    def settings_of_steps(self, steps: int) -> list[int]:
        """The setting in force in each step, as the log of rank 0 says: a block that the job's end cut is not there."""
        log = self.log
        so_far = [0] * (1 + WARM_UP) + [block.setting for block in log.blocks for _ in range(block.count)]
        return (so_far + ([] if log.final is None else [log.final] * steps))[:steps]

    def steps_of_ranks(self) -> list[list[Sequence[Launch]]]:
        """For each rank, the launches of each step as the driver got them."""
        by_process: dict[int, list[Launch]] = {}
        for launch in launches(self.record):
            assert launch.error == 0
            by_process.setdefault(launch.pid, []).append(launch)
        assert len(by_process) == RANKS
        return [[mine[at : at + PER_STEP] for at in range(0, len(mine), PER_STEP)] for mine in by_process.values()]


def seen(step: Sequence[Launch], asked_bytes: int) -> tuple[set[int], set[int]]:
    """The pads of a step's GEMMs, and the priorities of its comm kernel."""
    gemms = [launch for launch in step if launch.kernel == "gemm"]
    others = [launch for launch in step if launch.kernel != "gemm"]
    assert (len(gemms), len(others)) == (2, 1)
    return {launch.smem_bytes - asked_bytes for launch in gemms}, {launch.priority for launch in others}


def test_blocks_with_the_plan_alone_have_its_pads_and_priorities(tmp_path: Path) -> None:
    steps = 170
    job = Job("compare", PLAN, steps, 150, tmp_path)
    compared = job.document
    assert compared["problem"] is None
    assert compared["verdict"] in ("faster", "slower", "no difference shown")
    assert compared["exit_code"] == 0
    low, high = compared["interval_pct"]
    assert low <= compared["difference_pct"] <= high
    assert compared["steps"] == 6 * compared["pairs"]
    in_force = job.settings_of_steps(steps)
    assert 20 < sum(in_force) < steps - 20  # both were in force for long
    changes = sum(one != other for one, other in pairwise(in_force))
    assert changes >= 8
    for rank in job.steps_of_ranks():
        assert len(rank) == steps
        asked = rank[0][0].smem_bytes
        expected = [({PAD_BYTES}, {-5}) if setting else ({0}, {0}) for setting in in_force]
        assert [seen(step, asked) for step in rank] == expected
    # The receipts count the same, under each setting.
    with_plan = sum(in_force)
    for process in read_receipts(job.receipts):
        counted = {(each.kernel == "gemm", each.rule_set): each for each in process.kernels}
        assert counted[True, 1].padded == counted[True, 1].seen == 2 * with_plan
        assert (counted[True, 0].padded, counted[True, 0].seen) == (0, 2 * (steps - with_plan))
        assert (counted[False, 1].prioritised, counted[False, 0].prioritised) == (with_plan, 0)
        assert process.graph_launches == 0
    outcomes = {each["control"]: each for each in compared["receipts"]}
    pad = outcomes["pad=16KiB:gemm"]
    assert pad["status"] == "applied"
    assert [receipt["evidence"] for receipt in pad["receipts"]] == [
        {
            "launches seen": 2 * with_plan,
            "launches changed": 2 * with_plan,
            "launches refused": 0,
            "launches skipped": 0,
            "launches under other settings": 2 * (steps - with_plan),
        }
    ] * RANKS


def test_a_program_that_launches_graphs_is_left_alone_and_that_is_said(tmp_path: Path) -> None:
    job = Job("compare", PLAN, 30, 150, tmp_path, "graph")
    assert "launches CUDA or HIP graphs" in job.document["problem"]
    assert "--compare-runs" in job.document["problem"]
    assert job.document["difference_pct"] is None
    assert {launch.priority for launch in launches(job.record)} == {0}
    assert {process.graph_launches for process in read_receipts(job.receipts)} == {30}


def test_tuning_tries_the_plan_each_of_its_controls_and_its_own(tmp_path: Path) -> None:
    steps = 240
    job = Job("tune", PLAN, steps, steps, tmp_path)
    tuned = job.document
    assert tuned["problem"] is None
    assert 0 < tuned["explored_share"] <= 0.5
    assert tuned["exit_code"] == 0
    sets = [(), ("pad=16KiB:gemm", "priority"), ("pad=16KiB:gemm",), ("priority",), ("chunks=4",)]
    assert [tuple(controls) for controls in tuned["candidates"]] == sets[1:]
    assert {tuple(item["controls"]) for item in tuned["tried"]} <= set(sets)
    adopted = [item["controls"] for item in tuned["tried"] if item["what"] == "adopted"]
    assert tuned["plan"] == (adopted[-1] if adopted else [])
    assert {each["control"] for each in tuned["receipts"]} == set(tuned["plan"])
    in_force = job.settings_of_steps(steps)
    assert set(in_force) > {0}  # how many candidates the budget of time pays for depends on the machine
    expected = [({0}, {0}), ({PAD_BYTES}, {-5}), ({PAD_BYTES}, {0}), ({0}, {-5}), ({0}, {0})]
    for rank in job.steps_of_ranks():
        asked = rank[0][0].smem_bytes
        changed = [seen(step, asked) for step in rank]
        assert len(changed) == steps
        assert changed[: len(in_force)] == [expected[setting] for setting in in_force]
        cut = changed[len(in_force) :]  # one block, under one setting
        assert cut == cut[:1] * len(cut)
        assert all(step in expected for step in cut[:1])


@pytest.mark.long
def test_losses_are_those_of_a_job_without_makeway(tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    tuned = Job("tune", PLAN, 120, 120, tmp_path / "tuned")
    kernels = program_kernels(shared_place())
    settings = environment(cuda_driver(shared_place()), device="H100-SXM5-80GB", record=None)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)),
            *(str(HERE / "ddp_launches.py"), str(kernels), "120"),
        ],
        env={**settings, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=ENDED_WITHIN_S,
        check=True,
    )
    assert len(tuned.losses) == 120 * RANKS
    assert tuned.losses == losses(done.stdout)
