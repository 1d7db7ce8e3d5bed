"""Traces of JAX: streams of GPUs, operations of CPU devices, collectives by name and by rendezvous."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from makeway import analyze
from makeway.read.traces.read import find_traces, read_trace, recognise
from makeway.values.errors import TraceError
from makeway.values.timeline import Timeline

DETAILS = "regs:64 static_shared:1024 dynamic_shared:2048 grid:8,1,1 block:128,1,1 occ_pct:50"


def named(what: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": f"{what}_name", "pid": pid, "tid": tid, "args": {"name": name}}


def event(name: str, start: float, end: float, pid: int, tid: int, /, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start, "dur": end - start, "args": args}


def written(path: Path, *events: dict[str, Any]) -> Path:
    document = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def gpu_trace(path: Path) -> Path:
    return written(
        path / "host.trace.json.gz",
        named("process", "/device:GPU:1 NVIDIA H100 80GB HBM3", 1),
        named("process", "/host:CPU", 9),
        named("thread", "Stream #13(Compute,MemcpyD2D)", 1, 13),
        named("thread", "Stream #20(Compute)", 1, 20),
        named("thread", "XLA Ops", 1, 99),
        event("train", 0, 100, 9, 1, step_num="4"),
        event("loop_fusion", 10, 40, 1, 13, hlo_op="fusion.1", kernel_details=DETAILS),
        event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)", 30, 60, 1, 20, hlo_op="all-reduce-start.1"),
        event("custom_one_shot", 60, 65, 1, 20, hlo_op="all-gather.2"),
        event("MemcpyD2D", 66, 68, 1, 13),
        event("fusion.1", 10, 40, 1, 99, hlo_op="fusion.1"),
    )


def cpu_trace(path: Path) -> Path:
    events = []
    for device, late in ((0, 0), (1, 15)):
        tid = 20 + device
        args = {"device_ordinal": str(device), "hlo_module": "jit_f"}
        key = "all reduce RendezvousKey{run_id=RunId: 7, global_devices=[0, 1], num_local_participants=2}"
        events += [
            event("while.2", 0, 90, 5, tid, hlo_op="while.2", **args),
            event("dot.1", 10, 40 + late, 5, tid, hlo_op="dot.1", **args),
            event("psum_invariant.7", 41 + late, 80, 5, tid, hlo_op="psum_invariant.7", **args),
            event("Rendezvous", 45 + late, 70, 5, tid, name=key),
            event("end: dot.1", 40 + late, 40.5 + late, 5, tid),
        ]
    return written(path / "host.trace.json.gz", named("process", "/host:CPU", 5), *events)


def kinds(timeline: Timeline, rank: int) -> list[tuple[str, str, str]]:
    return [(span.name.partition("(")[0], span.kind, span.stream) for span in timeline.spans if span.rank == rank]


def test_streams_of_a_gpu_count_and_derived_lines_do_not(tmp_path: Path) -> None:
    path = gpu_trace(tmp_path)
    assert recognise(path) == "xla"
    timeline = read_trace(path)
    assert kinds(timeline, 1) == [
        ("loop_fusion", "compute", "13"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "comm", "20"),
        ("custom_one_shot", "comm", "20"),
        ("MemcpyD2D", "memory", "13"),
    ]
    assert timeline.ranks[0].device == "NVIDIA H100 80GB HBM3"
    launch = timeline.spans[0].launch
    assert launch is not None
    assert launch.resources is not None
    assert (launch.blocks, launch.resources.registers_per_thread, launch.resources.smem_bytes) == (8, 64, 3_072)
    assert [step.number for step in timeline.steps] == [4]
    assert [span.exchange.kind for span in timeline.of("comm", rank=1) if span.exchange] == ["all-reduce", "all-gather"]


def test_devices_of_a_cpu_are_ranks_and_a_rendezvous_is_a_collective(tmp_path: Path) -> None:
    timeline = read_trace(cpu_trace(tmp_path))
    assert kinds(timeline, 0) == [("dot.1", "compute", "thread 20"), ("psum_invariant.7", "comm", "thread 20")]
    analysis = analyze([tmp_path], what_if=False)
    assert dict(analysis.matching.waiting_ns) == {0: 15_000, 1: 0}
    assert [rank.device for rank in analysis.ranks] == ["CPU-host", "CPU-host"]


def test_a_second_copy_for_perfetto_is_not_a_second_rank(tmp_path: Path) -> None:
    path = cpu_trace(tmp_path)
    (tmp_path / "perfetto_trace.json.gz").write_bytes(path.read_bytes())
    assert find_traces([tmp_path]).files == (path,)


def test_a_trace_without_operations_says_how_to_record_some(tmp_path: Path) -> None:
    path = written(tmp_path / "a.trace.json.gz", named("process", "/host:CPU", 5), event("$python", 0, 1, 5, 1))
    with pytest.raises(TraceError, match=r"no operation of a device(.|\n)*jax.profiler.trace"):
        read_trace(path)


PROGRAM = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp, numpy as np
from jax import shard_map
from jax.sharding import Mesh, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("d",))
def part(x, w):
    return jax.lax.psum(jnp.tanh(x @ w), "d") @ w
f = jax.jit(lambda x, w: shard_map(part, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))(x, w))
x, w = jnp.ones((256, 128)), jnp.ones((128, 128))
f(x, w).block_until_ready()
with jax.profiler.trace(sys.argv[1]):
    for step in range(3):
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            f(x, w).block_until_ready()
"""


@pytest.mark.skipif(
    find_spec("jax") is None and "MAKEWAY_TEST_JAX" not in os.environ,
    reason="jax is not installed (MAKEWAY_TEST_JAX may name a directory that holds it)",
)
def test_a_real_recording_of_jax_on_two_cpu_devices(tmp_path: Path) -> None:
    place = os.environ.get("MAKEWAY_TEST_JAX", "")
    environment = os.environ | {"PYTHONPATH": place, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], check=True, timeout=120, env=environment)
    analysis = analyze([tmp_path], what_if=False)
    assert [rank.rank for rank in analysis.ranks] == [0, 1]
    assert len(analysis.matching.matched) == 3, "one all-reduce in each step"
    assert [step.number for step in analysis.ranks[0].steps] == [0, 1, 2]
    assert all(rank.figures.compute_ns > 0 for rank in analysis.ranks)
