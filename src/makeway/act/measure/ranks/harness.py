"""Rounds on this rank: every setting in turn, verified every time; planning among candidates; the record of it all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from makeway.act.backend import Receipt
from makeway.act.cpu.controls import CpuBackend
from makeway.act.cpu.direct import DirectGroup
from makeway.act.measure.job import Job
from makeway.act.measure.outcome import BASELINES, PLANNED
from makeway.act.measure.ranks.catalogue import rank_workload
from makeway.act.measure.ranks.exchange import Carrier, DirectCarrier, GlooCarrier, RawSpan, Recorder
from makeway.act.measure.ranks.lanes import Way
from makeway.act.measure.ranks.rounds import Found, Report, forget, measured_choice, setting_record, span_records
from makeway.act.measure.ranks.workload import RankWorkload
from makeway.act.measure.ranks.world import World
from makeway.act.measure.record import Record
from makeway.act.measure.variants import Setting, rotated
from makeway.values.control import Chunks, Control, CopyEngine, LaunchOrder
from makeway.values.errors import UnsupportedError
from makeway.values.timeline import Span, Timeline, overlap_rate


@dataclass(frozen=True, slots=True)
class _Turn:
    """One round of one setting on one rank."""

    start_ns: int
    end_ns: int
    wrong: str | None
    rate: float | None


@dataclass(slots=True)
class Harness:
    """Runs settings of one workload on this rank."""

    world: World
    workload: RankWorkload
    backend: CpuBackend
    direct: DirectCarrier | None
    in_flight: int
    no_direct: str | None = None  # why there are no direct collectives, where they were wanted
    one_clock: bool = True  # for all ranks: they share a host
    epoch_ns: int = 0  # of this rank's spans: with several clocks, a moment that all ranks were at
    found: dict[str, Found] = field(default_factory=dict)
    turn: int = 0

    def rounds(self, settings: Sequence[Setting], count: int, told: Callable[[int], None] = lambda done: None) -> None:
        """So many rounds of all settings, in an order that rotates; what they gave is added to `found`."""
        for done in range(count):
            told(done)
            mine = {setting.name: self._measured(setting) for setting in rotated(settings, self.turn)}
            self.turn += 1
            ranks = self.world.gathered(mine)
            for name in mine if ranks is not None else ():
                turns = [rank[name] for rank in ranks or ()]
                self.found[name].add(
                    _round_ns(turns, one_clock=self.one_clock),
                    [turn.rate for turn in turns],
                    [turn.wrong for turn in turns],
                )

    def refusal(self, setting: Setting) -> str | None:
        """Why a setting cannot be run here, the same on every rank."""
        reasons = [self._why_not(control) for control in setting.controls]
        mine = next((reason for reason in reasons if reason), None)
        return next((reason for reason in self.world.everywhere(mine) if reason), None)

    def _why_not(self, control: Control) -> str | None:
        if isinstance(control, CopyEngine) and self.no_direct is not None:
            return self.no_direct
        ours = isinstance(control, Chunks | LaunchOrder)  # the order of calls is the workload's own
        return self.workload.refusal(control) or (None if ours else self.backend.refusal(control))

    def _measured(self, setting: Setting) -> _Turn:
        found = self.found.setdefault(setting.name, Found())
        recorder = Recorder()
        with self._in_force(setting) as (receipts, carrier):
            way = Way(
                mode=setting.mode,
                carrier=carrier,
                recorder=recorder,
                pieces=next((one.pieces for one in setting.controls if isinstance(one, Chunks)), 1),
                threads=torch.get_num_threads(),
                in_flight=self.in_flight,
            )
            self.workload.prepare(way)
            recorder.spans.clear()
            self.world.barrier()
            start = time.perf_counter_ns()
            self.workload.run(way)
            end = time.perf_counter_ns()
            recorder.settle()
            wrong = self.workload.wrong(way)
        found.receipts, found.spans = receipts, recorder.spans
        return _Turn(start, end, wrong, _rate(recorder.spans))

    @contextmanager
    def _in_force(self, setting: Setting) -> Iterator[tuple[tuple[Receipt, ...], Carrier]]:
        """The setting's threads and controls, undone at the end."""
        before = torch.get_num_threads()
        copies = any(isinstance(control, CopyEngine) for control in setting.controls)
        carrier = self.direct if copies and self.direct is not None else GlooCarrier()
        torch.set_num_threads(setting.threads)
        try:
            with ExitStack() as stack:
                theirs = [one for one in setting.controls if not isinstance(one, Chunks | LaunchOrder)]
                receipts = stack.enter_context(self.backend.applied(theirs)) if theirs else ()
                yield (*receipts, *_own_receipts(setting.controls)), carrier
        finally:
            torch.set_num_threads(before)


def _round_ns(turns: Sequence[_Turn], *, one_clock: bool) -> int:
    """With one clock, from the first start to the last end; else the longest turn after the barrier before it."""
    if one_clock:
        return max(turn.end_ns for turn in turns) - min(turn.start_ns for turn in turns)
    return max(turn.end_ns - turn.start_ns for turn in turns)


