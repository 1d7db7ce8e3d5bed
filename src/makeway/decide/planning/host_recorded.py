"""Plans for recordings of CPU ranks: what the calibrated host says about the communication that is exposed in them.

A recorded collective costs, by calibration, a time through Gloo and a time through shared memory. Exposed transfers
shrink by the ratio of the two sums; transfers that compute hides give back the difference in processor time:

    gain = exposed transfer x (1 - direct / gloo) + hidden share x wire bytes x (processor time, gloo - direct)

Waiting for a late rank, and late launches, stay as they are. Priority, partition, chunks and compression are not in the
model: `makeway run --tune` measures them in the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from makeway.decide.analysis.analyze import Analysis
from makeway.decide.planning.carried import EXAMPLES, routes, unusable
from makeway.decide.planning.control_sets import ordered
from makeway.decide.planning.host import carrier_rates
from makeway.values.collective import Collective
from makeway.values.control import Control, CopyEngine, control_word, lossy, refuse_lossy
from makeway.values.device import HOST_KINDS, Device
from makeway.values.errors import InputError
from makeway.values.plan import Forecast, MadeFor, Plan, Rejected, Search
from makeway.values.support import support
from makeway.values.timeline import Exchange, Span

CARRIER = "torch on CPU"
OFF_BY = 0.15  # of a predicted time: 8 of 10 workloads were within it (benchmarks/bench_host_plan.py, docs/bench.md)
_BASIS = "15 % of the exposed transfers before and after: 8 of 10 predicted steps are within it (docs/bench.md)"
_ENGINE = "calibrated host"
_MEASURE = "not in the model of a host: `makeway run --tune{lossy}` measures it in the job"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedHost:
    """The worst rank of a recording of CPU ranks; times are of one step."""

    step_ns: float
    exposed_ns: float
    transfer_ns: float  # of it: bytes were moving
    compute_ns: float
    comm_ns: float
    gloo_ns: float  # of its collectives alone, by calibration
    direct_ns: float
    spared_ns: float  # processor time that shared memory takes less
    ranks: int
    unknown: int  # collectives without a size, or of a kind that is not calibrated

    @property
    def ratio(self) -> float:
        """The time through shared memory over that through Gloo."""
        return self.direct_ns / self.gloo_ns if self.gloo_ns else 1.0

    @property
    def gain_ns(self) -> float:
        """What shared memory is predicted to gain; negative where it is slower."""
        hidden = max(self.comm_ns - self.exposed_ns, 0.0) / self.comm_ns if self.comm_ns else 0.0
        return self.transfer_ns * (1 - self.ratio) + hidden * self.spared_ns

    @property
    def error_ns(self) -> float:
        return OFF_BY * self.transfer_ns * (1 + self.ratio)


def recorded_host(analysis: Analysis, device: Device) -> RecordedHost:
    """What the worst rank of an analysis with spans does in a step."""
    worst = analysis.worst
    steps = max(len(worst.steps), 1) if worst.step_ns is not None else 1
    spans = [span for timeline in analysis.timelines for span in timeline.spans if span.rank == worst.rank]
    collectives = [_collective(span, len(analysis.ranks)) for span in spans if span.kind == "comm"]
    known = [item for item in collectives if item is not None]
    gloo = [(item, carrier_rates(device, "gloo", item.kind)) for item in known]
    direct = [(item, carrier_rates(device, "direct", item.kind)) for item in known]
    busy = {
        name: sum(item.wire_bytes * rates.cpu_ns_per_byte for item, rates in pairs)
        for name, pairs in (("gloo", gloo), ("direct", direct))
    }
    return RecordedHost(
        step_ns=(worst.ledger.total_ns or worst.figures.span_ns) / steps,
        exposed_ns=worst.figures.exposed_ns / steps,
        transfer_ns=worst.ledger.ns("transfer") / steps,
        compute_ns=worst.figures.compute_ns / steps,
        comm_ns=worst.figures.comm_ns / steps,
        gloo_ns=sum(rates.alone_ns(item.wire_bytes, item.ranks, None) for item, rates in gloo) / steps,
        direct_ns=sum(rates.alone_ns(item.wire_bytes, item.ranks, None) for item, rates in direct) / steps,
        spared_ns=max(busy["gloo"] - busy["direct"], 0.0) / steps,
        ranks=max((item.ranks for item in known), default=len(analysis.ranks)),
        unknown=len(collectives) - len(known),
    )


def _collective(span: Span, world: int) -> Collective | None:
    exchange = span.exchange or Exchange()
    gathers = exchange.kind == "all-gather"
    size = exchange.out_bytes if gathers else exchange.in_bytes
    ranks = len(exchange.group_ranks) or world
    if exchange.kind not in HOST_KINDS or not size or ranks < 2:
        return None
    return Collective(kind=exchange.kind, size_bytes=size, ranks=ranks)


def plan_host(
    analysis: Analysis,
    calibrated: Callable[[], Device],
    *,
    name: str,
    controls: Sequence[Control] = (),
    destination: str | None = None,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
    allow_lossy: bool = False,
) -> Plan:
    """The plan for a recording of CPU ranks on a calibrated host; the options are those of `plan`.

    `calibrated` is called once they are checked: it may take minutes.
    """
    refuse_lossy(controls, allowed=allow_lossy)
    for control in controls:
        if not support(control, CARRIER).supported:
            raise InputError(
                f"{control_word(control)} is required, but a CPU host has none: {support(control, CARRIER).why_not}"
            )
    withheld = unusable(
        "cpu", destination=destination, only=only, exclude=exclude, required=controls, allow_lossy=allow_lossy
    )
    device = calibrated()
    host = recorded_host(analysis, device)
    copy = CopyEngine()
    possible = copy.name not in {item.control.name for item in (*withheld, *(Rejected(c, "") for c in controls))}
    shown = host.gain_ns > host.error_ns
    chosen = ordered((*controls, *((copy,) if possible and shown else ())))
    copies = any(isinstance(control, CopyEngine) for control in chosen)
    gain_ns = host.gain_ns if copies else 0.0
    rejected = (*withheld, *_rejected(host, withheld, chosen, allow_lossy=allow_lossy))
    sequential_ns = host.compute_ns + host.comm_ns
    return Plan(
        controls=chosen,
        reasons=tuple(_reason(control, host, required=control in controls) for control in chosen),
        made_for=MadeFor(workload=name, device=device.name, ranks=host.ranks),
        predicted=Forecast(
            t_naive_ns=max(round(host.step_ns), 1),
            t_plan_ns=max(round(host.step_ns - gain_ns), 1),
            t_ideal_ns=max(round(host.step_ns - host.exposed_ns), 1),
            t_sequential_ns=max(round(sequential_ns), 1),
        ),
        rejected=rejected,
        search=Search(
            workload=None,
            device=device,
            heuristic="makeway",
            summary=tuple(_summary(analysis, host, gain_ns, worth=copies and shown, required=copies and not possible)),
            leave_as_is=not chosen,
            best_controls=(copy,) if host.gain_ns > 0 and possible else (),
            t_best_ns=round(host.step_ns - max(host.gain_ns, 0.0) * possible),
            baselines={},
            policies=(),
            error_of_difference=host.error_ns / sequential_ns if sequential_ns else 0.0,
            error_basis=_BASIS,
            evaluations=1,
            judged=1,
            engine=_ENGINE,
            destination=destination,
            routes=tuple(tuple(routes(control, "cpu", destination, ())) for control in chosen),
            notes=tuple(_notes(analysis, host, chosen)),
        ),
    )


def _summary(analysis: Analysis, host: RecordedHost, gain_ns: float, *, worth: bool, required: bool) -> Iterator[str]:
    change = f"{100 * -gain_ns / host.step_ns:+.1f} %" if host.step_ns else "0 %"
    if worth:
        yield (
            f"Worth trying: {_ms(host.step_ns - gain_ns)} a step with the plan, {_ms(host.step_ns)} as recorded "
            f"({change})."
        )
    else:
        verdict = "No gain is predicted from the required copy-engine" if required else "Leave as is"
        yield (
            f"{verdict}: {_ms(host.step_ns)} a step as recorded; shared memory is predicted to change it by "
            f"{_ms(-host.gain_ns)}, the model may be off by {_ms(host.error_ns)}."
        )
    yield analysis.which_times
    yield (
        f"A step exposes {_ms(host.exposed_ns)} of communication, {_ms(host.transfer_ns)} of it while bytes move; its "
        f"collectives alone take {_ms(host.gloo_ns)} through Gloo and {_ms(host.direct_ns)} through shared memory, by "
        "calibration."
    )


def _reason(control: Control, host: RecordedHost, *, required: bool) -> str:
    if required:
        return "required"
    assert isinstance(control, CopyEngine)
    return (
        f"{_ms(host.step_ns - host.gain_ns)} with it, {_ms(host.step_ns)} without it: exposed transfers take "
        f"{host.ratio:.2f} times as long through shared memory"
    )


def _rejected(
    host: RecordedHost, withheld: Sequence[Rejected], chosen: Sequence[Control], *, allow_lossy: bool
) -> Iterator[Rejected]:
    known = {type(item.control) for item in withheld} | {type(control) for control in chosen}
    for example in EXAMPLES:
        if type(example) in known or (lossy(example) and not allow_lossy):
            continue
        row = support(example, CARRIER)
        if not row.supported:
            yield Rejected(example, row.why_not)
        elif isinstance(example, CopyEngine):
            yield Rejected(
                example, f"gains {_ms(host.gain_ns)} a step, and the model may be off by {_ms(host.error_ns)}"
            )
        else:
            yield Rejected(example, _MEASURE.format(lossy=" --allow-lossy" if lossy(example) else ""))


def _notes(analysis: Analysis, host: RecordedHost, chosen: Sequence[Control]) -> Iterator[str]:
    yield from analysis.notes
    if host.unknown:
        yield f"{host.unknown:,} collectives have no size in the recording, or are not calibrated: they stay as is"
    if any(isinstance(control, CopyEngine) for control in chosen):
        yield "copy-engine needs all ranks on one host; a recording does not say on which hosts its ranks ran"


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.3f} ms"
