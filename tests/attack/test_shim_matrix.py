"""The launch shim changes nothing that a program can notice, however unusual the program."""

from __future__ import annotations

import os
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.attack.running import NOBODY, as_nobody
from tests.attack.shim_programs import Binaries, Ran, run_under_shim
from tests.preload.programs import COMM, pads, rules

from makeway.act.preload.rules import LaunchRule, Rules

PADS = pads()
ASKED, PADDED = 64, 60_064
EITHER_WAY = pytest.mark.parametrize("with_rules", [PADS, None], ids=["rules", "no-rules"])


def assert_launched(ran: Ran, *kernels: str) -> None:
    assert ran.ended.code == 0, ran.ended
    assert ran.results == (0,) * len(kernels)
    assert tuple(kernel for _, kernel, _ in ran.launches) == kernels


# --- looking symbols up ------------------------------------------------------------------------


@EITHER_WAY
def test_a_constructor_may_look_a_launch_function_up(
    compiled: Binaries, tmp_path: Path, with_rules: Rules | None
) -> None:
    words = ("constructors", compiled.plugin, "2000")
    ran = run_under_shim(tmp_path, compiled.program, *words, rules=with_rules, limit_s=15)
    assert ran.ended.code is not None, "hangs: one thread holds the loader's lock and wants ours, another vice versa"
    assert_launched(ran, "gemm")


@EITHER_WAY
def test_a_constructor_may_launch_before_the_shim_has_started(
    compiled: Binaries, tmp_path: Path, with_rules: Rules | None
) -> None:
    ran = run_under_shim(tmp_path, compiled.early, "2", rules=with_rules)
    assert ran.ended.code == 0, ran.ended
    padded = PADDED if with_rules else ASKED
    early = ("gemm_early", ASKED)
    assert [(kernel, size) for _, kernel, size in ran.launches] == [early, early, ("gemm", padded), ("gemm", padded)]


ORDERS = ("linked", "after the shim", "before the shim")  # the last as from /etc/ld.so.preload
LOOK_UPS = ((), ("default",), ("self",))


def traced_program(compiled: Binaries, order: str, tracer: Path) -> tuple[Path, tuple[Path, ...], tuple[Path, ...]]:
    """A program with a tracer, and what is preloaded with the shim and without."""
    match order:
        case "linked":
            return compiled.traced, (compiled.shim,), ()
        case "after the shim":
            return compiled.linked, (compiled.shim, tracer), (tracer,)
        case _:
            return compiled.linked, (tracer, compiled.shim), (tracer,)


@pytest.mark.parametrize("look_up", LOOK_UPS, ids=lambda words: "".join(words) or "bound")
@pytest.mark.parametrize("order", ORDERS)
@EITHER_WAY
def test_a_tracer_sees_each_launch_once_and_passes_it_on(
    compiled: Binaries, tmp_path: Path, order: str, look_up: tuple[str, ...], with_rules: Rules | None
) -> None:
    program, preload, without = traced_program(compiled, order, compiled.tracer)
    ran = run_under_shim(tmp_path, program, "3", *look_up, rules=with_rules, preload=preload)
    plain = run_under_shim(tmp_path / "plain", program, "3", *look_up, rules=None, preload=without)
    assert_launched(ran, "gemm", "gemm", "gemm")
    assert "traced 3\n" in ran.ended.err
    assert "traced 3\n" in plain.ended.err
    if with_rules is not None:
        assert [size for _, _, size in ran.launches] == [PADDED] * 3


@pytest.mark.parametrize("order", ORDERS)
@EITHER_WAY
def test_a_tracer_sees_what_is_bound_to_it_and_not_what_goes_to_the_driver(
    compiled: Binaries, tmp_path: Path, order: str, with_rules: Rules | None
) -> None:
    program, preload, without = traced_program(compiled, order, compiled.tracer)
    words = ("3", "also-by-handle")
    ran = run_under_shim(tmp_path, program, *words, rules=with_rules, preload=preload)
    plain = run_under_shim(tmp_path / "plain", program, *words, rules=None, preload=without)
    assert_launched(ran, "gemm", "gemm", "gemm", "gemm")
    assert ["traced 3" in each.ended.err for each in (ran, plain)] == [True, True]
    if with_rules is not None:
        assert [size for _, _, size in ran.launches][1:] == [PADDED] * 3


