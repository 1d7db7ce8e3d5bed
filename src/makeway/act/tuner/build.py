"""Compiles the tuner plugin on first use, as the launch shim is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from makeway.act.preload.build import FLAGS, Product, library
from makeway.act.preload.build import SOURCES as SHARED

SOURCES = Path(__file__).parent
PLUGIN = Product(
    name="tuner",
    title="tuner plugin",
    without="the environment variables of the plan are set all the same",
    sources=(*sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")]), SHARED / "mapped.c", SHARED / "mapped.h"),
    # NCCL closes its plugins with the last communicator; ours keeps its counts and its handlers of fork.
    flags=(*FLAGS, f"-I{SHARED}", "-Wl,-z,nodelete"),
)


def plugin(cache: Path | None = None, *, warn: Callable[[str], None] = lambda message: None) -> Path:
    """The compiled plugin."""
    return library(cache, product=PLUGIN, warn=warn)
