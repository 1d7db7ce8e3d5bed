"""Gradient compression as what it runs: an encoder, collectives, a decoder; and where that pays.

Encoders and decoders pass over memory. Their passes are counted from PyTorch's communication hooks
(torch/distributed/algorithms/ddp_comm_hooks), which run on the compute stream, so they add to it. Top-k and 1-bit have
no sum on the wire: every rank gathers what all others send, and decodes all of it. Whether training converges is never
predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from makeway.values.collective import Collective, CollectiveKind
from makeway.values.errors import InputError
from makeway.values.layout import Compression

VALUE_BYTES = 4  # of a gradient in 32 bits, as error feedback and PowerSGD's factors keep it
INDEX_BYTES = 4  # of top-k
SECTOR_BYTES = 32  # that one scattered element moves in memory: a sector of NVIDIA's and AMD's caches
# Passes over the gradient, each of VALUE_BYTES per element, besides the encoded form itself.
ERROR_FEEDBACK_PASSES = 6  # add the last error (two reads, a write), keep the new one (two reads, a write)
SELECT_PASSES = 3  # radix selection of the k-th largest reads three times (32-bit keys, 11 bits at a time)
POWERSGD_PASSES = 3  # read for P = M Q, read for Q = Mt P, write M = P Qt
MATRIX_SIDE = 4096  # of the matrices that PowerSGD factors, where no model says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One collective of a compressed exchange; `size_bytes` as nccl-tests counts it."""

    kind: CollectiveKind
    size_bytes: float

    def wire_bytes(self, ranks: int) -> float:
        """Bytes that one rank sends, and receives."""
        return Collective(kind=self.kind, size_bytes=max(1, round(self.size_bytes)), ranks=ranks).wire_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """What one exchange of gradients becomes: kernels on the compute stream, collectives between them."""

    encode_bytes: float  # over HBM
    decode_bytes: float
    encode_flops: float
    decode_flops: float
    sent: tuple[Sent, ...]

    def kernels_ns(self, hbm_bytes_per_s: float, flops_per_s: float) -> tuple[float, float]:
        """Times of encoder and decoder, each bound by memory or by arithmetic."""
        return (
            1e9 * max(self.encode_bytes / hbm_bytes_per_s, self.encode_flops / flops_per_s),
            1e9 * max(self.decode_bytes / hbm_bytes_per_s, self.decode_flops / flops_per_s),
        )

    def wire_bytes(self, ranks: int) -> float:
        """Bytes that one rank sends, and receives."""
        return sum(sent.wire_bytes(ranks) for sent in self.sent)


def compressed(
    compression: Compression | None,
    elements: float,
    ranks: int,
    *,
    element_bytes: int = VALUE_BYTES,
    side: int = MATRIX_SIDE,
) -> Compressed:
    """An all-reduce of `elements` gradients of `element_bytes` each among `ranks`, under a compression or none.

    `side` is that of the square matrices that PowerSGD factors.
    """
    if ranks < 2:
        raise InputError(f"gradients are exchanged among 2 ranks or more, got {ranks}")
    plain = elements * element_bytes
    if compression is None:
        return _made(0, 0, Sent(kind="all-reduce", size_bytes=plain))
    match compression.kind:
        case "fp16" | "bf16":
            return _cast(elements, element_bytes, 2)
        case "fp8":
            # The largest value of all ranks sets the scale: one more pass, one more all-reduce of a word.
            cast = _cast(elements, element_bytes, 1)
            amax = Sent(kind="all-reduce", size_bytes=VALUE_BYTES)
            return _made(cast.encode_bytes + plain, cast.decode_bytes, amax, *cast.sent)
        case "powersgd":
            return _powersgd(elements, compression.rank, side)
        case "top-k":
            chosen = elements * compression.share
            message = chosen * (VALUE_BYTES + INDEX_BYTES)
            encode = (ERROR_FEEDBACK_PASSES + SELECT_PASSES) * VALUE_BYTES * elements + message
            scattered = ranks * (message + 2 * SECTOR_BYTES * chosen)
            return _made(
                encode, scattered + VALUE_BYTES * elements, Sent(kind="all-gather", size_bytes=ranks * message)
            )
        case "1-bit":
            message = elements / 8
            encode = ERROR_FEEDBACK_PASSES * VALUE_BYTES * elements + message
            decode = ranks * message + VALUE_BYTES * elements
            signs = Sent(kind="all-gather", size_bytes=ranks * (message + VALUE_BYTES))  # and one scale each
            return Compressed(
                encode_bytes=encode, decode_bytes=decode, encode_flops=0.0, decode_flops=ranks * elements, sent=(signs,)
            )
        case _:
            assert_never(compression.kind)


def _made(encode_bytes: float, decode_bytes: float, *sent: Sent) -> Compressed:
    return Compressed(
        encode_bytes=encode_bytes, decode_bytes=decode_bytes, encode_flops=0.0, decode_flops=0.0, sent=sent
    )


def _cast(elements: float, element_bytes: int, sent_bytes: int) -> Compressed:
    """A cast to fewer bytes and back; to as many or more, nothing is sent differently."""
    narrow = min(sent_bytes, element_bytes)
    passes = elements * (element_bytes + narrow) if narrow < element_bytes else 0.0
    return _made(passes, passes, Sent(kind="all-reduce", size_bytes=elements * narrow))


def _powersgd(elements: float, rank: int, side: int) -> Compressed:
    matrices = elements / side**2
    factor = matrices * side * rank * VALUE_BYTES  # P, or Q
    return Compressed(
        encode_bytes=(ERROR_FEEDBACK_PASSES + POWERSGD_PASSES - 1) * VALUE_BYTES * elements + 4 * factor,
        decode_bytes=VALUE_BYTES * elements + 2 * factor,
        encode_flops=4.0 * elements * rank + 2.0 * matrices * side * rank**2,  # two products, and P made orthogonal
        decode_flops=2.0 * elements * rank,
        # torch's hook adds up vectors, which have no factors, before P and Q: about one for each matrix.
        sent=tuple(Sent(kind="all-reduce", size_bytes=size) for size in (factor / rank, factor, factor)),
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
