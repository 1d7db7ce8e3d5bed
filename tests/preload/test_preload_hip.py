"""The HIP twin: the same rules on a program that the compiler linked to the HIP runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.preload.programs import COMM, HERE, Setting, compile_program, pads, rules, sent

from makeway.act.preload.rules import LaunchRule, encode_rules

WAYS = ("module", "ext-module", "host", "host-ext", "host-spt", "hcc", "ex", "host-ex", "looked-up")
FUNCTIONS = {
    "module": "hipModuleLaunchKernel",
    "ext-module": "hipExtModuleLaunchKernel",
    "host": "hipLaunchKernel",
    "host-ext": "hipExtLaunchKernel",
    "host-spt": "hipLaunchKernel_spt",
    "hcc": "hipHccModuleLaunchKernel",
    "ex": "hipDrvLaunchKernelEx",
    "host-ex": "hipLaunchKernelExC",
    "looked-up": "hipModuleLaunchKernel",
}
PADS = pads(pad_bytes=20_000)


@pytest.fixture(scope="module")
def hip_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("hip")
    shared = ("-fPIC", "-shared", "-Wl,-soname,libamdhip64.so", "-Wl,-Bsymbolic-functions")
    compile_program(home / "libamdhip64.so", *shared, str(HERE / "hip_driver.c"))
    compile_program(home / "client", str(HERE / "hip_client.c"), f"-L{home}", "-lamdhip64")
    return home


@pytest.fixture
def on_hip(hip_programs: Path, shim: Path, tmp_path: Path) -> Setting:
    (tmp_path / "runs").mkdir()
    return Setting(client=hip_programs / "client", driver=hip_programs, shim=shim, home=tmp_path / "runs")


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_launch_is_padded_with_its_other_arguments_intact(on_hip: Setting, way: str) -> None:
    ran = on_hip.run(way, "gemm", way, "copy", rules=PADS)
    assert ran.results == (0, 0)
    assert ran.launches == ((FUNCTIONS[way], "gemm", 20_016), (FUNCTIONS[way], "copy", 16))
    assert (ran.kernel("gemm").padded, ran.kernel("copy").seen) == (1, 1)


@pytest.mark.parametrize("way", WAYS)
def test_a_target_residency_is_reached(on_hip: Setting, way: str) -> None:
    ran = on_hip.run(way, "gemm", rules=rules(LaunchRule(pattern="gemm", blocks_per_sm=3)))
    assert sent(ran) == [65_536 // 3 // 512 * 512 - 512]


@pytest.mark.parametrize("way", ["cooperative", "ex-cooperative"])
def test_cooperative_launches_pass_through(on_hip: Setting, way: str) -> None:
    ran = on_hip.run(way, "gemm", rules=PADS)
    assert sent(ran) == [16]
    assert "cooperative" in ran.kernel("gemm").reason


def test_communication_is_not_padded_and_its_priority_is_said_to_be_the_streams(on_hip: Setting) -> None:
    ran = on_hip.run("host", COMM, rules=rules(LaunchRule(pattern="*", pad_bytes=8), raise_comm_priority=True))
    assert sent(ran) == [16]
    assert ran.kernel(COMM).skipped == 1
    assert "from the stream" in ran.kernel(COMM).reason


def test_a_refused_pad_is_repeated_as_asked_and_dropped(on_hip: Setting) -> None:
    ran = on_hip.run(*("host", "gemm") * 4, rules=PADS, DRIVER_REFUSE="pad:2")
    assert ran.results == (0, 0, 0, 0)
    kernel = ran.kernel("gemm")
    assert (kernel.padded, kernel.refused, kernel.skipped) == (1, 1, 2)


def test_a_pad_above_the_limit_is_skipped_and_said(on_hip: Setting) -> None:
    ran = on_hip.run("module", "gemm", rules=pads(pad_bytes=65_020))
    assert sent(ran) == [16]
    assert "above the limit of 65024" in ran.kernel("gemm").reason


def test_without_rules_nothing_happens(on_hip: Setting) -> None:
    ran = on_hip.run("host", "gemm", "module", "gemm", "looked-up", "gemm", rules=None)
    assert sent(ran) == [16, 16, 16]
    assert ran.receipts == ()


def test_rule_sets_take_turns(on_hip: Setting) -> None:
    turns = [word for turn in (1, 0, 1) for word in ("rules", str(turn), "module", "gemm", "host", "gemm")]
    ran = on_hip.run("module", "gemm", *turns, rules=encode_rules(rules(), PADS))
    assert sent(ran) == [16, 20_016, 20_016, 16, 16, 20_016, 20_016]
    (process,) = ran.receipts
    assert {kernel.rule_set: (kernel.seen, kernel.padded) for kernel in process.kernels} == {0: (3, 0), 1: (4, 4)}
