"""Laws of matching: made-up jobs whose transfer, waiting and straggler are known, seen through imperfect records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.decide.analysis.matching import match_collectives
from makeway.values.timeline import Exchange, Span

MS = 1_000_000
ALL_REDUCE = Exchange(kind="all-reduce")


@dataclass(frozen=True)
class Job:
    """Collectives as (arrival of every rank, transfer): all ranks leave when the last has come and all is sent."""

    collectives: tuple[tuple[tuple[int, ...], int], ...]

    @property
    def ranks(self) -> int:
        return len(self.collectives[0][0])

    @property
    def transfer_ns(self) -> int:
        return sum(transfer for _, transfer in self.collectives)

    def waiting_ns(self, rank: int) -> int:
        return sum(max(arrivals) - arrivals[rank] for arrivals, _ in self.collectives)

    def record(self, *, ahead_ns: Sequence[int] | None = None) -> dict[int, list[Span]]:
        """What the ranks record, each by a clock that is so far ahead."""
        ahead = ahead_ns or [0] * self.ranks
        return {
            rank: [
                Span(
                    name="ncclDevKernel_AllReduce",
                    kind="comm",
                    stream="20",
                    rank=rank,
                    start_ns=arrivals[rank] + ahead[rank],
                    end_ns=max(arrivals) + transfer + ahead[rank],
                    exchange=ALL_REDUCE,
                )
                for arrivals, transfer in self.collectives
            ]
            for rank in range(self.ranks)
        }


def job(seed: int, *, ranks: int, collectives: int, late: int | None = None) -> Job:
    """Irregular gaps, as between the layers of a model; rank `late` comes last every time."""
    draw, now, made = Random(seed), 0, []
    for _ in range(collectives):
        now += draw.randrange(5 * MS, 40 * MS)
        arrivals = [now + draw.randrange(2 * MS) for _ in range(ranks)]
        if late is not None:
            arrivals[late] = now + 4 * MS
        transfer = draw.randrange(MS // 10, MS)
        made.append((tuple(arrivals), transfer))
        now = max(arrivals) + transfer
    return Job(tuple(made))


jobs = st.builds(job, st.integers(0, 10**6), ranks=st.integers(2, 5), collectives=st.integers(1, 20))
# Clocks of one host are one clock; those of two hosts that count from their own start are far apart. Clocks that
# differ by about one gap between collectives can look like records that begin one collective apart.
clocks = st.lists(st.integers(-3, 3).map(lambda far: 10**10 * far), min_size=5, max_size=5)


@given(jobs, clocks)
def test_transfer_and_waiting_come_out_exactly_whatever_the_clocks_say(made: Job, clocks: list[int]) -> None:
    found = match_collectives(made.record(ahead_ns=clocks))
    assert len(found.matched) == len(made.collectives)
    assert found.unmatched == ()
    assert found.transfer_ns == made.transfer_ns
    assert dict(found.waiting_ns) == {rank: made.waiting_ns(rank) for rank in range(made.ranks)}


def test_one_chance_agreement_of_two_is_no_common_clock() -> None:
    made = Job((((6_880_420, 7_917_794), 899_714), ((36_988_692, 37_200_204), 963_358)))
    found = match_collectives(made.record(ahead_ns=[0, 28_346_054]))
    assert (len(found.matched), found.transfer_ns) == (2, made.transfer_ns)


def test_a_sequence_number_that_a_rank_has_twice_decides_nothing() -> None:
    made = job(3, ranks=2, collectives=6)
    record = {
        rank: [replace(span, exchange=replace(ALL_REDUCE, sequence=0)) for span in spans]
        for rank, spans in made.record().items()
    }
    assert match_collectives(record).transfer_ns == made.transfer_ns


@given(jobs, clocks)
def test_waiting_and_transfer_are_all_of_the_recorded_time(made: Job, clocks: list[int]) -> None:
    record = made.record(ahead_ns=clocks)
    found = match_collectives(record)
    recorded = sum(span.duration_ns for spans in record.values() for span in spans)
    assert sum(ns for _, ns in found.waiting_ns) + found.transfer_ns * made.ranks == recorded


def cut(record: Mapping[int, Sequence[Span]], draw: Random, most: int) -> tuple[dict[int, list[Span]], int, int]:
    """Up to `most` collectives lost at either end on every rank, and the first and last place that all ranks kept."""
    kept, first, last = {}, 0, len(record[0])
    for rank, spans in record.items():
        front, back = draw.randint(0, most), len(spans) - draw.randint(0, most)
        kept[rank] = list(spans[front:back])
        first, last = max(first, front), min(last, back)
    return kept, first, last


@given(jobs.filter(lambda made: len(made.collectives) >= 10), st.randoms(use_true_random=False))
def test_ranks_that_recorded_different_collectives_share_those_that_all_recorded(made: Job, draw: Random) -> None:
    kept, first, last = cut(made.record(), draw, 2)
    found = match_collectives(kept)
    common = Job(made.collectives[first:last])
    assert [one.members for one in found.matched] == [
        one.members for one in match_collectives(common.record()).matched
    ]  # fmt: skip
    assert found.transfer_ns == common.transfer_ns
    assert dict(found.unmatched) == {
        rank: len(spans) - (last - first) for rank, spans in kept.items() if len(spans) > last - first
    }


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 3))
def test_on_one_clock_a_regular_rhythm_is_not_matched_one_beat_off(seed: int, lost: int, late: int) -> None:
    draw = Random(seed)
    beats = [7 * MS * place + draw.randrange(MS // 20) for place in range(40)]
    made = Job(tuple((tuple(beat + draw.randrange(MS) for _ in range(4)), MS // 2) for beat in beats))
    kept = {rank: spans[lost:] if rank == late else spans[:-lost] for rank, spans in made.record().items()}
    assert {len(spans) for spans in kept.values()} == {40 - lost}
    found = match_collectives(kept)
    assert found.transfer_ns == (40 - 2 * lost) * (MS // 2)


@given(st.integers(0, 10**6), clocks, st.randoms(use_true_random=False))
def test_different_records_match_by_their_rhythm_when_clocks_differ_too(
    seed: int, clocks: list[int], draw: Random
) -> None:
    made = job(seed, ranks=4, collectives=30)
    kept, first, last = cut(made.record(ahead_ns=clocks), draw, 3)
    found = match_collectives(kept)
    assert len(found.matched) == last - first
    assert found.transfer_ns == Job(made.collectives[first:last]).transfer_ns


@given(st.integers(0, 10**6), st.sets(st.integers(0, 19), max_size=4), st.integers(0, 3))
def test_a_collective_that_one_rank_lost_in_the_middle_is_left_out_and_no_other(
    seed: int, lost: set[int], rank: int
) -> None:
    made = job(seed, ranks=4, collectives=20)
    record = made.record()
    record[rank] = [span for place, span in enumerate(record[rank]) if place not in lost]
    found = match_collectives(record)
    left = [one for place, one in enumerate(made.collectives) if place not in lost]
    assert found.transfer_ns == sum(transfer for _, transfer in left)
    assert dict(found.unmatched) == {other: len(lost) for other in range(4) if other != rank and lost}


@given(jobs, clocks, st.randoms(use_true_random=False))
def test_recorded_sequence_numbers_decide_whatever_was_lost(made: Job, clocks: list[int], draw: Random) -> None:
    record = {
        rank: [replace(span, exchange=replace(ALL_REDUCE, sequence=place)) for place, span in enumerate(spans)]
        for rank, spans in made.record(ahead_ns=clocks).items()
    }
    kept = {rank: [span for span in spans if draw.random() < 0.7] for rank, spans in record.items()}
    if not all(kept.values()):
        return
    everywhere = set.intersection(
        *({span.exchange.sequence for span in spans if span.exchange} for spans in kept.values())
    )
    found = match_collectives(kept)
    assert len(found.matched) == len(everywhere)
    assert found.transfer_ns == sum(made.collectives[place][1] for place in everywhere if place is not None)


# --- whom the others waited for ------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(0, 3), clocks)
def test_the_rank_that_always_comes_last_is_the_straggler(seed: int, late: int, clocks: list[int]) -> None:
    found = match_collectives(job(seed, ranks=4, collectives=12, late=late).record(ahead_ns=clocks))
    assert found.straggler_rank == late
    assert found.straggler_share == 1.0


def turns(lateness: Sequence[int], *, transfer: int = 100) -> dict[int, list[Span]]:
    """One collective per entry, with rank `place % 4` late by that much."""
    rows = [
        (tuple(10_000 * place + (late if rank == place % 4 else 0) for rank in range(4)), transfer)
        for place, late in enumerate(lateness)
    ]
    return Job(tuple(rows)).record()


def test_nobody_stands_out_when_ranks_are_late_in_turn() -> None:
    assert match_collectives(turns([100, 100, 100, 100])).straggler_rank is None


def test_two_slow_ranks_are_no_single_straggler() -> None:
    assert match_collectives(turns([520, 0, 0, 480])).straggler_rank is None


def test_the_slowest_of_many_slow_ranks_is_no_straggler_below_half_of_the_waiting() -> None:
    assert match_collectives(turns([400, 200, 200, 200])).straggler_rank is None


def test_waiting_that_hardly_matters_names_nobody() -> None:
    assert match_collectives(turns([100, 0, 0, 0], transfer=2_000)).straggler_rank is None
    assert match_collectives(turns([100, 0, 0, 0], transfer=100)).straggler_rank == 0


# --- what is matched apart -----------------------------------------------------------------------


def test_one_rank_alone_tells_nothing_about_transfer() -> None:
    found = match_collectives({3: job(1, ranks=2, collectives=5).record()[0]})
    assert (found.matched, found.unmatched, found.transfer_ns, found.waiting_ns) == ((), (), 0, ())
    assert found.straggler_rank is None


def test_ranks_without_collectives_leave_the_others_unmatched() -> None:
    found = match_collectives({0: job(1, ranks=2, collectives=5).record()[0], 1: []})
    assert (found.matched, found.unmatched) == ((), ((0, 5),))


def within(record: Mapping[int, Sequence[Span]], group: str, ranks: tuple[int, ...]) -> dict[int, list[Span]]:
    exchange = replace(ALL_REDUCE, group=group, group_ranks=ranks)
    return {
        ranks[place]: [replace(span, exchange=exchange, rank=ranks[place]) for span in spans]
        for place, spans in record.items()
    }


def test_groups_are_matched_apart_even_with_the_same_name() -> None:
    left, right = job(1, ranks=2, collectives=6), job(2, ranks=2, collectives=6)
    found = match_collectives(within(left.record(), "tp", (0, 1)) | within(right.record(), "tp", (2, 3)))
    assert {tuple(rank for rank, _, _ in one.members) for one in found.matched} == {(0, 1), (2, 3)}
    assert found.transfer_ns == left.transfer_ns + right.transfer_ns


@pytest.mark.parametrize("renamed", [{}, {"20": "31", "7": "9"}, {"20": "9", "7": "8"}])
def test_streams_are_matched_apart_by_the_order_of_their_numbers(renamed: Mapping[str, str]) -> None:
    first, second = job(1, ranks=2, collectives=8), job(2, ranks=2, collectives=8)
    one, other = first.record(), second.record()
    record = {rank: [*one[rank], *(replace(span, stream="7") for span in other[rank])] for rank in (0, 1)}
    record[1] = [replace(span, stream=renamed.get(span.stream, span.stream)) for span in record[1]]
    found = match_collectives(record)
    assert len(found.matched) == 16
    assert found.transfer_ns == first.transfer_ns + second.transfer_ns


def test_collectives_of_two_streams_that_ranks_start_in_another_order_are_not_mixed_up() -> None:
    def one(rank: int, stream: str, start: int, end: int) -> Span:
        return Span(name="nccl", kind="comm", stream=stream, rank=rank, start_ns=start, end_ns=end, exchange=ALL_REDUCE)

    record: dict[int, list[Span]] = {0: [], 1: []}
    for place in range(6):
        at = 10 * MS * place
        record[0] += [one(0, "7", at, at + 900), one(0, "20", at + 100, at + 1000)]
        record[1] += [one(1, "20", at, at + 1000), one(1, "7", at + 400, at + 900)]
    found = match_collectives(record)
    assert found.transfer_ns == 6 * (500 + 900)  # stream 7 waits for rank 1, stream 20 for rank 0


def test_where_clocks_tell_nothing_the_order_decides() -> None:
    draw, record = Random(4), job(1, ranks=2, collectives=12).record()
    apart = [span.start_ns + 50 * MS * place + draw.randrange(40 * MS) for place, span in enumerate(record[1])]
    sends = Exchange(kind="send-recv")
    record[0] = [replace(span, exchange=sends) for span in record[0]]
    record[1] = [
        replace(span, start_ns=start, end_ns=start + MS, exchange=sends)
        for span, start in zip(record[1], apart, strict=True)
    ]
    found = match_collectives(record)
    assert [one.members for one in found.matched] == [
        ((0, one.start_ns, one.end_ns), (1, other.start_ns, other.end_ns))
        for one, other in zip(record[0], record[1], strict=True)
    ]


def test_ranks_of_an_all_to_all_may_send_different_amounts() -> None:
    record = job(1, ranks=2, collectives=6).record()
    for rank, spans in record.items():
        exchange = Exchange(kind="all-to-all", in_bytes=1000 * (rank + 1))
        record[rank] = [replace(span, exchange=exchange) for span in spans]
    assert len(match_collectives(record).matched) == 6


def test_all_reduces_of_different_sizes_are_different_collectives() -> None:
    record = job(1, ranks=2, collectives=6).record()
    record[1][2] = replace(record[1][2], exchange=replace(ALL_REDUCE, in_bytes=4))
    found = match_collectives(record)
    assert (len(found.matched), found.unmatched) == (5, ((0, 1), (1, 1)))


def test_all_reduces_that_never_meet_are_not_one() -> None:
    early = job(1, ranks=2, collectives=3).record()[0]
    later = [replace(span, start_ns=span.start_ns + 3 * MS * place, end_ns=span.end_ns + 3 * MS * place)
             for place, span in enumerate(early, start=1)]  # fmt: skip
    assert len(match_collectives({0: early, 1: later}).matched) < 3


def test_two_thousand_collectives_on_eight_ranks_with_losses_are_matched() -> None:
    made = job(5, ranks=8, collectives=2000)
    kept, first, last = cut(made.record(ahead_ns=[rank * 10**9 for rank in range(8)]), Random(1), 20)
    assert len(match_collectives(kept).matched) == last - first
