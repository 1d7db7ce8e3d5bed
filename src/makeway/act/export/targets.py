"""`export`: a plan as the settings of a library or framework. docs/export.md lists the targets."""

from __future__ import annotations

import re
from collections.abc import Sequence

from makeway.act.export.frameworks import DEFAULT_GROUPS, MEGATRON, TORCH
from makeway.act.export.kernels import DEEPEP, TRANSFORMER_ENGINE, XLA
from makeway.act.export.nccl import ENV, NCCL_TUNER
from makeway.act.export.values import Export, Library, Request, Target, library_of
from makeway.values.errors import InputError, UnknownNameError, suggestion
from makeway.values.plan import Plan

TARGETS: dict[str, Target] = {
    "env": ENV,
    "nccl-tuner": NCCL_TUNER,
    "torch": TORCH,
    "megatron": MEGATRON,
    "transformer-engine": TRANSFORMER_ENGINE,
    "deepep": DEEPEP,
    "xla": XLA,
}


def export(plan: Plan, target: str, *, library: str | None = None, groups: Sequence[str] | None = None) -> Export:
    """The plan as `target` takes it, with the controls that it carries and those that it does not.

    `library` is the one in use ("nccl-2.27.5") where the plan does not say; `groups` are Megatron's process groups.
    """
    if target not in TARGETS:
        raise UnknownNameError(f"no export target {target!r}{suggestion(target, TARGETS)}\nKnown: {', '.join(TARGETS)}")
    if groups is not None:
        _check_groups(target, groups)
    request = Request(plan=plan, library=library_of(plan, library), groups=tuple(groups or DEFAULT_GROUPS))
    return TARGETS[target].export(target, request)


def environment(plan: Plan, library: Library) -> Export:
    """The plan as environment variables for a library that is known."""
    return ENV.export("env", Request(plan=plan, library=library))


def _check_groups(target: str, groups: Sequence[str]) -> None:
    if target != "megatron":
        raise InputError(f"process groups are Megatron's; {target} has none")
    for group in groups:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", group):
            raise InputError(f"{group!r} is no name of a Megatron process group; write for example dp,ep")
    if not groups:
        raise InputError("no process groups to export for; write for example --groups dp,ep")
