"""Verdicts on samples: what was expected, what was measured, and whether that proves the control."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Literal

from makeway.act.doctor.samples import (
    Block,
    ControlRun,
    CopyRun,
    PaddedRun,
    PartitionRun,
    PriorityRun,
    RankRun,
    ThreadState,
    sampled_device,
)
from makeway.model.residency import resident_blocks
from makeway.values.errors import UnknownNameError
from makeway.values.units import format_bytes

Status = Literal["proved", "failed", "not tested"]

LEAST_OVERTAKEN = 0.5  # of the long kernel's blocks: it has many waves, and the first one is running


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One check of the self-test; "not tested" carries the reason in `detail`."""

    check: str
    platform: str  # cpu, cuda, rocm
    control: str  # the name of the control that it proves
    route: str  # the route that it proves
    status: Status
    expected: str = ""
    measured: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check, and the control and route that it proves."""

    name: str
    platform: str
    control: str
    route: str

    def verdict(self, *, held: bool, expected: str, measured: str, detail: str = "") -> Verdict:
        return self._verdict("proved" if held else "failed", detail, expected, measured)

    def untested(self, reason: str) -> Verdict:
        return self._verdict("not tested", reason)

    def broken(self, reason: str) -> Verdict:
        """It began and did not finish: a failure, not a gap."""
        return self._verdict("failed", reason)

    def _verdict(self, status: Status, detail: str, expected: str = "", measured: str = "") -> Verdict:
        return Verdict(
            check=self.name,
            platform=self.platform,
            control=self.control,
            route=self.route,
            status=status,
            expected=expected,
            measured=measured,
            detail=detail,
        )


# --- residency -----------------------------------------------------------------------------------


def peaks(blocks: Iterable[Block]) -> dict[int, int]:
    """The most blocks that each SM held at one time.

    A block that starts in the tick in which another ends takes its place: some clocks tick once a microsecond.
    """
    by_sm: dict[int, list[tuple[int, int]]] = {}
    for block in blocks:
        by_sm.setdefault(block.sm, []).extend(((block.start_ns, 1), (block.end_ns, -1)))
    return {sm: max(accumulate(change for _, change in sorted(changes))) for sm, changes in by_sm.items()}


def judge_residency(check: Check, runs: Sequence[PaddedRun]) -> Verdict:
    """Proved when, for every pad, the fullest SM and the median SM hold what makeway's residency says."""
    if not runs:
        return check.untested("no pad was tried")
    try:
        device = sampled_device(runs[0].device, runs[0].limits)
    except UnknownNameError as error:
        return check.untested(str(error).splitlines()[0])
    expected, measured, held = [], [], True
    for run in runs:
        wanted, counts = resident_blocks(device, run.block.padded(run.pad_bytes)), list(peaks(run.blocks).values())
        held &= bool(counts) and max(counts) == wanted == median(counts)
        expected.append(f"{wanted} at +{format_bytes(run.pad_bytes)}")
        measured.append(f"{max(counts, default=0)} at +{format_bytes(run.pad_bytes)}")
    detail = (
        f"blocks per SM of {device.name}; {len(runs)} pads, {sum(len(run.blocks) for run in runs):,} blocks sampled"
    )
    return check.verdict(held=held, expected=", ".join(expected), measured=", ".join(measured), detail=detail)


# --- priority, partition, copies -----------------------------------------------------------------


def overtaken(long: Sequence[Block], short: Sequence[Block]) -> float:
    """The share of the long kernel's blocks that started after the first block of the short one."""
    if not long or not short:
        return 0.0
    first = min(block.start_ns for block in short)
    return sum(block.start_ns > first for block in long) / len(long)


def judge_priority(check: Check, run: PriorityRun) -> Verdict:
    """Proved when the later kernel overtakes most waiting blocks, and more than at equal priority."""
    high, equal = overtaken(run.long_beside_high, run.high), overtaken(run.long_beside_equal, run.equal)
    return check.verdict(
        held=high >= LEAST_OVERTAKEN and high > equal,
        expected=f"overtakes at least {LEAST_OVERTAKEN:.0%} of the waiting blocks, and more than at equal priority",
        measured=f"overtook {high:.0%}, {equal:.0%} at equal priority",
        detail="" if high > equal else "priority made no difference",
    )


def judge_partition(check: Check, run: PartitionRun) -> Verdict:
    """Proved when the kernel ran on exactly as many SMs as the stream was given."""
    sms = len({block.sm for block in run.blocks})
    detail = "the stream was not confined" if sms == run.device_sms > run.given_sms else ""
    return check.verdict(
        held=sms == run.given_sms,
        expected=f"{run.given_sms} of {run.device_sms} SMs",
        measured=f"{sms} SMs",
        detail=detail,
    )


