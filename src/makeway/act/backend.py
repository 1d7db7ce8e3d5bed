"""The seam to a running process: what applies controls and undoes them, and the receipt for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from makeway.values.control import Control
from makeway.values.receipt import Receipt as Receipt
from makeway.values.receipt import Status as Status


class Backend(Protocol):
    """Applies controls to a running process and undoes them on exit."""

    @property
    def name(self) -> str:
        """The word of `--on`: cpu, cuda, rocm."""
        ...

    def refusal(self, control: Control) -> str | None:
        """Why this machine cannot do that; None when it can."""
        ...

    def applied(self, controls: Sequence[Control]) -> AbstractContextManager[tuple[Receipt, ...]]:
        """The controls in force inside the `with` block, one receipt each; a refused one changes nothing."""
        ...


@dataclass
class NullBackend:
    """Applies nothing and remembers what it was asked."""

    name: str = "null"
    log: list[Control] = field(default_factory=list)

    def refusal(self, control: Control) -> str | None:
        return None

    @contextmanager
    def applied(self, controls: Sequence[Control]) -> Iterator[tuple[Receipt, ...]]:
        self.log.extend(controls)
        detail = "the null backend only remembers what it was asked"
        yield tuple(Receipt(control=control, status="no effect", detail=detail) for control in controls)
