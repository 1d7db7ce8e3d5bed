"""What a harness does whatever its ranks run on: samples by variant, the search among candidates, the bench."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol, TypeVar

from makeway.act.measure.choice import Choice, choice, finalist, promising
from makeway.act.measure.job import Job
from makeway.act.measure.order import CommAlone, StepOrder, ordered_ns
from makeway.act.measure.outcome import Bench, VariantResult
from makeway.act.measure.ranks.exchange import RawSpan
from makeway.act.measure.statistics import LEAST_PAIRS, summary
from makeway.act.measure.variants import COMM, COMPUTE, Variant, measured_as
from makeway.values.collective import Collective
from makeway.values.receipt import Receipt
from makeway.values.timeline import Rank, Span, Step, Timeline, overlap_rate

T = TypeVar("T")
Report = Callable[[str], None]
_CONFIRMING = 2  # times the trial rounds; at least as many as an interval takes


class Peers(Protocol):
    """What ranks exchange outside the timed parts."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    def barrier(self) -> None: ...
    def broadcast(self, decide: Callable[[], T], kind: Any) -> T: ...
    def gathered(self, value: T, kind: Any) -> list[T] | None: ...
    def everywhere(self, value: T, kind: Any) -> list[T]: ...


@dataclass(slots=True)
class Samples:
    """The rounds of one variant so far; times on rank 0 only."""

    times_ns: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu_ns: list[float] = field(default_factory=list)  # processor time of all ranks, where it is known
    busy_ns: list[float] = field(default_factory=list)  # all that the host's cores did, where it is known
    orders: list[list[tuple[StepOrder, ...]]] = field(default_factory=list)  # of each rank, where the workload says it
    wrong: str | None = None
    receipts: tuple[Receipt, ...] = ()
    spans: list[RawSpan] = field(default_factory=list)  # of the last round

    def add(
        self,
        time_ns: float,
        rates: Sequence[float | None],
        wrongs: Sequence[str | None],
        *,
        cpu_ns: float | None = None,
        busy_ns: float | None = None,
        orders: Sequence[tuple[StepOrder, ...]] = (),
    ) -> None:
        """One round: its time, the overlap rate, fault and order of each rank, and the processor time of all."""
        self.times_ns.append(time_ns)
        self.cpu_ns += [] if cpu_ns is None else [cpu_ns]
        self.busy_ns += [] if busy_ns is None else [busy_ns]
        self.orders += [list(orders)] if any(orders) else []
        self.rates += [rate for rate in rates if rate is not None]
        self.wrong = self.wrong or next((f"rank {rank}: {fault}" for rank, fault in enumerate(wrongs) if fault), None)

    def all_cpu_ns(self) -> tuple[float, ...]:
        """Processor time of each round, with what the kernel did for no thread: a mean, as it is counted coarsely."""
        if not self.cpu_ns or len(self.busy_ns) < len(self.cpu_ns):
            return tuple(self.cpu_ns)
        kernel_ns = max(fmean(self.busy_ns) - fmean(self.cpu_ns), 0.0)
        return tuple(cpu_ns + kernel_ns for cpu_ns in self.cpu_ns)

    def result(self, variant: Variant, *, threads: int | None, same_as: str | None) -> VariantResult:
        return VariantResult(
            name=variant.name,
            times_ns=tuple(float(time_ns) for time_ns in self.times_ns),
            controls=variant.controls,
            threads=threads,
            overlap_rate=summary(self.rates).median_ns if self.rates else None,
            wrong=self.wrong,
            same_as=same_as,
            receipts=self.receipts,
        )


SamplesBy = Mapping[str, Samples]  # by name of the variant


def forget(samples: SamplesBy) -> None:
    """Drop times, but not what was wrong."""
    for each in samples.values():
        each.times_ns.clear()
        each.rates.clear()
        each.cpu_ns.clear()
        each.busy_ns.clear()
        each.orders.clear()


def times(samples: SamplesBy, names: Sequence[str]) -> dict[str, list[float]]:
    return {name: list(samples[name].times_ns) for name in names}


def span_overlap_rate(spans: Sequence[RawSpan]) -> float | None:
    """The share of communication time during which compute runs too."""
    return overlap_rate(
        Timeline(
            spans=tuple(
                Span(name=span.name, kind=span.kind, stream=span.kind, start_ns=span.start_ns, end_ns=span.end_ns)
                for span in spans
            ),
            origin="measured",
        )
    )


