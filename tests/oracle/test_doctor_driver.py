"""The self-test's questions to the driver, asked on the stand-in: limits, a sweep of occupancy, a launch's cost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.standin.build import cuda_driver, environment, shared_place

from makeway.act.doctor import self_test
from makeway.act.doctor.children import Output, run_children
from makeway.act.doctor.self_test import HARDWARE_CHECKS, judged
from makeway.act.preload.receipts import read_receipts
from makeway.values.control import SmemPad
from makeway.values.device import load_device
from makeway.values.plan import Plan

PROBE = "makeway.act.doctor.driver_probe"
OCCUPANCY, COST = (
    next(check for check in HARDWARE_CHECKS if check.name == name) for name in ("occupancy", "launch cost")
)


def asked(device: str, check: str, base: dict[str, str]) -> Output:
    environ = environment(cuda_driver(shared_place()), device=device, record=None, base=base)
    (output,) = run_children(PROBE, ((check,),), timeout_s=110, environ=environ | {"PYTHONWARNINGS": "ignore"})
    assert output.trouble is None, output
    return output


@pytest.mark.parametrize("name", ["A40", "A100-SXM4-80GB", "H100-SXM5-80GB"])
def test_the_model_s_residency_equals_nvidia_s_calculator_for_the_whole_sweep(name: str) -> None:
    output = asked(name, "occupancy", dict(os.environ))
    verdict = judged(OCCUPANCY, output)
    assert verdict.status == "proved", verdict
    line = output.outcome("occupancy")
    assert line is not None
    assert line.driver is not None
    rows, device = line.driver.occupancy, load_device(name)
    assert len(rows) > 50
    assert len({row.blocks for row in rows}) > 5
    assert max(row.block.registers_per_thread for row in rows) >= 128  # some are bound by registers
    assert line.driver.limits.sms == device.sms
    assert line.driver.smem_reserved_bytes == device.sm.smem_reserved_bytes


def test_the_cost_of_a_launch_is_measured_bare_and_under_the_shim() -> None:
    with self_test._shim_environment(Plan(controls=(SmemPad(1024, self_test.KERNEL),))) as environ:
        shim = asked("A40", "launch cost", environ)
        (counts,) = [
            kernel for process in read_receipts(Path(environ["MAKEWAY_RECEIPTS"])) for kernel in process.kernels
        ]
        assert counts.seen == counts.padded > 8000
    outputs = {"launch cost": asked("A40", "launch cost", dict(os.environ)), self_test._COST_UNDER_SHIM: shim}
    verdict = self_test._cost_verdict(COST, outputs)
    assert "through the shim" in verdict.measured  # how much is a matter of benchmarks/, not of tests


def test_a_machine_without_the_driver_is_told_so() -> None:
    (output,) = run_children(PROBE, (("occupancy",),), timeout_s=60, environ=dict(os.environ))
    verdict = judged(OCCUPANCY, output)
    assert (verdict.status, "libcuda.so.1 cannot be loaded" in verdict.detail) == ("not tested", True), verdict
