"""Direct collectives: the ranks of one host read each other's shared memory, without sockets or a ring.

The one-step algorithms of ConCCL (arXiv 2412.14335), with a thread in place of a copy engine: every rank pulls its part
straight from the segment of each peer. Reductions add in the order of Gloo's ring, so that all ranks get the bits that
Gloo gives them; in shared tensors each rank hands its sum to all while it is in cache.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from makeway.act.cpu.calls import Call, Kind, Op, check_same, check_summed, flat, mismatch, overlap, split_bytes
from makeway.act.cpu.comm_thread import CommThread, Work
from makeway.act.cpu.copiers import reducing_with
from makeway.act.cpu.flows import ALIGNMENT, Engine, MismatchedCallError, Step, Window
from makeway.act.cpu.links import COMMON, PAIR, Links, LostRankError
from makeway.act.cpu.pieces import Pieces
from makeway.act.cpu.rendezvous import adopt, meet, share
from makeway.act.cpu.ring import ring_over
from makeway.act.cpu.segments import SHM
from makeway.act.cpu.shared import Shared, SharedTensor, add_up, pull, shared_part
from makeway.values.errors import InputError, MakewayError
from makeway.values.units import KIB, MIB, ceil_to

PIECE_BYTES = 2 * MIB  # slower below 1 MiB, no difference above: benchmarks/bench_direct.py --windows
SLOTS = 4
ONE_STEP_BYTES = 64 * KIB  # up to this size every rank adds everything: one meeting instead of two
FORKED = "this group belongs to the parent process; build another one in the child"

_Sizes = Mapping[int, tuple[int | None, int | None]]  # by peer: bytes given to and taken from it; None: no message


class DirectGroup:
    """Collectives among the ranks of a process group that share a host; `with` closes it.

    Every rank must make the same calls in the same order. With `async_op=True` a call returns a Work at once and one
    thread runs the calls in order; do not touch the tensors until `wait`. After a lost rank the group is unusable:
    build a new one. `timeout_s` bounds every wait for a peer.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        piece_bytes: int = PIECE_BYTES,
        slots: int = SLOTS,
        copiers: int = 1,
        timeout_s: float = 300.0,
        directory: Path = SHM,
    ) -> None:
        if piece_bytes < ALIGNMENT or piece_bytes % ALIGNMENT or slots < 1 or copiers < 1:
            raise InputError(
                f"piece_bytes must be a multiple of {ALIGNMENT}, slots and copiers 1 or more; got {piece_bytes}, "
                f"{slots}, {copiers}"
            )
        group = group if group is not None else dist.group.WORLD
        if group is None:
            raise InputError("there is no process group; call torch.distributed.init_process_group first")
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise InputError("this process is not in the process group; build the DirectGroup on its members only")
        window = Window(ranks=self.ranks, piece_bytes=piece_bytes, slots=slots)
        self._segments, self._links = meet(group, window, directory, timeout_s)
        self._engine = Engine(self._links, self._segments, window)
        self._pieces = Pieces(self.rank, self.ranks, piece_bytes)
        self._pieces.copiers.resize(copiers)
        self._thread = CommThread()
        self._sequence = 0
        self._unusable: str | None = None
        self._group, self._directory = group, directory
        self._shared: dict[int, SharedTensor] = {}  # by number, the same on every rank
        self._shares = 0
        _GROUPS.add(self)
        self._at_exit = weakref.finalize(self, _abandon, self._links, self._thread)

    # --- life ----------------------------------------------------------------------------------

    @property
    def thread_ids(self) -> tuple[int, ...]:
        """Threads that move this group's bytes, as in /proc/self/task (a waiting caller moves them itself)."""
        return (self._thread.native_id, *self._pieces.copiers.helper_ids)

    @property
    def copiers(self) -> int:
        """Threads that share each copy and reduction."""
        return self._pieces.copiers.threads

    @copiers.setter
    def copiers(self, threads: int) -> None:
        if threads < 1:
            raise InputError(f"copiers must be 1 or more, got {threads}")
        self._refuse_unusable()
        self._thread.call(lambda: self._pieces.copiers.resize(threads), torch.empty(0))

    @property
    def usable(self) -> bool:
        """False once closed, or after a collective failed."""
        return self._unusable is None

    def close(self, *, abort: bool = False) -> None:
        """Finish what is queued (or, with `abort`, fail it) and release the memory; harmless when repeated."""
        if self._at_exit.detach() is None or self._unusable == FORKED:
            return
        if abort:
            self._links.abort()
        self._thread.stop()
        self._unusable = self._unusable or "the group is closed"
        self._pieces.copiers.resize(1)
        self._links.close()
        for segment in self._segments:
            segment.close()
        for shared in self._shared.values():
            shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(abort=kind is not None)

    def shared_tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor of zeros that every rank sees; all ranks must make the same ones in the same order.

        Collectives skip the copy into a segment when every rank gives the same part of it. It lives as long as the
        group.
        """
        self._refuse_unusable()
        size = math.prod(shape) * dtype.itemsize
        if size < 1:
            raise InputError(f"a shared tensor needs at least one element, got shape {shape}")
        segments = share(self._group, size, self._directory)
        self._add_shared(SharedTensor(tuple(segments), size, self.rank))
        return segments[self.rank].view(0, size, dtype).view(shape)

    def adopt(self, tensor: torch.Tensor) -> int:
        """Turn an existing tensor, and all that share its storage, into a shared one; the same rules hold.

        Returns its number, for `release`.
        """
        self._refuse_unusable()
        storage = tensor.untyped_storage()
        segments = adopt(self._group, storage, self._directory)
        return self._add_shared(SharedTensor(tuple(segments), storage.nbytes(), self.rank, storage))

    def release(self, number: int) -> None:
        """Unmap an adopted tensor that no collective reads any more; harmless when repeated."""
        if (shared := self._shared.pop(number, None)) is not None:
            shared.close()

    def _add_shared(self, tensor: SharedTensor) -> int:
        self._shares += 1
        self._shared[self._shares] = tensor
        return self._shares

    # --- movement ------------------------------------------------------------------------------

    def all_gather_into_tensor(
        self, output: torch.Tensor, given: torch.Tensor, *, async_op: bool = False
    ) -> Work | None:
        """Every rank's `given`, in rank order; `given` may be this rank's part of `output`."""
        source, into = flat("input", given), flat("output", output)
        check_same("output", into, source, source.numel() * self.ranks)
        parts = _parts(into, self.ranks)
        if overlap(source, into) and source.data_ptr() != parts[self.rank].data_ptr():
            raise InputError("input overlaps output elsewhere than in this rank's part")
        return self._gather(source, parts, output, async_op)

    def all_gather(
        self, outputs: Sequence[torch.Tensor], given: torch.Tensor, *, async_op: bool = False
    ) -> Work | None:
        """Every rank's `given`, one in each of `outputs`."""
        source = flat("input", given)
        if len(outputs) != self.ranks:
            raise InputError(f"all_gather needs one output for each of {self.ranks} ranks, got {len(outputs)}")
        parts = [flat("output", output) for output in outputs]
        for part in parts:
            check_same("each output", part, source, source.numel())
        return self._gather(source, parts, given, async_op)

    def _gather(
        self, source: torch.Tensor, parts: list[torch.Tensor], result: torch.Tensor, async_op: bool
    ) -> Work | None:
        pieces = self._pieces
        if shared := shared_part(self._shared, source):

            def gather() -> None:
                for peer in pieces.peers:
                    pull(pieces.copiers, parts[peer], shared, peer, 0)

            def keep() -> None:
                if parts[self.rank].data_ptr() != source.data_ptr():
                    pieces.copiers.copy(parts[self.rank].data_ptr(), source.data_ptr(), source.nbytes)

            return self._run_shared("all_gather", gather, source, source.nbytes, shared, result, async_op, keep)
        steps = [pieces.give_all(source, keep=parts[self.rank])]
        steps += [pieces.pull(parts[peer], peer, COMMON) for peer in pieces.peers]
        return self._run("all_gather", steps, source.dtype, self._each(source.nbytes), result, async_op)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *,
        async_op: bool = False,
    ) -> Work | None:
        """Part r of every rank's `given` to rank r; split sizes count rows of the first dimension, as in torch."""
        gives = split_bytes("input", given, input_split_sizes, self.ranks)
        takes = split_bytes("output", output, output_split_sizes, self.ranks)
        source, into = flat("input", given).view(torch.uint8), flat("output", output).view(torch.uint8)
        if given.dtype != output.dtype or gives[self.rank] != takes[self.rank]:
            raise InputError(
                f"input and output must have one type and agree on this rank's own part, got {gives[self.rank]:,} "
                f"bytes of {given.dtype} and {takes[self.rank]:,} bytes of {output.dtype}"
            )
        if overlap(source, into):
            raise InputError("input and output overlap; all_to_all_single needs two buffers")
        pieces, sources, parts = self._pieces, torch.split(source, gives), torch.split(into, takes)
        if (shared := shared_part(self._shared, source)) and len({*gives, *takes}) == 1:
            each = gives[0]

            def exchange() -> None:
                for peer in pieces.peers:
                    pull(pieces.copiers, parts[peer], shared, peer, self.rank * each)

            def keep() -> None:
                pieces.copiers.copy(parts[self.rank].data_ptr(), sources[self.rank].data_ptr(), each)

            return self._run_shared("all_to_all", exchange, given, each, shared, output, async_op, keep)
        steps = [pieces.give(sources[peer], peer) for peer in pieces.peers]
        steps += [pieces.pull(parts[peer], peer, PAIR) for peer in pieces.peers]
        steps += [pieces.keep(parts[self.rank], sources[self.rank])]
        sizes = {peer: (gives[peer], takes[peer]) for peer in pieces.peers}
        return self._run("all_to_all", steps, given.dtype, sizes, output, async_op)

    def broadcast(self, tensor: torch.Tensor, src: int = 0, *, async_op: bool = False) -> Work | None:
        """The tensor of rank `src` (its number in this group) to every rank."""
        if not 0 <= src < self.ranks:
            raise InputError(f"src must be a rank of 0..{self.ranks - 1}, got {src}")
        part, pieces = flat("tensor", tensor), self._pieces
        sizes: _Sizes
        if src == self.rank:
            steps = [pieces.give_all(part)]
            sizes = dict.fromkeys(pieces.peers, (part.nbytes, None))
        else:
            steps = [pieces.pull(part, src, COMMON)]
            sizes = {src: (None, part.nbytes)}
        return self._run("broadcast", steps, part.dtype, sizes, tensor, async_op, root=src)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._run("barrier", [], torch.uint8, self._each(0), torch.empty(0), False)

    # --- reductions ----------------------------------------------------------------------------

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum", *, async_op: bool = False) -> Work | None:
        """The sum of every rank's tensor, in place; "avg" scales each part first, as DistributedDataParallel does."""
        part, pieces = flat("tensor", tensor), self._pieces
        check_summed(part.dtype, op)
        part = _real(part)
        ring = ring_over(part.nbytes, part.itemsize, self.ranks)
        if self.ranks > 1 and part.nbytes > ONE_STEP_BYTES and (shared := shared_part(self._shared, part)):
            own = _slices(part, self.ranks)[self.rank]
            start = own.data_ptr() - part.data_ptr()
            reduce = partial(add_up, shared, ring, start, own.nbytes, part.dtype, op)
            return self._run_shared("all_reduce", reduce, part, part.nbytes, shared, tensor, async_op, op=op)
        if self.ranks == 1:
            steps = []
        elif part.nbytes <= min(ONE_STEP_BYTES, self._engine.window.piece_bytes):  # in one piece
            steps = [pieces.give_all(part, op), pieces.reduce(part, part, op, ring, start=0, channel=COMMON)]
        else:
            slices = _slices(part, self.ranks)
            steps = [pieces.give(slices[peer], peer, op) for peer in pieces.peers]
            own = slices[self.rank]
            steps += [pieces.reduce_for_all(own, op, ring, start=own.data_ptr() - part.data_ptr())]
            steps += [pieces.pull(slices[peer], peer, COMMON) for peer in pieces.peers]
        return self._run("all_reduce", steps, part.dtype, self._each(part.nbytes), tensor, async_op, op=op)

    def reduce_scatter_tensor(
        self, output: torch.Tensor, given: torch.Tensor, op: Op = "sum", *, async_op: bool = False
    ) -> Work | None:
        """The sum of part r of every rank's `given` to rank r; `output` may be this rank's part of `given`."""
        source, into, pieces = flat("input", given), flat("output", output), self._pieces
        check_summed(into.dtype, op)
        check_same("input", source, into, into.numel() * self.ranks)
        source, into = _real(source), _real(into)
        parts = _parts(source, self.ranks)
        own = parts[self.rank]
        if overlap(source, into) and into.data_ptr() != own.data_ptr():
            raise InputError("output overlaps input elsewhere than in this rank's part")
        steps = [pieces.give(parts[peer], peer, op) for peer in pieces.peers]
        ring = ring_over(source.nbytes, source.itemsize, self.ranks)
        steps += [pieces.reduce(own, into, op, ring, start=self.rank * own.nbytes, channel=PAIR)]
        return self._run("reduce_scatter", steps, into.dtype, self._each(into.nbytes), output, async_op, op=op)

    # --- running -------------------------------------------------------------------------------

    def _each(self, size: int) -> _Sizes:
        return dict.fromkeys(self._pieces.peers, (size, size))

    def _run(
        self,
        kind: Kind,
        steps: Sequence[Step],
        dtype: torch.dtype,
        sizes: _Sizes,
        result: torch.Tensor,
        async_op: bool,
        *,
        op: Op = "sum",
        root: int = 0,
    ) -> Work | None:
        call = self._next_call(kind=kind, dtype=dtype, op=op, root=root)
        return self._queue(lambda: self._collect(call, steps, sizes), result, async_op)

    def _run_shared(
        self,
        kind: Kind,
        move: Callable[[], None],
        given: torch.Tensor,
        size: int,
        shared: Shared,
        result: torch.Tensor,
        async_op: bool,
        meanwhile: Callable[[], None] = lambda: None,
        *,
        op: Op = "sum",
    ) -> Work | None:
        """`move` works on every rank's memory in place: all ranks meet before it and after it."""
        call = self._next_call(kind=kind, dtype=given.dtype, op=op, place=shared.place)

        def collect() -> None:
            header = call.header(size)
            with self._guarded(call, dict.fromkeys(self._pieces.peers, size)):
                self._engine.meet(dict.fromkeys(self._pieces.peers, (header, header)), str(call), meanwhile)
                move()
                self._engine.agree(str(call))

        return self._queue(collect, result, async_op)

    def _next_call(self, **facts: Any) -> Call:
        self._refuse_unusable()
        self._sequence += 1
        return Call(sequence=self._sequence - 1, **facts)

    def _queue(self, collect: Callable[[], None], result: torch.Tensor, async_op: bool) -> Work | None:
        if async_op:
            return self._thread.submit(collect, result)
        self._thread.call(collect, result)
        return None

    def _collect(self, call: Call, steps: Sequence[Step], sizes: _Sizes) -> None:
        headers = {
            peer: (None if gives is None else call.header(gives), None if takes is None else call.header(takes))
            for peer, (gives, takes) in sizes.items()
        }
        with self._guarded(call, {peer: takes or 0 for peer, (_, takes) in sizes.items()}):
            self._engine.run(steps, headers, str(call))

    @contextmanager
    def _guarded(self, call: Call, expected: Mapping[int, int]) -> Iterator[None]:
        """After any error in a collective the group is unusable, and the peers learn of it."""
        self._refuse_unusable()
        try:
            with reducing_with(self._pieces.copiers.threads):
                yield
        except MismatchedCallError as error:
            message = mismatch(call, error.peer, error.header, expected[error.peer])
            self._give_up(message)
            raise InputError(message) from None
        except BaseException as error:
            if isinstance(error, LostRankError):
                self._links.send_failure(error.rank)
            self._give_up(str(error) or type(error).__name__)
            raise

    def _give_up(self, reason: str) -> None:
        """Hang up after a failure: nobody knows which pieces are where, and the peers learn of it at once."""
        self._unusable = f"the group is unusable after an error: {reason}"
        self._links.close()

    def _refuse_unusable(self) -> None:
        if self._unusable is not None:
            raise MakewayError(self._unusable)

    def _forget(self) -> None:
        """In a forked child, close the copies of the sockets: they would hide the parent's death from the peers."""
        self._unusable = FORKED
        self._at_exit.detach()
        self._links.close()


def _parts(tensor: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    """Equal parts, one per rank."""
    return list(torch.split(tensor, tensor.numel() // ranks)) if tensor.numel() else [tensor] * ranks


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones, as Gloo adds them."""
    return torch.view_as_real(tensor).view(-1) if tensor.is_complex() else tensor


def _slices(tensor: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    """Parts for one rank each that begin at cache lines; the last ones may be shorter, or empty."""
    each = ceil_to(-(-tensor.numel() // ranks), ALIGNMENT // tensor.itemsize)
    return [tensor[rank * each : (rank + 1) * each] for rank in range(ranks)]


def _abandon(links: Links, thread: CommThread) -> None:
    """Called when the last reference goes or the interpreter ends: nobody waits for the queue."""
    links.abort()
    thread.stop()
    links.close()


_GROUPS: weakref.WeakSet[DirectGroup] = weakref.WeakSet()


def _forget_groups() -> None:
    for group in list(_GROUPS):
        group._forget()


os.register_at_fork(after_in_child=_forget_groups)
