"""Replaces a function by another of the same name in every module. Loads nothing of torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def replace_everywhere(original: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Replace it in all loaded modules: torch re-exports its functions, and programs import them by name."""
    name = original.__name__
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if names.get(name) is original:
            names[name] = other


@contextmanager
def replaced(original: Callable[..., Any], other: Callable[..., Any]) -> Iterator[None]:
    """The other function inside the block; both must have the same name."""
    assert original.__name__ == other.__name__
    replace_everywhere(original, other)
    try:
        yield
    finally:
        replace_everywhere(other, original)
