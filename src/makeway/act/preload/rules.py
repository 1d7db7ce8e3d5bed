"""Launch rules: what the shim does to which kernel, in a file that C reads without a parser.

A file holds one set of rules or several, of which one is in force at a time (`act/preload/rule_sets.py`); the first is
where a program starts.

All numbers are little-endian. Header: magic (8 bytes), version, length of the whole file (both 32 bits), checksum of
the rest (64 bits, FNV-1a). Body: rule sets, comm patterns (32 bits each); per set its flags, launch rules (32 bits
each) and per rule its kind (8 bits), value (32 bits) and pattern; then the comm patterns, which all sets share. A
pattern is its length (16 bits) and printable ASCII.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace
from functools import cache

from makeway.act.checksum import fnv1a
from makeway.act.preload.patterns import comm_globs
from makeway.read.traces.classify import load_comm_names
from makeway.values.control import CommPriority, SmemPad
from makeway.values.errors import BinaryError, DataFileError, InputError
from makeway.values.plan import Plan

MAGIC = b"MKWRULES"
VERSION = 2
LONGEST_PATTERN_BYTES = 1024
MOST_LAUNCH_RULES = 256  # of all sets together
MOST_RULE_SETS = 64
MOST_COMM_PATTERNS = 1024
LARGEST_VALUE = 2**31 - 1  # CUDA's function attributes are signed 32-bit numbers

_HEADER = struct.Struct("<8sIIQ")
_COUNTS = struct.Struct("<II")
_RULE = struct.Struct("<BI")
_LENGTH = struct.Struct("<H")
_PAD, _BLOCKS = 0, 1
_RAISE_COMM_PRIORITY = 1
_ELF_HEADER = struct.Struct("<32xQQ6xHHHH2x")  # e_phoff, e_shoff, e_phentsize, e_phnum, e_shentsize, e_shnum
_ELF_SECTION = struct.Struct("<4xI16xQQ24x")  # sh_type, sh_offset, sh_size
_NO_BITS = 8
_CODE = re.compile(r"code:[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRule:
    """What the shim does to matching compute kernels: add shared memory, or add as much as a residency takes.

    The pattern is a glob on the kernel's (mangled) name in the driver, or "code:" and the `code_hash` of the image that
    the kernel was loaded from.
    """

    pattern: str
    pad_bytes: int | None = None
    blocks_per_sm: int | None = None

    def __post_init__(self) -> None:
        _check_pattern(self.pattern)
        if self.pattern.startswith("code:") and not _CODE.fullmatch(self.pattern):
            raise InputError(f"{self.pattern!r} names no code object; write code: and the 16 hex digits of `code_hash`")
        if (self.pad_bytes is None) == (self.blocks_per_sm is None):
            raise InputError(f"the rule for {self.pattern!r} needs either pad_bytes or blocks_per_sm, not both")
        if not 1 <= self.value <= LARGEST_VALUE:
            raise InputError(f"the rule for {self.pattern!r} asks for {self.value:,}; give 1 to {LARGEST_VALUE:,}")

    @property
    def value(self) -> int:
        """The pad or the residency, whichever is given."""
        value = self.blocks_per_sm if self.pad_bytes is None else self.pad_bytes
        assert value is not None
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One set of rules. The first matching launch rule wins; communication is never padded.

    `comm_patterns` are globs with alternatives in braces (see `makeway.act.preload.patterns`).
    """

    launches: tuple[LaunchRule, ...]
    comm_patterns: tuple[str, ...]
    raise_comm_priority: bool

    def __post_init__(self) -> None:
        for pattern in self.comm_patterns:
            _check_pattern(pattern)
        for what, count, most in (
            ("launch rules", len(self.launches), MOST_LAUNCH_RULES),
            ("comm patterns", len(self.comm_patterns), MOST_COMM_PATTERNS),
        ):
            if count > most:
                raise InputError(f"{count:,} {what}; the launch shim takes at most {most:,}")


def _check_pattern(pattern: str) -> None:
    if not re.fullmatch(r"[ -~]+", pattern) or len(pattern) > LONGEST_PATTERN_BYTES:
        raise InputError(
            f"cannot use the kernel pattern {pattern[:40]!r}; give 1 to {LONGEST_PATTERN_BYTES:,} printable ASCII "
            "characters"
        )


def rules_of(plan: Plan) -> Rules:
    """The launch rules of a plan: its pads, and the priority of communication."""
    return Rules(
        launches=tuple(
            LaunchRule(pattern=control.kernel, pad_bytes=control.pad_bytes)
            for control in plan.controls
            if isinstance(control, SmemPad)
        ),
        comm_patterns=_bundled_comm_globs(),
        raise_comm_priority=any(isinstance(control, CommPriority) for control in plan.controls),
    )


@cache
def _bundled_comm_globs() -> tuple[str, ...]:
    return comm_globs(load_comm_names())


def code_hash(image: bytes) -> str:
    """The name of a code object in a launch rule's pattern: FNV-1a (64 bits) of its ELF image.

    The image ends with its last table or section: the driver gets no size, so nothing after that is hashed.
    """
    return f"{fnv1a(image[: _elf_bytes(image)]):016x}"


