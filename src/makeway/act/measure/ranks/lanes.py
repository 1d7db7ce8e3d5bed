"""Stages of compute and exchange that take turns on lanes: while one lane exchanges, another computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from makeway.act.measure.ranks.exchange import Pending, Recorder, Transfer, Transport
from makeway.act.measure.variants import Mode
from makeway.values.control import Compress
from makeway.values.errors import UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Compute, then the exchange of what it made.

    Both can be cut into pieces: compute by rows, and `transfer` gives the exchange of one piece.
    """

    name: str
    lane: int
    rows: int  # of compute and of the exchange; pieces are cut from them
    compute: Callable[[slice], None]
    transfer: Callable[[int, int], Transfer]  # piece, pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How a round runs its stages."""

    mode: Mode
    transport: Transport
    recorder: Recorder
    pieces: int = 1
    threads: int = 1
    in_flight: int = 1
    compress: Compress | None = None  # of gradients


@dataclass(slots=True)
class _Run:
    stages: Sequence[Stage]
    schedule: Schedule
    under_way: dict[int, list[Pending]] = field(default_factory=dict)

    def compute(self, stage: Stage, piece: int) -> None:
        with self.schedule.recorder.compute(stage.name):
            stage.compute(rows_of(stage, piece, self.schedule.pieces))

    def send(self, stage: Stage, piece: int) -> None:
        transfer = stage.transfer(piece, self.schedule.pieces)
        name = f"{transfer.kind} of {stage.name}"
        pending = self.schedule.recorder.started(name, self.schedule.transport, transfer)
        self.under_way.setdefault(stage.lane, []).append(pending)

    def settle(self, lane: int) -> None:
        for pending in self.under_way.pop(lane, []):
            pending.wait()

    def settle_all(self) -> None:
        for lane in tuple(self.under_way):
            self.settle(lane)


def rows_of(stage: Stage, piece: int, pieces: int) -> slice:
    """The rows of one piece; all pieces are equal."""
    rows = stage.rows // pieces
    return slice(piece * rows, (piece + 1) * rows)


def refusal(stages: Sequence[Stage], pieces: int, ranks: int) -> str | None:
    """Why stages cannot be cut into that many pieces; None when they can."""
    uneven = next((stage for stage in stages if stage.rows % (pieces * ranks)), None)
    if uneven is None:
        return None
    return f"{uneven.rows} rows cannot be cut into {pieces} pieces for {ranks} ranks"


def run_stages(stages: Sequence[Stage], schedule: Schedule, *, steady: bool) -> None:
    """Run every stage once.

    A steady run is one stretch of a longer pipeline: it opens with the exchange of the last stage, left from the
    stretch before, and leaves that of its own last stage to the next. Every stretch then has the same work, with no
    head or tail where nothing can overlap.
    """
    run = _Run(stages, schedule)
    pieces = range(schedule.pieces)
    match schedule.mode:
        case "compute":
            for stage in stages:
                for piece in pieces:
                    run.compute(stage, piece)
        case "comm":
            for stage in stages:
                for piece in pieces:
                    run.send(stage, piece)
                run.settle(stage.lane)
        case "sequential":
            for stage in stages:
                for piece in pieces:
                    run.compute(stage, piece)
                    run.send(stage, piece)
                    run.settle(stage.lane)
        case "overlap" if schedule.in_flight > 1:
            _several_in_flight(run)
        case "overlap":
            if steady:
                for piece in pieces:
                    run.send(stages[-1], piece)
            for place, stage in enumerate(stages):
                run.settle(stage.lane)
                for piece in pieces:
                    run.compute(stage, piece)
                    if not (steady and place == len(stages) - 1):
                        run.send(stage, piece)
            run.settle_all()


def _several_in_flight(run: _Run) -> None:
    """Compute different stages at once, each on its own thread; send each stage when its compute is done."""
    if run.schedule.pieces > 1:
        raise UnsupportedError(
            "collectives in pieces and several GEMMs in flight exclude one another; drop one of them"
        )
    threads = run.schedule.threads
    # OpenMP's number of threads is each thread's own.
    with ThreadPoolExecutor(run.schedule.in_flight, initializer=lambda: torch.set_num_threads(threads)) as pool:
        computed = [pool.submit(run.compute, stage, 0) for stage in run.stages]
        for stage, done in zip(run.stages, computed, strict=True):
            done.result()
            run.send(stage, 0)
        run.settle_all()