def measured_choice(
    rounds: Callable[[Sequence[str], int], None],
    samples: SamplesBy,
    peers: Peers,
    *,
    baselines: Sequence[str],
    candidates: Sequence[str],
    trial_rounds: int,
    report: Report,
) -> Choice:
    """The variant that a measured search picks, and why: trial rounds, early stops, then rounds to confirm."""
    first, alive = list(baselines), list(candidates)
    for done in range(trial_rounds):
        report(f"trial {done + 1} of {trial_rounds}, candidates: {len(alive)}")
        rounds([*first, *alive], 1)
        tried = alive
        alive = peers.broadcast(lambda: _worth_another(samples, first, tried, done + 1), list[str])  # noqa: B023  # at once
        if not alive:
            break
    candidate: str | None = peers.broadcast(lambda: finalist(times(samples, [*first, *alive])), str | None)
    trials = times(samples, first)
    forget(samples)
    confirmed = [*first, *([candidate] if candidate else [])]
    report("confirming the choice")
    rounds(confirmed, max(LEAST_PAIRS, _CONFIRMING * trial_rounds))
    return peers.broadcast(lambda: choice(times(samples, confirmed), candidate, trials=trials), Choice)


def _worth_another(samples: SamplesBy, baselines: Sequence[str], alive: Sequence[str], rounds: int) -> list[str]:
    """Candidates to try again: right so far, and after two rounds not far behind."""
    right = [name for name in alive if not samples[name].wrong]
    if rounds < 2:
        return right
    hopeful = promising(times(samples, [*baselines, *right]))
    return [name for name in right if name in hopeful]


# --- the bench -----------------------------------------------------------------------------------


def collected_bench(
    job: Job,
    peers: Peers,
    variants: Sequence[Variant],
    samples: SamplesBy,
    *,
    exchange: Collective | None,
    exchanges: int,
    choice: str | None,
    notes: Sequence[str],
    cores: int | None = None,
) -> Bench | None:
    """The bench of all ranks on rank 0, None elsewhere; of variants that run the same only the first has samples."""
    original = measured_as(variants)
    mine = {variant.name: samples[original[variant.name]].spans for variant in variants}
    spans = peers.gathered(mine, dict[str, list[RawSpan]])
    if spans is None:
        return None
    results = {
        variant.name: samples[original[variant.name]].result(
            variant,
            threads=variant.threads if job.on == "cpu" else None,
            same_as=None if original[variant.name] == variant.name else original[variant.name],
        )
        for variant in variants
    }
    return Bench(
        on=job.on,
        ranks=peers.ranks,
        workload=job.workload,
        origin="measured",
        variants=tuple(result for name, result in results.items() if name not in (COMPUTE, COMM)),
        compute_ns=results[COMPUTE].times_ns,
        comm_ns=results[COMM].times_ns,
        compute_cpu_ns=samples[COMPUTE].all_cpu_ns(),
        comm_cpu_ns=samples[COMM].all_cpu_ns(),
        ordered_ns=_ordered(samples, cores=None),
        joint_ns=_ordered(samples, cores=cores) if cores is not None else (),
        cores=cores,
        exchange=exchange,
        exchanges=exchanges,
        choice=choice,
        timeline=measured_timeline(spans),
        notes=tuple(notes),
    )


def _ordered(samples: SamplesBy, *, cores: int | None) -> tuple[float, ...]:
    """What the order within the steps allows at least, round by round; with `cores`, what processors allow besides."""
    compute, comm = samples[COMPUTE], samples[COMM]
    if not compute.orders or (cores is not None and not comm.cpu_ns):
        return ()
    cpu_ns = comm.all_cpu_ns() if cores is not None else [0.0] * len(comm.times_ns)
    alone = map(CommAlone, comm.times_ns, cpu_ns)
    return tuple(ordered_ns(ranks, comm, cores=cores) for ranks, comm in zip(compute.orders, alone, strict=True))


def measured_timeline(ranks: Sequence[Mapping[str, Sequence[RawSpan]]]) -> Timeline:
    """The last round of every variant on every rank; a step of the timeline is one variant."""
    rounds = [
        (rank, number, variant, spans)
        for rank, by_variant in enumerate(ranks)
        for number, (variant, spans) in enumerate(by_variant.items())
        if spans
    ]
    return Timeline(
        spans=tuple(
            Span(
                name=f"{variant}: {span.name}",
                kind=span.kind,
                stream="compute" if span.kind == "compute" else "comm",
                start_ns=span.start_ns,
                end_ns=span.end_ns,
                rank=rank,
            )
            for rank, _, variant, spans in rounds
            for span in spans
        ),
        origin="measured",
        ranks=tuple(Rank(rank=rank, world=len(ranks)) for rank in range(len(ranks))),
        steps=tuple(
            Step(
                number=number,
                rank=rank,
                start_ns=min(span.start_ns for span in spans),
                end_ns=max(span.end_ns for span in spans),
            )
            for rank, number, _, spans in rounds
        ),
    )
