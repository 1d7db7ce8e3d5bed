"""The reduce: summaries of all ranks to one `JobAnalysis`, one communicator at a time.

Two passes. The first matches the collectives of each communicator; its results go to a temporary file. The second
takes each rank in turn and splits its exposed time into waiting and the rest. So memory holds the headers of all
ranks and the columns of one communicator's current batch of ranks.
"""

from __future__ import annotations

import re
import tempfile
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import compress, pairwise
from operator import sub
from typing import IO

from makeway.decide.analysis.evidence import communication
from makeway.decide.analysis.ledger import LedgerLine, LineKind, job_ledger, ledger_of
from makeway.decide.analysis.many.job import Communicator, JobAnalysis, JobCause, JobRank, Spread, spread_of
from makeway.decide.analysis.many.lane_matching import LaneMatch, Member, durations_ns, match_lane, order_of
from makeway.decide.analysis.many.summary import KernelClass, Lane, RankSummary, StoredSummary
from makeway.decide.analysis.matching import straggler_of
from makeway.decide.analysis.runs import runs, runs_note
from makeway.values.errors import InputError, TraceError

MOST_KERNELS = 32
MOST_NOTES = 12
_DIGITS = re.compile(r"\d[\d,.]*")

_LaneKey = tuple[str | None, tuple[int, ...], int]  # group and its ranks, or the stream's position


@dataclass(slots=True)
class _Totals:
    """What all communicators add to each rank and to the job."""

    waited: dict[int, int]
    caused: dict[int, int]
    exposed_waiting: dict[int, Counter[str]]  # rank -> label -> time
    total_ns: int = 0
    transfer_ns: int = 0
    matched: int = 0
    left: int = 0  # collectives of all ranks without a counterpart
    communicators: list[Communicator] = field(default_factory=list)


def job_of(stored: Sequence[StoredSummary], *, notes: Sequence[str] = ()) -> JobAnalysis:
    """What the summaries of all ranks of a job show together."""
    stored = sorted(stored, key=lambda item: item.summary.rank)
    _refuse_duplicates(stored)
    summaries = [item.summary for item in stored]
    of_runs = runs([summary.stamp for summary in summaries])
    totals = _matched(stored, [{stamp.rank for stamp in group} for group in of_runs])
    evidence = communication([summary.evidence for summary in summaries])
    first_notes = [note for note in (runs_note(of_runs), evidence.missing_note) if note]
    alone = len(stored) == 1 or not any(summary.lanes for summary in summaries)
    ranks = tuple(_job_rank(summary, totals, alone=alone) for summary in summaries)
    waiting = sum(totals.caused.values())
    late = sorted(((rank, ns / waiting) for rank, ns in totals.caused.items() if ns), key=lambda r: (-r[1], r[0]))
    straggler, share = straggler_of(totals.caused, totals.total_ns)
    return JobAnalysis(
        ranks=ranks,
        origin=" and ".join(sorted({summary.origin for summary in summaries})),
        spans=sum(summary.spans for summary in summaries),
        matched=totals.matched,
        unmatched=totals.left,
        transfer_ns=totals.transfer_ns,
        late_ranks=tuple(late),
        straggler_rank=straggler,
        straggler_share=share,
        communicators=tuple(
            sorted(totals.communicators, key=lambda item: (-item.mean_waiting_ns, item.lowest_rank, item.name))
        ),
        causes=_causes(summaries, totals),
        communication=evidence,
        ledger=job_ledger([rank.ledger for rank in ranks]),
        kernels=_kernels(summaries),
        spreads=_spreads(ranks),
        libraries=tuple(sorted({summary.library for summary in summaries if summary.library})),
        notes=(*notes, *first_notes, *_notes(summaries, totals)),
    )


def _refuse_duplicates(stored: Sequence[StoredSummary]) -> None:
    if not stored:
        raise InputError("there is no rank: give at least one trace, or a file of summaries that is not empty")
    for before, after in pairwise(stored):
        if before.summary.rank == after.summary.rank:
            sources = " and ".join(sorted((before.summary.source, after.summary.source)))
            raise TraceError(f"{sources} both say they are rank {after.summary.rank}: give one recording of each rank")


