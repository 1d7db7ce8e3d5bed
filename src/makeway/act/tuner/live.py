"""Changes the channel rules of a running job.

Every rank must use the same channels for one collective, or the job hangs. So a change names the call from which it
holds, counted in every communicator, and must reach every rank's file before any rank makes that call: agree on the
number between ranks (the largest `calls_so_far` plus a margin), write every node's file, and meet at a barrier. The
receipts count changes that came too late.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
    decode_generation,
    decode_header,
    encode_generation,
    generation_at,
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


def take_back(path: Path, *, from_call: int) -> Generation:
    """Undo the last change before its call comes: from there on, the rules before it hold again."""
    with _opened(path) as file:
        _, count = _header(file)
        if count < 2 or _generation(file, count - 1).from_call != from_call:
            raise InputError(f"no change from call {from_call:,} is the last one; nothing was taken back")
        return _publish(file, count, Generation(from_call=from_call, rules=_generation(file, count - 2).rules))


def published(path: Path) -> int:
    """Generations in a file of channel rules, the first included."""
    with _opened(path, os.O_RDONLY) as file:
        return _header(file)[1]


def _append(path: Path, from_call: int, rules: tuple[ChannelRule, ...], *, keep: bool) -> Generation:
    with _opened(path) as file:
        most_channels, count = _header(file)
        check_channels(rules, most_channels)
        last = _generation(file, count - 1)
        if from_call <= last.from_call:
            raise InputError(
                f"a change from call {from_call:,} cannot follow one from call {last.from_call:,}; name a later call"
            )
        if keep:
            rules += tuple(rule for rule in last.rules if not any(_same_calls(rule, new) for new in rules))
        return _publish(file, count, Generation(from_call=from_call, rules=rules))


@contextmanager
def _opened(path: Path, mode: int = os.O_RDWR) -> Iterator[int]:
    """The file's descriptor, which no other process changes meanwhile."""
    try:
        file = os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise InputError(f"cannot open the channel rules {str(path)!r}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_SH if mode == os.O_RDONLY else fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _header(file: int) -> tuple[int, int]:
    return decode_header(os.pread(file, HEADER.size, 0), os.fstat(file).st_size)


def _generation(file: int, number: int) -> Generation:
    return decode_generation(os.pread(file, GENERATION_BYTES, generation_at(number)), number)


def _publish(file: int, count: int, generation: Generation) -> Generation:
    if count == MOST_GENERATIONS:
        raise InputError(f"the rules of this job were changed {MOST_GENERATIONS - 1:,} times, which is the most")
    # The generation first, then the number that publishes it: the plugin reads them in the other order.
    os.pwrite(file, encode_generation(generation), generation_at(count))
    os.pwrite(file, PUBLISHED.pack(count + 1), PUBLISHED_AT)
    return generation


def _same_calls(one: ChannelRule, other: ChannelRule) -> bool:
    return (one.collective, one.min_bytes, one.max_bytes) == (other.collective, other.min_bytes, other.max_bytes)
