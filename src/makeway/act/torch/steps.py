"""The steps of an unmodified program: each ends when its optimizer's step, or a function that the user names, returns.

Of several optimizers the first that steps counts, as long as it lives: alternating ones, as in adversarial training,
make one step together.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from makeway.act.torch.replacing import Function
from makeway.values.errors import InputError

Ended = Callable[[], None]


class Steps:
    """Calls `at_end` after each step of the program, in the program's thread, until it is closed.

    Errors of `at_end` go to `on_error` and close it: the program goes on.
    """

    def __init__(
        self,
        at_end: Ended,
        on_error: Callable[[Exception], None],
        *,
        marker: str | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        self._at_end, self._on_error = at_end, on_error
        self._owner: weakref.ref[Optimizer] | None = None if optimizer is None else weakref.ref(optimizer)
        self._stack = ExitStack()
        if optimizer is not None:
            self._stack.callback(optimizer.register_step_post_hook(self._after_optimizer).remove)
        elif marker is None:
            handle = register_optimizer_step_post_hook(self._after_optimizer)
            self._stack.callback(handle.remove)
        else:
            self._stack.callback(_after_each(marker, self._after))

    def close(self) -> None:
        """Follow no more steps; harmless when repeated."""
        self._stack.close()

    def _after_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        owner = self._owner() if self._owner is not None else None
        if owner is None:
            self._owner, owner = weakref.ref(optimizer), optimizer
        if owner is optimizer:
            self._after()

    def _after(self) -> None:
        try:
            self._at_end()
        except Exception as error:
            self.close()
            self._on_error(error)


def _after_each(marker: str, call: Ended) -> Callable[[], None]:
    """Call `call` whenever the marked function returns; what is returned undoes that."""
    owner, name, function = _marked(marker)

    @functools.wraps(function)
    def standing_in(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        call()
        return result

    setattr(owner, name, standing_in)

    def undo() -> None:
        if vars(owner).get(name) is standing_in:
            setattr(owner, name, function)

    return undo


def _marked(marker: str) -> tuple[Any, str, Function]:
    module_name, _, path = marker.partition(":")
    *outer, name = path.split(".")
    try:
        owner: Any = importlib.import_module(module_name)
        for part in outer:
            owner = getattr(owner, part)
        function = getattr(owner, name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"no function {marker!r} to mark steps: {error}") from None
    if not callable(function):
        raise InputError(f"{marker!r} cannot mark steps: it is not a function")
    return owner, name, function
