"""A bench on this rank's GPU: every setting in turn, verified every time, and its record. Not yet run on hardware.

Process groups, green contexts and symmetric buffers take long to make: each setting's are made once, before the rounds,
and kept until the end. torch is handed in as a namespace, so that all of this runs in tests without a GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, assert_never

from makeway.act.backend import Receipt
from makeway.act.cuda.backend import CudaBackend, Session
from makeway.act.cuda.machine import require
from makeway.act.cuda.overlap import Loop, run_comm, run_compute, run_overlapped, run_sequential, timed_ns
from makeway.act.measure.job import Job
from makeway.act.measure.outcome import BASELINES, PLANNED
from makeway.act.measure.ranks.gpu_pairs import Buffers, GpuPairs, Multiply
from makeway.act.measure.ranks.gpu_shapes import gpu_pairs
from makeway.act.measure.ranks.gpu_spans import SPANS_NOTE, EventSpans, rate
from makeway.act.measure.ranks.rounds import (
    Found,
    Report,
    Telling,
    forget,
    measured_choice,
    setting_record,
    span_records,
)
from makeway.act.measure.ranks.world import World
from makeway.act.measure.record import Record
from makeway.act.measure.variants import Setting, rotated
from makeway.act.rocm.backend import RocmBackend
from makeway.act.triton.config import GemmConfig
from makeway.values.control import Chunks, Control, LaunchOrder
from makeway.values.errors import UnsupportedError

MakeBackend = Callable[[GemmConfig], CudaBackend]

NOT_PROVED = "the bench on GPUs has not yet been run on hardware by its authors: check its figures against a profiler's"


def backend_of(on: str) -> MakeBackend:
    """The backend that a word of `--on` names, made for a GEMM."""
    return lambda gemm: RocmBackend(gemm=gemm) if on == "rocm" else CudaBackend(gemm=gemm)


def join_gpus(timeout_s: float, on: str) -> World:
    """Takes the GPU of LOCAL_RANK and meets the other ranks through NCCL, which RCCL answers for on AMD."""
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d
    from torch.distributed.rendezvous import rendezvous

    machine = backend_of(on)(GemmConfig()).machine
    require(machine, f"--on {on}")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= machine.devices:
        raise UnsupportedError(
            f"rank {local} of this host needs a GPU of its own; torch sees {machine.devices}. Start as many ranks per "
            "host as it has GPUs."
        )
    torch.cuda.set_device(local)
    store, rank, ranks = next(rendezvous("env://"))
    dist.init_process_group(
        "nccl",
        store=c10d.PrefixStore("makeway/nccl", store),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout_s),
        device_id=torch.device("cuda", local),
    )
    return World(rank=rank, ranks=ranks, store=c10d.PrefixStore("makeway/told", store))


@dataclass(frozen=True, slots=True)
class _Turn:
    """One round of one setting on one rank."""

    device_ns: float
    wrong: str | None
    rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A setting whose controls are in force for all that is launched through its session."""

    setting: Setting
    session: Session | None
    loop: Loop
    buffers: Buffers
    pieces: int

    def run(self, torch: Any, loop: Loop) -> None:
        match self.setting.mode:
            case "compute":
                run_compute(torch, loop, self.session)
            case "comm":
                run_comm(loop)
            case "sequential":
                run_sequential(loop)
            case "overlap":
                run_overlapped(torch, loop, self.session)
            case _:
                assert_never(self.setting.mode)


@dataclass(slots=True)
class GpuHarness:
    """Runs settings of one workload on this rank's GPU."""

    torch: Any
    world: Telling
    pairs: GpuPairs
    make_backend: MakeBackend
    ready: dict[str, _Ready] = field(default_factory=dict)
    found: dict[str, Found] = field(default_factory=dict)
    turn: int = 0

    def refusal(self, setting: Setting) -> str | None:
        """Why a setting cannot be run here, the same on every rank."""
        backend = self.make_backend(self.pairs.config)
        reasons = (backend.refusal(control) for control in _for_backend(setting.controls))
        mine = self.pairs.refusal(setting.controls) or next((reason for reason in reasons if reason), None)
        return next((reason for reason in self.world.everywhere(mine) if reason), None)

    def enter(self, setting: Setting, stack: ExitStack) -> None:
        """Makes all that a setting needs; a collective call, the same settings in the same order on every rank."""
        session: Session | None = None
        receipts: tuple[Receipt, ...] = ()
        if controls := _for_backend(setting.controls):
            backend = self.make_backend(self.pairs.config)
            receipts = stack.enter_context(backend.applied(controls))
            session = backend.session
        pieces = next((one.pieces for one in setting.controls if isinstance(one, Chunks)), 1)
        first = any(isinstance(one, LaunchOrder) for one in setting.controls)
        own = _own_receipts(setting.controls, dependent=self.pairs.dependent)
        self.found[setting.name] = Found(receipts=(*receipts, *own))
        self.ready[setting.name] = _Ready(
            setting=setting,
            session=session,
            loop=self.pairs.loop(session, pieces=pieces, comm_first=first),
            buffers=self.pairs.buffers(session),
            pieces=pieces,
        )

    def rounds(self, names: Sequence[str], count: int, told: Callable[[int], None] = lambda done: None) -> None:
        """So many rounds of all settings named, in an order that rotates; what they gave is added to `found`."""
        for done in range(count):
            told(done)
            order = rotated([self.ready[name].setting for name in names], self.turn)
            self.turn += 1
            mine = {setting.name: self._measured(self.ready[setting.name]) for setting in order}
            for name, turns in _by_setting(self.world.gathered(mine)):
                self.found[name].add(
                    max(turn.device_ns for turn in turns),  # over when the slowest rank is
                    [turn.rate for turn in turns],
                    [turn.wrong for turn in turns],
                )

    def _measured(self, ready: _Ready) -> _Turn:
        mode = ready.setting.mode
        copies = ready.session is not None and ready.session.copy_engine
        spans = EventSpans(self.torch, "copy" if copies else "comm")
        loop = spans.around(ready.loop)
        self.pairs.prepare(ready.buffers, mode)
        self.torch.cuda.synchronize()
        self.world.barrier()
        start_ns = time.perf_counter_ns()  # the ranks of one host share this clock

        def launched() -> None:
            spans.start()
            ready.run(self.torch, loop)

        device_ns = timed_ns(self.torch, launched)
        found = spans.read(start_ns)
        self.found[ready.setting.name].spans = found
        return _Turn(device_ns, self.pairs.wrong(ready.buffers, mode, ready.pieces), rate(found))


