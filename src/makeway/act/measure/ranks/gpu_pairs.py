"""GEMMs beside collectives on a GPU: the buffers, the loop over them, and what they must hold. Not yet run on hardware.

Collective i follows GEMM i and later GEMMs run beside it; of conccl-* the two are independent. A round thus has a first
GEMM and a last collective that nothing runs beside, where the same workload on CPU ranks is one stretch of a longer
pipeline. Elements of results have 4 bytes and hold small whole numbers: sums are exact in fp32, and products of such
numbers are in tf32, bf16 and fp8 too, so that results are compared bit by bit with torch.mm's in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from makeway.act.cuda.backend import Session
from makeway.act.cuda.copies import HeldStreams
from makeway.act.cuda.library_gemm import LibraryGemm
from makeway.act.cuda.machine import symmetric_memory
from makeway.act.cuda.overlap import Handle, Loop, collective, copied
from makeway.act.measure.ranks.pairs import (
    VERSIONS,
    PairShape,
    cut,
    exchanged,
    received_rows,
    scattered,
    transfer_sides,
)
from makeway.act.measure.ranks.rounds import Peers
from makeway.act.measure.variants import Mode
from makeway.act.triton.config import GemmConfig
from makeway.values.collective import ADDING, Collective
from makeway.values.control import Chunks, Control, CopyEngine, SmemPad, TileChoice
from makeway.values.units import format_bytes

Multiply = Callable[[Any, Any, GemmConfig, Any], object]  # a, b, how, out

_LARGEST = 2  # whole numbers of -2 to 2
_EXACT = 2**24  # fp32 holds every whole number up to here
_LARGEST_POWER = 126  # of 2, in fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """What GEMMs write and collectives send and receive, by lane; an all-reduce receives where it sends from."""

    products: list[Any]
    sent: list[Any]
    received: list[Any]


@dataclass(slots=True, kw_only=True)
class GpuPairs:
    """Steps of one GEMM and one collective each, on this rank's GPU."""

    torch: Any
    peers: Peers
    shape: PairShape
    steps: int
    config: GemmConfig  # without controls
    multiply: Multiply
    library: LibraryGemm | None = None  # what multiplies where it is not our own kernel
    in_flight: int = 1
    dependent: bool = True  # collective i waits for GEMM i
    seed: int = 0
    _left: list[Any] = field(init=False)
    _right: Any = field(init=False)
    _plain: Buffers = field(init=False)
    _symmetric: Buffers | None = field(default=None, init=False)
    _known: dict[object, Any] = field(default_factory=dict, init=False)
    _held: HeldStreams = field(init=False)

    def __post_init__(self) -> None:
        self._held = HeldStreams(self.torch)
        left, right = self._operands(self.peers.rank)
        if self.library is not None:
            left, right = [self.library.left(matrix) for matrix in left], self.library.right(right)
        self._left, self._right = left, right
        self._plain = self._made(self._empty)

    @property
    def description(self) -> str:
        shape, tile = self.shape, "x".join(map(str, self.config.tile))
        blocks = "x".join(map(str, self.config.blocks(shape.m, shape.n)))
        kernel = f"in {self.config.dtype} by our own kernel (tile {tile}, {blocks} blocks)"
        if self.library is not None:
            kernel = self.library.description
        return (
            f"GEMM {shape.m}x{shape.n}x{shape.k} {kernel} beside {shape.kind} of {format_bytes(shape.size_bytes)} "
            "in fp32"
        )

    @property
    def exchange(self) -> Collective | None:
        if self.peers.ranks < 2:
            return None
        return Collective(kind=self.shape.kind, size_bytes=self.shape.size_bytes, ranks=self.peers.ranks)

    def refusal(self, controls: Sequence[Control]) -> str | None:
        """Why these controls cannot be used with this pair; None when they can."""
        pieces = _pieces(controls)
        copies = any(isinstance(control, CopyEngine) for control in controls)
        if self.library is not None and any(isinstance(control, SmemPad | TileChoice) for control in controls):
            return "pads and tiles are of makeway's own kernel; `makeway run` pads the library's"
        if copies and self.shape.kind in ADDING:
            return f"copy engines cannot add, which a collective of this kind ({self.shape.kind}) does"
        if copies and pieces > 1:
            return "copies between peers are not cut into pieces; drop one of the two"
        for rows in (self.shape.m, self._plain.sent[0].shape[0]):
            if rows % (pieces * self.peers.ranks):
                return f"{rows} rows cannot be cut into {pieces} pieces for {self.peers.ranks} ranks"
        return None

    def buffers(self, session: Session | None) -> Buffers:
        """The buffers of a session: those in symmetric memory where it copies. The first such call is collective."""
        if session is None or not session.copy_engine:
            return self._plain
        if self._symmetric is None:
            module = symmetric_memory(self.torch)
            assert module is not None  # the backend refuses copy engines without
            self._symmetric = self._made(lambda sides: module.empty(*sides, dtype=self.torch.float32, device="cuda"))
        return self._symmetric

    def loop(self, session: Session | None, *, pieces: int = 1, comm_first: bool = False) -> Loop:
        """The loop under a session's controls; each piece is an iteration of its own."""
        buffers, config = self.buffers(session), session.gemm if session else self.config
        launches = [self._launches(session, buffers, lane, pieces) for lane in range(len(buffers.sent))]

        def gemm(index: int) -> object:
            step, piece = divmod(index, pieces)
            product = buffers.products[step % len(buffers.products)]
            left = cut(self._left[step % VERSIONS], piece, pieces)
            return self.multiply(left, self._right, config, cut(product, piece, pieces))

        def exchange(index: int) -> Handle:
            step, piece = divmod(index, pieces)
            return launches[step % len(launches)][piece]()

        return Loop(
            gemm=gemm,
            collective=exchange,
            iterations=self.steps * pieces,
            in_flight=self.in_flight,
            dependent=self.dependent,
            comm_first=comm_first and not self.dependent,
            held=self._held,
        )

    def _launches(
        self, session: Session | None, buffers: Buffers, lane: int, pieces: int
    ) -> list[Callable[[], Handle]]:
        kind, sent, received = self.shape.kind, buffers.sent[lane], buffers.received[lane]
        if session is not None and session.copy_engine:
            return [copied(self.torch, session, kind, sent, received, held=self._held, in_flight=self.in_flight)]
        return [
            collective(self.torch, session, kind, cut(sent, piece, pieces), cut(received, piece, pieces))
            for piece in range(pieces)
        ]

    # --- before and after a round ------------------------------------------------------------------

    def prepare(self, buffers: Buffers, mode: Mode) -> None:
        """Overwrite what could pass for a result of the round before."""
        for product in buffers.products:
            product.fill_(0.0 if mode == "comm" else math.nan)  # an all-reduce of no results must stay finite
        if not self.shape.carries_result:
            fresh = self._remembered("mine", lambda: self._transfer(self.peers.rank))
            for sent in buffers.sent:
                sent.copy_(fresh)
        if self.shape.kind != "all-reduce":
            for received in buffers.received:
                received.fill_(math.nan)

    def wrong(self, buffers: Buffers, mode: Mode, pieces: int = 1) -> str | None:
        """How products and received data differ from what they must be; None when they are right."""
        carries, kind = self.shape.carries_result, self.shape.kind
        if mode != "comm" and (mode == "compute" or not (carries and kind == "all-reduce")):
            for lane, product in enumerate(buffers.products):
                step = self._last_step(lane, len(buffers.products))
                if step is not None and not self.torch.equal(product, self._product(step % VERSIONS)):
                    return f"gemm {step}: the product differs from torch.mm's of the same matrices"
        if mode == "compute" or (mode == "comm" and carries):
            return None  # nothing was exchanged, or nothing that has a meaning
        for lane, received in enumerate(buffers.received):
            step = self._last_step(lane, len(buffers.received))
            if step is not None and not self.torch.equal(received, self._expected(step, lane, pieces)):
                return f"step {step}: the {kind} gave wrong numbers"
        return None

    def _last_step(self, lane: int, lanes: int) -> int | None:
        return max((step for step in range(self.steps) if step % lanes == lane), default=None)

    def _product(self, version: int) -> Any:
        return self._remembered(("product", version), lambda: self._product_of(self.peers.rank, version))

    def _expected(self, step: int, lane: int, pieces: int) -> Any:
        if self.shape.carries_result:
            version = step % VERSIONS
            return self._remembered(
                ("received", version, pieces),
                lambda: self._exchanged(lambda rank: self._product_of(rank, version), pieces),
            )
        received = self._remembered(("transfers", pieces), lambda: self._exchanged(self._transfer, pieces))
        if self.shape.kind != "all-reduce":
            return received
        again = len(range(lane, self.steps, len(self._plain.sent))) - 1  # each adds what is already the same everywhere
        return received * float(self.peers.ranks**again)

    def _exchanged(self, made_by: Callable[[int], Any], pieces: int) -> Any:
        """What this rank must receive; a sum holds two ranks' data at a time, not all of it."""
        ranks = range(self.peers.ranks)
        if self.shape.kind in ADDING:
            total = reduce(lambda total, rank: total + made_by(rank), ranks[1:], made_by(0))
            scatters = self.shape.kind == "reduce-scatter"
            return scattered(total, self.peers.rank, self.peers.ranks, pieces) if scatters else total
        return exchanged(self.shape.kind, [made_by(rank) for rank in ranks], self.peers.rank, pieces)

    def _product_of(self, rank: int, version: int) -> Any:
        left, right = self._operands(rank)
        return self.torch.mm(left[version], right)

    def _remembered(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    # --- data --------------------------------------------------------------------------------------

    def _made(self, empty: Callable[[tuple[int, int]], Any]) -> Buffers:
        """Buffers; those that are sent come from `empty`, one lane per step where a result is sent.

        A separate buffer that is reduced in place grows by the number of ranks each time: there are as many lanes as
        keep it exact.
        """
        shape = self.shape
        if shape.carries_result:
            products = sent = [empty((shape.m, shape.n)) for _ in range(self.steps)]
        else:
            products = [self._empty((shape.m, shape.n)) for _ in range(min(self.in_flight, self.steps))]
            lanes = -(-self.steps // exact_reductions(self.peers.ranks)) if shape.kind == "all-reduce" else 1
            sent = [empty(transfer_sides(shape, self.peers.ranks)) for _ in range(lanes)]
        if shape.kind == "all-reduce":
            return Buffers(products=products, sent=sent, received=sent)
        received = [
            self._empty((received_rows(shape.kind, buffer.shape[0], self.peers.ranks), buffer.shape[1]))
            for buffer in sent
        ]
        return Buffers(products=products, sent=sent, received=received)

    def _empty(self, sides: tuple[int, int]) -> Any:
        return self.torch.empty(sides, dtype=self.torch.float32, device="cuda")

    def _operands(self, rank: int) -> tuple[list[Any], Any]:
        shape = self.shape
        left = [self._whole_numbers((shape.m, shape.k), rank, version) for version in range(VERSIONS)]
        return left, self._whole_numbers((shape.k, shape.n), rank, VERSIONS)

    def _transfer(self, rank: int) -> Any:
        return self._whole_numbers(transfer_sides(self.shape, self.peers.ranks), rank, VERSIONS + 1)

    def _whole_numbers(self, sides: tuple[int, int], rank: int, which: int) -> Any:
        """The same on every rank for the same arguments: the CPU's generator does not depend on the model of GPU."""
        numbers = self.torch.Generator(device="cpu").manual_seed((self.seed * 1009 + rank) * 17 + which)
        integers = self.torch.randint(-_LARGEST, _LARGEST + 1, sides, generator=numbers, device="cpu")
        return self._empty(sides).copy_(integers)


def exact_reductions(ranks: int) -> int:
    """How often a buffer of small whole numbers can be all-reduced in place with every sum exact in fp32.

    The first sum is at most 2 x ranks; each later one multiplies by the ranks, a power of two of which costs no digit.
    """
    if ranks & (ranks - 1) == 0:
        return max((_LARGEST_POWER - 2) // max(ranks.bit_length() - 1, 1), 1)
    return max(int(math.log(_EXACT / _LARGEST, ranks)), 1)


def _pieces(controls: Sequence[Control]) -> int:
    return next((control.pieces for control in controls if isinstance(control, Chunks)), 1)
