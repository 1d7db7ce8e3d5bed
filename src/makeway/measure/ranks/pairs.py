"""GEMMs beside collectives: the pairs that overlap papers measure.

gemm-*: GEMM i runs beside the collective of GEMM i-1's result, in a steady pipeline; K is chosen so that both take
about equally long. cb-*, mb-* (arXiv 2606.09200): collective i follows GEMM i, later GEMMs run beside it. conccl-*
(after arXiv 2412.14335): a GEMM beside an independent collective. The published sizes are scaled down.

Matrices hold small whole numbers, so that every sum is exact and results can be compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from makeway.collective import Collective, CollectiveKind
from makeway.control import Chunks, Control
from makeway.errors import InputError
from makeway.measure.ranks.exchange import Parcel
from makeway.measure.ranks.lanes import Stage, Way, refusal, run_stages
from makeway.measure.ranks.world import World
from makeway.units import ceil_to, format_bytes

VERSIONS = 3  # of the left matrix, so that results of neighbouring stages differ
CUTS = 16  # rows are a multiple of this many, times the ranks: so many pieces can be cut
_LARGEST = 2  # whole numbers of -2 to 2: sums of products stay far below 2**24, where fp32 is exact
_ELEMENT_BYTES = 4
_WIDTH = 1024  # columns of a buffer that is not a GEMM's result


@dataclass(frozen=True, slots=True, kw_only=True)
class PairShape:
    """One GEMM of a rank and one collective, its size as nccl-tests counts it."""

    m: int
    n: int
    k: int
    kind: CollectiveKind
    size_bytes: int
    carries_result: bool  # the collective moves what the GEMM made

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k, self.size_bytes) < 1:
            raise InputError(f"a GEMM and a collective need sizes above 0, got {self}")


def result_shape(kind: CollectiveKind, size_bytes: int, k: int, ranks: int) -> PairShape:
    """A GEMM whose result is what the collective moves, with at least `size_bytes` in all."""
    gathered = ranks if kind == "all-gather" else 1
    n = min(_WIDTH, max(size_bytes // gathered // _ELEMENT_BYTES // (CUTS * ranks), 1))
    m = ceil_to(-(-size_bytes // gathered // _ELEMENT_BYTES // n), CUTS * ranks)
    return PairShape(m=m, n=n, k=k, kind=kind, size_bytes=m * n * _ELEMENT_BYTES * gathered, carries_result=True)


def scaled_shape(
    m: int, n: int, k: int, kind: CollectiveKind, size_bytes: int, *, scale: float, ranks: int
) -> PairShape:
    """A published pair with each side times `scale`, and the collective's bytes times its square."""
    rows = CUTS * ranks
    gathered = ranks if kind == "all-gather" else 1
    unit = rows * _WIDTH * _ELEMENT_BYTES * gathered
    return PairShape(
        m=ceil_to(max(round(m * scale), 1), rows),
        n=max(round(n * scale), 1),
        k=max(round(k * scale), 1),
        kind=kind,
        size_bytes=ceil_to(max(round(size_bytes * scale**2), 1), unit),
        carries_result=False,
    )


