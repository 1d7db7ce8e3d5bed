"""Stages of compute and exchange that take turns on lanes: while one lane exchanges, another computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from makeway.act.measure.ranks.exchange import Carriage, Carrier, Parcel, Recorder
from makeway.act.measure.variants import Mode
from makeway.values.errors import UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Compute, then the exchange of what it made.

    Both can be cut into pieces: compute by rows, and `parcel` gives the exchange of one piece.
    """

    name: str
    lane: int
    rows: int  # of compute and of the exchange; pieces are cut from them
    compute: Callable[[slice], None]
    parcel: Callable[[int, int], Parcel]  # piece, pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How stages are to be run."""

    mode: Mode
    carrier: Carrier
    recorder: Recorder
    pieces: int = 1
    threads: int = 1
    in_flight: int = 1


@dataclass(slots=True)
class _Run:
    stages: Sequence[Stage]
    way: Way
    under_way: dict[int, list[Carriage]] = field(default_factory=dict)

    def compute(self, stage: Stage, piece: int) -> None:
        with self.way.recorder.compute(stage.name):
            stage.compute(rows_of(stage, piece, self.way.pieces))

    def send(self, stage: Stage, piece: int) -> None:
        parcel = stage.parcel(piece, self.way.pieces)
        name = f"{parcel.kind} of {stage.name}"
        carriage = self.way.recorder.started(name, self.way.carrier, parcel)
        self.under_way.setdefault(stage.lane, []).append(carriage)

    def settle(self, lane: int) -> None:
        for carriage in self.under_way.pop(lane, []):
            carriage.wait()

    def settle_all(self) -> None:
        for lane in tuple(self.under_way):
            self.settle(lane)


def rows_of(stage: Stage, piece: int, pieces: int) -> slice:
    """The rows of one piece; all pieces are equal."""
    rows = stage.rows // pieces
    return slice(piece * rows, (piece + 1) * rows)


def refusal(stages: Sequence[Stage], pieces: int, ranks: int) -> str | None:
    """Why stages cannot be cut into so many pieces; None when they can."""
    uneven = next((stage for stage in stages if stage.rows % (pieces * ranks)), None)
    if uneven is None:
        return None
    return f"{uneven.rows} rows cannot be cut into {pieces} pieces for {ranks} ranks"


def run_stages(stages: Sequence[Stage], way: Way, *, steady: bool) -> None:
    """Runs every stage once.

    A steady run is one stretch of a longer pipeline: it opens with the exchange of the last stage, left from the
    stretch before, and leaves that of its own last stage to the next. Every stretch then has the same work, with no
    head or tail where nothing can overlap.
    """
    run = _Run(stages, way)
    pieces = range(way.pieces)
    match way.mode:
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
        case "overlap" if way.in_flight > 1:
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
    """Computes of different stages at once, on threads of their own; each stage is sent when its compute is over."""
    if run.way.pieces > 1:
        raise UnsupportedError("pieces and several GEMMs in flight cannot be had together; drop one of them")
    threads = run.way.threads
    # OpenMP's number of threads is each thread's own.
    with ThreadPoolExecutor(run.way.in_flight, initializer=lambda: torch.set_num_threads(threads)) as pool:
        computed = [pool.submit(run.compute, stage, 0) for stage in run.stages]
        for stage, done in zip(run.stages, computed, strict=True):
            done.result()
            run.send(stage, 0)
        run.settle_all()
