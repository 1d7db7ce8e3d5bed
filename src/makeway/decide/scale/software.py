"""Which generation's numbers stand for a device and its software; scaled by facts where none was calibrated.

Shares of a peak carry over between devices better than rates, and what a library reaches on the best shape is known for
more devices than were calibrated. `validate scale` measures what this costs: it predicts each generation's rows as if
that generation had not been seen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from makeway.decide.scale.generation import Generation, known_generations, load_generation
from makeway.decide.scale.timing import narrow_peaks
from makeway.values.device import Device, load_device
from makeway.values.errors import UnknownNameError
from makeway.values.layout import Precision

# Share of the 16-bit peak that the best shape of a search reaches (stas00/ml-engineering, maximum achievable matmul
# FLOPS in compute/accelerator/README.md).
BEST_GEMM = {
    "A100-SXM4-80GB": 0.869, "A100-SXM4-40GB": 0.869, "A800-SXM4-80GB": 0.869, "GH200-96GB": 0.838,
    "H100-SXM5-80GB": 0.803, "B200": 0.776, "B300": 0.786, "GB200": 0.729, "MI300X": 0.514, "MI325X": 0.604,
    "MI355X": 0.680,
}  # fmt: skip
# Watts per GPU, where products of one family are bound by power: https://verda.com/blog/gb300-nvl72-architecture.
# MLPerf Training 5.1 (Llama 3.1 8B on 8 GPUs) says the same: GB300 is 1.18 times as fast as GB200, B300 1.11 as B200.
WATTS = {"GB300": 1400, "GB200": 1200, "B300": 1100, "B200": 1000}
# Shares of narrow peaks over the next wider share, about the mean of the generations that have both.
FP8_OVER_16, FP4_OVER_FP8 = 0.85, 0.85
# NVIDIA's tuned recipes, other Megatron, fully sharded PyTorch: words that name them, the first that occurs counts.
_FAMILIES = (
    ("nemo", "bridge", "dgxc"),
    ("megatron", "deepspeed", "primus"),
    ("fsdp", "torch", "titan", "composer", "foundry"),
)
_RECIPES, _MEGATRON, _SHARDED = range(3)
_RELEASE = re.compile(r"(?<![\d.])(?:(?P<year>20[12]\d)(?!\d)|(?P<release>2\d)\.(?:0[1-9]|1[0-2])(?!\d))")


@dataclass(frozen=True, slots=True)
class Choice:
    """Numbers to predict with, and what taking them assumes."""

    generation: Generation
    assumed: tuple[str, ...] = ()


def newest_generation(device: Device, precision: Precision = "bf16") -> tuple[Generation, tuple[str, ...]]:
    """The numbers to use for a device when no software is named, and what that assumes."""
    choice = choose(device, precision=precision)
    return choice.generation, choice.assumed


def choose(
    device: Device, where: str = "", *, precision: Precision = "bf16", tensor: bool = True, without: str = ""
) -> Choice:
    """The numbers for a device with the software that `where` tells of; `without` one generation, to test the others.

    `tensor`: the layout has tensor or pipeline parallelism, which says which family of software when `where` does not.
    """
    every = [item for name in known_generations() if name != without and (item := load_generation(name))]
    own = [item for item in every if item.device == device.name]
    marked = max(own, key=lambda item: _marks(item, where), default=None)
    if marked is not None and _marks(marked, where):
        return Choice(*_narrow(marked, precision))
    wanted = _wanted(where, tensor) if where else None
    kin = _kin(own, wanted) if own else []
    assumed: tuple[str, ...] = ()
    if not kin:
        kin, assumed = _elsewhere(device, every, wanted, own)
    marked = max(kin, key=lambda item: _marks(item, where))
    nearest, narrow = _narrow(marked if _marks(marked, where) else _of_year(kin, where), precision)
    return Choice(nearest, (f"software as fast as {nearest.software} on {nearest.device}", *assumed, *narrow))


def _of_year(kin: Sequence[Generation], where: str) -> Generation:
    """The software nearest to the year that a release or a date names; the newest without one."""
    named = _RELEASE.search(where)
    if named is None:
        return max(kin, key=lambda item: item.software)
    year = int(named["year"] or f"20{named['release']}")
    return min(sorted(kin, key=lambda item: item.software, reverse=True), key=lambda item: abs(_year(item) - year))


def _year(generation: Generation) -> int:
    return int(generation.software.split()[0])


def _kin(own: Sequence[Generation], wanted: int | None) -> list[Generation]:
    """Those of the family; for other Megatron also NVIDIA's recipes of it, and the other way round."""
    if wanted is None:
        return list(own)
    near = (wanted,) if wanted == _SHARDED else (wanted, _RECIPES + _MEGATRON - wanted)
    families = {family: [item for item in own if _family(item.software.lower()) == family] for family in near}
    return next((items for items in families.values() if items), [])


