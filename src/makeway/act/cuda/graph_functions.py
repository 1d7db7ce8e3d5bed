"""The functions behind kernel nodes: the control for each, and its limit of dynamic shared memory.

Thousands of nodes share few functions: names are matched and limits raised once per function. Not yet run on hardware.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from makeway.act.cuda.graph_nodes import LARGEST_SMEM_BYTES, GraphDriver, NodeState
from makeway.act.preload.rules import rules_of
from makeway.read.traces.classify import load_comm_names
from makeway.values.control import CommPriority, Control, SmemPad
from makeway.values.errors import UnsupportedError
from makeway.values.plan import Plan

ONE_WAVE = "its grid is what fits on the device at once: with the pad some blocks would wait for the others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function, and the control for its nodes."""

    key: tuple[int, int]  # handles: (CUfunction, CUkernel)
    name: str
    comm: bool
    control: Control | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """A function's raised limit of dynamic shared memory, as read back."""

    kernel: str
    before_bytes: int
    after_bytes: int
    function: int = field(repr=False)  # CUfunction


@dataclass(slots=True, kw_only=True)
class _Limit:
    kernel: str
    before_bytes: int
    now_bytes: int
    refused_bytes: int | None = None  # the smallest refused
    refusal: str = ""


class Functions:
    """The functions of one graph under one plan. The first matching pad wins; comm is never padded."""

    def __init__(self, calls: GraphDriver, plan: Plan) -> None:
        rules = rules_of(plan)
        pads = [control for control in plan.controls if isinstance(control, SmemPad)]
        self._calls = calls
        self._pads = list(zip(rules.launches, pads, strict=True))
        self._raise_comm = rules.raise_comm_priority
        self._comm_names = load_comm_names()
        self._functions: dict[tuple[int, int], Function] = {}
        self._loaded: dict[tuple[int, int], int] = {}
        self._limits: dict[int, _Limit] = {}
        self._greatest: int | None = None
        self._preferring: dict[int, bool] = {}
        self._crowds: dict[tuple[object, ...], int] = {}  # grids that exactly fill the device without the pad

    def of(self, params: Any) -> Function:
        """The function of a node with these parameters."""
        key = (int(params.func), int(params.kern))
        try:
            return self._functions[key]
        except KeyError:
            function = self._functions[key] = self._matched(key)
            return function

    def _matched(self, key: tuple[int, int]) -> Function:
        name = self._calls.name(key)
        comm = self._comm_names.find(name) is not None
        control: Control | None = None
        if comm:
            control = CommPriority() if self._raise_comm else None
        else:
            control = next((pad for rule, pad in self._pads if fnmatchcase(name, rule.pattern)), None)
        return Function(key=key, name=name, comm=comm, control=control)

    def notes(self) -> tuple[str, ...]:
        """Patterns that a graph cannot match: it knows names, not code objects."""
        return tuple(
            f"{rule.pattern}: a graph gives kernel names, not code; the launch shim matches code"
            for rule, _ in self._pads
            if rule.pattern.startswith("code:")
        )

    def greatest_priority(self) -> int:
        """The priority of communication on the current device."""
        if self._greatest is None:
            least, greatest = self._calls.priorities()
            if least == greatest:
                raise UnsupportedError("this device has a single priority")
            self._greatest = greatest
        return self._greatest

    # --- limits --------------------------------------------------------------------------------

    def _function(self, function: Function, params: Any) -> int:
        func = self._loaded.get(function.key)
        if func is None:
            func = self._loaded[function.key] = self._calls.loaded(function.key, int(params.ctx))
        return func

    def may_carve(self, function: Function, params: Any) -> bool:
        """Whether the largest shared memory may be asked for: not where the program has a preference of its own."""
        func = self._function(function, params)
        if func not in self._preferring:
            self._preferring[func] = self._calls.prefers_carve_out(func)
        return not self._preferring[func]

    def stands(self, function: Function, params: Any, before: NodeState, smem_bytes: int) -> None:
        """Refuse a pad that would keep blocks from running together which the program launches together."""
        func, threads = self._function(function, params), params.blockDimX * params.blockDimY * params.blockDimZ
        shape = (func, threads, before.smem_bytes, smem_bytes, before.cluster_sides)
        if shape not in self._crowds:
            if before.cluster > 1 and not self._calls.clusters(func, params, smem_bytes, before.cluster_sides):
                raise UnsupportedError(f"with the pad no whole cluster of {before.cluster} blocks would fit")
            plain, padded = (
                self._calls.resident_blocks(func, threads, each) for each in (before.smem_bytes, smem_bytes)
            )
            self._crowds[shape] = plain * self._calls.sms() if padded < plain else 0
        if params.gridDimX * params.gridDimY * params.gridDimZ == self._crowds[shape]:
            raise UnsupportedError(ONE_WAVE)

    def permit(self, function: Function, params: Any, smem_bytes: int) -> None:
        """Raise the function's limit to that size if needed, or say why it cannot be raised."""
        func = self._function(function, params)
        limit = self._limits.get(func)
        if limit is None:
            now = self._calls.limit_bytes(func)
            limit = self._limits[func] = _Limit(kernel=function.name, before_bytes=now, now_bytes=now)
        if smem_bytes <= limit.now_bytes:
            return
        if limit.refused_bytes is None or smem_bytes < limit.refused_bytes:
            self._raise(func, limit, smem_bytes)
        if smem_bytes > limit.now_bytes:
            raise UnsupportedError(limit.refusal)

    def _raise(self, func: int, limit: _Limit, smem_bytes: int) -> None:
        try:
            if smem_bytes > LARGEST_SMEM_BYTES:
                raise UnsupportedError(f"a limit is at most {LARGEST_SMEM_BYTES:,}")
            self._calls.set_limit(func, smem_bytes)
            limit.now_bytes = self._calls.limit_bytes(func)
            answer = f"the limit stayed at {limit.now_bytes:,}"
        except UnsupportedError as error:
            answer = str(error)
        if limit.now_bytes < smem_bytes:
            limit.refused_bytes = smem_bytes
            limit.refusal = f"{smem_bytes:,} bytes of dynamic shared memory: {answer}{self._allowed(func)}"

    def _allowed(self, func: int) -> str:
        """What the device allows, where the driver reports it."""
        try:
            allowed = self._calls.block_bytes() - self._calls.static_bytes(func)
        except UnsupportedError:
            return ""
        return f"; the device allows this kernel {allowed:,}"

    def settle(self, applied: Iterable[NodeState]) -> tuple[LimitChange, ...]:
        """The limits that were raised; what a node raised that was then refused is lowered again."""
        needed: dict[int, int] = {}
        for node in applied:
            if (func := self._loaded.get(node.function)) is not None:
                needed[func] = max(needed.get(func, 0), node.smem_bytes)
        raised = [
            LimitChange(
                kernel=limit.kernel, before_bytes=limit.before_bytes, after_bytes=limit.now_bytes, function=func
            )
            for func, limit in self._limits.items()
            if limit.now_bytes != limit.before_bytes
        ]
        settled = [lowered(self._calls, limit, needed.get(limit.function, 0)) for limit in raised]
        return tuple(limit for limit in settled if limit.after_bytes != limit.before_bytes)


def lowered(calls: GraphDriver, limit: LimitChange, needed_bytes: int = 0) -> LimitChange:
    """Lower a limit again, no further than is needed, unless somebody has set it since, and read it back."""
    least_bytes = max(limit.before_bytes, needed_bytes)
    if calls.limit_bytes(limit.function) == limit.after_bytes > least_bytes:
        with suppress(UnsupportedError):  # the value read back shows it
            calls.set_limit(limit.function, least_bytes)
    return LimitChange(
        kernel=limit.kernel,
        before_bytes=limit.before_bytes,
        after_bytes=calls.limit_bytes(limit.function),
        function=limit.function,
    )
