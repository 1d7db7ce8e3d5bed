"""Everything one rank's timeline shows by itself; small enough to send from the process that read the trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from makeway.decide.analysis.causes import rank_causes, slowed_causes, with_costs
from makeway.decide.analysis.evidence import RankEvidence, rank_evidence
from makeway.decide.analysis.figures import figures, spans_of_step, step_figures, step_window
from makeway.decide.analysis.findings import Cause, RankFindings, Slowdowns
from makeway.decide.analysis.hta import hta_figures
from makeway.decide.analysis.ledger_entries import LocalLedger, local_ledger, rank_ledger
from makeway.decide.analysis.occupancy import occupancy
from makeway.decide.analysis.recorded import RecordedStep, recorded_step
from makeway.decide.analysis.runs import RunStamp
from makeway.decide.analysis.slowdown import slowdowns
from makeway.read.traces.cpu_ranks import CPU_HOST
from makeway.values.device import Device, named_device
from makeway.values.errors import MakewayError, TraceError, UnknownNameError
from makeway.values.recorded_device import RecordedLimits, device_from_recording, with_recorded_sms
from makeway.values.timeline import HostCall, Rank, Span, Step, Timeline, Wait

MOST_RANKS = 4_096  # of one recording: a node has a few GPUs
_T = TypeVar("_T", Span, Step, Wait, HostCall)


# `analyze` simulates GPUs; for CPU ranks `plan` predicts from a calibration of the host, and `run --tune` measures.
NOT_SIMULATED = "on CPU ranks `makeway plan` predicts gains, and `makeway run --tune` measures them"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """One rank's findings, its collectives for matching with other ranks, and its step as a workload."""

    findings: RankFindings
    comm: tuple[Span, ...]
    causes: tuple[Cause, ...]
    ledger: LocalLedger  # its own part of the ledger; other ranks' arrivals split the exposed time
    step: RecordedStep | None
    no_step: str | None  # why the recording does not make a workload
    device: Device | None  # None: its limits are not known
    evidence: RankEvidence  # why its communication counts as such
    stamp: RunStamp  # which run it belongs to


def rank_records(
    timeline: Timeline, *, device: Device | None = None, step: int | None = None, hta_compatible: bool = False
) -> list[RankRecord]:
    """What each rank of a timeline shows; see `analyze` for the options."""
    if len(timeline.ranks) > MOST_RANKS:
        raise TraceError(f"one recording holds {len(timeline.ranks):,} ranks; the most is {MOST_RANKS:,}")
    return [_rank_record(own, info, device, step, hta=hta_compatible) for info, own in each_rank(timeline)]


def each_rank(timeline: Timeline) -> Iterator[tuple[Rank, Timeline]]:
    """Each rank with what is recorded of it."""
    spans, steps, waits = _by_rank(timeline.spans), _by_rank(timeline.steps), _by_rank(timeline.waits or ())
    host = _by_rank(timeline.host)
    for info in timeline.ranks:
        yield (
            info,
            replace(
                timeline,
                ranks=(info,),
                spans=tuple(spans[info.rank]),
                steps=tuple(steps[info.rank]),
                waits=None if timeline.waits is None else tuple(waits[info.rank]),
                host=tuple(host[info.rank]),
            ),
        )


def _by_rank(items: Iterable[_T]) -> Mapping[int, Sequence[_T]]:
    by_rank: dict[int, list[_T]] = defaultdict(list)
    for item in items:
        by_rank[item.rank].append(item)
    return by_rank


