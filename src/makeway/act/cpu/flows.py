"""The engine of direct collectives: pieces that flow through the segments of the ranks, window by window.

A step takes a piece from some peers' segments, works on it, and gives a piece to some peers through its own segment.
Copying in has no sources, pulling has no receivers, reducing a slice and passing it on has both. Steps of one
collective take turns piece by piece, so that copy-in, reduction and copy-out overlap and stay in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from makeway.act.cpu.links import COMMON, PAIR, READY, TAKEN, Links
from makeway.act.cpu.segments import Segment
from makeway.values.units import KIB, ceil_to

ALIGNMENT = 64  # bytes: a cache line, and a multiple of every type's size
_SMALLEST_PIECE = 256 * KIB  # below this a token costs more than the overlap gains
_PIECES = 8  # per buffer, at least, unless they get too small: small buffers overlap, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The layout of a segment: per peer, and once for all peers, `slots` pieces of at most `piece_bytes`."""

    ranks: int
    piece_bytes: int
    slots: int

    @property
    def segment_bytes(self) -> int:
        return self.ranks * self.slots * self.piece_bytes

    def offset(self, channel: int, giver: int, receiver: int, piece: int) -> int:
        """Where a piece for `receiver` (or for all, on the common channel) lies in the giver's segment."""
        lane = receiver - (receiver > giver) if channel == PAIR else self.ranks - 1
        return (lane * self.slots + piece % self.slots) * self.piece_bytes

    def piece_for(self, size: int) -> int:
        """Bytes of each piece but the last of a buffer, the same for giver and receiver."""
        return min(self.piece_bytes, max(_SMALLEST_PIECE, ceil_to(-(-size // _PIECES), ALIGNMENT)))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece lies in a segment."""

    segment: Segment
    offset: int

    @property
    def address(self) -> int:
        return self.segment.address + self.offset

    def view(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return self.segment.view(self.offset, count, dtype)


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a buffer: its bytes there, where its sources lie by rank, and where its result goes."""

    offset: int
    count: int
    sources: Mapping[int, Place]
    into: Place | None  # None without receivers


@dataclass(slots=True, kw_only=True)
class Step:
    """One kind of work on all pieces of a buffer, in order."""

    size: int  # bytes
    work: Callable[[Piece], None]
    sources: tuple[int, ...] = ()
    source_channel: int = PAIR
    receivers: tuple[int, ...] = ()
    channel: int = PAIR
    offset: int = field(default=0, init=False)
    piece: int = field(default=0, init=False)


class MismatchedCallError(Exception):
    """A peer's header differs from what this rank's own call implies."""

    def __init__(self, peer: int, header: bytes) -> None:
        super().__init__(f"rank {peer} called something else")
        self.peer = peer
        self.header = header


class Engine:
    """Runs the steps of collectives, in order."""

    def __init__(self, links: Links, segments: Sequence[Segment], window: Window) -> None:
        self.links = links
        self.window = window
        self._segments = segments

    def run(self, steps: Sequence[Step], headers: Mapping[int, tuple[bytes | None, bytes | None]], what: str) -> None:
        """Run one collective. `headers`: by peer, what to send and what to expect; None for nothing.

        Ranks that call different collectives notice it this way instead of mixing their bytes.
        """
        links = self.links
        while late := [peer for peer in links.peers if any(links.untaken[peer])]:
            links.wait(late, what)  # pieces of the last collective must be taken before their slots are reused
        for peer, (ours, _) in headers.items():
            if ours is not None:
                links.say(peer, b"h" + ours)
        unheard = {peer: theirs for peer, (_, theirs) in headers.items() if theirs is not None}
        active = [step for step in steps if step.size]
        while active or unheard:
            self._check_headers(unheard)
            blockers = set(unheard)
            moved = False
            for step in active:
                if blocked := self._blockers(step, unheard):
                    blockers.update(blocked)
                else:
                    self._advance(step)
                    moved = True
            active = [step for step in active if step.offset < step.size]
            if moved:
                links.look()
            elif blockers:
                links.wait(blockers, what)
        links.flush()

    def meet(self, headers: Mapping[int, tuple[bytes, bytes]], what: str, meanwhile: Callable[[], None]) -> None:
        """Wait until every peer has called the same collective; its shared tensors may be read from then on.

        `meanwhile` is work that needs no peer.
        """
        links = self.links
        while late := [peer for peer in links.peers if any(links.untaken[peer])]:
            links.wait(late, what)
        for peer, (ours, _) in headers.items():
            links.say(peer, b"h" + ours)
        links.flush()
        meanwhile()
        links.look()
        unheard = {peer: theirs for peer, (_, theirs) in headers.items()}
        while unheard:
            self._check_headers(unheard)
            if unheard:
                links.wait(unheard, what)

    def agree(self, what: str) -> None:
        """Tell every peer that this rank is done with its memory, and wait until all have said so."""
        links = self.links
        for peer in links.peers:
            links.say(peer, READY[COMMON])
        links.flush()
        while late := [peer for peer in links.peers if not links.ready[peer][COMMON]]:
            links.wait(late, what)
        for peer in links.peers:
            links.ready[peer][COMMON] -= 1

    def _check_headers(self, unheard: dict[int, bytes]) -> None:
        for peer in [peer for peer in unheard if self.links.headers[peer]]:
            if (header := self.links.headers[peer].popleft()) != unheard.pop(peer):
                raise MismatchedCallError(peer, header)

    def _blockers(self, step: Step, unheard: Mapping[int, bytes]) -> list[int]:
        """The peers that a step waits for: those without a piece for us, and those with a full window of ours."""
        ready, untaken, slots = self.links.ready, self.links.untaken, self.window.slots
        late = [peer for peer in step.sources if peer in unheard or not ready[peer][step.source_channel]]
        return late + [peer for peer in step.receivers if untaken[peer][step.channel] >= slots]

    def _advance(self, step: Step) -> None:
        links, window, rank = self.links, self.window, self.links.rank
        count = min(window.piece_for(step.size), step.size - step.offset)
        sources = {
            peer: Place(self._segments[peer], window.offset(step.source_channel, peer, rank, step.piece))
            for peer in step.sources
        }
        into = None
        if step.receivers:
            into = Place(self._segments[rank], window.offset(step.channel, rank, step.receivers[0], step.piece))
        step.work(Piece(step.offset, count, sources, into))
        step.offset += count
        step.piece += 1
        for peer in step.sources:
            links.ready[peer][step.source_channel] -= 1
            links.say(peer, TAKEN[step.source_channel])
        for peer in step.receivers:
            links.untaken[peer][step.channel] += 1
            links.say(peer, READY[step.channel])
        if step.receivers:  # "taken" can wait for the next message: every message wakes a sleeping peer
            links.flush()
