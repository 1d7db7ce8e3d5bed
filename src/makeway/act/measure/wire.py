"""Jobs to the ranks and benches back: JSON in which a control is its word of the command line."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec

from makeway.act.measure.job import Job
from makeway.act.measure.link import Rate
from makeway.act.measure.outcome import Bench, VariantResult
from makeway.act.measure.variants import Variant
from makeway.values.collective import Collective
from makeway.values.control import control_word, parse_control
from makeway.values.receipt import Receipt
from makeway.values.timeline import Timeline


def encode_job(job: Job) -> bytes:
    """One line of JSON."""
    data = _fields(job)
    data["controls"] = [[control_word(control) for control in controls] for controls in job.controls]
    for name in ("variants", "candidates"):
        data[name] = [_with_words(variant) for variant in data[name]]
    return msgspec.json.encode(data)


def decode_job(line: bytes) -> Job:
    data = msgspec.json.decode(line)
    data["link"] = data["link"] and Rate(**data["link"])
    data["controls"] = tuple(tuple(map(parse_control, words)) for words in data["controls"])
    for name in ("grids", "tiles"):
        data[name] = tuple(map(tuple, data[name]))
    for name in ("variants", "candidates"):
        data[name] = tuple(Variant(**_with_controls(item)) for item in data[name])
    return Job(**data)


def encode_bench(bench: Bench) -> Any:
    """Plain data."""
    return msgspec.to_builtins(_fields(bench) | {"variants": [_with_words(variant) for variant in bench.variants]})


def decode_bench(data: Any) -> Bench:
    data = dict(data)
    data["variants"] = tuple(VariantResult(**_with_controls(item)) for item in data["variants"])
    data["exchange"] = msgspec.convert(data["exchange"], Collective | None)
    data["timeline"] = msgspec.convert(data["timeline"], Timeline | None)
    for name in ("compute_ns", "comm_ns", "compute_cpu_ns", "comm_cpu_ns", "ordered_ns", "joint_ns", "notes"):
        data[name] = tuple(data[name])
    return Bench(**data)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _with_words(variant: Variant | VariantResult) -> dict[str, Any]:
    data = _fields(variant) | {"controls": [control_word(control) for control in variant.controls]}
    if isinstance(variant, VariantResult):
        data["receipts"] = [
            _fields(receipt) | {"control": control_word(receipt.control)} for receipt in data["receipts"]
        ]
    return data


def _with_controls(data: dict[str, Any]) -> dict[str, Any]:
    data = data | {"controls": tuple(map(parse_control, data["controls"]))}
    if "receipts" in data:
        data["times_ns"] = tuple(data["times_ns"])
        data["receipts"] = tuple(_receipt(item) for item in data["receipts"])
    return data


def _receipt(data: dict[str, Any]) -> Receipt:
    evidence = tuple((name, count) for name, count in data["evidence"])
    return Receipt(**data | {"control": parse_control(data["control"]), "evidence": evidence})
