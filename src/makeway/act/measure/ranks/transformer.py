"""A small transformer, its data, and its training steps: the same on every rank, every time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from makeway.act.measure.ranks.exchange import Recorder

_VOCABULARY, _WIDTH, _LAYERS, _HEAD = 256, 256, 4, 64
_SEQUENCE, _BATCH = 32, 4
_LEARNING_RATE = 0.05
_LOSS_TOLERANCE = 1e-4  # relative: sums of gradients in another order


class SmallTransformer(nn.Module):
    """Embedding, encoder layers without dropout, and a head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // _HEAD, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(_LAYERS)
        )
        self.head = nn.Linear(width, _VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(x)
        return logits


def fresh_model(scale: float | None, seed: int) -> SmallTransformer:
    """The same weights on every rank; `scale` multiplies the width."""
    width = max(round(_WIDTH * (scale or 1.0) / _HEAD), 1) * _HEAD
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SmallTransformer(width)


def batches(seed: int, rank: int, steps: int) -> list[torch.Tensor]:
    """Tokens of each step; every rank has its own."""
    numbers = torch.Generator().manual_seed(seed * 1009 + rank)
    return [torch.randint(_VOCABULARY, (_BATCH, _SEQUENCE + 1), generator=numbers) for _ in range(steps)]


def train(
    model: nn.Module, data: Sequence[torch.Tensor], recorder: Recorder, *, gradients_over: int = 1
) -> list[float]:
    """One step of plain gradient descent for each batch, with gradients over `gradients_over`; the loss of each."""
    optimiser = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE / gradients_over)
    losses = []
    for step, tokens in enumerate(data):
        recorder.computing(f"forward {step}")
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        recorder.computing(f"backward {step}")
        loss.backward()  # type: ignore[no-untyped-call]
        recorder.resume()
        recorder.computing(f"optimiser {step}")
        optimiser.step()
        optimiser.zero_grad()
        recorder.idle()
        losses.append(loss.item())
        recorder.end_step()
    return losses


def unlike(losses: Sequence[float], expected: Sequence[float]) -> str | None:
    """How losses differ from those of torch's own defaults; None when they do not."""
    for step, (loss, must) in enumerate(zip(losses, expected, strict=True)):
        if not math.isclose(loss, must, rel_tol=_LOSS_TOLERANCE):
            return f"the loss of step {step} is {loss:.6f}, and {must:.6f} under torch's own defaults"
    return None
