"""Gradient compression as what it runs: an encoder, collectives, a decoder; and where that pays.

Encoders and decoders pass over memory and run on the compute stream, so they add to it. Their passes are counted from
what runs: torch's hooks for fp16, bf16 and PowerSGD (torch/distributed/algorithms/ddp_comm_hooks), makeway's own for
top-k (act/torch/compression.py). fp8 and 1-bit have no hook; theirs are counted from the algorithms. Top-k and 1-bit
have no sum on the wire: every rank gathers what all others send, and decodes all of it. Whether training converges is
never predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from makeway.values.collective import Collective, CollectiveKind
from makeway.values.control import Compress
from makeway.values.errors import InputError
from makeway.values.layout import Compression

VALUE_BYTES = 4  # of a gradient in 32 bits, as top-k and 1-bit keep it with its error
INDEX_BYTES = 4  # of top-k
SECTOR_BYTES = 32  # that one scattered element moves in memory: a sector of NVIDIA's and AMD's caches
# Passes over the gradient, besides the encoded form itself: reads and writes of each element.
ADD_ERROR_PASSES = 3  # what the last step left out: two reads, a write
NEW_ERROR_PASSES = 3  # the gradient less what is sent: two reads, a write
CLONE_PASSES = 2  # torch's PowerSGD keeps the gradient for the new error
DIVIDE_PASSES = 2  # top-k: by the number of ranks
ABSOLUTE_PASSES = 2  # top-k: of every element
SELECT_PASSES = 5  # ATen/native/cuda/TensorTopK.cu, mbtopk: 32-bit keys 8 bits at a time, then the values
REPLACE_PASSES = 3  # top-k: zeros, and the sum copied over the gradient
MATRIX_SIDE = 4096  # of the matrices that PowerSGD factors; a smaller gradient is one square matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One collective of a compressed exchange; `size_bytes` as nccl-tests counts it."""

    kind: CollectiveKind
    size_bytes: float

    def wire_bytes(self, ranks: int) -> float:
        """Bytes that one rank sends, and receives."""
        return Collective(kind=self.kind, size_bytes=max(1, round(self.size_bytes)), ranks=ranks).wire_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A kernel on the compute stream, and the collectives that carry its result; none: the last one decodes."""

    name: str
    hbm_bytes: float
    flops: float = 0.0
    sends: tuple[Sent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """What one exchange of gradients becomes: stages in order, of which the last decodes."""

    stages: tuple[Stage, ...]

    @property
    def sent(self) -> tuple[Sent, ...]:
        return tuple(sent for stage in self.stages for sent in stage.sends)

    def kernels_ns(self, hbm_bytes_per_s: float, flops_per_s: float) -> tuple[float, float]:
        """Times of encoder and decoder; each kernel is bound by memory or by arithmetic."""
        times = [1e9 * max(stage.hbm_bytes / hbm_bytes_per_s, stage.flops / flops_per_s) for stage in self.stages]
        return sum(times[:-1]), times[-1]

    def wire_bytes(self, ranks: int) -> float:
        """Bytes that one rank sends, and receives."""
        return sum(sent.wire_bytes(ranks) for sent in self.sent)


def compression_of(control: Compress) -> Compression:
    """The compression that a control asks for."""
    given = {"rank": control.rank, "share": control.share}
    return Compression(kind=control.method, **{what: value for what, value in given.items() if value is not None})  # type: ignore[arg-type]


def compressed(
    compression: Compression | None,
    elements: float,
    ranks: int,
    *,
    element_bytes: int = VALUE_BYTES,
    side: float | None = None,
) -> Compressed:
    """An all-reduce of `elements` gradients of `element_bytes` each among `ranks`, under a compression or none.

    `side` is that of the square matrices that PowerSGD factors.
    """
    if ranks < 2:
        raise InputError(f"gradients are exchanged among 2 ranks or more, got {ranks}")
    plain = elements * element_bytes
    if compression is None:
        return _cast(elements, element_bytes, element_bytes)
    match compression.kind:
        case "fp16" | "bf16":
            return _cast(elements, element_bytes, 2)
        case "fp8":
            # The largest value of all ranks sets the scale: one more pass, one more all-reduce of a word.
            largest = Stage(name="scale", hbm_bytes=plain, sends=(Sent(kind="all-reduce", size_bytes=VALUE_BYTES),))
            return Compressed(stages=(largest, *_cast(elements, element_bytes, 1).stages))
        case "powersgd":
            return _powersgd(elements, element_bytes, compression.rank, side or min(MATRIX_SIDE, math.sqrt(elements)))
        case "topk":
            return _topk(elements, ranks, max(math.ceil(compression.share * elements), 1))
        case "1-bit":
            message = elements / 8
            passes = (ADD_ERROR_PASSES + NEW_ERROR_PASSES) * VALUE_BYTES * elements
            signs = Sent(kind="all-gather", size_bytes=ranks * (message + VALUE_BYTES))  # and one scale each
            decode = ranks * message + VALUE_BYTES * elements
            return _encoded(passes + message, signs, decode, decode_flops=ranks * elements)
        case _:
            assert_never(compression.kind)


def _encoded(encode_bytes: float, send: Sent, decode_bytes: float, *, decode_flops: float = 0.0) -> Compressed:
    encode = Stage(name="encode", hbm_bytes=encode_bytes, sends=(send,))
    return Compressed(stages=(encode, Stage(name="decode", hbm_bytes=decode_bytes, flops=decode_flops)))


def _cast(elements: float, element_bytes: int, sent_bytes: int) -> Compressed:
    """A cast to fewer bytes and back; to as many or more, nothing is sent differently."""
    narrow = min(sent_bytes, element_bytes)
    passes = elements * (element_bytes + narrow) if narrow < element_bytes else 0.0
    return _encoded(passes, Sent(kind="all-reduce", size_bytes=elements * narrow), passes)


def _powersgd(elements: float, element_bytes: int, rank: int, side: float) -> Compressed:
    """P = M Q is summed, then Q = Mt P with P made orthogonal, then M = P Qt.

    torch's hook adds up vectors, which have no factors, before P: about one for each matrix.
    """
    whole, matrices = elements * element_bytes, elements / side**2
    factor = matrices * side * rank * element_bytes  # P, or Q
    product, orthogonal = 2.0 * elements * rank, 2.0 * matrices * side * rank**2
    vectors, summed = (Sent(kind="all-reduce", size_bytes=size) for size in (factor / rank, factor))
    before = (ADD_ERROR_PASSES + CLONE_PASSES + 1) * whole
    return Compressed(
        stages=(
            Stage(name="encode", hbm_bytes=before + 2 * factor, flops=product, sends=(vectors, summed)),
            Stage(name="project", hbm_bytes=whole + 2 * factor, flops=product + orthogonal, sends=(summed,)),
            Stage(name="decode", hbm_bytes=(1 + NEW_ERROR_PASSES) * whole + 2 * factor, flops=product),
        )
    )


def _topk(elements: float, ranks: int, chosen: int) -> Compressed:
    message = chosen * (VALUE_BYTES + INDEX_BYTES)
    passes = DIVIDE_PASSES + ADD_ERROR_PASSES + ABSOLUTE_PASSES + SELECT_PASSES
    scattered = 2 * SECTOR_BYTES * chosen  # read and written: here the values taken out, there those added
    return _encoded(
        passes * VALUE_BYTES * elements + scattered + message,
        Sent(kind="all-gather", size_bytes=ranks * message),
        REPLACE_PASSES * VALUE_BYTES * elements + ranks * (message + scattered),
    )


# --- where it pays ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Payoff:
    """One compression on one gradient: what it saves and costs, and where the two meet.

    The exchange stands alone here, on one link per GPU; a step that hides it beside compute gains less.
    """

    compression: Compression
    ranks: int
    link_bytes_per_s: float
    plain_ns: float
    encode_ns: float
    sent_ns: float
    decode_ns: float
    pays_below_bytes_per_s: float | None  # the link rate below which it pays at these ranks; None: at no rate
    pays_up_to_ranks: int | None  # at this link rate; None: at no number
    binds: Literal["bytes", "kernels", "nothing"]  # what keeps it from paying

    SHOWN = ("compressed_ns", "pays")

    @property
    def compressed_ns(self) -> float:
        return self.encode_ns + self.sent_ns + self.decode_ns

    @property
    def pays(self) -> bool:
        return self.compressed_ns < self.plain_ns


MOST_RANKS = 1 << 20  # that are looked at for where a compression stops to pay


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What an exchange of gradients runs on: a GPU's memory and arithmetic, and its way to the others."""

    bytes_per_s: float
    hbm_bytes_per_s: float
    flops_per_s: float


