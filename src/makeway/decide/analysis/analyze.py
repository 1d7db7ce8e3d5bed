"""`analyze`: why communication is exposed in a recorded run, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from makeway.decide.analysis.advice import advice
from makeway.decide.analysis.causes import cause_groups, with_costs, with_waiting
from makeway.decide.analysis.evidence import NO_COMMUNICATION, Communication, communication
from makeway.decide.analysis.findings import (
    NO_MATCHING,
    NO_SLOWDOWNS,
    Advice,
    Cause,
    CauseGroup,
    Matching,
    RankFindings,
    Slowdowns,
)
from makeway.decide.analysis.ledger import EMPTY_LEDGER, Ledger, job_ledger
from makeway.decide.analysis.ledger_entries import by_rank, rank_ledger
from makeway.decide.analysis.matching import match_collectives
from makeway.decide.analysis.rank import RankRecord, rank_records
from makeway.decide.analysis.recorded import RecordedStep, with_arrivals
from makeway.decide.analysis.runs import RunStamp, runs, runs_note
from makeway.decide.analysis.streams import milliseconds
from makeway.decide.analysis.threshold import Gate
from makeway.decide.analysis.what_if import (
    KERNELS_PER_OPERATION,
    LEAST_OPERATIONS,
    WhatIf,
    by_relevance,
    standard_controls,
    what_if,
    with_gains,
)
from makeway.decide.analysis.wording import Wording, wording_for
from makeway.read.traces.classify import load_comm_names
from makeway.read.traces.places import size_bytes
from makeway.read.traces.ranks import map_traces
from makeway.read.traces.read import find_traces
from makeway.values.device import Device
from makeway.values.errors import MakewayError, TraceError
from makeway.values.timeline import Timeline

MOST_SINGLE_CAUSES = 200  # shown one by one; groups hold them all
Progress = Callable[[float, Path], None]  # the share of all bytes read, and the file just read from


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What the timelines of all ranks show together."""

    ranks: tuple[RankFindings, ...]
    communication: Communication = NO_COMMUNICATION  # by which rules, and what no rule claims
    ledger: Ledger = EMPTY_LEDGER  # of all ranks, added up
    matching: Matching = NO_MATCHING
    slowdowns: Slowdowns = NO_SLOWDOWNS  # of all ranks, the costliest first
    causes: tuple[Cause, ...] = ()
    groups: tuple[CauseGroup, ...] = ()  # of similar causes, the most time first
    longest: tuple[Cause, ...] = ()  # single causes with a place in time
    advice: tuple[Advice, ...] = ()
    step: RecordedStep | None = None  # of the rank with most exposed communication
    no_step: str | None = None  # why there is none
    devices: tuple[str, ...] = ()  # GPUs of the ranks whose limits are known
    what_if: WhatIf | None = None  # that step under controls
    no_what_if: str | None = None  # why there is none
    gate: Gate | None = None
    notes: tuple[str, ...] = ()
    timelines: tuple[Timeline, ...] = ()  # empty unless spans are kept

    @property
    def worst(self) -> RankFindings:
        """The rank with most exposed communication."""
        return max(self.ranks, key=lambda rank: (rank.figures.exposed_ns, -rank.rank))

    @property
    def wording(self) -> Wording:
        """How to speak of the hardware that the ranks ran on."""
        return wording_for(rank.device for rank in self.ranks)

    @property
    def which_times(self) -> str:
        """Which time is which: the wall time that the ledger divides, the GPU's busy time, and what is replayed."""
        worst = self.worst
        whole_ns = worst.ledger.total_ns or worst.figures.span_ns
        steps, wording = len(worst.steps), wording_for([worst.device])
        marked = f"{steps} marked step{'s' if steps > 1 else ''}" if worst.step_ns is not None and steps else ""
        what = f"Rank {worst.rank}" if len(self.ranks) > 1 else "The recording"
        sentence = (
            f"{what} takes {milliseconds(whole_ns)} of wall time ({marked or f'first {wording.kernel} to last'}); "
            f"its {wording.busy} busy for {milliseconds(whole_ns - worst.ledger.idle_ns)}"
        )
        if self.step is not None:
            where = "" if self.step.rank == worst.rank else f" on rank {self.step.rank}"
            sentence += f"; what-if and `makeway plan` replay {milliseconds(self.step.recorded_ns)} of it{where}"
        return f"{sentence}."

    @property
    def origin(self) -> str:
        return " and ".join(sorted({rank.origin for rank in self.ranks}))

    @property
    def spans(self) -> int:
        return sum(rank.spans for rank in self.ranks)

    @property
    def kineto_wrong(self) -> tuple[int | None, int]:
        """Kernels whose recorded occupancy is wrong (None: none is recorded), of all kernels with resources."""
        known = [rank.occupancy for rank in self.ranks if rank.occupancy is not None]
        wrong = [item.kineto_wrong for item in known if item.kineto_wrong is not None]
        return sum(wrong) if wrong else None, sum(item.kernels for item in known)


