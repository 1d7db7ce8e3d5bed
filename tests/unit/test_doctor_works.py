"""Which control can work where: every question has one answer, and the backends agree with it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from makeway.act.cpu.cores import Seat
from makeway.act.doctor.cgroup import Limits
from makeway.act.doctor.facts import Machine, Torch
from makeway.act.doctor.gpus import Gpus
from makeway.act.doctor.works import PLATFORMS, ROUTES, SAMPLES, Answer, absent, answers
from makeway.values.control import LaunchOrder
from makeway.values.support import CONTROL_NAMES, Platform, support

BARE = Machine(
    kernel="Linux 6.8",
    python="3.11",
    cores=8,
    cgroup=Limits(),
    shm_free_bytes=2**30,
    no_user_namespaces=None,
    missing_link_tools=(),
    compiler=None,
    priority_by=None,
    nvidia=Gpus(),
    amd=Gpus(),
    mps=None,
    torch=None,
    nccl=None,
    rccl=None,
    triton=None,
    cuda_bindings=None,
    variables=(),
)
TORCH = Torch(version="2.13.0", cuda="13.0", green_contexts=True, symmetric_memory=True)
H100 = replace(
    BARE,
    compiler="/usr/bin/cc",
    priority_by="niceness",
    nvidia=Gpus(names=("NVIDIA H100 80GB HBM3",) * 8, driver="570.124.06"),
    torch=TORCH,
    nccl="2.30.7",
    triton="3.9.0",
    cuda_bindings="13.0.0",
)
MI300X = replace(H100, nvidia=Gpus(), amd=Gpus(names=("gfx942, 304 CUs",)), torch=replace(TORCH, cuda=None, hip="7.1"))

machines = st.builds(
    replace,
    st.just(BARE),
    cores=st.integers(1, 4),
    shm_free_bytes=st.none() | st.integers(0, 2**20),
    compiler=st.none() | st.just("cc"),
    priority_by=st.sampled_from([None, "real-time priority", "niceness", "time slices"]),
    nvidia=st.sampled_from([Gpus(), Gpus(names=("NVIDIA H100 80GB HBM3",)), Gpus(names=("some GPU",))]),
    amd=st.sampled_from([Gpus(), Gpus(names=("gfx90a, 104 CUs",))]),
    torch=st.sampled_from([None, TORCH, Torch(version="2.13.0+cpu"), Torch(version="2.13.0", hip="7.1")]),
    nccl=st.sampled_from([None, "2.15.1", "2.30.7", "odd"]),
    triton=st.sampled_from([None, "3.9.0"]),
    cuda_bindings=st.sampled_from([None, "13.0.0"]),
    variables=st.sampled_from([(), (("CUDA_VISIBLE_DEVICES", ""),), (("NCCL_MAX_CTAS", "4"),)]),
)


def answer(machine: Machine, platform: str, control: str, route: str) -> Answer:
    (match,) = [each for each in answers(machine) if key(each) == (platform, control, route)]
    return match


def key(answered: Answer) -> tuple[str, str, str]:
    return answered.platform, answered.control, answered.route


# --- laws ----------------------------------------------------------------------------------------


@settings(max_examples=50)  # each asks 108 questions
@given(machines)
def test_every_control_is_answered_once_for_every_platform_and_route_with_a_reason(machine: Machine) -> None:
    found = answers(machine)
    asked = [(p, c, r) for p in PLATFORMS for c in CONTROL_NAMES for r in ROUTES]
    assert sorted(map(key, found)) == sorted(asked)
    assert all(each.detail.strip() for each in found)


@settings(max_examples=50)  # each asks 108 questions
@given(machines)
def test_a_control_works_only_where_the_support_table_says_that_its_carrier_carries_it(machine: Machine) -> None:
    for each in answers(machine):
        row = support(each.control, each.carrier)
        if each.works:
            assert row.refusal(each.platform) is None, each
        elif absent(machine, each.platform) is None and not row.supported:
            assert each.detail == row.refusal(each.platform)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_machine_that_has_everything_can_do_all_that_the_table_says(platform: Platform) -> None:
    machine = replace(H100, amd=MI300X.amd, torch=replace(TORCH, hip="7.1"))
    for each in answers(machine):
        row = support(each.control, each.carrier)
        masks = (each.platform, each.control, each.route) == ("rocm", "partition", "python")  # needs HIP's library here
        set_in_time = (each.control, each.route) == ("comm-threads", "python")  # needs its variable at the start
        if each.platform == platform and not masks and not set_in_time:
            assert each.works == (row.refusal(platform) is None), each


@settings(max_examples=50)  # each asks 108 questions
@given(machines)
def test_nothing_works_on_a_platform_that_is_absent(machine: Machine) -> None:
    for each in answers(machine):
        if reason := absent(machine, each.platform):
            assert (each.works, each.detail) == (False, reason)


@settings(max_examples=50)  # each asks 108 questions
@given(machines)
def test_a_machine_that_has_everything_can_do_whatever_a_poorer_one_can(machine: Machine) -> None:
    richer = replace(
        machine,
        cores=8,
        shm_free_bytes=2**30,
        compiler="cc",
        priority_by="niceness",
        nvidia=H100.nvidia,
        amd=MI300X.amd,
        torch=replace(TORCH, hip="7.1"),
        nccl="2.30.7",
        triton="3.9.0",
        cuda_bindings="13.0.0",
        variables=(),
    )
    able = {key(each) for each in answers(richer) if each.works}
    for each in answers(machine):
        if each.works and (each.platform, each.control) != ("rocm", "partition"):  # needs HIP's library here
            assert key(each) in able


# --- the backends say the same -------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_the_cpu_backend_refuses_what_the_doctor_says_cannot_work(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch without numpy warns when it is loaded
        controls = pytest.importorskip("makeway.act.cpu.controls")
    group: Any = SimpleNamespace(usable=True, thread_ids=(), rank=0, ranks=1)
    backend = controls.CpuBackend(group, seat=Seat(rank=0, ranks=2), cores=range(cores))
    for realtime, niceness, priority_by in (
        (True, False, "real-time priority"),
        (False, True, "niceness"),
        (False, False, None),
    ):
        monkeypatch.setattr(controls, "may_be_realtime", lambda allowed=realtime: allowed)
        monkeypatch.setattr(controls, "may_be_undone", lambda _, allowed=niceness: allowed)
        monkeypatch.setattr(controls, "slice_ns", lambda _: None)
        machine = replace(H100, cores=cores, priority_by=priority_by)  # type: ignore[arg-type]
        for control in SAMPLES:
            answered = answer(machine, "cpu", control.name, "python")
            if isinstance(control, LaunchOrder):  # not refused, and without effect
                assert not answered.works
            else:
                assert answered.works == (backend.refusal(control) is None), control
            if control.name in ("pad", "tile", "comm-threads"):  # one sentence for both
                assert answered.detail == backend.refusal(control)


# --- machines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("control", "routes"),
    [
        ("pad", {"run", "graph", "python"}),
        ("tile", {"python"}),
        ("priority", {"run", "graph", "python", "environment"}),
        ("comm-first", {"run", "environment"}),
        ("comm-blocks", {"run", "python", "environment"}),
        ("comm-threads", {"run", "environment"}),
        ("partition", {"python"}),
        ("copy-engine", {"run", "python", "environment"}),
        ("chunks", {"python"}),
    ],
)
def test_on_an_h100_with_everything_installed_each_control_has_its_routes(control: str, routes: set[str]) -> None:
    assert {route for route in ROUTES if answer(H100, "cuda", control, route).works} == routes


@pytest.mark.parametrize(
    ("change", "control", "route", "reason"),
    [
        ({"compiler": None}, "pad", "run", "no C compiler"),
        ({"cuda_bindings": None}, "pad", "graph", "makeway[cuda]"),
        ({"triton": None}, "pad", "python", "makeway[triton]"),
        ({"torch": None}, "priority", "python", "makeway[torch]"),
        ({"torch": Torch(version="2.13.0+cpu")}, "comm-blocks", "python", "built without CUDA"),
        ({"torch": replace(TORCH, cuda="12.6")}, "partition", "python", "green contexts"),
        ({"nccl": "2.27.3"}, "copy-engine", "environment", "NCCL 2.28 or later"),
        ({"variables": (("CUDA_VISIBLE_DEVICES", ""),)}, "priority", "environment", "hides every NVIDIA GPU"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, Any], control: str, route: str, reason: str) -> None:
    found = answer(replace(H100, **change), "cuda", control, route)
    assert not found.works
    assert reason in found.detail


def test_without_a_compiler_priority_still_goes_by_its_variable() -> None:
    found = answer(replace(H100, compiler=None), "cuda", "priority", "run")
    assert found.works
    assert "TORCH_NCCL_HIGH_PRIORITY=1" in found.detail
    assert "shim" not in found.detail


def test_a_gpu_that_makeway_does_not_know_can_still_be_partitioned() -> None:
    found = answer(replace(H100, nvidia=Gpus(names=("some GPU",))), "cuda", "partition", "python")
    assert found.works
    assert "does not know" in found.detail


def test_amd_has_masks_and_no_graphs() -> None:
    assert "CU mask" in answer(MI300X, "rocm", "partition", "python").detail
    assert not any(answer(MI300X, "rocm", control, "graph").works for control in CONTROL_NAMES)
    assert absent(MI300X, "cuda") == "no NVIDIA GPU was found"
