"""Orders of two-chunk schedules against those of torch.distributed.pipelining."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from makeway.decide.scale.schedules import schedule
from makeway.values.layout import Schedule

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

KINDS = {"FORWARD": "F", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "BW"}


def torch_order(kind: Any, stages: int, rank: int, micro_batches: int) -> list[tuple[str, int, int]]:
    given = SimpleNamespace(pp_group_size=stages, _n_microbatches=micro_batches, num_stages=2 * stages)
    tasks = []
    for action in kind._calculate_single_rank_operations(given, rank):
        if action is not None:
            for part in action.sub_actions or (action,):
                chunk = int(part.stage_index >= stages)
                tasks.append((KINDS[part.computation_type.name], part.microbatch_index, chunk))
    return tasks


@pytest.mark.parametrize(("name", "torch_name"), [("zbv", "ScheduleZBVZeroBubble"), ("dualpipev", "ScheduleDualPipeV")])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_orders_equal_those_of_torch(name: Schedule, torch_name: str, stages: int) -> None:
    kind = getattr(schedules, torch_name)
    for micro_batches in (2 * stages, 2 * stages + 1, 5 * stages):
        orders = schedule(name, stages, 2, micro_batches)
        for rank, order in enumerate(orders):
            assert [task[:3] for task in order] == torch_order(kind, stages, rank, micro_batches)
