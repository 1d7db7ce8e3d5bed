"""This host as a device of `makeway.decide.scale`: a rank's share of its cores, from probes; steps predicted on it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from scale_ranks_job import TINY, Cell, Probe

from makeway.decide.scale.generation import Generation
from makeway.decide.scale.step import predict_step
from makeway.values.cluster import Cluster, Level
from makeway.values.collective import Collective, CollectiveKind
from makeway.values.device import built_device, compression_fact_key, host_fact_key
from makeway.values.facts import Fact
from makeway.values.layout import Compression, CompressionKind, Layout
from makeway.values.model import Model
from makeway.values.step import Step

_KINDS: tuple[CollectiveKind, ...] = ("all-reduce", "all-gather", "reduce-scatter", "send-recv")
_COMPRESSIONS: dict[str, CompressionKind] = {"bf16": "bf16", "powersgd": "powersgd", "topk": "topk"}
_UNPACED_BYTES_PER_S = 1e12  # the cost of Gloo binds
STAGES = 2


@dataclass(frozen=True, slots=True)
class RankHost:
    """A cluster whose device is one rank's share of this host, and how fast torch runs on it."""

    cluster: Cluster
    generation: Generation
    kernel_ns: Mapping[str, float]  # of an operation, by kind of parallelism

    @property
    def described(self) -> str:
        device, facts, speed = self.cluster.device, self.cluster.device.facts, self.generation
        assert device.fp32_flops_per_s is not None
        assert device.hbm_bytes_per_s is not None
        parts = [
            f"{device.fp32_flops_per_s / 1e9:.1f} GFLOP/s, half of it at k {speed.gemm_half_k:.0f}",
            f"{device.hbm_bytes_per_s / 1e9:.1f} GB/s",
            f"attention at {speed.attention_share:.2f} and {speed.attention_backward_share:.2f} of the products' rate",
            f"us per operation: {', '.join(f'{name} {ns / 1e3:.0f}' for name, ns in self.kernel_ns.items())}",
        ]
        for kind in _KINDS:
            latency, alone, beside = (
                _value(facts, kind, quantity) for quantity in ("latency_ns", "ns_per_byte", "cpu_ns_per_byte")
            )
            parts.append(f"{kind} {latency / 1e6:.2f} ms + {alone:.2f} ns/byte, {beside:.2f} of it from compute")
        parts += [f"{key} {fact.value:.2f}" for key, fact in facts.items() if key.startswith("compress_")]
        return "; ".join(parts)


def _value(facts: Mapping[str, Fact], kind: str, quantity: str) -> float:
    value = facts[host_fact_key("gloo", kind, quantity)].value
    assert not isinstance(value, tuple)
    return float(value)


def rank_host(
    probes: Sequence[Probe], ranks: int, link_bytes_per_s: float | None, link_probes: Sequence[Probe]
) -> RankHost:
    """The device of one of `ranks` ranks, joined by a link that all of them share; collectives as probed on it."""
    flops_per_s, half_k = _product_rate(probes)
    (passes,) = (probe for probe in probes if probe.kind == "pass")
    numbers = {
        "sms": 1.0,
        "fp32_flops_per_s": flops_per_s,
        "hbm_bytes_per_s": passes.sizes[0] / passes.seconds,
        **{key: value for kind in _KINDS for key, value in _costs(probes, link_probes, kind, ranks).items()},
        **{
            compression_fact_key(_COMPRESSIONS[probe.kind.removeprefix("hook ")]): probe.seconds / probe.sizes[0] * 1e9
            for probe in probes
            if probe.kind.startswith("hook ")
        },
    }
    facts = {
        key: Fact(value=int(value) if key == "sms" else value, source="probes of this host")
        for key, value in numbers.items()
    }
    device = built_device(name=f"1 of {ranks} ranks", vendor="cpu", arch="x86_64", link="loopback", facts=facts)
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
    cluster = Cluster(name="this host", device=device, levels=(level,))
    if link_bytes_per_s is not None:  # the tiny decoder ran unpaced
        return RankHost(cluster, generation, rank_host(probes, ranks, None, ()).kernel_ns)
    tiny = {probe.kind.removeprefix("tiny "): probe.seconds * 1e9 for probe in probes if probe.kind.startswith("tiny ")}
    plain = RankHost(cluster, generation, {})
    kernel_ns = {parallel: _kernel_ns(parallel, plain, ranks, step_ns) for parallel, step_ns in tiny.items()}
    return RankHost(cluster, generation, kernel_ns)


def _kernel_ns(parallel: str, host: RankHost, ranks: int, step_ns: float) -> float:
    """The time of an operation with which the step of the tiny decoder takes what it took; steps are linear in it."""
    cell = Cell(parallel, TINY, micro_batches=4 if parallel == "pp" else 1)  # type: ignore[arg-type]
    none, some = (predicted_step(cell, replace(host, kernel_ns={parallel: ns}), ranks).step_ns for ns in (0.0, 1e5))
    return max(0.0, (step_ns - none) / (some - none) * 1e5)


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


def _costs(probes: Sequence[Probe], link_probes: Sequence[Probe], kind: CollectiveKind, ranks: int) -> dict[str, float]:
    """Latency and time per wire byte alone, from two sizes, and the time that a byte takes from compute beside it."""
    small, large = sorted(
        (_wire_bytes(kind, probe.sizes[0], ranks), probe.seconds * 1e9)
        for probe in link_probes or probes
        if probe.kind == kind
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
    generation = replace(host.generation, kernel_ns=host.kernel_ns[cell.parallel])
    return predict_step(model, layout_of(cell, ranks), host.cluster, generation=generation, jitter=None)


def layout_of(cell: Cell, ranks: int) -> Layout:
    """A cell's layout; what overlaps is what torch documents or its source says, not what a cell shows."""
    batch = cell.shape.batch
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
