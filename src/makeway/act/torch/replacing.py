"""Replaces functions of torch for a program that must not notice. Loads nothing of torch.

What stands in for a function has its name, signature, doc and module, so that it can be inspected and pickled by name
as before. Errors of ours never reach the program: the original runs instead, and exactly once.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

Function = Callable[..., Any]


class Original:
    """The replaced function during one call of the program: it runs at most once."""

    def __init__(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], bound: inspect.BoundArguments
    ) -> None:
        self.given: Mapping[str, Any] = bound.arguments  # what the program passes, by name
        self.committed = False  # set it once peers rely on this call: the original must not run any more
        self._function, self._args, self._kwargs, self._bound = function, args, kwargs, bound
        self._ran = False
        self._result: Any = None
        self._error: BaseException | None = None

    def __call__(self, **changed: Any) -> Any:
        """Run the original as the program called it, except for what is changed."""
        assert not self._ran
        self._ran = True
        args, kwargs = self._args, self._kwargs
        if changed:
            self._bound.arguments |= changed
            args, kwargs = self._bound.args, self._bound.kwargs
        try:
            self._result = self._function(*args, **kwargs)
        except BaseException as error:
            self._error = error
            raise
        return self._result

    def raised(self, error: BaseException) -> bool:
        """True for an error that is the program's to see."""
        return error is self._error or self.committed or not isinstance(error, Exception)

    def result(self) -> Any:
        """What the original gives, after an error of ours: it runs now unless it has run."""
        if self._error is not None:
            raise self._error
        return self._result if self._ran else self()


def stand_in(
    function: Function,
    around: Callable[[Original], Any],
    on_error: Callable[[Exception], None],
    *,
    unless: Callable[..., bool] | None = None,
    wrap: Callable[[Function], Function] = lambda acting: acting,
) -> Function:
    """A function that calls `around` in place of the original, which `around` may run.

    When `around` fails, `on_error` gets the error, and the program what the original returns. `unless` gets what the
    program passes, and leaves a call alone: cheaply, since programs make many. `wrap` goes around all that is ours.
    """
    signature = _signature(function)

    def acting(*args: Any, **kwargs: Any) -> Any:
        try:
            arguments = signature.bind(*args, **kwargs)
        except TypeError:  # the original says what is wrong with the call
            arguments = None
        if arguments is None:
            return function(*args, **kwargs)
        original = Original(function, args, kwargs, arguments)
        try:
            return around(original)
        except BaseException as error:
            if original.raised(error):
                raise
            _record(on_error, error)
        return original.result()

    acting = wrap(acting)

    @functools.wraps(function)
    def standing_in(*args: Any, **kwargs: Any) -> Any:
        if unless is not None and unless(*args, **kwargs):
            return function(*args, **kwargs)
        return acting(*args, **kwargs)

    standing_in.__signature__ = signature  # type: ignore[attr-defined]
    return standing_in


_signature = functools.cache(inspect.signature)  # a trial replaces the same functions again and again


def _record(on_error: Callable[[Exception], None], error: BaseException) -> None:
    assert isinstance(error, Exception)
    with suppress(Exception):  # the program goes on, whatever becomes of the message
        on_error(error)


def replace_everywhere(others: Mapping[Function, Function]) -> None:
    """Replace functions in all loaded modules: torch re-exports its functions, and programs import them by name."""
    by_name = [(original.__name__, original, other) for original, other in others.items()]
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for name, original, other in by_name:
            if names.get(name) is original:
                names[name] = other


@contextmanager
def all_replaced(others: Mapping[Function, Function]) -> Iterator[None]:
    """Functions of all modules replaced inside the block by others of the same names, in one pass over the modules.

    What the program itself has put in the place of one meanwhile stays.
    """
    assert all(original.__name__ == other.__name__ for original, other in others.items())
    replace_everywhere(others)
    try:
        yield
    finally:
        replace_everywhere({other: original for original, other in others.items()})


@contextmanager
def replaced(original: Function, other: Function, owner: type | None = None) -> Iterator[None]:
    """One function replaced inside the block, in all modules or as a method of `owner`, as in `all_replaced`."""
    if owner is None:
        with all_replaced({original: other}):
            yield
        return
    name = original.__name__
    assert name == other.__name__
    before = vars(owner)[name]
    placed = staticmethod(other) if isinstance(before, staticmethod) else other
    setattr(owner, name, placed)
    try:
        yield
    finally:
        if vars(owner).get(name) is placed:
            setattr(owner, name, before)
