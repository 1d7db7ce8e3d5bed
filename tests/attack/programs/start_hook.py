"""A program that calls torch.distributed in every way its signatures allow, saves its model and profiles itself.

It knows nothing of a plan. Usage: start_hook.py PLACE. Writes PLACE/rank-N.json: by check "ok" or what went wrong.
"""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import json
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

SIZE = 1024
SUM = dist.ReduceOp.SUM
REPLACED = (
    "all_reduce",
    "all_gather_into_tensor",
    "all_gather_single",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "all_to_all_single",
    "init_process_group",
    "new_group",
    "destroy_process_group",
)


Style = tuple[list[str], list[str]]  # names of positional arguments, names of keywords


def styles(function: Callable[..., Any], names: Iterable[str]) -> Iterator[Style]:
    """Every split of the arguments into positional ones and keywords, once with and once without what is optional."""
    parameters = [parameter for name, parameter in inspect.signature(function).parameters.items() if name != "self"]
    given = [parameter for parameter in parameters if parameter.name in set(names)]
    needed = [parameter for parameter in given if parameter.default is inspect.Parameter.empty]
    for chosen in (given, needed):
        leading = 0
        while leading < len(chosen) and chosen[leading] is parameters[leading] and _positional(chosen[leading]):
            leading += 1
        for count in range(leading + 1):
            yield [item.name for item in chosen[:count]], [item.name for item in chosen[count:]]


def called(function: Callable[..., Any], style: Style, values: Mapping[str, Any]) -> Any:
    """The function's answer when it is called in that style."""
    positional, keywords = style
    return function(*(values[name] for name in positional), **{name: values[name] for name in keywords})


def _positional(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Checks:
    """What was tried in this rank, and how it went."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, str] = {}

    def run(self, name: str, check: Callable[[], object]) -> None:
        self.write(name, "hangs")  # until it is known better
        self.write(name, self.outcome(check))

    def write(self, name: str, outcome: str) -> None:
        self.outcomes[name] = outcome
        self.path.write_text(json.dumps(self.outcomes, indent=1))

    def outcome(self, check: Callable[[], object]) -> str:
        try:
            check()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return "ok"


def described(style: Style) -> str:
    positional, keywords = style
    return f"({len(positional)} positional, {', '.join(keywords) or 'no keywords'})"


# --- collectives -------------------------------------------------------------------------------


def collectives(checks: Checks) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = float(sum(range(1, ranks + 1)))

    def own() -> torch.Tensor:
        return torch.full((SIZE,), float(rank + 1))

    def try_all(name: str, values: Callable[[], dict[str, Any]], result: str, expected: torch.Tensor) -> None:
        function = getattr(dist, name)
        for async_op in (False, True):
            for style in styles(function, [*values(), "async_op"]):

                def call(style: Style = style, async_op: bool = async_op) -> None:
                    fresh = {**values(), "async_op": async_op}
                    work = called(function, style, fresh)
                    if work is not None:
                        work.wait()
                    assert torch.equal(fresh[result], expected), "a wrong result"

                checks.run(f"{name}{described(style)} async_op={async_op}", call)

    everyone = torch.cat([torch.full((SIZE,), float(other + 1)) for other in range(ranks)])
    try_all("all_reduce", lambda: {"tensor": own(), "op": SUM, "group": None}, "tensor", torch.full((SIZE,), total))
    for name in ("all_gather_into_tensor", "all_gather_single"):
        try_all(
            name,
            lambda: {"output_tensor": torch.zeros(ranks * SIZE), "input_tensor": own(), "group": None},
            "output_tensor",
            everyone,
        )
    for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
        try_all(
            name,
            lambda: {"output": torch.zeros(SIZE), "input": own().repeat(ranks), "op": SUM, "group": None},
            "output",
            torch.full((SIZE,), total),
        )
    halves = {"output_split_sizes": None, "input_split_sizes": None, "group": None}
    try_all(
        "all_to_all_single",
        lambda: {"output": torch.zeros(ranks * SIZE), "input": own().repeat(ranks), **halves},
        "output",
        everyone,
    )


# --- groups ------------------------------------------------------------------------------------


def groups(checks: Checks) -> None:
    """Each call of `new_group`; ended by name and in turn."""
    values = {"ranks": [0, 1], "timeout": timedelta(seconds=60), "backend": "gloo", "pg_options": None}
    for style in styles(dist.new_group, values):

        def call(style: Style = style) -> None:
            group = called(dist.new_group, style, values)
            tensor = torch.ones(SIZE)
            dist.all_reduce(tensor, group=group)
            assert torch.equal(tensor, torch.full((SIZE,), float(dist.get_world_size()))), "a wrong result"
            if style[0]:
                dist.destroy_process_group(group)
            else:
                dist.destroy_process_group(group=group)

        checks.run(f"new_group{described(style)}", call)


def starts(checks: Checks) -> None:
    """A default group again and again, each with a store of its own; the last one stays."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    names = ("backend", "init_method", "timeout", "world_size", "rank")
    for count in range(len(names) + 1):
        if dist.is_initialized():
            dist.destroy_process_group()
        store = f"file://{checks.path.parent.absolute()}/store-{count}"
        values = dict(zip(names, ("gloo", store, timedelta(seconds=60), ranks, rank), strict=True))
        style = list(names[:count]), list(names[count:])
        checks.run(
            f"init_process_group{described(style)}",
            partial(called, dist.init_process_group, style, values),
        )


def functions(checks: Checks) -> None:
    """What is replaced looks as before, and can be pickled by name."""
    for name in REPLACED:
        function = getattr(dist, name)
        original = inspect.unwrap(function)

        def call(function: Any = function, original: Any = original, name: str = name) -> None:
            for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
                seen, wanted = getattr(function, attribute), getattr(original, attribute)
                assert seen == wanted, f"{attribute} is {seen!r}, was {wanted!r}"
            assert inspect.signature(function) == inspect.signature(original), "another signature"
            assert pickle.loads(pickle.dumps(function)) is getattr(dist, name)

        checks.run(f"the looks of {name}", call)
    methods = ("__init__", "_pre_forward", "register_comm_hook", "_register_builtin_comm_hook")
    for owner, name in (*((DistributedDataParallel, name) for name in methods), (Join, "notify_join_context")):
        method = getattr(owner, name)

        def call_method(method: Any = method) -> None:
            assert inspect.signature(method) == inspect.signature(inspect.unwrap(method)), "another signature"
            assert pickle.loads(pickle.dumps(method)) is method

        checks.run(f"the looks of {owner.__name__}.{name}", call_method)


# --- models ------------------------------------------------------------------------------------


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))


