"""Collectives that could wait for each other for ever, and proofs that they cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from makeway.decide.planning.deadlock import deadlock_risk, program_risk
from makeway.decide.planning.score import Judge
from makeway.model.residency import need
from makeway.model.simulate.driver import run
from makeway.model.simulate.policies import BackFill, StrictHeadOfLine
from makeway.model.simulate.program import EngineOp, Program, Site
from makeway.values.control import CommBlocks, CopyEngine, SmPartition
from makeway.values.device import load_device
from makeway.values.errors import InputError
from makeway.values.kernel import KernelResources
from makeway.values.workload import BlockWork, Workload, WorkloadBuilder

A100 = load_device("A100-SXM4-80GB")
RING = "nccl-2.32.3/ring-simple"  # one block per SM of an A100
BLOCK = need(A100.sm, KernelResources(threads=512, registers_per_thread=96, smem_bytes=90_000))


def two_collectives(blocks: int, *, streams: tuple[str, str] = ("a", "b"), after: bool = False) -> Workload:
    builder = WorkloadBuilder("two", ranks=8)
    builder.kernel(
        "k", KernelResources(threads=256, registers_per_thread=64), BlockWork(blocks=900, flops_per_block=1e8)
    )
    first = builder.collective("x", "all-gather", 2**26, RING, blocks=blocks, stream=streams[0])
    waits = (first,) if after else ()
    builder.collective("y", "all-gather", 2**26, RING, blocks=blocks, stream=streams[1], after=waits)
    return builder.done()


def test_collectives_that_fit_together_are_safe() -> None:
    assert deadlock_risk(two_collectives(54), A100, ()) is None  # 108 blocks on 108 SMs


def test_one_block_too_many_is_a_risk_and_says_what_to_do() -> None:
    risk = deadlock_risk(two_collectives(55), A100, ())
    assert risk is not None
    assert "x and y may run side by side" in risk
    assert "110 blocks" in risk
    assert "comm-blocks" in risk


def test_collectives_of_one_stream_are_safe() -> None:
    assert deadlock_risk(two_collectives(64, streams=("a", "a")), A100, ()) is None


def test_an_event_between_them_is_an_order() -> None:
    assert deadlock_risk(two_collectives(64, after=True), A100, ()) is None


def test_fewer_blocks_and_copy_engines_remove_the_risk() -> None:
    assert deadlock_risk(two_collectives(64), A100, (CommBlocks(16),)) is None
    assert deadlock_risk(two_collectives(64), A100, (CopyEngine(),)) is None


def test_a_part_that_holds_one_but_not_both_is_a_risk() -> None:
    assert deadlock_risk(two_collectives(16), A100, ()) is None
    risk = deadlock_risk(two_collectives(16), A100, (SmPartition(24), CommBlocks(16)))
    assert risk is not None
    assert "the part of the device for comm" in risk


def test_a_collective_larger_than_its_part_never_becomes_resident() -> None:
    with pytest.raises(InputError, match="has 16 blocks that must be resident at once, and 8 SMs hold 8 of them"):
        deadlock_risk(two_collectives(16), A100, (SmPartition(8), CommBlocks(16)))


def test_a_search_refuses_what_adds_a_risk_and_not_what_was_there_before() -> None:
    safe = Judge(two_collectives(16), A100)
    assert isinstance(safe.attempt((CommBlocks(64),)), str)
    risky = Judge(two_collectives(64), A100)
    assert not isinstance(risky.attempt(()), str)
    assert risky.own_risk is not None


def two_ranks(x: int, y: int, sms: int, *, skew_ns: float) -> Program:
    """Two collectives on two streams; on the second rank they arrive in the other order."""

    def op(name: str, rank: int, launch_ns: float, blocks: int) -> EngineOp:
        return EngineOp(name=name, kind="collective", rank=rank, stream=name, launch_ns=launch_ns, block=BLOCK,
                        blocks=blocks, work_ns=1e5, share=0.0, group=name)  # fmt: skip

    ops = (op("x", 0, 0, x), op("y", 0, skew_ns, y), op("x", 1, skew_ns, x), op("y", 1, 0, y))
    return Program(sm=A100.sm, sites=(Site(part=None, gpc=0, sms=sms),), ranks=2, ops=ops)


def test_the_simulator_shows_the_deadlock_that_is_feared() -> None:
    program = two_ranks(8, 8, 10, skew_ns=1e3)
    assert program_risk(program) is not None
    with pytest.raises(InputError, match="deadlock"):
        run(program, engine="class", dispatch=StrictHeadOfLine())


@settings(max_examples=100)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 16),
    st.sampled_from([0.0, 1e3]),
    st.sampled_from([StrictHeadOfLine(), BackFill()]),
)
def test_what_is_proved_safe_never_deadlocks(
    x: int, y: int, sms: int, skew_ns: float, policy: StrictHeadOfLine
) -> None:
    program = two_ranks(x, y, sms, skew_ns=skew_ns)
    if program_risk(program) is None:
        assert run(program, engine="class", dispatch=policy).end_ns > 0
    else:
        assert x + y > sms


def test_partly_different_blocks_get_sms_of_their_own() -> None:
    small = replace(BLOCK, smem_bytes=0)
    program = two_ranks(4, 4, 8, skew_ns=0.0)
    mixed = replace(program, ops=tuple(replace(op, block=small) if op.name == "y" else op for op in program.ops))
    assert program_risk(mixed) is None
    assert program_risk(replace(mixed, sites=(Site(part=None, gpc=0, sms=4),))) is not None


# --- on programs that are written down ---------------------------------------------------------


def one_rank(*ops: tuple[str, str, int, tuple[int, ...]], sms: int = 10) -> Program:
    """Operations as (name, stream, blocks, after)."""
    made = [
        EngineOp(name=name, kind="collective", stream=stream, block=BLOCK, blocks=blocks, after=after, group=name)
        for name, stream, blocks, after in ops
    ]
    return Program(sm=A100.sm, sites=(Site(part=None, gpc=0, sms=sms),), ranks=1, ops=tuple(made))


def test_any_collective_that_is_too_large_is_named() -> None:
    risk = program_risk(one_rank(("x", "a", 4, ()), ("y", "a", 11, ())))
    assert risk is not None
    assert risk.startswith("y can never become resident: it needs 11 blocks at once and the device has room for 10")
    assert program_risk(one_rank(("x", "a", 4, ()), ("y", "a", 10, ()))) is None


def test_an_order_through_others_is_an_order() -> None:
    """x before m by an event, m before y in their stream."""
    chain = one_rank(("x", "a", 8, ()), ("m", "b", 1, (0,)), ("y", "b", 8, ()))
    assert program_risk(chain) is None
    loose = one_rank(("x", "a", 8, ()), ("m", "b", 1, ()), ("y", "b", 8, ()))
    assert program_risk(loose) is not None
    later = one_rank(("y", "b", 8, ()), ("x", "a", 8, (0,)), ("z", "c", 8, (1,)))
    assert program_risk(later) is None


def test_of_each_stream_the_largest_collective_counts_once() -> None:
    assert program_risk(one_rank(("x", "a", 4, ()), ("small", "b", 2, ()), ("large", "b", 6, ()))) is None
    risk = program_risk(one_rank(("x", "a", 4, ()), ("small", "b", 2, ()), ("large", "b", 7, ()), ("s", "b", 3, ())))
    assert risk is not None
    assert "x and large may run side by side, and the device has no room for their 11 blocks" in risk
    three = program_risk(one_rank(("x", "a", 4, ()), ("y", "b", 4, ()), ("z", "c", 3, ())))
    assert three is not None
    assert "x and y and z" in three


def test_blocks_of_different_kinds_count_whole_sms() -> None:
    program = one_rank(("x", "a", 4, ()), ("y", "b", 7, ()))
    two_per_sm = replace(BLOCK, smem_bytes=1024, warps=8)
    mixed = replace(program, ops=(program.ops[0], replace(program.ops[1], block=two_per_sm, blocks=10)))
    assert program_risk(mixed) is None  # four SMs, and ten blocks on two to five of the others
    assert program_risk(program) is not None
    assert program_risk(replace(mixed, sites=(Site(part=None, gpc=0, sms=5),))) is not None