# --- first pass: communicators -------------------------------------------------------------------


def _matched(stored: Sequence[StoredSummary], of_runs: Sequence[Set[int]]) -> _Totals:
    """Match the collectives of each communicator, within each run only."""
    ranks = [item.summary.rank for item in stored]
    totals = _Totals(
        waited=dict.fromkeys(ranks, 0), caused=dict.fromkeys(ranks, 0), exposed_waiting={r: Counter() for r in ranks}
    )
    if len(stored) < 2:
        return totals
    with tempfile.TemporaryFile() as spool:
        of_rank: dict[int, list[tuple[Member, _Spooled]]] = defaultdict(list)
        lanes = [lane for own in of_runs for lane in _lanes([s for s in stored if s.summary.rank in own]).items()]
        for (group, group_ranks, position), members in lanes:
            if len(members) < 2:
                totals.left += members[0].rows
                continue
            match = match_lane(members)
            name = f"stream {position}" if group is None else _group_name(group, group_ranks)
            _count(name, members, match, totals)
            spooled = _Spooled.of(match, spool)
            for member in members:
                of_rank[member.rank].append((member, spooled))
        for rank, own_lanes in of_rank.items():
            for member, spooled in own_lanes:
                _add_waiting(member, spooled, totals.waited, totals.exposed_waiting[rank])
    return totals


def _lanes(stored: Sequence[StoredSummary]) -> dict[_LaneKey, list[Member]]:
    """The members of each communicator: of a group, or of the streams in the same position.

    A program creates its streams in the same order on every rank. If the ranks differ in their number of streams, all
    collectives without a group are one lane.
    """
    counts = {sum(lane.stream is not None for lane in item.summary.lanes) for item in stored}
    lanes: dict[_LaneKey, list[Member]] = defaultdict(list)
    for item in stored:
        for lane in item.summary.lanes:
            if lane.stream is None:
                lanes[lane.group, lane.group_ranks, 0].append(Member(item, (lane,)))
        streams = sorted((lane for lane in item.summary.lanes if lane.stream is not None), key=_stream_order)
        if len(counts) == 1:
            for position, lane in enumerate(streams):
                lanes[None, (), position].append(Member(item, (lane,)))
        elif streams:
            lanes[None, (), 0].append(Member(item, tuple(streams)))
    return lanes


def _stream_order(lane: Lane) -> tuple[int, str]:
    return len(lane.stream or ""), lane.stream or ""  # 7 before 20


def _group_name(group: str, ranks: tuple[int, ...]) -> str:
    return f"group {group}" if group else f"ranks {ranks[0]} to {ranks[-1]}" if ranks else "group"


def _count(name: str, members: Sequence[Member], match: LaneMatch, totals: _Totals) -> None:
    caused: Counter[int] = Counter()
    for transfer, last, total in zip(match.transfer_ns, match.last, match.total_ns, strict=True):
        caused[last] += total - transfer * len(members)
    for rank, time in caused.items():
        totals.caused[rank] += time
    transfer_ns, waiting = sum(match.transfer_ns), sum(caused.values())
    late, most = min(caused.items(), key=lambda item: (-item[1], item[0]), default=(None, 0))
    totals.total_ns += sum(match.total_ns)
    totals.transfer_ns += transfer_ns
    totals.matched += len(match.transfer_ns)
    totals.left += sum(member.rows - len(match.transfer_ns) for member in members)
    totals.communicators.append(
        Communicator(
            name=name,
            size=len(members),
            lowest_rank=members[0].rank,
            highest_rank=members[-1].rank,
            collectives=len(match.transfer_ns),
            transfer_ns=transfer_ns,
            waiting_ns=waiting,
            late_rank=late if most else None,
            late_share=most / waiting if most else None,
        )
    )