def payoff(
    compression: Compression, elements: float, ranks: int, link: Link, *, element_bytes: int = VALUE_BYTES
) -> Payoff:
    """What a compression costs and saves among `ranks`, and at which link rate and rank count it stops to pay."""
    plain = compressed(None, elements, ranks, element_bytes=element_bytes)
    small = compressed(compression, elements, ranks, element_bytes=element_bytes)
    encode_ns, decode_ns = small.kernels_ns(link.hbm_bytes_per_s, link.flops_per_s)
    saved = plain.wire_bytes(ranks) - small.wire_bytes(ranks)
    kernels_ns = encode_ns + decode_ns
    below = None if saved <= 0 else saved / kernels_ns * 1e9 if kernels_ns else float("inf")
    pays = below is not None and link.bytes_per_s < below
    return Payoff(
        compression=compression,
        ranks=ranks,
        link_bytes_per_s=link.bytes_per_s,
        plain_ns=plain.wire_bytes(ranks) / link.bytes_per_s * 1e9,
        encode_ns=encode_ns,
        sent_ns=small.wire_bytes(ranks) / link.bytes_per_s * 1e9,
        decode_ns=decode_ns,
        pays_below_bytes_per_s=below,
        pays_up_to_ranks=_most_ranks(compression, elements, link, element_bytes),
        binds="nothing" if pays else "bytes" if saved <= 0 else "kernels",
    )


def _most_ranks(compression: Compression, elements: float, link: Link, element_bytes: int) -> int | None:
    """The most ranks at which it pays; None where it pays at none.

    What is gained has one maximum: sums save a share of the wire bytes that grows to a limit, gathers lose more with
    every rank.
    """

    def gain_ns(ranks: int) -> float:
        plain = compressed(None, elements, ranks, element_bytes=element_bytes)
        small = compressed(compression, elements, ranks, element_bytes=element_bytes)
        saved = plain.wire_bytes(ranks) - small.wire_bytes(ranks)
        return saved / link.bytes_per_s * 1e9 - sum(small.kernels_ns(link.hbm_bytes_per_s, link.flops_per_s))

    if gain_ns(MOST_RANKS) > 0:
        return MOST_RANKS
    paying = [ranks for power in range(1, 20) if gain_ns(ranks := 1 << power) > 0]
    if not paying:
        return None
    low, high = paying[-1], 2 * paying[-1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if gain_ns(middle) > 0 else (low, middle)
    return low


def payoffs(
    compressions: Sequence[Compression], elements: float, ranks: int, link: Link, *, element_bytes: int = VALUE_BYTES
) -> tuple[Payoff, ...]:
    """Each compression on the same gradient and link."""
    return tuple(payoff(item, elements, ranks, link, element_bytes=element_bytes) for item in compressions)
