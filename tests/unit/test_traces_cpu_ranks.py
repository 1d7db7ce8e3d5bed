"""CPU ranks: profiles of Gloo jobs as timelines. Operators count once, calls of torch.distributed are no compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway import analyze
from makeway.read.traces.read import read_trace
from makeway.values.errors import TraceError
from makeway.values.timeline import Timeline, covered_ns

MAIN, WORKER = 10, 11
GROUP = {"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}


def event(name: str, start: float, end: float, *, tid: int = MAIN, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": end - start, "args": args}


def collective(name: str, start: float, end: float, *, tid: int = WORKER, elements: int = 256) -> dict[str, Any]:
    shape = {"Input Dims": [[elements]], "Input type": ["float"]}
    return event(f"gloo:{name}", start, end, tid=tid, cat="user_annotation", **shape)


def mark(name: str, start: float, end: float) -> dict[str, Any]:
    return event(name, start, end, cat="user_annotation")


def written(path: Path, *events: dict[str, Any], rank: int = 0) -> Path:
    info = {"backend": "gloo", "rank": rank, "world_size": 2, "pg_count": 1, "pg_config": [GROUP]}
    path.write_text(json.dumps({"distributedInfo": info, "baseTimeNanoseconds": 1_000, "traceEvents": events}))
    return path


def read(path: Path, *events: dict[str, Any]) -> Timeline:
    return read_trace(written(path / "rank0.json", *events))


def compute(timeline: Timeline) -> list[tuple[str, int, int]]:
    return [(span.name, span.start_ns - 1_000, span.end_ns - 1_000) for span in timeline.of("compute")]


def test_nested_operators_count_once_and_calls_of_communication_not_at_all(tmp_path: Path) -> None:
    timeline = read(
        tmp_path,
        mark("ProfilerStep#3", 0, 100),
        event("autograd::engine::evaluate_function: AddmmBackward0", 10, 40),
        event("aten::mm", 12, 20),
        event("c10d::allreduce_", 22, 30),
        event("aten::view", 24, 25),
        event("aten::add_", 50, 60),
        event("_c10d_functional::wait_tensor", 60, 80),
        collective("all_reduce", 31, 79),
    )
    assert compute(timeline) == [
        ("AddmmBackward0", 10_000, 22_000),
        ("AddmmBackward0", 30_000, 40_000),
        ("aten::add_", 50_000, 60_000),
    ]
    (comm,) = timeline.of("comm")
    assert comm.exchange is not None
    assert (comm.exchange.kind, comm.exchange.in_bytes, comm.exchange.group_ranks) == ("all-reduce", 1_024, (0, 1))
    assert comm.launched_ns == 22_000 + 1_000, "the call that started it"
    assert [(step.number, step.start_ns) for step in timeline.steps] == [(3, 1_000)]
    assert timeline.ranks[0].device == "CPU-host"


def test_operators_inside_a_backend_thread_are_part_of_its_collective(tmp_path: Path) -> None:
    inside = event("aten::copy_", 35, 38, tid=WORKER)
    timeline = read(tmp_path, mark("ProfilerStep#1", 0, 90), collective("all_gather", 30, 50), inside)
    assert compute(timeline) == []
    (comm,) = timeline.of("comm")
    assert comm.exchange is not None
    assert comm.exchange.out_bytes == 2 * 1_024


def test_a_collective_of_the_calling_thread_hides_no_operator(tmp_path: Path) -> None:
    """makeway's own collectives are ranges of the thread that calls them, which computes meanwhile."""
    timeline = read(
        tmp_path, mark("ProfilerStep#1", 0, 90), collective("all_reduce", 10, 70, tid=MAIN), event("aten::mm", 20, 60)
    )
    assert compute(timeline) == [("aten::mm", 20_000, 60_000)]
    assert timeline.of("comm")[0].stream != timeline.of("compute")[0].stream


def test_a_thread_that_goes_on_when_a_collective_ends_waited_for_it(tmp_path: Path) -> None:
    events = (
        mark("ProfilerStep#1", 0, 4_000),
        event("aten::mm", 0, 100),
        event("c10d::allreduce_", 100, 110),
        event("aten::add_", 2_040, 2_100),
        collective("all_reduce", 105, 2_000),
    )
    timeline = read(tmp_path, *events)
    assert timeline.waits is not None
    assert [(wait.stream, wait.on_stream) for wait in timeline.waits] == [("thread 10", "thread 11")]
    cause = next(cause for cause in analyze([tmp_path], what_if=False).causes if cause.of == "exposed")
    assert (cause.kind, cause.confidence) == ("dependency", "high")


def test_without_profiler_steps_the_optimizer_ends_a_step(tmp_path: Path) -> None:
    timeline = read(
        tmp_path,
        event("aten::mm", 0, 10),
        collective("all_reduce", 5, 20),
        mark("Optimizer.step#SGD.step", 20, 30),
        event("aten::mm", 40, 50),
        mark("Optimizer.step#SGD.step", 60, 70),
    )
    assert [(step.start_ns - 1_000, step.end_ns - 1_000) for step in timeline.steps] == [(0, 30_000), (30_000, 70_000)]
    assert "Optimizer.step" in timeline.ranks[0].notes[0]


def test_a_host_profile_without_communication_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"no GPU activity, nor communication between CPU ranks.*\n.*gloo:\*.*--warm-up"
    ):
        read(tmp_path, event("aten::mm", 0, 10), event("record_param_comms", 2, 3))


def test_two_ranks_match(tmp_path: Path) -> None:
    for rank, late in ((0, 0), (1, 40)):
        steps = [
            part
            for step in range(3)
            for part in (
                mark(f"ProfilerStep#{step}", 1_000 * step, 1_000 * step + 900),
                event("aten::mm", 1_000 * step + 10, 1_000 * step + 300 + late),
                collective("all_reduce", 1_000 * step + 310 + late, 1_000 * step + 600),
            )
        ]
        written(tmp_path / f"rank{rank}.json", *steps, rank=rank)
    analysis = analyze([tmp_path], what_if=False)
    assert len(analysis.matching.matched) == 3
    assert dict(analysis.matching.waiting_ns) == {0: 3 * 40_000, 1: 0}


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 60)), min_size=1, max_size=30))
def test_compute_is_the_union_of_operators_however_they_nest(intervals: list[tuple[int, int]]) -> None:
    from makeway.read.traces.cpu_ranks import _outermost, _Thread

    thread = _Thread()
    for start, length in intervals:
        thread.starts.append(start)
        thread.ends.append(start + length)
        thread.names.append(0)
    pieces = list(_outermost(thread, ["aten::mm"], []))
    assert covered_ns((start, end) for start, end, _ in pieces) == covered_ns((a, a + n) for a, n in intervals)
