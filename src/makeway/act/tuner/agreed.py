"""Channel rules that change between steps of a running job, from a call on which all ranks agree.

Ranks meet at the end of a step and none makes a call meanwhile, so that a change which holds from a call not yet made
is in time. A communicator counts its own calls: where several are in use, a change would come to each at another step,
and there is no trial. Not yet run on hardware.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from makeway.act.booted import boot_id
from makeway.act.switching import WHOLE_RUNS
from makeway.act.tuner.channel_orders import ChannelOrder, ChannelState
from makeway.act.tuner.channels import MOST_GENERATIONS, rules_of
from makeway.act.tuner.live import published, replace_rules, take_back
from makeway.act.tuner.nccl_log import read_nccl_logs
from makeway.act.tuner.tally import read_tallies
from makeway.values.control import CommBlocks, Control
from makeway.values.plan import Plan

NOT_ASKED = f"NCCL has not asked the tuner plugin about a collective in this process, so comm-blocks stay; {WHOLE_RUNS}"
SEVERAL = (
    "several communicators ask the tuner plugin, each with its own count of calls, so that comm-blocks would change at "
    f"different steps; {WHOLE_RUNS}"
)
LATE = "a change of channels came after the call from which it should hold, so the trial ended"
FULL = f"the channel rules of this job changed {MOST_GENERATIONS - 1:,} times, which is the most, so the trial ended"
UNKNOWN = f"NCCL's log does not say how many channels its communicators have, so comm-blocks stay; {WHOLE_RUNS}"


class AgreedChannels:
    """The channel rules of this process' job under each setting of a trial."""

    def __init__(self, sets: Sequence[Sequence[Control]], *, rules: Path, receipts: Path) -> None:
        self._sets = [rules_of(Plan(controls=tuple(controls))) for controls in sets]
        self._most = max((control.blocks for controls in sets for control in _blocks(controls)), default=0)
        self._rules, self._receipts = rules, receipts
        self._calls = self._all_calls = 0
        self._number = 0
        self._generations = 1
        self._earliest = 1
        self._channels: tuple[int, int] | None = None  # the fewest of a communicator, and the communicators then
        self._state: ChannelState | None = None

    def look(self, steps: int) -> str | None:
        """Read the counts after a block of so many steps; why channels cannot change, None when they can."""
        self._state = None
        tally = next(iter(read_tallies(self._receipts, pid=os.getpid())), None)
        if tally is None or not tally.calls:
            return NOT_ASKED
        if tally.notes:
            return f"{LATE}: {tally.notes[0]}" if tally.late else tally.notes[0]
        fewest = self._fewest_channels(tally.communicators)
        if fewest is None:
            return UNKNOWN
        if fewest < self._most:
            return (
                f"communicators of this job have {fewest} channels, and comm-blocks={self._most} asks for more, which "
                f"only a new start can give; {WHOLE_RUNS}"
            )
        every = sum(count.calls for count in tally.counts)
        new, new_of_all = tally.calls - self._calls, every - self._all_calls
        if self._calls and new != new_of_all:
            return SEVERAL
        self._calls, self._all_calls = tally.calls, every
        self._generations = published(self._rules)
        place = self._rules.stat()
        self._state = ChannelState(
            file=f"{boot_id()}:{place.st_dev}:{place.st_ino}",
            calls=tally.calls,
            calls_per_step=-(-new // max(1, steps)),
            earliest=self._earliest,
        )
        return FULL if self._generations >= MOST_GENERATIONS - 2 else None  # two are left for the way back

    @property
    def state(self) -> ChannelState | None:
        """What `look` found; None where channels cannot change."""
        return self._state

    def changes(self, number: int) -> bool:
        """Whether a setting has other channels than the one in force."""
        return self._sets[number] != self._sets[self._number]

    def write(self, number: int, order: ChannelOrder) -> None:
        """Append a setting's rules to the file of this host."""
        replace_rules(self._rules, self._sets[number], from_call=order.from_call)

    def sees_change(self) -> bool:
        """Whether this rank's file has one generation more than when it was looked at."""
        return published(self._rules) == self._generations + 1

    def undo(self, order: ChannelOrder) -> None:
        """Put the rules before in place of those that this rank wrote, from the same call."""
        take_back(self._rules, from_call=order.from_call)

    def took(self, number: int, order: ChannelOrder) -> None:
        """Every rank has seen it."""
        self._number, self._earliest = number, order.from_call + 1

    def _fewest_channels(self, communicators: int) -> int | None:
        """As NCCL's log of this process says, which is read again when there are more communicators."""
        if self._channels is None or self._channels[1] != communicators:
            log = next((log for log in read_nccl_logs(self._receipts) if log.pid == os.getpid()), None)
            self._channels = (min(log.channels), communicators) if log is not None and log.channels else None
        return self._channels[0] if self._channels is not None else None


def _blocks(controls: Sequence[Control]) -> list[CommBlocks]:
    return [control for control in controls if isinstance(control, CommBlocks)]
