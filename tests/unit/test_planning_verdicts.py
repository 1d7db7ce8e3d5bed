"""What the planner makes of the judge's times: a table of times in, verdicts, reasons and rejections out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from makeway.decide.planning import error, planner
from makeway.decide.planning.error import error_of_difference
from makeway.decide.planning.score import Controls, Judge, Progress, Score
from makeway.decide.planning.search import TIE, Breadth, breadth
from makeway.model.presets import load_preset
from makeway.model.simulate.policies import Dispatch
from makeway.model.simulate.predict import Prediction, Settings, simulate
from makeway.values.control import Chunks, CommBlocks, CommPriority, LaunchOrder, SmPartition
from makeway.values.device import Device, device_names, load_device
from makeway.values.errors import DataFileError, InputError
from makeway.values.plan import Plan, Rejected, Search
from makeway.values.workload import Workload

A100 = load_device("A100-SXM4-80GB")
WORKLOAD = load_preset("gemm-ar", A100)
SEQUENTIAL = 1_000_000
ERROR = error_of_difference(A100).value * SEQUENTIAL
FIRST, BLOCKS, URGENT = LaunchOrder(), CommBlocks(8), CommPriority()
NAIVE = 900_000.0


@pytest.fixture(scope="module")
def template() -> Prediction:
    plain = simulate(WORKLOAD, A100, (), Settings(engine="class"))
    return replace(plain, t_sequential_ns=SEQUENTIAL, t_compute_ns=600_000, t_comm_ns=400_000)


@dataclass
class Case:
    """A plan from tables of times, by policy; sets that they do not name take as long as nothing."""

    template: Prediction
    patch: pytest.MonkeyPatch

    def plan(
        self,
        strict: Mapping[Controls, float],
        backfill: Mapping[Controls, float] | None = None,
        *,
        quick: Mapping[Controls, float] | None = None,
        forced: Controls = (),
        excluded: tuple[Rejected, ...] = (),
    ) -> Plan:
        tables = {"strict": strict, "backfill": backfill or {}}
        template = self.template

        class Table(Judge):
            def _simulated(self, controls: Controls, policy: Dispatch) -> Prediction:
                return replace(template, controls=controls, t_ns=tables[policy.name].get(controls, NAIVE))

        def searched(
            judge: Judge, offered: object, seeds: object, effort: int
        ) -> tuple[dict[Controls, Score], Breadth]:
            times = {(): NAIVE / 2, **{controls: t_ns / 2 for controls, t_ns in strict.items()}, **(quick or {})}
            scores = {controls: Score(controls=controls, t_ns=t_ns) for controls, t_ns in times.items()}
            return scores, breadth(2, crowded=False)

        self.patch.setattr(planner, "Judge", Table)
        self.patch.setattr(planner, "_searched", searched)
        return planner.plan(WORKLOAD, A100, controls=forced, excluded=excluded)


@pytest.fixture
def case(template: Prediction, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(template, monkeypatch)


def record(plan: Plan) -> Search:
    assert plan.search is not None
    return plan.search


def reasons(plan: Plan) -> dict[object, str]:
    return {item.control: item.reason for item in plan.rejected}


# --- the verdict -------------------------------------------------------------------------------


@pytest.mark.parametrize(("beyond", "leave"), [(-1_000.0, True), (1_000.0, False)])
def test_a_gain_counts_from_the_error_of_differences_on(case: Case, beyond: float, leave: bool) -> None:
    best = NAIVE - ERROR - beyond
    plan = case.plan({(FIRST,): best})
    assert record(plan).leave_as_is is leave
    assert plan.controls == (() if leave else (FIRST,))
    assert (record(plan).best_controls, record(plan).t_best_ns) == ((FIRST,), round(best))
    percent = f"{100 * (ERROR + beyond) / SEQUENTIAL:.1f} %"
    if leave:
        assert record(plan).summary[0] == (
            f"Leave as is: 0.900 ms without controls; the best set (comm-first) saves {percent} of the sequential "
            "time, within the model's error."
        )
    else:
        assert record(plan).summary[0].startswith("Worth doing: ")
    assert f"off by {100 * ERROR / SEQUENTIAL:.1f} % of the sequential time" in record(plan).summary[2]


def test_where_nothing_is_faster_the_verdict_says_so(case: Case) -> None:
    plan = case.plan({(FIRST,): NAIVE, (BLOCKS,): 2 * NAIVE})
    assert record(plan).summary[0] == "Leave as is: 0.900 ms without controls; nothing is faster."
    assert plan.controls == ()


def test_every_figure_is_the_judges_and_none_the_searchs(case: Case) -> None:
    plan = case.plan({(FIRST,): 700_000.0})
    assert plan.predicted is not None
    times = plan.predicted
    assert (times.t_naive_ns, times.t_plan_ns, times.t_ideal_ns, times.t_sequential_ns) == (
        900_000, 700_000, 600_000, 1_000_000,
    )  # fmt: skip
    assert times.share_of_ideal_naive == pytest.approx((1000 / 900 - 1) / (1000 / 600 - 1), abs=1e-6)
    assert times.share_of_ideal_plan == pytest.approx((1000 / 700 - 1) / (1000 / 600 - 1), abs=1e-6)
    assert record(plan).summary[0] == "Worth doing: 0.700 ms with the plan, 0.900 ms without (-22.2 %)."
    assert record(plan).summary[3] == (
        "Sequential: 1.000 ms; perfect overlap: 0.600 ms; share of ideal: 17 % without the plan, 64 % with it."
    )
    assert plan.reasons == ("0.700 ms with it, 0.900 ms without it (-22.2 %)",)


def test_the_judge_may_contradict_the_search(case: Case) -> None:
    """What the search found fastest is slow: the judge's time decides."""
    plan = case.plan({(FIRST,): 700_000.0, (BLOCKS,): 800_000.0}, quick={(BLOCKS,): 1.0})
    assert plan.controls == (FIRST,)
    assert record(plan).t_best_ns == 700_000


