"""A plan in the words of what people already run. docs/export.md lists the targets and their sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from makeway.act.export.frameworks import megatron, torch
from makeway.act.export.kernels import deepep, transformer_engine, xla
from makeway.act.export.nccl import env, nccl_tuner
from makeway.act.export.values import Exported, Library, library_of, spelled
from makeway.values.control import control_word
from makeway.values.errors import InputError, UnknownNameError, suggestion
from makeway.values.plan import Plan

TARGETS: dict[str, Callable[[Plan, Library], Exported]] = {
    "env": env,
    "nccl-tuner": nccl_tuner,
    "torch": torch,
    "megatron": megatron,
    "transformer-engine": transformer_engine,
    "deepep": deepep,
    "xla": xla,
}


def export_plan(plan: Plan, target: str, *, nccl: str | None = None, groups: Sequence[str] | None = None) -> Exported:
    """The plan for `target`, with what of it the target carries.

    `nccl` is the version in use, where the plan's library does not say it; `groups` are Megatron's process groups.
    """
    if target not in TARGETS:
        raise UnknownNameError(f"no export target {target!r}{suggestion(target, TARGETS)}\nKnown: {', '.join(TARGETS)}")
    library = library_of(plan, nccl)
    if groups is None:
        return TARGETS[target](plan, library)
    if target != "megatron":
        raise InputError(f"process groups are Megatron's; {target} has none")
    return megatron(plan, library, groups)


def export_document(target: str, exported: Exported) -> dict[str, Any]:
    """An export as data."""
    return {
        "target": target,
        "text": exported.text,
        "carried": [
            {
                "control": control_word(answer.control),
                "settings": [spelled(key, value) for key, value in answer.settings],
                "note": answer.note,
            }
            for answer in exported.carried
        ],
        "not_carried": [
            {"control": control_word(answer.control), "reason": answer.reason} for answer in exported.not_carried
        ],
    }
