"""What published figures count, and how a predicted step gives each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from makeway.decide.scale.memory import RUNTIME_BYTES
from makeway.decide.scale.pipeline import PipelineCosts, step_pipeline
from makeway.decide.scale.rows import Described
from makeway.decide.scale.step import kept_for_weights
from makeway.values.errors import UnsupportedError
from makeway.values.step import StageMemory, Step
from makeway.values.units import GIB

GB = 1_000_000_000
_PART = re.compile(r"(TF|TB|TW|Tcomm)=([0-9.]{1,12})")


def _per_second(amount: Callable[[Described], float], value: float, row: Described) -> float:
    """Step time from a rate per GPU, and the rate from the step time: the same formula."""
    return amount(row) / row.layout.gpus / value * 1e9


def _tokens(row: Described) -> float:
    return float(row.layout.global_batch * row.model.seq)


def _sequences(row: Described) -> float:
    return float(row.layout.global_batch)


def _of_all(amount: Callable[[Described], float], value: float, row: Described) -> float:
    return amount(row) / value * 1e9


def _scaled(ns: float, value: float, _: Described) -> float:
    return value * ns


# Published figure -> step in nanoseconds; a figure from a step is the inverse.
_TIMES: dict[str, tuple[Callable[[float, Described], float], Callable[[float, Described], float]]] = {
    "iteration_ms": (partial(_scaled, 1e6), partial(_scaled, 1e-6)),
    "iteration_s": (partial(_scaled, 1e9), partial(_scaled, 1e-9)),
    "tokens_per_s_per_gpu": (partial(_per_second, _tokens),) * 2,
    "samples_per_gpu_per_s": (partial(_per_second, _sequences),) * 2,
    "tokens_per_s": (partial(_of_all, _tokens),) * 2,
    "samples_per_s": (partial(_of_all, _sequences),) * 2,
}


def _allocated(stages: tuple[StageMemory, ...]) -> float:
    """On the fullest stage, as an allocator counts it: without the driver's context."""
    return float(max(stage.total for stage in stages) - RUNTIME_BYTES)


def _held(stages: tuple[StageMemory, ...]) -> float:
    return float(max(stage.weights + stage.gradients + stage.optimizer for stage in stages))


_MEMORY: dict[str, Callable[[tuple[StageMemory, ...]], float]] = {
    "act_GiB": lambda stages: stages[0].activations / GIB,
    "param+opt_GiB": lambda stages: _held(stages) / GIB,
    "alloc_GiB": lambda stages: _allocated(stages) / GIB,
    "mem_GiB": lambda stages: _allocated(stages) / GIB,
    "mem_GB": lambda stages: _allocated(stages) / GB,
}


def metric_of(row: Mapping[str, str]) -> str | None:
    """The metric of a row, if it is the time of a step."""
    metric = (row.get("metric") or "").strip()
    return metric if metric in _TIMES else None


def faster_is_less(metric: str) -> bool:
    """Whether a smaller figure is a faster step."""
    return metric.startswith("iteration")


def published(row: Mapping[str, str], described: Described) -> float:
    """The published step in nanoseconds."""
    metric = metric_of(row)
    if metric is None:
        raise UnsupportedError(f"metric {row.get('metric')!r} is not the time of a step")
    return _TIMES[metric][0](figure(row.get("value")), described)


def known_metric(metric: str) -> bool:
    """Whether a step gives this figure."""
    return metric in _TIMES or metric in _MEMORY or is_bubble(metric)


def is_memory(metric: str) -> bool:
    """Whether this figure is memory of a GPU."""
    return metric in _MEMORY


def is_bubble(metric: str) -> bool:
    """Whether this figure is the idle share of a pipeline, from times of its parts that the row gives."""
    return metric.startswith("bubble_rate")


def predicted(metric: str, step: Step, described: Described) -> float:
    """The figure of a predicted step."""
    if metric in _MEMORY:
        return _MEMORY[metric](step.memory)
    return _TIMES[metric][1](step.step_ns, described)


def bubble_rate(described: Described, row: Mapping[str, str]) -> float:
    """1 - busy / cost of the schedule, with the row's times of forward, the halves of backward and a hop."""
    layout = described.layout
    parts = dict(_PART.findall(row.get("flags") or ""))
    if set(parts) != {"TF", "TB", "TW", "Tcomm"}:
        raise UnsupportedError("flags do not give TF, TB, TW and Tcomm")
    forward, back, weight = (figure(parts[name]) for name in ("TF", "TB", "TW"))

    def spread(time: float) -> tuple[tuple[float, ...], ...]:
        return ((time / layout.chunks,) * layout.chunks,) * layout.pp

    kept = kept_for_weights(described.model, layout, fused_attention=described.generation.fused_attention)
    costs = PipelineCosts(
        forward_ns=spread(forward),
        input_ns=spread(back),
        weight_ns=spread(weight),
        hop_ns=figure(parts["Tcomm"]),
        kept_for_weights=kept,
    )
    run = step_pipeline(layout, costs)
    cost = run.longest_stage_ns if layout.schedule in ("zb-h2", "zb-2p") else run.makespan_ns
    return 1 - layout.micro_batches * (forward + back + weight) / cost


def figure(text: str | None) -> float:
    """A published figure: a number above 0."""
    try:
        value = float(text or "")
    except ValueError:
        raise UnsupportedError(f"value {text!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise UnsupportedError(f"value {text!r} is not above 0")
    return value
