"""All that one rank's timeline says by itself; small enough to travel from the process that read the trace."""

from __future__ import annotations

from dataclasses import dataclass, replace

from makeway.decide.analysis.advice import advice
from makeway.decide.analysis.causes import cause_groups, rank_causes, slowed_causes, with_waiting
from makeway.decide.analysis.figures import figures, spans_of_step, step_figures
from makeway.decide.analysis.findings import Cause, Figures, Findings, Matching, RankFindings, Slowdowns
from makeway.decide.analysis.hta import hta_figures
from makeway.decide.analysis.matching import match_collectives
from makeway.decide.analysis.occupancy import occupancy
from makeway.decide.analysis.recorded import RecordedStep, recorded_step, with_arrivals
from makeway.decide.analysis.slowdown import slowdowns
from makeway.values.device import Device, load_device
from makeway.values.errors import TraceError, UnknownNameError, UnsupportedError
from makeway.values.timeline import Rank, Span, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """One rank's findings, its collectives for matching with other ranks, and its step as a workload."""

    findings: RankFindings
    comm: tuple[Span, ...]
    causes: tuple[Cause, ...]
    step: RecordedStep | None
    no_step: str | None  # why the record does not make a workload
    device: Device | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a trace."""

    device: Device | None = None  # in place of what the trace names
    step: int | None = None  # one profiler step; None: all that was recorded
    hta_compatible: bool = False  # figures by HolisticTraceAnalysis' rules


def rank_records(timeline: Timeline, question: Question | None = None) -> list[RankRecord]:
    """What each rank of a timeline says."""
    return [_rank_record(timeline, rank, question or Question()) for rank in timeline.ranks]


def _rank_record(timeline: Timeline, info: Rank, question: Question) -> RankRecord:
    notes = list(info.notes)
    step, device = question.step, question.device
    chosen, whose = _device(info, device)
    if whose:
        notes.append(whose)
    spans = timeline.of("compute", "comm", "copy", "memory", rank=info.rank)
    if step is not None:
        spans = _of_step(timeline, info, step)
    alone = replace(timeline, spans=tuple(spans))
    slow = slowdowns(spans, info.rank)
    causes = (*rank_causes(alone, info.rank, chosen), *slowed_causes(slow, info.rank))
    workload, why_not = _workload(alone, info.rank, causes, slow, step, chosen)
    return RankRecord(
        findings=RankFindings(
            rank=info.rank,
            device=chosen.name if chosen else info.device,
            source=info.source,
            figures=_figures(timeline, info.rank, spans, question, notes),
            steps=step_figures(timeline, info.rank),
            occupancy=occupancy(spans, chosen) if chosen else None,
            slowdowns=slow,
            notes=tuple(notes),
        ),
        comm=tuple(span for span in spans if span.kind in ("comm", "copy")),
        causes=causes,
        step=workload,
        no_step=why_not,
        device=chosen,
    )


def _device(info: Rank, given: Device | None) -> tuple[Device | None, str | None]:
    """The device of a rank, and what to say when there is none: figures need none, room does."""
    if given is not None:
        return given, None
    if info.device is None:
        return None, "the trace does not name its GPU: pass --device to learn about room, occupancy and controls"
    try:
        device = load_device(info.device)
    except UnknownNameError:
        return None, (
            f"no limits known for GPU {info.device!r}: pass --device (see `makeway devices`) to learn about room, "
            "occupancy and controls"
        )
    if not device.limits:
        return None, f"{device.name} has no SM limits: room and occupancy are not judged"
    return device, None


def _figures(timeline: Timeline, rank: int, spans: list[Span], question: Question, notes: list[str]) -> Figures:
    if not question.hta_compatible:
        return figures(spans)
    theirs = hta_figures(timeline, rank)
    if theirs is None:
        notes.append("HolisticTraceAnalysis finds nothing here by its own rules; the figures are ours")
    return theirs or figures(spans)


def _of_step(timeline: Timeline, info: Rank, step: int) -> list[Span]:
    known = [item.number for item in timeline.steps if item.rank == info.rank]
    if step not in known:
        has = f"steps {', '.join(map(str, known))}" if known else "no profiler steps"
        raise TraceError(f"{info.source or 'the trace'} has {has}; asked for step {step}")
    return list(spans_of_step(timeline, info.rank, step))


def _workload(
    timeline: Timeline,
    rank: int,
    causes: tuple[Cause, ...],
    slow: Slowdowns,
    step: int | None,
    device: Device | None,
) -> tuple[RecordedStep | None, str | None]:
    """One step as a workload: the one asked for, else the middle one of those recorded, else the whole record."""
    if device is None:
        return None, "which GPU this was is not known"
    numbers = [item.number for item in timeline.steps if item.rank == rank]
    if step is None and len(numbers) > 1:
        middle = list(spans_of_step(timeline, rank, numbers[(len(numbers) - 1) // 2]))
        if any(span.kind == "comm" for span in middle):
            timeline = replace(timeline, spans=tuple(middle))
    alone = {(group.kernel, group.blocks): group.alone_ns for group in slow.groups if group.blocks is not None}
    try:
        return recorded_step(timeline, rank, device=device, causes=causes, alone_ns=alone), None
    except UnsupportedError as error:
        return None, str(error)


def findings(records: list[RankRecord]) -> Findings:
    """What all ranks say together: who waited for whom, why, and what to change."""
    records = sorted(records, key=lambda record: record.findings.rank)
    refuse_duplicates(records)
    matching = match_collectives({record.findings.rank: record.comm for record in records})
    causes = with_waiting([cause for record in records for cause in record.causes], matching)
    span_ns = max((record.findings.figures.span_ns for record in records), default=0)
    return Findings(
        ranks=tuple(record.findings for record in records),
        matching=matching,
        causes=causes,
        advice=advice(cause_groups(causes), matching, span_ns=span_ns),
        notes=_notes(records, matching),
    )


def most_exposed(records: list[RankRecord]) -> RankRecord | None:
    """The rank with most exposed communication among those whose step makes a workload."""
    usable = [record for record in records if record.step is not None and record.device is not None]
    return max(usable, key=lambda record: record.findings.figures.exposed_ns, default=None)


def exposed_step(records: list[RankRecord], result: Findings) -> tuple[RecordedStep, Device] | str:
    """The step of the rank with most exposed communication and its GPU, or why there is none to simulate."""
    chosen = most_exposed(records)
    if chosen is None or chosen.step is None or chosen.device is None:
        return next((record.no_step for record in records if record.no_step), "no step to simulate")
    return with_arrivals(chosen.step, result.matching), chosen.device


def refuse_duplicates(records: list[RankRecord]) -> None:
    """Nothing, or an error that names two files of the same rank."""
    seen: dict[int, str] = {}
    for record in records:
        rank, source = record.findings.rank, record.findings.source
        if rank in seen:
            raise TraceError(
                f"{seen[rank]} and {source} both say they are rank {rank}: give one recording of each rank, "
                "or analyse them one by one"
            )
        seen[rank] = source


def _notes(records: list[RankRecord], matching: Matching) -> tuple[str, ...]:
    notes = [f"rank {record.findings.rank}: {note}" for record in records for note in record.findings.notes]
    if len(records) == 1 and records[0].comm:
        notes.append("one rank alone cannot tell transfer from waiting: give the traces of all ranks")
    if any(count for _, count in matching.unmatched):
        missing = ", ".join(f"rank {rank}: {count}" for rank, count in matching.unmatched if count)
        notes.append(f"collectives without a counterpart on the other ranks ({missing}) are left out of the matching")
    return tuple(notes)
