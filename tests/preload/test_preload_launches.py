"""What the shim does to launches: only what the rules say, never against the program, and the receipts say so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.preload.programs import COMM, HERE, Setting, compile_program, driver, pads, rules, sent

from makeway.act.preload.build import SOURCES
from makeway.act.preload.receipts import read_receipts
from makeway.act.preload.rules import LaunchRule, encode_rules

WAYS = ("dlsym", "proc", "proc-ptsz", "old-proc")


@pytest.mark.parametrize("way", WAYS)
def test_kernels_that_match_are_padded_and_others_are_not(setting: Setting, way: str) -> None:
    ran = setting.run("via", way, "kernel", "gemm", "kernel", "copy", "launch", 0, 100, "launch", 1, 100, rules=pads())
    suffix = "_ptsz" if way == "proc-ptsz" else ""
    assert ran.launches == ((f"cuLaunchKernelEx{suffix}", "gemm", 60_100), (f"cuLaunchKernel{suffix}", "copy", 100))
    assert ran.carve_outs == (100, None)
    padded, left = ran.kernel("gemm"), ran.kernel("copy")
    assert (padded.padded, padded.asked_bytes, padded.given_bytes, padded.reason) == (1, 100, 60_100, "")
    assert (left.seen, left.padded, left.skipped) == (1, 0, 0)


def test_a_program_linked_to_the_driver_is_padded_too(setting: Setting, tmp_path: Path) -> None:
    flags = ("-DLINKED", f"-L{setting.driver}", "-l:libcuda.so.1")
    linked = compile_program(tmp_path / "linked", str(HERE / "client.c"), *flags)
    ran = dataclasses.replace(setting, client=linked).run(
        "via", "linked", "kernel", "gemm", "launch", 0, 0, "ex", 0, 8, "plain", rules=pads()
    )
    assert sent(ran) == [60_000, 60_008]


def test_the_pad_comes_on_top_of_what_each_launch_asks(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", *steps(0, (0, 5000, 100)), rules=pads())
    assert sent(ran) == [60_000, 65_000, 60_100]
    assert ran.kernel("gemm").padded == 3


def steps(kernel: int, sizes: tuple[int, ...]) -> list[str | int]:
    return [word for size in sizes for word in ("launch", kernel, size)]


def test_a_target_residency_is_reached_and_never_takes_memory_away(setting: Setting) -> None:
    fit = rules(LaunchRule(pattern="gemm", blocks_per_sm=3))
    ran = setting.run("via", "dlsym", "kernel", "gemm", "limit", 0, 100_000, *steps(0, (0, 90_000)), rules=fit)
    assert sent(ran) == [233_472 // 3 // 128 * 128 - 1024 - 1024, 90_000]
    assert (ran.kernel("gemm").padded, ran.kernel("gemm").skipped) == (1, 1)
    assert "reside on an SM already" in ran.kernel("gemm").reason


def test_a_residency_that_registers_already_hold_needs_no_pad(setting: Setting) -> None:
    fit = rules(LaunchRule(pattern="gemm", blocks_per_sm=8))
    ran = setting.run("via", "dlsym", "kernel", "gemm", "launch", 0, 16, rules=fit)
    assert sent(ran) == [16]


def test_the_first_rule_that_matches_wins(setting: Setting) -> None:
    both = rules(LaunchRule(pattern="gemm_a*", pad_bytes=8), LaunchRule(pattern="gemm*", pad_bytes=16))
    ran = setting.run(
        "via", "dlsym", "kernel", "gemm_ab", "kernel", "gemm_c", *steps(0, (0,)), *steps(1, (0,)), rules=both
    )
    assert sent(ran) == [8, 16]


def test_communication_is_never_padded_whatever_the_rules_say(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", COMM, "launch", 0, 64, "ex", 0, 64, "plain", rules=pads("*"))
    assert sent(ran) == [64, 64]
    assert ran.priorities == (None, None)
    assert ran.kernel(COMM).comm


def test_communication_is_raised_to_the_greatest_priority(setting: Setting) -> None:
    raised = rules(raise_comm_priority=True)
    ran = setting.run(
        "via",
        "dlsym",
        "kernel",
        COMM,
        "kernel",
        "gemm",
        "launch",
        0,
        64,
        "ex",
        0,
        64,
        "cluster:4",
        "launch",
        1,
        64,
        rules=raised,
    )
    assert ran.priorities == (-5, -5, None)
    assert ran.attributes == (1, 2, 0)  # the program's own attribute is still there
    assert sent(ran) == [64, 64, 64]
    assert ran.kernel(COMM).prioritised == 2


def test_a_priority_the_program_set_is_kept(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", COMM, "ex", 0, 64, "priority", rules=rules(raise_comm_priority=True))
    assert ran.priorities == (-1,)
    assert ran.kernel(COMM).reason == "the program set a priority itself"


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (("ex", 0, 64, "cooperative"), "cooperative"),
        (("cooperative", 0, 64), "cooperative"),
        (("ex", 0, 64, "cluster:16"), "clusters of more than 8 blocks"),
    ],
)
def test_launches_whose_blocks_must_fit_together_are_left_alone(
    setting: Setting, step: tuple[str | int, ...], why: str
) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", *step, rules=pads())
    assert sent(ran) == [64]
    assert ran.kernel("gemm").skipped == 1
    assert why in ran.kernel("gemm").reason


@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_a_cluster_that_still_fits_is_padded(setting: Setting, blocks: int) -> None:
    """CUTLASS gives every launch a cluster, of one block where it wants none."""
    ran = setting.run("via", "dlsym", "kernel", "gemm", "ex", 0, 64, f"cluster:{blocks}", rules=pads())
    assert sent(ran) == [60_064]
    assert ran.attributes == (2,)
    assert ran.carve_outs == (100,)


def test_a_kernel_built_for_clusters_is_padded_while_they_fit(setting: Setting) -> None:
    steps_of = ("via", "dlsym", "kernel", "gemm_in_4", "kernel", "gemm_in_16", "launch", 0, 64, "launch", 1, 64)
    ran = setting.run(*steps_of, rules=pads())
    assert sent(ran) == [60_064, 64]


def test_a_cluster_that_no_longer_fits_is_left_alone(setting: Setting) -> None:
    steps_of = ("via", "dlsym", "kernel", "tight", "ex", 0, 64, "cluster:4", "ex", 0, 64, "cluster:8", "launch", 0, 64)
    ran = setting.run(*steps_of, rules=pads("*", 100_000))
    assert sent(ran) == [100_064, 64, 100_064]  # two SMs of two blocks each hold four, not eight
    assert "no whole cluster" in ran.kernel("tight").reason


def test_communication_launched_cooperatively_is_raised_too(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", COMM, "cooperative", 0, 64, rules=rules(raise_comm_priority=True))
    assert ran.launches == (("cuLaunchKernelEx", COMM, 64),)
    assert ran.priorities == (-5,)
    assert ran.attributes == (2,)  # cooperative still


# --- modes of shared memory and carve-outs --------------------------------------------------------

MODE, CARVE_OUT = 17, 9  # function attributes of cuda.h


def test_a_mode_of_shared_memory_replaces_the_limit(setting: Setting) -> None:
    """As Triton does: the mode first, and no limit at all."""
    program = ("via", "dlsym", "kernel", "gemm", "set", 0, MODE, 3, "launch", 0, 100_000, "launch", 0, 200_000)
    ran = setting.run(*program, rules=pads())
    assert ran.results == (0, 0, 0)
    assert sent(ran) == [160_000, 200_000]
    assert "above the limit of 231424" in ran.kernel("gemm").reason


def test_a_mode_of_portable_sizes_bounds_the_pad(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", "set", 0, MODE, 1, "launch", 0, 0, rules=pads())
    assert sent(ran) == [0]
    assert "that the program's mode sets" in ran.kernel("gemm").reason


def test_a_mode_of_one_launch_counts_for_that_launch(setting: Setting) -> None:
    program = ("via", "dlsym", "kernel", "gemm", "ex", 0, 100_000, "mode:2", "launch", 0, 100_000)
    ran = setting.run(*program, rules=pads())
    assert ran.results == (0, 1)  # the second asks for more than the program allowed, and hears so
    assert sent(ran) == [160_000]


@pytest.mark.parametrize("step", [("ex", 0, 64, "carve:50"), ("set", 0, CARVE_OUT, 50, "launch", 0, 64)])
def test_a_carve_out_of_the_programs_own_is_kept(setting: Setting, step: tuple[str | int, ...]) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", *step, rules=pads())
    assert sent(ran) == [60_064]
    assert ran.carve_outs == (50 if step[0] == "ex" else None,)


def test_a_refused_carve_out_costs_the_carve_out_not_the_pad(setting: Setting) -> None:
    ran = setting.run(
        *("via", "dlsym", "kernel", "gemm", *steps(0, (0, 0))), rules=pads(), DRIVER_REFUSE="carve", DRIVER_ERROR="1"
    )
    assert sent(ran) == [60_000, 60_000]
    assert ran.carve_outs == (None, None)
    assert (ran.kernel("gemm").padded, ran.kernel("gemm").refused) == (2, 0)
    assert "refused a carve-out" in ran.notes[0]


# --- occupancy -----------------------------------------------------------------------------------


def test_questions_about_occupancy_are_answered_with_the_pad(setting: Setting) -> None:
    program = ("via", "dlsym", "kernel", "gemm", "kernel", "copy")
    questions = [
        word for at in (0, 1) for word in ("occupancy", at, 64, "potential", at, 64, "clusters", at, 64, "cluster:2")
    ]
    ran = setting.run(*program, *questions, rules=pads())
    plain = setting.run(*program, *questions, rules=pads(), MAKEWAY_OCCUPANCY="driver")
    assert ran.results == (3, 3 * 132, 3 * 16 // 2 * 8, 8, 8 * 132, 8 * 16 // 2 * 8)
    assert plain.results == (8, 8 * 132, 8 * 16 // 2 * 8) * 2


def test_what_is_left_for_the_program_is_less_by_the_pad(setting: Setting) -> None:
    program = ("via", "dlsym", "kernel", "gemm", "limit", 0, 100_000, "available", 0, 3)
    padded, plain = (setting.run(*program, rules=given).results[1] for given in (pads(pad_bytes=10_000), None))
    assert padded == plain - 10_000


@pytest.mark.parametrize(("blocks", "bytes_sent"), [(8 * 132, 0), (8 * 132 - 1, 60_000), (3 * 132, 60_000)])
def test_a_grid_that_was_sized_without_the_pad_is_left_alone(setting: Setting, blocks: int, bytes_sent: int) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", "grid", 0, 0, blocks, rules=pads())
    assert sent(ran) == [bytes_sent]
    assert ("fits on the device at once" in ran.kernel("gemm").reason) == (bytes_sent == 0)


def test_a_pad_that_takes_no_block_off_an_sm_leaves_such_grids_padded(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", "grid", 0, 0, 8 * 132, rules=pads(pad_bytes=128))
    assert sent(ran) == [128]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [1, 2, 701, 801])
def test_a_refused_pad_is_repeated_as_asked_and_dropped_for_that_kernel(setting: Setting, error: int) -> None:
    ran = setting.run(
        *("via", "dlsym", "kernel", "gemm_a", "kernel", "gemm_b", *steps(0, (0, 0, 0)), *steps(1, (0,))),
        rules=pads(),
        DRIVER_REFUSE="pad:2",
        DRIVER_ERROR=str(error),
    )
    assert ran.results == (0, 0, 0, 0)
    assert sent(ran) == [60_000, 0, 0, 60_000]
    kernel = ran.kernel("gemm_a")
    assert (kernel.seen, kernel.padded, kernel.refused, kernel.skipped) == (3, 1, 1, 1)
    assert f"error {error}" in kernel.reason
    assert ran.kernel("gemm_b").padded == 1


def test_an_error_that_is_not_about_the_pad_reaches_the_program(setting: Setting) -> None:
    ran = setting.run(
        *("via", "dlsym", "kernel", "gemm", "launch", 0, 0), rules=pads(), DRIVER_REFUSE="pad:1", DRIVER_ERROR="700"
    )
    assert ran.results == (700,)
    assert ran.launches == ()
    assert ran.kernel("gemm").refused == 0


def test_a_launch_that_fails_by_itself_costs_no_rule(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", "bad-grid", 0, 0, "launch", 0, 0, rules=pads())
    assert ran.results == (1, 0)
    assert (ran.kernel("gemm").refused, ran.kernel("gemm").padded) == (0, 1)


def test_a_refused_priority_is_repeated_as_asked(setting: Setting) -> None:
    ran = setting.run(
        *("via", "dlsym", "kernel", COMM, "launch", 0, 0, "launch", 0, 0),
        rules=rules(raise_comm_priority=True),
        DRIVER_REFUSE="priority",
        DRIVER_ERROR="801",
    )
    assert ran.results == (0, 0)
    assert ran.priorities == (None, None)
    assert (ran.kernel(COMM).refused, ran.kernel(COMM).skipped) == (1, 1)


def test_a_limit_that_cannot_be_raised_leaves_the_launch_as_asked(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", *steps(0, (7, 7)), rules=pads(), DRIVER_REFUSE="limit")
    assert sent(ran) == [7, 7]
    assert "raise its limit" in ran.kernel("gemm").reason


def test_a_pad_above_what_the_device_allows_is_skipped_and_said(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", *steps(0, (0, 100)), rules=pads(pad_bytes=231_400))
    assert sent(ran) == [231_400, 100]
    assert ran.kernel("gemm").reason == "100 + 231400 bytes of dynamic shared memory are above the limit of 231424"


def test_a_program_that_sets_its_own_limit_again_is_still_padded(setting: Setting) -> None:
    again = [word for _ in range(3) for word in ("limit", 0, 50_000, "launch", 0, 50_000)]
    ran = setting.run("via", "dlsym", "kernel", "gemm", *again, rules=pads())
    assert sent(ran) == [110_000] * 3
    assert ran.kernel("gemm").padded == 3


def test_a_launch_beyond_the_programs_own_limit_fails_as_it_would_without_the_shim(setting: Setting) -> None:
    program = ("via", "dlsym", "kernel", "gemm", "launch", 0, 100, "launch", 0, 50_000, "launch", 0, 100)
    ran = setting.run(*program, rules=pads())
    assert ran.results == (0, 1, 0) == dataclasses.replace(setting, shim=None).run(*program, rules=None).results
    assert sent(ran) == [60_100, 60_100]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"", "empty"),
        (lambda data: data[:-5], "cut short"),
        (lambda data: data[:-1] + b"~", "checksum"),
        (lambda data: data[:8] + b"\x63" + data[9:], "newer version"),
        (lambda data: b"PK" + data, "first bytes"),
    ],
    ids=["empty", "truncated", "corrupt", "newer", "other"],
)
def test_a_rules_file_that_cannot_be_used_changes_nothing_and_is_said_once(
    setting: Setting, damage: object, said: str
) -> None:
    assert callable(damage)
    ran = setting.run("via", "proc", "kernel", "gemm", *steps(0, (5, 5)), rules=damage(encode_rules(pads())))
    assert ran.results == (0, 0)
    assert sent(ran) == [5, 5]
    assert ran.stderr.count("makeway:") == 1
    assert said in ran.stderr
    assert len(ran.notes) == 1
    assert said in ran.notes[0]


def test_without_a_rules_file_nothing_at_all_happens(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", "launch", 0, 5, rules=None)
    assert sent(ran) == [5]
    assert ran.receipts == ()
    assert ran.stderr == ""


@pytest.mark.parametrize("way", ["proc-future", "old-proc-future"])
def test_a_launch_function_of_an_unknown_cuda_version_is_left_alone(setting: Setting, way: str) -> None:
    ran = setting.run("via", way, "kernel", "gemm", "launch", 0, 5, rules=pads())
    assert ran.launches == (("cuLaunchKernel_of_the_future", "gemm", 5),)
    assert "cuLaunchKernel of CUDA 99000 is not known" in ran.notes[0]


def test_a_driver_that_gives_no_names_is_left_alone_and_said(setting: Setting, tmp_path: Path) -> None:
    old = dataclasses.replace(setting, driver=driver(tmp_path / "old", "-DNO_NAMES"))
    ran = old.run("via", "dlsym", "kernel", "gemm", "launch", 0, 5, rules=pads("*"))
    assert sent(ran) == [5]
    assert "CUDA 12.3" in ran.notes[0]


def test_a_driver_without_the_extended_launch_gives_no_priority_and_says_so(setting: Setting, tmp_path: Path) -> None:
    old = dataclasses.replace(setting, driver=driver(tmp_path / "old", "-DNO_EX"))
    ran = old.run("via", "dlsym", "kernel", COMM, "launch", 0, 5, rules=rules(raise_comm_priority=True))
    assert ran.results == (0,)
    assert "no cuLaunchKernelEx" in ran.kernel(COMM).reason


def test_receipts_that_cannot_be_written_do_not_stop_the_program(setting: Setting, tmp_path: Path) -> None:
    ran = setting.run(
        "via", "dlsym", "kernel", "gemm", "launch", 0, 5, rules=pads(), MAKEWAY_RECEIPTS=str(tmp_path / "nowhere")
    )
    assert sent(ran) == [60_005]
    assert ran.stderr.count("makeway: no receipts in") == 1


# --- handles, contexts, processes ----------------------------------------------------------------


def test_a_kernel_handle_is_padded_in_every_context(setting: Setting) -> None:
    program = (
        "via",
        "dlsym",
        "handle",
        "gemm",
        "launch",
        0,
        0,
        "context",
        2,
        "launch",
        0,
        0,
        "context",
        1,
        "launch",
        0,
        0,
    )
    ran = setting.run(*program, rules=pads())
    assert sent(ran) == [60_000] * 3
    assert ran.kernel("gemm").padded == 3


def test_a_handle_that_means_another_kernel_after_an_unload_is_decided_anew(setting: Setting) -> None:
    before = ("via", "dlsym", "kernel", "gemm", "launch", 0, 0, "unload")
    ran = setting.run(
        *before, "kernel", COMM, "launch", 0, 0, "unload", "kernel", "gemm", "launch", 0, 0, rules=pads("*")
    )
    assert sent(ran) == [60_000, 0, 60_000]
    assert (ran.kernel("gemm").padded, ran.kernel(COMM).padded) == (2, 0)


def test_a_library_closed_and_opened_again_is_still_served(setting: Setting) -> None:
    once = ("via", "dlsym", "kernel", "gemm", "launch", 0, 0)
    ran = setting.run(*once, "reopen", *once, "reopen", "via", "proc", "kernel", "gemm", "launch", 0, 0, rules=pads())
    assert sent(ran) == [60_000] * 3


def test_a_forked_child_leaves_receipts_of_its_own(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", "launch", 0, 0, "fork", *steps(0, (0, 0)), rules=pads())
    assert sorted(process.kernels[0].padded for process in ran.receipts) == [2, 3]
    assert len({process.pid for process in ran.receipts}) == 2


def test_what_was_counted_survives_a_crash(setting: Setting) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", *steps(0, (0, 0)), "crash", rules=pads(), check=False, RANK="3")
    assert ran.code == -9
    assert ran.kernel("gemm").padded == 2
    assert ran.receipts[0].rank == 3


def test_a_half_written_receipt_is_read_as_far_as_it_goes(setting: Setting, tmp_path: Path) -> None:
    ran = setting.run("via", "dlsym", "kernel", "gemm", "launch", 0, 0, rules=pads())
    whole = next(setting.home.rglob("launch-*")).read_bytes()
    half = tmp_path / "half"
    half.mkdir()
    for size in (0, 8, 63, 64, 100, 128, 192, 200_000):
        (half / "launch-1-a").write_bytes(whole[:size])
        found = read_receipts(half)
        assert not found or found[0].kernels in ((), ran.receipts[0].kernels)


@pytest.mark.parametrize("way", ["threads", "churn"])
def test_sixteen_threads_are_counted_to_the_last_launch(setting: Setting, way: str) -> None:
    ran = setting.run(
        *("via", "dlsym", "kernel", "gemm", "kernel", "copy", way, 16, 200_000), rules=pads(), recorded=False
    )
    assert (ran.kernel("gemm").padded, ran.kernel("copy").seen) == (1_600_000, 1_600_000)


def test_kernels_beyond_the_table_of_receipts_are_counted_together(setting: Setting) -> None:
    made = [word for index in range(8) for _ in range(300) for word in ("kernel", f"k{index}_{_}")]
    launches = [word for at in range(300) for word in ("launch", at, 0)]
    program: list[str | int] = ["via", "dlsym"]
    for index in range(8):
        program += [*made[index * 600 : (index + 1) * 600], *launches, "unload"]
    ran = setting.run(*program, rules=pads(), recorded=False)
    (process,) = ran.receipts
    assert sum(kernel.seen for kernel in process.kernels) == 2400
    assert process.kernels[-1].kernel == "(kernels beyond the table)"
    assert process.kernels[-1].seen == 2400 - 2046


# --- dlsym ---------------------------------------------------------------------------------------


def test_dlsym_still_depends_on_who_asks(setting: Setting, tmp_path: Path) -> None:
    """RTLD_NEXT and RTLD_DEFAULT from another library, for names that are ours and names that are not."""
    first, second = tmp_path / "libfirst.so", tmp_path / "libsecond.so"
    compile_program(second, "-fPIC", "-shared", "-DSECOND", str(HERE / "next.c"))
    compile_program(first, "-fPIC", "-shared", "-DFIRST", str(HERE / "next.c"))
    linking = (f"-L{tmp_path}", "-Wl,--no-as-needed", "-lfirst", "-lsecond", f"-Wl,-rpath,{tmp_path}")
    program = compile_program(tmp_path / "next", str(HERE / "next.c"), *linking)
    expected = (2, 1, 0, 0)  # next after the first library, first of all, nothing before libcuda is there, nothing
    for shim in (setting.shim, None):
        for given in (None, pads()):
            asked = dataclasses.replace(setting, client=program, shim=shim).run(rules=given)
            assert asked.results == expected, asked.stderr


def test_a_driver_that_looks_itself_up_gets_itself(setting: Setting, tmp_path: Path) -> None:
    """As the driver of WSL 2 does: a front that forwards to another library of the same names."""
    front = tmp_path / "front"
    front.mkdir()
    (front / "libcuda_real.so").write_bytes((setting.driver / "libcuda.so.1").read_bytes())
    shared = ("-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic-functions")
    compile_program(front / "libcuda.so.1", *shared, str(HERE / "front.c"))
    ran = dataclasses.replace(setting, driver=front).run(
        "via", "dlsym", "kernel", "gemm", "launch", 0, 0, rules=pads("*")
    )
    assert ran.results == (0,)
    assert sent(ran) == [0]  # the front gives no names; what it calls behind is its own business
    assert len(ran.receipts[0].kernels) == 1


# --- the vendors' headers ------------------------------------------------------------------------


def test_our_declarations_are_those_of_the_vendors_headers(tmp_path: Path) -> None:
    import nvidia.cu13
    import triton

    cuda = Path(next(iter(nvidia.cu13.__path__))) / "include"
    amd = Path(triton.__file__).parent / "backends" / "amd" / "include"
    for source, where in (("abi_cuda.c", cuda), ("abi_hip.c", amd)):
        compile_program(tmp_path / source, "-c", f"-isystem{where}", str(HERE / source))
    assert SOURCES.joinpath("abi.h").is_file()


def test_the_largest_grid_of_a_communication_kernel_is_recorded(setting: Setting) -> None:
    steps = ("kernel", COMM, "grid", 0, 64, 8, "grid", 0, 64, 24, "grid", 0, 64, 1, "kernel", "gemm", "grid", 1, 64, 99)
    ran = setting.run("via", "dlsym", *steps, rules=rules(raise_comm_priority=True))
    assert (ran.kernel(COMM).most_blocks, ran.kernel(COMM).given_bytes) == (24, 0)
    assert ran.kernel("gemm").most_blocks == 0
