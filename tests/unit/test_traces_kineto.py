"""Kineto traces as timelines: what each field becomes, on small traces made here and on real ones."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.recordings import RECORDINGS, needs_recordings

from makeway.read.traces.classify import load_comm_names
from makeway.read.traces.read import read_trace
from makeway.values.kernel import KernelResources, Launch
from makeway.values.timeline import Exchange, Span, Step, Timeline, Wait

TRACES = RECORDINGS
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}
SIZE: dict[str, Any] = {"grid": [64, 2, 1], "block": [128, 1, 1], "registers per thread": 90, "shared memory": 49152}


def kernel(name: str = "gemm", ts: Any = 100, dur: Any = 10, cat: str = "kernel", **args: Any) -> dict[str, Any]:
    given_args = {"device": 0, "stream": 7, "correlation": 1, **args}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": given_args}


def call(name: str, ts: Any, correlation: int, cat: str = "cuda_runtime") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": 3, "args": {"correlation": correlation}}


def timeline(folder: Path, *events: dict[str, Any], name: str = "trace.json", **header: Any) -> Timeline:
    document = {"deviceProperties": [A100], "distributedInfo": {"rank": 0}, **header, "traceEvents": list(events)}
    path = folder / name
    path.write_text(json.dumps(document))
    return read_trace(path)


def only(timeline: Timeline) -> Span:
    (span,) = timeline.spans
    return span


# --- times -------------------------------------------------------------------------------------


@given(start=st.integers(0, 2**61), duration=st.integers(0, 10**12), decimals=st.booleans(), base=st.integers(0, 2**61))
def test_times_are_exact_to_the_nanosecond(
    tmp_path_factory: pytest.TempPathFactory, start: int, duration: int, decimals: bool, base: int
) -> None:
    if not decimals:
        start, duration = start // 1000 * 1000, duration // 1000 * 1000
    event = json.dumps(kernel(ts="START", dur="DURATION"))
    for mark, ns in (("START", start), ("DURATION", duration)):
        event = event.replace(f'"{mark}"', f"{ns // 1000}.{ns % 1000:03}" if decimals else str(ns // 1000))
    path = tmp_path_factory.getbasetemp() / "times.json"
    path.unlink(missing_ok=True)  # writing over a file can wait for the disk
    path.write_text(f'{{"traceEvents": [{event}], "baseTimeNanoseconds": {base}}}')
    span = only(read_trace(path))
    assert (span.start_ns, span.duration_ns) == (base + start, duration)


@pytest.mark.parametrize(
    ("written", "ns"),
    [("5", 5000), ("5.0", 5000), ("5.25", 5250), ("1712195495505583.0015", 1712195495505583002), ("1e3", 10**6)],
)
def test_times_are_read_however_they_are_written(tmp_path: Path, written: str, ns: int) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + json.dumps(kernel(ts="TS")).replace('"TS"', written) + "]}")
    assert only(read_trace(path)).start_ns == ns
    assert ns == int((Decimal(written) * 1000).to_integral_value())


def test_spans_come_in_the_order_of_their_starts(tmp_path: Path) -> None:
    read = timeline(tmp_path, kernel("late", ts=300), kernel("early", ts=100), kernel("middle", ts=200))
    assert [span.name for span in read.spans] == ["early", "middle", "late"]


# --- what a span is ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("kernel", "gemm", "compute"),
        ("Kernel", "gemm", "compute"),
        ("kernel", NCCL, "comm"),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", "memory"),
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", "memory"),
        ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", "copy"),
        ("Memcpy", "Memcpy PtoP (Device -> Device)", "copy"),
        ("gpu_memset", "Memset (Device)", "memory"),
    ],
)
def test_a_span_is_compute_comm_copy_or_memory(tmp_path: Path, category: str, name: str, kind: str) -> None:
    span = only(timeline(tmp_path, kernel(name, cat=category)))
    assert (span.kind, span.name, span.stream) == (kind, name, "7")


def test_a_name_that_is_not_utf8_costs_only_its_strange_bytes(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [%s]}' % json.dumps(kernel("NAME")).encode().replace(b"NAME", b"gemm\xff"))
    assert only(read_trace(path)).name == "gemm\N{REPLACEMENT CHARACTER}"


def test_a_users_own_names_are_used(tmp_path: Path) -> None:
    patterns = tmp_path / "names.toml"
    patterns.write_text('[[pattern]]\nmatch = "my_exchange"\nfamily = "mine"\nkind = "all-to-all"\n')
    timeline(tmp_path, kernel("my_exchange_kernel"))
    span = only(read_trace(tmp_path / "trace.json", comm=load_comm_names(patterns)))
    assert (span.kind, span.exchange) == ("comm", Exchange(kind="all-to-all"))


def test_equal_launches_are_one_value(tmp_path: Path) -> None:
    first, second, third = timeline(
        tmp_path, kernel(ts=1, **SIZE), kernel(ts=2, **SIZE), kernel("other", ts=3, **SIZE)
    ).spans
    assert first.launch is second.launch is third.launch
    assert first.launch == Launch(
        blocks=128,
        threads=128,
        resources=KernelResources(threads=128, registers_per_thread=90, smem_bytes=49152),
        grid=(64, 2, 1),
    )


@pytest.mark.parametrize(
    ("args", "launch"),
    [
        ({}, None),
        ({"grid": [4, 1, 1], "block": [64, 1, 1]}, Launch(blocks=4, threads=64, grid=(4, 1, 1))),
        ({**SIZE, "registers per thread": 0}, Launch(blocks=128, threads=128, grid=(64, 2, 1))),
        ({**SIZE, "grid": [0, 1, 1]}, None),
        ({**SIZE, "block": [2048, 1, 1]}, None),
    ],
)
def test_a_launch_says_what_was_recorded_and_no_more(
    tmp_path: Path, args: dict[str, Any], launch: Launch | None
) -> None:
    assert only(timeline(tmp_path, kernel(**args))).launch == launch


def test_grids_that_hip_counts_in_work_items_become_blocks(tmp_path: Path) -> None:
    size: dict[str, Any] = {"grid": [1025, 2, 1], "block": [256, 1, 1]}
    in_items, in_blocks = timeline(
        tmp_path,
        call("hipExtModuleLaunchKernel", 1, 1),
        call("hipLaunchKernel", 2, 2),
        kernel(ts=10, correlation=1, **size),
        kernel(ts=20, correlation=2, **size),
    ).spans
    assert in_items.launch == Launch(blocks=10, threads=256, grid=(5, 2, 1))
    assert in_blocks.launch == Launch(blocks=2050, threads=256, grid=(1025, 2, 1))


def test_a_span_knows_when_the_host_asked_for_it(tmp_path: Path) -> None:
    read = timeline(
        tmp_path,
        kernel(ts=100, correlation=5),
        kernel(ts=200, correlation=6),
        kernel(ts=300, correlation=7),
        kernel(ts=400, correlation=0),
        call("cudaLaunchKernel", 90, 5),
        call("cuLaunchKernelEx", 92, 5, cat="cuda_driver"),  # the same launch one level below
        call("cudaLaunchKernelExC", 95, 6),
        call("cudaStreamIsCapturing", 96, 7),  # asks for nothing
        call("cudaLaunchKernel", 97, 0),
        baseTimeNanoseconds=10**18,
    )
    assert [span.launched_ns and span.launched_ns - 10**18 for span in read.spans] == [90_000, 95_000, None, None]


def test_a_streams_priority_is_kept_where_it_was_recorded(tmp_path: Path) -> None:
    read = timeline(tmp_path, kernel(ts=1, priority=-5), kernel(ts=2))
    assert [span.priority for span in read.spans] == [-5, None]


# --- collectives -------------------------------------------------------------------------------


def test_a_collective_says_what_it_moves(tmp_path: Path) -> None:
    args: dict[str, Any] = {
        "Collective name": "_reduce_scatter_base",
        "In msg nelems": 8000,
        "Out msg nelems": 1000,
        "dtype": "BFloat16",
        "Process Group Name": "3",
        "Process Group Ranks": "[0, 2, 4, 6]",
        "Seq": 41,
    }
    assert only(timeline(tmp_path, kernel(NCCL, **args))).exchange == Exchange(
        kind="reduce-scatter", in_bytes=16000, out_bytes=2000, group="3", group_ranks=(0, 2, 4, 6), sequence=41
    )


@pytest.mark.parametrize("listed", ["[0, 1, ..., 7]", None])
def test_ranks_that_were_shortened_are_taken_from_the_groups_of_the_job(tmp_path: Path, listed: str | None) -> None:
    info = {"rank": 0, "pg_config": [{"pg_name": "3", "ranks": [0, 1, 2, 3]}]}
    args: dict[str, Any] = {"Collective name": "allreduce", "Process Group Name": "3", "Process Group Ranks": listed}
    exchange = only(timeline(tmp_path, kernel(NCCL, **args), distributedInfo=info)).exchange
    assert exchange == Exchange(kind="all-reduce", group="3", group_ranks=(0, 1, 2, 3))


@pytest.mark.parametrize(
    ("collective", "kind"),
    [
        ("allreduce", "all-reduce"),
        ("allreduce_coalesced", "all-reduce"),
        ("_allgather_base", "all-gather"),
        ("all_gather_into_tensor", "all-gather"),
        ("all_to_allv", "all-to-all"),
        ("send", "send-recv"),
        ("recv 0<-1", "send-recv"),
        ("broadcast", None),
        ("barrier", None),
    ],
)
def test_the_recorded_collective_decides_the_kind(tmp_path: Path, collective: str, kind: str | None) -> None:
    generic = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
    exchange = only(timeline(tmp_path, kernel(generic, **{"Collective name": collective}))).exchange
    assert exchange is not None
    assert exchange.kind == kind


def test_without_arguments_the_name_decides_the_kind(tmp_path: Path) -> None:
    assert only(timeline(tmp_path, kernel(NCCL))).exchange == Exchange(kind="all-reduce")
    assert only(timeline(tmp_path, kernel("gemm"))).exchange is None


# --- steps and waits ---------------------------------------------------------------------------


def test_steps_are_those_the_profiler_marked_on_the_host(tmp_path: Path) -> None:
    def mark(name: str, ts: int, cat: str) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": 50, "args": {}}

    read = timeline(
        tmp_path,
        mark("ProfilerStep#12", 100, "user_annotation"),
        mark("ProfilerStep#11", 50, "user_annotation"),
        mark("ProfilerStep#11", 60, "gpu_user_annotation"),
        mark("forward", 55, "user_annotation"),
        kernel(),
        distributedInfo={"rank": 3},
    )
    assert read.steps == (
        Step(number=11, rank=3, start_ns=50_000, end_ns=100_000),
        Step(number=12, rank=3, start_ns=100_000, end_ns=150_000),
    )


def stream_wait(ts: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "ts": ts, "dur": 0, "args": args}


def test_waits_order_two_streams_at_host_times(tmp_path: Path) -> None:
    args = {"stream": 20, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 8, "correlation": 9, "device": 0}
    early = {**args, "wait_on_cuda_event_record_corr_id": -1}
    read = timeline(
        tmp_path,
        kernel(),
        call("cudaEventRecord", 80, 8),
        call("cudaStreamWaitEvent", 85, 9),
        stream_wait(86, **args),
        stream_wait(87, **early),
    )
    assert read.waits == (Wait(rank=0, stream="20", asked_ns=85_000, on_stream="7", recorded_ns=80_000),)
    assert any("1 stream wait" in note for note in read.ranks[0].notes)


def test_no_synchronisation_events_is_not_the_same_as_no_waits(tmp_path: Path) -> None:
    sync = {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "ts": 1, "dur": 1, "args": {"stream": 7}}
    assert timeline(tmp_path, kernel(), call("cudaStreamWaitEvent", 85, 9)).waits is None
    assert timeline(tmp_path, kernel(), sync).waits == ()


# --- who recorded ------------------------------------------------------------------------------


def test_the_rank_and_its_gpu_are_those_the_trace_names(tmp_path: Path) -> None:
    gpus = [{**A100, "id": 0, "name": "other"}, {**A100, "id": 5}]
    info = {"rank": 13, "world_size": 16, "nccl_version": "2.27.5"}
    read = timeline(tmp_path, kernel(device=5), distributedInfo=info, deviceProperties=gpus)
    (rank,) = read.ranks
    assert (rank.rank, rank.device, rank.sms) == (13, "NVIDIA A100-SXM4-80GB", 108)
    assert (rank.world, rank.library, rank.source) == (16, "nccl-2.27.5", str(tmp_path / "trace.json"))
    assert rank.notes == ()
    assert (only(read).rank, read.device, read.origin) == (13, rank.device, "imported")


@pytest.mark.parametrize(
    ("name", "rank", "told"),
    [("job-rank12.json", 12, "the file name"), ("worker_3.pt.trace.json", 3, "the file name"), ("a.json", 4, "GPU")],
)
def test_a_rank_that_is_not_recorded_is_guessed_and_said_to_be(tmp_path: Path, name: str, rank: int, told: str) -> None:
    read = timeline(tmp_path, kernel(device=4), name=name, distributedInfo={}, deviceProperties=[{**A100, "id": 4}])
    assert [(found.rank, only(read).rank) for found in read.ranks] == [(rank, rank)]
    assert [told in note for note in read.ranks[0].notes] == [True]


def test_several_gpus_in_one_file_are_ranks_of_their_own(tmp_path: Path) -> None:
    copy = kernel("Memcpy HtoD", ts=4, cat="gpu_memcpy", device=6)
    read = timeline(tmp_path, kernel(ts=1, device=1), kernel(ts=2, device=0), kernel(ts=3, device=1), copy)
    assert [rank.rank for rank in read.ranks] == [0, 1]
    assert Counter(span.rank for span in read.spans) == {0: 1, 1: 2}
    notes = " ".join(read.ranks[0].notes)
    assert "GPUs 0, 1" in notes
    assert "1 events are left out: they ran on other GPUs" in notes


def test_a_stray_kernel_on_another_gpu_makes_no_second_rank(tmp_path: Path) -> None:
    own = [kernel(ts=number, device=3) for number in range(200)]
    read = timeline(tmp_path, kernel("stray", device=0), *own, distributedInfo={"rank": 11})
    assert [rank.rank for rank in read.ranks] == [11]
    assert [span.name for span in read.spans] == ["gemm"] * 200
    assert any("1 events are left out: they ran on other GPUs" in note for note in read.ranks[0].notes)


def test_a_trace_without_device_properties_has_no_device_and_says_so(tmp_path: Path) -> None:
    read = timeline(tmp_path, kernel(), deviceProperties=[])
    assert (read.device, read.ranks[0].sms) == (None, None)
    assert any("does not describe GPU 0" in note for note in read.ranks[0].notes)


def test_libraries_of_amd_gpus_are_rccl(tmp_path: Path) -> None:
    gpu = {"id": 0, "name": "AMD Instinct MI300X", "numSms": 304}
    read = timeline(tmp_path, kernel(), deviceProperties=[gpu], distributedInfo={"rank": 0, "nccl_version": "2.22.3"})
    assert read.ranks[0].library == "rccl-2.22.3"


# --- real traces -------------------------------------------------------------------------------


@needs_recordings
@pytest.mark.parametrize(
    "name", ["torchrec/a2a_opt5_w4/rank0", "tracelens/b200_w8_rank0_vllm", "tracelens/mi300x_w8_rank0_rccl"]
)
def test_every_gpu_event_of_a_real_trace_becomes_one_span_of_its_times(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    with gzip.open(path) as file:
        document = json.load(file, parse_float=Decimal)
    base = document.get("baseTimeNanoseconds", 0)
    expected = Counter(
        (
            event["name"],
            str(event["args"]["stream"]),
            base + int(event["ts"] * 1000),
            base + int(event["ts"] * 1000) + int(event["dur"] * 1000),
        )
        for event in document["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    read = read_trace(path)
    assert Counter((span.name, span.stream, span.start_ns, span.end_ns) for span in read.spans) == expected
    assert [note for note in read.ranks[0].notes if "left out" in note] == []


@needs_recordings
def test_the_collectives_of_a_real_trace_carry_their_sizes() -> None:
    read = read_trace(TRACES / "hta" / "a100_w2_rank0_collective_args.json.gz")
    comm = read.of("comm")
    assert len(comm) == 21
    reduces = [span.exchange for span in comm if span.exchange and span.exchange.kind == "all-reduce"]
    assert {exchange.group_ranks for exchange in reduces} == {(0, 1)}
    assert 6637568 * 4 in {exchange.in_bytes for exchange in reduces}
    assert read.ranks[0].library == "nccl-2.17.1"
    assert [step.number for step in read.steps] == [4, 5, 6]


# --- the host ----------------------------------------------------------------------------------


def test_calls_that_keep_the_host_from_launching_are_kept_with_their_times(tmp_path: Path) -> None:
    loading = {"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#_Iter.__next__", "ts": 5, "dur": 20}
    read = timeline(
        tmp_path,
        kernel(),
        call("cudaStreamSynchronize", 40, 2),
        call("cudaDeviceSynchronize", 42, 3),
        call("cudaMalloc", 50, 4),
        call("cudaMallocAsync", 60, 5),
        call("cudaEventQuery", 70, 6),
        loading,
    )
    calls = {(item.kind, item.start_ns, item.end_ns) for item in read.host}
    assert calls == {
        ("synchronisation", 40_000, 45_000),
        ("allocator", 50_000, 53_000),
        ("loading", 5_000, 25_000),
    }


def test_kernels_of_operators_with_the_same_input_sizes_have_the_same_number(tmp_path: Path) -> None:
    def operator(number: int, sizes: list[list[int]]) -> dict[str, Any]:
        args = {"External id": number, "Input Dims": sizes}
        return {"ph": "X", "cat": "cpu_op", "name": "aten::cat", "ts": 1, "dur": 2, "args": args}

    def launched(number: int, correlation: int) -> dict[str, Any]:
        args: dict[str, Any] = {"External id": number}
        return kernel(ts=10 * number + correlation % 100, correlation=correlation, **args)

    read = timeline(
        tmp_path,
        *(operator(number, [[8, 4 * number]] if number == 3 else [[8, 4]]) for number in (1, 2, 3)),
        operator(99, [[8, 4]]),
        *(launched(number, 100 + number) for number in (1, 2, 3, 4)),
        launched(99, 99),  # as before 2022: the number of the call
    )
    first, second, third, unknown, old = (span.inputs for span in read.spans)
    assert first == second
    assert first is not None
    assert third not in (None, first)
    assert (unknown, old) == (None, None)
