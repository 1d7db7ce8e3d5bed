"""What ranks tell each other about channels that change between steps; light, since every rank of a trial loads it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

NOT_SEEN = "a rank did not see a change of the channel rules, which was taken back, so the trial ended"


class ChannelState(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says about its channels at the end of a block of steps."""

    file: str  # the rules of this rank; ranks of one host share a file
    calls: int  # of the busiest communicator so far
    calls_per_step: int  # in the block, rounded up
    earliest: int = 0  # call that comes after the change before


class ChannelOrder(msgspec.Struct, frozen=True, kw_only=True):
    """When the next channels hold, and which ranks write them."""

    from_call: int
    writers: tuple[int, ...]


def channel_order(ranks: Sequence[ChannelState]) -> ChannelOrder:
    """From one step after the furthest rank's last call: room for calls that a program makes beside its steps."""
    from_call = max(rank.calls for rank in ranks) + max(rank.calls_per_step for rank in ranks)
    from_call = max(from_call, *(rank.earliest for rank in ranks))
    first: dict[str, int] = {}
    for number, rank in enumerate(ranks):
        first.setdefault(rank.file, number)
    return ChannelOrder(from_call=from_call, writers=tuple(first.values()))
