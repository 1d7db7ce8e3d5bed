"""Plans for one carrier: only what it applies, said how and verified by what; kinds that the user rules in or out."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway import plan as make_plan
from makeway.act.doctor.works import SAMPLES
from makeway.act.export.targets import TARGETS, export
from makeway.act.launch.environment import needs_of
from makeway.act.torch.groups import group_controls
from makeway.cli.main import main
from makeway.decide.planning.carried import destinations, routes, unusable
from makeway.model.presets import load_preset
from makeway.values.control import CommBlocks, CommPriority, Control, CopyEngine, SmPartition, lossy
from makeway.values.device import Device, load_device
from makeway.values.errors import InputError, UnknownNameError, UnsupportedError
from makeway.values.plan import Plan
from makeway.values.support import CONTROL_NAMES, Platform, support_table

H100, MI300X = load_device("H100-SXM5-80GB"), load_device("MI300X")
NCCL = ("nccl-2.32.3/ring-simple",)
PLATFORMS: tuple[Platform, ...] = ("cpu", "cuda", "rocm")


def test_the_carriers_to_plan_for_are_run_and_every_export() -> None:
    assert set(destinations()) == {"run", *TARGETS}


@pytest.mark.parametrize("target", [target for target in destinations() if target != "run"])
def test_an_export_carries_every_control_of_a_plan_made_for_it(target: str) -> None:
    plan = make_plan(load_preset("conccl-04", H100), H100, destination=target)
    assert not export(plan, target).refused
    assert plan.search is not None
    for control, rows in zip(plan.controls, plan.search.routes, strict=True):
        assert [row.control for row in rows] == [control.name]
        assert all(row.how and row.verified for row in rows)


@pytest.mark.parametrize("device", [H100, MI300X], ids=lambda device: device.name)
def test_run_applies_every_control_of_a_plan_made_for_it(device: Device) -> None:
    platform: Literal["cuda", "rocm"] = "cuda" if device is H100 else "rocm"
    plan = make_plan(load_preset("gemm-ar", device), device, destination="run")
    needs = needs_of(plan, {}, platform=platform)
    assert not needs.refused
    carried = {variable.control for variable in needs.variables} | set(needs.launch_shim) | set(needs.tuner_plugin)
    assert set(plan.controls) <= carried
    assert SmPartition not in {type(control) for control in plan.controls}
    assert any(isinstance(item.control, SmPartition) and "--for run" in item.reason for item in plan.rejected)


def test_what_run_brings_through_each_carrier_is_what_its_code_brings() -> None:
    table = support_table()
    needs = [needs_of(Plan(controls=(control,)), {}, platform="cuda") for control in SAMPLES]
    assert {item.name for each in needs for item in each.launch_shim} == set(table["launch shim (CUDA)"].run)
    assert {item.name for each in needs for item in each.tuner_plugin} == set(table["tuner plugin"].run)
    variables = {item.control.name for each in needs for item in each.variables}
    # The variable for launch order keeps the program's own order, and so applies nothing by itself.
    assert variables - {"comm-first"} == set(table["NCCL environment"].run)
    assert {control.name for control in group_controls(SAMPLES)} == set(table["torch on CUDA"].run)
    cpu = table["torch on CPU"]
    assert set(cpu.run) == {name for name, row in cpu.rows.items() if row.supported}


@given(
    st.sampled_from(PLATFORMS),
    st.sampled_from((None, "run")),
    st.lists(st.sampled_from(CONTROL_NAMES), max_size=3),
    st.lists(st.sampled_from(CONTROL_NAMES), max_size=3),
)
def test_a_kind_is_unusable_exactly_when_something_rules_it_out(
    platform: Platform, destination: str | None, only: list[str], exclude: list[str]
) -> None:
    rejected = unusable(platform, destination=destination, only=only, exclude=exclude, libraries=NCCL, allow_lossy=True)
    names = {item.control.name for item in rejected}
    assert all(item.reason for item in rejected)
    for control in SAMPLES:
        carried = destination is None or routes(control, platform, destination, NCCL)
        allowed = control.name not in exclude and (not only or control.name in only) and bool(carried)
        assert (control.name not in names) == allowed


def test_lossy_kinds_are_not_even_mentioned_unless_they_are_allowed() -> None:
    assert not any(lossy(item.control) for item in unusable("cuda", destination="env", libraries=NCCL))
    assert any(lossy(item.control) for item in unusable("cuda", destination="env", libraries=NCCL, allow_lossy=True))


def test_an_old_library_leaves_out_what_it_cannot_do() -> None:
    assert CopyEngine() in [item.control for item in unusable("cuda", destination="env", libraries=["nccl-2.27.5/x"])]
    assert CopyEngine() not in [item.control for item in unusable("cuda", destination="env", libraries=NCCL)]


def test_a_partition_is_not_planned_without_the_channels_that_it_needs() -> None:
    plan = make_plan(load_preset("gemm-ar", H100), H100, only=["partition"])
    assert not {CommBlocks} & {type(control) for control in plan.controls}
    assert any(
        isinstance(item.control, SmPartition) and "needs comm-blocks" in item.reason for item in plan.rejected
    ), plan.rejected


@pytest.mark.parametrize(
    ("required", "choice", "message"),
    [
        (SmPartition(8), {"destination": "megatron"}, "partition=8 is required by --control, but --for megatron"),
        (CommPriority(), {"exclude": ["priority"]}, "but excluded by --exclude"),
        (CommPriority(), {"only": ["chunks"]}, "but not among --only chunks"),
    ],
)
def test_a_required_control_that_is_ruled_out_is_an_error(
    required: Control, choice: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        unusable("cuda", required=[required], **choice)  # type: ignore[arg-type]


def test_unknown_carriers_and_kinds_are_errors_that_name_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'megatron'.*\nKnown: run"):
        unusable("cuda", destination="megatro")
    with pytest.raises(UnsupportedError, match="applies nothing on cpu; there: run"):
        unusable("cpu", destination="megatron")
    with pytest.raises(InputError, match="did you mean 'priority'"):
        unusable("cuda", only=["priorit"])


def test_the_command_says_how_each_control_is_applied_and_what_verifies_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "gemm-ar", "--device", "H100-SXM5-80GB", "--for", "run"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "priority by launch shim (CUDA): the launch shim raises comm kernels" in shown
    assert "Verification: the launch shim's receipts" in shown
    assert main(["plan", "gemm-ar", "--device", "H100-SXM5-80GB", "--for", "nothing"]) == 2
