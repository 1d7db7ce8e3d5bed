"""An unmodified cuda-bindings program under the shim, on the stand-in driver, with kernels that Triton compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.preload.programs import rules
from tests.standin.build import cuda_driver, environment, program_kernels, shared_place
from tests.standin.kernels import COMM
from tests.standin.records import Launch, launches

from makeway.act.preload.receipts import KernelCounts, read_receipts
from makeway.act.preload.rules import LaunchRule, Rules, code_hash, encode_rules
from makeway.model.residency import pad_range
from makeway.values.device import load_device
from makeway.values.kernel import KernelResources

DEVICES = {"A40": "sm_86", "A100-SXM4-80GB": "sm_80", "H100-SXM5-80GB": "sm_90"}
PROGRAM = Path(__file__).parents[1] / "standin" / "programs" / "bindings_program.py"
LAUNCHES = 6


@pytest.fixture(scope="module")
def kernels() -> Path:
    return program_kernels(shared_place())


@pytest.fixture(scope="module")
def stand_in() -> Path:
    return cuda_driver(shared_place())


class Runs:
    """Starts the program with and without the shim."""

    def __init__(self, *, shim: Path, stand_in: Path, kernels: Path, home: Path) -> None:
        self.shim, self.stand_in, self.kernels, self.home = shim, stand_in, kernels, home

    def start(
        self, device: str, given: Rules | None, *more: str, refuse: str | None = None, exits: int = 0
    ) -> tuple[list[Launch], dict[str, KernelCounts]]:
        place = self.home / str(len(list(self.home.iterdir())))
        place.mkdir()
        record = place / "record"
        settings = environment(self.stand_in, device=device, record=record, refuse=refuse, base=dict(os.environ))
        if given is not None:
            (place / "rules").write_bytes(encode_rules(given))
            settings |= {"LD_PRELOAD": str(self.shim), "MAKEWAY_RULES": str(place / "rules")}
            settings |= {"MAKEWAY_RECEIPTS": str(place)}
        command = [sys.executable, str(PROGRAM), str(self.kernels), str(LAUNCHES), str(exits), *more]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == exits, done.stderr
        receipts = read_receipts(place)
        counts = {kernel.kernel: kernel for process in receipts for kernel in process.kernels}
        return list(launches(record)), counts


@pytest.fixture
def runs(shim: Path, stand_in: Path, kernels: Path, tmp_path: Path) -> Runs:
    (tmp_path / "runs").mkdir()
    return Runs(shim=shim, stand_in=stand_in, kernels=kernels, home=tmp_path / "runs")


def as_without(launch: Launch) -> Launch:
    """A launch without what the shim may change, and without what differs from run to run."""
    same = replace(launch, call="", smem_bytes=0, priority=0, attributes={}, resident_blocks=0, carve_out=-1)
    return replace(same, pid=0, thread=0)


@pytest.mark.parametrize("device", DEVICES)
def test_compute_is_padded_to_the_planned_residency_and_comm_is_raised(runs: Runs, device: str) -> None:
    plain, _ = runs.start(device, None)
    gemm = next(launch for launch in plain if launch.kernel == "gemm")
    blocks = gemm.resident_blocks - 1
    kernel = KernelResources(
        threads=gemm.block[0], registers_per_thread=32, smem_bytes=gemm.smem_bytes + gemm.static_bytes
    )
    pad = pad_range(load_device(device), kernel, blocks)
    assert pad is not None
    shaped, counts = runs.start(
        device, rules(LaunchRule(pattern="gemm", pad_bytes=pad.smallest_bytes), raise_comm_priority=True)
    )
    assert [as_without(launch) for launch in shaped] == [as_without(launch) for launch in plain]
    for launch in shaped:
        if launch.kernel == "gemm":
            assert launch.smem_bytes == gemm.smem_bytes + pad.smallest_bytes
            assert launch.resident_blocks == blocks
            assert launch.carve_out == 100
        else:
            assert launch.priority < 0
            assert launch.smem_bytes == 0
    assert (counts["gemm"].padded, counts[COMM].prioritised) == (LAUNCHES, LAUNCHES)


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_a_target_residency_is_what_the_driver_finds(runs: Runs, blocks: int) -> None:
    shaped, counts = runs.start("H100-SXM5-80GB", rules(LaunchRule(pattern="gemm", blocks_per_sm=blocks)))
    assert {launch.resident_blocks for launch in shaped if launch.kernel == "gemm"} == {blocks}
    assert counts["gemm"].padded == LAUNCHES


def test_launches_captured_into_a_graph_are_padded_too(runs: Runs) -> None:
    shaped, counts = runs.start("H100-SXM5-80GB", rules(LaunchRule(pattern="gemm", pad_bytes=4096)), "graph")
    plain, _ = runs.start("H100-SXM5-80GB", None, "graph")
    pads = [now.smem_bytes - then.smem_bytes for now, then in zip(shaped, plain, strict=True) if now.kernel == "gemm"]
    assert set(pads) == {4096}
    assert counts["gemm"].padded >= 1


def test_a_rule_can_name_the_code_instead_of_the_kernel(runs: Runs, kernels: Path) -> None:
    named = code_hash((kernels / "gemm.sm_90.cubin").read_bytes())
    _, counts = runs.start("H100-SXM5-80GB", rules(LaunchRule(pattern=f"code:{named}", pad_bytes=1024)))
    assert counts["gemm"].padded == LAUNCHES
    other = code_hash((kernels / "gemm.sm_80.cubin").read_bytes())
    _, counts = runs.start("H100-SXM5-80GB", rules(LaunchRule(pattern=f"code:{other}", pad_bytes=1024)))
    assert counts["gemm"].padded == 0


@pytest.mark.parametrize(
    ("refuse", "padded", "refused"),
    [
        ("smem-above:30000", 0, 1),
        ("smem-above:30000,every:4", 3, 1),
        ("func-attribute", 0, 1),
    ],
)
@pytest.mark.parametrize("exits", [0, 3])
def test_a_driver_that_refuses_sees_the_programs_own_launches(
    runs: Runs, refuse: str, padded: int, refused: int, exits: int
) -> None:
    given = rules(LaunchRule(pattern="gemm", pad_bytes=40_000))
    shaped, counts = runs.start("H100-SXM5-80GB", given, refuse=refuse, exits=exits)
    through = [launch for launch in shaped if launch.error == 0]
    assert len(through) == 2 * LAUNCHES
    kernel = counts["gemm"]
    assert (kernel.seen, kernel.padded, kernel.refused) == (LAUNCHES, padded, refused)
    assert kernel.skipped == LAUNCHES - padded - refused
    assert "refused" in kernel.reason


def test_a_pad_beyond_the_opt_in_limit_changes_nothing(runs: Runs) -> None:
    shaped, counts = runs.start("A40", rules(LaunchRule(pattern="gemm", pad_bytes=200_000)))
    plain, _ = runs.start("A40", None)
    assert [launch.smem_bytes for launch in shaped] == [launch.smem_bytes for launch in plain]
    assert counts["gemm"].skipped == LAUNCHES
    assert "above the limit" in counts["gemm"].reason
