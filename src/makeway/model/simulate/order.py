"""Who waits for whom in a program, and whether every operation can become resident at all."""

from __future__ import annotations

from collections import Counter

from makeway.model.simulate.program import EngineOp, Program
from makeway.model.simulate.sms import Layout
from makeway.values.errors import InputError


def linked(ops: tuple[EngineOp, ...]) -> tuple[list[list[tuple[int, bool]]], list[int]]:
    """The followers of each operation (by an event or not), and how many operations each one waits for.

    An operation waits for those it names and for the one before it in its stream.
    """
    last: dict[tuple[int, str], int] = {}
    followers: list[list[tuple[int, bool]]] = [[] for _ in ops]
    counts = []
    for index, op in enumerate(ops):
        waits = dict.fromkeys(op.after, True)
        if (before := last.get((op.rank, op.stream))) is not None:
            waits[before] = False
        for earlier, by_event in waits.items():
            followers[earlier].append((index, by_event))
        counts.append(len(waits))
        last[op.rank, op.stream] = index
    return followers, counts


def check_residency(program: Program, layout: Layout) -> None:
    """Refuse an operation that could never become resident, even on an empty device."""
    for index, op in enumerate(program.ops):
        if op.kind == "copy":
            continue
        each = layout.fitting.capacity(layout.kind[index], ())
        by_gpc: Counter[int] = Counter()
        for site in layout.sites[index]:
            by_gpc[program.sites[site].gpc] += each * program.sites[site].sms
        room = sum(by_gpc.values())
        cluster = op.block.cluster if op.block else 1
        needed = op.blocks if op.kind == "collective" else min(cluster, op.blocks)
        if room < needed or max(by_gpc.values(), default=0) < min(cluster, op.blocks):
            where = f"part {op.part!r} of the device" if op.part else "the device"
            raise InputError(
                f"{op.name} can never become resident: it needs {needed} block{'' if needed == 1 else 's'} at once"
                f"{f' in clusters of {cluster}' if cluster > 1 else ''}, and {where} has room for {room}"
            )
