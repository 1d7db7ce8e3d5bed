"""Compression as a control: its words, its rewriting of a workload, and where it pays."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.launch.candidates import candidate_sets
from makeway.act.launch.step_files import Block
from makeway.act.launch.tune_run import tune_run
from makeway.act.launch.tuned import loss_changes
from makeway.act.measure.job import Job
from makeway.act.measure.variants import candidate_controls
from makeway.decide.planning.planner import plan
from makeway.model.compression import compressed as exchange_of
from makeway.model.compression import compression_of
from makeway.model.simulate.compressed import compressed
from makeway.model.simulate.predict import simulate
from makeway.model.simulate.rewrite import no_compression
from makeway.read.plan_file import dump_plan, parse_plan
from makeway.values.control import CommPriority, Compress, Control, control_word, lossy, parse_control
from makeway.values.device import load_device
from makeway.values.errors import InputError
from makeway.values.kernel import KernelResources
from makeway.values.layout_word import compression_word, parse_compression
from makeway.values.plan import Plan
from makeway.values.workload import (
    ELEMENT_BYTES,
    BlockWork,
    CollectiveOp,
    DataType,
    KernelOp,
    Measured,
    Workload,
    WorkloadBuilder,
)

DEVICE = load_device("A100-SXM4-80GB")
BLOCK = KernelResources(threads=256, registers_per_thread=128, smem_bytes=64 * 1024)
METHODS = (Compress("fp16"), Compress("bf16"), Compress("powersgd"), Compress("topk"))
methods = st.one_of(
    st.sampled_from(METHODS),
    st.builds(lambda rank: Compress("powersgd", rank=rank), st.integers(1, 64)),
    st.builds(lambda share: Compress("topk", share=share), st.floats(1e-6, 1.0)),
)


def backward(comm_ms: float, *, dtype: DataType = "fp32", ranks: int = 8, size: int = 32 << 20) -> Workload:
    """Two layers whose gradients are reduced beside the next one, over a link as fast as `comm_ms` says."""
    build = WorkloadBuilder("backward", ranks=ranks)
    for layer in range(3):
        build.kernel(f"layer {layer}", BLOCK, Measured(time_ns=1e6, blocks=108))
        if layer < 2:
            link = {"time_ns": comm_ms * 1e6, "dtype": dtype, "after": (f"layer {layer}",)}
            build.collective(f"reduce {layer}", "all-reduce", size, "nccl-2.27.5/ring-simple", **link)
    build.kernel("optimizer", BLOCK, Measured(time_ns=1e5, blocks=108), after=("reduce 0", "reduce 1"))
    return build.done()


def _without_tail(workload: Workload) -> Workload:
    """The same with a layer more that needs no gradients, so that the last collective is hidden, too."""
    build = WorkloadBuilder("hidden", ranks=workload.ranks)
    build.operations += [op for op in workload.operations if op.name != "optimizer"]
    build.kernel("layer 3", BLOCK, Measured(time_ns=3e6, blocks=108))
    return build.done()


SLOW, HIDDEN = backward(20.0), _without_tail(backward(0.2))


# --- the control -------------------------------------------------------------------------------


@given(methods)
def test_a_word_and_a_plan_file_give_the_control_back(control: Compress) -> None:
    assert parse_control(control_word(control)) == control
    assert parse_plan(dump_plan(Plan(controls=(control,))).encode(), where="here").controls == (control,)


@pytest.mark.parametrize(
    "word",
    ["compress", "compress=zip", "compress=fp16:2", "compress=topk:0", "compress=topk:1.5", "compress=powersgd:0"],
)
def test_what_no_method_takes_is_refused(word: str) -> None:
    with pytest.raises(InputError):
        parse_control(word)


@pytest.mark.parametrize("word", ["topk", "top-k"])
def test_controls_and_layouts_take_both_spellings_and_write_one(word: str) -> None:
    assert control_word(parse_control(f"compress={word}:0.05")) == "compress=topk:0.05"
    assert control_word(Compress(word, share=0.05)) == "compress=topk:0.05"  # type: ignore[arg-type]
    assert compression_word(parse_compression(f"{word}:0.05")) == "topk:0.05"
    text = dump_plan(Plan(controls=(Compress("topk"),))).replace("topk", word)
    assert parse_plan(text.encode(), where="here").controls == (Compress("topk"),)


def test_only_compression_is_lossy() -> None:
    assert lossy(Compress("fp16"))
    assert not lossy(CommPriority())


# --- the model ---------------------------------------------------------------------------------


@given(methods, st.integers(2, 64), st.integers(1, 1 << 28), st.sampled_from(["fp32", "bf16"]))
def test_compressed_collectives_move_fewer_bytes_or_stay(
    control: Compress, ranks: int, size: int, dtype: DataType
) -> None:
    before = backward(1.0, dtype=dtype, ranks=ranks, size=size)
    after = compressed(before, control)
    if no_compression(before, control):
        assert after == before
    else:
        assert _wire(after) < _wire(before)
        assert {op.name for op in before.operations} <= {op.name for op in after.operations}


@given(methods, st.integers(2, 64), st.integers(1 << 12, 1 << 28), st.sampled_from(["fp32", "bf16"]))
def test_a_workload_is_compressed_as_a_training_step_at_scale_is(
    control: Compress, ranks: int, size: int, dtype: DataType
) -> None:
    before = backward(1.0, dtype=dtype, ranks=ranks, size=size)
    if no_compression(before, control) is not None:
        return
    width = ELEMENT_BYTES[dtype]
    expected = exchange_of(compression_of(control), size / width, ranks, element_bytes=width)
    after = compressed(before, control)
    layers = len(before.collectives)
    added = [op.work for op in after.kernels if op not in before.kernels and op.name.startswith("reduce")]
    moved = sum(work.blocks * work.hbm_bytes_per_block for work in added if isinstance(work, BlockWork))
    assert moved == pytest.approx(layers * sum(stage.hbm_bytes for stage in expected.stages))
    assert _wire(after) == pytest.approx(layers * expected.wire_bytes(ranks))


def test_halves_halve_fp32_and_leave_bf16() -> None:
    assert _wire(compressed(backward(1.0), Compress("bf16"))) == _wire(backward(1.0)) / 2
    assert "bf16" in (no_compression(backward(1.0, dtype="bf16"), Compress("fp16")) or "")


def test_top_k_grows_with_the_ranks_and_powersgd_does_not() -> None:
    few, many = backward(1.0, ranks=2), backward(1.0, ranks=64)
    for control, grows in ((Compress("topk"), True), (Compress("powersgd"), False)):
        ratio = _wire(compressed(many, control)) / _wire(compressed(few, control))
        assert (ratio > 10) == grows


@given(methods.filter(lambda control: control.share != 1.0))
def test_a_consumer_waits_for_the_decoded_gradients(control: Compress) -> None:
    after = compressed(backward(1.0), control)
    names = [op.name for op in after.operations]
    optimizer = after.operations[names.index("optimizer")]
    if no_compression(backward(1.0), control) is None:
        assert set(optimizer.after) == {"reduce 0 decode", "reduce 1 decode"}
        assert names.index("reduce 1 decode") < names.index("optimizer")
        encodes = [op for op in after.kernels if op.name.endswith("encode")]
        assert [op.after for op in encodes] == [("layer 0",), ("layer 1",)]
        assert {op.stream for op in after.kernels} == {"compute"}


def _wire(workload: Workload) -> float:
    return sum(op.collective.wire_bytes for op in workload.collectives)


# --- where it pays -----------------------------------------------------------------------------


@pytest.mark.parametrize("control", METHODS, ids=control_word)
def test_compression_pays_on_a_slow_link_and_never_beats_compute_alone(control: Compress) -> None:
    slow, plain = simulate(SLOW, DEVICE, (control,)), simulate(SLOW, DEVICE, ())
    assert plain.t_compute_ns <= slow.t_ns < 0.7 * plain.t_ns


@pytest.mark.parametrize("control", METHODS, ids=control_word)
def test_compression_gains_at_most_what_hidden_communication_takes_from_compute(control: Compress) -> None:
    """Hidden communication still slows the compute beside it, so there may be a little to gain, never more."""
    hidden, plain = simulate(HIDDEN, DEVICE, (control,)), simulate(HIDDEN, DEVICE, ())
    assert hidden.t_ns >= plain.t_compute_ns


def test_the_planner_offers_compression_only_where_results_may_change() -> None:
    plain, free = (plan(SLOW, DEVICE, only=["compress"], allow_lossy=allowed) for allowed in (False, True))
    assert not any(map(lossy, (*plain.controls, *(item.control for item in plain.rejected))))
    assert [control.name for control in free.controls] == ["compress"]
    assert "results change" in free.reasons[0]
    assert re.search(r"gains at link rates below [\d.]+ GB/s among 8 ranks", free.reasons[0])
    assert free.predicted is not None
    assert free.predicted.share_of_ideal_plan is None
    with pytest.raises(InputError, match="--allow-lossy"):
        plan(SLOW, DEVICE, controls=(Compress("fp16"),))


def test_compression_is_never_planned_where_communication_is_hidden_and_the_plan_says_so() -> None:
    fast = plan(HIDDEN, DEVICE, only=["compress"], allow_lossy=True)
    (reason,) = {item.reason for item in fast.rejected if isinstance(item.control, Compress)}
    assert fast.controls == ()
    assert "of communication is exposed without it" in reason


# --- who may use it ----------------------------------------------------------------------------


def test_tuning_and_benches_leave_it_alone_unless_it_is_allowed() -> None:
    for allowed in (False, True):
        tried = candidate_sets(2, allow_lossy=allowed)
        assert any(map(lossy, (control for controls in tried for control in controls))) == allowed
        measured = candidate_controls(2, shared_memory=True, wide=True, compressible=allowed)
        assert any(map(lossy, (control for controls in measured for control in controls))) == allowed
    with pytest.raises(InputError, match="--allow-lossy"):
        tune_run(["true"], Plan(controls=(Compress("fp16"),)))
    with pytest.raises(InputError, match="--allow-lossy"):
        Job(workload="ddp", controls=((Compress("fp16"),),))
    with pytest.raises(InputError, match="gradients of ddp"):
        Job(workload="gemm-ar", controls=((Compress("fp16"),),), allow_lossy=True)


def test_the_difference_in_loss_is_that_of_neighbouring_blocks() -> None:
    sets: list[tuple[Control, ...]] = [(), (CommPriority(),), (Compress("fp16"),)]

    def block(setting: int, *losses: float, tag: str = "trial") -> Block:
        return Block(setting=setting, times_ns=(1,) * len(losses), dropped=1, tag=tag, losses=losses)

    blocks = [
        block(0, 9.0, 5.0, 5.0, tag="watch"),
        block(0, 9.0, 4.0, 4.0), block(1, 9.0, 3.0, 3.0),
        block(2, 9.0, 2.5, 2.5), block(0, 9.0, 2.0, 2.0),
        block(0, 9.0, 2.0, 2.0), block(2, 9.0, 2.1, 2.1),
    ]  # fmt: skip
    (change,) = loss_changes(blocks, sets)
    assert change.controls == (Compress("fp16"),)
    assert change.pairs == 2
    assert change.difference == pytest.approx(0.05)
    assert change.spread == pytest.approx((0.0, 0.1))


def test_links_slower_than_the_model_are_as_much_slower_for_the_smaller_collective() -> None:
    whole, part = (
        next(op for op in workload.operations if isinstance(op, CollectiveOp))
        for workload in (backward(4.0), compressed(backward(4.0), Compress("bf16")))
    )
    assert part.timed == whole.collective
    modelled = _alone_ns(replace(part, time_ns=None)) / _alone_ns(replace(whole, time_ns=None))
    assert _alone_ns(part) == pytest.approx(4e6 * modelled)


def _alone_ns(op: CollectiveOp) -> float:
    kernel = KernelOp(name="kernel", resources=BLOCK, work=Measured(time_ns=1.0, blocks=1))
    alone = Workload(name="alone", operations=(kernel, replace(op, after=())), ranks=8)
    return simulate(alone, DEVICE, ()).t_comm_ns
