"""The figures of a step at scale as JSON."""

from __future__ import annotations

from typing import Any

from makeway.decide.scale.goodput import Goodput
from makeway.decide.scale.outcome import ControlTrial, RankedLayout, ScaleCurve, Scaled, ScalePoint, TurnedDown
from makeway.model.compression import Payoff
from makeway.show.data import milliseconds, plain, record, rounded
from makeway.show.scale_names import LINE_NAMES
from makeway.values.layout import Layout
from makeway.values.layout_word import compression_word, layout_word
from makeway.values.step import StageMemory, StepLine
from makeway.values.units import GIB

_SECOND_DIGITS = 9


def seconds(time_ns: float | None) -> float | None:
    """A time in seconds, to the nanosecond."""
    return None if time_ns is None else round(time_ns / 1e9, _SECOND_DIGITS)


def share_percent(share: float | None) -> float | None:
    """A share in percent, as figures and JSON show it."""
    return None if share is None else round(100 * share, 4)


def gain_percent(share: float | None) -> float | None:
    """A gain in percent; what rounds to nothing is 0, not -0."""
    return None if share is None else round(100 * share, 2) + 0.0


def layout_data(layout: Layout | None) -> dict[str, Any] | None:
    """A layout by its parts, and as the one word that --layout takes."""
    return None if layout is None else {"word": layout_word(layout)} | record(layout, without=("controls",))


def scaled_data(result: Scaled) -> dict[str, Any]:
    """One step, and what it was chosen from."""
    step, search = result.step, result.search
    data: dict[str, Any] = {
        "origin": "predicted",
        "model": result.model.name,
        "cluster": result.cluster.name,
        "device": result.cluster.device.name,
        "gpus": step.layout.gpus,
        "step_s": seconds(step.step_ns),
        "tokens_per_s_per_gpu": rounded(step.tokens_per_s_per_gpu),
        "mfu": rounded(step.mfu),
        "hfu": rounded(step.hfu),
        "flops_formula": step.flops_formula,
        "memory_gib": _gib(result.memory_bytes),
        "device_memory_gib": None if result.memory_bytes_per_gpu is None else _gib(result.memory_bytes_per_gpu),
        "memory": [_stage_memory(stage) for stage in step.memory],
        "ledger": [_line(line, step.step_ns) for line in step.ledger],
        "stages": [[_line(line, step.step_ns) for line in lines] for lines in step.stage_ledgers],
        "layout": layout_data(step.layout),
        "controls": plain(step.layout.controls),
        "step_without_controls_s": seconds(result.plain_ns),
        "trials": [trial_data(trial) for trial in result.trials],
        "compressions": [_payoff(item) for item in result.payoffs],
        "goodput": None if result.goodput is None else _goodput(result, result.goodput),
        "recorded_from": result.recorded_from,
        "assumed": list(step.assumed),
    }
    if search is not None:
        data |= {
            "considered": search.considered,
            "fitting": search.fitting,
            "simulated": search.simulated,
            "ranked": [_ranked(item) for item in search.ranked],
            "turned_down": [_turned_down(item) for item in search.turned_down],
        }
    return data


def _goodput(result: Scaled, run: Goodput) -> dict[str, Any]:
    return {
        "useful_percent": share_percent(run.useful),
        "checkpoint_percent": share_percent(run.checkpoints),
        "lost_percent": share_percent(run.lost),
        "useful_tokens_per_s_per_gpu": rounded(result.useful_tokens_per_s_per_gpu),
        "hours_between_failures": rounded(run.between_failures_s / 3600),
        "checkpoint_interval_s": rounded(run.interval_s),
        "gpu_hours_per_failure": rounded(run.reliability.gpu_hours_per_failure),
        "checkpoint_s": run.reliability.checkpoint_s,
        "restart_s": run.reliability.restart_s,
        "source": run.reliability.source,
    }


def _line(line: StepLine, step_ns: float) -> dict[str, Any]:
    return {
        "name": LINE_NAMES[line.kind],
        "kind": line.kind,
        "ms": milliseconds(line.ns),
        "percent": rounded(100 * line.ns / step_ns),
    }


def _stage_memory(stage: StageMemory) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "weights_gib": _gib(stage.weights),
        "gradients_gib": _gib(stage.gradients),
        "optimizer_gib": _gib(stage.optimizer),
        "activations_gib": _gib(stage.activations),
        "logits_gib": _gib(stage.logits),
        "buffers_gib": _gib(stage.buffers),
        "total_gib": _gib(stage.total),
    }


def _gib(size_bytes: int) -> float:
    return round(size_bytes / GIB, 6)


def trial_data(trial: ControlTrial) -> dict[str, Any]:
    """One set of controls that was tried."""
    return {
        "controls": plain(trial.controls),
        "step_s": seconds(trial.step_ns),
        "gain_percent": gain_percent(trial.gain),
        "reason": trial.reason or None,
    }


def _payoff(item: Payoff) -> dict[str, Any]:
    rates = ("link_bytes_per_s", "pays_below_bytes_per_s")
    return {
        "compression": compression_word(item.compression),
        "link_gb_per_s": item.link_bytes_per_s / 1e9,
        "pays_below_gb_per_s": None if item.pays_below_bytes_per_s is None else item.pays_below_bytes_per_s / 1e9,
        **record(item, without=("compression", *rates)),
    }


def _ranked(item: RankedLayout) -> dict[str, Any]:
    return {
        "place": item.place,
        "layout": layout_data(item.layout),
        "step_s": seconds(item.step_ns),
        "tokens_per_s_per_gpu": rounded(item.tokens_per_s_per_gpu),
        "mfu": rounded(item.mfu),
        "memory_gib": item.memory_gib,
        "pareto": item.pareto,
    }


def _turned_down(item: TurnedDown) -> dict[str, Any]:
    return {
        "reason": item.reason,
        "layouts": item.layouts,
        "nearest": layout_data(item.example),
        "step_s": seconds(item.step_ns),
    }


# --- a curve ----------------------------------------------------------------------------------------


def curve_data(curve: ScaleCurve) -> dict[str, Any]:
    """All points of a curve."""
    return {
        "origin": "predicted",
        "model": curve.model,
        "cluster": curve.cluster,
        "device": curve.device,
        "seq": curve.seq,
        "sequences_per_gpu": curve.sequences_per_gpu,
        "points": [_point(point) for point in curve.points],
        "assumed": list(curve.assumed),
    }


def _point(point: ScalePoint) -> dict[str, Any]:
    best = point.best
    return {
        "gpus": point.gpus,
        "layout": layout_data(point.layout),
        "step_s": seconds(point.step_ns),
        "tokens_per_s_per_gpu": rounded(point.tokens_per_s_per_gpu),
        "mfu": rounded(point.mfu),
        "memory_gib": None if point.memory_bytes is None else _gib(point.memory_bytes),
        "exposed_percent": share_percent(point.exposed_share),
        "contention_percent": share_percent(point.contention_share),
        "bubble_percent": share_percent(point.bubble_share),
        "controls": None if best is None else plain(best.controls),
        "controlled_tokens_per_s_per_gpu": rounded(point.controlled_tokens_per_s_per_gpu),
        "trials": [trial_data(trial) for trial in point.trials],
        "compressed": [
            {
                "compression": item.compression,
                "step_s": seconds(item.step_ns),
                "controlled_step_s": seconds(item.controlled_ns),
                "gain_percent": gain_percent(item.gain),
            }
            for item in point.compressed
        ],
        "reason": point.reason,
    }