# --- what is kept ------------------------------------------------------------------------------


@pytest.mark.parametrize(("worth", "kept"), [(0.5, False), (0.98, False), (1.02, True), (2.0, True)])
def test_a_control_is_kept_if_its_removal_costs_more_than_the_error(case: Case, worth: float, kept: bool) -> None:
    both, alone = (FIRST, BLOCKS), 700_000.0
    plan = case.plan({both: alone - worth * ERROR, (FIRST,): alone})
    assert plan.controls == (both if kept else (FIRST,))
    assert record(plan).best_controls == both
    assert plan.predicted is not None
    assert plan.predicted.t_plan_ns == round(alone - worth * ERROR if kept else alone)


def test_a_control_stays_if_the_rest_gains_no_more_than_the_error(case: Case) -> None:
    best = NAIVE - 1.2 * ERROR
    plan = case.plan({(FIRST, BLOCKS): best, (FIRST,): NAIVE - 0.9 * ERROR, (BLOCKS,): NAIVE - 0.5 * ERROR})
    assert plan.controls == (FIRST, BLOCKS)


def test_required_controls_stay_and_say_so(case: Case) -> None:
    plan = case.plan({(BLOCKS,): NAIVE, (FIRST, BLOCKS): 700_000.0}, forced=(BLOCKS,))
    assert plan.controls == (FIRST, BLOCKS)
    assert plan.reasons[1] == "required"
    assert plan.reasons[0] == "0.700 ms with it, 0.900 ms without it (-22.2 %)"
    left = case.plan({(BLOCKS,): 950_000.0}, forced=(BLOCKS,))
    assert left.controls == (BLOCKS,)
    assert "0.900 ms without controls, 0.950 ms with the required ones; nothing is faster" in record(left).summary[0]


def test_excluded_kinds_are_in_no_heuristic_and_keep_their_reason(case: Case) -> None:
    plain = case.plan({(FIRST,): 700_000.0})
    assert any(FIRST in baseline.controls for baseline in record(plain).baselines.values())
    why = Rejected(control=FIRST, reason="the program orders its launches itself")
    plan = case.plan({(URGENT,): 700_000.0}, excluded=(why,))
    assert not any(FIRST in baseline.controls for baseline in record(plan).baselines.values())
    assert why in plan.rejected
    required = case.plan({(BLOCKS,): 700_000.0}, forced=(BLOCKS,))
    assert all(BLOCKS in baseline.controls for baseline in record(required).baselines.values())


