"""A bench on this rank's GPU: every variant in turn, verified every time. Not yet run on hardware.

Process groups, green contexts and symmetric buffers are slow to create: each variant's are created once, before the
rounds, and kept until the end. torch is passed in as a namespace, so that all of this runs in tests without a GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, assert_never

from makeway.act.cuda.backend import CudaBackend, Session
from makeway.act.cuda.machine import require
from makeway.act.cuda.overlap import Loop, captured, run_comm, run_compute, run_overlapped, run_sequential, timed_ns
from makeway.act.measure.job import Job
from makeway.act.measure.outcome import Bench
from makeway.act.measure.ranks.gpu_pairs import Buffers, GpuPairs, Multiply
from makeway.act.measure.ranks.gpu_shapes import gpu_pairs
from makeway.act.measure.ranks.gpu_spans import SPANS_NOTE, EventSpans
from makeway.act.measure.ranks.rounds import (
    Peers,
    Report,
    Samples,
    collected_bench,
    forget,
    measured_choice,
    span_overlap_rate,
)
from makeway.act.measure.ranks.world import World, meet
from makeway.act.measure.variants import BASELINES, PLANNED, Variant, measured_as, rotated
from makeway.act.rocm.backend import RocmBackend
from makeway.act.triton.config import GemmConfig
from makeway.values.control import Chunks, Control, CopyEngine, LaunchOrder, SmPartition
from makeway.values.errors import UnsupportedError
from makeway.values.receipt import Receipt

MakeBackend = Callable[[GemmConfig], CudaBackend]

NOT_PROVED = "the bench on GPUs has not yet been run on hardware by its authors: check its figures against a profiler's"
GRAPHS_NOTE = (
    "each round is one CUDA graph, captured once and replayed; no spans, since no event inside one can be read"
)
CARRIERS = {"cuda": "torch on CUDA", "rocm": "torch on ROCm"}


def backend_of(on: str) -> MakeBackend:
    """Makes the backend that `--on` names, for a GEMM."""
    return lambda gemm: RocmBackend(gemm=gemm) if on == "rocm" else CudaBackend(gemm=gemm)


def join_gpus(timeout_s: float, on: str) -> World:
    """Take the GPU of LOCAL_RANK and meet the other ranks through NCCL (RCCL on AMD)."""
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    machine = backend_of(on)(GemmConfig()).machine
    require(machine, f"--on {on}")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= machine.devices:
        raise UnsupportedError(
            f"rank {local} of this host needs a GPU of its own; torch sees {machine.devices}. Start as many ranks per "
            "host as it has GPUs."
        )
    torch.cuda.set_device(local)
    store, rank, ranks = meet()
    dist.init_process_group(
        "nccl",
        store=c10d.PrefixStore("makeway/nccl", store),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout_s),
        device_id=torch.device("cuda", local),
    )
    return World(rank=rank, ranks=ranks, store=c10d.PrefixStore("makeway/values", store))


@dataclass(frozen=True, slots=True)
class _Turn:
    """One round of one variant on one rank."""

    device_ns: float
    wrong: str | None
    rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A variant whose controls are in force for everything launched through its session."""

    variant: Variant
    session: Session | None
    loop: Loop
    buffers: Buffers
    pieces: int
    graph: Any | None = None  # one round, captured

    def run(self, torch: Any, loop: Loop) -> None:
        match self.variant.mode:
            case "compute":
                run_compute(torch, loop, self.session)
            case "comm":
                run_comm(loop)
            case "sequential":
                run_sequential(loop)
            case "overlap":
                run_overlapped(torch, loop, self.session)
            case _:
                assert_never(self.variant.mode)