def _for_backend(controls: Sequence[Control]) -> list[Control]:
    """Controls of the device; pieces and order are the loop's own."""
    return [one for one in controls if not isinstance(one, Chunks | LaunchOrder)]


def _own_receipts(controls: Sequence[Control], *, dependent: bool) -> Iterator[Receipt]:
    for control in controls:
        if isinstance(control, Chunks):
            yield Receipt(control=control, status="applied", detail=f"collectives and GEMMs in {control.pieces} pieces")
        elif isinstance(control, LaunchOrder) and dependent:
            detail = "collective i is launched before GEMM i + 1, which runs beside it, in every variant"
            yield Receipt(control=control, status="no effect", detail=detail)
        elif isinstance(control, LaunchOrder):
            yield Receipt(control=control, status="applied", detail="each collective is launched before its GEMM")


def _by_setting(ranks: list[dict[str, _Turn]] | None) -> Iterator[tuple[str, list[_Turn]]]:
    for name in ranks[0] if ranks else ():
        yield name, [rank[name] for rank in ranks or ()]


def run_gpu_job(
    job: Job,
    world: Telling,
    report: Report,
    *,
    torch: Any | None = None,
    make_backend: MakeBackend | None = None,
    multiply: Multiply | None = None,
) -> Record | None:
    """Measures what a job asks for; the record on rank 0, None elsewhere. What is handed in stands in for the real."""
    if torch is None:
        import torch
    report("preparing the workload")
    make = make_backend or backend_of(job.on)
    arch = make(GemmConfig()).machine.arch or ""
    pairs = gpu_pairs(torch, job, world, arch, multiply or _triton_gemm())
    harness = GpuHarness(torch, world, pairs, make)
    notes = [NOT_PROVED, SPANS_NOTE]
    with ExitStack() as stack:
        settings = _entered(harness, job.settings, stack, notes)
        candidates = _entered(harness, job.candidates, stack, notes)
        report("warming up")
        harness.rounds(list(harness.ready), max(job.warmup, 1))  # the first launch compiles the GEMM
        forget(harness.found)
        names, chosen = list(settings), None
        if candidates:
            found = measured_choice(
                harness.rounds,
                harness.found,
                world,
                baselines=[name for name in settings if name in BASELINES],
                candidates=candidates,
                trial_rounds=job.trial_rounds,
                report=report,
            )
            chosen = found.reason
            forget(harness.found)
            picked = harness.ready[found.name]
            harness.ready[PLANNED] = replace(picked, setting=replace(picked.setting, name=PLANNED))
            harness.found[PLANNED] = Found(receipts=harness.found[found.name].receipts)
            names.append(PLANNED)
        harness.rounds(names, job.repeats, lambda done: report(f"round {done + 1} of {job.repeats}"))
        return _record(harness, names, chosen, notes)


def _triton_gemm() -> Multiply:
    from makeway.act.triton.gemm import matmul  # loads Triton

    return lambda a, b, config, out: matmul(a, b, config, out=out)


def _entered(harness: GpuHarness, settings: Sequence[Setting], stack: ExitStack, notes: list[str]) -> list[str]:
    found = []
    for setting in settings:
        reason = harness.refusal(setting)
        if reason is not None:
            note = f"{setting.name} was refused: {reason}"
            notes.extend([note] if note not in notes else [])
            continue
        if setting.name not in harness.ready:
            harness.enter(setting, stack)
        found.append(setting.name)
    return found


def _record(harness: GpuHarness, names: Sequence[str], chosen: str | None, notes: list[str]) -> Record | None:
    spans = harness.world.gathered({name: harness.found[name].spans for name in names})
    if spans is None:
        return None
    exchange = harness.pairs.exchange
    return Record(
        words=harness.pairs.words,
        ranks=harness.world.ranks,
        settings=[setting_record(harness.ready[name].setting, harness.found[name], threads=None) for name in names],
        exchange=None if exchange is None else (exchange.kind, exchange.size_bytes),
        exchanges=harness.pairs.steps,
        choice=chosen,
        spans=span_records(spans),
        notes=notes,
    )
