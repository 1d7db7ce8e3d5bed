"""Changes the channel rules of a running job.

Every rank must use the same channels for one collective, or the job hangs. So a change names the call from which it
holds, counted in every communicator, and must reach every rank's file before any rank makes that call: agree on the
number between ranks (the largest `calls_so_far` plus a margin), write every node's file, and meet at a barrier. The
receipts count changes that came too late.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from makeway.act.tuner.channels import (
    GENERATION_BYTES,
    HEADER,
    MOST_GENERATIONS,
    PUBLISHED,
    PUBLISHED_AT,
    Algorithm,
    ChannelRule,
    Collective,
    Generation,
    Protocol,
    check_channels,
    decode_file,
    encode_generation,
)
from makeway.act.tuner.tally import read_tallies
from makeway.values.errors import InputError

DEFAULT_MARGIN = 1_000  # calls of one communicator: many steps' worth, far longer than writing the file takes


def calls_so_far(receipts: Path) -> int:
    """The calls of the busiest communicator of all processes that leave receipts in a directory."""
    return max((tally.calls for tally in read_tallies(receipts)), default=0)


def set_channels(
    path: Path,
    channels: int | None = None,
    *,
    from_call: int,
    collective: Collective | None = None,
    min_bytes: int = 0,
    max_bytes: int | None = None,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
    only_simple: bool = True,
) -> Generation:
    """Put one rule before those in force, from a call on; it replaces a rule for the same calls.

    `path` is the job's file of channel rules (`MAKEWAY_TUNER_RULES`).
    """
    rule = ChannelRule(
        collective=collective,
        min_bytes=min_bytes,
        channels=channels,
        algorithm=algorithm,
        protocol=protocol,
        only_simple=only_simple,
        **({} if max_bytes is None else {"max_bytes": max_bytes}),
    )
    return _append(path, from_call, (rule,), keep=True)


def replace_rules(path: Path, rules: tuple[ChannelRule, ...], *, from_call: int) -> Generation:
    """Put rules in place of all those in force, from a call on; no rules leave everything to NCCL."""
    return _append(path, from_call, rules, keep=False)


def _append(path: Path, from_call: int, rules: tuple[ChannelRule, ...], *, keep: bool) -> Generation:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise InputError(f"cannot open the channel rules {str(path)!r}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        most_channels, generations = decode_file(os.pread(file, os.fstat(file).st_size, 0))
        check_channels(rules, most_channels)
        last = generations[-1]
        if from_call <= last.from_call:
            raise InputError(
                f"a change from call {from_call:,} cannot follow one from call {last.from_call:,}; name a later call"
            )
        if len(generations) == MOST_GENERATIONS:
            raise InputError(f"the rules of this job were changed {MOST_GENERATIONS - 1} times, which is the most")
        if keep:
            rules += tuple(rule for rule in last.rules if not any(_same_calls(rule, new) for new in rules))
        generation = Generation(from_call=from_call, rules=rules)
        # The generation first, then the number that publishes it: the plugin reads them in the other order.
        os.pwrite(file, encode_generation(generation), HEADER.size + len(generations) * GENERATION_BYTES)
        os.pwrite(file, PUBLISHED.pack(len(generations) + 1), PUBLISHED_AT)
        return generation
    finally:
        os.close(file)


def _same_calls(one: ChannelRule, other: ChannelRule) -> bool:
    return (one.collective, one.min_bytes, one.max_bytes) == (other.collective, other.min_bytes, other.max_bytes)