def _clock() -> tuple[str, str]:
    """What ranks have in common whose time.perf_counter_ns can be compared: CLOCK_MONOTONIC counts from boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/time")


def _since(epoch_ns: int, span: RawSpan) -> RawSpan:
    return replace(span, start_ns=span.start_ns - epoch_ns, end_ns=span.end_ns - epoch_ns)


def _own_receipts(controls: Sequence[Control]) -> Iterator[Receipt]:
    for control in controls:
        if isinstance(control, Chunks):
            yield Receipt(control=control, status="applied", detail=f"collectives in {control.pieces} pieces")
        elif isinstance(control, LaunchOrder):
            detail = "a collective is launched before the compute beside it in every variant: CPU compute blocks"
            yield Receipt(control=control, status="no effect", detail=detail)


def _rate(spans: Sequence[RawSpan]) -> float | None:
    return overlap_rate(
        Timeline(
            spans=tuple(
                Span(name=one.name, kind=one.kind, stream=one.kind, start_ns=one.start_ns, end_ns=one.end_ns)
                for one in spans
            ),
            origin="measured",
        )
    )


def run_job(job: Job, world: World, report: Report) -> Record | None:
    """Measures what a job asks for; the record on rank 0, None elsewhere."""
    report("preparing the workload")
    torch.manual_seed(job.seed)
    wants_direct = any(
        isinstance(one, CopyEngine) for each in (*job.settings, *job.candidates) for one in each.controls
    )
    with ExitStack() as stack:
        direct, no_direct = None, None
        if wants_direct:
            try:  # fails on every rank or on none
                direct = stack.enter_context(DirectGroup(timeout_s=job.timeout_s))
            except UnsupportedError as error:
                no_direct = str(error)
        workload = rank_workload(job, world)
        carrier = DirectCarrier(direct) if direct is not None else None
        harness = Harness(
            world,
            workload,
            CpuBackend(direct),
            carrier,
            job.in_flight,
            no_direct=no_direct,
            one_clock=len(set(world.everywhere(_clock()))) == 1,
        )
        if not harness.one_clock:
            world.barrier()
            harness.epoch_ns = time.perf_counter_ns()
        notes: list[str] = []
        settings = _possible(harness, job.settings, notes)
        candidates = _possible(harness, job.candidates, notes)
        everything = {setting.name: setting for setting in (*settings, *candidates)}
        report("warming up")
        harness.rounds(tuple(everything.values()), job.warmup)
        forget(harness.found)
        chosen = None
        if candidates:
            chosen = _planned(harness, job, settings, candidates, report)
            forget(harness.found)
            settings = (*settings, chosen[0])
        harness.rounds(settings, job.repeats, lambda done: report(f"round {done + 1} of {job.repeats}"))
        if carrier is not None and carrier.no_room is not None:
            notes.append(f"copy-engine copied twice, through a segment, for want of shared tensors: {carrier.no_room}")
        return _record(harness, settings, chosen and chosen[1], notes)


def _possible(harness: Harness, settings: Sequence[Setting], notes: list[str]) -> tuple[Setting, ...]:
    found = []
    for setting in settings:
        reason = harness.refusal(setting)
        if reason is None:
            found.append(setting)
        elif f"{setting.name} was refused: {reason}" not in notes:
            notes.append(f"{setting.name} was refused: {reason}")
    return tuple(found)


def _planned(
    harness: Harness, job: Job, settings: Sequence[Setting], candidates: Sequence[Setting], report: Report
) -> tuple[Setting, str]:
    """The setting that a measured search picks, and why."""
    baselines = [setting for setting in settings if setting.name in BASELINES]
    by_name = {setting.name: setting for setting in (*baselines, *candidates)}
    found = measured_choice(
        lambda names, count: harness.rounds([by_name[name] for name in names], count),
        harness.found,
        harness.world,
        baselines=[setting.name for setting in baselines],
        candidates=[name for name in by_name if name not in BASELINES],
        trial_rounds=job.trial_rounds,
        report=report,
    )
    return replace(by_name[found.name], name=PLANNED), found.reason


def _record(harness: Harness, settings: Sequence[Setting], chosen: str | None, notes: list[str]) -> Record | None:
    spans = harness.world.gathered(
        {
            setting.name: [_since(harness.epoch_ns, span) for span in harness.found[setting.name].spans]
            for setting in settings
        }
    )
    if spans is None:
        return None
    exchange = harness.workload.exchange
    return Record(
        words=harness.workload.words,
        ranks=harness.world.ranks,
        settings=[
            setting_record(setting, harness.found[setting.name], threads=setting.threads) for setting in settings
        ],
        exchange=None if exchange is None else (exchange.kind, exchange.size_bytes),
        exchanges=harness.workload.exchanges,
        choice=chosen,
        spans=span_records(spans),
        notes=notes,
    )