def analyze(
    paths: Iterable[Path | str],
    *,
    device: Device | None = None,
    step: int | None = None,
    comm_names: Path | str | None = None,
    hta_compatible: bool = False,
    what_if: bool = True,
    jobs: int | None = None,
    keep_spans: bool = False,
    progress: Progress | None = None,
) -> Analysis:
    """Analyse the traces of a run: files, or directories with one file per rank.

    `device` replaces what the traces name. `step` picks one profiler step. `comm_names` names communication kernels of
    your own: a TOML file of patterns, or one regular expression. `hta_compatible` computes figures by
    HolisticTraceAnalysis' rules. `what_if` simulates controls on the recorded step. `keep_spans` keeps the timelines,
    which pages and Perfetto files need.
    """
    traces = find_traces([Path(path) for path in paths])
    read = map_traces(
        traces.files,
        partial(_read, device=device, step=step, hta_compatible=hta_compatible, keep_spans=keep_spans),
        comm=load_comm_names(comm_names),
        jobs=jobs,
        progress=progress and _share_of_all(traces.files, progress),
    )
    return _combined(
        [record for records, _ in read for record in records],
        [timeline for _, timeline in read if timeline is not None],
        simulated=what_if,
        notes=traces.notes,
    )


def analysis_of(
    timelines: Sequence[Timeline],
    *,
    device: Device | None = None,
    step: int | None = None,
    hta_compatible: bool = False,
    what_if: bool = True,
) -> Analysis:
    """Analyse timelines in memory; options as in `analyze`."""
    records = [
        record
        for timeline in timelines
        for record in rank_records(timeline, device=device, step=step, hta_compatible=hta_compatible)
    ]
    return _combined(records, timelines, simulated=what_if)


def _read(
    timeline: Timeline, *, device: Device | None, step: int | None, hta_compatible: bool, keep_spans: bool
) -> tuple[list[RankRecord], Timeline | None]:
    """What a worker sends back: records always, spans only on request."""
    records = rank_records(timeline, device=device, step=step, hta_compatible=hta_compatible)
    return records, timeline if keep_spans else None


def _share_of_all(files: Sequence[Path], progress: Progress) -> Callable[[Path, int], None]:
    total = sum(size_bytes(path) for path in files) or 1
    seen = dict.fromkeys(files, 0)

    def report(path: Path, read_bytes: int) -> None:
        seen[path] = read_bytes
        progress(sum(seen.values()) / total, path)

    return report


# --- all ranks together ------------------------------------------------------------------------


def _combined(
    records: list[RankRecord], timelines: Sequence[Timeline], *, simulated: bool, notes: tuple[str, ...] = ()
) -> Analysis:
    records = sorted(records, key=lambda record: record.findings.rank)
    groups_of_ranks = runs([record.stamp for record in records])
    _refuse_duplicates(records, groups_of_ranks)
    matching = match_collectives(
        {record.findings.rank: record.comm for record in records},
        runs=[{stamp.rank for stamp in group} for group in groups_of_ranks],
    )
    evidence = communication([record.evidence for record in records])
    first_notes = [note for note in (runs_note(groups_of_ranks), evidence.missing_note) if note]
    causes = with_costs(with_waiting([cause for record in records for cause in record.causes], matching))
    ranks = _with_ledgers(records, matching, causes)
    groups = cause_groups(causes)
    items = advice(ranks, causes, matching)
    step, no_step = _exposed_step(records, matching)
    kernels = sum(record.findings.spans for record in records)
    answers, no_answers = _answers(step, no_step, items, kernels) if simulated else (None, "not requested")
    items = with_gains(items, answers, no_answers=no_answers, ranks=ranks)
    placed = (cause for cause in causes if cause.of != "slowed")
    return Analysis(
        ranks=ranks,
        communication=evidence,
        ledger=job_ledger([rank.ledger for rank in ranks]),
        matching=matching,
        slowdowns=_all_slowdowns([record.findings.slowdowns for record in records]),
        causes=causes,
        groups=groups,
        longest=tuple(sorted(placed, key=lambda cause: -cause.time_ns)[:MOST_SINGLE_CAUSES]),
        advice=items,
        step=step,
        no_step=no_step,
        devices=tuple(sorted({record.device.name for record in records if record.device})),
        what_if=answers,
        no_what_if=no_answers,
        notes=(*notes, *first_notes, *_notes(records, matching)),
        timelines=tuple(timelines),
    )