@dataclass(slots=True)
class GpuHarness:
    """Runs variants of one workload on this rank's GPU."""

    torch: Any
    world: Peers
    pairs: GpuPairs
    make_backend: MakeBackend
    carrier: str = CARRIERS["cuda"]
    ready: dict[str, _Ready] = field(default_factory=dict)
    samples: dict[str, Samples] = field(default_factory=dict)
    turn: int = 0
    graphs: bool = False  # rounds are captured

    def refusal(self, variant: Variant) -> str | None:
        """Why a variant cannot be run here, the same on every rank."""
        backend = self.make_backend(self.pairs.config)
        reasons = (backend.refusal(control) for control in _for_backend(variant.controls))
        mine = (
            (graph_refusal(variant.controls) if self.graphs else None)
            or self.pairs.refusal(variant.controls)
            or next((reason for reason in reasons if reason), None)
        )
        return next((reason for reason in self.world.everywhere(mine, str | None) if reason), None)

    def enter(self, variant: Variant, stack: ExitStack) -> None:
        """Create all that a variant needs. A collective call: the same variants in the same order on every rank."""
        session: Session | None = None
        receipts: list[Receipt] = []
        if controls := _for_backend(variant.controls):
            backend = self.make_backend(self.pairs.config)
            receipts = [
                Receipt(control=each.control, status=each.status, detail=each.detail, carrier=self.carrier)
                for each in stack.enter_context(backend.applied(controls))
            ]
            session = backend.session
        pieces = next((control.pieces for control in variant.controls if isinstance(control, Chunks)), 1)
        first = any(isinstance(control, LaunchOrder) for control in variant.controls)
        self.samples[variant.name] = Samples(receipts=(*receipts, *self._own_receipts(variant.controls)))
        self.ready[variant.name] = _Ready(
            variant=variant,
            session=session,
            loop=self.pairs.loop(session, pieces=pieces, comm_first=first),
            buffers=self.pairs.buffers(session),
            pieces=pieces,
        )

    def _own_receipts(self, controls: Sequence[Control]) -> Iterator[Receipt]:
        for control in controls:
            if isinstance(control, Chunks):
                detail = f"collectives and GEMMs in {control.pieces} pieces"
                yield Receipt(control=control, status="applied", detail=detail, carrier=self.carrier)
            elif isinstance(control, LaunchOrder) and self.pairs.dependent:
                detail = "collective i is launched before GEMM i + 1, which runs beside it, in every variant"
                yield Receipt(control=control, status="no effect", detail=detail, carrier=self.carrier)
            elif isinstance(control, LaunchOrder):
                detail = "each collective is launched before its GEMM"
                yield Receipt(control=control, status="applied", detail=detail, carrier=self.carrier)

    def rounds(self, names: Sequence[str], count: int, progress: Callable[[int], None] = lambda done: None) -> None:
        """`count` rounds of all variants named, in an order that rotates, added to `samples`."""
        for done in range(count):
            progress(done)
            order = rotated([self.ready[name].variant for name in names], self.turn)
            self.turn += 1
            mine = {variant.name: self._measured(self.ready[variant.name]) for variant in order}
            for name, turns in _by_variant(self.world.gathered(mine, dict[str, _Turn])):
                self.samples[name].add(
                    max(turn.device_ns for turn in turns),  # over when the slowest rank is
                    [turn.rate for turn in turns],
                    [turn.wrong for turn in turns],
                )

    def capture(self) -> None:
        """Capture one round of every variant, after a round that was not: compilation and set-up cannot be captured.

        A collective call, since communicators are set up by their first collective.
        """
        for name, ready in self.ready.items():
            self.pairs.prepare(ready.buffers, ready.variant.mode)
            self.world.barrier()
            graph = captured(self.torch, lambda ready=ready: ready.run(self.torch, ready.loop))  # type: ignore[misc]
            self.ready[name] = replace(ready, graph=graph)

    def _measured(self, ready: _Ready) -> _Turn:
        if ready.graph is not None:
            return self._replayed(ready, ready.graph)
        mode = ready.variant.mode
        copies = ready.session is not None and ready.session.copy_engine
        events = EventSpans(self.torch, "copy" if copies else "comm")
        loop = events.around(ready.loop)
        self.pairs.prepare(ready.buffers, mode)
        self.torch.cuda.synchronize()
        self.world.barrier()
        start_ns = time.perf_counter_ns()  # the ranks of one host share this clock

        def launched() -> None:
            events.start()
            ready.run(self.torch, loop)

        device_ns = timed_ns(self.torch, launched)
        spans = events.read(start_ns)
        self.samples[ready.variant.name].spans = spans
        return _Turn(device_ns, self.pairs.wrong(ready.buffers, mode, ready.pieces), span_overlap_rate(spans))

    def _replayed(self, ready: _Ready, graph: Any) -> _Turn:
        """A round from its graph: events inside one cannot be read, so there are no spans."""
        self.pairs.prepare(ready.buffers, ready.variant.mode)
        self.torch.cuda.synchronize()
        self.world.barrier()
        device_ns = timed_ns(self.torch, graph.replay)
        return _Turn(device_ns, self.pairs.wrong(ready.buffers, ready.variant.mode, ready.pieces), None)