def _elsewhere(
    device: Device, every: Sequence[Generation], wanted: int | None, own: Sequence[Generation]
) -> tuple[list[Generation], tuple[str, ...]]:
    """The family's numbers on the nearest device, scaled; without any, what the device itself has.

    Software without fused attention does not stand for software of another device.
    """
    others = [item for item in every if item.device != device.name and (item.fused_attention or not own)]
    related = [item for item in others if _kin([item], wanted)] or ([] if own else others)
    if not related:
        return list(own), ()
    near = _nearest(device, related)
    kin = _kin([item for item in related if item.device == near.name], wanted) or related
    why = f"this software has no numbers on {device.name}" if own else f"{device.name} has no numbers of its own"
    scaled = [_scaled(item, near, device) for item in kin if item.device == near.name]
    return scaled, (f"{why}: those of {near.name} stand in, scaled by what is known",)


def _marks(generation: Generation, where: str) -> int:
    return sum(mark.lower() in where for mark in generation.sources)


def _family(text: str) -> int | None:
    return next((number for number, words in enumerate(_FAMILIES) if any(word in text for word in words)), None)


def _wanted(where: str, tensor: bool) -> int:
    named = _family(where)
    return named if named is not None else (_MEGATRON if tensor else _SHARDED)


def _nearest(device: Device, every: Sequence[Generation]) -> Device:
    """The device with numbers that is most like this one: its vendor, its architecture, its peak."""
    if device.fp16_flops_per_s is None or device.hbm_bytes_per_s is None:
        raise UnknownNameError(
            f"no calibrated numbers for {device.name}, and its peak rates are not known, so none can be scaled.\n"
            f"Known: {', '.join(dict.fromkeys(item.device for item in every))}."
        )
    peak, memory = device.fp16_flops_per_s, device.hbm_bytes_per_s

    def distance(name: str) -> tuple[bool, bool, float]:
        other = load_device(name)
        ratios = ((other.fp16_flops_per_s or 1.0) / peak, (other.hbm_bytes_per_s or 1.0) / memory)
        return other.vendor != device.vendor, other.arch != device.arch, sum(abs(math.log(ratio)) for ratio in ratios)

    return load_device(min((item.device for item in every), key=distance))


def _scaled(generation: Generation, near: Device, device: Device) -> Generation:
    """The shares of another device's generation, with what the best product reaches on each.

    Narrow products of one family are bound by power: their rates grow with it, not with the peak.
    """
    power = WATTS.get(device.name, 0) / WATTS.get(near.name, 1) if near.name in WATTS else 0.0
    best = BEST_GEMM[device.name] / BEST_GEMM.get(near.name, 1.0) if device.name in BEST_GEMM else power or 1.0
    eight, four = (
        power * mine / its
        if power and (mine := narrow_peaks(near)[bits]) and (its := narrow_peaks(device)[bits])
        else best
        for bits in range(2)
    )
    return replace(
        generation,
        name=f"{generation.name}, scaled to {device.name}",
        gemm_share=min(0.95, generation.gemm_share * best),
        gemm_share_fp8=min(0.95, generation.gemm_share_fp8 * eight),
        gemm_share_fp4=min(0.95, generation.gemm_share_fp4 * four),
        attention_share=generation.attention_share * best,
        attention_backward_share=generation.attention_backward_share * best,
        calibrated_on=(),
    )


@cache
def _narrow(generation: Generation, precision: Precision) -> tuple[Generation, tuple[str, ...]]:
    """The generation with shares of the narrow peaks, assumed where no such steps were seen."""
    assumed: tuple[str, ...] = ()
    if precision in ("fp8", "fp4") and not generation.gemm_share_fp8:
        generation = replace(generation, gemm_share_fp8=FP8_OVER_16 * generation.gemm_share)
        assumed = (f"8-bit products reach {FP8_OVER_16:g} of the share that 16-bit ones do",)
    if precision == "fp4" and not generation.gemm_share_fp4:
        generation = replace(generation, gemm_share_fp4=FP4_OVER_FP8 * generation.gemm_share_fp8)
        assumed = (*assumed, f"4-bit products reach {FP4_OVER_FP8:g} of the share that 8-bit ones do")
    return generation, assumed
