"""Sweeps: one knob over its values; and the same run under each unconfirmed hardware policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from makeway.model.residency import pad_range, resident_blocks
from makeway.model.simulate.kept_runs import kept_run
from makeway.model.simulate.policies import DISPATCHES, HBM_POLICIES
from makeway.model.simulate.predict import Alternative, Prediction, Settings, compile_for, simulate, vendor_dispatch
from makeway.model.simulate.spread import BLOCK_SPREAD
from makeway.values.control import CommBlocks, CommPriority, Control, SmemPad
from makeway.values.device import Device
from makeway.values.errors import InputError
from makeway.values.workload import Gemm, KernelOp, Workload

SweepKind = Literal["pad", "priority", "comm-blocks", "grid"]
MANY_BLOCKS = 150_000  # more take the block engine several seconds under each policy
_BLOCK_COUNTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
_GRID_SIDES = (2, 4, 8, 16, 32, 64, 128)
_Point = tuple[str, Workload, tuple[Control, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One value of a sweep: its prediction, or why it cannot run."""

    label: str
    prediction: Prediction | None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One knob over its values, everything else fixed."""

    kind: SweepKind
    workload: Workload
    device: Device
    outcomes: tuple[Outcome, ...]


def sweep(
    kind: SweepKind,
    workload: Workload,
    device: Device,
    controls: Sequence[Control] = (),
    settings: Settings | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> Sweep:
    """The workload's predictions over the values of one knob."""
    points = list(_points(kind, workload, device, tuple(controls)))
    outcomes = []
    for at, (label, changed, chosen) in enumerate(points, start=1):
        if progress:
            progress(f"simulating {at} of {len(points)}: {label}")
        try:
            outcomes.append(Outcome(label=label, prediction=simulate(changed, device, chosen, settings)))
        except InputError as error:
            outcomes.append(Outcome(label=label, prediction=None, error=str(error)))
    return Sweep(kind=kind, workload=workload, device=device, outcomes=tuple(outcomes))


def _points(kind: SweepKind, workload: Workload, device: Device, base: tuple[Control, ...]) -> Iterator[_Point]:
    """The values of the knob: a label, the workload and its controls."""
    match kind:
        case "pad":
            for pad in _pads(workload, device):
                yield f"pad {pad:,} B", workload, (*_without(base, SmemPad), *((SmemPad(pad),) if pad else ()))
        case "priority":
            plain = _without(base, CommPriority)
            yield "equal priority", workload, plain
            yield "comm priority", workload, (*plain, CommPriority())
        case "comm-blocks":
            for count in _BLOCK_COUNTS:
                yield f"{count} blocks", workload, (*_without(base, CommBlocks), CommBlocks(count))
        case "grid":
            for y, x in product(_GRID_SIDES, _GRID_SIDES):
                yield f"{x}x{y}", _with_grid(workload, x, y), base


def with_alternatives(prediction: Prediction, settings: Settings) -> Prediction:
    """The prediction with the same run under each dispatch and sharing policy.

    Equal block times hide starvation, so a prediction with equal ones is judged with `BLOCK_SPREAD` here.
    """
    return replace(prediction, alternatives=tuple(_alternatives(prediction, settings)))


def _alternatives(prediction: Prediction, settings: Settings) -> Iterator[Alternative]:
    workload, device = prediction.workload, prediction.device
    other = DISPATCHES["backfill" if device.vendor == "nvidia" else "shader-engines"]
    spread = replace(settings, engine="block", jitter=settings.jitter or BLOCK_SPREAD)
    for dispatch in dict.fromkeys((settings.dispatch or vendor_dispatch(device), vendor_dispatch(device), other)):
        compiled = compile_for(workload, device, prediction.controls, dispatch, spread)
        for hbm in HBM_POLICIES.values():
            time_ns = kept_run(compiled.program, "block", dispatch, hbm).end_ns
            yield Alternative(
                dispatch=dispatch.name,
                hbm=hbm.name,
                jitter=spread.jitter or BLOCK_SPREAD,
                t_ns=time_ns,
                share_of_ideal=prediction.share_of(time_ns),
            )


def _without(controls: tuple[Control, ...], kind: type[Control]) -> tuple[Control, ...]:
    return tuple(control for control in controls if not isinstance(control, kind))


def _pads(workload: Workload, device: Device) -> list[int]:
    """No pad, and for each residency of each kernel the smallest pad that still lets every kernel launch."""
    pads = {0}
    for kernel in workload.kernels:
        for blocks in range(1, resident_blocks(device, kernel.resources)):
            if pad := pad_range(device, kernel.resources, blocks):
                pads.add(pad.smallest_bytes)
    most = min((device.sm.smem_block_bytes - kernel.resources.smem_bytes for kernel in workload.kernels), default=0)
    return sorted(pad for pad in pads if pad <= most)


def _with_grid(workload: Workload, x: int, y: int) -> Workload:
    if not any(isinstance(kernel.work, Gemm) for kernel in workload.kernels):
        raise InputError("a grid sweep needs a workload with matrix products")
    operations = tuple(
        replace(op, work=replace(op.work, grid=(x, y)))
        if isinstance(op, KernelOp) and isinstance(op.work, Gemm)
        else op
        for op in workload.operations
    )
    return replace(workload, operations=operations)
