"""Which control can work where: every question has one answer, and the backends agree with it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from makeway.act.doctor.cgroup import Limits
from makeway.act.doctor.facts import Machine, Torch
from makeway.act.doctor.gpus import Gpus
from makeway.act.doctor.works import SAMPLES, Answer, Platform, Way, absent, answers
from makeway.values.control import CONTROL_KINDS, LaunchOrder

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
    priority_by=st.sampled_from([None, "niceness", "time slices"]),
    nvidia=st.sampled_from([Gpus(), Gpus(names=("NVIDIA H100 80GB HBM3",)), Gpus(names=("some GPU",))]),
    amd=st.sampled_from([Gpus(), Gpus(names=("gfx90a, 104 CUs",))]),
    torch=st.sampled_from([None, TORCH, Torch(version="2.13.0+cpu"), Torch(version="2.13.0", hip="7.1")]),
    nccl=st.sampled_from([None, "2.15.1", "2.30.7", "odd"]),
    triton=st.sampled_from([None, "3.9.0"]),
    cuda_bindings=st.sampled_from([None, "13.0.0"]),
    variables=st.sampled_from([(), (("CUDA_VISIBLE_DEVICES", ""),), (("NCCL_MAX_CTAS", "4"),)]),
)


def answer(machine: Machine, platform: str, control: str, way: str) -> Answer:
    (found,) = [one for one in answers(machine) if (one.platform, one.control, one.way) == (platform, control, way)]
    return found


# --- laws ----------------------------------------------------------------------------------------


@settings(max_examples=50)  # each asks 108 questions
@given(machines)
def test_every_control_is_answered_once_for_every_platform_and_way_and_in_words(machine: Machine) -> None:
    found = answers(machine)
    asked = [(p, c, w) for p in get_args(Platform) for c in CONTROL_KINDS for w in get_args(Way)]
    assert sorted((one.platform, one.control, one.way) for one in found) == sorted(asked)
    assert all(one.words.strip() for one in found)


@settings(max_examples=50)  # each asks 108 questions
@given(machines)
def test_nothing_works_on_a_platform_that_is_absent(machine: Machine) -> None:
    for one in answers(machine):
        if reason := absent(machine, one.platform):
            assert (one.works, one.words) == (False, reason)


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
    able = {(one.platform, one.control, one.way) for one in answers(richer) if one.works}
    for one in answers(machine):
        if one.works and (one.platform, one.control) != ("rocm", "SmPartition"):  # needs HIP's library here
            assert (one.platform, one.control, one.way) in able


# --- the backends say the same -------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_the_cpu_backend_refuses_what_the_doctor_says_cannot_work(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch without numpy warns when it is loaded
        controls = pytest.importorskip("makeway.act.cpu.controls")
    group: Any = SimpleNamespace(usable=True, thread_ids=(), rank=0, ranks=1)
    backend = controls.CpuBackend(group, rank=0, ranks=1, cores=range(cores))
    for niceness, priority_by in ((True, "niceness"), (False, None)):
        monkeypatch.setattr(controls, "may_be_undone", lambda _, allowed=niceness: allowed)
        monkeypatch.setattr(controls, "slice_ns", lambda _: None)
        machine = replace(H100, cores=cores, priority_by=priority_by)  # type: ignore[arg-type]
        for control in SAMPLES:
            told = answer(machine, "cpu", type(control).__name__, "python")
            if isinstance(control, LaunchOrder):  # not refused, and without effect
                assert not told.works
            else:
                assert told.works == (backend.refusal(control) is None), control


# --- machines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("control", "ways"),
    [
        ("SmemPad", {"launcher", "graph", "python"}),
        ("TileChoice", {"python"}),
        ("CommPriority", {"launcher", "graph", "python", "environment"}),
        ("LaunchOrder", {"launcher", "environment"}),
        ("CommBlocks", {"launcher", "python", "environment"}),
        ("CommThreads", {"launcher", "environment"}),
        ("SmPartition", {"python"}),
        ("CopyEngine", {"launcher", "python", "environment"}),
        ("Chunks", {"python"}),
    ],
)
def test_on_an_h100_with_everything_installed_each_control_has_its_ways(control: str, ways: set[str]) -> None:
    assert {way for way in get_args(Way) if answer(H100, "cuda", control, way).works} == ways


@pytest.mark.parametrize(
    ("change", "control", "way", "words"),
    [
        ({"compiler": None}, "SmemPad", "launcher", "no C compiler"),
        ({"cuda_bindings": None}, "SmemPad", "graph", "makeway[cuda]"),
        ({"triton": None}, "SmemPad", "python", "makeway[triton]"),
        ({"torch": None}, "CommPriority", "python", "makeway[torch]"),
        ({"torch": Torch(version="2.13.0+cpu")}, "CommBlocks", "python", "built without CUDA"),
        ({"torch": replace(TORCH, cuda="12.6")}, "SmPartition", "python", "green contexts"),
        ({"nccl": "2.27.3"}, "CopyEngine", "environment", "before 2.28"),
        ({"variables": (("CUDA_VISIBLE_DEVICES", ""),)}, "CommPriority", "environment", "hides every NVIDIA GPU"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, Any], control: str, way: str, words: str) -> None:
    found = answer(replace(H100, **change), "cuda", control, way)
    assert not found.works
    assert words in found.words


def test_without_a_compiler_priority_still_goes_by_its_variable() -> None:
    found = answer(replace(H100, compiler=None), "cuda", "CommPriority", "launcher")
    assert found.works
    assert "TORCH_NCCL_HIGH_PRIORITY=1" in found.words
    assert "shim" not in found.words


def test_a_gpu_that_makeway_does_not_know_can_still_be_partitioned() -> None:
    found = answer(replace(H100, nvidia=Gpus(names=("some GPU",))), "cuda", "SmPartition", "python")
    assert found.works
    assert "does not know" in found.words


def test_amd_has_masks_and_no_graphs() -> None:
    assert "CU mask" in answer(MI300X, "rocm", "SmPartition", "python").words
    assert not any(answer(MI300X, "rocm", control, "graph").works for control in CONTROL_KINDS)
    assert absent(MI300X, "cuda") == "no NVIDIA GPU was found"
