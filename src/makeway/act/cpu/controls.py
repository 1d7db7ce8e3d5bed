"""Controls on the CPUs of one host: cores for communication, niceness for compute, copies through shared memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar, assert_never

import torch

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.cpu.cores import Division, Seat, divided, launched_seat, neighbouring, share_of
from makeway.act.cpu.direct import DirectGroup
from makeway.act.cpu.threads import (
    GLOO_NAMES,
    REALTIME,
    cores_of,
    may_be_realtime,
    may_be_undone,
    niceness_of,
    policy_of,
    readings,
    set_cores,
    set_niceness,
    set_policy,
    set_slice,
    slice_ns,
    thread_ids,
    threads_named,
)
from makeway.values.control import (
    Chunks,
    CommBlocks,
    CommPriority,
    CommThreads,
    Compress,
    Control,
    CopyEngine,
    LaunchOrder,
    OwnCores,
    SmemPad,
    SmPartition,
    TileChoice,
)
from makeway.values.receipt import Receipt
from makeway.values.support import support

T = TypeVar("T")
CARRIER = TORCH_CARRIERS["cpu"]
NICER_BY = 10  # sched(7): each step is worth a factor of about 1.25, so compute weighs a tenth of communication
SHORT_SLICE_NS = 100_000  # the shortest that Linux grants
_AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")


class CpuBackend:
    """Controls of this rank's threads; call it from the main thread.

    Communication threads are Gloo's, by name, and those of `direct`; every other thread counts as compute. `seat` is
    this rank among those that use the same cores: by default all ranks that the launcher started on this host, else
    those of `direct`, which share a host. `no_direct`: why there is no DirectGroup.
    """

    name = "cpu"

    def __init__(
        self,
        direct: DirectGroup | None = None,
        *,
        seat: Seat | None = None,
        cores: Sequence[int] | None = None,
        no_direct: str | None = None,
    ) -> None:
        self.direct, self.no_direct = direct, no_direct
        self.seat = seat or launched_seat((direct.rank, direct.ranks) if direct is not None else (0, 1))
        self.cores = tuple(sorted(cores if cores is not None else os.sched_getaffinity(0)))
        self.copying = False  # True while CopyEngine is in force: collectives belong on `direct`

    # --- what can be done ----------------------------------------------------------------------

    def comm_threads(self) -> frozenset[int]:
        """The threads that communicate, as of now."""
        ours = self.direct.thread_ids if self.direct is not None and self.direct.usable else ()
        return threads_named(GLOO_NAMES) | frozenset(ours)

    def compute_threads(self) -> frozenset[int]:
        """All other threads: the main one, OpenMP's pool, whatever the program started."""
        return thread_ids() - self.comm_threads()

    def refusal(self, control: Control) -> str | None:
        """Why this host cannot do that; None when it can."""
        match control:
            case SmPartition(comm_cores):
                return self._no_partition(comm_cores)
            case OwnCores():
                return self._no_own_cores()
            case CommPriority():
                return self._no_priority()
            case CopyEngine():
                return self._no_copies(control)
            case CommBlocks(cluster=int(cluster)) if cluster > 1:
                return "threads start one by one; clusters are for the blocks of a GPU"
            case CommBlocks(blocks):
                return self._no_copiers(blocks)
            case CommThreads() | SmemPad() | TileChoice():
                return support(control, "torch on CPU").why_not
            case LaunchOrder() | Chunks() | Compress():
                return None  # nothing to set on threads: see `applied`
            case _:
                assert_never(control)

    def _no_partition(self, comm_cores: int) -> str | None:
        if self.seat.unclear is not None:
            return self.seat.unclear
        if comm_cores == 0:
            return "communication on a CPU needs a core, even for copies"
        if self._division(comm_cores) is None:
            return f"{comm_cores} cores for communication would leave none for compute: the host has {len(self.cores)}"
        return None

    def _no_own_cores(self) -> str | None:
        if self.seat.unclear is not None or len(self.cores) >= self.seat.ranks:
            return self.seat.unclear
        return f"each of {self.seat.ranks} ranks needs a core, and they may use {len(self.cores)}"

    def rounding(self, control: Control) -> str | None:
        """Why sums of the program may round differently under a control, as of now; None: results stay as they are."""
        left = None
        if isinstance(control, OwnCores) and self.seat.ranks > 1 and (share := self._share) is not None:
            left = len(share)
        elif isinstance(control, SmPartition) and (division := self._division(control.comm_sms)) is not None:
            left = division.threads
        threads = torch.get_num_threads()
        if left is None or left >= threads:
            return None
        return (
            f"with {left} of its {threads} compute threads this rank's sums may round differently, since torch adds up "
            f"by threads; start the program with OMP_NUM_THREADS={left}"
        )

    @cached_property
    def _in_order(self) -> tuple[int, ...]:
        return neighbouring(self.cores)

    @property
    def _share(self) -> tuple[int, ...] | None:
        return share_of(self._in_order, rank=self.seat.rank, ranks=self.seat.ranks)

    def _division(self, comm_cores: int) -> Division | None:
        return divided(self._in_order, comm_cores, rank=self.seat.rank, ranks=self.seat.ranks)

    def _no_priority(self) -> str | None:
        if may_be_realtime() or may_be_undone(niceness_of(0)) or slice_ns(0) is not None:
            return None
        return (
            "a real-time priority needs CAP_SYS_NICE or `ulimit -r 1`; compute threads could be made nicer but not "
            f"restored without `ulimit -e {20 - niceness_of(0)}`; a time slice per thread needs Linux 6.12"
        )

    def _no_copies(self, control: CopyEngine) -> str | None:
        if self.direct is None:
            return self.no_direct or "copies through shared memory need a DirectGroup of ranks that share this host"
        if not self.direct.usable:
            return "the DirectGroup is closed or has lost a rank; build a new one"
        if control.variant != "parallel-copy":
            return f"{control.variant} is for GPU copy engines; on a CPU every rank pulls for itself (parallel-copy)"
        return "copies on a CPU cannot be launched ahead of their data" if control.prelaunch else None

    def _no_copiers(self, threads: int) -> str | None:
        if self.direct is None or not self.direct.usable:
            return "Gloo's threads are fixed when its process group is made; copiers need a DirectGroup (copy-engine)"
        if threads > len(self.cores):
            return f"{threads} copiers on {len(self.cores)} cores would take turns"
        return None

    # --- doing it ------------------------------------------------------------------------------

    @contextmanager
    def applied(self, controls: Sequence[Control]) -> Iterator[tuple[Receipt, ...]]:
        """The controls in force inside the block, each read back; all undone at the end.

        Launch order and chunks belong to the code that launches: nothing is set for them here.
        """
        receipts: dict[Control, Receipt] = {}
        with ExitStack() as stack:
            copiers_first = sorted(controls, key=lambda control: not isinstance(control, CommBlocks))  # they need cores
            for control in copiers_first:
                if reason := self.refusal(control) or _placed_already(control, controls):
                    receipts[control] = Receipt(control=control, status="refused", detail=reason, carrier=CARRIER)
                else:
                    receipts[control] = self._apply(control, stack)
            yield tuple(receipts[control] for control in controls)

    def _apply(self, control: Control, stack: ExitStack) -> Receipt:
        match control:
            case SmPartition(comm_cores):
                return self._partition(control, comm_cores, stack)
            case OwnCores():
                return self._own_cores(control, stack)
            case CommPriority():
                if may_be_realtime():
                    return self._make_comm_realtime(control, stack)
                if may_be_undone(niceness_of(0)):
                    return self._make_compute_nicer(control, stack)
                return self._shorten_slices(control, stack)
            case CopyEngine():
                self.copying = True
                stack.callback(setattr, self, "copying", False)
                return _read_back(control, True, "collectives go through shared memory")
            case CommBlocks(threads):
                assert self.direct is not None
                stack.callback(setattr, self.direct, "copiers", self.direct.copiers)
                self.direct.copiers = threads
                return _read_back(control, self.direct.copiers == threads, f"{self.direct.copiers} copier threads")
            case LaunchOrder() | Chunks() | Compress():
                return _read_back(
                    control, False, "nothing to set on threads: for the code that launches the operations"
                )
            case CommThreads() | SmemPad() | TileChoice():
                raise AssertionError(f"{control} was refused")
            case _:
                assert_never(control)

    def _partition(self, control: Control, comm_cores: int, stack: ExitStack) -> Receipt:
        division = self._division(comm_cores)
        assert division is not None
        comm, compute, rounding = self.comm_threads(), self.compute_threads(), self.rounding(control)
        _undo_later(stack, cores_of, set_cores)
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        for thread in comm:
            set_cores(thread, division.comm)
        for thread in compute:
            set_cores(thread, division.compute)
        torch.set_num_threads(min(division.threads, torch.get_num_threads()))
        held = all(cores == {*division.comm} for cores in readings(comm, cores_of).values()) and all(
            cores == {*division.compute} for cores in readings(compute, cores_of).values()
        )
        shared = f", the same for all {division.sharing} ranks" if division.sharing > 1 else ""
        return _read_back(
            control,
            held and bool(comm),
            f"communication threads: {len(comm)} on cores {_list(division.comm)}; compute threads: "
            f"{torch.get_num_threads()} on cores {_list(division.compute)}{shared}{_warning(rounding)}",
        )

    def _own_cores(self, control: Control, stack: ExitStack) -> Receipt:
        if self.seat.ranks == 1:
            return _read_back(control, False, f"no other rank uses this rank's cores ({_list(self.cores)})")
        share, rounding = self._share, self.rounding(control)
        assert share is not None
        _undo_later(stack, cores_of, set_cores)
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        for thread in thread_ids():
            set_cores(thread, share)
        torch.set_num_threads(min(len(share), torch.get_num_threads()))
        comm = self.comm_threads()
        held = all(cores == {*share} for cores in readings(thread_ids(), cores_of).values())
        return _read_back(
            control,
            held,
            f"{len(comm)} communication threads and {torch.get_num_threads()} compute threads on cores {_list(share)}, "
            f"for rank {self.seat.rank} of the {self.seat.ranks} that shared cores {_list(self.cores)}"
            f"{_warning(rounding)}",
        )

    def _make_comm_realtime(self, control: Control, stack: ExitStack) -> Receipt:
        """Let communication run as soon as it wakes.

        Since Linux 6.6 it waits for the slice of the thread that runs, however nice that is: 1.4 ms on two cores.
        """
        comm = self.comm_threads()
        for thread, policy in readings(comm, policy_of).items():
            stack.callback(set_policy, thread, policy)
            set_policy(thread, REALTIME)
        held = all(policy == REALTIME for policy in readings(comm, policy_of).values())
        return _read_back(
            control,
            held and bool(comm),
            f"{len(comm)} communication threads at real-time priority {REALTIME[1]}: they run as soon as they wake",
        )

    def _make_compute_nicer(self, control: Control, stack: ExitStack) -> Receipt:
        comm, compute = self.comm_threads(), self.compute_threads()
        _undo_later(stack, niceness_of, set_niceness)
        niceness = min(niceness_of(0) + NICER_BY, 19)
        for thread in compute:
            set_niceness(thread, niceness)
        held = all(value == niceness for value in readings(compute, niceness_of).values())
        less = max(readings(comm, niceness_of).values(), default=niceness)
        grouped = _AUTOGROUP.exists() and _AUTOGROUP.read_text().strip() == "1"
        note = "; counts within a session only, since autogroup is on" if grouped else ""
        return _read_back(
            control,
            held and less < niceness,
            f"compute threads at niceness {niceness}, {len(comm)} communication threads at {less}{note}",
        )

    def _shorten_slices(self, control: Control, stack: ExitStack) -> Receipt:
        comm = self.comm_threads()
        _undo_later(stack, slice_ns, lambda thread, before: set_slice(thread, before or 0))
        for thread in comm:
            set_slice(thread, SHORT_SLICE_NS)
        held = all(slice_ns(thread) == SHORT_SLICE_NS for thread in comm)
        return _read_back(
            control,
            held and bool(comm),
            f"{len(comm)} communication threads with time slices of {SHORT_SLICE_NS / 1e6:g} ms, so that they run as "
            "soon as they wake (without CAP_SYS_NICE the niceness of compute threads could not be restored)",
        )