@pytest.mark.parametrize("order", ["after the shim", "before the shim"])
@EITHER_WAY
def test_a_tracer_that_finds_the_driver_by_name_gets_the_driver(
    compiled: Binaries, tmp_path: Path, order: str, with_rules: Rules | None
) -> None:
    program, preload, _ = traced_program(compiled, order, compiled.naming_tracer)
    ran = run_under_shim(tmp_path, program, "3", rules=with_rules, preload=preload)
    assert_launched(ran, "gemm", "gemm", "gemm")
    assert "traced 3\n" in ran.ended.err


@pytest.mark.parametrize("look_up", LOOK_UPS[:2], ids=["bound", "default"])
@EITHER_WAY
def test_a_plug_in_finds_the_driver_that_it_alone_is_linked_to(
    compiled: Binaries, tmp_path: Path, look_up: tuple[str, ...], with_rules: Rules | None
) -> None:
    ran = run_under_shim(tmp_path, compiled.host, compiled.linked_plugin, "3", *look_up, rules=with_rules)
    assert_launched(ran, "gemm", "gemm", "gemm")
    if with_rules is not None:
        assert [size for _, _, size in ran.launches] == [PADDED] * 3


@pytest.mark.parametrize("preload", [None, ()], ids=["shim", "plain"])
def test_what_dlerror_says_is_the_programs_own(compiled: Binaries, tmp_path: Path, preload: tuple[()] | None) -> None:
    ran = run_under_shim(tmp_path, compiled.program, "dlerror", rules=PADS, preload=preload)
    assert ran.ended.code == 0, ran.ended
    assert ran.results == (0,) * 7


@EITHER_WAY
def test_a_driver_that_comes_back_at_another_address_is_followed(
    compiled: Binaries, tmp_path: Path, with_rules: Rules | None
) -> None:
    ran = run_under_shim(tmp_path, compiled.program, "moves", rules=with_rules)
    assert_launched(ran, "gemm", "gemm", "gemm")
    assert [size for _, _, size in ran.launches] == [PADDED if with_rules else ASKED] * 3


@EITHER_WAY
def test_two_drivers_in_one_process_keep_their_own_kernels(
    compiled: Binaries, tmp_path: Path, with_rules: Rules | None
) -> None:
    other = compiled.other_cuda / "libcuda.so.1"
    ran = run_under_shim(tmp_path, compiled.program, "two-drivers", other, rules=with_rules)
    assert_launched(ran, "gemm_first", "gemm_second", "gemm_first", "gemm_second", "gemm_first")


@EITHER_WAY
@pytest.mark.parametrize("version", ["6", "7"])
def test_a_hip_runtime_is_found_by_its_versioned_name(
    compiled: Binaries, tmp_path: Path, version: str, with_rules: Rules | None
) -> None:
    plugin = compiled.hip_plugins[version]
    words = ("host", "gemm", "module", "gemm", "looked-up", "gemm")
    ran = run_under_shim(tmp_path, compiled.host, plugin, *words, rules=pads(pad_bytes=20_000) if with_rules else None)
    assert_launched(ran, "gemm", "gemm", "gemm")
    if with_rules is not None:
        assert [size for _, _, size in ran.launches] == [20_016] * 3


# --- limits of the process ---------------------------------------------------------------------