@dataclass(frozen=True, slots=True)
class _Spooled:
    """A communicator's transfer times and rows in a temporary file."""

    file: IO[bytes]
    at: int
    amount: int
    transfer_ns: int  # of all
    rows_at: Mapping[int, int]  # rank -> where its rows are
    kept_at: int | None  # rows of the ranks without their own

    @classmethod
    def of(cls, match: LaneMatch, file: IO[bytes]) -> _Spooled:
        at = file.seek(0, 2)
        file.write(match.transfer_ns.tobytes())
        rows_at = {}
        for rank in match.rows:
            rows_at[rank] = file.tell()
            file.write(array("q", match.rows_of(rank) or ()).tobytes())
        kept_at = None
        if match.kept is not None:
            kept_at = file.tell()
            file.write(match.kept.tobytes())
        return cls(file, at, len(match.transfer_ns), sum(match.transfer_ns), rows_at, kept_at)

    def transfers(self) -> array[int]:
        return self._column(self.at)

    def rows_of(self, rank: int) -> array[int] | None:
        at = self.rows_at.get(rank, self.kept_at)
        return None if at is None else self._column(at)

    def _column(self, at: int) -> array[int]:
        self.file.seek(at)
        column = array("q")
        column.frombytes(self.file.read(self.amount * column.itemsize))
        return column


# --- second pass: ranks --------------------------------------------------------------------------


def _add_waiting(member: Member, spooled: _Spooled, waited: dict[int, int], exposed: Counter[str]) -> None:
    """Add the rank's waiting in one communicator, and the exposed part of it by cause.

    A rank waits from its start until its own end less the transfer; exposed time before that is waiting.
    """
    if not spooled.amount:
        return
    durations = durations_ns(member)
    rows, transfers = spooled.rows_of(member.rank), spooled.transfers()
    whole, labels = _whole(member), member.stored.summary.labels
    if rows is None:
        waited[member.rank] += sum(durations) - spooled.transfer_ns
    else:
        waited[member.rank] += sum([durations[row] for row in rows]) - spooled.transfer_ns
        whole = bytes([whole[row] for row in rows])
    for label in set(whole) - {0}:
        if whole.count(label) == len(whole) and rows is None:
            time = sum(durations) - spooled.transfer_ns
        else:
            chosen = whole.translate(bytes(int(code == label) for code in range(256)))
            own = durations if rows is None else [durations[row] for row in rows]
            time = sum(compress(own, chosen)) - sum(compress(transfers, chosen))
        exposed[labels[label - 1]] += time
    piece_rows, offsets, times, codes = _pieces(member)
    if rows is not None:
        transfer_of = dict(zip(rows, transfers, strict=True))
        transfers = array("q", [transfer_of.get(row, durations[row]) for row in range(len(durations))])  # no waiting
    waiting = list(map(sub, durations, transfers))
    by_label = [0] * len(labels)
    for code, left, time in zip(codes, map(sub, map(waiting.__getitem__, piece_rows), offsets), times, strict=True):
        if left > 0:
            by_label[code] += left if left < time else time
    for name, time in zip(labels, by_label, strict=True):
        exposed[name] += time


def _whole(member: Member) -> bytes:
    order = order_of(member)
    columns = b"".join(member.stored.whole(lane) for lane in member.lanes)
    return columns if order is None else bytes([columns[row] for row in order])


def _pieces(member: Member) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]:
    """Rows, offsets, times and labels of the exposed times that are not a whole collective."""
    if len(member.lanes) == 1:
        return member.stored.pieces(member.lanes[0])
    place = {row: at for at, row in enumerate(order_of(member) or ())}
    columns: tuple[list[int], ...] = ([], [], [], [])
    before = 0
    for lane in member.lanes:
        rows, *others = member.stored.pieces(lane)
        columns[0].extend(place[row + before] for row in rows)
        for column, more in zip(columns[1:], others, strict=True):
            column.extend(more)
        before += lane.rows
    return columns[0], columns[1], columns[2], columns[3]


