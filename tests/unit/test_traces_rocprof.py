"""rocprofv3 results: a real file, and small ones that show one thing each."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.recordings import RECORDINGS, needs_recordings

from makeway.read.traces.classify import load_comm_names
from makeway.read.traces.rocprof import read_rocprof
from makeway.values.device import load_device
from makeway.values.errors import TraceError
from makeway.values.kernel import KernelResources, Launch
from makeway.values.timeline import Timeline

REAL = RECORDINGS / "tracelens" / "mi350x_rocprofv3_results.json.gz"
COMM = load_comm_names()
RCCL = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"


def agent(handle: int, *, name: str = "gfx942", number: int = 0) -> dict[str, Any]:
    return {
        "id": {"handle": handle}, "type": 2, "name": name, "product_name": "AMD Instinct MI300X", "cu_count": 304,
        "logical_node_type_id": number,
    }  # fmt: skip


def symbol(kernel: int, *, name: str = "gemm", vgprs: int = 64, agprs: int = 64, sgprs: int = 32) -> dict[str, Any]:
    return {
        "kernel_id": kernel, "kernel_name": f"{name}.kd", "formatted_kernel_name": name, "arch_vgpr_count": vgprs,
        "accum_vgpr_count": agprs, "sgpr_count": sgprs,
    }  # fmt: skip


def dispatch(kernel: int = 1, *, gpu: int = 10, start: int = 1_000, end: int = 2_000, **extra: Any) -> dict[str, Any]:
    info = {
        "agent_id": {"handle": gpu}, "queue_id": {"handle": 4}, "kernel_id": kernel, "group_segment_size": 1_024,
        "workgroup_size": {"x": 256, "y": 1, "z": 1}, "grid_size": {"x": 1_000, "y": 3, "z": 1},
    }  # fmt: skip
    record = {"start_timestamp": start, "end_timestamp": end, "correlation_id": {"internal": 77, "external": 0}}
    return {**record, "dispatch_info": info, **extra}


def results(*dispatches: dict[str, Any], **changed: Any) -> dict[str, Any]:
    process = {
        "metadata": {"pid": 908},
        "agents": [{"id": {"handle": 1}, "type": 1, "name": "EPYC"}, agent(10), agent(11, number=1)],
        "kernel_symbols": [symbol(1), symbol(2, name=RCCL)],
        "strings": {
            "buffer_records": [
                {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"]}
            ]
        },
        "buffer_records": {"kernel_dispatch": list(dispatches), **changed.pop("records", {})},
    }
    return {"rocprofiler-sdk-tool": [{**process, **changed}]}


def read(tmp_path: Path, document: object) -> Timeline:
    file = tmp_path / "results.json"
    file.write_text(json.dumps(document))
    return read_rocprof(file, comm=COMM)


def notes(timeline: Timeline) -> str:
    return " | ".join(timeline.ranks[0].notes)


# --- the real file -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Timeline:
    return read_rocprof(REAL, comm=COMM)


@needs_recordings
def test_a_real_file_gives_every_dispatch_and_its_collectives(real: Timeline) -> None:
    assert Counter(span.kind for span in real.spans) == {"compute": 36_239, "memory": 6_366, "comm": 1_310}
    (rank,) = real.ranks
    assert (rank.rank, rank.device, rank.sms) == (0, "AMD Instinct MI350X", 256)
    assert load_device(rank.device or "").name == "MI350X"
    assert real.waits is None


@needs_recordings
def test_rccl_of_a_real_file_is_granted_twice_the_registers_that_were_counted_in_fours(real: Timeline) -> None:
    launches = Counter(span.launch for span in real.of("comm"))
    # 92 in the file. A gfx950 kernel descriptor of 22 means (22 + 1) x 8 registers; the profiler took it for x 4.
    block = KernelResources(threads=256, registers_per_thread=184, smem_bytes=37_664, scalar_registers=112)
    assert launches == {
        Launch(blocks=104, threads=256, resources=block, grid=(104, 1, 1)): 1_208,
        Launch(blocks=110, threads=256, resources=block, grid=(110, 1, 1)): 101,
        Launch(blocks=1, threads=256, resources=block, grid=(1, 1, 1)): 1,
    }
    assert "vector registers are doubled" in notes(real)


@needs_recordings
def test_spans_come_in_the_order_of_time_on_the_streams_of_the_record(real: Timeline) -> None:
    spans = real.spans
    assert all(one.start_ns <= other.start_ns for one, other in pairwise(spans))
    assert {"567", "565"} <= {span.stream for span in spans}


@needs_recordings
def test_progress_counts_up_to_the_size_of_the_file() -> None:
    told: list[int] = []
    read_rocprof(REAL, comm=COMM, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == REAL.stat().st_size


# --- one thing each ----------------------------------------------------------------------------


def test_a_grid_counts_work_items_and_a_last_block_may_be_part_empty(tmp_path: Path) -> None:
    (span,) = read(tmp_path, results(dispatch())).spans
    resources = KernelResources(threads=256, registers_per_thread=128, smem_bytes=1_024, scalar_registers=32)
    assert span.launch == Launch(blocks=12, threads=256, resources=resources, grid=(4, 3, 1))
    assert (span.name, span.kind, span.stream, span.launched_ns) == ("gemm", "compute", "queue 4", None)


@pytest.mark.parametrize(
    ("gfx", "vgprs", "agprs", "registers"),
    [
        ("gfx90a", 128, 64, 192),  # one file: both count
        ("gfx942", 92, 4, 96),
        ("gfx950", 92, 4, 96),  # a profiler that knows gfx950
        ("gfx950", 92, 0, 184),  # one that does not
        ("gfx950", 64, 0, 64),  # nothing shows that it does not
        ("gfx908", 128, 128, 128),  # two files: the same registers reported twice
    ],
)
def test_registers_are_what_the_hardware_grants(
    tmp_path: Path, gfx: str, vgprs: int, agprs: int, registers: int
) -> None:
    document = results(dispatch(), agents=[agent(10, name=gfx)], kernel_symbols=[symbol(1, vgprs=vgprs, agprs=agprs)])
    (span,) = read(tmp_path, document).spans
    assert span.launch is not None
    assert span.launch.resources is not None
    assert span.launch.resources.registers_per_thread == registers


def test_each_gpu_with_work_is_a_rank(tmp_path: Path) -> None:
    timeline = read(tmp_path, results(dispatch(), dispatch(2, gpu=11)))
    assert [rank.rank for rank in timeline.ranks] == [0, 1]
    assert [(span.rank, span.kind) for span in timeline.spans] == [(0, "compute"), (1, "comm")]


def test_a_stream_is_used_where_it_is_recorded(tmp_path: Path) -> None:
    (span,) = read(tmp_path, results(dispatch(stream_id={"handle": 12}))).spans
    assert span.stream == "12"


def test_launch_times_are_those_of_the_hip_call(tmp_path: Path) -> None:
    calls = [{"start_timestamp": 900, "end_timestamp": 950, "correlation_id": {"internal": 77}, "operation": 3}]
    timeline = read(tmp_path, results(dispatch(), records={"hip_api": calls}))
    assert timeline.spans[0].launched_ns == 900
    assert "--hip-trace" not in notes(timeline)
    assert "--hip-trace" in notes(read(tmp_path, results(dispatch())))


def test_copies_between_gpus_are_communication_and_others_are_not(tmp_path: Path) -> None:
    def copy(source: int, target: int) -> dict[str, Any]:
        ends = {"src_agent_id": {"handle": source}, "dst_agent_id": {"handle": target}}
        return {"start_timestamp": 5, "end_timestamp": 9, "kind": 0, "operation": 1, **ends}

    copies = [copy(10, 11), copy(1, 10), copy(11, 1), copy(10, 10), copy(1, 1)]
    timeline = read(tmp_path, results(records={"memory_copy": copies}))
    assert [(span.rank, span.kind) for span in timeline.spans] == [
        (0, "copy"), (0, "memory"), (1, "memory"), (0, "memory"),
    ]  # fmt: skip
    assert timeline.spans[0].name == "MEMORY_COPY_HOST_TO_DEVICE"
    assert "1 records are left out" in notes(timeline)


def test_copies_that_run_as_kernels_of_the_runtime_are_memory(tmp_path: Path) -> None:
    document = results(dispatch(), kernel_symbols=[symbol(1, name="__amd_rocclr_copyBuffer")])
    assert read(tmp_path, document).spans[0].kind == "memory"


@pytest.mark.parametrize("wrong", [{"vgprs": 0, "agprs": 0}, {"vgprs": 400, "agprs": 400}, {"sgprs": 129}])
def test_resources_out_of_range_are_left_out_and_counted(tmp_path: Path, wrong: dict[str, Any]) -> None:
    timeline = read(tmp_path, results(dispatch(), kernel_symbols=[symbol(1, **wrong)]))
    assert timeline.spans[0].launch == Launch(blocks=12, threads=256, grid=(4, 3, 1))
    assert "1 kernels have no usable register counts" in notes(timeline)


def test_records_that_cannot_be_placed_are_left_out_and_counted(tmp_path: Path) -> None:
    timeline = read(tmp_path, results(dispatch(), dispatch(9), dispatch(gpu=99), dispatch(start=3_000)))
    assert len(timeline.spans) == 1
    assert "2 records are left out: their GPU or kernel is not described" in notes(timeline)
    assert "1 records are left out: they end before they start" in notes(timeline)


# --- files that cannot be used -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (results(), "holds no GPU activity (2 GPUs seen"),
        ({"rocprofiler-sdk-tool": []}, "holds no GPU activity"),
        ({"traceEvents": []}, "not a known form of rocprofv3 results"),
        ({"rocprofiler-sdk-tool": {}}, "not a known form of rocprofv3 results"),
        ([], "not a known form of rocprofv3 results"),
        (results({"start_timestamp": "now"}), "not a known form of rocprofv3 results"),
    ],
)
def test_other_documents_are_refused_with_the_reason(tmp_path: Path, document: object, said: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, document)
    assert said in str(caught.value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True), packed=st.booleans())
def test_a_file_cut_short_is_an_error(tmp_path: Path, share: float, packed: bool) -> None:
    text = json.dumps(results(dispatch(), dispatch(2))).encode()
    whole = gzip.compress(text, mtime=0) if packed else text
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(TraceError):
        read_rocprof(cut, comm=COMM)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.json"):
        read_rocprof(tmp_path / "absent.json", comm=COMM)