def _elf_bytes(image: bytes) -> int:
    if len(image) < _ELF_HEADER.size or not image.startswith(b"\x7fELF\x02"):
        raise BinaryError("the code object is no 64-bit ELF image; take the cubin out of its fat binary first")
    phoff, shoff, phentsize, phnum, shentsize, shnum = _ELF_HEADER.unpack_from(image)
    ends: list[int] = [_ELF_HEADER.size, phoff + phnum * phentsize, shoff + shnum * shentsize]
    try:
        for index in range(shnum if shentsize == _ELF_SECTION.size else 0):
            kind, offset, size = _ELF_SECTION.unpack_from(image, shoff + index * shentsize)
            if kind != _NO_BITS:
                ends.append(offset + size)
    except struct.error:
        raise BinaryError("the code object is cut short: its section table lies past its end") from None
    if max(ends) > len(image):
        raise BinaryError(f"the code object is cut short: {len(image):,} of {max(ends):,} bytes")
    return max(ends)


# --- the file ----------------------------------------------------------------------------------


def encode_rules(*sets: Rules) -> bytes:
    """The rules file, for one set of rules or several; `decode_rules` gives the sets back."""
    _check_sets(sets)
    comm_patterns = sets[0].comm_patterns
    body = _COUNTS.pack(len(sets), len(comm_patterns))
    for rules in sets:
        body += _COUNTS.pack(_RAISE_COMM_PRIORITY if rules.raise_comm_priority else 0, len(rules.launches))
        for rule in rules.launches:
            body += _RULE.pack(_BLOCKS if rule.pad_bytes is None else _PAD, rule.value) + _packed(rule.pattern)
    for pattern in comm_patterns:
        body += _packed(pattern)
    return _HEADER.pack(MAGIC, VERSION, _HEADER.size + len(body), fnv1a(body)) + body


def _check_sets(sets: tuple[Rules, ...]) -> None:
    if not 1 <= len(sets) <= MOST_RULE_SETS:
        raise InputError(f"{len(sets):,} sets of rules; the launch shim takes 1 to {MOST_RULE_SETS}")
    if len({rules.comm_patterns for rules in sets}) > 1:
        raise InputError("the sets of rules differ in their comm patterns; what communicates is the same in all")
    if (launches := sum(len(rules.launches) for rules in sets)) > MOST_LAUNCH_RULES:
        raise InputError(f"{launches:,} launch rules in all sets; the launch shim takes at most {MOST_LAUNCH_RULES:,}")


def _packed(pattern: str) -> bytes:
    encoded = pattern.encode("ascii")
    return _LENGTH.pack(len(encoded)) + encoded


def decode_rules(data: bytes) -> tuple[Rules, ...]:
    """The sets of rules in a file, or an error that says what is wrong with it."""
    if len(data) < _HEADER.size or not data.startswith(MAGIC):
        raise DataFileError(
            "not a rules file of the launch shim: it starts with other bytes; write it again from a plan"
        )
    _, version, length, checksum = _HEADER.unpack_from(data)
    if version > VERSION:
        raise DataFileError(f"the rules file has version {version}, this makeway reads {VERSION}; use a newer makeway")
    if version != VERSION:
        raise DataFileError(f"the rules file has version {version}, which does not exist; write it again from a plan")
    if length != len(data):
        raise DataFileError(f"the rules file is truncated or too long: {len(data):,} bytes, it says {length:,}")
    if checksum != fnv1a(data[_HEADER.size :]):
        raise DataFileError("the rules file is damaged: its checksum does not match; write it again from a plan")
    try:
        return _Body(data).sets()
    except (struct.error, UnicodeDecodeError, InputError) as error:
        raise DataFileError(f"the rules file is damaged: {error}; write it again from a plan") from None


@dataclass(slots=True)
class _Body:
    data: bytes
    at: int = _HEADER.size

    def sets(self) -> tuple[Rules, ...]:
        count, comm = self.numbers(_COUNTS)
        if count > MOST_RULE_SETS or comm > MOST_COMM_PATTERNS:
            raise InputError(f"{count:,} sets of rules and {comm:,} comm patterns are too many")
        sets = [self.rule_set() for _ in range(count)]
        comm_patterns = tuple([self.pattern() for _ in range(comm)])
        if self.at != len(self.data):
            raise InputError(f"{len(self.data) - self.at:,} bytes follow the last pattern")
        rules = tuple(replace(each, comm_patterns=comm_patterns) for each in sets)
        _check_sets(rules)
        return rules

    def rule_set(self) -> Rules:
        flags, launches = self.numbers(_COUNTS)
        if flags & ~_RAISE_COMM_PRIORITY:
            raise InputError(f"unknown flags {flags:#x}")
        if launches > MOST_LAUNCH_RULES:
            raise InputError(f"{launches:,} launch rules are too many")
        return Rules(
            launches=tuple([self.launch() for _ in range(launches)]),
            comm_patterns=(),
            raise_comm_priority=flags == _RAISE_COMM_PRIORITY,
        )

    def numbers(self, layout: struct.Struct) -> tuple[int, ...]:
        values: tuple[int, ...] = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return values

    def launch(self) -> LaunchRule:
        kind, value = self.numbers(_RULE)
        pattern = self.pattern()
        match kind:
            case 0:
                return LaunchRule(pattern=pattern, pad_bytes=value)
            case 1:
                return LaunchRule(pattern=pattern, blocks_per_sm=value)
            case _:
                raise InputError(f"unknown kind of launch rule {kind}")

    def pattern(self) -> str:
        (length,) = self.numbers(_LENGTH)
        encoded = self.data[self.at : self.at + length]
        if len(encoded) < length:
            raise InputError("a pattern runs past the end")
        self.at += length
        return encoded.decode("ascii")
