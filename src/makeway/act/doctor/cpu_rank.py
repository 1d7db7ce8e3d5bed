"""One rank of the self-test of CPU controls; prints its observations as one line of JSON.

python -m makeway.act.doctor.cpu_rank RANK RANKS FILE, where FILE is the ranks' rendezvous.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # makeway needs no numpy
    import torch
    import torch.distributed as dist

from makeway.act.cpu.controls import CpuBackend
from makeway.act.cpu.cores import Seat
from makeway.act.cpu.direct import DirectGroup
from makeway.act.cpu.threads import slice_ns
from makeway.act.doctor.samples import ControlRun, DirectRun, Line, RankRun, ThreadState, write_line
from makeway.values.control import CommPriority, Control, CopyEngine, OwnCores, SmPartition, control_word
from makeway.values.units import MIB

TIMEOUT_S = 30.0
SIZE_BYTES = 4 * MIB
CONTROLS: tuple[Control, ...] = (SmPartition(1), OwnCores(), CommPriority())
_NICENESS, _REALTIME = 16, 37  # index after the name in /proc/PID/task/TID/stat; fields 19 and 40 in proc(5)


def main(rank: int, ranks: int, meeting: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=timedelta(seconds=TIMEOUT_S)
    )
    try:
        with DirectGroup(timeout_s=TIMEOUT_S) as group:
            backend = CpuBackend(group, seat=Seat(rank=rank, ranks=ranks))
            direct = measure_direct(backend, group)  # first: Gloo starts its threads on demand
            observed = RankRun(
                rank=rank,
                ranks=ranks,
                controls=tuple(measure_control(backend, control) for control in CONTROLS),
                direct=direct,
            )
            group.barrier()
    finally:
        dist.destroy_process_group()
    write_line(Line(check="ranks", rank=observed))


def measure_control(backend: CpuBackend, control: Control) -> ControlRun:
    """Every thread as Linux shows it before, under and after the control."""
    before = thread_states(backend)
    with backend.applied((control,)) as (receipt,):
        during = thread_states(backend)
    return ControlRun(
        control=control_word(control),
        status=receipt.status,
        detail=receipt.detail,
        before=before,
        during=during,
        after=thread_states(backend),
    )


def thread_states(backend: CpuBackend) -> dict[str, ThreadState]:
    """Every thread of this process from /proc, a source that the controls' own read-back does not use."""
    comm = backend.comm_threads()
    states = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread may end meanwhile
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            cores = _cores((task / "status").read_text())
            states[task.name] = ThreadState(
                comm=int(task.name) in comm,
                cores=cores,
                niceness=int(fields[_NICENESS]),
                slice_ns=slice_ns(int(task.name)),
                realtime=int(fields[_REALTIME]),
            )
    return states


def _cores(status: str) -> tuple[int, ...]:
    listed = next(line.split(":")[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
    ends = (part.strip().partition("-") for part in listed.split(","))
    return tuple(core for first, _, last in ends for core in range(int(first), int(last or first) + 1))


def measure_direct(backend: CpuBackend, group: DirectGroup) -> DirectRun:
    """One sum through shared memory and one through Gloo, of numbers whose sum is exact in any order."""
    ours = torch.arange(SIZE_BYTES // 4, dtype=torch.float32) % 1024 + backend.seat.rank
    theirs = ours.clone()
    dist.all_reduce(theirs)
    with backend.applied((CopyEngine(),)) as (receipt,):
        if backend.copying:
            group.all_reduce(ours)
    return DirectRun(
        size_bytes=SIZE_BYTES,
        equal=torch.equal(ours, theirs),
        receipt=receipt.status,
        detail=receipt.detail,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), os.path.abspath(sys.argv[3]))
