"""A calibrated CPU host made up of round numbers."""

from __future__ import annotations

from makeway.act.measure.calibrate import Calibration
from makeway.values.device import HOST_CARRIERS, HOST_KINDS, Device, host_fact_key

ROUND = {"latency_ns": 1e5, "ns_per_byte": 1.0, "cpu_ns_per_byte": 0.5}


def calibration(**changes: float) -> Calibration:
    facts = {
        host_fact_key(carrier, kind, quantity): value * (0.25 if carrier == "direct" else 1.0)
        for carrier in HOST_CARRIERS
        for kind in HOST_KINDS
        for quantity, value in ROUND.items()
    }
    return Calibration(
        facts={"fp32_flops_per_s": 100e9, **facts, **changes}, cores=2, rounds=7, machine="a made-up host"
    )


def host(**changes: float) -> Device:
    return calibration(**changes).device
