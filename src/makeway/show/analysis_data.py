"""What analysis found as one JSON document: the data that text and pages render."""

from __future__ import annotations

from typing import Any

from makeway.decide.analysis.causes import CauseGroup, cause_groups
from makeway.decide.analysis.findings import Advice, Figures, Findings, RankFindings, Slowdown
from makeway.decide.analysis.threshold import Threshold, missed
from makeway.decide.planning.what_if import WhatIf
from makeway.values.control import describe


def analysis_document(
    result: Findings, answers: WhatIf | None, no_answers: str | None, threshold: Threshold | None
) -> dict[str, Any]:
    """The document that `makeway analyze --json` prints; docs/analyze.md lists its keys."""
    waiting = dict(result.matching.waiting_ns)
    document: dict[str, Any] = {
        "ranks": [_rank(rank, waiting.get(rank.rank)) for rank in result.ranks],
        "collectives": _collectives(result),
        "causes": [_cause(group) for group in cause_groups(result.causes)],
        "slowdown": [_slowdown(group) for rank in result.ranks for group in rank.slowdowns.groups],
        "advice": [_advice(item) for item in result.advice],
        "what_if": _what_if(answers, no_answers),
        "notes": list(result.notes),
    }
    if threshold is not None:
        over = missed(threshold, result)
        document["threshold"] = {"limit": str(threshold), "missed": [{"rank": r, "value": v} for r, v in over]}
    return document


def _rank(rank: RankFindings, waiting_ns: int | None) -> dict[str, Any]:
    slow = rank.slowdowns
    return {
        "rank": rank.rank,
        "device": rank.device,
        "source": rank.source,
        "origin": "imported",
        **_figures(rank.figures),
        "waiting_ms": _ms(waiting_ns),
        "steps": [{"step": step.number, **_figures(step.figures)} for step in rank.steps],
        "occupancy": {
            "kernels": rank.occupancy.kernels,
            "kineto_wrong": rank.occupancy.kineto_wrong,
            "mean_percent": rank.occupancy.mean_percent,
        }
        if rank.occupancy
        else None,
        "slowdown_coverage": {"covered_ms": _ms(slow.covered_ns), "overlapped_ms": _ms(slow.overlapped_ns)},
    }


def _figures(figures: Figures) -> dict[str, Any]:
    return {
        "kernels": figures.kernels,
        "comm_kernels": figures.comm_kernels,
        "compute_ms": _ms(figures.compute_ns),
        "comm_ms": _ms(figures.comm_ns),
        "memory_ms": _ms(figures.memory_ns),
        "overlap_ms": _ms(figures.overlap_ns),
        "exposed_ms": _ms(figures.exposed_ns),
        "idle_ms": _ms(figures.idle_ns),
        "span_ms": _ms(figures.span_ns),
        "overlap_percent": figures.overlap_percent,
        "exposed_percent": figures.exposed_percent,
        "share_of_ideal": figures.share_of_ideal,
    }


def _collectives(result: Findings) -> dict[str, Any]:
    matching = result.matching
    known = bool(matching.matched)
    waiting = [time for _, time in matching.waiting_ns]
    return {
        "matched": len(matching.matched),
        "unmatched": {str(rank): count for rank, count in matching.unmatched},
        "transfer_ms": _ms(matching.transfer_ns) if known else None,
        "waiting_ms": sum(waiting) / len(waiting) / 1e6 if known and waiting else None,
        "straggler_rank": matching.straggler_rank,
        "straggler_share": matching.straggler_share,
    }


def _cause(group: CauseGroup) -> dict[str, Any]:
    return {
        "kind": group.kind,
        "of": group.of,
        "time_ms": _ms(group.time_ns),
        "most_on_one_rank_ms": _ms(group.rank_ns),
        "count": group.count,
        "ranks": list(group.ranks),
        "confidence": group.confidence,
        "kernel": group.kernel,
        "resource": group.resource,
        "short_by": group.short_by,
        "evidence": group.evidence,
        "record_next": group.record_next,
    }


def _slowdown(group: Slowdown) -> dict[str, Any]:
    return {
        "kernel": group.kernel,
        "rank": group.rank,
        "blocks": group.blocks,
        "ratio": group.ratio,
        "alone_us": group.alone_ns / 1e3,
        "alone_spread_us": group.alone_spread_ns / 1e3,
        "alone_samples": group.alone_samples,
        "beside_us": group.beside_ns / 1e3,
        "beside_spread_us": group.beside_spread_ns / 1e3,
        "beside_samples": group.beside_samples,
        "cost_ms": group.cost_ns / 1e6,
    }


def _advice(item: Advice) -> dict[str, Any]:
    gain = item.predicted_gain_ns
    return {
        "title": item.title,
        "why": item.why,
        "cause": item.cause,
        "at_most_ms": _ms(item.bound_ns),
        "controls": [describe(control) for control in item.controls],
        "predicted_gain_ms": gain / 1e6 if gain is not None else None,
    }


def _what_if(answers: WhatIf | None, no_answers: str | None) -> dict[str, Any]:
    if answers is None:
        return {"available": False, "why_not": no_answers}
    return {
        "available": True,
        "rank": answers.rank,
        "device": answers.device,
        "recorded_ms": answers.replay.recorded_ns / 1e6,
        "replayed_ms": answers.replay.predicted_ns / 1e6,
        "replay_error": answers.replay.error,
        "trusted": answers.replay.trusted,
        "controls": [
            {
                "control": describe(outcome.control),
                "predicted_gain_ms": outcome.gain_ns / 1e6 if outcome.gain_ns is not None else None,
                "why_not": outcome.why_not,
            }
            for outcome in answers.outcomes
        ],
        "assumed": list(answers.assumed),
    }


def _ms(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e6
