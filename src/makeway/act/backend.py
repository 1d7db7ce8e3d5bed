"""The seam to a running process: what applies controls, reads them back and undoes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from makeway.values.control import Control
from makeway.values.receipt import Receipt

TORCH_CARRIERS = {"cpu": "torch on CPU", "cuda": "torch on CUDA", "rocm": "torch on ROCm"}  # by name of the backend


class Backend(Protocol):
    """Applies controls to a running process and undoes them on exit."""

    @property
    def name(self) -> str:
        """The value of `--on`: cpu, cuda, rocm."""
        ...

    def refusal(self, control: Control) -> str | None:
        """Why this machine cannot do that; None when it can."""
        ...

    def applied(self, controls: Sequence[Control]) -> AbstractContextManager[tuple[Receipt, ...]]:
        """The controls in force inside the `with` block, one receipt each; a refused one changes nothing."""
        ...
