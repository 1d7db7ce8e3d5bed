"""Steps: what one training step costs on a cluster, predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from makeway.values.layout import Layout
from makeway.values.timeline import Timeline

StepLineKind = Literal[
    "compute",  # forward and backward, each kernel at the time it takes alone
    "recompute",  # forward again, for the backward pass
    "contention",  # compute that takes longer beside communication
    "exposed-tp",
    "exposed-cp",
    "exposed-ep",
    "exposed-dp",
    "exposed-pp",
    "compression",  # encoding and decoding gradients
    "bubble",  # a stage waits for another
    "host",  # the GPU waits for launches
    "optimizer",
    "stragglers",  # all ranks wait for the slowest
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """Time of one kind on the slowest stage."""

    kind: StepLineKind
    ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on one GPU of a pipeline stage."""

    stage: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    buffers: int  # of communication libraries and the framework

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step; the lines of its ledger add up to its time."""

    layout: Layout
    step_ns: float
    tokens_per_s_per_gpu: float
    mfu: float  # of the peak that its precision has
    hfu: float  # the same with recomputed work counted
    flops_formula: str  # what counts as model flops
    memory: tuple[StageMemory, ...]
    ledger: tuple[StepLine, ...]
    assumed: tuple[str, ...]  # in plain sentences
    stage_ledgers: tuple[tuple[StepLine, ...], ...] = ()  # of each stage; each adds up to the step's time
    timeline: Timeline | None = None  # one rank per stage
