"""The losses of an unmodified program: the scalars whose backward pass it runs."""

from __future__ import annotations

from typing import Any

import torch

from makeway.act.torch.replacing import Original, replaced, stand_in


class Losses:
    """Notes the loss of each backward pass until it is closed; several in one step count as their mean."""

    def __init__(self) -> None:
        self._seen: list[torch.Tensor] = []
        original = torch.autograd.backward
        self._patch = replaced(original, stand_in(original, self._note, lambda error: None))
        self._patch.__enter__()
        self._open = True

    def take(self) -> float | None:
        """The mean loss since the last call; None where no backward pass began at a single number."""
        values = [float(loss) for loss in self._seen]
        self._seen = []
        return sum(values) / len(values) if values else None

    def close(self) -> None:
        if self._open:
            self._open = False
            self._patch.__exit__(None, None, None)

    def _note(self, original: Original) -> Any:
        tensors = original.given["tensors"]
        if isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
            self._seen.append(tensors.detach())
        return original()
