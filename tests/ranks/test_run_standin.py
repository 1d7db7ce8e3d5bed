"""`makeway run` around an unmodified CUDA program on the stand-in driver: the receipts hold what the driver saw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.standin.build import cuda_driver, environment, shared_place
from tests.standin.records import Launch, read_record

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(__file__).parent / "programs" / "cuda_launches.py")
CUBIN = str(ROOT / "examples" / "matmul.sm_90.cubin")
ASKED_BYTES, PAD_BYTES, LAUNCHES = 49_152, 16_384, 6


@pytest.fixture(scope="module")
def driver() -> Path:
    return cuda_driver(shared_place())


def pad(kernel: str, pad_bytes: int = PAD_BYTES) -> str:
    return f'version = 2\n[[control]]\nkind = "pad"\npad_bytes = {pad_bytes}\nkernel = "{kernel}"\n'


def ran(driver: Path, tmp_path: Path, plan: str, *options: str, refuse: str | None = None) -> tuple[Any, ...]:
    """Exit code, what is said of the plan's one control, and the shared memory of each launch that the driver saw."""
    (tmp_path / "plan.toml").write_text(plan)
    record = tmp_path / "record"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "makeway", "run", "--plan", str(tmp_path / "plan.toml"), "--json", *options, "--"),
            *(sys.executable, PROGRAM, CUBIN, "matmul", str(ASKED_BYTES), str(LAUNCHES)),
        ],
        env=environment(driver, device="H100-SXM5-80GB", record=record, refuse=refuse),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert f"{LAUNCHES} launches done" in done.stderr, done.stderr
    [control] = json.loads(done.stdout)["controls"]
    launches = [one.smem_bytes for one in read_record(record) if isinstance(one, Launch) and one.error == 0]
    return done.returncode, control, launches


def test_a_pad_that_fits_is_applied_and_counted(driver: Path, tmp_path: Path) -> None:
    code, control, launches = ran(driver, tmp_path, pad("mat*"), "--strict")
    assert (code, control["status"]) == (0, "applied")
    assert control["receipts"][0]["evidence"] == {
        "launches seen": LAUNCHES,
        "launches changed": LAUNCHES,
        "launches refused": 0,
        "launches skipped": 0,
    }
    assert control["receipts"][0]["carrier"] == "launch shim"
    assert launches == [ASKED_BYTES + PAD_BYTES] * LAUNCHES


def test_a_pad_that_the_driver_refuses_is_refused_and_the_program_gets_its_own_launches(
    driver: Path, tmp_path: Path
) -> None:
    code, control, launches = ran(driver, tmp_path, pad("*"), refuse=f"smem-above:{ASKED_BYTES}")
    assert (code, control["status"]) == (0, "refused")
    assert control["receipts"][0]["evidence"]["launches changed"] == 0
    assert launches == [ASKED_BYTES] * LAUNCHES
    assert ran(driver, tmp_path, pad("*"), "--strict", refuse=f"smem-above:{ASKED_BYTES}")[0] == 1


def test_a_pad_beyond_the_device_has_no_effect_and_says_why(driver: Path, tmp_path: Path) -> None:
    code, control, launches = ran(driver, tmp_path, pad("*", 1 << 20))
    assert (code, control["status"]) == (0, "no effect")
    assert control["receipts"][0]["detail"].startswith(f"0 of {LAUNCHES} launches padded, {LAUNCHES} left alone: ")
    assert launches == [ASKED_BYTES] * LAUNCHES


def test_a_pad_for_kernels_that_never_come_is_not_seen(driver: Path, tmp_path: Path) -> None:
    code, control, launches = ran(driver, tmp_path, pad("attention*"))
    assert (code, control["status"]) == (0, "not seen")
    assert control["receipts"][0]["detail"] == "no kernel named attention* was launched"
    assert launches == [ASKED_BYTES] * LAUNCHES
