"""Generations: how fast a device and its software run the parts of a training step, as a dozen named numbers.

The same GPU runs the same layer up to a quarter faster with software that is half a year younger, so numbers belong to
a device and a software generation. scripts/calibrate-scale makes the files of data/generations from published steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from makeway.values.errors import DataFileError, UnknownNameError, suggestion
from makeway.values.facts import Fact, data_files, parse_toml, read_facts, refuse_unknown, text, texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One device with one generation of software. Shares are of the device's peak or specified rate."""

    name: str
    device: str
    software: str
    sources: tuple[str, ...] = ()  # tables whose rows are of this software, by the start of their names
    fused_attention: bool = True  # flash attention; else scores pass through memory
    gemm_share: float  # of the 16-bit peak, at full tiles and a long inner dimension
    gemm_share_fp8: float = 0.0  # of the 8-bit peak; 0: no such rows were seen
    gemm_share_fp4: float = 0.0
    gemm_half_k: float  # inner dimension at which half of it is reached
    attention_share: float  # of the 16-bit peak, forward
    attention_backward_share: float
    hbm_share: float
    kernel_ns: float  # from one kernel to the next on the GPU
    host_ns: float  # of one framework operation; 0: a compiled step or a graph
    step_ns: float  # once per step, whatever its size
    hop_ns: float  # of a message between pipeline stages, besides its wire time
    network_share: float  # of what the cluster's file gives for large messages
    grouped_share: float = 1.0  # of gemm_share and hbm_share that products and passes of experts reach
    fused_experts: bool = False  # one kernel multiplies for all experts of a GPU
    overlap_tp: bool = False  # recipes of this software run tensor-parallel collectives beside GEMMs
    facts: Mapping[str, Fact] = field(default_factory=dict, repr=False, compare=False)
    notes: tuple[str, ...] = ()
    calibrated_on: tuple[str, ...] = ()  # row ids
    split: str = ""  # how calibration rows were chosen


_NUMBERS = tuple(
    item.name
    for item in fields(Generation)
    if item.name.endswith(("_share", "_share_fp8", "_share_fp4", "_ns", "_half_k")) and item.name != "facts"
)
NUMBERS = _NUMBERS
_FLAGS = ("fused_attention", "fused_experts", "overlap_tp")
_KEYS = ("name", "device", "software", "rows", "notes", "calibrated_on", "split", "sources", "facts", *_FLAGS)


def known_generations() -> tuple[str, ...]:
    """Names of all generations."""
    return tuple(sorted(item.name.removesuffix(".toml") for item in data_files("generations").iterdir()))


@cache
def load_generation(name: str) -> Generation:
    """The generation of that name."""
    if name not in known_generations():
        known = known_generations()
        raise UnknownNameError(f"no generation {name!r}{suggestion(name, known)}\nKnown: {', '.join(known)}")
    where = f"{name}.toml"
    return read_generation(parse_toml(data_files("generations").joinpath(where).read_bytes(), where=where), where=where)


def read_generation(document: dict[str, Any], *, where: str) -> Generation:
    """The generation that a document describes."""
    refuse_unknown(document, _KEYS, where=where)
    facts = read_facts(document, "facts", where=where)
    refuse_unknown(facts, _NUMBERS, where=where)
    numbers: dict[str, Any] = {}
    for key, fact in facts.items():
        if isinstance(fact.value, tuple):
            raise DataFileError(f"{where}: facts.{key} must be one number")
        numbers[key] = float(fact.value)
    try:
        return Generation(
            name=text(document, "name", where=where),
            device=text(document, "device", where=where),
            software=text(document, "software", where=where),
            sources=texts(document, "rows", where=where),
            notes=texts(document, "notes", where=where),
            calibrated_on=texts(document, "calibrated_on", where=where),
            split=str(document.get("split", "")),
            facts=facts,
            **{flag: bool(document[flag]) for flag in _FLAGS if flag in document},
            **numbers,
        )
    except TypeError as error:
        raise DataFileError(f"{where}: a number is missing ({error})") from None


@cache
def generations_of(device: str) -> tuple[Generation, ...]:
    """All generations of a device, the newest software last."""
    every = [load_generation(name) for name in known_generations()]
    return tuple(sorted((item for item in every if item.device == device), key=lambda item: item.software))
