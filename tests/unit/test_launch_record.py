"""A recording's answer: overhead and times that agree, and what to do when there are too few steps."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from makeway.act.launch.record import RankRecording, Recording, _too_few, record
from makeway.act.launch.step_files import StepSettings, no_steps
from makeway.show.recording import report


def recording(*times: tuple[float | None, float | None]) -> Recording:
    return Recording(
        program=("train",),
        directory="recorded",
        asked_steps=5,
        ranks=tuple(
            RankRecording(
                rank=rank, file=f"rank{rank}", steps=5, size_bytes=1, plain_step_ns=plain, profiled_step_ns=profiled
            )
            for rank, (plain, profiled) in enumerate(times)
        ),
        exit_code=0,
        killed_by=None,
        problem=None,
    )


def test_the_overhead_is_that_of_the_two_times_beside_it() -> None:
    made = recording((1.04e6, 1.16e6), (1.17e6, 11.98e6))
    assert made.plain_step_ns is not None
    assert made.profiled_step_ns is not None
    assert made.overhead_pct == pytest.approx(100 * (made.profiled_step_ns / made.plain_step_ns - 1), abs=0.001)
    (lead,) = report(made).lead
    assert "from 1.10 ms to 6.57 ms (medians over the ranks)" in re.sub(r"\s+", " ", lead.text)


def test_a_rank_without_plain_steps_has_no_part_in_the_overhead() -> None:
    assert recording((None, 2e6), (1e6, 1.5e6)).overhead_pct == 50.0
    assert recording((None, 2e6)).overhead_pct is None


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (1, "the program made 1 step; a recording takes 4 or more"),
        (4, "the program made 4 steps; these options need 12 or more: try --warm-up 1 --steps 1"),
        (6, "the program made 6 steps; these options need 12 or more: try --warm-up 1 --steps 2"),
        (7, "the program made 7 steps; these options need 12 or more: try --warm-up 1 --steps 2"),
    ],
)
def test_too_few_steps_name_options_that_fit(steps: int, said: str) -> None:
    assert _too_few(steps, StepSettings(kind="record", steps=5, warm_up=5)) == said


def test_a_program_that_fails_is_not_asked_for_a_step_marker(tmp_path: Path) -> None:
    made = record([sys.executable, "-c", "raise SystemExit(3)"], out=tmp_path / "recorded")
    assert (made.exit_code, made.problem) == (3, f"no step was seen: {no_steps(3)}")
    assert "step-marker" not in no_steps(3)
    assert "step-marker" in no_steps(0)


def test_a_directory_made_for_nothing_is_removed(tmp_path: Path) -> None:
    made, own = tmp_path / "made", tmp_path / "own"
    own.mkdir()
    for out in (made, own):
        assert record([sys.executable, "-c", ""], out=out).problem is not None
    assert (made.exists(), own.exists()) == (False, True)


def test_a_marker_that_no_process_calls_is_named() -> None:
    assert "called loop:step; name a function" in no_steps(0, "loop:step")
