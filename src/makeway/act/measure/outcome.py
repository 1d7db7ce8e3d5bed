"""What a bench found, measured or predicted, and its JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from makeway.act.measure.statistics import Summary, compared, summary
from makeway.values.collective import Collective
from makeway.values.control import Control, control_word
from makeway.values.errors import InputError
from makeway.values.plan import MadeFor, Plan
from makeway.values.timeline import Origin, Timeline, share_of_ideal

SEQUENTIAL, OVERLAP, TORCHRUN, PLANNED = "sequential", "overlap", "overlap_torchrun", "planned"
BASELINES = (OVERLAP, TORCHRUN)  # what people have today: torch's own thread count, and torchrun's


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of one control: applied, refused or no effect, and what was read back."""

    control: Control
    status: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantResult:
    """Times of one variant, and whether its results were right."""

    name: str
    times_ns: tuple[float, ...]  # one per round; a round is over when the last rank is
    controls: tuple[Control, ...] = ()
    threads: int | None = None  # of each rank
    overlap_rate: float | None = None
    wrong: str | None = None  # how its results differ; None: they are right
    predicted_ns: float | None = None  # beside a measurement, where the machine was calibrated
    applied: tuple[Applied, ...] = ()

    @property
    def summary(self) -> Summary:
        return summary(self.times_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Sequential, overlapped and controlled runs of one workload, with each part by itself."""

    on: str
    ranks: int
    workload: str
    origin: Origin
    variants: tuple[VariantResult, ...]
    compute_ns: tuple[float, ...]  # compute alone, measured like a variant
    comm_ns: tuple[float, ...]
    exchange: Collective | None = None  # the collective that one step repeats, where there is one kind
    exchanges: int = 1  # of them in one round
    link: str | None = None  # how ranks reach one another, in words
    choice: str | None = None  # what planning chose and why
    timeline: Timeline | None = None
    timeline_path: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [variant.name for variant in self.variants]
        if SEQUENTIAL not in names or len(set(names)) < len(names):
            raise InputError(f"a bench needs one {SEQUENTIAL!r} variant and no name twice, got {', '.join(names)}")

    def variant(self, name: str) -> VariantResult:
        return next(variant for variant in self.variants if variant.name == name)

    @property
    def ideal_ns(self) -> float:
        """The longer of compute and communication, each alone."""
        return max(summary(self.compute_ns).median_ns, summary(self.comm_ns).median_ns)

    @property
    def verified(self) -> bool:
        return all(variant.wrong is None for variant in self.variants)

    @property
    def better_baseline(self) -> VariantResult | None:
        """The faster of torch's two defaults."""
        found = [variant for variant in self.variants if variant.name in BASELINES and variant.wrong is None]
        return min(found, key=lambda variant: variant.summary.median_ns, default=None)

    @property
    def controlled(self) -> VariantResult | None:
        """The planned variant, or else the fastest with controls; only one whose results are right."""
        right = [variant for variant in self.variants if variant.wrong is None]
        planned = next((variant for variant in right if variant.name == PLANNED), None)
        others = (variant for variant in right if variant.controls)
        return planned or min(others, key=lambda variant: variant.summary.median_ns, default=None)

    def share_of_ideal(self, name: str) -> float | None:
        """The part of the possible gain over sequential that a variant reaches; None when nothing could be gained."""
        return share_of_ideal(
            t_sequential=self.variant(SEQUENTIAL).summary.median_ns,
            t=self.variant(name).summary.median_ns,
            t_compute=summary(self.compute_ns).median_ns,
            t_comm=summary(self.comm_ns).median_ns,
        )

    def against(self, name: str, other: str) -> float:
        """Median of the paired relative differences of two variants; below 0 is faster."""
        return compared(self.variant(name).times_ns, self.variant(other).times_ns).relative

    @property
    def bandwidths(self) -> tuple[float, float] | None:
        """Algorithm and bus bandwidth of the collective alone, in bytes per second, as nccl-tests counts them."""
        if self.exchange is None:
            return None
        seconds = summary(self.comm_ns).median_ns / 1e9 / self.exchanges
        return self.exchange.size_bytes / seconds, self.exchange.wire_bytes / seconds


def measured_plan(bench: Bench) -> Plan:
    """What planning chose, as a plan: no controls where it said to leave things as they are."""
    planned = next((one for one in bench.variants if one.name == PLANNED), None)
    if planned is None:
        raise InputError("nothing was planned in this bench: leave --no-plan out")
    return Plan(
        controls=planned.controls,
        reasons=(bench.choice or "",) * len(planned.controls),
        made_for=MadeFor(workload=bench.workload, device=bench.on, ranks=bench.ranks),
    )


def document(bench: Bench) -> dict[str, Any]:
    """A bench as data: times in milliseconds, medians with their interquartile range."""
    compute, comm = summary(bench.compute_ns), summary(bench.comm_ns)
    bandwidths = bench.bandwidths
    return {
        "origin": bench.origin,
        "on": bench.on,
        "ranks": bench.ranks,
        "workload": bench.workload,
        "link": bench.link,
        "collective": bench.exchange and {"kind": bench.exchange.kind, "bytes": bench.exchange.size_bytes},
        "algbw_gb_per_s": bandwidths and round(bandwidths[0] / 1e9, 4),
        "busbw_gb_per_s": bandwidths and round(bandwidths[1] / 1e9, 4),
        "variants": {variant.name: _variant(variant) for variant in bench.variants},
        "isolated": {
            "compute_ms": _ms(compute.median_ns),
            "comm_ms": _ms(comm.median_ns),
            "compute_spread_ms": _ms(compute.spread_ns),
            "comm_spread_ms": _ms(comm.spread_ns),
            "n": compute.n,
        },
        "ideal_ms": _ms(bench.ideal_ns),
        "share_of_ideal": {
            variant.name: _rounded(bench.share_of_ideal(variant.name))
            for variant in bench.variants
            if variant.name != SEQUENTIAL
        },
        "overlap_rate": {variant.name: _rounded(variant.overlap_rate) for variant in bench.variants},
        "choice": bench.choice,
        "verified": bench.verified if bench.origin == "measured" else None,  # a prediction computes no result
        "timeline": bench.timeline_path,
        "notes": bench.notes,
    }


def _variant(variant: VariantResult) -> Mapping[str, Any]:
    found = variant.summary
    return {
        "median_ms": _ms(found.median_ns),
        "spread_ms": _ms(found.spread_ns),
        "n": found.n,
        "outliers": found.outliers,
        "controls": [control_word(control) for control in variant.controls],
        "threads_per_rank": variant.threads,
        "predicted_ms": None if variant.predicted_ns is None else _ms(variant.predicted_ns),
        "wrong": variant.wrong,
        "applied": [
            {"control": control_word(one.control), "status": one.status, "detail": one.detail}
            for one in variant.applied
        ],
    }


def _ms(time_ns: float) -> float:
    return round(time_ns / 1e6, 6)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
