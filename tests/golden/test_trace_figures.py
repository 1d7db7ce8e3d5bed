"""The figures of every bundled trace, those of HolisticTraceAnalysis beside them, and what ranks say together."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.recordings import RECORDINGS, needs_recordings

from makeway.decide.analysis.figures import figures, step_figures
from makeway.decide.analysis.findings import Figures, Slowdowns
from makeway.decide.analysis.hta import hta_figures
from makeway.decide.analysis.matching import match_collectives
from makeway.decide.analysis.slowdown import slowdowns
from makeway.read.traces.read import read_trace
from makeway.values.timeline import Timeline

pytestmark = needs_recordings
TRACES = RECORDINGS
EXPECTED: dict[str, Any] = json.loads(Path(__file__).with_name("trace_figures.json").read_text())
ROWS: list[dict[str, Any]] = EXPECTED["traces"]
JOBS: list[dict[str, Any]] = EXPECTED["jobs"]
MS = 1_000_000


@cache
def timeline(file: str) -> Timeline:
    return read_trace(TRACES / file)


def ms(found: Figures, *keys: str) -> dict[str, float]:
    return {f"{key}_ms": getattr(found, f"{key}_ns") / MS for key in keys}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"])
def test_figures_of_every_trace_equal_the_table(row: dict[str, Any]) -> None:
    recorded = timeline(row["file"])
    (rank,) = recorded.ranks
    found = figures(recorded.spans)
    assert (rank.rank, found.kernels, found.comm_kernels) == (row["rank"], row["kernels"], row["comm_kernels"])
    times = ms(found, "compute", "comm", "overlap", "exposed")
    assert times == pytest.approx({key: row[key] for key in times}, abs=0.0006)  # the table has 3 decimals
    assert found.overlap_percent == pytest.approx(row["overlap_percent"], abs=0.0051)


def as_hta_prints(found: Figures | None) -> dict[str, float | None]:
    assert found is not None
    percent = found.overlap_percent
    return {"overlap_percent": None if percent is None else round(percent, 2)} | ms(found, "compute", "idle", "span")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"])
def test_by_its_own_rules_hta_says_exactly_this(row: dict[str, Any]) -> None:
    found = as_hta_prints(hta_figures(timeline(row["file"]), row["rank"]))
    expected = dict(row["hta"])
    if row["file"] in EXPECTED["hta_counts_more"]:
        host_event_ms = 0.073
        expected["compute_ms"] = round(expected["compute_ms"] - host_event_ms, 3)
        expected["idle_ms"] = round(expected["idle_ms"] + host_event_ms, 3)
    assert found == expected


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row["file"] not in EXPECTED["hta_counts_more"] | EXPECTED["hta_last_step_on_gpu"]],
    ids=lambda row: row["file"],
)
def test_without_the_last_step_as_hta_leaves_it_out_by_default_too(row: dict[str, Any]) -> None:
    found = hta_figures(timeline(row["file"]), row["rank"], include_last_step=False)
    assert as_hta_prints(found) == row["hta_without_last_step"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"])
def test_steps_never_hold_more_than_the_whole(row: dict[str, Any]) -> None:
    recorded = timeline(row["file"])
    whole, steps = figures(recorded.spans), [step.figures for step in step_figures(recorded, row["rank"])]
    assert len(steps) == len(recorded.steps)
    assert sum(step.kernels for step in steps) <= whole.kernels
    assert max((step.comm_ns for step in steps), default=0) <= whole.comm_ns
    assert all(step.comm_ns > 0 for step in steps)


# --- what ranks say together ---------------------------------------------------------------------


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["folder"])
def test_collectives_of_every_job_are_matched_over_its_ranks(job: dict[str, Any]) -> None:
    ranks = range(len(job["recorded"]))
    by_rank = {rank: timeline(f"{job['folder']}/rank{rank}.json.gz").of("comm", rank=rank) for rank in ranks}
    assert [len(spans) for spans in by_rank.values()] == job["recorded"]
    found = match_collectives(by_rank)
    assert len(found.matched) == job["matched"]
    assert dict(found.unmatched) == {
        rank: count - job["matched"] for rank, count in enumerate(job["recorded"]) if count > job["matched"]
    }
    assert found.transfer_ns / MS == pytest.approx(job["transfer_ms"], abs=0.05)
    assert found.straggler_rank == job["straggler"]


@pytest.mark.parametrize("job", [job for job in JOBS if job["all_reduces"]], ids=lambda job: job["folder"])
def test_every_rank_has_come_before_any_leaves_a_matched_all_reduce(job: dict[str, Any]) -> None:
    """These jobs ran on one host with one clock. Send-recv is no such case: senders do leave up to 73 us early."""
    ranks = range(len(job["recorded"]))
    found = match_collectives(
        {rank: timeline(f"{job['folder']}/rank{rank}.json.gz").of("comm", rank=rank) for rank in ranks}
    )
    all_reduces = [one.members for one in found.matched if "AllReduce" in one.name]
    assert len(all_reduces) == job["all_reduces"]
    for members in all_reduces:
        assert max(start for _, start, _ in members) <= min(end for _, _, end in members)


# --- compute beside communication ----------------------------------------------------------------


def test_gemms_beside_all_to_all_on_v100_run_up_to_a_seventh_longer() -> None:
    result = compared("torchrec/a2a_opt5_w4/rank0.json.gz", 0)
    ratios = {(group.kernel, round(group.ratio, 2)) for group in result.groups if "volta_sgemm" in group.kernel}
    assert ratios == {("volta_sgemm_128x32_sliced1x4_nt", 1.14), ("volta_sgemm_128x32_nn", 1.10)}
    assert result.covered_ns / result.overlapped_ns == pytest.approx(0.31, abs=0.005)


def test_kernels_of_a_short_recording_run_at_other_places_alone_than_beside_communication() -> None:
    """In its steps a layer always or never runs beside all-reduce: x1.9 may be other work, so it is refused."""
    result = compared("hta/a100_w2_rank0_collective_args.json.gz", 0)
    assert result.groups == ()
    assert max(item.ratio for item in result.refused) == pytest.approx(1.9, abs=0.05)


def test_few_of_the_overlapped_kernels_of_the_a100_recommender_ever_ran_alone_at_the_same_place() -> None:
    result = compared("hta/a100_w8_rank3.json.gz", 3)
    assert result.covered_ns / result.overlapped_ns == pytest.approx(0.055, abs=0.005)
    assert max(group.ratio for group in result.groups) < 1.5
    assert sum(group.cost_ns for group in result.groups) > 0


def compared(name: str, rank: int) -> Slowdowns:
    recorded = timeline(name)
    return slowdowns(recorded.spans, rank, step_starts_ns=[step.start_ns for step in recorded.steps])
