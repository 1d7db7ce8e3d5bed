"""Plans for recordings of CPU ranks, by `makeway plan` and `plan_recorded`."""

from __future__ import annotations

from pathlib import Path

import pytest

from makeway import HostPlan, plan_recorded
from makeway.read.plan_file import dump_plan, parse_plan
from makeway.values.control import Chunks, CommPriority, CopyEngine
from makeway.values.errors import InputError, UnsupportedError

RECORDED = Path(__file__).parents[2] / "examples" / "recordings" / "ddp-gloo-2ranks"


def host_plan(**options: object) -> HostPlan:
    answer = plan_recorded([RECORDED], **options)  # type: ignore[arg-type]
    assert isinstance(answer, HostPlan)
    return answer


def test_every_control_is_one_that_run_applies_and_verifies() -> None:
    answer = host_plan(destination="run")
    assert answer.plan.controls == (CopyEngine(), CommPriority())
    assert all(rows and all(row.verified for row in rows) for rows in answer.routes)
    assert 0 < answer.exposed_ns <= answer.comm_ns <= answer.step_ns
    assert parse_plan(dump_plan(answer.plan).encode(), where="x").controls == answer.plan.controls


def test_kinds_can_be_excluded_and_required() -> None:
    answer = host_plan(destination="run", exclude=["copy-engine"], controls=[Chunks(2)])
    assert answer.plan.controls == (CommPriority(), Chunks(2))
    assert CopyEngine in {type(item.control) for item in answer.plan.rejected}
    assert host_plan(only=["priority"]).plan.controls == (CommPriority(),)


def test_what_does_not_go_with_cpu_ranks_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="applies nothing on cpu"):
        host_plan(destination="megatron")
    with pytest.raises(InputError, match="are for GPUs"):
        host_plan(heuristic="conccl-dma")
    with pytest.raises(InputError, match="required by --control"):
        host_plan(controls=[CopyEngine()], exclude=["copy-engine"])
