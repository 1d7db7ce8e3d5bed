"""Channel rules: what the tuner plugin answers, in the layout of channels.c.

The file is a list of generations, each with the call from which it holds, counted in every communicator. Published
generations never change, so that a reader sees all of one or nothing; a change appends the next. All numbers are
little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal, get_args

from makeway.act.checksum import fnv1a
from makeway.values.control import CommBlocks
from makeway.values.errors import DataFileError, InputError
from makeway.values.plan import Plan

MAGIC = b"MKWCHANS"
VERSION = 2
MOST_GENERATIONS = 1024
MOST_RULES = 32
MOST_CHANNELS = 64
LARGEST_BYTES = 2**64 - 1
# NCCL itself gives a channel of the simple protocol at least 512 threads x 64 bytes (src/graph/tuning.cc), so
# smaller calls never use all the channels of a plan.
BYTES_PER_CHANNEL = 512 * 64

Collective = Literal["broadcast", "reduce", "all-gather", "reduce-scatter", "all-reduce"]
Algorithm = Literal["tree", "ring", "collnet-direct", "collnet-chain", "nvls", "nvls-tree", "pat"]
Protocol = Literal["ll", "ll128", "simple"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)

HEADER = struct.Struct("<8sIII44x")
PUBLISHED = struct.Struct("<I")  # the number of generations
PUBLISHED_AT = 16
_GENERATION = struct.Struct("<QII")  # behind the checksum
_CHECKSUM = struct.Struct("<Q")
_RULE = struct.Struct("<QQBbbBHH")
GENERATION_BYTES = _CHECKSUM.size + _GENERATION.size + MOST_RULES * _RULE.size
FILE_BYTES = HEADER.size + MOST_GENERATIONS * GENERATION_BYTES
_ANY, _NONE, _ONLY_SIMPLE = 255, -1, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRule:
    """What NCCL is asked to use for calls of a collective (None: of all) in a range of sizes, both ends included.

    `channels` None leaves the number to NCCL. Algorithm and protocol come together or not at all; where NCCL cannot use
    them, its own choice stays. `only_simple`: calls for which NCCL takes LL or LL128 are left to it.
    """

    collective: Collective | None = None
    min_bytes: int = 0
    max_bytes: int = LARGEST_BYTES
    channels: int | None = None
    algorithm: Algorithm | None = None
    protocol: Protocol | None = None
    only_simple: bool = True

    def __post_init__(self) -> None:
        for what, value, known in (
            ("collective", self.collective, COLLECTIVES),
            ("algorithm", self.algorithm, ALGORITHMS),
            ("protocol", self.protocol, PROTOCOLS),
        ):
            if value is not None and value not in known:
                raise InputError(f"the tuner plugin has no {what} {value!r}; it knows {', '.join(known)}")
        if not 0 <= self.min_bytes <= self.max_bytes <= LARGEST_BYTES:
            raise InputError(f"no size is from {self.min_bytes:,} to {self.max_bytes:,} bytes")
        if self.channels is not None and not 1 <= self.channels <= MOST_CHANNELS:
            raise InputError(f"a collective has 1 to {MOST_CHANNELS} channels, the rule asks for {self.channels:,}")
        if (self.algorithm is None) != (self.protocol is None):
            raise InputError("NCCL takes an algorithm together with a protocol; give both or neither")
        if self.channels is None and self.algorithm is None:
            raise InputError("the rule sets nothing; give channels, or an algorithm and a protocol")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Rules that hold from a call on; the first that matches wins."""

    from_call: int
    rules: tuple[ChannelRule, ...]

    def __post_init__(self) -> None:
        if len(self.rules) > MOST_RULES:
            raise InputError(f"{len(self.rules)} channel rules; the tuner plugin takes at most {MOST_RULES}")
        if not 0 <= self.from_call < 2**63:
            raise InputError(f"no call has the number {self.from_call:,}")


def rules_of(plan: Plan) -> tuple[ChannelRule, ...]:
    """The plan's blocks as one rule, from the size at which all of them have work."""
    return tuple(
        ChannelRule(channels=control.blocks, min_bytes=control.blocks * BYTES_PER_CHANNEL)
        for control in plan.controls
        if isinstance(control, CommBlocks)
    )


# --- the file -----------------------------------------------------------------------------------


