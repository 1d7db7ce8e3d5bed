"""Rounds on this CPU rank: every variant in turn, verified every time; planning among candidates; the bench."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch

from makeway.act.booted import boot_id
from makeway.act.cpu.controls import CpuBackend
from makeway.act.cpu.direct import DirectGroup
from makeway.act.measure.choice import Choice
from makeway.act.measure.job import Job
from makeway.act.measure.order import Moment, StepOrder
from makeway.act.measure.outcome import Bench
from makeway.act.measure.ranks.busy import beyond_calm, busy_ns
from makeway.act.measure.ranks.catalogue import rank_workload
from makeway.act.measure.ranks.exchange import DirectTransport, GlooTransport, RawSpan, Recorder, Transport
from makeway.act.measure.ranks.lanes import Schedule
from makeway.act.measure.ranks.rounds import (
    Report,
    Samples,
    collected_bench,
    forget,
    measured_choice,
    span_overlap_rate,
)
from makeway.act.measure.ranks.workload import RankWorkload
from makeway.act.measure.ranks.world import World
from makeway.act.measure.variants import BASELINES, PLANNED, Variant, measured_as, rotated
from makeway.values.control import Chunks, Compress, Control, CopyEngine, LaunchOrder, describe, lossy
from makeway.values.errors import UnsupportedError
from makeway.values.receipt import Receipt

CARRIER = "torch on CPU"


@dataclass(frozen=True, slots=True)
class _Turn:
    """One round of one variant on one rank."""

    start_ns: int
    end_ns: int
    wrong: str | None
    rate: float | None
    cpu_ns: int = 0  # of all threads of this rank
    busy_ns: float | None = None  # of communication alone: all that the host's cores did, as rank 0 sees it
    order: tuple[StepOrder, ...] = ()  # of compute alone


@dataclass(slots=True)
class Harness:
    """Runs variants of one workload on this rank."""

    world: World
    workload: RankWorkload
    backend: CpuBackend
    direct: DirectTransport | None
    in_flight: int
    no_direct: str | None = None  # why there are no direct collectives, where they were wanted
    one_clock: bool = True  # for all ranks: they share a host
    epoch_ns: int = 0  # of this rank's spans: with several clocks, a moment that all ranks were at
    samples: dict[str, Samples] = field(default_factory=dict)
    turn: int = 0

    def rounds(
        self, variants: Sequence[Variant], count: int, progress: Callable[[int], None] = lambda done: None
    ) -> None:
        """`count` rounds of all variants, in an order that rotates, added to `samples`."""
        for done in range(count):
            progress(done)
            mine = {variant.name: self._measured(variant) for variant in rotated(variants, self.turn)}
            self.turn += 1
            ranks = self.world.gathered(mine, dict[str, _Turn])
            for name in mine if ranks is not None else ():
                turns = [rank[name] for rank in ranks or ()]
                self.samples[name].add(
                    _round_ns(turns, one_clock=self.one_clock),
                    [turn.rate for turn in turns],
                    [turn.wrong for turn in turns],
                    cpu_ns=sum(turn.cpu_ns for turn in turns),
                    busy_ns=turns[0].busy_ns,
                    orders=[turn.order for turn in turns],
                )

    def refusal(self, variant: Variant) -> str | None:
        """Why a variant cannot be run here, the same on every rank."""
        reasons = [self._why_not(control) for control in variant.controls]
        mine = next((reason for reason in reasons if reason), None)
        return next((reason for reason in self.world.everywhere(mine, str | None) if reason), None)

    def _why_not(self, control: Control) -> str | None:
        if isinstance(control, CopyEngine) and self.no_direct is not None:
            return self.no_direct
        ours = isinstance(control, _OF_CALLS)  # the order of calls is the workload's own
        return self.workload.refusal(control) or (None if ours else self.backend.refusal(control))

    def _measured(self, variant: Variant) -> _Turn:
        samples = self.samples.setdefault(variant.name, Samples())
        recorder = Recorder()
        with self._in_force(variant) as (receipts, transport):
            schedule = Schedule(
                mode=variant.mode,
                transport=transport,
                recorder=recorder,
                pieces=next((control.pieces for control in variant.controls if isinstance(control, Chunks)), 1),
                threads=torch.get_num_threads(),
                in_flight=self.in_flight,
                compress=next((control for control in variant.controls if isinstance(control, Compress)), None),
            )
            self.workload.prepare(schedule)
            recorder.spans.clear()
            self.world.barrier()
            before, start = busy_ns(), Moment.now()
            self.workload.run(schedule)
            end, after = Moment.now(), busy_ns()
            recorder.settle()
            wrong = self.workload.wrong(schedule)
        samples.receipts = receipts
        samples.spans = [_since(self.epoch_ns, span) for span in recorder.spans]
        order = recorder.order(start) if variant.mode == "compute" else ()
        busy = None if before is None or after is None else after - before
        return _Turn(
            start.at_ns,
            end.at_ns,
            wrong,
            span_overlap_rate(recorder.spans),
            cpu_ns=end.cpu_ns - start.cpu_ns,
            busy_ns=self._beyond_calm(busy, end.at_ns - start.at_ns) if variant.mode == "comm" else None,
            order=order,
        )

    def _beyond_calm(self, busy: int | None, lasted_ns: int) -> float | None:
        """All ranks are calm together; what each sees counts where they share a host."""
        self.world.barrier()
        left = beyond_calm(busy, lasted_ns)
        self.world.barrier()
        return left if self.one_clock else None

    @contextmanager
    def _in_force(self, variant: Variant) -> Iterator[tuple[tuple[Receipt, ...], Transport]]:
        """The variant's threads and controls, undone at the end."""
        before = torch.get_num_threads()
        copies = any(isinstance(control, CopyEngine) for control in variant.controls)
        transport = self.direct if copies and self.direct is not None else GlooTransport()
        torch.set_num_threads(variant.threads)
        try:
            with ExitStack() as stack:
                theirs = [control for control in variant.controls if not isinstance(control, _OF_CALLS)]
                applied = stack.enter_context(self.backend.applied(theirs)) if theirs else ()
                receipts = [
                    Receipt(control=each.control, status=each.status, detail=each.detail, carrier=CARRIER)
                    for each in applied
                ]
                yield (*receipts, *_own_receipts(variant.controls)), transport
        finally:
            torch.set_num_threads(before)


