"""Two recordings compared: steps, ledger, kernels, collectives, interval, verdict and exit code."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway import compare
from makeway.cli.main import main
from makeway.decide.analysis.difference import difference, student
from makeway.decide.analysis.recorded_steps import rank_steps
from makeway.read.traces.read import read_trace
from makeway.values.errors import InputError, TraceError

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(cat: str, name: str, start: float, duration: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": duration, "tid": 1, "args": args}


def written(folder: Path, gemm_us: Sequence[float], *, comm_us: float = 300.0, rank: int = 0, extra: str = "") -> Path:
    """A recording with a step for each GEMM: the GEMM, then an exposed collective, then perhaps another kernel."""
    events, at = [], 0.0
    for number, time in enumerate(gemm_us):
        begin = at
        events.append(event("kernel", "gemm", at + 10, time, device=0, stream=7))
        sizes = {"Collective name": "allreduce", "In msg nelems": 64, "dtype": "Float"}
        events.append(event("kernel", NCCL, at + 10 + time, comm_us, device=0, stream=20, **sizes))
        at += 10 + time + comm_us
        if extra:
            events.append(event("kernel", extra, at, 200, device=0, stream=7))
            at += 200
        events.append(event("user_annotation", f"ProfilerStep#{number}", begin, at - begin))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank{rank}.json").write_text(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events}))
    return folder


def steps(mean: float, *, seed: int, count: int = 16, spread: float = 0.02) -> list[float]:
    draw = random.Random(seed)
    return [mean * math.exp(draw.gauss(0, spread)) for _ in range(count)]


def test_a_slower_kernel_is_found_and_named(tmp_path: Path) -> None:
    before = written(tmp_path / "before", steps(1_000, seed=1))
    after = written(tmp_path / "after", steps(1_400, seed=2))
    result = compare(before, after)
    assert result.verdict == "slower"
    assert result.difference_pct == pytest.approx(100 * 400 / 1_310, abs=4)
    assert result.interval_pct is not None
    assert result.interval_pct[0] < result.difference_pct < result.interval_pct[1]
    assert [change.name for change in result.kernels] == ["gemm"]
    assert result.collectives == ()
    by_name = {line.name: line for line in result.lines}
    assert by_name["compute"].clear
    assert not by_name["exposed communication"].clear


def test_a_shorter_collective_is_faster_and_named(tmp_path: Path) -> None:
    before = written(tmp_path / "before", steps(1_000, seed=1), comm_us=900)
    after = written(tmp_path / "after", steps(1_000, seed=2), comm_us=300)
    result = compare(before, after)
    assert result.verdict == "faster"
    assert [(change.name, change.size_bytes) for change in result.collectives] == [(NCCL, 256)]
    assert result.kernels == ()


def test_a_kernel_of_one_side_only_is_listed(tmp_path: Path) -> None:
    before = written(tmp_path / "before", steps(1_000, seed=1))
    after = written(tmp_path / "after", steps(1_000, seed=2), extra="new_kernel")
    (change,) = compare(before, after).kernels
    assert (change.name, change.before_count, change.after_count) == ("new_kernel", 0, 1)


def test_the_lines_of_each_step_add_up_to_it(tmp_path: Path) -> None:
    written(tmp_path / "a", steps(1_000, seed=1), extra="tail")
    (rank,) = rank_steps(read_trace(tmp_path / "a" / "rank0.json"))
    for index, time_ns in enumerate(rank.times_ns):
        assert sum(line[index] for line in rank.lines.values()) == time_ns


def test_different_numbers_of_steps_compare(tmp_path: Path) -> None:
    before = written(tmp_path / "before", steps(1_000, seed=1, count=9))
    after = written(tmp_path / "after", steps(1_000, seed=2, count=30))
    result = compare(before, after)
    assert (result.before.steps, result.after.steps) == (9, 30)
    assert result.verdict == "no difference shown"


def test_a_single_step_has_no_interval(tmp_path: Path) -> None:
    before, after = written(tmp_path / "before", [1_000.0]), written(tmp_path / "after", [2_000.0])
    result = compare(before, after)
    assert result.interval_pct is None
    assert result.verdict == "no difference shown"
    assert result.no_interval is not None
    assert "a single step" in result.no_interval


def test_directories_below_are_runs_and_their_spread_counts(tmp_path: Path) -> None:
    """Steady within each run, 20 % apart from run to run: no difference is shown, though one pair would show one."""
    for side, means in (("before", (1_000, 1_300)), ("after", (1_250, 1_050))):
        for run, mean in enumerate(means):
            written(tmp_path / side / str(run), steps(mean, seed=run, spread=0.002))
    assert compare(tmp_path / "before" / "0", tmp_path / "after" / "0").verdict == "slower"
    result = compare(tmp_path / "before", tmp_path / "after")
    assert (result.before.runs, result.verdict) == (2, "no difference shown")


def test_ranks_are_one_run_and_a_rank_twice_is_an_error(tmp_path: Path) -> None:
    for rank in range(2):
        written(tmp_path / "run", steps(1_000, seed=rank), rank=rank)
    assert compare(tmp_path / "run", tmp_path / "run").before.ranks == 2
    (tmp_path / "run" / "copy.json").write_bytes((tmp_path / "run" / "rank0.json").read_bytes())
    with pytest.raises(TraceError, match="both say they are rank 0"):
        compare(tmp_path / "run", tmp_path / "run")


def test_kernels_that_all_change_alike_raise_a_doubt(tmp_path: Path) -> None:
    def three_kernels(folder: Path, scale: float, seed: int) -> Path:
        events, at = [], 0.0
        for number, time in enumerate(steps(1_000 * scale, seed=seed)):
            for name in ("gemm", "norm", "softmax"):
                events.append(event("kernel", name, at, time, device=0, stream=7))
                at += time
            events.append(event("user_annotation", f"ProfilerStep#{number}", at - 3 * time, 3 * time))
        folder.mkdir()
        (folder / "rank0.json").write_text(json.dumps({"traceEvents": events}))
        return folder

    result = compare(three_kernels(tmp_path / "a", 1.0, 1), three_kernels(tmp_path / "b", 1.5, 2))
    assert result.verdict == "slower"
    assert any("changed alike" in note for note in result.notes)


@pytest.mark.parametrize(
    ("limit", "code"), [("slower", 1), ("faster", 0), ("difference>5%", 1), ("difference>60%", 0), (None, 0)]
)
def test_the_exit_code_is_for_continuous_integration(
    tmp_path: Path, limit: str | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = written(tmp_path / "before", steps(1_000, seed=1))
    after = written(tmp_path / "after", steps(1_400, seed=2))
    arguments = ["compare", str(before), str(after), "--json", *(["--fail-if", limit] if limit else [])]
    assert main(arguments) == code
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "slower"
    assert document["interval_pct"][0] <= document["difference_pct"] <= document["interval_pct"][1]


def test_a_limit_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="difference>5%"):
        compare(tmp_path, tmp_path, fail_if="difference>five")


# --- the interval ----------------------------------------------------------------------------------


def autocorrelated(draw: random.Random, count: int, correlation: float, spread: float, shift: float) -> list[float]:
    value, values = draw.gauss(0, spread), []
    for _ in range(count):
        value = correlation * value + math.sqrt(1 - correlation**2) * draw.gauss(0, spread)
        values.append(shift + value)
    return values


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_runs_that_do_not_differ_are_rarely_told_apart(correlation: float) -> None:
    """Steps are correlated and runs differ by 2 %: at most 8 % false alarms at a level of 95 %."""
    draw, false = random.Random(7), 0
    for _ in range(400):
        sides = [[autocorrelated(draw, 16, correlation, 0.04, draw.gauss(0, 0.02))] for _ in range(2)]
        false += difference(*sides, run_spread=0.02).shown
    assert false <= 32


def test_a_difference_of_a_sixth_is_shown_on_a_steady_host() -> None:
    draw, right = random.Random(7), 0
    for _ in range(100):
        before = autocorrelated(draw, 16, 0.3, 0.02, draw.gauss(0, 0.015))
        after = autocorrelated(draw, 16, 0.3, 0.02, math.log(7 / 6) + draw.gauss(0, 0.015))
        result = difference([before], [after], run_spread=0.02)
        right += result.shown and result.estimate > 0
    assert right >= 97


@given(
    st.lists(st.floats(-1, 1), min_size=2, max_size=20),
    st.lists(st.floats(-1, 1), min_size=2, max_size=20),
    st.floats(-5, 5),
)
def test_a_difference_turns_with_its_sides_and_moves_with_them(
    before: list[float], after: list[float], shift: float
) -> None:
    forth = difference([before], [after], run_spread=0.02)
    back = difference([after], [before], run_spread=0.02)
    moved = difference([before], [[value + shift for value in after]], run_spread=0.02)
    assert forth.low is not None
    assert forth.high is not None
    assert back.low is not None
    assert moved.low is not None
    assert forth.low <= forth.estimate <= forth.high
    assert back.estimate == pytest.approx(-forth.estimate)
    assert back.low == pytest.approx(-forth.high)
    assert moved.estimate == pytest.approx(forth.estimate + shift, abs=1e-9)


@pytest.mark.parametrize(
    ("freedom", "level", "table"),
    [(1, 0.95, 12.706), (2, 0.95, 4.303), (10, 0.95, 2.228), (30, 0.99, 2.750), (1_000, 0.95, 1.962)],
)
def test_students_t_is_that_of_the_tables(freedom: float, level: float, table: float) -> None:
    assert student(level, freedom) == pytest.approx(table, abs=5e-4)