def _placed_already(control: Control, controls: Sequence[Control]) -> str | None:
    if control != OwnCores() or not any(isinstance(other, SmPartition) for other in controls):
        return None
    return "partition says on which cores threads run; keep one of the two"


def _undo_later(stack: ExitStack, read: Callable[[int], T], write: Callable[[int, T], None]) -> None:
    """Restore every thread's setting at the end; a thread that starts meanwhile gets that of the main thread."""
    before = readings(thread_ids(), read)
    usual = before[os.getpid()]

    def undo() -> None:
        for thread in thread_ids():
            write(thread, before.get(thread, usual))

    in_child = partial(write, 0, usual)
    _IN_CHILD.append(in_child)
    stack.callback(_IN_CHILD.remove, in_child)
    stack.callback(undo)


_IN_CHILD: list[Callable[[], None]] = []  # a forked child, such as a worker of a DataLoader, is no thread of this rank


def _undo_in_child() -> None:
    for undo in reversed(_IN_CHILD):
        with suppress(OSError):
            undo()


os.register_at_fork(after_in_child=_undo_in_child)


def _read_back(control: Control, held: bool, detail: str) -> Receipt:
    return Receipt(control=control, status="applied" if held else "no effect", detail=detail, carrier=CARRIER)


def _warning(rounding: str | None) -> str:
    return "" if rounding is None else f"; {rounding}"


def _list(cores: Sequence[int]) -> str:
    return ",".join(map(str, sorted(cores)))
