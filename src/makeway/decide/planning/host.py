"""Predicted step times on a CPU host, where compute and communication share the cores.

A step of one rank is a GEMM on its share of the cores and a collective. The GEMM costs a time per operation and per
element of its result. The collective alone costs a latency and a time per wire byte: its own, or the link's where that
is slower. Moving bytes also costs processor time, which a concurrent GEMM loses. With one compute thread per core

    sequential   compute + comm
    overlapped   max(comm, compute + wire bytes x processor time per byte)

where comm is `latency + wire bytes x max(time per byte, ranks / link)`: all ranks of a host share one paced loopback.
All constants are measured on the host itself (`makeway doctor --calibrate`), per collective, for Gloo and for direct
copies through shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from makeway.values.collective import Collective, CollectiveKind
from makeway.values.control import Control, CopyEngine
from makeway.values.device import (
    HOST_CARRIERS,
    HOST_OUTPUT_KEY,
    HOST_SHARING_KEY,
    HOST_STEP_KINDS,
    Device,
    compression_fact_key,
    host_fact_key,
)
from makeway.values.errors import InputError, UnsupportedError

Carrier = Literal["gloo", "direct"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CarrierRates:
    """The costs of one collective through one carrier, alone and beside compute."""

    latency_ns: float
    ns_per_byte: float
    cpu_ns_per_byte: float  # of the rank's own cores

    def alone_ns(self, wire_bytes: float, ranks: float, link_bytes_per_s: float | None) -> float:
        slowest = max(self.ns_per_byte, 1e9 * ranks / link_bytes_per_s if link_bytes_per_s else 0.0)
        return self.latency_ns + wire_bytes * slowest


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStep:
    """What one rank does in one step."""

    flops: float
    outputs: float  # elements of the GEMM's result
    collective: Collective
    link_bytes_per_s: float | None = None  # of the loopback that all ranks share; None: not paced


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPrediction:
    """Predicted times of one step, each rank on its own share of the cores."""

    compute_ns: float
    comm_ns: float  # by Gloo, alone
    sequential_ns: float
    overlap_ns: float
    planned_ns: float
    planned: tuple[Control, ...]

    @property
    def ideal_ns(self) -> float:
        return max(self.compute_ns, self.comm_ns)


def carrier_rates(device: Device, carrier: Carrier, kind: CollectiveKind) -> CarrierRates:
    """The calibrated constants of one collective; an error if the host is not calibrated."""
    if carrier not in HOST_CARRIERS or kind not in HOST_STEP_KINDS:
        raise InputError(f"{kind} through {carrier} is not a cost of a host; known: {', '.join(HOST_STEP_KINDS)}")
    values = {}
    for quantity in ("latency_ns", "ns_per_byte", "cpu_ns_per_byte"):
        key = host_fact_key(carrier, kind, quantity)
        if key not in device.facts:
            raise UnsupportedError(
                f"{device.name} has no {key}: calibrate this host with `makeway doctor --calibrate --out host.toml` "
                "and pass --device host.toml"
            )
        values[quantity] = float(device.facts[key].value)  # type: ignore[arg-type]
    return CarrierRates(**values)


def compression_ns(device: Device, kind: str, elements: float) -> float | None:
    """Encoder and decoder of so many gradients on a host that measured them; None where it did not."""
    fact = device.facts.get(compression_fact_key(kind))
    return None if fact is None else elements * float(fact.value)  # type: ignore[arg-type]


def ranks_per_core(device: Device) -> float:
    """Ranks that take turns on a core of the host that a device is a share of; 1 where each has its own."""
    fact = device.facts.get(HOST_SHARING_KEY)
    return 1.0 if fact is None else max(1.0, float(fact.value))  # type: ignore[arg-type]


def _output_ns(device: Device) -> float:
    fact = device.facts.get(HOST_OUTPUT_KEY)
    return 0.0 if fact is None else float(fact.value)  # type: ignore[arg-type]


def predict_host_step(device: Device, step: HostStep) -> HostPrediction:
    """One step without controls, and under the control predicted to be fastest."""
    rate = device.fp32_flops_per_s
    if not rate:
        raise UnsupportedError(f"{device.name} has no fp32_flops_per_s fact; calibrate it")
    ranks = step.collective.ranks
    share = max(device.sms // ranks, 1) / device.sms if ranks <= device.sms else 1.0 / ranks
    compute_ns = step.flops / (rate * share) * 1e9 + step.outputs * _output_ns(device) / (share * device.sms)
    wire = step.collective.wire_bytes
    gloo = carrier_rates(device, "gloo", step.collective.kind)
    comm_ns = gloo.alone_ns(wire, ranks, step.link_bytes_per_s)
    overlap_ns = max(comm_ns, compute_ns + wire * gloo.cpu_ns_per_byte)
    planned_ns = overlap_ns
    planned: tuple[Control, ...] = ()
    if step.link_bytes_per_s is None:
        direct = carrier_rates(device, "direct", step.collective.kind)
        direct_ns = max(direct.alone_ns(wire, ranks, None), compute_ns + wire * direct.cpu_ns_per_byte)
        if direct_ns < planned_ns:
            planned_ns, planned = direct_ns, (CopyEngine(),)
    return HostPrediction(
        compute_ns=compute_ns,
        comm_ns=comm_ns,
        sequential_ns=compute_ns + comm_ns,
        overlap_ns=overlap_ns,
        planned_ns=planned_ns,
        planned=planned,
    )
