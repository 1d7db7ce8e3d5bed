"""A plan for an unmodified program, applied when the program makes its process group.

`begin` runs while the program imports torch, so this module loads neither torch nor anything that needs it; the rest
waits for the first `torch.distributed.init_process_group`. Errors never reach the program: they go to the receipts.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from makeway.act.torch.replacing import replace_everywhere

if TYPE_CHECKING:
    from makeway.act.torch.process import Process


def begin(plan_path: str, receipts_dir: str | None) -> None:
    """Apply the plan in this process once it has a process group; a second call does nothing."""
    distributed = importlib.import_module("torch.distributed")
    if not hasattr(distributed, _FIRST):  # torch was built without torch.distributed
        return
    if distributed.init_process_group.__module__ == __name__:
        return
    start = functools.cache(lambda: _process(plan_path, receipts_dir))
    for name, wrap in _WRAPPERS.items():
        replace_everywhere(getattr(distributed, name), wrap(getattr(distributed, name), start))


def _process(plan_path: str, receipts_dir: str | None) -> Process:
    from makeway.act.torch.process import Process

    return Process(Path(plan_path), Path(receipts_dir) if receipts_dir else None)


def _ours(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As functools.wraps, but the module stays ours, by which a second `begin` recognises the first."""
    kept = [name for name in functools.WRAPPER_ASSIGNMENTS if name != "__module__"]
    return functools.wraps(original, assigned=kept)


def _making(original: Callable[..., Any], start: Callable[[], Process]) -> Callable[..., Any]:
    @_ours(original)
    def make_group(*args: Any, **kwargs: Any) -> Any:
        process = start()
        result = original(*args, **process.group_options(original, args, kwargs))
        if original.__name__ == _FIRST:
            process.group_made()
        else:
            process.group_added()
        return result

    return make_group


def _destroying(original: Callable[..., Any], start: Callable[[], Process]) -> Callable[..., Any]:
    @_ours(original)
    def destroy_process_group(group: Any = None) -> Any:
        start().group_goes(group)
        return original(group)

    return destroy_process_group


_FIRST = "init_process_group"
_WRAPPERS = {_FIRST: _making, "new_group": _making, "destroy_process_group": _destroying}
