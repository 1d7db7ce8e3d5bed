"""A bench as a value: times of every variant, measured or predicted, and all that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from makeway.act.measure.choice import better_baseline
from makeway.act.measure.statistics import Comparison, Summary, compared, summary
from makeway.act.measure.variants import BASELINES, PLANNED, SEQUENTIAL
from makeway.values.collective import Collective
from makeway.values.control import Control
from makeway.values.errors import InputError
from makeway.values.plan import MadeFor, Plan
from makeway.values.receipt import Receipt
from makeway.values.timeline import Origin, Timeline, share_of_ideal

Limit = Literal["compute", "communication", "processors", "order", "order and processors"]
BUSY = 0.1  # spread of compute alone over its median; below 0.05 on an idle host
LEAST_ROUNDS = 4  # that a spread is taken from


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantResult:
    """Times of one variant, and whether its results were right."""

    SHOWN: ClassVar = ("median_ns", "spread_ns", "n", "outliers")

    name: str
    times_ns: tuple[float, ...]  # one per round; a round is over when the last rank is
    controls: tuple[Control, ...] = ()
    threads: int | None = None  # of each rank
    overlap_rate: float | None = None
    wrong: str | None = None  # how its results differ; None: they are right
    same_as: str | None = None  # the variant whose measurement this is, too; None: its own
    predicted_ns: float | None = None  # beside a measurement, where the machine was calibrated
    receipts: tuple[Receipt, ...] = ()

    @property
    def summary(self) -> Summary:
        return summary(self.times_ns)

    @property
    def median_ns(self) -> float:
        return self.summary.median_ns

    @property
    def spread_ns(self) -> float:
        return self.summary.spread_ns

    @property
    def n(self) -> int:
        return len(self.times_ns)

    @property
    def outliers(self) -> int:
        return self.summary.outliers


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Sequential, overlapped and controlled runs of one workload, with each part by itself.

    Rounds are paired: all variants have as many times, and the same place in each is the same round.
    """

    on: str
    ranks: int
    workload: str
    origin: Origin
    variants: tuple[VariantResult, ...]
    compute_ns: tuple[float, ...]  # compute alone, measured like a variant
    comm_ns: tuple[float, ...]
    compute_cpu_ns: tuple[float, ...] = ()  # processor time of compute alone, over all ranks; empty: not known
    comm_cpu_ns: tuple[float, ...] = ()
    ordered_ns: tuple[float, ...] = ()  # the least that the order within the steps allows; empty: not known
    joint_ns: tuple[float, ...] = ()  # the least that order and processors allow together; empty: not known
    cores: int | None = None  # that all ranks share; None: not known, or several hosts
    exchange: Collective | None = None  # the collective that one step repeats, where there is one kind
    exchanges: int = 1  # of them in one round
    link: str | None = None  # how ranks reach one another
    choice: str | None = None  # what planning chose and why
    timeline: Timeline | None = None
    timeline_path: str | None = None  # where the timeline was written
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [variant.name for variant in self.variants]
        if SEQUENTIAL not in names or len(set(names)) < len(names):
            raise InputError(f"a bench needs one {SEQUENTIAL!r} variant and no name twice, got {', '.join(names)}")
        if len(counts := {variant.n for variant in self.variants}) > 1:
            raise InputError(f"every variant of a bench needs the same number of rounds, got {sorted(counts)}")

    def variant(self, name: str) -> VariantResult:
        return next(variant for variant in self.variants if variant.name == name)

    @property
    def compute(self) -> Summary:
        return summary(self.compute_ns)

    @property
    def comm(self) -> Summary:
        return summary(self.comm_ns)

    @property
    def ideal_ns(self) -> float:
        """The longer of compute and communication, each alone."""
        return max(self.compute.median_ns, self.comm.median_ns)

    @property
    def limits_ns(self) -> dict[Limit, tuple[float, ...]]:
        """What overlap takes at least, for each reason that is known, round by round."""
        limits: dict[Limit, tuple[float, ...]] = {"compute": self.compute_ns, "communication": self.comm_ns}
        if self.compute_cpu_ns and self.comm_cpu_ns and self.cores:
            both = zip(self.compute_cpu_ns, self.comm_cpu_ns, strict=True)
            limits["processors"] = tuple((compute + comm) / self.cores for compute, comm in both)
        if self.ordered_ns:
            limits["order"] = self.ordered_ns
        if self.joint_ns:
            limits["order and processors"] = self.joint_ns
        return limits

    @property
    def reachable_by(self) -> Limit | None:
        """The limit that binds: the longest by median; None where processor time is not known."""
        limits = self.limits_ns
        if "processors" not in limits:
            return None
        return max(limits, key=lambda limit: summary(limits[limit]).median_ns)

    @property
    def reachable_ns(self) -> float | None:
        """The least that overlap can take: the limit that binds; None where it is not known."""
        return None if self.reachable_by is None else summary(self.limits_ns[self.reachable_by]).median_ns

    def reached(self, name: str, rounds: slice = slice(None), *, limit: Limit | None = None) -> Comparison | None:
        """A limit, by default the one that binds, against a variant: 1 + relative is the part of it that is reached."""
        limit = limit or self.reachable_by
        if limit is None:
            return None
        return compared(self.limits_ns[limit][rounds], self.variant(name).times_ns[rounds])

    @property
    def busy(self) -> str | None:
        """A warning where something else seems to use this machine; None: it looks quiet."""
        spread = self.compute.spread_ns / self.compute.median_ns if self.compute.median_ns else 0.0
        if self.origin != "measured" or self.compute.n < LEAST_ROUNDS or spread <= BUSY:
            return None
        return (
            f"This machine is busy: compute alone, the same work every round, varies by {100 * spread:.0f} % of its "
            "median (interquartile range); smaller differences may be noise"
        )

    @property
    def verified(self) -> bool | None:
        """Every result of every variant was right; None: a prediction computes no result."""
        return all(variant.wrong is None for variant in self.variants) if self.origin == "measured" else None

    @property
    def baseline(self) -> VariantResult | None:
        """The better of torch's two defaults."""
        times = {one.name: one.times_ns for one in self.variants if one.name in BASELINES and one.wrong is None}
        return self.variant(better_baseline(times)) if times else None

    @property
    def planned(self) -> VariantResult | None:
        return next((variant for variant in self.variants if variant.name == PLANNED), None)

    @property
    def controlled(self) -> VariantResult | None:
        """The planned variant, or else the fastest with controls; only one whose results are right."""
        if self.planned is not None and self.planned.wrong is None:
            return self.planned
        right = (variant for variant in self.variants if variant.controls and variant.wrong is None)
        return min(right, key=lambda variant: variant.median_ns, default=None)

    @property
    def gain(self) -> Comparison | None:
        """The controlled variant against the baseline."""
        if self.controlled is None or self.baseline is None:
            return None
        return self.against(self.controlled.name, self.baseline.name)

    def share_of_ideal(self, name: str) -> float | None:
        """The part of the possible gain over sequential that a variant reaches; None when nothing could be gained."""
        return share_of_ideal(
            t_sequential=self.variant(SEQUENTIAL).median_ns,
            t=self.variant(name).median_ns,
            t_compute=self.compute.median_ns,
            t_comm=self.comm.median_ns,
        )

    def against(self, name: str, other: str, rounds: slice = slice(None)) -> Comparison:
        """Two variants round by round: the only way a bench compares two of them."""
        return compared(self.variant(name).times_ns[rounds], self.variant(other).times_ns[rounds])

    @property
    def comm_step_ns(self) -> float:
        """One collective alone."""
        return self.comm.median_ns / self.exchanges

    @property
    def bandwidths(self) -> tuple[float, float] | None:
        """Algorithm and bus bandwidth of the collective alone, in bytes per second, as nccl-tests counts them."""
        if self.exchange is None:
            return None
        seconds = self.comm_step_ns / 1e9
        return self.exchange.size_bytes / seconds, self.exchange.wire_bytes / seconds


def measured_plan(bench: Bench) -> Plan:
    """What planning chose, as a plan: no controls where it chose to leave things as they are."""
    if bench.planned is None:
        raise InputError("nothing was planned in this bench: leave --no-plan out")
    return Plan(
        controls=bench.planned.controls,
        reasons=(bench.choice or "",) * len(bench.planned.controls),
        made_for=MadeFor(workload=bench.workload, device=bench.on, ranks=bench.ranks),
    )
