"""The rules file: what is written is what Python and C read, and nothing else is read at all."""

from __future__ import annotations

import ctypes
import random
import re
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.preload.programs import COMM_PATTERNS, HERE, compile_program

from makeway.act.preload.build import SOURCES
from makeway.act.preload.patterns import glob_of
from makeway.act.preload.rules import LaunchRule, Rules, code_hash, decode_rules, encode_rules, rules_of
from makeway.read.traces.classify import load_comm_names
from makeway.values.control import Chunks, CommPriority, SmemPad
from makeway.values.errors import BinaryError, DataFileError, InputError
from makeway.values.plan import Plan

patterns = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40).filter(
    lambda text: not text.startswith("code:")
)
launch_rules = st.one_of(
    st.builds(LaunchRule, pattern=patterns, pad_bytes=st.integers(1, 2**31 - 1)),
    st.builds(LaunchRule, pattern=patterns, blocks_per_sm=st.integers(1, 2**31 - 1)),
    st.builds(lambda hash_: LaunchRule(pattern=f"code:{hash_:016x}", pad_bytes=1), st.integers(0, 2**64 - 1)),
)
any_rules = st.builds(
    Rules,
    launches=st.lists(launch_rules, max_size=5).map(tuple),
    comm_patterns=st.lists(patterns, max_size=5).map(tuple),
    raise_comm_priority=st.booleans(),
)
any_sets = st.lists(any_rules, min_size=1, max_size=4).map(
    lambda sets: tuple(replace(rules, comm_patterns=sets[0].comm_patterns) for rules in sets)
)
names = st.text("ab[]!-*?{},", max_size=8)


