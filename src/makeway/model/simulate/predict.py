"""`simulate`: a workload on a device under controls, and the baselines to compare it with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

from makeway.model.residency import capacity, room_left
from makeway.model.simulate.compile import Compiled, compile_program, model_number
from makeway.model.simulate.driver import Engine, RunResult, run
from makeway.model.simulate.fluid import fluid_run
from makeway.model.simulate.mechanisms import DEFAULT, Mechanisms
from makeway.model.simulate.policies import DISPATCHES, HBM_POLICIES, Dispatch, HeldQueue, SharingPolicy
from makeway.model.simulate.program import EngineOp, Program
from makeway.values.control import Control
from makeway.values.device import Device
from makeway.values.errors import InputError
from makeway.values.timeline import Holding, Span, SpanKind, Timeline, overlap_rate, share_of_ideal
from makeway.values.workload import Workload

FEW_WAVES = 4  # below, the spread of block times decides how a kernel ends: take the per-block engine
EngineUsed = Literal["class", "block", "fluid"]
_KINDS: dict[str, SpanKind] = {"kernel": "compute", "collective": "comm", "copy": "copy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Unknowns of the hardware, and options of the simulation."""

    engine: Literal["auto", "class", "block", "fluid"] = "auto"
    dispatch: Dispatch | None = None  # None: the vendor's
    hbm: SharingPolicy = HBM_POLICIES["proportional"]
    jitter: float = 0.0
    seed: int = 0
    skew_ns: float = 0.0  # the last rank starts this much later than the first
    record: bool = False
    mechanisms: Mechanisms = DEFAULT

    def __post_init__(self) -> None:
        if not 0 <= self.jitter < 1:
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

    SHOWN: ClassVar = ("ideal_ns", "share_of_ideal", "overlap_rate")

    workload: Workload
    device: Device
    controls: tuple[Control, ...]
    t_ns: float
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
    def share_of_ideal(self) -> float | None:
        return share_of_ideal(
            t_sequential=self.t_sequential_ns, t=self.t_ns, t_compute=self.t_compute_ns, t_comm=self.t_comm_ns
        )

    @property
    def overlap_rate(self) -> float | None:
        return overlap_rate(self.timeline)


def vendor_dispatch(device: Device) -> Dispatch:
    """The dispatch policy published for the vendor or fitted for the device; not confirmed from Hopper on."""
    if "queue_hold" in device.facts:
        return HeldQueue(model_number(device, "queue_hold", 1.0))
    return DISPATCHES["cut-ahead" if device.vendor == "amd" else "strict"]


def simulate(
    workload: Workload, device: Device, controls: Sequence[Control] = (), settings: Settings | None = None
) -> Prediction:
    """What happens when the workload runs on the device under the controls."""
    settings = settings or Settings()
    dispatch = settings.dispatch or vendor_dispatch(device)
    plain = compile_for(workload, device, (), dispatch, settings)
    chosen = compile_for(workload, device, controls, dispatch, settings) if controls else plain
    engine, fluid = _engine(chosen.program, settings), settings.engine == "fluid"
    if fluid:
        result = fluid_run(chosen.program, full=engine, dispatch=dispatch, hbm=settings.hbm)
    else:
        result = run(chosen.program, engine=engine, dispatch=dispatch, hbm=settings.hbm, record=settings.record)
    one_rank = replace(plain.program, ranks=1, ops=_first_rank(plain.program))
    base = _baseline(one_rank, engine, dispatch, settings.hbm, fluid)
    return Prediction(
        workload=workload,
        device=device,
        controls=tuple(controls),
        t_ns=result.end_ns,
        t_compute_ns=base.compute_ns,
        t_comm_ns=base.comm_ns,
        t_sequential_ns=base.sequential_ns,
        timeline=timeline_of(chosen.program, result, device),
        engine="fluid" if fluid and result.fallback is None else engine,
        dispatch=dispatch.name,
        hbm=settings.hbm.name,
        jitter=settings.jitter,
        blocks=sum(op.blocks for op in chosen.program.ops),
        assumed=chosen.assumed,
        without_effect=chosen.without_effect,
        fallback=result.fallback,
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
        jitter=settings.jitter,
        seed=settings.seed,
        skew_ns=skew,
        mechanisms=settings.mechanisms,
    )


def _engine(program: Program, settings: Settings) -> Engine:
    """The engine of a full run; what the fluid engine cannot describe takes the one that `auto` would."""
    if settings.engine in ("class", "block"):
        return settings.engine
    return "block" if program.jitter or _fewest_waves(program) < FEW_WAVES else "class"


def _fewest_waves(program: Program) -> float:
    sms, empty = sum(site.sms for site in program.sites), room_left(program.sm, ())
    waves = [
        op.blocks / (sms * max(capacity(op.block, empty), 1))
        for op in program.ops
        if op.kind == "kernel" and op.block is not None
    ]
    return min(waves, default=float(FEW_WAVES))


def _first_rank(program: Program) -> tuple[EngineOp, ...]:
    return tuple(op for op in program.ops if op.rank == 0)


@dataclass(frozen=True, slots=True)
class _Baseline:
    """Times of the same operations without overlap."""

    compute_ns: float
    comm_ns: float
    sequential_ns: float


@lru_cache(maxsize=512)
def _baseline(program: Program, engine: Engine, dispatch: Dispatch, hbm: SharingPolicy, fluid: bool) -> _Baseline:
    """All kernels alone, all collectives alone, and every operation alone. Cached: a sweep repeats it."""

    def alone(ops: tuple[EngineOp, ...]) -> float:
        if not ops:
            return 0.0
        part = replace(program, ops=ops)
        if fluid:
            return fluid_run(part, full=engine, dispatch=dispatch, hbm=hbm).end_ns
        return run(part, engine=engine, dispatch=dispatch, hbm=hbm).end_ns

    by_itself = [replace(op, name="", group="", stream="", after=(), launch_ns=0.0, priority=0) for op in program.ops]
    times = {op: alone((op,)) for op in dict.fromkeys(by_itself)}
    return _Baseline(
        compute_ns=alone(_only(program.ops, "kernel")),
        comm_ns=alone(_only(program.ops, "collective", "copy")),
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