def _with_ledgers(
    records: Sequence[RankRecord], matching: Matching, causes: Sequence[Cause]
) -> tuple[RankFindings, ...]:
    """The ranks with the waiting that only all of them together show."""
    waiting, own = dict(matching.waiting_ns), by_rank(causes)
    ledgers = [rank_ledger(record.ledger, own.get(record.findings.rank, ())) for record in records]
    return tuple(
        replace(
            record.findings,
            ledger=ledger,
            waiting_ns=waiting.get(record.findings.rank),
            exposed_waiting_ns=ledger.ns("waiting"),
        )
        for record, ledger in zip(records, ledgers, strict=True)
    )


def _all_slowdowns(ranks: Sequence[Slowdowns]) -> Slowdowns:
    return Slowdowns(
        groups=tuple(sorted((group for rank in ranks for group in rank.groups), key=lambda group: -group.cost_ns)),
        refused=tuple(sorted((item for rank in ranks for item in rank.refused), key=lambda item: -item.ratio)),
        covered_ns=sum(rank.covered_ns for rank in ranks),
        overlapped_ns=sum(rank.overlapped_ns for rank in ranks),
    )


def _exposed_step(records: Sequence[RankRecord], matching: Matching) -> tuple[RecordedStep | None, str | None]:
    """The step of the rank with most exposed communication, or why no rank has one."""
    usable = [(record.findings.figures.exposed_ns, record.step) for record in records if record.step is not None]
    if not usable:
        return None, next((record.no_step for record in records if record.no_step), "no rank has a step")
    _, step = max(usable, key=lambda item: item[0])
    try:
        return with_arrivals(step, matching), None
    except MakewayError as error:
        return None, str(error)


def _answers(
    step: RecordedStep | None, no_step: str | None, items: Sequence[Advice], kernels: int
) -> tuple[WhatIf | None, str | None]:
    """The step under controls, or why not; a step that cannot be simulated costs no figures."""
    if step is None:
        return None, no_step
    try:
        controls = by_relevance(standard_controls(step), items)
        most = max(LEAST_OPERATIONS, kernels // KERNELS_PER_OPERATION)
        return what_if(step, controls, most_operations=most), None
    except MakewayError as error:
        return None, str(error).partition("\n")[0]


def _refuse_duplicates(records: Sequence[RankRecord], groups: Sequence[Sequence[RunStamp]]) -> None:
    seen: dict[int, str] = {}
    for record in records:
        rank, source = record.findings.rank, record.findings.source
        if rank in seen:
            several = f"; they are of {len(groups)} different runs" if len(groups) > 1 else ""
            raise TraceError(
                f"{seen[rank]} and {source} both say they are rank {rank}{several}: give one recording of each rank, "
                "or analyse each file by itself"
            )
        seen[rank] = source


def _notes(records: Sequence[RankRecord], matching: Matching) -> tuple[str, ...]:
    notes = [f"rank {record.findings.rank}: {note}" for record in records for note in record.findings.notes]
    if len(records) == 1 and records[0].comm:
        notes.append("one rank alone does not separate transfer from waiting: give the traces of all ranks")
    if any(count for _, count in matching.unmatched):
        missing = ", ".join(f"rank {rank}: {count}" for rank, count in matching.unmatched if count)
        notes.append(f"collectives without a counterpart on the other ranks ({missing}) are left out of the matching")
    return tuple(notes)
