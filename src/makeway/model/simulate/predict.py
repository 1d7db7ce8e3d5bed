"""`simulate`: a workload on a device under controls, and the baselines to compare it with.

With default settings this is the one answer to "how long does it take": every command that predicts asks here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

from makeway.model.simulate.compile import Compiled, compile_program
from makeway.model.simulate.device_numbers import model_number
from makeway.model.simulate.driver import Engine, run
from makeway.model.simulate.fluid import fluid_run
from makeway.model.simulate.kept_runs import kept_run
from makeway.model.simulate.mechanisms import DEFAULT, Mechanisms
from makeway.model.simulate.policies import DISPATCHES, HBM_POLICIES, Dispatch, HeldQueue, SharingPolicy
from makeway.model.simulate.program import EngineOp, Program
from makeway.model.simulate.run_result import RunResult
from makeway.model.simulate.spread import BLOCK_SPREAD
from makeway.values.control import Control
from makeway.values.device import Device
from makeway.values.errors import InputError
from makeway.values.timeline import Holding, Span, SpanKind, Timeline, overlap_rate, share_of_ideal
from makeway.values.workload import Measured, Workload

MOST_BLOCKS = 250_000  # of a workload's kernels: more take the per-block engine too long
# The same for measured kernels. They are those of recorded steps, which a what-if repeats for several controls: more
# take the class engine, which knows equal block times only, and so does every other prediction for that step.
MOST_RECORDED_BLOCKS = 50_000
MOST_SAMPLES = 256  # of what SMs hold, besides those at the start or the end of an operation
EngineUsed = Literal["class", "block", "fluid"]
_KINDS: dict[str, SpanKind] = {"kernel": "compute", "collective": "comm", "copy": "copy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Unknowns of the hardware, and options of the simulation.

    The defaults are resolved from the workload alone (`resolved`): the per-block engine with the spread that blocks
    have (`BLOCK_SPREAD`). Above `MOST_BLOCKS` blocks: the fluid engine, or, with several compute streams, which it
    cannot describe, the class engine, which knows equal times only. Recorded steps: see `MOST_RECORDED_BLOCKS`.
    """

    engine: Literal["auto", "class", "block", "fluid"] = "auto"
    dispatch: Dispatch | None = None  # None: the vendor's
    hbm: SharingPolicy = HBM_POLICIES["proportional"]
    jitter: float | None = None  # relative spread of block times; None: BLOCK_SPREAD
    seed: int = 0
    skew_ns: float = 0.0  # the last rank starts this much later than the first
    record: bool = False  # what SMs hold over time
    mechanisms: Mechanisms = DEFAULT

    def __post_init__(self) -> None:
        if self.jitter is not None and not 0 <= self.jitter < 1:
            raise InputError(f"jitter must be at least 0 and below 1, got {self.jitter!r}")
        if self.skew_ns < 0:
            raise InputError(f"skew cannot be negative, got {self.skew_ns!r} ns")
        if self.jitter and self.engine == "class":
            raise InputError("the class engine has no jitter; use the block engine or auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The same run under other policies that the hardware may follow, with the same baselines."""

    dispatch: str
    hbm: str
    jitter: float
    t_ns: float
    share_of_ideal: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted times. Those of sequential, compute, comm and ideal are without controls."""

    SHOWN: ClassVar = ("ideal_ns", "t_ideal_ns", "share_of_ideal", "share_of_ideal_naive", "overlap_rate")

    workload: Workload
    device: Device
    controls: tuple[Control, ...]
    t_ns: float
    t_naive_ns: float | None  # without controls; None where it cannot run without them
    t_compute_ns: float  # all kernels alone, with their own streams
    t_comm_ns: float  # all collectives alone
    t_sequential_ns: float  # every operation alone, added up
    timeline: Timeline
    engine: EngineUsed
    dispatch: str
    hbm: str
    jitter: float
    blocks: int  # of all kernels and collectives: what the per-block engine's time grows with
    assumed: tuple[str, ...]
    without_effect: tuple[str, ...]
    fallback: str | None = None  # why the fluid engine left the run to the one named in `engine`
    alternatives: tuple[Alternative, ...] = ()  # under the unconfirmed hardware policies, on request

    @property
    def ideal_ns(self) -> float:
        return max(self.t_compute_ns, self.t_comm_ns)

    @property
    def t_ideal_ns(self) -> float:
        """The same under the name that plans use."""
        return self.ideal_ns

    @property
    def share_of_ideal(self) -> float | None:
        return self.share_of(self.t_ns)

    @property
    def share_of_ideal_naive(self) -> float | None:
        return None if self.t_naive_ns is None else self.share_of(self.t_naive_ns)

    def share_of(self, time_ns: float) -> float | None:
        """The share of ideal that another time of the same workload has."""
        return share_of_ideal(
            t_sequential=self.t_sequential_ns, t=time_ns, t_compute=self.t_compute_ns, t_comm=self.t_comm_ns
        )

    @property
    def overlap_rate(self) -> float | None:
        return overlap_rate(self.timeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolved:
    engine: EngineUsed
    spread: float


def resolved(workload: Workload, settings: Settings) -> _Resolved:
    """The engine and the spread for a workload: by its size alone, so that all its controls are compared alike."""
    engine = settings.engine
    if engine == "auto":
        recorded = any(isinstance(kernel.work, Measured) for kernel in workload.kernels)
        small = sum([kernel.work.blocks for kernel in workload.kernels]) <= (
            MOST_RECORDED_BLOCKS if recorded else MOST_BLOCKS
        )
        in_line = len({kernel.stream for kernel in workload.kernels}) <= 1 and not recorded
        engine = "block" if small else "fluid" if in_line or settings.jitter else "class"
    spread = settings.jitter
    if spread is None:
        spread = 0.0 if engine == "class" else BLOCK_SPREAD
    return _Resolved(engine=engine, spread=spread)


def vendor_dispatch(device: Device) -> Dispatch:
    """The dispatch policy published for the vendor or fitted for the device; not confirmed from Hopper on."""
    if "queue_hold" in device.facts:
        return HeldQueue(model_number(device, "queue_hold", 1.0))
    return DISPATCHES["cut-ahead" if device.vendor == "amd" else "strict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRun:
    """A workload's run under controls, without baselines."""

    compiled: Compiled
    engine: EngineUsed
    result: RunResult
    timeline: Timeline


def simulate(
    workload: Workload, device: Device, controls: Sequence[Control] = (), settings: Settings | None = None
) -> Prediction:
    """What happens when the workload runs on the device under the controls."""
    settings = settings or Settings()
    dispatch = settings.dispatch or vendor_dispatch(device)
    chosen = predicted_run(workload, device, controls, settings)
    plain = compile_for(workload, device, (), dispatch, settings) if controls else chosen.compiled
    engine = _engine(plain.program, workload, settings)
    first_rank = replace(plain.program, ranks=1, ops=tuple(op for op in plain.program.ops if op.rank == 0))
    base = _baseline(first_rank, _full(engine), dispatch, settings.hbm)
    return Prediction(
        workload=workload,
        device=device,
        controls=tuple(controls),
        t_ns=chosen.result.end_ns,
        t_naive_ns=_end_ns(plain.program, engine, dispatch, settings) if controls else chosen.result.end_ns,
        t_compute_ns=base.compute_ns,
        t_comm_ns=base.comm_ns,
        t_sequential_ns=base.sequential_ns,
        timeline=chosen.timeline,
        engine=chosen.engine,
        dispatch=dispatch.name,
        hbm=settings.hbm.name,
        jitter=_widest_spread(chosen.compiled.program),
        blocks=sum(op.blocks for op in chosen.compiled.program.ops),
        assumed=chosen.compiled.assumed,
        without_effect=chosen.compiled.without_effect,
        fallback=chosen.result.fallback,
    )


def predicted_run(
    workload: Workload, device: Device, controls: Sequence[Control] = (), settings: Settings | None = None
) -> PredictedRun:
    """The run alone: what `simulate` compares with its baselines."""
    settings = settings or Settings()
    dispatch = settings.dispatch or vendor_dispatch(device)
    plain = compile_for(workload, device, (), dispatch, settings)
    chosen = compile_for(workload, device, controls, dispatch, settings) if controls else plain
    engine = _engine(plain.program, workload, settings)
    result = _run(chosen.program, engine, dispatch, settings)
    return PredictedRun(
        compiled=chosen,
        engine=engine if result.fallback is None else _full(engine),
        result=result,
        timeline=timeline_of(chosen.program, result, device),
    )


def compile_for(
    workload: Workload, device: Device, controls: Sequence[Control], dispatch: Dispatch, settings: Settings
) -> Compiled:
    """The program of a workload under settings: the last rank late by the skew, block times spread by the jitter."""
    skew = (0.0, settings.skew_ns) if settings.skew_ns else (0.0,)
    return compile_program(
        workload,
        device,
        controls,
        dispatch=dispatch,
        jitter=resolved(workload, settings).spread,
        by_length=settings.jitter is None,
        seed=settings.seed,
        skew_ns=skew,
        mechanisms=settings.mechanisms,
    )


def _engine(plain: Program, workload: Workload, settings: Settings) -> EngineUsed:
    """The engine of a workload, by its program without controls: all its controls are compared by one engine."""
    if settings.engine == "auto" and settings.jitter is None and not _widest_spread(plain):
        return "class"  # the same to 1e-6, and faster
    return resolved(workload, settings).engine


def _widest_spread(program: Program) -> float:
    """The largest relative spread of block times among the kernels of a program."""
    spreads = [program.jitter if op.jitter is None else op.jitter for op in program.ops if op.kind == "kernel"]
    return max(spreads, default=0.0)


def _full(engine: EngineUsed) -> Engine:
    """The engine of the baselines, and of what the fluid engine cannot describe."""
    return "class" if engine == "class" else "block"


def _run(program: Program, engine: EngineUsed, dispatch: Dispatch, settings: Settings) -> RunResult:
    if engine == "fluid":
        return fluid_run(program, full=_full(engine), dispatch=dispatch, hbm=settings.hbm)
    result = kept_run(program, engine, dispatch, settings.hbm)
    if not settings.record:
        return result
    sampled = run(program, engine=engine, dispatch=dispatch, hbm=settings.hbm, sample_ns=result.end_ns / MOST_SAMPLES)
    return replace(result, samples=sampled.samples)


def _end_ns(program: Program, engine: EngineUsed, dispatch: Dispatch, settings: Settings) -> float | None:
    """When a program ends; None where it cannot run."""
    try:
        return _run(program, engine, dispatch, replace(settings, record=False)).end_ns
    except InputError:
        return None


@dataclass(frozen=True, slots=True)
class _Baseline:
    """Times of the same operations without overlap."""

    compute_ns: float
    comm_ns: float
    sequential_ns: float


@lru_cache(maxsize=512)
def _baseline(program: Program, engine: Engine, dispatch: Dispatch, hbm: SharingPolicy) -> _Baseline:
    """All kernels alone, all collectives alone, and every operation alone, by a full engine whoever asks."""

    def alone(ops: tuple[EngineOp, ...]) -> float:
        return kept_run(replace(program, ops=ops), engine, dispatch, hbm).end_ns if ops else 0.0

    by_itself = [replace(op, name="", group="", stream="", after=(), launch_ns=0.0, priority=0) for op in program.ops]
    times = {op: alone((op,)) for op in dict.fromkeys(by_itself)}

    def side(*kinds: str) -> float:
        kept = [index for index, op in enumerate(program.ops) if op.kind in kinds]
        if len({program.ops[index].stream for index in kept}) <= 1 and not program.latencies.stream_ns:
            return sum([times[by_itself[index]] for index in kept])  # they follow each other
        return alone(_only(program.ops, *kinds))

    return _Baseline(
        compute_ns=side("kernel"),
        comm_ns=side("collective", "copy"),
        sequential_ns=sum(times[op] for op in by_itself),
    )


def _only(ops: tuple[EngineOp, ...], *kinds: str) -> tuple[EngineOp, ...]:
    """The operations of these kinds, as if the others did not exist."""
    kept = [index for index, op in enumerate(ops) if op.kind in kinds]
    place = {index: at for at, index in enumerate(kept)}
    return tuple(
        replace(ops[index], after=tuple(place[item] for item in ops[index].after if item in place), launch_ns=0.0)
        for index in kept
    )


def timeline_of(program: Program, result: RunResult, device: Device) -> Timeline:
    """A run of a program, span by span."""
    spans = tuple(
        Span(
            name=op.name,
            kind=_KINDS[op.kind],
            stream=op.stream,
            rank=op.rank,
            start_ns=round(times.started_ns),
            end_ns=round(times.ended_ns),
            waiting_ns=round(times.moving_ns) - round(times.started_ns),
        )
        for op, times in zip(program.ops, result.times, strict=True)
    )
    holdings = tuple(
        Holding(
            time_ns=round(sample.time_ns),
            rank=sample.rank,
            sms=sms,
            blocks=tuple((program.ops[op].name, blocks) for op, blocks in held),
        )
        for sample in result.samples
        for held, sms in sample.holdings
    )
    return Timeline(spans=spans, origin="predicted", device=device.name, holdings=holdings)