def _rank_record(timeline: Timeline, info: Rank, given: Device | None, step: int | None, *, hta: bool) -> RankRecord:
    device, missing = (given, None) if given is not None else _recorded_device(info.device, info.limits)
    spans: Sequence[Span] = (
        timeline.of("compute", "comm", "copy", "memory", rank=info.rank)
        if step is None
        else spans_of_step(timeline, info.rank, step)
    )
    own = replace(timeline, spans=tuple(spans))
    by_hta = hta_figures(timeline, info.rank) if hta else None
    unlike_hta = "HolisticTraceAnalysis counts nothing here by its own rules; the figures are makeway's"
    slow = slowdowns(spans, info.rank, step_starts_ns=[item.start_ns for item in timeline.steps])
    causes = (*rank_causes(own, info.rank, device), *slowed_causes(slow, info.rank))
    whole = figures(spans)
    window = step_window(timeline, info.rank, spans, step)
    local = local_ledger(spans, whole, window=window, host=timeline.host)
    ledger = rank_ledger(local, with_costs(causes))
    workload, no_step = _workload(own, info.rank, causes, slow, step, device)
    return RankRecord(
        findings=RankFindings(
            rank=info.rank,
            device=device.name if device else info.device,
            source=info.source,
            origin=timeline.origin,
            library=info.library,
            spans=sum(span.rank == info.rank for span in timeline.spans),
            figures=by_hta or whole,
            ledger=ledger,
            step_ns=ledger.total_ns if window or by_hta else None,
            steps=step_figures(timeline, info.rank),
            occupancy=occupancy(spans, device, kineto=info.occupancy_recorded) if device else None,
            slowdowns=slow,
            notes=(
                *info.notes,
                *((missing,) if missing else ()),
                *((unlike_hta,) if hta and by_hta is None else ()),
            ),
        ),
        comm=tuple(span for span in spans if span.kind in ("comm", "copy")),
        causes=causes,
        ledger=local,
        step=workload,
        no_step=no_step,
        device=device,
        evidence=rank_evidence(spans, world=info.world),
        stamp=_stamp(timeline, info),
    )


def _stamp(timeline: Timeline, info: Rank) -> RunStamp:
    own = [span for span in timeline.spans if span.rank == info.rank]
    return RunStamp(
        rank=info.rank,
        source=info.source,
        start_ns=min((span.start_ns for span in own), default=None),
        end_ns=max((span.end_ns for span in own), default=None),
        world=info.world,
    )


@lru_cache(maxsize=256)
def _recorded_device(name: str | None, limits: RecordedLimits | None) -> tuple[Device | None, str | None]:
    """The device that the trace names or describes, and what to say about it; figures do not need it."""
    if name is None:
        return None, "the trace does not name its GPU: pass --device to learn about room, occupancy and controls"
    try:
        device = named_device(name)
    except UnknownNameError:
        if limits is not None and (built := device_from_recording(name, limits)) is not None:
            return built, built.notes[0]
        return None, (
            f"no limits known for GPU {name!r}: pass --device (see `makeway devices`) to learn about room, "
            "occupancy and controls"
        )
    if name == CPU_HOST:  # threads share cores: there is no room on an SM to judge, and nothing to say about it
        return None, None
    if not device.limits:
        return None, f"{device.name} has no SM limits: room and occupancy are not judged"
    counted = device if limits is None else with_recorded_sms(device, limits)
    return counted, None if counted is device else counted.notes[0]


def _workload(
    timeline: Timeline,
    rank: int,
    causes: tuple[Cause, ...],
    slow: Slowdowns,
    step: int | None,
    device: Device | None,
) -> tuple[RecordedStep | None, str | None]:
    """One step as a workload: the chosen one, else the middle one, else the whole recording."""
    if device is None:
        return None, NOT_SIMULATED if timeline.device == CPU_HOST else "the limits of its GPU are not known"
    numbers = [item.number for item in timeline.steps if item.rank == rank]
    if step is None and len(numbers) > 1:
        middle = spans_of_step(timeline, rank, numbers[(len(numbers) - 1) // 2])
        if any(span.kind == "comm" for span in middle):
            timeline = replace(timeline, spans=middle)
    alone = {(group.kernel, group.blocks): group.alone_ns for group in slow.groups if group.blocks is not None}
    try:
        return recorded_step(timeline, rank, device=device, causes=causes, alone_ns=alone), None
    except MakewayError as error:  # figures do not need it
        return None, str(error)
