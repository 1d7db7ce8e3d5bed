"""What this host can do, measured: the facts of a CPU device that plans are predicted with.

One GEMM beside one collective at two sizes, for each collective, with the parts alone: the larger size gives the time
per byte, the smaller one the latency, and the run in which the GEMM is the longer part gives the processor time that
moving a byte takes from it. Medians of interleaved rounds, as every bench.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from makeway.act.measure.bench import cores, run_bench
from makeway.act.measure.job import Job, check_ranks
from makeway.act.measure.outcome import Bench
from makeway.act.measure.sizes import ELEMENT_BYTES, depth_at
from makeway.act.measure.variants import COMM, COMPUTE, SEQUENTIAL, TORCHRUN, Variant, fair_threads
from makeway.values.control import CopyEngine
from makeway.values.device import HOST_KINDS, HOST_OUTPUT_KEY, Device, host_fact_key, parse_device
from makeway.values.errors import InputError, UnsupportedError
from makeway.values.units import MIB

SIZES = (MIB, 16 * MIB)
DEPTH_SCALE = 2.0  # of the GEMM: long enough to be the longer part at the larger size
FLAT_SCALE = 0.25  # of a GEMM that mostly writes its result
_WORKLOADS = {"all-reduce": "gemm-ar", "all-gather": "gemm-ag", "all-to-all": "gemm-a2a"}
_DIRECT_COMM, _DIRECT = "direct comm alone", "copy-engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A measured host: its facts, and how many rounds stand behind each."""

    facts: Mapping[str, float]
    cores: int
    rounds: int
    machine: str

    @property
    def text(self) -> str:
        """The host as a device file."""
        source = f"measured here by makeway doctor --calibrate: medians of {self.rounds} rounds on {self.machine}"
        lines = [
            'name = "this-host"',
            'vendor = "cpu"',
            'arch = "x86_64"' if platform.machine() == "x86_64" else f'arch = "{platform.machine()}"',
            "aliases = []",
            'link = "loopback"',
            'notes = ["Measured on this machine; another one differs."]',
            "",
            "[sources]",
            f'calibration = "{source}"',
            "",
            "[facts]",
            f'sms = {{ value = {self.cores}, source = "calibration" }}',
        ]
        lines += [f'{key} = {{ value = {value:.6g}, source = "calibration" }}' for key, value in self.facts.items()]
        return "\n".join(lines) + "\n"

    @property
    def device(self) -> Device:
        return parse_device(self.text.encode(), where="calibration")


def calibrate(
    *, ranks: int | None = None, rounds: int = 7, progress: Callable[[str], None] = lambda stage: None
) -> Calibration:
    """The measured facts of this host, with as many ranks as cores (2 at least)."""
    count = max(cores(), 2) if ranks is None else ranks
    check_ranks(count)
    if rounds < 1:
        raise InputError(f"calibration takes 1 round or more, got {rounds}")
    if count > cores():
        raise UnsupportedError(f"{count} ranks on {cores()} cores would measure crowding; calibrate with fewer")
    facts: dict[str, float] = {}
    deep: dict[str, Bench] = {}
    for kind in HOST_KINDS:
        progress(f"{kind}, {count} ranks")
        small, deep[kind] = (_measured(_WORKLOADS[kind], size, count, rounds, progress) for size in SIZES)
        facts |= _carrier_facts("gloo", kind, small, deep[kind], COMM, TORCHRUN)
        facts |= _carrier_facts("direct", kind, small, deep[kind], _DIRECT_COMM, _DIRECT)
    flat = _measured(_WORKLOADS["all-reduce"], SIZES[1], count, rounds, progress, scale=FLAT_SCALE)
    per_flop, per_output = _gemm_costs(flat, deep["all-reduce"])
    return Calibration(
        facts={"fp32_flops_per_s": cores() / per_flop * 1e9, HOST_OUTPUT_KEY: max(per_output, 1e-6), **facts},
        cores=cores(),
        rounds=rounds,
        machine=f"{platform.machine()} with {os.cpu_count()} processors",
    )


def _gemm_costs(flat: Bench, deep: Bench) -> tuple[float, float]:
    """Nanoseconds of a core per operation and per element of the result, from a shallow and a deep GEMM."""
    assert deep.exchange is not None
    outputs = deep.exchange.size_bytes / ELEMENT_BYTES
    threads = fair_threads(cores(), deep.ranks)
    more = gemm_flops(deep) - gemm_flops(flat, FLAT_SCALE)
    per_flop = max(_step_ns(deep, COMPUTE) - _step_ns(flat, COMPUTE), 1.0) * threads / more
    return per_flop, (_step_ns(deep, COMPUTE) * threads - gemm_flops(deep) * per_flop) / outputs


def _measured(
    workload: str,
    size: int,
    ranks: int,
    rounds: int,
    progress: Callable[[str], None],
    *,
    scale: float = DEPTH_SCALE,
) -> Bench:
    threads = fair_threads(cores(), ranks)
    variants = (
        Variant(name=COMPUTE, mode="compute", threads=threads),
        Variant(name=COMM, mode="comm", threads=threads),
        Variant(name=SEQUENTIAL, mode="sequential", threads=threads),
        Variant(name=TORCHRUN, threads=threads),
        Variant(name=_DIRECT_COMM, mode="comm", controls=(CopyEngine(),), threads=threads),
        Variant(name=_DIRECT, controls=(CopyEngine(),), threads=threads),
    )
    job = Job(workload=workload, ranks=ranks, variants=variants, repeats=rounds, size_bytes=size, scale=scale)
    return run_bench(job, progress=progress)


def gemm_flops(bench: Bench, scale: float = DEPTH_SCALE) -> float:
    """Operations of one rank's GEMM in one step of a pair whose collective carries its result."""
    assert bench.exchange is not None
    elements = bench.exchange.size_bytes / ELEMENT_BYTES
    if bench.exchange.kind == "all-gather":
        elements /= bench.ranks
    return 2.0 * elements * depth_at(scale)


def _step_ns(bench: Bench, name: str) -> float:
    """Median time of one step of a variant, or of a part alone."""
    parts = {COMPUTE: bench.compute_ns, COMM: bench.comm_ns}
    return median(parts[name] if name in parts else bench.variant(name).times_ns) / bench.exchanges


def _carrier_facts(carrier: str, kind: str, small: Bench, large: Bench, alone: str, beside: str) -> dict[str, float]:
    assert small.exchange is not None
    assert large.exchange is not None
    less, more = small.exchange.wire_bytes, large.exchange.wire_bytes
    quick, slow = _step_ns(small, alone), _step_ns(large, alone)
    per_byte = max((slow - quick) / (more - less), 1e-6)
    taken = max(_step_ns(large, beside) - _step_ns(large, COMPUTE), 0.0) / more
    values = {
        "latency_ns": max(quick - less * per_byte, 1.0),
        "ns_per_byte": per_byte,
        "cpu_ns_per_byte": max(taken, 1e-6),
    }
    return {host_fact_key(carrier, kind, quantity): value for quantity, value in values.items()}
