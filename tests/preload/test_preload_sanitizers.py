"""The shim compiled into its client with a sanitizer: every step of the other tests, watched."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.preload.programs import COMM, HERE, Setting, compile_program, driver, rules, shim_sources

from makeway.act.preload.rules import LaunchRule

SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:exitcode=66",  # entries are never freed, by design
    "TSAN_OPTIONS": "exitcode=66:halt_on_error=1:die_after_fork=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


@pytest.fixture(scope="module", params=sorted(SANITIZERS))
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


@pytest.mark.parametrize("sanitizer", sorted(SANITIZERS))
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
