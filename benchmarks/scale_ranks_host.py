"""This host as a device of `makeway.decide.scale`: a rank's share of its cores, from probes; steps predicted on it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from scale_ranks_job import COMM_BYTES, MIDDLE, TINY, Cell, Parallel, Probe

from makeway.decide.scale.generation import Generation
from makeway.decide.scale.step import predict_step
from makeway.values.cluster import Cluster, Level
from makeway.values.collective import Collective, CollectiveKind
from makeway.values.device import HOST_SHARING_KEY, Device, built_device, compression_fact_key, host_fact_key
from makeway.values.facts import Fact
from makeway.values.layout import Compression, CompressionKind, Layout
from makeway.values.model import Model
from makeway.values.step import Step

_KINDS: tuple[CollectiveKind, ...] = ("all-reduce", "all-gather", "reduce-scatter", "send-recv")
_COMPRESSIONS: dict[str, CompressionKind] = {"bf16": "bf16", "powersgd": "powersgd", "topk": "topk"}
_UNPACED_BYTES_PER_S = 1e12  # the cost of Gloo binds
_PROBES, _STEPS = "probes of this host", "steps of another decoder on this host"
# Where the search for a calibrated number starts, and how far it goes as a factor.
_OPERATION_NS, _HOOK_NS_PER_ELEMENT = 1e5, 10.0
LEAST, MOST = 0.05, 20.0
STAGES = 2


@dataclass(frozen=True, slots=True)
class RankHost:
    """A cluster whose device is one rank's share of this host, and how fast torch runs on it.

    What a step shows and a loop of one operation does not is by way to train: the time of an operation, the share of
    the products' rate, and facts of the device that take the place of those that probes gave.
    """

    cluster: Cluster
    generation: Generation
    kernel_ns: Mapping[Parallel, float]
    gemm_shares: Mapping[str, float]  # by name of a cell; others take the generation's
    facts: Mapping[str, Mapping[str, float]]  # by name of a cell

    def of(self, cell: Cell) -> tuple[Cluster, Generation]:
        """What a cell of this kind runs on."""
        device, changed = self.cluster.device, self.facts.get(cell.name, {})
        if changed:
            facts = {**device.facts, **{key: Fact(value=value, source=_STEPS) for key, value in changed.items()}}
            device = _device(device.name, facts)
        generation = replace(
            self.generation,
            kernel_ns=self.kernel_ns.get(cell.parallel, 0.0),
            gemm_share=self.gemm_shares.get(cell.name, self.generation.gemm_share),
        )
        return replace(self.cluster, device=device), generation

    @property
    def described(self) -> str:
        device, facts, speed = self.cluster.device, self.cluster.device.facts, self.generation
        assert device.fp32_flops_per_s is not None
        assert device.hbm_bytes_per_s is not None
        parts = [
            f"{device.fp32_flops_per_s / 1e9:.1f} GFLOP/s, half of it at k {speed.gemm_half_k:.0f}",
            f"{speed.gemm_share:.2f} of it in a step",
            f"{device.hbm_bytes_per_s / 1e9:.1f} GB/s",
            f"attention at {speed.attention_share:.2f} and {speed.attention_backward_share:.2f} of the products' rate",
            f"us per operation: {', '.join(f'{name} {ns / 1e3:.0f}' for name, ns in self.kernel_ns.items())}",
        ]
        for kind in _KINDS:
            latency, alone, beside = (
                _value(facts, kind, quantity) for quantity in ("latency_ns", "ns_per_byte", "cpu_ns_per_byte")
            )
            parts.append(f"{kind} {latency / 1e6:.2f} ms + {alone:.2f} ns/byte, {beside:.2f} of it from compute")
        parts += [f"{name}: {share:.2f} of the products' rate" for name, share in self.gemm_shares.items()]
        parts += [f"{name}: {key} {value:.2f}" for name, its in self.facts.items() for key, value in its.items()]
        return "; ".join(parts)


def _value(facts: Mapping[str, Fact], kind: str, quantity: str) -> float:
    value = facts[host_fact_key("gloo", kind, quantity)].value
    assert not isinstance(value, tuple)
    return float(value)


def rank_host(
    probes: Sequence[Probe],
    calibration: Mapping[Cell, float],
    ranks: int,
    *,
    cores: int,
    link_bytes_per_s: float | None,
) -> RankHost:
    """The device of one of `ranks` ranks on so many cores, joined by a link that all of them share.

    `calibration` has the seconds of a step of each cell of that name, taken over the same link as the probes.
    """
    flops_per_s, half_k = _product_rate(probes)
    (passes,) = (probe for probe in probes if probe.kind == "pass")
    numbers = {
        "sms": 1.0,
        "fp32_flops_per_s": flops_per_s,
        "hbm_bytes_per_s": passes.sizes[0] / passes.seconds,
        HOST_SHARING_KEY: max(1.0, ranks / cores),
        **{key: value for kind in _KINDS for key, value in _costs(probes, kind, ranks).items()},
    }
    facts = {key: Fact(value=int(value) if key == "sms" else value, source=_PROBES) for key, value in numbers.items()}
    device = _device(f"1 of {ranks} ranks", facts)
    level = Level(
        name="loopback", gpus=None, bytes_per_s=link_bytes_per_s or _UNPACED_BYTES_PER_S, latency_ns=0.0, efficiency=1.0
    )
    generation = Generation(
        name="torch on this host",
        device=device.name,
        software="torch, eager, 32 bits",
        gemm_share=1.0,
        gemm_half_k=half_k,
        attention_share=_rate(probes, "attention") / flops_per_s,
        attention_backward_share=_rate(probes, "attention dx") / flops_per_s,
        hbm_share=1.0,
        kernel_ns=0.0,
        host_ns=0.0,
        step_ns=0.0,
        hop_ns=0.0,
        network_share=1.0,
    )
    plain = RankHost(Cluster(name="this host", device=device, levels=(level,)), generation, {}, {}, {})
    return _in_steps(plain, calibration, ranks)


def _device(name: str, facts: Mapping[str, Fact]) -> Device:
    return built_device(name=name, vendor="cpu", arch="x86_64", link="loopback", facts=facts)


def _in_steps(host: RankHost, calibration: Mapping[Cell, float], ranks: int) -> RankHost:
    """The host with what calibration steps show: one number for each, with which the step takes what it took."""

    def solved(cell: Cell, candidate: Callable[[float], RankHost]) -> RankHost:
        def step_ns(times: float) -> float:
            return predicted_step(cell, candidate(times), ranks).step_ns

        return candidate(_root(step_ns, calibration[cell] * 1e9))

    for _ in range(2):  # the second time with the share of the first
        for cell in calibration:
            if cell.shape == TINY:
                host = solved(cell, partial(_with_operations, host, cell.parallel))
        (alone,) = (cell for cell in calibration if cell.alone)
        host = solved(alone, partial(_with_products, host))
    for cell in calibration:
        if cell.shape == MIDDLE and not cell.alone:
            host = solved(cell, partial(_with_cell, host, cell))
    return host


def _root(step_ns: Callable[[float], float], wanted_ns: float) -> float:
    """Where steps that grow with a number take so long; the nearest where none does."""
    low, high = LEAST, MOST
    for _ in range(40):
        between = math.sqrt(low * high)
        low, high = (between, high) if step_ns(between) < wanted_ns else (low, between)
    return math.sqrt(low * high)


def _with_operations(host: RankHost, parallel: Parallel, times: float) -> RankHost:
    return replace(host, kernel_ns={**host.kernel_ns, parallel: _OPERATION_NS * times})


def _with_products(host: RankHost, times: float) -> RankHost:
    return replace(host, generation=replace(host.generation, gemm_share=1 / times))


def _with_cell(host: RankHost, cell: Cell, times: float) -> RankHost:
    """The host where what such a step has beside the compute of a replica alone takes longer."""

    def scaled(quantity: str, *kinds: CollectiveKind) -> RankHost:
        facts = host.cluster.device.facts
        its = {host_fact_key("gloo", kind, quantity): _value(facts, kind, quantity) * times for kind in kinds}
        return replace(host, facts={**host.facts, cell.name: its})

    match cell.parallel:
        case "ddp" if cell.compression != "none":  # encoder, decoder and calls: all grow with the gradients
            key = compression_fact_key(_COMPRESSIONS[cell.compression])
            return replace(host, facts={**host.facts, cell.name: {key: _HOOK_NS_PER_ELEMENT * (times - LEAST)}})
        case "ddp":
            return scaled("cpu_ns_per_byte", "all-reduce")
        case "fsdp":
            return scaled("ns_per_byte", "all-gather", "reduce-scatter")
        case "tp":
            return scaled("ns_per_byte", "all-reduce")
        case "pp":  # products of a micro batch have few rows
            share = host.generation.gemm_share / times
            return replace(host, gemm_shares={**host.gemm_shares, cell.name: share})


def _product_rate(probes: Sequence[Probe]) -> tuple[float, float]:
    """Operations per second at a long inner dimension, and the one at which half is reached: a line in 1 / k."""
    points = [
        (1 / k, probe.seconds / (2 * m * n * k))
        for probe in probes
        if probe.kind == "product"
        for m, n, k in [probe.sizes]
    ]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if a[0] != b[0]]
    slope = max(0.0, statistics.median(slopes))  # Theil and Sen's: one bad probe does not tilt it
    intercept = statistics.median(y - slope * x for x, y in points)
    return 1 / intercept, slope / intercept


def _rate(probes: Sequence[Probe], kind: str) -> float:
    return statistics.median(probe.sizes[0] / probe.seconds for probe in probes if probe.kind == kind)


def _costs(probes: Sequence[Probe], kind: CollectiveKind, ranks: int) -> dict[str, float]:
    """Latency and time per wire byte alone, from two sizes, and the time that a byte takes from compute beside it."""
    small, large = (
        (_wire_bytes(kind, size, ranks), statistics.median(times) * 1e9)
        for size in COMM_BYTES
        for times in [[probe.seconds for probe in probes if probe.kind == kind and probe.sizes == (size,)]]
    )
    per_byte = max((large[1] - small[1]) / (large[0] - small[0]), 1e-6)
    beside = [probe for probe in probes if probe.kind == f"beside {kind}"]
    taken = [max(probe.seconds, 0.0) * 1e9 / _wire_bytes(kind, probe.sizes[0], ranks) for probe in beside]
    values = {
        "latency_ns": max(small[1] - small[0] * per_byte, 1.0),
        "ns_per_byte": per_byte,
        "cpu_ns_per_byte": max(statistics.median(taken), 1e-6) if taken else 1e-6,
    }
    return {host_fact_key("gloo", kind, quantity): value for quantity, value in values.items()}


def _wire_bytes(kind: CollectiveKind, size: float, ranks: int) -> float:
    return Collective(kind=kind, size_bytes=round(size), ranks=2 if kind == "send-recv" else ranks).wire_bytes


def predicted_step(cell: Cell, host: RankHost, ranks: int) -> Step:
    """The step of a cell by the code that predicts thousands of GPUs."""
    shape = cell.shape
    model = Model(
        name="decoder",
        layers=shape.layers,
        hidden=shape.hidden,
        ffn=shape.ffn,
        heads=shape.heads,
        kv_heads=shape.heads,
        head_dim=shape.hidden // shape.heads,
        vocab=shape.vocab,
        seq=shape.seq,
    )
    cluster, generation = host.of(cell)
    return predict_step(model, layout_of(cell, ranks), cluster, generation=generation, jitter=None)


def layout_of(cell: Cell, ranks: int) -> Layout:
    """A cell's layout; what overlaps is what torch documents or its source says, not what a cell shows."""
    batch, ranks = cell.shape.batch, 1 if cell.alone else ranks
    match cell.parallel:
        case "ddp":
            kind = _COMPRESSIONS.get(cell.compression)
            return Layout(
                dp=ranks,
                micro_batch=batch,
                global_batch=batch * ranks,
                bucket_bytes=cell.bucket_bytes,
                compression=Compression(kind=kind) if kind else None,
                overlap_dp=cell.compression != "powersgd",  # its hook waits for each bucket
            )
        case "fsdp":  # a CPU has no streams: fully_shard waits for each collective
            return Layout(dp=ranks, micro_batch=batch, global_batch=batch * ranks, sharding="fsdp", overlap_dp=False)
        case "tp":
            return Layout(tp=ranks, micro_batch=batch, global_batch=batch)
        case "pp":
            return Layout(
                pp=STAGES,
                dp=ranks // STAGES,
                micro_batch=batch // cell.micro_batches,
                global_batch=batch * ranks // STAGES,
                bucket_bytes=cell.bucket_bytes,
                overlap_pp=True,  # Gloo's sends return once the socket has the message
            )