def _job_rank(summary: RankSummary, totals: _Totals, *, alone: bool) -> JobRank:
    exposed = totals.exposed_waiting[summary.rank]
    lines: Counter[LineKind] = Counter(summary.ledger)
    line_of = dict(zip(summary.labels, summary.lines, strict=True))
    for label, time in exposed.items():
        lines[line_of[label]] -= time
        lines["waiting"] += time
    return JobRank(
        rank=summary.rank,
        source=summary.source,
        device=summary.device,
        figures=summary.figures,
        waiting_ns=None if alone else totals.waited[summary.rank],
        exposed_waiting_ns=sum(exposed.values()),
        caused_ns=totals.caused[summary.rank],
        ledger=ledger_of(LedgerLine(kind=kind, ns=ns) for kind, ns in lines.items()),
    )


# --- the job -------------------------------------------------------------------------------------


def _causes(summaries: Sequence[RankSummary], totals: _Totals) -> tuple[JobCause, ...]:
    """The time of each kind of cause: exposed waiting is a straggler's, whatever else held the collective."""
    times: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    delays: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for summary in summaries:
        for cause in summary.causes:
            times[cause.kind, cause.of][summary.rank] += cause.time_ns
            delays[cause.kind, cause.of][summary.rank] += cause.delay_ns
        waiting = totals.exposed_waiting[summary.rank]
        for label, time in summary.exposed.items():
            times[label, "exposed"][summary.rank] += time - waiting[label]
        times["straggler", "exposed"][summary.rank] += sum(waiting.values())
    causes = []
    for (kind, of), by_rank in times.items():
        time, late = sum(by_rank.values()), delays[kind, of]
        if not time and not late.total():
            continue
        rank, most = min(by_rank.items(), key=lambda item: (-item[1], -late[item[0]], item[0]))
        causes.append(
            JobCause(
                kind=kind,
                of=of,
                time_ns=time,
                delay_ns=late.total() if of == "late" else None,
                ranks=sum(1 for own in by_rank if by_rank[own] or late[own]),
                worst_rank=rank,
                worst_ns=most,
            )
        )
    return tuple(sorted(causes, key=lambda cause: (-cause.time_ns, cause.kind, cause.of)))


def _kernels(summaries: Sequence[RankSummary]) -> tuple[KernelClass, ...]:
    times: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for summary in summaries:
        for item in summary.kernels:
            times[item.name, item.kind] += item.time_ns
            counts[item.name, item.kind] += item.count
    ordered = sorted(times, key=lambda key: (-times[key], key))[:MOST_KERNELS]
    return tuple(KernelClass(name=key[0], kind=key[1], count=counts[key], time_ns=times[key]) for key in ordered)


def _spreads(ranks: Sequence[JobRank]) -> tuple[Spread, ...]:
    return (
        spread_of("exposed", ranks, lambda rank: rank.figures.exposed_ns),
        spread_of("waiting", ranks, lambda rank: rank.waiting_ns or 0),
        spread_of("caused waiting", ranks, lambda rank: rank.caused_ns),
        spread_of("compute", ranks, lambda rank: rank.figures.compute_ns),
        spread_of("idle", ranks, lambda rank: rank.figures.idle_ns),
        spread_of("span", ranks, lambda rank: rank.figures.span_ns),
    )


def _notes(summaries: Sequence[RankSummary], totals: _Totals) -> tuple[str, ...]:
    """Notes of ranks that differ only in numbers are one note."""
    similar: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for summary in summaries:
        for note in summary.notes:
            similar[_DIGITS.sub("#", note)].append((summary.rank, note))
    notes = []
    for (rank, note), *others in list(similar.values())[:MOST_NOTES]:
        who = f"rank {rank}" if not others else f"rank {rank} and {len(others):,} more"
        notes.append(f"{who}: {note}")
    world = max((summary.stamp.world or 0 for summary in summaries), default=0)
    if world > len(summaries):
        notes.append(
            f"the job has {world:,} ranks and {len(summaries):,} are given: waiting for the others counts as transfer"
        )
    if len(summaries) == 1 and summaries[0].lanes:
        notes.append("one rank alone does not separate transfer from waiting: give the traces of all ranks")
    elif totals.left:
        notes.append(f"{totals.left:,} collectives without a counterpart on the other ranks are left out")
    return tuple(notes)