def step(wrapped: torch.nn.Module) -> None:
    wrapped(torch.randn(4, 64)).sum().backward()


def made_and_run(style: Style, values: Mapping[str, Any]) -> None:
    step(called(DistributedDataParallel, style, values))


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def models(checks: Checks) -> None:
    net = model()
    values = {"module": net, "device_ids": None, "output_device": None, "dim": 0, "broadcast_buffers": True}
    for style in styles(DistributedDataParallel.__init__, values):
        checks.run(
            f"DistributedDataParallel{described(style)}",
            partial(made_and_run, style, values),
        )
    hook = {"state": None, "hook": allreduce_hook}
    for style in styles(DistributedDataParallel.register_comm_hook, hook):

        def registers(style: Style = style) -> None:
            wrapped = DistributedDataParallel(model())
            called(wrapped.register_comm_hook, style, hook)
            step(wrapped)

        checks.run(f"register_comm_hook{described(style)}", registers)
    for divided in (True, False):
        for moment in ("before", "after"):
            name = f"join {moment} the first step with divide_by_initial_world_size={divided}"
            checks.run(name, partial(joins, divided, moment))
    checks.run("monitored_barrier", partial(dist.monitored_barrier, timeout=timedelta(seconds=60)))
    for moment in ("before", "after"):
        checks.run(f"torch.save {moment} the first step", partial(saves, moment))
        checks.run(f"copy.deepcopy {moment} the first step", partial(copies, moment))


def joins(divided_by_all: bool, moment: str) -> None:
    """Ranks with different numbers of inputs, which end with the same parameters."""
    torch.manual_seed(dist.get_rank())
    wrapped = prepared(moment)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    with wrapped.join(divide_by_initial_world_size=divided_by_all):
        for _ in range(2 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            step(wrapped)
            optimizer.step()
    for parameter in wrapped.parameters():
        theirs = parameter.detach().clone()
        dist.broadcast(theirs, src=dist.get_world_size() - 1)  # from the rank with most inputs
        assert torch.equal(parameter, theirs), "ranks differ after a join"


def prepared(moment: str) -> DistributedDataParallel:
    wrapped = DistributedDataParallel(model())
    if moment == "after":
        step(wrapped)
    return wrapped


def saves(moment: str) -> None:
    wrapped = prepared(moment)
    file = io.BytesIO()
    torch.save(wrapped, file)
    assert b"makeway" not in file.getvalue(), "only a Python with makeway can load it"
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert same(wrapped, again), "other parameters"
    step(again)


def copies(moment: str) -> None:
    wrapped = prepared(moment)
    again = copy.deepcopy(wrapped)
    assert same(wrapped, again), "other parameters"


# --- the profiler ------------------------------------------------------------------------------


def profiles(checks: Checks) -> None:
    """Each collective, waited for at once or later, and the gradients of a module."""
    ranks = dist.get_world_size()
    small, large = torch.ones(SIZE), torch.ones(ranks * SIZE)
    calls: dict[str, Callable[..., Any]] = {
        "all_reduce": partial(dist.all_reduce, small),
        "all_gather": partial(dist.all_gather_into_tensor, large, small),
        "reduce": partial(dist.reduce_scatter_tensor, small, large),  # Gloo reduces everything
        "all_to_all": partial(dist.all_to_all_single, torch.ones(ranks * SIZE), large),
    }
    for (name, act), async_op in itertools.product(calls.items(), (False, True)):

        def call(act: Callable[..., Any] = act, async_op: bool = async_op) -> None:
            work = act(async_op=async_op)
            if work is not None:
                work.wait()

        checks.run(f"{name} with async_op={async_op} in the profiler", partial(appears, name, call))
    wrapped = prepared("after")
    checks.run("gradients in the profiler", partial(appears, "all_reduce", partial(step, wrapped)))


def appears(name: str, act: Callable[[], None]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        act()
    events = profile.events() or ()
    ranges = [event for event in events if event.name.startswith("gloo:") and name in event.name]
    assert ranges, f"no {name} among {sorted({event.name for event in events})}"
    assert all(event.is_async and event.input_shapes and event.cpu_time > 0 for event in ranges), "not as Gloo's"


def main(place: Path) -> None:
    checks = Checks(place / f"rank-{os.environ['RANK']}.json")
    starts(checks)
    for part in (functions, collectives, groups, models, profiles):
        part(checks)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
