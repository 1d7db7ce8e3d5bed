"""The shim compiled into its client with a sanitizer: every step of the other tests, watched."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.preload.programs import COMM, HERE, Setting, compile_program, driver, rules, shim_sources

from makeway.act.preload.rules import LaunchRule, encode_rules

SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:exitcode=66",  # entries are never freed, by design
    "TSAN_OPTIONS": "exitcode=66:halt_on_error=1:die_after_fork=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


EVERY = ["address", pytest.param("thread", marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=EVERY)
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """Client and shim in one program, so that no sanitizer need be preloaded into anything."""
    home, flags = tmp_path_factory.mktemp("watched"), SANITIZERS[request.param]
    sources = (str(HERE / "client.c"), *shim_sources())
    client = compile_program(home / "client", *flags, "-fvisibility=hidden", "-rdynamic", *sources)
    (home / "runs").mkdir()
    return Setting(client=client, driver=driver(home / "driver"), shim=None, home=home / "runs", extra=OPTIONS)


RULES = rules(
    LaunchRule(pattern="gemm*", pad_bytes=60_000),
    LaunchRule(pattern="fit*", blocks_per_sm=3),
    LaunchRule(pattern="code:0123456789abcdef", pad_bytes=8),
    raise_comm_priority=True,
)
KERNELS = ("kernel", "gemm", "kernel", "copy", "kernel", "fit", "kernel", COMM, "handle", "gemm_handle")
LAUNCHES: tuple[str | int, ...] = tuple(word for at in range(5) for word in ("launch", at, 64, "ex", at, 64, "plain"))


@pytest.mark.parametrize("way", ["dlsym", "proc", "proc-ptsz", "proc-future"])
def test_launches_are_clean(watched: Setting, way: str) -> None:
    ran = watched.run("via", way, *KERNELS, *LAUNCHES, "context", 2, *LAUNCHES, rules=RULES)
    assert set(ran.results) == {0}
    if way != "proc-future":
        assert ran.kernel("gemm").padded == 4


@pytest.mark.parametrize("refuse", ["pad:1", "pad:2", "limit", "priority"])
def test_refusals_are_clean(watched: Setting, refuse: str) -> None:
    ran = watched.run(
        *("via", "dlsym", *KERNELS, *LAUNCHES, *LAUNCHES, "bad-grid", 0, 0, "limit", 0, 50_000, "launch", 0, 50_000),
        rules=RULES,
        DRIVER_REFUSE=refuse,
        DRIVER_ASKED="50000",
        DRIVER_ERROR="701",
    )
    assert ran.results[:20] == (0,) * 20


@pytest.mark.parametrize("broken", [b"", b"MKWRULES" + bytes(40)])
def test_bad_rules_are_clean(watched: Setting, broken: bytes) -> None:
    assert watched.run("via", "dlsym", *KERNELS, *LAUNCHES, rules=broken).results == (0,) * 10


def test_unloading_reopening_and_forking_are_clean(watched: Setting) -> None:
    once = ("via", "dlsym", *KERNELS, *LAUNCHES)
    ran = watched.run(*once, "unload", *KERNELS, *LAUNCHES, "reopen", *once, "fork", *LAUNCHES, rules=RULES)
    assert set(ran.results) == {0}
    assert len(ran.receipts) == 2


@pytest.mark.parametrize("way", ["threads", "churn"])
def test_threads_are_clean_and_counted(watched: Setting, way: str) -> None:
    ran = watched.run("via", "dlsym", "kernel", "gemm", "kernel", "copy", way, 8, 2000, rules=RULES, recorded=False)
    assert (ran.kernel("gemm").padded, ran.kernel("copy").seen) == (8000, 8000)


def test_rule_sets_that_take_turns_are_clean(watched: Setting) -> None:
    none = rules()
    turns = tuple(word for turn in (1, 0, 2, 0, 1) for word in ("rules", turn, *LAUNCHES))
    sets = encode_rules(none, RULES, rules(LaunchRule(pattern="*", pad_bytes=4096)))
    ran = watched.run("via", "dlsym", *KERNELS, *LAUNCHES, *turns, "unload", *KERNELS, *turns, rules=sets)
    assert set(ran.results) == {0}


def test_threads_that_launch_while_rule_sets_take_turns_are_clean_and_counted(watched: Setting) -> None:
    sets = encode_rules(rules(), RULES)
    ran = watched.run(
        *(
            "via",
            "dlsym",
            "kernel",
            "gemm",
            "kernel",
            "copy",
            "rules",
            1,
            "turns",
            8,
            2000,
            "rules",
            1,
            "launch",
            0,
            64,
        ),
        rules=sets,
        recorded=False,
    )
    (process,) = ran.receipts
    assert set(ran.results) == {0}
    gemm = {kernel.rule_set: kernel for kernel in process.kernels if kernel.kernel == "gemm"}
    assert sum(kernel.seen for kernel in gemm.values()) == 8001
    assert sum(kernel.seen for kernel in process.kernels if kernel.kernel == "copy") == 8000
    assert gemm[0].padded == 0
    assert gemm[1].padded >= 1


@pytest.mark.parametrize("way", ["threads", "churn"])
def test_threads_that_meet_refusals_are_clean_and_counted(watched: Setting, way: str) -> None:
    ran = watched.run(
        *("via", "dlsym", "kernel", "gemm", "kernel", "copy", way, 8, 2000),
        rules=RULES,
        recorded=False,
        DRIVER_REFUSE="pad:9",
        DRIVER_ERROR="701",
        DRIVER_ASKED="64",
    )
    kernel = ran.kernel("gemm")
    assert kernel.seen == 8000
    assert 1 <= kernel.refused <= 8  # one per thread at most: those already on their way
    assert kernel.padded + kernel.refused + kernel.skipped == 8000


# --- the programs of the attack suite -----------------------------------------------------------

ATTACK = HERE.parent / "attack" / "shim"


@pytest.fixture(scope="module", params=EVERY)
def attacking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """The program that is hard on the shim, with the shim in it."""
    home, flags = tmp_path_factory.mktemp("attacking"), SANITIZERS[request.param]
    sources = (str(ATTACK / "program.c"), *shim_sources())
    program = compile_program(home / "program", *flags, "-fvisibility=hidden", "-rdynamic", *sources)
    shared = ("-fPIC", "-shared", "-Wl,-Bsymbolic-functions")
    for name in ("driver", "other"):
        (home / name).mkdir()
        compile_program(home / name / "libcuda.so.1", *shared, "-Wl,-soname,libcuda.so.1", str(ATTACK / "driver.c"))
    compile_program(home / "plugin.so", *shared, str(ATTACK / "plugin.c"))
    compile_program(home / "empty.so", *shared, "-DEMPTY", str(ATTACK / "plugin.c"))
    (home / "runs").mkdir()
    # A driver that is unloaded leaves the state of its locks behind in the thread sanitizer.
    (home / "suppressions").write_text("race:preload/driver.c\n")
    options = f"{OPTIONS['TSAN_OPTIONS']}:suppressions={home / 'suppressions'}"
    extra = OPTIONS | {"EMPTY_PLUGIN": str(home / "empty.so"), "TSAN_OPTIONS": options}
    return Setting(client=program, driver=home / "driver", shim=None, home=home / "runs", extra=extra)


def test_attacks_on_look_ups_are_clean(attacking: Setting) -> None:
    home = attacking.home.parent
    for words in (
        ("constructors", str(home / "plugin.so"), 200),
        ("two-drivers", str(home / "other" / "libcuda.so.1")),
        ("moves",),
        ("closes", 50),
    ):
        ran = attacking.run(*words, rules=RULES, recorded=False)
        assert set(ran.results) == {0}, words
        assert sum(kernel.padded for process in ran.receipts for kernel in process.kernels) >= 1, words


def test_attacks_by_arguments_are_clean(attacking: Setting) -> None:
    for kernel in ("gemm", COMM, "copy"):
        assert attacking.run("null-attributes", kernel, rules=RULES).results == (1,)


@pytest.mark.parametrize(("offset", "size"), [(64, 1 << 30), (2**64 - 32, 64), (128, 64)])
def test_attacks_by_images_are_clean(attacking: Setting, offset: int, size: int) -> None:
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 2, 190, 1, 0, 0, 64, 0, 64, 56, 1, 64, 1, 0)
    section = struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, offset, size, 0, 0, 0, 0)
    path = attacking.home.parent / "image"
    path.write_bytes((header + section).ljust(4096, b"\0"))
    for way in ("image", "file"):
        assert attacking.run(way, str(path), rules=RULES).results == (0,)


def test_a_storm_of_forks_is_clean(attacking: Setting) -> None:
    ran = attacking.run("forks", 2, rules=RULES, recorded=False)
    assert set(ran.results) == {0}
    assert len(ran.receipts) == 1 + 2 * 4


@pytest.mark.parametrize("sanitizer", EVERY)
def test_hip_launches_and_refusals_are_clean(sanitizer: str, tmp_path: Path) -> None:
    shared = ("-fPIC", "-shared", "-Wl,-soname,libamdhip64.so", "-Wl,-Bsymbolic-functions")
    compile_program(tmp_path / "libamdhip64.so", *shared, str(HERE / "hip_driver.c"))
    flags = (*SANITIZERS[sanitizer], "-fvisibility=hidden", "-rdynamic")
    sources = (str(HERE / "hip_client.c"), *shim_sources())
    linking = (f"-L{tmp_path}", "-Wl,--no-as-needed", "-lamdhip64")
    client = compile_program(tmp_path / "client", *flags, *sources, *linking)
    (tmp_path / "runs").mkdir()
    setting = Setting(client=client, driver=tmp_path, shim=None, home=tmp_path / "runs", extra=OPTIONS)
    ways = ("module", "ext-module", "host", "host-ext", "cooperative", "looked-up")
    steps = [word for kernel in ("gemm", "fit", "copy", COMM) for way in ways for word in (way, kernel)]
    for refuse in ("", "pad:2"):
        ran = setting.run(*steps, rules=RULES, DRIVER_REFUSE=refuse)
        assert ran.results == (0,) * 24
        assert ran.kernel("gemm").seen == 6
        assert ran.kernel("fit").padded + ran.kernel("fit").refused >= 1