_OF_CALLS = (Chunks, LaunchOrder, Compress)


def _round_ns(turns: Sequence[_Turn], *, one_clock: bool) -> int:
    """With one clock, from the first start to the last end; else the longest turn after the barrier before it."""
    if one_clock:
        return max(turn.end_ns for turn in turns) - min(turn.start_ns for turn in turns)
    return max(turn.end_ns - turn.start_ns for turn in turns)


_Clock = tuple[str, str]


def _clock() -> _Clock:
    """What ranks have in common whose time.perf_counter_ns can be compared: CLOCK_MONOTONIC counts from boot."""
    return boot_id(), os.readlink("/proc/self/ns/time")


def _since(epoch_ns: int, span: RawSpan) -> RawSpan:
    return replace(span, start_ns=span.start_ns - epoch_ns, end_ns=span.end_ns - epoch_ns)


def _own_receipts(controls: Sequence[Control]) -> Iterator[Receipt]:
    for control in controls:
        if isinstance(control, Chunks):
            detail = f"collectives in {control.pieces} pieces"
            yield Receipt(control=control, status="applied", detail=detail, carrier=CARRIER)
        elif isinstance(control, Compress):
            detail = f"{describe(control)}: losses are not compared with stock's"
            yield Receipt(control=control, status="applied", detail=detail, carrier=CARRIER)
        elif isinstance(control, LaunchOrder):
            detail = "a collective is launched before the compute beside it in every variant: CPU compute blocks"
            yield Receipt(control=control, status="no effect", detail=detail, carrier=CARRIER)


def run_job(job: Job, world: World, report: Report) -> Bench | None:
    """Measure a job; its bench on rank 0, None elsewhere."""
    report("preparing the workload")
    torch.manual_seed(job.seed)
    wants_direct = any(
        isinstance(control, CopyEngine) for variant in (*job.variants, *job.candidates) for control in variant.controls
    )
    with ExitStack() as stack:
        direct, no_direct = None, None
        if wants_direct:
            try:  # fails on every rank or on none
                direct = stack.enter_context(DirectGroup(timeout_s=job.timeout_s))
            except UnsupportedError as error:
                no_direct = str(error)
        workload = rank_workload(job, world)
        transport = DirectTransport(direct) if direct is not None else None
        harness = Harness(
            world,
            workload,
            CpuBackend(direct),
            transport,
            job.in_flight or 1,
            no_direct=no_direct,
            one_clock=len(set(world.everywhere(_clock(), _Clock))) == 1,
        )
        if not harness.one_clock:
            world.barrier()
            harness.epoch_ns = time.perf_counter_ns()
        notes = [workload.description]
        variants = _possible(harness, job.variants, notes)
        candidates = _possible(harness, job.candidates, notes)
        by_name = {variant.name: variant for variant in (*variants, *candidates)}
        report("warming up")
        harness.rounds(tuple(by_name.values()), job.warmup)
        forget(harness.samples)
        choice = None
        if candidates:
            choice = _choice(harness, job, variants, candidates, report)
            forget(harness.samples)
            variants = (*variants, replace(by_name[choice.name], name=PLANNED))
        original = measured_as(variants)
        distinct = [variant for variant in variants if original[variant.name] == variant.name]
        harness.rounds(distinct, job.repeats, lambda done: report(f"round {done + 1} of {job.repeats}"))
        if names := [variant.name for variant in variants if any(map(lossy, variant.controls))]:
            notes.append(f"results of {', '.join(names)} are lossy: losses are finite, and not compared with stock's")
        if transport is not None and transport.no_shared_memory is not None:
            reason = transport.no_shared_memory
            notes.append(f"copy-engine copied twice, through a segment, since tensors are not shared: {reason}")
        return collected_bench(
            job,
            world,
            variants,
            harness.samples,
            exchange=workload.exchange,
            exchanges=workload.exchanges,
            choice=None if choice is None else choice.reason,
            notes=notes,
            cores=len(os.sched_getaffinity(0)) if harness.one_clock else None,
        )


def _possible(harness: Harness, variants: Sequence[Variant], notes: list[str]) -> tuple[Variant, ...]:
    possible = []
    for variant in variants:
        reason = harness.refusal(variant)
        if reason is None:
            possible.append(variant)
        elif (note := f"{variant.name} was refused: {reason}") not in notes:
            notes.append(note)
    return tuple(possible)


def _choice(
    harness: Harness, job: Job, variants: Sequence[Variant], candidates: Sequence[Variant], report: Report
) -> Choice:
    """What a measured search picks."""
    by_name = {variant.name: variant for variant in (*variants, *candidates)}
    return measured_choice(
        lambda names, count: harness.rounds([by_name[name] for name in names], count),
        harness.samples,
        harness.world,
        baselines=[variant.name for variant in variants if variant.name in BASELINES],
        candidates=[variant.name for variant in candidates if variant.name not in BASELINES],
        trial_rounds=job.trial_rounds,
        report=report,
    )
