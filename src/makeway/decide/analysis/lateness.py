"""Why a collective started late: between ready and start, was there room for it on some SM?

A collective is ready once the host has launched it and its own stream has finished everything before it. If it is
ready, has room and still does not start, it waits for another stream: a dependency. Only a delay without room at any
moment is due to residency. A moment at which every running kernel has ended counts as room: a block that lacks only
room would be placed there, before the next kernel of that stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from makeway.decide.analysis.findings import Cause, Confidence, cause_of
from makeway.decide.analysis.names import short_name
from makeway.decide.analysis.streams import SETTLE_NS, StreamView, milliseconds, ready_ns
from makeway.model.residency import blocks_in, resident_blocks, room_beside, shortages
from makeway.values.device import Device
from makeway.values.errors import InvalidKernelError
from makeway.values.kernel import KernelResources, Launch
from makeway.values.timeline import Span

# A start more than 20 us after ready is late; a launch alone takes 5 to 15 us on a busy host.
LATE_NS = 20_000
# The part of a delay that evidence must cover before a cause is claimed.
COVERED = 0.9

RECORD_SYNC = (
    "CUDA synchronisation events: torch.profiler with "
    "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True), or nsys --cuda-event-trace"
)
_LONG = "more kernels ran until then than are examined one by one"
RECORD_RESOURCES = "registers and shared memory per kernel: rocprofv3 or Nsight Systems record them"


@dataclass(frozen=True, slots=True)
class _Moment:
    """A stretch of time with the same kernels running, and whether a block of the collective has room."""

    start_ns: int
    end_ns: int
    room: bool | None  # None: not known
    running: tuple[Span, ...]


def late_causes(view: StreamView, comm: Span, device: Device | None) -> list[Cause]:
    """What kept the collective from starting when it was ready; empty when it was not late."""
    ready = ready_ns(view, comm)
    if ready is None or comm.start_ns - ready <= LATE_NS:
        return []
    released = _released_ns(view, comm)
    if released is not None:
        until = min(max(released, ready), comm.start_ns)
        waited = [_dependency(comm, ready, until, "a recorded stream wait ends then", known=True)]
        late = _unreleased(view, comm, until, device) if comm.start_ns - until > LATE_NS else []
        return (waited if until > ready else []) + late
    return _judged(view, comm, ready, device)


def _judged(view: StreamView, comm: Span, ready: int, device: Device | None) -> list[Cause]:
    moments = _moments(view, comm, ready, device)
    if moments is None:
        return [_undetermined(comm, ready, _LONG, "a shorter recording")]
    last_room = max((m.end_ns for m in moments if m.room and m.start_ns < comm.start_ns - SETTLE_NS), default=None)
    if last_room is not None:
        before = [m for m in moments if m.start_ns < comm.start_ns - SETTLE_NS]  # room after that is what let it start
        evidence, known = _room_evidence(before, device), _room_share(before) >= COVERED
        if comm.start_ns - last_room <= LATE_NS:
            return [_dependency(comm, ready, comm.start_ns, evidence, known=known)]
        if (fed := _fed_by(moments, comm)) is not None:
            evidence += f"; {short_name(fed.name)}, launched earlier, ended just before it started"
            return [_dependency(comm, ready, comm.start_ns, evidence, known=known)]
        return [
            _dependency(comm, ready, last_room, evidence, known=known),
            _undetermined(comm, last_room, "it did not use earlier room, so room alone did not hold it"),
        ]
    if device is not None and _blocked_ns(moments) >= COVERED * (comm.start_ns - ready):
        return [_no_room(comm, ready, moments, device)]
    if device is None or comm.launch is None or comm.launch.resources is None:
        return [_undetermined(comm, ready, "the trace does not record what its blocks need", RECORD_RESOURCES)]
    return [_undetermined(comm, ready, "the trace does not record whether running kernels left room", RECORD_RESOURCES)]


def _fed_by(moments: Sequence[_Moment], comm: Span) -> Span | None:
    """A kernel that the host launched before the collective and that ended just before it started.

    A stream wait covers everything launched before it, so the collective starts when the last of that ends.
    """
    if comm.launched_ns is None:
        return None
    ended = [
        span
        for moment in moments
        for span in moment.running
        if 0 <= comm.start_ns - span.end_ns <= SETTLE_NS
        and span.launched_ns is not None
        and span.launched_ns < comm.launched_ns
    ]
    return max(ended, key=lambda span: span.end_ns, default=None)


def _unreleased(view: StreamView, comm: Span, released: int, device: Device | None) -> list[Cause]:
    """The cause after all recorded waits have ended: room, or something that the trace does not show."""
    moments = _moments(view, comm, released, device)
    if moments is None:
        return [_undetermined(comm, released, _LONG, "a shorter recording")]
    if device is not None and _blocked_ns(moments) >= COVERED * (comm.start_ns - released):
        return [_no_room(comm, released, moments, device, waits_known=True)]
    return [_undetermined(comm, released, "its recorded waits had ended and there was room", "a second run")]


def _released_ns(view: StreamView, comm: Span) -> int | None:
    """When the last span that it is recorded to wait for ended; None where waits are not recorded."""
    if view.waits is None or comm.launched_ns is None:
        return None
    earlier = view.before(comm)
    since = earlier.launched_ns if earlier and earlier.launched_ns is not None else 0
    return view.waits.end_ns(comm.stream, since, comm.launched_ns) or 0


# --- room over time ----------------------------------------------------------------------------


def _moments(view: StreamView, comm: Span, ready: int, device: Device | None) -> list[_Moment] | None:
    """The delay split where the set of running kernels changes; a full drain is a moment of zero length.

    None once the delays of a rank have taken more looks at kernels than `view` allows.
    """
    if not view.may_look(view.effort(ready, comm.start_ns)):
        return None
    beside = [span for span in view.running(ready, comm.start_ns) if span is not comm]
    edges = sorted({ready, comm.start_ns, *_inside(beside, ready, comm.start_ns)})
    moments: list[_Moment] = []
    active: list[Span] = []
    waiting = iter(beside)
    following = next(waiting, None)
    for start, end in pairwise(edges):
        before = active
        active = [span for span in active if span.end_ns > start]
        carried = bool(active)
        while following is not None and following.start_ns <= start:
            if following.end_ns > start:
                active.append(following)
            following = next(waiting, None)
        if not view.may_look(len(active)):
            return None
        if before and not carried and active:
            moments.append(_Moment(start, start, True, ()))
        moments.append(_Moment(start, end, _has_room(view, device, comm.launch, active), tuple(active)))
    return moments


def _inside(spans: Sequence[Span], start: int, end: int) -> list[int]:
    return [time for span in spans for time in (span.start_ns, span.end_ns) if start < time < end]


def _has_room(view: StreamView, device: Device | None, comm: Launch | None, running: Sequence[Span]) -> bool | None:
    """Whether a block of the collective fits on the emptiest SM beside the running kernels; None if unknown."""
    launches = [span.launch for span in running]
    if not launches:
        return True
    if device is None or any(launch is None for launch in launches):
        return None
    known = [launch for launch in launches if launch is not None]
    if sum(launch.blocks for launch in known) < device.sms:
        return True
    if comm is None or comm.resources is None or any(launch.resources is None for launch in known):
        return None
    fits = [_fits_beside(view, device, launch, comm.resources) for launch in known]
    if False in fits:
        return False
    return True if len(fits) == 1 else None


def _fits_beside(view: StreamView, device: Device, launch: Launch, comm: KernelResources) -> bool:
    pair = id(launch), id(comm)  # the spans of the view keep both alive
    if pair not in view.fits:
        view.fits[pair] = _has_room_beside(device, launch, comm)
    return view.fits[pair]


def _has_room_beside(device: Device, launch: Launch, comm: KernelResources) -> bool:
    assert launch.resources is not None
    try:
        full = resident_blocks(device, launch.resources)
        room = room_beside(device, launch.resources, min(full, launch.blocks // device.sms))
        return blocks_in(device, room, comm) > 0
    except InvalidKernelError:  # a kernel that this device cannot run
        return False


def _room_share(moments: Sequence[_Moment]) -> float:
    whole = sum(m.end_ns - m.start_ns for m in moments)
    return sum(m.end_ns - m.start_ns for m in moments if m.room) / whole if whole else 1.0


def _blocked_ns(moments: Sequence[_Moment]) -> int:
    return sum(m.end_ns - m.start_ns for m in moments if m.room is False)


# --- causes ------------------------------------------------------------------------------------


def _room_evidence(moments: Sequence[_Moment], device: Device | None) -> str:
    """How often and how long a block of the collective had room, and beside what."""
    free = sum(m.end_ns - m.start_ns for m in moments if m.room)
    whole = sum(m.end_ns - m.start_ns for m in moments)
    times = sum(1 for before, m in pairwise([None, *moments]) if m and m.room and not (before and before.room))
    evidence = f"a block of it had room {times} time{'s' if times > 1 else ''}"
    evidence += f" ({milliseconds(free)} of {milliseconds(whole)})"
    beside = Counter[str]()
    for moment in moments:
        if moment.room:
            for span in moment.running:
                beside[_with_blocks(span, device)] += moment.end_ns - moment.start_ns
    if beside:
        [(kernel, time_ns)] = beside.most_common(1)
        evidence += f", {milliseconds(time_ns)} beside {kernel}"
    return evidence


def _with_blocks(span: Span, device: Device | None) -> str:
    blocks = f" ({span.launch.blocks:,} blocks on {device.sms} SMs)" if span.launch and device else ""
    return f"{short_name(span.name)}{blocks}"


def _dependency(comm: Span, start: int, end: int, evidence: str, *, known: bool) -> Cause:
    confidence: Confidence = "high" if known else "medium"
    evidence = f"it waited for another stream, not for room: {evidence}"
    return cause_of(comm, "dependency", "late", (start, end), confidence, evidence)


def _no_room(comm: Span, start: int, moments: Sequence[_Moment], device: Device, *, waits_known: bool = False) -> Cause:
    blockers = Counter[str]()
    spans: dict[str, Span] = {}
    for moment in moments:
        for span in moment.running:
            if span.launch and span.launch.resources and comm.launch and comm.launch.resources:
                blockers[span.name] += moment.end_ns - moment.start_ns
                spans.setdefault(span.name, span)
    name = blockers.most_common(1)[0][0]
    span, launch = spans[name], spans[name].launch
    assert launch is not None
    assert launch.resources is not None
    assert comm.launch is not None
    assert comm.launch.resources is not None
    held = min(resident_blocks(device, launch.resources), launch.blocks // device.sms)
    short = shortages(device, room_beside(device, launch.resources, held), comm.launch.resources)
    in_its_tail = any(item.start_ns < comm.start_ns < item.end_ns for m in moments[-1:] for item in m.running)
    launched_after = (
        span.launched_ns is not None and comm.launched_ns is not None and span.launched_ns > comm.launched_ns
    )
    proven = in_its_tail or waits_known or launched_after
    return cause_of(
        comm,
        "no-room" if proven else "undetermined",
        "late",
        (start, comm.start_ns),
        "high" if in_its_tail or waits_known else "medium" if proven else "low",
        f"{short_name(span.name)} held every SM for {milliseconds(blockers[name])} "
        f"of {milliseconds(comm.start_ns - start)} ({held} blocks per SM) "
        "and no block of the collective fits beside it"
        + ("" if proven else "; it was launched before the collective, and a stream wait on it would look the same"),
        kernel=span.name,
        resource=short[0].resource if short else None,
        short_by=str(short[0]) if short else None,
        record_next=None if proven else RECORD_SYNC,
    )


def _undetermined(comm: Span, start: int, why: str, record: str = RECORD_SYNC) -> Cause:
    return cause_of(comm, "undetermined", "late", (start, comm.start_ns), "low", why, record_next=record)
