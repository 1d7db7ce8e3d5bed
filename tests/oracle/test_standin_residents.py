"""Kernels that stay on the stand-in's simulated SMs: room, waves, hangs, and what the launch shim makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.standin.kernels import COMM
from tests.standin.records import Hang, Launch, Ran, read_record
from tests.standin.running import PROGRAMS, kernels, run

from makeway.act.preload.build import library
from makeway.act.preload.rules import LaunchRule, Rules, encode_rules, rules_of
from makeway.model.residency import blocks_beside, pad_range, resident_blocks
from makeway.values.device import load_device
from makeway.values.kernel import KernelResources
from makeway.values.plan import Plan

DEVICE = "A40"
GEMM_NS, COMM_NS = 100_000, 10_000
RUN = f"gemm={GEMM_NS};nccl*={COMM_NS}"
SPIN = f"gemm={GEMM_NS},waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a program did on the simulated SMs."""

    grids: list[int]
    sms: int
    synchronize: str
    launches: list[Launch]
    ran: dict[str, Ran]
    hangs: list[Hang]


Start = Callable[..., Outcome]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def started(*steps: dict[str, Any], how: str = RUN, device: str = DEVICE, **variables: str) -> Outcome:
        record = tmp_path / f"record-{len(list(tmp_path.iterdir()))}"
        script = PROGRAMS / "resident_program.py"
        done = run(device, script, kernels(), json.dumps(steps), record=record, MAKEWAY_STANDIN_RUN=how, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        records = read_record(record)
        return Outcome(
            **json.loads(done.stdout),
            launches=[each for each in records if isinstance(each, Launch)],
            ran={each.kernel: each for each in records if isinstance(each, Ran)},
            hangs=[each for each in records if isinstance(each, Hang)],
        )

    return started


def block(launch: Launch, registers: int) -> KernelResources:
    smem = launch.smem_bytes + launch.static_bytes
    return KernelResources(threads=launch.block[0], registers_per_thread=registers, smem_bytes=smem)


@pytest.mark.parametrize("device", [DEVICE, "A100-SXM4-80GB", "H100-SXM5-80GB"])
@pytest.mark.parametrize("extra", [0, 20_000])
def test_an_sm_holds_as_many_blocks_of_one_kernel_as_nvidia_s_calculator_says(
    start: Start, device: str, extra: int
) -> None:
    outcome = start({"kernel": "gemm", "grid": 5000, "extra_bytes": extra}, device=device)
    (launch,), ran = outcome.launches, outcome.ran["gemm"]
    assert ran.peak_per_sm == launch.resident_blocks > 0
    waves = -(-5000 // (launch.resident_blocks * outcome.sms))
    assert (ran.waves, ran.end_ns - ran.start_ns) == (waves, waves * GEMM_NS)


def test_blocks_that_wait_for_each_other_need_room_for_all(start: Start) -> None:
    fits = start({"kernel": "gemm", "grid": None}, how=SPIN)
    assert (fits.synchronize, fits.hangs, fits.ran["gemm"].waves) == ("CUDA_SUCCESS", [], 1)
    one_more = start({"kernel": "gemm", "grid": fits.grids[0] + 1}, how=SPIN)
    (hang,) = one_more.hangs
    assert (hang.grid, hang.resident) == (fits.grids[0] + 1, fits.grids[0])
    assert one_more.synchronize == "CUDA_ERROR_LAUNCH_TIMEOUT"
    assert start({"kernel": "gemm", "grid": fits.grids[0] + 1}).ran["gemm"].waves == 2  # without waiting: two waves


def test_two_kernels_that_each_hold_what_the_other_waits_for_hang_both(start: Start) -> None:
    alone = start({"kernel": "gemm", "grid": None}).grids[0]
    steps = ({"kernel": "gemm", "grid": alone * 2 // 3, "stream": stream} for stream in (0, 1))
    together = start(*steps, how=SPIN)
    assert not together.hangs  # the first is whole, and ends
    behind = start(
        *({"kernel": "gemm", "grid": alone + 1, "stream": 0}, {"kernel": COMM, "grid": 8, "stream": 1}), how=SPIN
    )
    assert {hang.kernel for hang in behind.hangs} == {"gemm", COMM}  # head of line: what is behind never starts


# --- the launch shim ------------------------------------------------------------------------------


def under_shim(place: Path, pad_bytes: int, *, occupancy: str = "") -> dict[str, str]:
    rules = Rules(
        launches=(LaunchRule(pattern="gemm*", pad_bytes=pad_bytes),),
        comm_patterns=rules_of(Plan(controls=())).comm_patterns,
        raise_comm_priority=False,
    )
    (place / "rules").write_bytes(encode_rules(rules))
    given = {"LD_PRELOAD": str(library()), "MAKEWAY_RULES": str(place / "rules")}
    return given | ({"MAKEWAY_OCCUPANCY": occupancy} if occupancy else {})


def one_block_less(launch: Launch) -> int:
    """The smallest pad that takes a block off an SM."""
    device = load_device(DEVICE)
    for registers in range(16, 256, 8):
        if resident_blocks(device, block(launch, registers)) == launch.resident_blocks:
            pads = pad_range(device, block(launch, registers), launch.resident_blocks - 1)
            if pads is not None:
                return pads.smallest_bytes
    raise AssertionError("no pad takes a block off")


def test_a_persistent_grid_hangs_if_padded_blindly_and_runs_under_the_shim(start: Start, tmp_path: Path) -> None:
    plain = start({"kernel": "gemm", "grid": None}, how=SPIN)
    (launch,) = plain.launches
    pad = one_block_less(launch)

    blindly = start({"kernel": "gemm", "grid": plain.grids[0], "extra_bytes": pad}, how=SPIN)
    assert [hang.kernel for hang in blindly.hangs] == ["gemm"]

    # Sized by the driver's answer, the grid fills the device exactly: the shim leaves that launch alone.
    skipped = start({"kernel": "gemm", "grid": None}, how=SPIN, **under_shim(tmp_path, pad, occupancy="driver"))
    assert (skipped.synchronize, skipped.grids, skipped.ran["gemm"].waves) == ("CUDA_SUCCESS", plain.grids, 1)
    assert skipped.launches[0].smem_bytes == launch.smem_bytes

    # Sized by the shim's answer it is smaller, padded, and runs in one wave.
    answered = start({"kernel": "gemm", "grid": None}, how=SPIN, **under_shim(tmp_path, pad))
    (padded,) = answered.launches
    assert (answered.synchronize, answered.ran["gemm"].waves) == ("CUDA_SUCCESS", 1)
    assert padded.smem_bytes == launch.smem_bytes + pad
    assert answered.grids[0] == (launch.resident_blocks - 1) * answered.sms


# --- beside each other ----------------------------------------------------------------------------


def test_communication_behind_a_full_kernel_starts_at_its_last_placement_or_by_priority_beside_it(start: Start) -> None:
    waves = 3
    alone = start({"kernel": "gemm", "grid": None})
    grid = alone.grids[0] * waves
    behind = start({"kernel": "gemm", "grid": grid}, {"kernel": COMM, "grid": 8, "stream": 1})
    first = start({"kernel": "gemm", "grid": grid}, {"kernel": COMM, "grid": 8, "stream": 2})
    assert behind.ran[COMM].start_ns == behind.ran["gemm"].last_start_ns == (waves - 1) * GEMM_NS
    assert first.ran[COMM].start_ns < GEMM_NS  # it fits beside: only the line was in its way


def test_room_beside_exists_only_at_the_carve_out_that_provides_it(start: Start) -> None:
    """Registers admit 5 blocks, which need 87 KB: by default an SM is set to 100 KB, and 64 KB more stay cache."""
    device = "A100-SXM4-80GB"
    gemm, comm = {"kernel": "gemm", "grid": None}, {"kernel": COMM, "grid": 108, "stream": 1, "extra_bytes": 40_000}
    default, largest = (start(step, comm, device=device) for step in (gemm, {**gemm, "carve_out": 100}))
    held, beside = (block(launch, registers) for launch, registers in zip(default.launches, (96, 16), strict=True))
    assert default.launches[0].resident_blocks == 5
    assert blocks_beside(load_device(device), held, 5, beside) >= 1  # the model assumes the largest carve-out
    assert largest.ran[COMM].start_ns < largest.ran["gemm"].end_ns
    assert largest.ran[COMM].carve_out_waits == 0
    assert default.ran[COMM].start_ns == default.ran["gemm"].end_ns
    assert default.ran[COMM].carve_out_waits == 1


def test_a_smaller_block_passes_the_head_of_the_line_only_where_blocks_are_back_filled(start: Start) -> None:
    full = start({"kernel": "gemm", "grid": None, "extra_bytes": 40_000})
    steps = (
        {"kernel": "gemm", "grid": full.grids[0] * 2, "extra_bytes": 40_000},
        {"kernel": COMM, "grid": 8, "stream": 1},
    )
    in_line, filled = start(*steps), start(*steps, how=RUN + ";back-fill")
    assert in_line.ran[COMM].start_ns >= in_line.ran["gemm"].first_end_ns
    assert filled.ran[COMM].start_ns < filled.ran["gemm"].first_end_ns
