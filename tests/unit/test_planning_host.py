"""Predictions on a CPU host: laws of the model, and a host made up of round numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hosts import ROUND, host

from makeway.act.measure.calibrate import Calibration
from makeway.decide.planning.host import HostPrediction, HostStep, carrier_rates, predict_host_step
from makeway.decide.planning.host_recorded import RecordedHost
from makeway.decide.planning.recorded import plan_recorded
from makeway.read.plan_file import dump_plan
from makeway.values.collective import Collective
from makeway.values.control import Control, CopyEngine, SmPartition, parse_control
from makeway.values.device import (
    HOST_KINDS,
    HOST_OUTPUT_KEY,
    Device,
    host_fact_key,
    load_device,
    parse_device,
)
from makeway.values.errors import InputError, UnsupportedError
from makeway.values.plan import Plan
from makeway.values.support import CONTROL_NAMES, support_table


def step(gflop: float, size: int, *, link: float | None = None) -> HostPrediction:
    exchange = Collective(kind="all-reduce", size_bytes=size, ranks=2)
    asked = HostStep(flops=gflop * 1e9, outputs=1e6, collective=exchange, link_bytes_per_s=link)
    return predict_host_step(host(), asked)


sizes = st.integers(1_000, 100_000_000)
work = st.floats(0.001, 100)
links = st.none() | st.floats(1e6, 1e10)


@given(work, sizes, links)
def test_no_prediction_beats_the_longer_part_or_loses_to_one_after_the_other(
    gflop: float, size: int, link: float | None
) -> None:
    told = step(gflop, size, link=link)
    assert told.planned_ns <= told.overlap_ns
    assert told.overlap_ns >= told.ideal_ns
    assert told.planned_ns >= told.compute_ns
    assert told.overlap_ns <= told.sequential_ns


@given(work, sizes, st.floats(1e6, 1e10), st.floats(1.0, 10.0))
def test_a_faster_link_never_takes_longer(gflop: float, size: int, link: float, faster: float) -> None:
    assert step(gflop, size, link=link * faster).overlap_ns <= step(gflop, size, link=link).overlap_ns


def test_two_ranks_share_two_cores_and_one_loopback() -> None:
    told = step(5.0, 10_000_000, link=100e6)
    assert told.compute_ns == pytest.approx(1e8)  # 5 GFLOP on one of two cores of 50 GFLOP/s
    assert told.comm_ns == pytest.approx(1e5 + 10_000_000 * 20)  # both ranks' bytes through 100 MB/s
    assert told.overlap_ns == told.comm_ns


def test_moving_bytes_takes_processor_time_from_the_gemm() -> None:
    told = step(5.0, 10_000_000)
    assert told.overlap_ns == pytest.approx(1e8 + 10_000_000 * 0.5)
    assert told.planned == (CopyEngine(),)
    assert told.planned_ns == pytest.approx(1e8 + 10_000_000 * 0.125)


def test_outputs_take_time_on_the_ranks_own_cores_and_more_ranks_than_cores_share_them() -> None:
    slow = host(**{HOST_OUTPUT_KEY: 50.0})
    for ranks, cores in ((2, 1.0), (4, 0.5)):
        exchange = Collective(kind="all-reduce", size_bytes=1_000, ranks=ranks)
        told = predict_host_step(slow, HostStep(flops=5e9, outputs=1e6, collective=exchange))
        assert told.compute_ns == pytest.approx((5e9 / 50e9 * 1e9 + 1e6 * 50.0) / cores)


def test_ranks_behind_a_link_have_no_memory_to_share() -> None:
    assert step(5.0, 10_000_000, link=1e9).planned == ()


def test_a_host_that_was_not_calibrated_says_how_to() -> None:
    with pytest.raises(UnsupportedError, match="doctor --calibrate"):
        carrier_rates(load_device("CPU-host"), "gloo", "all-reduce")


def test_a_calibration_is_a_device_file_that_reads_back() -> None:
    calibration = Calibration(facts={"fp32_flops_per_s": 1e11}, cores=2, rounds=5, machine="here")
    again = parse_device(calibration.text.encode(), where="again")
    assert (again.sms, again.fp32_flops_per_s, again.vendor) == (2, 1e11, "cpu")
    assert "medians of 5 rounds" in again.facts["fp32_flops_per_s"].source


RANKS = Path(__file__).parents[2] / "examples" / "recordings" / "ddp-gloo-2ranks"


def test_a_recording_of_cpu_ranks_is_planned_for_the_host_with_how_and_by_what_it_is_verified() -> None:
    answer = plan_recorded([RANKS], destination="run", host=host)
    assert isinstance(answer, Plan)
    assert answer.search is not None
    assert answer.predicted is not None
    assert {control.name for control in answer.controls} <= set(support_table()["torch on CPU"].run)
    assert all(row.how and row.verified for rows in answer.search.routes for row in rows)
    assert answer.predicted.t_ideal_ns <= answer.predicted.t_plan_ns <= answer.predicted.t_naive_ns
    named = {item.control.name for item in answer.rejected} | {control.name for control in answer.controls}
    assert named == set(CONTROL_NAMES) - {"compress"}


def test_comments_of_a_plan_for_a_host_speak_of_processors() -> None:
    answer = plan_recorded([RANKS], destination="run", host=host, controls=(SmPartition(1),))
    assert isinstance(answer, Plan)
    comments = [line for line in dump_plan(answer).splitlines() if line.startswith("#")]
    assert "# 1 processor set apart for communication" in comments
    assert [line for line in comments if re.search(r"\bSMs?\b|\bblocks?\b|launch|engine", line)] == []


def test_a_required_copy_engine_is_judged_as_one_that_was_found() -> None:
    def verdict(*controls: Control, **facts: float) -> str:
        answer = plan_recorded([RANKS], host=lambda: host(**facts), controls=controls)
        assert isinstance(answer, Plan)
        assert answer.search is not None
        return answer.search.summary[0]

    copy = CopyEngine()
    slow = {host_fact_key("direct", kind, name): 10 * value for kind in HOST_KINDS for name, value in ROUND.items()}
    assert verdict() == verdict(copy)
    assert verdict().startswith("Worth trying")
    assert verdict(**slow).startswith("Leave as is")
    assert verdict(copy, **slow).startswith("No gain is predicted from the required copy-engine")


def test_wrong_requests_are_refused_before_the_host_is_calibrated() -> None:
    def never() -> Device:
        raise AssertionError("calibrated")

    for wrong in (
        {"controls": [parse_control("compress=fp16")]},
        {"controls": [parse_control("pad=1KiB")]},
        {"only": ["x"]},
    ):
        with pytest.raises(InputError):
            plan_recorded([RANKS], host=never, **wrong)


parts = st.floats(0.0, 1e9)


@given(parts, parts, parts, parts, st.floats(1.0, 1e9), st.floats(1.0, 1e9), parts)
def test_shared_memory_gains_at_most_the_exposed_transfers_and_the_processor_time(
    exposed: float, transfer: float, compute: float, comm: float, gloo: float, direct: float, spared: float
) -> None:
    transfer, exposed = min(transfer, exposed), min(exposed, comm)
    recorded = RecordedHost(
        step_ns=compute + comm, exposed_ns=exposed, transfer_ns=min(transfer, exposed), compute_ns=compute,
        comm_ns=comm, gloo_ns=gloo, direct_ns=direct, spared_ns=spared, ranks=2, unknown=0,
    )  # fmt: skip
    assert recorded.gain_ns <= recorded.transfer_ns + spared
    assert recorded.gain_ns <= 0 or direct < gloo or exposed < comm
    assert recorded.error_ns >= 0
