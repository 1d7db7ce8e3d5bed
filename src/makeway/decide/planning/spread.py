"""Who starves when block times differ, for the engine that knows only equal ones.

With equal block times an SM empties at once, and a large waiting block gets in (docs/model.md, section 4). In reality
one block ends at a time, and under back-fill the kernel's next block takes its place immediately.
"""

from __future__ import annotations

from collections.abc import Callable

from makeway.model.simulate.policies import Dispatch, Levels, Op, Place
from makeway.model.simulate.program import Program
from makeway.model.simulate.sms import Layout


class SpreadOut:
    """A dispatch policy as it acts when the blocks of an SM end one by one; valid for one run of one program.

    A collective ahead of a kernel gets in only where its block fits beside all but one of the kernel's blocks, or
    beside all of them if it starts in clusters: several SMs never have room at the same moment. Where kernels run on
    several streams, the next one fills what the previous one leaves, so SMs do not empty between them either.
    """

    def __init__(self, policy: Dispatch, program: Program) -> None:
        self.name, self.gpcs = policy.name, policy.gpcs
        self._policy = policy
        layout = Layout(program, policy)
        self._kind = layout.kind
        self._is_kernel = [op.kind == "kernel" for op in program.ops]
        self._crowded = len({op.stream for op in program.ops if op.kind == "kernel"}) > 1
        self._begun = False  # whether any kernel has placed a block
        comms = {kind for op, kind in zip(program.ops, layout.kind, strict=True) if op.kind == "collective"}
        kernels = {kind for op, kind in zip(program.ops, layout.kind, strict=True) if op.kind == "kernel"}
        cluster = dict(zip(layout.kind, layout.cluster, strict=True))
        self._starved = {
            (comm, kernel) for comm in comms for kernel in kernels if _starves(layout, kernel, comm, cluster[comm])
        }

    def dispatch(self, levels: Levels[Op], left: Callable[[Op], float], place: Place[Op]) -> None:
        kernels = [op for level in levels for op in level if self._is_kernel[_index(op)] and left(op) > 0]
        full = [op for op in kernels if left(op) < 1 or (self._crowded and self._begun)]
        self._begun = self._begun or bool(kernels)

        def fair(op: Op, limit: int | None) -> int:
            kind = self._kind[_index(op)]
            if any((kind, self._kind[_index(kernel)]) in self._starved and left(kernel) for kernel in full):
                return 0
            return place(op, limit)

        self._policy.dispatch(levels, left, fair)


def _index(op: object) -> int:
    assert isinstance(op, int)
    return op


def _starves(layout: Layout, kernel: int, comm: int, cluster: int) -> bool:
    """Whether a block of `comm` never fits on an SM full of `kernel`'s blocks when one of them ends."""
    fitting = layout.fitting
    kept = fitting.capacity(kernel, ()) - (1 if cluster == 1 else 0)
    return fitting.capacity(comm, ((kernel, kept),) if kept > 0 else ()) == 0
