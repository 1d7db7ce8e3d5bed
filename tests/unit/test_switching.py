"""Controls that change inside a running job on GPUs: which can, what a trial needs, and how its steps are timed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.launch.candidates import default_channels, gpu_candidate_sets
from makeway.act.launch.environment import needs_of, needs_of_trial, receipts_at_start
from makeway.act.launch.step_files import AtSteps, StepSettings
from makeway.act.switching import not_switchable
from makeway.act.torch.carried import Carried
from makeway.act.torch.step_clock import GpuClock, HostClock, clock_for
from makeway.act.tuner.channel_orders import ChannelState, channel_order
from makeway.values.control import Chunks, CommBlocks, CommPriority, CopyEngine, SmemPad, SmPartition, parse_control
from makeway.values.errors import UnsupportedError
from makeway.values.plan import Plan

PAD, PRIORITY, EIGHT = SmemPad(4096, "gemm*"), CommPriority(), CommBlocks(8)


@pytest.mark.parametrize(
    "word", ["copy-engine", "partition=8", "comm-threads=256", "comm-first", "comm-blocks=8,cluster=1"]
)
def test_what_is_read_at_the_start_is_refused_by_name(word: str) -> None:
    reason = not_switchable(parse_control(word), "cuda")
    assert reason is not None
    assert reason.startswith(f"{word} cannot be switched inside a running job: ")
    assert reason.endswith("compare whole runs (--compare-runs)")
    assert Carried([(), (parse_control(word),)], backend="cuda", environ={}).refusal(3) == reason
    assert Carried([(), (parse_control(word),)], backend="cpu", environ={}).refusal(3) is None


def test_priority_is_for_launches_that_can_carry_one() -> None:
    assert not_switchable(PRIORITY, "cuda") is None
    assert "HIP launches take no priority" in str(not_switchable(PRIORITY, "rocm"))
    assert [not_switchable(control, "rocm") for control in (PAD, EIGHT, Chunks(4))] == [None] * 3


def test_gpu_ranks_without_the_shim_are_left_alone() -> None:
    sets = [(), (PAD,)]
    assert "started without the launch shim" in str(Carried(sets, backend="cuda", environ={}).refusal(3))
    lost = Carried(sets, backend="cuda", environ={"MAKEWAY_RULES": "/of/a/shim/that/is/not/there"})
    assert "the launch shim is not loaded in this process" in str(lost.refusal(3))
    lost.use(1)  # harmless


# --- what is tried -------------------------------------------------------------------------------


def test_without_a_plan_no_kernel_is_padded() -> None:
    assert gpu_candidate_sets("cuda", blocks=24) == ((PRIORITY,), (CommBlocks(12),), (CommBlocks(6),), (Chunks(4),))
    assert gpu_candidate_sets("rocm") == ((Chunks(4),),)
    assert gpu_candidate_sets("cuda", blocks=1) == ((PRIORITY,), (Chunks(4),))


def test_a_plan_is_tried_whole_and_each_of_its_controls_alone() -> None:
    sets = gpu_candidate_sets("cuda", (PAD, PRIORITY))
    assert sets == ((PAD, PRIORITY), (PAD,), (PRIORITY,), (Chunks(4),))
    with pytest.raises(UnsupportedError, match="--tune cannot try the plan: copy-engine cannot be switched"):
        gpu_candidate_sets("cuda", (CopyEngine(),))


def test_the_librarys_own_channels_are_those_of_the_machines_gpu(tmp_path: Path) -> None:
    assert default_channels("cuda", tmp_path) is None
    gpu = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA A100-SXM4-80GB\n")
    assert default_channels("cuda", tmp_path) == 24
    (gpu / "information").write_text("Model: \t\t Nobody's GPU\n")
    assert default_channels("cuda", tmp_path) is None


# --- what a job needs ----------------------------------------------------------------------------


def test_a_trial_sets_no_variable() -> None:
    """A variable would hold in the blocks without the plan, too."""
    sets = ((), (PRIORITY, EIGHT), (CommBlocks(4),))
    plan = Plan(controls=sets[1])
    plain = needs_of(plan, {}, platform="cuda")
    assert plain.settings
    needs = needs_of_trial(plain, sets)
    assert needs.settings == {}
    assert (needs.launch_shim, needs.tuner_plugin) == ((PRIORITY,), (EIGHT, CommBlocks(4)))
    details = {receipt.control: receipt.detail for receipt in receipts_at_start(plan, needs)}
    assert details[EIGHT].startswith("no NCCL or RCCL loaded the tuner plugin")
    assert details[PRIORITY].startswith("no process launched a kernel")
    refused = needs_of_trial(needs_of(plan, {"NCCL_TUNER_PLUGIN": "mine"}, platform="cuda"), sets)
    assert refused.tuner_plugin == ()
    assert "NCCL_TUNER_PLUGIN=mine was set by you" in refused.conditions[0].text


def test_only_comparing_and_tuning_alternate() -> None:
    words = ((), ("priority",))
    of = {
        kind: AtSteps(StepSettings(kind=kind, steps=9, settings=words)).trial for kind in ("compare", "tune", "measure")
    }
    assert of == {"compare": ((), (PRIORITY,)), "tune": ((), (PRIORITY,)), "measure": ()}


# --- channels ------------------------------------------------------------------------------------

states = st.lists(
    st.builds(
        ChannelState,
        file=st.sampled_from("abc"),
        calls=st.integers(0, 10**6),
        calls_per_step=st.integers(0, 500),
        earliest=st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=8,
)


@given(states)
def test_a_change_holds_from_no_call_that_a_rank_has_made_and_each_file_has_one_writer(
    ranks: list[ChannelState],
) -> None:
    order = channel_order(ranks)
    assert all(order.from_call >= max(rank.calls, rank.earliest) for rank in ranks)
    assert sorted(ranks[writer].file for writer in order.writers) == sorted({rank.file for rank in ranks})


# --- clocks --------------------------------------------------------------------------------------


class Events:
    """torch.cuda with a clock of its own: events are stamped when the device gets to them, in milliseconds."""

    def __init__(self) -> None:
        self.now_ms, self.waited = 0.0, 0

    def is_initialized(self) -> bool:
        return True

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802
        assert enable_timing
        event = SimpleNamespace(at_ms=None)
        event.record = lambda: setattr(event, "at_ms", self.now_ms)
        event.synchronize = lambda: setattr(self, "waited", self.waited + 1)
        event.elapsed_time = lambda end: end.at_ms - event.at_ms
        return event


def test_steps_on_a_gpu_take_the_time_between_its_events() -> None:
    cuda = Events()
    clock = clock_for("cuda", cuda)
    assert isinstance(clock, GpuClock)
    for step_ms in (1.5, 2.0, 0.25):
        cuda.now_ms += step_ms
        clock.mark()
    assert (clock.steps, cuda.waited) == (3, 0)  # no step waits for the device
    assert clock.take_ns() == [1_500_000, 2_000_000, 250_000]
    assert cuda.waited == 1
    cuda.now_ms += 100  # a meeting
    clock.restart()
    cuda.now_ms += 3
    clock.mark()
    assert clock.take_ns() == [3_000_000]


def test_a_program_that_has_not_started_cuda_is_timed_by_the_host() -> None:
    idle = SimpleNamespace(is_initialized=lambda: False)
    for clock in (clock_for("cuda", idle), clock_for("cpu", Events())):
        assert isinstance(clock, HostClock)
        clock.mark()
        clock.mark()
        assert clock.steps == 2
        assert all(time_ns >= 0 for time_ns in clock.take_ns())


def test_partitions_name_what_to_do_instead() -> None:
    assert "compare whole runs" in str(not_switchable(SmPartition(8), "cuda"))
