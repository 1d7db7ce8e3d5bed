"""A plan for an unmodified program, applied when the program makes its process group.

`begin` runs while the program imports torch, so this module loads neither torch nor anything that needs it; the rest
waits for the first `torch.distributed.init_process_group`. Errors never reach the program: they go to the receipts.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from makeway.act.cpu.threads import new_threads_named
from makeway.act.launch.start.sitecustomize import write_error
from makeway.act.torch.replacing import Function, Original, replace_everywhere, stand_in

if TYPE_CHECKING:
    from makeway.act.torch.process import Process

_FIRST = "init_process_group"
_REPLACED: list[Function] = []  # what stands in for torch's functions


def begin(plan_path: str, receipts_dir: str | None) -> None:
    """Apply the plan in this process once it has a process group; a second call does nothing."""
    distributed = importlib.import_module("torch.distributed")
    if _REPLACED or not hasattr(distributed, _FIRST):  # torch may be built without torch.distributed
        return

    @functools.cache
    def process() -> Process:
        from makeway.act.torch.process import Process

        return Process(Path(plan_path), Path(receipts_dir) if receipts_dir else None)

    def failed(error: Exception) -> None:
        if process.cache_info().currsize:
            process().fail(error)
        else:
            write_error(receipts_dir, f"the plan could not be applied: {type(error).__name__}: {error}")

    wrappers: dict[str, Callable[[Callable[[], Process], Original], Any]] = {
        _FIRST: _first_group,
        "new_group": _new_group,
        "destroy_process_group": _destroy_group,
    }
    others: dict[Function, Function] = {}
    for name, around in wrappers.items():
        original = getattr(distributed, name)
        others[original] = stand_in(original, functools.partial(around, process), failed)
    replace_everywhere(others)
    _REPLACED.extend(others.values())


def _first_group(process: Callable[[], Process], original: Original) -> Any:
    began_ns = time.perf_counter_ns()
    options = process().group_options(original.given)
    took_ns = time.perf_counter_ns() - began_ns
    with new_threads_named():
        result = original(**options)
    process().group_made(took_ns=took_ns)
    return result


def _new_group(process: Callable[[], Process], original: Original) -> Any:
    with new_threads_named():
        result = original(**process().group_options(original.given))
    process().group_added()
    return result


def _destroy_group(process: Callable[[], Process], original: Original) -> Any:
    process().group_goes(original.given.get("group"))
    return original()