def test_a_partition_goes_with_its_channels(case: Case) -> None:
    both = (BLOCKS, SmPartition(8))
    plan = case.plan({both: 700_000.0, (BLOCKS,): 960_000.0})
    assert plan.controls == both
    assert plan.reasons == (
        "partition=8 has no room for the library's own blocks; 0.700 ms with both, 0.900 ms without (-22.2 %)",
        "0.700 ms with it, 0.960 ms without it (-27.1 %)",
    )


# --- other policies ----------------------------------------------------------------------------


def test_a_plan_that_loses_under_another_policy_gives_way_to_one_that_does_not(case: Case) -> None:
    strict: dict[Controls, float] = {(URGENT,): 650_000.0, (FIRST,): 720_000.0}
    both: Controls = (URGENT, FIRST)
    backfill: dict[Controls, float] = {(): 950_000.0, (URGENT,): 1_000_000.0, both: 1_000_000.0, (FIRST,): 940_000.0}
    plan = case.plan(strict | {both: 640_000.0}, backfill)
    assert plan.controls == (FIRST,)
    assert record(plan).summary[1] == (
        "Judged under dispatch policies: strict 0.900 ms without and 0.720 ms with the plan, "
        "backfill 0.950 ms without and 0.940 ms with the plan; the first is the vendor's."
    )
    assert reasons(plan)[URGENT] == "slower than nothing under another dispatch policy; -11.1 % under the vendor's"
    same = case.plan(strict, {(): 950_000.0, (URGENT,): 950_000.0 * (1 + TIE / 2)})
    assert same.controls == (URGENT,)
    assert [(times.t_naive_ns, times.t_plan_ns) for times in record(same).policies] == [
        (900_000, 650_000),
        (950_000, round(950_000 * (1 + TIE / 2))),
    ]


# --- what is rejected --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("with_it", "said"),
    [
        (770_000.0, "does not help: +10.0 %"),
        (701_000.0, "changes nothing: +0.1 %"),
        (699_000.0, "changes nothing: -0.1 %"),
        (686_000.0, "not worth it: -2.0 %, within the model's error"),
    ],
)
def test_a_rejection_says_what_the_judge_finds_beside_the_plan(case: Case, with_it: float, said: str) -> None:
    beside = (FIRST, Chunks(2))
    plan = case.plan({(FIRST,): 700_000.0, beside: with_it}, quick={beside: 1.0})
    assert plan.controls == (FIRST,)
    assert reasons(plan)[Chunks(2)] == said


@pytest.mark.parametrize(
    ("quick", "said"),
    [
        (350_000.0, "changes nothing beside the plan, by the search"),
        (400_000.0, "slower beside the plan, by the search"),
    ],
)
def test_what_the_search_found_no_better_is_not_judged(case: Case, quick: float, said: str) -> None:
    plan = case.plan({(FIRST,): 700_000.0}, quick={(FIRST, Chunks(2)): quick})
    assert reasons(plan)[Chunks(2)] == said


def test_a_control_that_helps_alone_and_adds_nothing_to_the_plan_says_both(case: Case) -> None:
    both = 700_000.0
    plan = case.plan({(URGENT,): 750_000.0, (FIRST,): 700_000.0, (URGENT, FIRST): both, (FIRST, URGENT): both})
    assert plan.controls == (FIRST,)
    assert reasons(plan)[URGENT].startswith("-16.7 % without the plan; changes nothing")


@pytest.mark.parametrize(
    ("other", "quick", "said"),
    [
        (770_000.0, 340_000.0, "slower: +10.0 % in place of comm-blocks=8"),
        (701_000.0, 340_000.0, "as fast as comm-blocks=8: +0.1 %"),
        (680_000.0, 340_000.0, "not worth it: -2.9 % in place of comm-blocks=8, within the model's error"),
        (770_000.0, 400_000.0, "slower in place of comm-blocks=8, by the search"),
        (770_000.0, 350_500.0, "as fast in place of comm-blocks=8, by the search"),
    ],
)
def test_another_value_is_compared_with_the_one_that_was_chosen(
    case: Case, other: float, quick: float, said: str
) -> None:
    """The best set has one control more, which is worth too little."""
    sixteen, both = (CommBlocks(16),), (FIRST, BLOCKS)
    plan = case.plan({both: 660_000.0, (BLOCKS,): 700_000.0, sixteen: other}, quick={both: 1.0, sixteen: quick})
    assert plan.controls == (BLOCKS,)
    assert reasons(plan)[CommBlocks(16)] == said