def encode_file(rules: tuple[ChannelRule, ...], *, most_channels: int) -> bytes:
    """A new file. `most_channels`: as many as communicators have, which no later rule may exceed."""
    if not 1 <= most_channels <= MOST_CHANNELS:
        raise InputError(f"a communicator has 1 to {MOST_CHANNELS} channels, not {most_channels:,}")
    check_channels(rules, most_channels)
    header = HEADER.pack(MAGIC, VERSION, most_channels, 1)
    return (header + encode_generation(Generation(from_call=0, rules=rules))).ljust(FILE_BYTES, b"\0")


def check_channels(rules: tuple[ChannelRule, ...], most_channels: int) -> None:
    """Refuse more channels than communicators have: NCCL cannot use channels that it did not set up."""
    for rule in rules:
        if rule.channels is not None and rule.channels > most_channels:
            raise InputError(
                f"the rule asks for {rule.channels} channels, communicators of this job have {most_channels}; "
                "start the job with more"
            )


def encode_generation(generation: Generation) -> bytes:
    """One generation, always of the same size."""
    body = _GENERATION.pack(generation.from_call, len(generation.rules), 0)
    body += b"".join(map(_packed, generation.rules))
    body = body.ljust(GENERATION_BYTES - _CHECKSUM.size, b"\0")
    return _CHECKSUM.pack(fnv1a(body)) + body


def _packed(rule: ChannelRule) -> bytes:
    return _RULE.pack(
        rule.min_bytes,
        rule.max_bytes,
        _ANY if rule.collective is None else COLLECTIVES.index(rule.collective),
        _NONE if rule.algorithm is None else ALGORITHMS.index(rule.algorithm),
        _NONE if rule.protocol is None else PROTOCOLS.index(rule.protocol),
        _ONLY_SIMPLE if rule.only_simple else 0,
        rule.channels or 0,
        0,
    )


def decode_file(data: bytes) -> tuple[int, tuple[Generation, ...]]:
    """The channels that communicators have, and all generations; an error where the file is damaged."""
    most_channels, published = decode_header(data, len(data))
    starts = map(generation_at, range(published))
    generations = [decode_generation(data[at : at + GENERATION_BYTES], number) for number, at in enumerate(starts)]
    return most_channels, tuple(generations)


def decode_header(data: bytes, file_bytes: int) -> tuple[int, int]:
    """The channels that communicators have, and the number of generations, from the first bytes of a file."""
    if file_bytes != FILE_BYTES or not data.startswith(MAGIC):
        raise DataFileError("not a file of channel rules; name the one that `makeway run` wrote for the job")
    _, version, most_channels, published = HEADER.unpack_from(data)
    if version != VERSION:
        raise DataFileError(f"the channel rules have version {version}, this makeway reads {VERSION}")
    if not 1 <= published <= MOST_GENERATIONS:
        raise DataFileError(f"the file of channel rules is damaged: it says {published:,} generations")
    return most_channels, published


def generation_at(number: int) -> int:
    """Where a generation starts in the file."""
    return HEADER.size + number * GENERATION_BYTES


def decode_generation(data: bytes, number: int) -> Generation:
    """One generation, from its bytes; `number` is for the message where it is damaged."""
    body = data[_CHECKSUM.size : GENERATION_BYTES]
    from_call, rules, _ = _GENERATION.unpack_from(body)
    if _CHECKSUM.unpack_from(data)[0] != fnv1a(body) or rules > MOST_RULES:
        raise DataFileError(f"the file of channel rules is damaged: generation {number} does not match its checksum")
    try:
        unpacked = [_unpacked(body, _GENERATION.size + at * _RULE.size) for at in range(rules)]
        return Generation(from_call=from_call, rules=tuple(unpacked))
    except (IndexError, InputError) as error:
        raise DataFileError(f"the file of channel rules is damaged: {error}") from None


def _unpacked(body: bytes, at: int) -> ChannelRule:
    least, most, kind, algorithm, protocol, flags, channels, _ = _RULE.unpack_from(body, at)
    return ChannelRule(
        collective=None if kind == _ANY else COLLECTIVES[kind],
        min_bytes=least,
        max_bytes=most,
        channels=channels or None,
        algorithm=None if algorithm == _NONE else ALGORITHMS[algorithm],
        protocol=None if protocol == _NONE else PROTOCOLS[protocol],
        only_simple=bool(flags & _ONLY_SIMPLE),
    )
