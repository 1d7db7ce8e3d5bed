"""Another function under the same name, wherever a module has it. Loads nothing of torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def replace_everywhere(original: Callable[..., Any], other: Callable[..., Any]) -> None:
    """In all modules that are loaded: torch re-exports its functions, and programs import them by name."""
    name = original.__name__
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if names.get(name) is original:
            names[name] = other


@contextmanager
def replaced(original: Callable[..., Any], other: Callable[..., Any]) -> Iterator[None]:
    """The other function inside the block. Both must bear the same name."""
    assert original.__name__ == other.__name__
    replace_everywhere(original, other)
    try:
        yield
    finally:
        replace_everywhere(other, original)
