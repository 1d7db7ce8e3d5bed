"""What is set before a program starts: nothing of the user's is lost, and a control is set whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.launch.environment import (
    PRELOAD,
    PYTHON_PATH,
    START_HOOK,
    Route,
    needs_of,
    receipts_at_start,
    unloadable,
)
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Control,
    CopyEngine,
    LaunchOrder,
    SmemPad,
    SmPartition,
)
from makeway.values.plan import Plan

CONTROLS: tuple[Control, ...] = (
    SmemPad(1024),
    CommPriority(),
    LaunchOrder(),
    CommBlocks(16),
    CommThreads(288),
    SmPartition(8),
    CopyEngine(),
    Chunks(4),
)
NAMES = ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_CTA_POLICY", "TORCH_NCCL_HIGH_PRIORITY", "CUDA_DEVICE_MAX_CONNECTIONS")
plans = st.lists(st.sampled_from(CONTROLS), unique=True).map(lambda chosen: Plan(controls=tuple(chosen)))
environs = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(("1", "2", "8", "16", "")))
entries = st.lists(st.text("abc/.-", min_size=1, max_size=5), max_size=4)
FILES = Route(plan=Path("/run/plan.toml"), receipts=Path("/run"), rules=Path("/run/rules"), shim=Path("/lib/shim.so"))


@given(plans, environs)
def test_what_the_user_has_set_stays(plan: Plan, environ: dict[str, str]) -> None:
    after = {**environ, **needs_of(plan, environ).settings}
    assert {name: after[name] for name in environ} == environ


@given(plans, environs)
def test_force_sets_all_that_the_plan_wants(plan: Plan, environ: dict[str, str]) -> None:
    assert needs_of(plan, environ, force=True).settings == needs_of(plan, {}).settings


@given(plans, environs)
def test_a_control_is_set_whole_or_not_at_all(plan: Plan, environ: dict[str, str]) -> None:
    needs = needs_of(plan, environ)
    for control, known in zip(plan.controls, receipts_at_start(plan, needs), strict=True):
        mine = [variable for variable in needs.variables if variable.control == control]
        there = [{**environ, **needs.settings}.get(variable.name) == variable.wanted for variable in mine]
        assert known.control == control
        assert known.status == ("not seen" if all(there) else "refused")
        if not all(there):
            assert not any(variable.name in needs.settings for variable in mine)


def test_a_kept_variable_says_both_values_and_what_to_do() -> None:
    plan = Plan(controls=(CommBlocks(16),))
    needs = needs_of(plan, {"NCCL_MAX_CTAS": "8"})
    assert [variable.summary for variable in needs.variables] == [
        "not set: NCCL_MIN_CTAS=16 belongs with NCCL_MAX_CTAS, which was kept",
        "kept: NCCL_MAX_CTAS=8 was set by you; the plan wants 16 (--force replaces it)",
    ]
    forced = needs_of(plan, {"NCCL_MAX_CTAS": "8"}, force=True)
    assert [variable.summary for variable in forced.variables] == [
        "set: NCCL_MIN_CTAS=16",
        "replaced: NCCL_MAX_CTAS=16; 8 was set by you",
    ]
    assert needs_of(plan, {"NCCL_MAX_CTAS": "16"}).variables[1].summary == "already so: NCCL_MAX_CTAS=16"


@pytest.mark.parametrize("control", CONTROLS)
def test_only_pads_and_priority_ask_for_the_shim(control: Control) -> None:
    assert bool(needs_of(Plan(controls=(control,)), {}).launch_shim) == isinstance(control, SmemPad | CommPriority)


@given(entries, entries, st.sampled_from((":", " ")))
def test_lists_of_the_user_are_extended(paths: list[str], preloads: list[str], separator: str) -> None:
    environ = {PYTHON_PATH: ":".join(paths), PRELOAD: separator.join(preloads)}
    settings = FILES.variables(environ)
    first, *rest = settings[PYTHON_PATH].split(":")
    assert first == str(START_HOOK)
    assert rest == list(dict.fromkeys(paths))
    *before, last = settings[PRELOAD].split(":")
    assert last == "/lib/shim.so"
    assert before == list(dict.fromkeys(preloads))
    assert FILES.variables(settings) == settings  # a run within a run adds nothing


def test_no_list_gets_an_empty_entry_which_would_mean_the_working_directory() -> None:
    assert FILES.variables({})[PYTHON_PATH] == str(START_HOOK)
    assert FILES.variables({PYTHON_PATH: "", PRELOAD: ""})[PRELOAD] == "/lib/shim.so"


def test_without_a_shim_nothing_is_preloaded() -> None:
    settings = Route(plan=Path("/p"), receipts=Path("/r")).variables({PRELOAD: "mine.so"})
    assert settings.keys() == {"MAKEWAY_PLAN", "MAKEWAY_RECEIPTS", PYTHON_PATH}


def test_a_missing_shim_is_a_refusal_with_its_reason() -> None:
    plan = Plan(controls=(SmemPad(1024), CommPriority(), CopyEngine()))
    receipts = receipts_at_start(plan, needs_of(plan, {}), no_shim="there is no C compiler")
    assert [receipt.status for receipt in receipts] == ["refused", "refused", "not seen"]
    assert [receipt.detail for receipt in receipts[:2]] == ["there is no C compiler"] * 2
    assert {receipt.carrier for receipt in receipts} == {"launcher"}


def test_a_path_that_the_loader_would_split_is_not_preloaded() -> None:
    assert unloadable(Path("/home/me/.cache/makeway/shim.so")) is None
    for path in ("/home/a b/shim.so", "/home/a:b/shim.so"):
        assert "XDG_CACHE_HOME" in str(unloadable(Path(path)))
