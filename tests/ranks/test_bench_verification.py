"""The laws that verification rests on: what an exchange must give, and that a difference is seen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from makeway.act.measure.ranks.exchange import GlooTransport, RawSpan, Recorder
from makeway.act.measure.ranks.harness import _round_ns, _Turn
from makeway.act.measure.ranks.lanes import Schedule, rows_of
from makeway.act.measure.ranks.pairs import Pairs, exchanged, result_shape, scaled_shape
from makeway.act.measure.ranks.transformer import unlike
from makeway.act.measure.ranks.world import World
from makeway.act.measure.sizes import CUTS
from makeway.values.units import KIB, MIB

import torch  # isort: skip  # after the modules that keep its warning about numpy quiet
from torch._C._distributed_c10d import HashStore  # isort: skip

counts = st.integers(1, 4)


def inputs(ranks: int, pieces: int) -> list[torch.Tensor]:
    rows = ranks * pieces * 2
    return [torch.arange(rows * 3).reshape(rows, 3) + 1000.0 * rank for rank in range(ranks)]


@given(counts, counts)
def test_an_all_to_all_moves_every_row_once(ranks: int, pieces: int) -> None:
    given_rows = torch.cat(inputs(ranks, pieces)).tolist()
    taken = [exchanged("all-to-all", inputs(ranks, pieces), rank, pieces).tolist() for rank in range(ranks)]
    assert sorted(row for one in taken for row in one) == sorted(given_rows)


@given(counts, counts)
def test_an_all_to_all_twice_brings_every_row_home(ranks: int, pieces: int) -> None:
    sent = inputs(ranks, pieces)
    away = [exchanged("all-to-all", sent, rank, pieces) for rank in range(ranks)]
    for rank in range(ranks):
        assert torch.equal(exchanged("all-to-all", away, rank, pieces), sent[rank])


@given(counts, counts)
def test_a_gather_holds_every_rank_and_is_the_same_everywhere(ranks: int, pieces: int) -> None:
    found = [exchanged("all-gather", inputs(ranks, pieces), rank, pieces) for rank in range(ranks)]
    assert all(torch.equal(found[0], other) for other in found)
    assert sorted(found[0].tolist()) == sorted(torch.cat(inputs(ranks, pieces)).tolist())


@given(st.sampled_from(["all-reduce", "all-gather", "all-to-all"]), st.integers(4, 64 * MIB), counts)
def test_a_shape_carries_at_least_what_was_asked_and_can_be_cut(kind: str, size: int, ranks: int) -> None:
    shape = result_shape(kind, size, 64, ranks)  # type: ignore[arg-type]
    assert shape.size_bytes >= size
    assert shape.m % (CUTS * ranks) == 0
    scaled = scaled_shape(8192, 8192, 8192, "all-reduce", 896 * MIB, scale=1 / 64, ranks=ranks)
    assert scaled.m % (CUTS * ranks) == 0


@given(counts)
def test_pieces_cover_all_rows_once(pieces: int) -> None:
    pair = _pair()
    stage = pair.stages[0]
    rows = [row for piece in range(pieces) for row in range(stage.rows)[rows_of(stage, piece, pieces)]]
    assert rows == list(range(stage.rows // pieces * pieces))


def _pair() -> Pairs:
    world = World(rank=0, ranks=1, store=HashStore())
    return Pairs(world, result_shape("all-reduce", 16 * KIB, 8, 1), 4, steady=True)


def _schedule() -> Schedule:
    return Schedule(mode="compute", transport=GlooTransport(), recorder=Recorder())


@settings(max_examples=20)
@given(st.integers(0, 15), st.integers(0, 10))
def test_one_changed_number_in_a_product_is_seen(row: int, column: int) -> None:
    pair, schedule = _pair(), _schedule()
    pair.prepare(schedule)
    pair.run(schedule)
    assert pair.wrong(schedule) is None
    pair._products[0][row, column] += 1
    assert "product differs" in (pair.wrong(schedule) or "")


def test_a_product_that_was_not_computed_is_seen() -> None:
    pair, schedule = _pair(), _schedule()
    pair.prepare(schedule)
    pair._products[1].zero_()
    assert "gemm 3" in (pair.wrong(schedule) or "")


@pytest.mark.parametrize(("loss", "wrong"), [(2.0, False), (2.0001, False), (2.001, True), (float("nan"), True)])
def test_losses_must_agree(loss: float, wrong: bool) -> None:
    assert (unlike([1.0, loss], [1.0, 2.0]) is not None) == wrong


def test_a_span_ends_once_at_the_first_that_tells() -> None:
    recorder = Recorder()
    span = recorder.opened("bucket 0", "comm")
    span.end()
    span.end()
    recorder.settle()
    (found,) = recorder.spans
    assert isinstance(found, RawSpan)
    assert found.start_ns <= found.end_ns


def test_waiting_is_not_compute() -> None:
    recorder = Recorder()
    recorder.computing("backward 0")
    with recorder.waiting():
        inside = len(recorder.spans)
    recorder.idle()
    assert inside == 1
    first, second = recorder.spans
    assert first.end_ns <= second.start_ns


@given(st.integers(-(10**15), 10**15), st.integers(1, 10**9), st.integers(1, 10**9))
def test_times_by_clocks_of_different_hosts_are_never_subtracted(apart: int, one: int, other: int) -> None:
    turns = [_Turn(0, one, None, None), _Turn(apart, apart + other, None, None)]
    assert _round_ns(turns, one_clock=False) == max(one, other)
    assert _round_ns(turns, one_clock=True) >= max(one, other)
