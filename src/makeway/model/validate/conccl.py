"""ConCCL's ladder on MI300X (arXiv 2412.14335): share of ideal, step by step.

The 30 scenarios are not published: those of the presets are assumed. Two numbers of the MI300X are fitted to the steps
whose collectives run on CUs, so those rows are a calibration; copy engines depend on neither and are predicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from makeway.model.presets import load_preset, preset_names
from makeway.model.simulate.channels import partition_with_channels
from makeway.model.simulate.policies import DISPATCHES
from makeway.model.simulate.predict import Settings, simulate
from makeway.model.validate.rows import Row
from makeway.values.control import Control, CopyEngine, LaunchOrder, SmPartition
from makeway.values.device import Device, load_device
from makeway.values.errors import InputError

SOURCE = "arXiv 2412.14335 (ConCCL)"
PUBLISHED = {
    "naive": 21.0,
    "launch order": 42.0,
    "reservation": 41.0,
    "copy engine": 66.0,
    "copy engine, 8 CUs fewer": 72.0,
}
BEST_SPEEDUP = 1.67
_FITTED = ("queue_hold", "overlap_comm_loss")
_RESERVED_CUS = (16, 32, 64, 128)  # powers of two, as the paper swept


@dataclass(frozen=True, slots=True)
class Ladder:
    """Average share of ideal per step, in percent, and the best speed-up over sequential."""

    steps: dict[str, float]
    best: float


def ladder(device: Device) -> Ladder:
    """The ladder over all scenarios on a device."""
    shares: dict[str, list[float]] = {step: [] for step in PUBLISHED}
    best = 1.0
    dispatch = None if "queue_hold" in device.facts else DISPATCHES["cut-ahead"]
    settings = Settings(engine="class", dispatch=dispatch)
    for name in (name for name in preset_names() if name.startswith("conccl-")):
        workload = load_preset(name, device)
        runs: dict[str, list[tuple[Control, ...]]] = {
            "naive": [()],
            "launch order": [(LaunchOrder(),)],
            "reservation": [partition_with_channels(workload, device, cus) for cus in _RESERVED_CUS],
            "copy engine": [(CopyEngine(),)],
            "copy engine, 8 CUs fewer": [(CopyEngine(),), (CopyEngine(), SmPartition(8))],
        }
        for step, choices in runs.items():
            predictions = [simulate(workload, device, choice, settings) for choice in choices]
            fastest = min(predictions, key=lambda prediction: prediction.t_ns)
            share = fastest.share_of_ideal
            if share is None:
                raise InputError(f"{name} leaves nothing to gain on {device.name}")
            shares[step].append(100 * share)
            best = max(best, fastest.t_sequential_ns / fastest.t_ns)
    return Ladder({step: fmean(values) for step, values in shares.items()}, best)


def without_fit(device: Device) -> Device:
    """The device without the numbers fitted to the ladder."""
    return replace(device, facts={key: fact for key, fact in device.facts.items() if key not in _FITTED})


def conccl_rows() -> Iterator[Row]:
    """The ladder with the fitted numbers, and without."""
    device = load_device("MI300X")
    yield from ladder_rows(device)
    yield from ladder_rows(without_fit(device), label=", no fitted number")


def ladder_rows(device: Device, *, label: str = "") -> Iterator[Row]:
    """Each step of the ladder beside the published one, and the largest speed-up."""
    steps = ladder(device)
    for step, published in {**PUBLISHED, "largest speed-up": BEST_SPEEDUP}.items():
        calibrated = "queue_hold" in device.facts and not step.startswith(("copy", "largest"))
        speedup = step == "largest speed-up"
        yield Row(
            source=SOURCE,
            device="MI300X",
            case=f"{step}{'' if speedup else ', share of ideal'}{label}",
            published=published,
            predicted=steps.best if speedup else steps.steps[step],
            unit="x" if speedup else "%",
            status="calibration" if calibrated else "predicted",
            calibrated_on="two numbers fitted to these three steps" if calibrated else "mechanisms only",
            assumed=("30 scenarios assumed",),
        )