@pytest.fixture(scope="module")
def c_rules(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The C reader as a library of its own, with every function exported."""
    target = tmp_path_factory.mktemp("rules") / "rules.so"
    compile_program(target, "-fPIC", "-shared", str(SOURCES / "rules.c"), str(HERE / "rules_probe.c"))
    library = ctypes.CDLL(str(target))
    library.probe_parse.restype = ctypes.c_char_p
    return library


def c_error(library: ctypes.CDLL, data: bytes) -> str | None:
    found: bytes | None = library.probe_parse(data, ctypes.c_size_t(len(data)))
    return None if found is None else found.decode()


@given(any_sets)
def test_rules_come_back_from_their_file(sets: tuple[Rules, ...]) -> None:
    assert decode_rules(encode_rules(*sets)) == sets


@given(any_sets)
def test_c_reads_every_file_that_python_writes(c_rules: ctypes.CDLL, sets: tuple[Rules, ...]) -> None:
    assert c_error(c_rules, encode_rules(*sets)) is None


@given(any_sets, st.data())
def test_a_file_cut_short_anywhere_is_refused_by_both(
    c_rules: ctypes.CDLL, sets: tuple[Rules, ...], data: st.DataObject
) -> None:
    whole = encode_rules(*sets)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert c_error(c_rules, part) is not None
    with pytest.raises(DataFileError):
        decode_rules(part)


def test_both_say_that_a_file_is_newer() -> None:
    data = bytearray(encode_rules(Rules(launches=(), comm_patterns=(), raise_comm_priority=False)))
    data[8] = 3
    with pytest.raises(DataFileError, match="newer makeway"):
        decode_rules(bytes(data))


def test_c_and_python_agree_on_damaged_files_even_with_a_true_checksum(
    c_rules: ctypes.CDLL, draw: random.Random
) -> None:
    rules = Rules(
        launches=(
            LaunchRule(pattern="gemm*", pad_bytes=9),
            LaunchRule(pattern="code:0123456789abcdef", blocks_per_sm=2),
        ),
        comm_patterns=("nccl*", "!x"),
        raise_comm_priority=True,
    )
    whole, accepted = encode_rules(rules, replace(rules, raise_comm_priority=False), rules), 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(24, len(data))] = draw.choice((0, 1, 2, 255, draw.randrange(256)))
        data[16:24] = struct.pack("<Q", int(fnv1a(bytes(data[24:])), 16))
        try:
            decode_rules(bytes(data))
            readable = True
        except DataFileError:
            readable = False
        assert (c_error(c_rules, bytes(data)) is None) == readable, bytes(data)
        accepted += readable
    assert 0 < accepted < 3000  # both answers were met


def fnv1a(data: bytes) -> str:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def test_ten_thousand_fuzzed_files_crash_nothing(tmp_path: Path, draw: random.Random) -> None:
    """One process, AddressSanitizer and UndefinedBehaviorSanitizer; patterns are matched as well as read."""
    program = compile_program(
        tmp_path / "fuzz",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        str(SOURCES / "rules.c"),
        str(HERE / "rules_probe.c"),
        "-DFUZZ",
    )
    seeds = [encode_rules(rules_of(Plan(controls=(SmemPad(1024, "gemm[a-z]*"), CommPriority()))))]
    seeds += [
        encode_rules(
            Rules(launches=(LaunchRule(pattern=p, pad_bytes=1),), comm_patterns=(p,), raise_comm_priority=False)
        )
        for p in ("{{{*", "[", "[!]", "*[a-", "{a,{b,*}}*?", "}{", "!", "*" * 64 + "z")
    ]
    path = tmp_path / "seeds"
    path.write_bytes(b"".join(struct.pack("<I", len(seed)) + seed for seed in seeds))
    done = subprocess.run(
        [program, path, "10000", str(draw.randrange(2**31))], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    read, refused = map(int, done.stdout.split())
    assert read + refused == 10_000
    assert read > 1000
    assert refused > 1000


# --- matching ----------------------------------------------------------------------------------


def c_matches(library: ctypes.CDLL, pattern: str, name: str, *, comm: bool) -> bool:
    launches = () if comm else (LaunchRule(pattern=pattern, pad_bytes=1),)
    data = encode_rules(Rules(launches=launches, comm_patterns=(pattern,) if comm else (), raise_comm_priority=False))
    assert c_error(library, data) is None
    ask: Callable[[bytes], int] = library.probe_comm if comm else library.probe_launch
    return bool(ask(name.encode()))


@given(names.filter(bool), names)
def test_launch_patterns_match_as_fnmatch_does(c_rules: ctypes.CDLL, pattern: str, name: str) -> None:
    assert c_matches(c_rules, pattern, name, comm=False) == fnmatchcase(name, pattern)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("nccl{Dev,}Kernel*", "ncclKernel_x", "ncclDivKernel"),
        ("{,*[!a-z]}ab", "9ab", "zab"),
        ("a{b{c,d},e}f", "abdf", "abf"),
        ("a[,]b", "a,b", "a;b"),
    ],
)
def test_comm_patterns_know_alternatives(c_rules: ctypes.CDLL, pattern: str, yes: str, no: str) -> None:
    assert c_matches(c_rules, pattern, yes, comm=True)
    assert not c_matches(c_rules, pattern, no, comm=True)


def test_every_comm_name_of_the_bundled_patterns_is_comm_to_the_shim(c_rules: ctypes.CDLL) -> None:
    assert c_error(c_rules, encode_rules(rules_of(Plan(controls=())))) is None
    for pattern in load_comm_names().patterns:
        for name in _examples(pattern.match):
            is_comm = pattern.means is not None
            assert bool(c_rules.probe_comm(name.encode())) == is_comm, (pattern.match.pattern, name)


@given(st.from_regex(re.compile(r"[A-Za-z0-9_]{0,30}"), fullmatch=True))
def test_ordinary_names_are_compute_to_the_shim_as_they_are_to_the_analysis(c_rules: ctypes.CDLL, name: str) -> None:
    assert c_error(c_rules, encode_rules(rules_of(Plan(controls=())))) is None
    assert bool(c_rules.probe_comm(name.encode())) == (load_comm_names().find(name) is not None)


def _examples(pattern: re.Pattern[str]) -> list[str]:
    """Names that the expression matches: random draws, checked against it."""
    strategy = st.from_regex(re.compile(pattern.pattern, re.ASCII))
    found: list[str] = []

    @settings(max_examples=20)
    @given(strategy)
    def collect(name: str) -> None:
        if name.isprintable() and name.isascii():
            found.append(name)

    collect()
    assert found
    return found


def test_a_pattern_the_shim_cannot_express_is_an_error_that_names_it() -> None:
    with pytest.raises(DataFileError, match=r"a\(\?=b\)"):
        glob_of("a(?=b)")


# --- what a rule may say -------------------------------------------------------------------------


def test_a_plan_gives_its_pads_and_its_priority() -> None:
    rules = rules_of(Plan(controls=(SmemPad(2048, "gemm*"), Chunks(2), CommPriority())))
    assert rules.launches == (LaunchRule(pattern="gemm*", pad_bytes=2048),)
    assert rules.raise_comm_priority
    assert rules.comm_patterns == COMM_PATTERNS


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pattern": "a"}, "either pad_bytes or blocks_per_sm"),
        ({"pattern": "a", "pad_bytes": 1, "blocks_per_sm": 1}, "not both"),
        ({"pattern": "a", "pad_bytes": 2**31}, "give 1 to"),
        ({"pattern": "", "pad_bytes": 1}, "cannot use the kernel pattern"),
        ({"pattern": "é", "pad_bytes": 1}, "printable ASCII"),
        ({"pattern": "code:12", "pad_bytes": 1}, "16 hex digits"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LaunchRule(**fields)  # type: ignore[arg-type]


def test_the_hash_of_a_code_object_ends_where_its_last_section_does(triton_kernels: Path) -> None:
    image = (triton_kernels / "scale.sm_90.cubin").read_bytes()
    assert code_hash(image) == code_hash(image + b"padding") == fnv1a(image)


def test_what_is_no_elf_image_has_no_code_hash() -> None:
    with pytest.raises(BinaryError, match="no 64-bit ELF"):
        code_hash(b"PTX" * 100)


def test_sets_that_no_shim_takes_are_refused() -> None:
    none = Rules(launches=(), comm_patterns=("nccl*",), raise_comm_priority=False)
    with pytest.raises(InputError, match="0 sets of rules; the launch shim takes 1 to 64"):
        encode_rules()
    with pytest.raises(InputError, match="65 sets"):
        encode_rules(*[none] * 65)
    with pytest.raises(InputError, match="differ in their comm patterns"):
        encode_rules(none, replace(none, comm_patterns=()))
    many = replace(none, launches=(LaunchRule(pattern="a", pad_bytes=1),) * 129)
    with pytest.raises(InputError, match="258 launch rules in all sets"):
        encode_rules(many, many)
