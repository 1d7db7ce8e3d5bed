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
from itertools import pairwise

import torch

from makeway.act.measure.names import published_pair
from makeway.act.measure.ranks.exchange import GlooTransport, Memory, Transfer, Transport
from makeway.act.measure.ranks.lanes import Schedule, Stage, refusal, run_stages
from makeway.act.measure.ranks.world import World
from makeway.act.measure.sizes import CUTS, ELEMENT_BYTES, scaled_rows
from makeway.values.collective import Collective, CollectiveKind
from makeway.values.control import Chunks, Control
from makeway.values.errors import InputError
from makeway.values.units import ceil_to, format_bytes

VERSIONS = 3  # of the left matrix, so that results of neighbouring stages differ
_LARGEST = 2  # whole numbers of -2 to 2: sums of products stay far below 2**24, where fp32 is exact
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
    n = min(_WIDTH, max(size_bytes // gathered // ELEMENT_BYTES // (CUTS * ranks), 1))
    m = ceil_to(-(-size_bytes // gathered // ELEMENT_BYTES // n), CUTS * ranks)
    return PairShape(m=m, n=n, k=k, kind=kind, size_bytes=m * n * ELEMENT_BYTES * gathered, carries_result=True)


def scaled_shape(
    m: int, n: int, k: int, kind: CollectiveKind, size_bytes: int, *, scale: float, ranks: int
) -> PairShape:
    """A published pair with each side times `scale`, and the collective's bytes times its square."""
    gathered = ranks if kind == "all-gather" else 1
    unit = CUTS * ranks * _WIDTH * ELEMENT_BYTES * gathered
    return PairShape(
        m=scaled_rows(m, scale, ranks),
        n=max(round(n * scale), 1),
        k=max(round(k * scale), 1),
        kind=kind,
        size_bytes=ceil_to(max(round(size_bytes * scale**2), 1), unit),
        carries_result=False,
    )


def published_shape(name: str, scale: float, ranks: int) -> PairShape:
    """A published pair, scaled."""
    gemm, collective = published_pair(name)
    return scaled_shape(gemm.m, gemm.n, gemm.k, collective.kind, collective.size_bytes, scale=scale, ranks=ranks)


def transfer_sides(shape: PairShape, ranks: int) -> tuple[int, int]:
    """Rows and columns of what a rank sends where that is not a GEMM's result."""
    gathered = ranks if shape.kind == "all-gather" else 1
    return shape.size_bytes // gathered // ELEMENT_BYTES // _WIDTH, _WIDTH


def received_rows(kind: CollectiveKind, sent: int, ranks: int) -> int:
    """Rows that a rank receives where it sends so many."""
    match kind:
        case "all-gather":
            return sent * ranks
        case "reduce-scatter":
            return sent // ranks
        case _:
            return sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """A GEMM of X x Y blocks on a CPU: as many sequential calls, each for an equal part of the result.

    On a GPU a block loops over scattered tiles; a call takes the same number of neighbouring tiles at once. There are
    never more calls along a side than tiles. The depth of a tile has no counterpart: a call goes through all of K.
    """

    grid: tuple[int, int]  # X along n, Y along m
    tile: tuple[int, int, int]

    def counts(self, m: int, n: int) -> tuple[int, int]:
        return min(self.grid[0], -(-n // self.tile[1])), min(self.grid[1], -(-m // self.tile[0]))

    def parts(self, m: int, n: int) -> list[tuple[slice, slice]]:
        """Rows and columns of each call for `m` rows and `n` columns; they cover the result once."""
        across, down = self.counts(m, n)
        return [(rows, columns) for rows in _cuts(m, down) for columns in _cuts(n, across)]


def _cuts(length: int, parts: int) -> list[slice]:
    edges = [length * part // parts for part in range(parts + 1)]
    return [slice(low, high) for low, high in pairwise(edges)]


_Lanes = tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor], list[Stage]]  # made, sent, received


@dataclass(slots=True)
class Pairs:
    """Stages of one GEMM and one collective each."""

    world: World
    shape: PairShape
    steps: int
    steady: bool
    seed: int = 0
    blocks: Blocks | None = None  # None: one call for the whole GEMM
    stages: list[Stage] = field(init=False)
    _products: list[torch.Tensor] = field(init=False)  # by lane
    _sent: list[torch.Tensor] = field(init=False)
    _received: list[torch.Tensor] = field(init=False)
    _by_memory: dict[Memory, _Lanes] = field(init=False)
    _operands: tuple[list[torch.Tensor], torch.Tensor] = field(init=False)
    _known: dict[object, list[torch.Tensor]] = field(default_factory=dict)  # what every rank must get

    def __post_init__(self) -> None:
        if self.steady and self.steps % 2:
            raise InputError(f"a steady pipeline on two lanes needs an even number of steps, got {self.steps}")
        self._by_memory = {}
        self._operands = operands(self.shape, self.seed, self.world.rank)
        self._work_in_memory_for(GlooTransport())

    def _work_in_memory_for(self, transport: Transport) -> None:
        """Switch to the buffers of a transport, created at first use; the operands stay."""
        if transport.memory not in self._by_memory:
            self._by_memory[transport.memory] = self._lanes(transport)
        self._products, self._sent, self._received, self.stages = self._by_memory[transport.memory]

    def _lanes(self, transport: Transport) -> _Lanes:
        shape, lanes, ranks = self.shape, 2 if self.steady else self.steps, self.world.ranks
        products = [transport.buffer(shape.m, shape.n) for _ in range(lanes)]
        sent = products
        if not shape.carries_result:
            sent = [transport.buffer(*transfer_sides(shape, ranks)) for _ in range(lanes)]
        received = [
            buffer
            if shape.kind == "all-reduce"
            else torch.empty(received_rows(shape.kind, buffer.shape[0], ranks), buffer.shape[1])
            for buffer in sent
        ]
        left, right = self._operands
        stages = [
            Stage(
                name=f"gemm {step}",
                lane=step % lanes,
                rows=shape.m,
                compute=partial(_multiply, left[step % VERSIONS], right, products[step % lanes], self.blocks),
                transfer=partial(_transfer, shape.kind, sent[step % lanes], received[step % lanes]),
            )
            for step in range(self.steps)
        ]
        return products, sent, received, stages

    @property
    def description(self) -> str:
        shape = self.shape
        pair = f"GEMM {shape.m}x{shape.n}x{shape.k} beside {shape.kind} of {format_bytes(shape.size_bytes)}"
        if self.blocks is None:
            return pair
        across, down = self.blocks.counts(shape.m, shape.n)
        return f"{pair}; the GEMM in {across}x{down} calls in sequence, each on all threads of the rank"

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

    def prepare(self, schedule: Schedule) -> None:
        self._work_in_memory_for(schedule.transport)
        if self.shape.carries_result:
            for stage in self.stages[-2:]:
                stage.compute(slice(0, stage.rows))
        else:
            fresh = self._sent_by(self.world.rank)
            for sent in self._sent:
                sent.copy_(fresh)
        if self.shape.kind != "all-reduce":
            for received in self._received:
                received.zero_()

    def run(self, schedule: Schedule) -> None:
        run_stages(self.stages, schedule, steady=self.steady)

    def wrong(self, schedule: Schedule) -> str | None:
        """Compares the GEMM's result and what was received on every lane, bit by bit."""
        if schedule.mode == "comm":
            return None  # it moves results of no GEMM, added again and again
        last = {stage.lane: step for step, stage in enumerate(self.stages)}
        for lane, step in last.items():
            products = self._expected_products(step)
            in_place = self.shape.carries_result and self.shape.kind == "all-reduce"
            left_to_next = self.steady and schedule.mode == "overlap" and step == self.steps - 1
            raw = not in_place or schedule.mode == "compute" or left_to_next
            if raw and not torch.equal(self._products[lane], products[self.world.rank]):
                return f"{self.stages[step].name}: the product differs from that of the same matrices alone"
            if schedule.mode == "compute" or (in_place and left_to_next):
                continue
            # What is left to the next round was computed but not sent: the lane holds what was sent before it.
            sent = step - 2 if left_to_next and step >= 2 else step
            inputs = self._expected_products(sent) if self.shape.carries_result else self._expected_transfers()
            if not torch.equal(
                self._received[lane], exchanged(self.shape.kind, inputs, self.world.rank, schedule.pieces)
            ):
                return f"{self.stages[step].name}: the {self.shape.kind} gave wrong numbers"
        return None

    def _expected_products(self, step: int) -> list[torch.Tensor]:
        version = step % VERSIONS
        return self._remembered(version, lambda rank: _product(self.shape, self.seed, rank, version))

    def _expected_transfers(self) -> list[torch.Tensor]:
        return self._remembered("transfers", self._sent_by)

    def _remembered(self, key: object, make: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
        if key not in self._known:
            self._known[key] = [make(rank) for rank in range(self.world.ranks)]
        return self._known[key]

    def _sent_by(self, rank: int) -> torch.Tensor:
        return _whole_numbers(transfer_sides(self.shape, self.world.ranks), self.seed, rank, VERSIONS + 1)


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


def _multiply(
    left: torch.Tensor, right: torch.Tensor, product: torch.Tensor, blocks: Blocks | None, rows: slice
) -> None:
    left, product = left[rows], product[rows]
    if blocks is None:
        torch.mm(left, right, out=product)
        return
    for down, across in blocks.parts(*product.shape):
        torch.mm(left[down], right[:, across], out=product[down, across])


def _transfer(kind: CollectiveKind, sent: torch.Tensor, received: torch.Tensor, piece: int, pieces: int) -> Transfer:
    return Transfer(kind=kind, send=cut(sent, piece, pieces), receive=cut(received, piece, pieces))


def cut(tensor: torch.Tensor, piece: int, pieces: int) -> torch.Tensor:
    """One of `pieces` equal pieces of the rows."""
    rows = tensor.shape[0] // pieces
    return tensor[piece * rows : (piece + 1) * rows]


def exchanged(kind: CollectiveKind, inputs: list[torch.Tensor], rank: int, pieces: int) -> torch.Tensor:
    """What `rank` must receive when every rank sends its input in `pieces` pieces, one exchange each."""
    cuts = [[cut(tensor, piece, pieces) for tensor in inputs] for piece in range(pieces)]
    if kind == "all-reduce":
        return torch.stack(inputs).sum(0)
    if kind == "reduce-scatter":
        return scattered(torch.stack(inputs).sum(0), rank, len(inputs), pieces)
    if kind == "all-gather":
        return torch.cat([part for piece in cuts for part in piece])
    if kind == "all-to-all":
        return torch.cat([cut(part, rank, len(inputs)) for piece in cuts for part in piece])
    raise NotImplementedError(f"no pair exchanges by {kind}")


def scattered(total: torch.Tensor, rank: int, ranks: int, pieces: int) -> torch.Tensor:
    """The part of a sum that a reduce-scatter in `pieces` pieces leaves with `rank`: its share of each piece."""
    return torch.cat([cut(cut(total, piece, pieces), rank, ranks) for piece in range(pieces)])