def _for_backend(controls: Sequence[Control]) -> list[Control]:
    """Controls of the device; pieces and order are the loop's own."""
    return [control for control in controls if not isinstance(control, Chunks | LaunchOrder)]


def graph_refusal(controls: Sequence[Control]) -> str | None:
    """Why a variant cannot be captured in a graph; None when it can."""
    for control in controls:
        if isinstance(control, CopyEngine):
            return (
                "copies between peers meet by counters that differ from round to round; a graph would repeat the first"
            )
        if isinstance(control, SmPartition):
            return "whether a graph keeps the green contexts of the streams it was captured from is not documented"
    return None


def _by_variant(ranks: list[dict[str, _Turn]] | None) -> Iterator[tuple[str, list[_Turn]]]:
    for name in ranks[0] if ranks else ():
        yield name, [rank[name] for rank in ranks or ()]


def run_gpu_job(
    job: Job,
    world: Peers,
    report: Report,
    *,
    torch: Any | None = None,
    make_backend: MakeBackend | None = None,
    multiply: Multiply | None = None,
) -> Bench | None:
    """Measure a job; its bench on rank 0, None elsewhere. What is passed in stands in for the real thing."""
    if torch is None:
        import torch
    report("preparing the workload")
    make = make_backend or backend_of(job.on)
    arch = make(GemmConfig()).machine.arch or ""
    pairs = gpu_pairs(torch, job, world, arch, multiply or _triton_gemm())
    harness = GpuHarness(torch, world, pairs, make, CARRIERS[job.on], graphs=job.cuda_graph)
    notes = [pairs.description, NOT_PROVED, GRAPHS_NOTE if job.cuda_graph else SPANS_NOTE]
    with ExitStack() as stack:
        names = _entered(harness, job.variants, stack, notes)
        candidates = _entered(harness, job.candidates, stack, notes)
        report("warming up")
        harness.rounds(list(harness.ready), max(job.warmup, 1))  # the first launch compiles the GEMM
        if job.cuda_graph:
            report("capturing graphs")
            harness.capture()
        forget(harness.samples)
        reason = None
        if candidates:
            choice = measured_choice(
                harness.rounds,
                harness.samples,
                world,
                baselines=[name for name in names if name in BASELINES],
                candidates=candidates,
                trial_rounds=job.trial_rounds,
                report=report,
            )
            reason = choice.reason
            forget(harness.samples)
            chosen = harness.ready[choice.name]
            harness.ready[PLANNED] = replace(chosen, variant=replace(chosen.variant, name=PLANNED))
            harness.samples[PLANNED] = Samples(receipts=harness.samples[choice.name].receipts)
            names.append(PLANNED)
        original = measured_as([harness.ready[name].variant for name in names])
        harness.rounds(
            [name for name in names if original[name] == name],
            job.repeats,
            lambda done: report(f"round {done + 1} of {job.repeats}"),
        )
        return collected_bench(
            job,
            world,
            [harness.ready[name].variant for name in names],
            harness.samples,
            exchange=pairs.exchange,
            exchanges=pairs.steps,
            choice=reason,
            notes=notes,
        )


def _triton_gemm() -> Multiply:
    from makeway.act.triton.gemm import matmul  # loads Triton

    return lambda a, b, config, out: matmul(a, b, config, out=out)


def _entered(harness: GpuHarness, variants: Sequence[Variant], stack: ExitStack, notes: list[str]) -> list[str]:
    """The names of the variants that can run here, each entered once."""
    names = []
    for variant in variants:
        reason = harness.refusal(variant)
        if reason is not None:
            note = f"{variant.name} was refused: {reason}"
            notes.extend([note] if note not in notes else [])
            continue
        if variant.name not in harness.ready:
            harness.enter(variant, stack)
        names.append(variant.name)
    return names