# --- the judge ---------------------------------------------------------------------------------


def test_a_judge_asks_for_the_policy_that_it_was_given_and_reports_progress() -> None:
    asked: list[str] = []
    progress: Progress = asked.append
    judge = Judge(WORKLOAD, A100, None, progress)
    strict, backfill = judge.policies
    controls = (URGENT,)
    plain, other = judge.prediction(controls), judge.prediction(controls, backfill)
    assert (plain.dispatch, other.dispatch) == ("strict", "backfill")
    assert other.t_ns == simulate(WORKLOAD, A100, controls, Settings(dispatch=backfill)).t_ns
    only = Judge(WORKLOAD, A100, backfill)
    assert only.prediction(controls).dispatch == "backfill"
    assert asked == [
        "simulating candidate 1 under strict dispatch",
        "simulating candidate 2 under backfill dispatch",
    ]
    assert judge.knows(controls)
    assert not judge.knows(())
    assert only.score(controls).t_ns == judge.score(controls, backfill).t_ns
    assert strict.name == "strict"


def test_recorded_launches_that_make_the_whole_longer_than_its_parts_have_no_share_of_ideal(
    template: Prediction,
) -> None:
    def judge(workload: Workload, device: Device, t_ns: float) -> Judge:
        class Table(Judge):
            def _simulated(self, controls: Controls, policy: Dispatch) -> Prediction:
                return replace(template, t_ns=t_ns)

        return Table(workload, device)

    recorded = replace(
        WORKLOAD, operations=tuple(replace(op, launched_ns=5.0 * at) for at, op in enumerate(WORKLOAD.operations))
    )
    assert judge(recorded, A100, 1_100_000.0).share_of_ideal(1e6) is None
    assert judge(recorded, A100, 900_000.0).share_of_ideal(800_000.0) == pytest.approx(0.25 / (2 / 3))
    assert judge(WORKLOAD, A100, 1_100_000.0).share_of_ideal(800_000.0) == pytest.approx(0.25 / (2 / 3))


def test_an_unsafe_set_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "makeway.decide.planning.score.program_risk",
        lambda program: "may wait forever" if program.link_per_ns else None,
    )
    judge = Judge(WORKLOAD, A100)
    assert judge.own_risk == "may wait forever"
    assert isinstance(judge.attempt((URGENT,)), Score)  # as safe as the workload itself
    risks = iter(["own", "another"])
    monkeypatch.setattr("makeway.decide.planning.score.program_risk", lambda program: next(risks))
    other = Judge(WORKLOAD, A100)
    assert other.own_risk == "own"
    assert other.attempt((URGENT,)) == "another"
    with pytest.raises(InputError, match="no heuristic"):
        planner.plan(WORKLOAD, A100, heuristic="none")


# --- the error ---------------------------------------------------------------------------------


def test_a_device_of_an_unknown_architecture_has_the_widest_error_of_all_devices() -> None:
    known = {device.arch: device for device in map(load_device, device_names()) if device.limits}
    own = {arch: error_of_difference(device) for arch, device in known.items()}
    published = {arch: error for arch, error in own.items() if "nothing published" not in error.basis}
    assert len(published) >= 3
    assert {known[arch].vendor for arch in published} == {"nvidia", "amd"}
    widest = max(error.value for error in published.values())
    for vendor in ("nvidia", "amd", "cpu"):
        stranger = error_of_difference(replace(A100, arch="new", vendor=vendor))
        assert stranger.value == widest
        assert "the widest error of any device" in stranger.basis


@pytest.mark.parametrize("value", [0.0, 1.0, 2.5, 1, "0.1"])
def test_an_error_is_a_part_of_the_sequential_time_or_the_file_is_refused(
    value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"errors": {"sm_80": {"value": value, "basis": "made up"}}}
    monkeypatch.setattr(error, "parse_toml", lambda text, where: table)
    error._errors.cache_clear()
    with pytest.raises(DataFileError, match="sm_80: value must be a part of the sequential time"):
        error_of_difference(A100)
    error._errors.cache_clear()