def limited(which: int, most: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(which, (most, most))


def test_a_file_size_limit_does_not_kill_the_program(compiled: Binaries, tmp_path: Path) -> None:
    limit = limited(resource.RLIMIT_FSIZE, 512 << 10)  # ulimit -f 512
    ran = run_under_shim(tmp_path, compiled.program, "launch", "3", rules=PADS, prepare=limit)
    assert_launched(ran, "gemm", "gemm", "gemm")


def test_no_file_descriptors_to_spare_is_no_error_of_the_program(compiled: Binaries, tmp_path: Path) -> None:
    limit = limited(resource.RLIMIT_NOFILE, 4)  # one beside the standard streams, for the loader
    ran = run_under_shim(tmp_path, compiled.program, "launch", "3", rules=PADS, prepare=limit)
    assert_launched(ran, "gemm", "gemm", "gemm")


def test_no_address_space_to_spare_is_no_error_of_the_program(compiled: Binaries, tmp_path: Path) -> None:
    ran = run_under_shim(tmp_path, compiled.program, "little-memory", rules=PADS)
    assert_launched(ran, "gemm", "gemm", "gemm")


def test_a_setuid_program_runs_without_the_shim(
    compiled: Binaries, tmp_path: Path, open_place: Path, second_user: None
) -> None:
    program = open_place / "program"
    shutil.copy(compiled.program, program)
    program.chmod(0o4755)
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        pytest.skip("the temporary directory takes no setuid programs")
    before = tuple(as_nobody())
    ran = run_under_shim(tmp_path, program, "launch", "2", rules=PADS, before=before)
    assert before[2] == str(NOBODY)
    assert_launched(ran, "gemm", "gemm")
    assert [size for _, _, size in ran.launches] == [ASKED] * 2
    assert ran.receipts == ()


# --- arguments that a driver refuses -----------------------------------------------------------


@pytest.mark.parametrize("kernel", ["gemm", COMM, "copy"])
def test_attributes_that_are_not_there_are_the_drivers_to_refuse(
    compiled: Binaries, tmp_path: Path, kernel: str
) -> None:
    every = rules(LaunchRule(pattern="gemm*", pad_bytes=60_000), raise_comm_priority=True)
    ran = run_under_shim(tmp_path, compiled.program, "null-attributes", kernel, rules=every)
    assert ran.ended.code == 0, ran.ended
    assert ran.results == (1,)  # CUDA_ERROR_INVALID_VALUE
    assert ran.launches == ()


# --- code objects ------------------------------------------------------------------------------

_BY_CODE = rules(LaunchRule(pattern="code:0123456789abcdef", pad_bytes=8))
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_PAGE = 4096


def elf(*, section_table: int = 64, sections: int = 1, offset: int = 128, size: int = 64, programs: int = 0) -> bytes:
    """An ELF file of one page whose tables and only section are where they are said to be, true or not."""
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = _HEADER.pack(ident, 2, 190, 1, 0, programs, section_table, 0, 64, 56, 1, _SECTION.size, sections, 0)
    section = _SECTION.pack(1, 1, 0, 0, offset, size, 0, 0, 0, 0)
    return (header + section).ljust(_PAGE, b"\0")


WRONG = {
    "table that wraps to the start": elf(section_table=2**64 - 0xFFF0 * 64 + 64, sections=0xFFF0),
    "table just below the image": elf(section_table=2**64 - _SECTION.size, sections=1),
    "programs that wrap": elf(programs=2**64 - 56),
    "section that wraps": elf(offset=2**64 - 32, size=64),
    "section of all memory": elf(offset=0, size=2**64 - 1),
    "section far behind": elf(offset=2**40, size=64),
    "section that ends behind": elf(offset=64, size=1 << 30),
    "table far behind": elf(section_table=2**40),
}


@pytest.mark.parametrize("way", ["image", "file"])
@pytest.mark.parametrize("what", WRONG)
def test_a_code_object_is_read_only_where_it_is(compiled: Binaries, tmp_path: Path, way: str, what: str) -> None:
    (tmp_path / "wrong.cubin").write_bytes(WRONG[what])
    ran = run_under_shim(tmp_path, compiled.program, way, tmp_path / "wrong.cubin", rules=_BY_CODE)
    assert_launched(ran, "gemm")


# --- storms ------------------------------------------------------------------------------------

_COOPERATIVE = "a cooperative launch: with a pad its blocks might not all fit at once"
_CLUSTER = "launched in clusters: padding could keep a whole cluster from fitting"
_REASONS = ("", _COOPERATIVE, f"{_COOPERATIVE}; {_CLUSTER}")  # the second may be lost to a fork, not misread


def test_children_that_fork_in_a_storm_of_new_kernels_know_only_true_names(compiled: Binaries, tmp_path: Path) -> None:
    ran = run_under_shim(tmp_path, compiled.program, "forks", "12", rules=PADS)
    assert ran.ended.code == 0, ran.ended
    assert set(ran.results) == {0}, "a child hung or crashed"
    assert len(ran.receipts) == 1 + 48
    for process in ran.receipts:
        for counts in process.kernels:
            assert counts.kernel.startswith("gemm_"), counts
            assert counts.reason in _REASONS, counts


def test_a_driver_that_is_opened_and_closed_in_a_storm_takes_every_launch(compiled: Binaries, tmp_path: Path) -> None:
    ran = run_under_shim(tmp_path, compiled.program, "closes", "200", rules=PADS)
    assert ran.ended.code == 0, ran.ended
    assert ran.results == (0,)
    assert len(ran.launches) == 400
