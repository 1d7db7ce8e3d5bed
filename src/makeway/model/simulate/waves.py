"""A kernel as waves of blocks on slots: how the fluid engine follows it when a collective takes slots or leaves them.

All blocks take the same time, so blocks that start together end together: a wave. Whole rounds of waves are skipped
by arithmetic; only a moment at which somebody else may take a slot is an event.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from copy import copy
from statistics import fmean

from makeway.model.simulate.pairs import Curve
from makeway.model.simulate.sms import NEVER, SAME_NS

MOST_WAVES = 24  # at a time


class Waves:
    """One running kernel. It follows a measured curve, if it can, until something changes, then its own waves."""

    def __init__(self, curve: Curve | None, *, block_ns: float, blocks: int, slots: int, now: float) -> None:
        self.blocks = blocks
        self.free = 0 if curve else slots  # slots that nobody holds
        self._slots = slots
        self._block_ns = block_ns
        self._curve = curve
        self._origin = now
        self._waves: list[tuple[float, int]] = []  # end and blocks, by end
        self._unplaced = blocks

    # --- looking ahead -------------------------------------------------------------------------

    def ends_at(self) -> float:
        """When the kernel ends if nothing changes; never while it has no slot."""
        if self._curve:
            return self._origin + self._curve.end_ns
        if not self._waves:
            return NEVER
        rounds, rest = divmod(self._unplaced, self.in_flight)
        last = self._waves[-1][0] + rounds * self._block_ns
        return max(last, self._dealt_at(rest - 1, rounds + 1)) if rest else last

    def next_end(self, now: float) -> float:
        """When the next blocks end."""
        if self._curve:
            return self._origin + self._curve.next_event(now - self._origin)
        return self._waves[0][0] if self._waves else NEVER

    def idle_at(self, slots: int) -> float:
        """When all blocks are placed and so many slots stay empty."""
        if self._curve:
            return self._origin + self._curve.counted(self.blocks - self._slots + slots)
        if not self._waves:
            return NEVER
        rounds, slot = divmod(self._unplaced + slots - 1, self.in_flight)
        return self._dealt_at(slot, rounds)

    @property
    def in_flight(self) -> int:
        return sum([count for _, count in self._waves])

    @property
    def slots(self) -> int:
        """Slots that the kernel holds or may take now."""
        return self._slots if self._curve else self.in_flight + self.free

    def _dealt_at(self, slot: int, rounds: int) -> float:
        """When the slot of this number, counted by the ends of the waves, becomes free after so many rounds."""
        for end, count in self._waves:
            if slot < count:
                return end + rounds * self._block_ns
            slot -= count
        raise AssertionError("more slots than waves hold")

    @property
    def empty(self) -> bool:
        """Whether all blocks have ended."""
        return self._curve is None and not self._waves and not self._unplaced

    def left(self, now: float) -> float:
        """The part of its blocks that is not placed."""
        if self._curve:
            return max(self.blocks - self._slots - self._curve.ended(now - self._origin), 0) / self.blocks
        return self._unplaced / self.blocks

    # --- moving on -----------------------------------------------------------------------------

    def split(self, now: float) -> Waves:
        """The kernel off its curve: the blocks that would end next are its waves in flight; those of now have ended."""
        kernel = copy(self)
        kernel._waves = list(self._waves)
        if self._curve is not None:
            kernel._leave_curve(self._curve, now)
        kernel.advance(now)
        return kernel

    def _leave_curve(self, curve: Curve, now: float) -> None:
        ended, resident = 0.0, 0.0
        first = max(bisect_left(curve.times_ns, now - self._origin - SAME_NS) - 2, 0)  # the last ones to have ended
        for at in range(first, len(curve.times_ns)):
            if resident >= self._slots:
                break
            end, blocks = self._origin + curve.times_ns[at], curve.blocks[at]
            if end < now - SAME_NS:
                ended = blocks
            elif blocks > ended + resident and resident < self._slots:
                count = min(blocks - ended - resident, self._slots - resident)
                resident += count
                if round(count):
                    self._waves.append((end, round(count)))
        self._curve = None
        self._merge(now)
        self._unplaced = max(self.blocks - round(ended) - self.in_flight, 0)
        self.free = self._slots - self.in_flight

    def _merge(self, now: float) -> None:
        """Join neighbours that end later, where jitter makes nearly every block a wave of its own."""
        first = sum([end <= now + SAME_NS for end, _ in self._waves])
        later = self._waves[first:]
        stride = -(-len(later) // MOST_WAVES)
        if stride > 1:
            groups = [later[at : at + stride] for at in range(0, len(later), stride)]
            joined = [(fmean([end for end, _ in group]), sum([count for _, count in group])) for group in groups]
            self._waves = self._waves[:first] + joined

    def advance(self, now: float) -> None:
        """Refill the slots of waves that have ended before now, and free those of waves that end now."""
        if self._curve:
            return
        waves, block_ns = self._waves, self._block_ns
        if waves and self._unplaced:
            in_flight = self.in_flight
            rounds = min(self._unplaced // in_flight, int((now - SAME_NS - waves[-1][0]) / block_ns))
            if rounds > 0:
                waves[:] = [(end + rounds * block_ns, count) for end, count in waves]
                self._unplaced -= rounds * in_flight
        while waves and waves[0][0] <= now + SAME_NS:
            end, count = waves.pop(0)
            self.free += count
            if end < now - SAME_NS:
                self.place(end)

    def place(self, now: float) -> int:
        """Place waiting blocks on free slots."""
        placed = min(self.free, self._unplaced)
        if placed:
            insort(self._waves, (now + self._block_ns, placed))
            self.free -= placed
            self._unplaced -= placed
        return placed

    def follow(self, curve: Curve, now: float) -> None:
        """Go on along another curve from as many blocks; without effect once the kernel is off its curve."""
        if self._curve:
            done = self._curve.at(now - self._origin)
            self._curve, self._origin = curve, now - curve.when(done)

    def pace(self, block_ns: float, now: float) -> None:
        """Blocks take another time from now on; what is left of those in flight changes in proportion."""
        factor = block_ns / self._block_ns
        self._waves = [(now + (end - now) * factor, count) for end, count in self._waves]
        self._block_ns = block_ns