@dataclass(slots=True)
class Pairs:
    """Stages of one GEMM and one collective each."""

    world: World
    shape: PairShape
    steps: int
    steady: bool
    seed: int = 0
    stages: list[Stage] = field(init=False)
    _products: list[torch.Tensor] = field(init=False)  # by lane
    _sent: list[torch.Tensor] = field(init=False)
    _received: list[torch.Tensor] = field(init=False)
    _known: dict[object, list[torch.Tensor]] = field(default_factory=dict)  # what every rank must get

    def __post_init__(self) -> None:
        if self.steady and self.steps % 2:
            raise InputError(f"a steady pipeline on two lanes needs an even number of steps, got {self.steps}")
        shape, lanes = self.shape, 2 if self.steady else self.steps
        gathered = self.world.ranks if shape.kind == "all-gather" else 1
        self._products = [torch.empty(shape.m, shape.n) for _ in range(lanes)]
        self._sent = self._products
        if not shape.carries_result:
            self._sent = [self._parcel_of(self.world.rank) for _ in range(lanes)]
        self._received = [
            sent if shape.kind == "all-reduce" else torch.empty(gathered * sent.shape[0], sent.shape[1])
            for sent in self._sent
        ]
        left, right = operands(shape, self.seed, self.world.rank)
        self.stages = [
            Stage(
                name=f"gemm {step}",
                lane=step % lanes,
                rows=shape.m,
                compute=partial(_multiply, left[step % VERSIONS], right, self._products[step % lanes]),
                parcel=partial(_parcel, shape.kind, self._sent[step % lanes], self._received[step % lanes]),
            )
            for step in range(self.steps)
        ]

    @property
    def words(self) -> str:
        shape = self.shape
        return f"GEMM {shape.m}x{shape.n}x{shape.k} beside {shape.kind} of {format_bytes(shape.size_bytes)}"

    @property
    def exchange(self) -> Collective | None:
        shape = self.shape
        if self.world.ranks < 2:
            return None
        return Collective(kind=shape.kind, size_bytes=shape.size_bytes, ranks=self.world.ranks)

    @property
    def exchanges(self) -> int:
        return self.steps

    def refusal(self, control: Control) -> str | None:
        if isinstance(control, Chunks):
            return refusal(self.stages, control.pieces, self.world.ranks)
        return None

    def prepare(self, way: Way) -> None:
        if self.shape.carries_result:
            for stage in self.stages[-2:]:
                stage.compute(slice(0, stage.rows))
        else:
            fresh = self._parcel_of(self.world.rank)
            for sent in self._sent:
                sent.copy_(fresh)
        if self.shape.kind != "all-reduce":
            for received in self._received:
                received.zero_()

    def run(self, way: Way) -> None:
        run_stages(self.stages, way, steady=self.steady)

    def wrong(self, way: Way) -> str | None:
        """Compares the GEMM's result and what was received on every lane, bit by bit."""
        if way.mode == "comm":
            return None  # what it moves has no meaning: results of no GEMM, added again and again
        last = {stage.lane: step for step, stage in enumerate(self.stages)}
        for lane, step in last.items():
            products = self._expected_products(step)
            in_place = self.shape.carries_result and self.shape.kind == "all-reduce"
            left_to_next = self.steady and way.mode == "overlap" and step == self.steps - 1
            raw = not in_place or way.mode == "compute" or left_to_next
            if raw and not torch.equal(self._products[lane], products[self.world.rank]):
                return f"{self.stages[step].name}: the product differs from that of the same matrices alone"
            if way.mode == "compute" or (in_place and left_to_next):
                continue
            # What is left to the next round was computed and not sent: the lane holds what was sent before it.
            sent = step - 2 if left_to_next and step >= 2 else step
            inputs = self._expected_products(sent) if self.shape.carries_result else self._expected_parcels()
            if not torch.equal(self._received[lane], exchanged(self.shape.kind, inputs, self.world.rank, way.pieces)):
                return f"{self.stages[step].name}: the {self.shape.kind} gave other numbers than it must"
        return None

    def _expected_products(self, step: int) -> list[torch.Tensor]:
        version = step % VERSIONS
        return self._remembered(version, lambda rank: _product(self.shape, self.seed, rank, version))

    def _expected_parcels(self) -> list[torch.Tensor]:
        return self._remembered("parcels", self._parcel_of)

    def _remembered(self, key: object, make: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
        if key not in self._known:
            self._known[key] = [make(rank) for rank in range(self.world.ranks)]
        return self._known[key]

    def _parcel_of(self, rank: int) -> torch.Tensor:
        gathered = self.world.ranks if self.shape.kind == "all-gather" else 1
        rows = self.shape.size_bytes // gathered // _ELEMENT_BYTES // _WIDTH
        return _whole_numbers((rows, _WIDTH), self.seed, rank, VERSIONS + 1)


def operands(shape: PairShape, seed: int, rank: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The left matrices and the right one of a rank."""
    left = [_whole_numbers((shape.m, shape.k), seed, rank, version) for version in range(VERSIONS)]
    return left, _whole_numbers((shape.k, shape.n), seed, rank, VERSIONS)


def _product(shape: PairShape, seed: int, rank: int, version: int) -> torch.Tensor:
    left, right = operands(shape, seed, rank)
    return left[version] @ right


def _whole_numbers(sides: tuple[int, int], seed: int, rank: int, which: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed((seed * 1009 + rank) * 17 + which)
    return torch.randint(-_LARGEST, _LARGEST + 1, sides, generator=numbers).to(torch.float32)


def _multiply(left: torch.Tensor, right: torch.Tensor, product: torch.Tensor, rows: slice) -> None:
    torch.mm(left[rows], right, out=product[rows])


def _parcel(kind: CollectiveKind, sent: torch.Tensor, received: torch.Tensor, piece: int, pieces: int) -> Parcel:
    return Parcel(kind=kind, send=cut(sent, piece, pieces), receive=cut(received, piece, pieces))


def cut(tensor: torch.Tensor, piece: int, pieces: int) -> torch.Tensor:
    """One of so many equal pieces of the rows."""
    rows = tensor.shape[0] // pieces
    return tensor[piece * rows : (piece + 1) * rows]


def exchanged(kind: CollectiveKind, inputs: list[torch.Tensor], rank: int, pieces: int) -> torch.Tensor:
    """What `rank` must receive when every rank sends its input in so many pieces, one exchange each."""
    cuts = [[cut(one, piece, pieces) for one in inputs] for piece in range(pieces)]
    if kind == "all-reduce":
        return torch.stack(inputs).sum(0)
    if kind == "all-gather":
        return torch.cat([one for piece in cuts for one in piece])
    if kind == "all-to-all":
        return torch.cat([cut(one, rank, len(inputs)) for piece in cuts for one in piece])
    raise NotImplementedError(f"no pair exchanges by {kind}")
