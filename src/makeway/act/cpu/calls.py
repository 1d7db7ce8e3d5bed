"""One call of a collective: its checks, and the header by which ranks notice that their calls differ."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from makeway.act.cpu.links import HEADER_BYTES
from makeway.values.errors import InputError

Kind = Literal["all_gather", "all_to_all", "reduce_scatter", "all_reduce", "broadcast", "barrier"]
Op = Literal["sum", "avg"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OPS: tuple[Op, ...] = get_args(Op)
DTYPES = tuple(sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str))
FRACTIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
SUMMED = (*FRACTIONS, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

_HEADER = struct.Struct("<BBBxIQQq")
assert _HEADER.size == HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective as one rank sees it."""

    kind: Kind
    dtype: torch.dtype
    sequence: int
    op: Op = "sum"
    root: int = 0
    place: int = -1  # in a shared tensor that it reads in place; -1: none

    def header(self, size: int) -> bytes:
        """What a rank sends to a peer before it gives it `size` bytes."""
        kind, op, dtype = KINDS.index(self.kind), OPS.index(self.op), DTYPES.index(self.dtype)
        return _HEADER.pack(kind, op, dtype, self.sequence & 0xFFFFFFFF, size, self.root, self.place)

    def __str__(self) -> str:
        return f"{self.kind} (call {self.sequence} of this group)"


def mismatch(call: Call, peer: int, header: bytes, expected: int) -> str:
    """The message for a rank whose peer called something else."""
    kind, op, dtype, sequence, size, root, place = _HEADER.unpack(header)
    return (
        f"{call}: rank {peer} gives {size:,} bytes of {DTYPES[dtype]} by {KINDS[kind]} ({OPS[op]}, root {root}, call "
        f"{sequence}) where this rank expects {expected:,} bytes of {call.dtype} by {call.kind} ({call.op}, root "
        f"{call.root}){_places(place, call.place)}; call the same collectives with the same sizes in the same order on "
        "every rank"
    )


def _places(theirs: int, ours: int) -> str:
    return "" if theirs == ours else ", and only one of them at this place of a shared tensor"


# --- checks ------------------------------------------------------------------------------------


def flat(what: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in one dimension over the same memory; raises where direct collectives cannot use it."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise InputError(f"{what} must be a dense CPU tensor, got {tensor.layout} on {tensor.device}")
    if not tensor.is_contiguous():
        raise InputError(f"{what} must be contiguous, got strides {tensor.stride()}; call .contiguous() first")
    if tensor.is_conj() or tensor.is_neg():
        raise InputError(f"{what} is a lazy conjugate or negative; call .resolve_conj().resolve_neg() first")
    return tensor.detach().view(-1)


def check_summed(dtype: torch.dtype, op: Op) -> None:
    """Raise for a type that cannot be reduced that way."""
    if op not in OPS:
        raise InputError(f"unknown reduction {op!r}; known: {', '.join(OPS)}")
    if dtype not in (SUMMED if op == "sum" else FRACTIONS):
        raise InputError(f"direct collectives cannot {op} {dtype}; convert it first, or use the process group's own")


def check_same(what: str, given: torch.Tensor, like: torch.Tensor, count: int) -> None:
    """Raise for a tensor of another type or size than the collective needs."""
    if given.dtype != like.dtype or given.numel() != count:
        raise InputError(f"{what} must hold {count:,} x {like.dtype}, got {given.numel():,} x {given.dtype}")


def overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """True when two contiguous tensors share memory."""
    starts_before = first.data_ptr() < second.data_ptr() + second.nbytes
    return starts_before and second.data_ptr() < first.data_ptr() + first.nbytes


def split_bytes(what: str, tensor: torch.Tensor, splits: Sequence[int] | None, ranks: int) -> list[int]:
    """Bytes for each rank: `splits` counts rows of the first dimension, as in torch; None is equal parts."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if splits is None:
        if rows % ranks:
            raise InputError(f"{what}: {rows:,} rows cannot be divided by {ranks} ranks; give split sizes")
        splits = [rows // ranks] * ranks
    if len(splits) != ranks or sum(splits) != rows or min(splits, default=0) < 0:
        raise InputError(f"{what}: split sizes {list(splits)} do not divide {rows:,} rows among {ranks} ranks")
    row_bytes = tensor.nbytes // rows if rows else 0
    return [split * row_bytes for split in splits]