def judge_copy(check: Check, run: CopyRun) -> Verdict:
    """Proved when the copy finished intact while every SM was held."""
    if run.copy_end_ns <= run.held_from_ns:
        return check.untested("the copy finished before every SM was held, which proves nothing")
    return check.verdict(
        held=run.intact and run.copy_end_ns < run.held_until_ns,
        expected=f"{format_bytes(run.size_bytes)} ({run.path}) done before {run.held_until_ns / 1e6:.2f} ms, SMs held",
        measured=f"done at {run.copy_end_ns / 1e6:.2f} ms",
        detail="" if run.intact else "the bytes received differ from those sent",
    )


# --- the launch shim -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimCounts:
    """What the shim's receipts say about the kernel launched under it."""

    seen: int
    padded: int
    pad_bytes: int  # beyond the program's own request
    reason: str = ""


def judge_shim(check: Check, run: PaddedRun, counts: ShimCounts | None) -> Verdict:
    """Proved when the receipts claim that every launch was padded and the SMs held as many blocks as the pad allows."""
    if counts is None:
        return check.verdict(held=False, expected="receipts", measured="none", detail="the shim saw no launch")
    residency = judge_residency(check, (run,))
    if residency.status == "not tested":
        return residency
    claimed = counts.seen == counts.padded > 0 and counts.pad_bytes == run.pad_bytes
    return check.verdict(
        held=claimed and residency.status == "proved",
        expected=f"every launch padded; {residency.expected} blocks per SM",
        measured=f"{counts.padded} of {counts.seen} launches padded by {counts.pad_bytes:,} B; {residency.measured}",
        detail=counts.reason,
    )


# --- CPU ranks -----------------------------------------------------------------------------------


def judge_threads(check: Check, ranks: Sequence[RankRun]) -> Verdict:
    """Proved when Linux shows the control on every rank's threads, and the previous state afterwards."""
    runs = [run for rank in ranks for run in rank.controls if run.control == check.name]
    if not runs:
        return check.untested("no rank tried it")
    if refused := [run for run in runs if run.status == "refused"]:
        return check.untested(f"refused: {refused[0].detail}")
    applied = all(run.status == "applied" for run in runs)
    if check.control == "own-cores":
        seen = _apart(runs)
    else:
        seen = sum(_parted(run) if check.control == "partition" else _preferred(run) for run in runs)
    undone = sum(_undone(run) for run in runs)
    return check.verdict(
        held=applied and seen == undone == len(runs),
        expected=f"seen on the threads of {len(runs)} ranks, and undone",
        measured=f"seen on {seen}, undone on {undone}",
        detail=runs[0].detail,
    )


def _sides(states: dict[str, ThreadState]) -> tuple[list[ThreadState], list[ThreadState]]:
    comm = [state for state in states.values() if state.comm]
    return comm, [state for state in states.values() if not state.comm]


def _parted(run: ControlRun) -> bool:
    comm, compute = _sides(run.during)
    ours, theirs = ({core for state in side for core in state.cores} for side in (comm, compute))
    return bool(comm) and bool(compute) and not ours & theirs


def _apart(runs: Sequence[ControlRun]) -> int:
    """Ranks that have all their threads on the same cores, which no other rank uses."""
    cores = [{state.cores for state in run.during.values()} for run in runs]
    taken = [{core for places in rank for core in places} for rank in cores]
    return sum(
        len(places) == 1 and all(taken[number].isdisjoint(other) for other in taken[:number] + taken[number + 1 :])
        for number, places in enumerate(cores)
    )


def _preferred(run: ControlRun) -> bool:
    comm, compute = _sides(run.during)
    if not comm or not compute:
        return False
    if min(state.realtime for state in comm) > max(state.realtime for state in compute):
        return True
    if max(state.niceness for state in comm) < min(state.niceness for state in compute):
        return True
    # Linux shows 0 for a thread that keeps the default slice.
    return all(
        state.slice_ns and all(other.slice_ns is None or state.slice_ns < other.slice_ns for other in compute)
        for state in comm
    )


def _undone(run: ControlRun) -> bool:
    return all(run.after[thread] == state for thread, state in run.before.items() if thread in run.after)


def judge_direct(check: Check, ranks: Sequence[RankRun]) -> Verdict:
    """Proved when every rank's sum through shared memory equals Gloo's bit for bit."""
    if not ranks:
        return check.untested("no rank tried it")
    runs = [rank.direct for rank in ranks]
    if refused := [run for run in runs if run.receipt == "refused"]:
        return check.untested(f"refused: {refused[0].detail}")
    equal = sum(run.equal for run in runs)
    return check.verdict(
        held=equal == len(runs) and all(run.receipt == "applied" for run in runs),
        expected=f"sums of {format_bytes(runs[0].size_bytes)} on {len(runs)} ranks equal to Gloo's bit for bit",
        measured=f"equal on {equal}",
        detail=runs[0].detail,
    )
