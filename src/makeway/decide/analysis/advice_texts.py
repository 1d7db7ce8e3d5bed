"""The words of advice: what to change on GPUs, and what to change on CPU ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from makeway.decide.analysis.exposure import RECORD_STACKS
from makeway.decide.analysis.findings import CauseKind, Loss, RankFindings
from makeway.decide.analysis.ledger import LineKind
from makeway.decide.analysis.wording import on_cpu
from makeway.values.control import Chunks, CommBlocks, CommPriority, Control, CopyEngine, SmPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What to change against each cause and each line of a ledger, on one kind of hardware."""

    by_cause: Mapping[tuple[CauseKind, Loss], str]
    by_line: Mapping[LineKind, str]
    record_idle: str  # for lines without advice of their own
    line_evidence: Mapping[LineKind, str]
    controls: Mapping[tuple[CauseKind, Loss], tuple[Control, ...]]  # that may help


_STRAGGLER = "find out why rank {rank} arrives late"

ON_GPU = Texts(
    by_cause={
        ("straggler", "exposed"): _STRAGGLER,
        ("no-room", "late"): (
            "make room for the collective: raise its priority, then reserve SMs or shrink its footprint"
        ),
        ("dependency", "exposed"): (
            "give the GPU compute that does not need the result: prefetch, or split the collective"
        ),
        ("launch-bound", "exposed"): "launch compute earlier: CUDA graphs, torch.compile, fewer small kernels",
        ("serialised", "exposed"): "put the collective on a stream of its own (async_op=True, or a side stream)",
        ("contention", "slowed"): "take less from compute: fewer communication blocks, or copy engines",
    },
    by_line={
        "copies": "copy less or beside compute: pinned memory, non_blocking=True, a stream of its own",
        "host": "launch kernels faster: CUDA graphs, torch.compile, fewer small kernels, less Python in between",
        "synchronisation": "synchronise less: no .item(), .cpu() or torch.cuda.synchronize() inside the step",
        "loading": "load data ahead of the step: more DataLoader workers, pin_memory, prefetch_factor",
        "allocator": "stop allocating inside the step: expandable_segments:True, fixed shapes, a longer warm-up",
        "gaps": "run fewer, longer kernels: fuse them (torch.compile), or launch them as a CUDA graph",
    },
    record_idle="record more: the host's launches and synchronisation, with CPU activity in the same trace",
    line_evidence={
        "copies": "only copies or fills run; most of the time: {top}",
        "host": "nothing runs, since the host has not launched what runs next; most of the time: {top}",
        "synchronisation": "nothing runs while the host is blocked in a synchronising call; what runs next: {top}",
        "loading": "nothing runs while the host fetches the next batch; what runs next: {top}",
        "allocator": "nothing runs while the host allocates or frees device memory; what runs next: {top}",
        "gaps": "nothing runs for a few microseconds between queued kernels; most of the time before: {top}",
        "other": "nothing runs, and the recording does not show what the next kernel waits for; what runs next: {top}",
    },
    controls={
        ("no-room", "late"): (CommPriority(), SmPartition(16), CopyEngine()),
        ("dependency", "exposed"): (Chunks(4),),
        ("contention", "slowed"): (CommBlocks(8), CopyEngine()),
    },
)

# A thread launches nothing: it computes, or it runs Python between two operators. There are no streams, graphs, pinned
# buffers or device memory to advise on; collectives run on threads of their own, beside the threads that compute.
ON_CPU = Texts(
    by_cause={
        ("straggler", "exposed"): _STRAGGLER,
        ("dependency", "exposed"): (
            "shorten the transfer, or compute beside it: shared memory between the ranks (copy-engine), or smaller "
            "pieces (chunks)"
        ),
        ("launch-bound", "exposed"): (
            "compute while the collective runs: wait for it later, or run less Python in between (torch.compile)"
        ),
        ("serialised", "exposed"): "start the collective with async_op=True: a thread of its own then runs it",
        ("contention", "slowed"): (
            "take less from compute: shared memory between the ranks (copy-engine), or cores for communication "
            "(partition)"
        ),
    },
    by_line={
        "copies": "copy less inside the step",
        "host": "run less Python between operators: torch.compile, fewer and larger operators",
        "loading": "load data ahead of the step: more DataLoader workers, prefetch_factor",
        "gaps": "run fewer, larger operators: fuse them (torch.compile)",
    },
    record_idle=f"record more: {RECORD_STACKS}",
    line_evidence={
        "copies": "only copies or fills run; most of the time: {top}",
        "host": "no operator runs: the program is between two of them; what runs next: {top}",
        "synchronisation": "no operator runs while the program waits in a call; what runs next: {top}",
        "loading": "no operator runs while the program fetches the next batch; what runs next: {top}",
        "allocator": "no operator runs while memory is allocated or freed; what runs next: {top}",
        "gaps": "no operator runs for a few microseconds; what runs next: {top}",
        "other": "no operator runs, and the recording does not show what the next one waits for: {top}",
    },
    controls={
        ("dependency", "exposed"): (CopyEngine(), Chunks(4)),
        ("contention", "slowed"): (CopyEngine(), SmPartition(1)),
    },
)


def texts_for(ranks: Sequence[RankFindings]) -> Texts:
    """The words for the hardware that these ranks ran on."""
    return ON_CPU if on_cpu(rank.device for rank in ranks) else ON_GPU
