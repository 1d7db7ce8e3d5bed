"""Plans as reports, plans for recordings, and the difference between two plans."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from tests.recordings import RECORDINGS, needs_recordings

from makeway import NothingToPlan, Plan, compare_plans, load_device, load_preset, plan, plan_recorded, report_of
from makeway.decide.planning.recorded import step_to_plan
from makeway.read.plan_file import dump_plan, parse_plan
from makeway.show.blocks import Report, Table
from makeway.show.page import page
from makeway.show.text import text
from makeway.values.control import CommPriority, SmPartition
from makeway.values.plan import Forecast, MadeFor

H100 = load_device("H100-SXM5-80GB")
OWN = Path(__file__).parents[2] / "examples" / "recordings" / "tp-llama-70b"
GEMM_AR = load_preset("gemm-ar", H100)


@pytest.fixture(scope="module")
def chosen() -> Plan:
    return plan(GEMM_AR, H100, timelines=True)


def table(report: Report, name: str) -> Table:
    blocks = [block for section in report.sections for block in section.blocks]
    return next(block for block in blocks if isinstance(block, Table) and block.name == name)


# --- reports -------------------------------------------------------------------------------------


def test_a_plan_report_names_each_control_its_reason_and_what_was_rejected(chosen: Plan) -> None:
    report = report_of(chosen, arguments="makeway plan")
    html = page(report)
    assert chosen.search is not None
    assert chosen.controls
    assert all(escape(reason) in html for reason in chosen.reasons)
    assert all(escape(item.reason) in html for item in chosen.rejected)
    assert len(table(report, "heuristics").rows) == 1 + len(chosen.search.baselines)
    assert {"timeline", "room"} <= {section.name for section in report.sections}


def test_text_shows_few_rejections_and_all_with_verbose(chosen: Plan) -> None:
    report = report_of(chosen)
    brief, full = text(report), text(report, verbose=True)
    assert len(chosen.rejected) > 3
    assert brief.startswith(report.headline.sentence.rstrip("."))
    assert "more rows" in brief
    assert "more rows" not in full
    assert len(brief) < len(full)


def test_timelines_are_simulated_only_where_they_are_wanted(chosen: Plan) -> None:
    assert chosen.search is not None
    assert [name for name, _ in chosen.search.timelines] == ["without controls", "with the plan"]
    plain = plan(GEMM_AR, H100)
    assert plain.search is not None
    assert plain.search.timelines == ()
    assert plain == chosen  # the search is how, not what


def test_a_plan_read_from_its_file_equals_the_plan_and_has_a_report_of_its_own(chosen: Plan) -> None:
    read = parse_plan(dump_plan(chosen), where="plan.toml")
    assert read == chosen
    assert read.search is None
    report = report_of(read)
    assert report.data["t_plan_ms"] == report_of(chosen).data["t_plan_ms"]
    assert "baselines" not in report.data


# --- two plans -----------------------------------------------------------------------------------


def test_plans_made_for_the_same_are_compared_by_their_own_times() -> None:
    made_for = MadeFor(workload="w", device="H100-SXM5-80GB")
    a, b = (
        Plan(controls=controls, made_for=made_for, predicted=Forecast(t_naive_ns=9, t_plan_ns=t_ns, t_ideal_ns=5))
        for controls, t_ns in (((CommPriority(),), 8), ((CommPriority(), SmPartition(8)), 6))
    )
    difference = compare_plans(a, b)
    assert (difference.added, difference.removed, difference.kept) == ((SmPartition(8),), (), (CommPriority(),))
    assert difference.change_ns == -2
    assert compare_plans(a, replace(b, made_for=MadeFor(workload="other"))).change_ns is None
    assert compare_plans(b, a).change_ns == 2
    assert compare_plans(a, b, GEMM_AR).change_ns == -2  # without a device there is nothing to predict
    assert compare_plans(a, b, device=H100).change_ns == -2


def test_the_same_plan_twice_changes_nothing() -> None:
    same = Plan(controls=(CommPriority(),))
    difference = compare_plans(same, same, GEMM_AR, H100)
    assert difference.change_ns == 0
    assert "the same controls" in text(report_of(difference))


# --- recordings ----------------------------------------------------------------------------------


def test_a_recording_is_planned_for_its_most_exposed_step() -> None:
    step = step_to_plan([OWN])
    assert not isinstance(step, NothingToPlan)
    answer = plan_recorded([OWN])
    assert isinstance(answer, Plan)
    assert answer.search is not None
    assert answer.search.workload == step.workload
    assert answer.search.notes[-len(step.notes) :] == step.notes
    assert set(step.excluded) <= set(answer.rejected)


@needs_recordings
def test_a_recording_without_collectives_says_why_there_is_no_plan() -> None:
    answer = plan_recorded([RECORDINGS / "tracelens" / "h100_w1_owlv2_no_nccl.json.gz"])
    assert isinstance(answer, NothingToPlan)
    report = report_of(answer)
    assert "no collective" in report.headline.sentence
    assert report.data["controls"] == []
    assert report.data["t_plan_ms"] is None
