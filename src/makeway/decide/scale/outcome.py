"""What `makeway scale` answers: one step, the layouts that it was chosen from, or a curve over GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from makeway.decide.scale.goodput import Goodput
from makeway.model.compression import Payoff
from makeway.values.cluster import Cluster
from makeway.values.control import Control
from makeway.values.layout import Layout
from makeway.values.model import Model
from makeway.values.step import Step
from makeway.values.units import GIB

PredictedBy = Literal["simulation", "closed form"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedLayout:
    """A layout that fits, and what it costs."""

    place: int  # 1 is the fastest
    layout: Layout
    step_ns: float
    tokens_per_s_per_gpu: float
    mfu: float
    memory_bytes: int  # on the fullest GPU
    by: PredictedBy
    pareto: bool  # no layout is both faster and smaller

    SHOWN = ("memory_gib",)

    @property
    def memory_gib(self) -> float:
        return round(self.memory_bytes / GIB, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnedDown:
    """Layouts that were dropped for one reason; `example` is the fastest of them where their times are known."""

    reason: str
    layouts: int
    example: Layout
    step_ns: float | None = None  # of the example, by the closed form


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlTrial:
    """The chosen layout under other controls."""

    controls: tuple[Control, ...]
    step_ns: float | None  # None: they cannot be set here
    gain: float | None  # of the step's time without controls; below 0: slower
    reason: str = ""


def best_trial(trials: tuple[ControlTrial, ...]) -> ControlTrial | None:
    """The fastest; of equally fast ones that with the fewest controls."""
    known = [(trial.step_ns, len(trial.controls), number) for number, trial in enumerate(trials) if trial.step_ns]
    return trials[min(known)[-1]] if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSearch:
    """How the layout was found."""

    considered: int  # layouts that divide model, batch and GPUs
    fitting: int  # of them in memory
    simulated: int  # of those in full, the others by the closed form
    ranked: tuple[RankedLayout, ...]
    turned_down: tuple[TurnedDown, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """One training step of a model on a cluster, under the layout that was asked for or found."""

    model: Model
    cluster: Cluster
    step: Step
    memory_bytes_per_gpu: int | None  # that the device has
    search: LayoutSearch | None = None
    trials: tuple[ControlTrial, ...] = ()  # without controls first
    payoffs: tuple[Payoff, ...] = ()
    goodput: Goodput | None = None  # of a long run on these GPUs
    recorded_from: str | None = None  # the recording whose kernel times stand in for modelled ones
    notes: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """On the fullest GPU."""
        return max((stage.total for stage in self.step.memory), default=0)

    @property
    def useful_tokens_per_s_per_gpu(self) -> float | None:
        """Over a long run, with failures, checkpoints and restarts."""
        return None if self.goodput is None else self.step.tokens_per_s_per_gpu * self.goodput.useful

    @property
    def plain_ns(self) -> float | None:
        """The step without controls, where that was predicted, too."""
        return next((trial.step_ns for trial in self.trials if not trial.controls), None)

    @property
    def gain(self) -> float | None:
        """What the layout's controls take off the step without them."""
        return None if self.plain_ns is None else 1 - self.step.step_ns / self.plain_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedPoint:
    """The same step with compressed gradients, without and with the controls that are best without compression."""

    compression: str
    step_ns: float
    controlled_ns: float
    gain: float  # of the controls, beside compression


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """The step at one number of GPUs, without and with the best controls; or why there is none."""

    gpus: int
    layout: Layout | None = None
    step_ns: float | None = None  # without controls
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    memory_bytes: int | None = None
    exposed_share: float | None = None  # of the step: communication that nothing hides
    contention_share: float | None = None
    bubble_share: float | None = None
    trials: tuple[ControlTrial, ...] = ()
    compressed: tuple[CompressedPoint, ...] = ()
    assumed: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def best(self) -> ControlTrial | None:
        """The controls that gain most."""
        return best_trial(self.trials)

    @property
    def controlled_tokens_per_s_per_gpu(self) -> float | None:
        """With the best controls."""
        if self.best is None or not self.best.step_ns or not self.step_ns or self.tokens_per_s_per_gpu is None:
            return None
        return self.tokens_per_s_per_gpu * self.step_ns / self.best.step_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleCurve:
    """Steps over numbers of GPUs."""

    model: str
    cluster: str
    device: str
    seq: int  # tokens of a sequence
    sequences_per_gpu: float | None  # weak scaling; None: the same global batch everywhere
    points: tuple[ScalePoint, ...]

    @property
    def assumed(self) -> tuple[str, ...]:
        """What any point assumes."""
        return tuple(dict.fromkeys(text for point in self.points for text in point.assumed))
