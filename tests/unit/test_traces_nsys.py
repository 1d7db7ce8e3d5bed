"""Nsight Systems exports: two real ones, and small ones that show one thing each."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.recordings import RECORDINGS, needs_recordings

from makeway.read.traces.classify import load_comm_names
from makeway.read.traces.nsys import read_nsys
from makeway.values.errors import TraceError
from makeway.values.kernel import KernelResources, Launch
from makeway.values.timeline import Rank, Step, Timeline, Wait

REAL = RECORDINGS / "nsys-ai"
COMM = load_comm_names()
PROCESS = 281_476_838_981_632  # a serialised process id; its pid is 111
NCCL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

KERNEL: dict[str, Any] = {
    "start": 1_000, "end": 2_000, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 5,
    "globalPid": PROCESS, "demangledName": 1, "shortName": 2, "registersPerThread": 96,
    "gridX": 8, "gridY": 2, "gridZ": 1, "blockX": 64,
    "blockY": 4, "blockZ": 1, "staticSharedMemory": 1_000, "dynamicSharedMemory": 24, "sharedMemoryExecuted": 32_768,
    "clusterX": 2, "clusterY": 1, "clusterZ": 1,
}  # fmt: skip
STRINGS = {"id": 1, "value": NCCL}


def export(path: Path, tables: Mapping[str, list[dict[str, Any]]]) -> Path:
    with closing(sqlite3.connect(path)) as db, db:
        for table, rows in tables.items():
            columns = list(rows[0])
            db.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            marks = ", ".join("?" * len(columns))
            db.executemany(f"INSERT INTO {table} VALUES ({marks})", [tuple(row.values()) for row in rows])
    return path


def read(tmp_path: Path, kernels: list[dict[str, Any]] | None = None, **tables: list[dict[str, Any]]) -> Timeline:
    named = {"CUPTI_ACTIVITY_KIND_KERNEL": kernels or [KERNEL], "StringIds": [STRINGS], **tables}
    return read_nsys(export(tmp_path / "small.sqlite", named), comm=COMM)


def unpacked(name: str, folder: Path) -> Path:
    return Path(shutil.copy(REAL / name, folder))


def rank_of(timeline: Timeline) -> Rank:
    (rank,) = timeline.ranks
    return rank


# --- real exports ------------------------------------------------------------------------------


@needs_recordings
def test_both_gpus_of_a_real_export_are_ranks_with_their_collectives(tmp_path: Path) -> None:
    timeline = read_nsys(unpacked("mfu_2gpu_before.sqlite", tmp_path), comm=COMM)
    assert [rank.rank for rank in timeline.ranks] == [0, 1]
    counts = Counter((span.rank, span.kind) for span in timeline.spans)
    assert counts[0, "comm"] == counts[1, "comm"] == 33
    assert sum(count for (_, kind), count in counts.items() if kind in ("comm", "compute")) == 4_010
    blocks = {span.launch for span in timeline.of("comm")}
    resources = KernelResources(threads=640, registers_per_thread=96, smem_bytes=103_808, cluster=4)
    assert blocks == {Launch(blocks=32, threads=640, resources=resources, grid=(32, 1, 1))}
    assert all(span.exchange is not None and span.exchange.kind == "send-recv" for span in timeline.of("comm"))


@needs_recordings
def test_a_real_export_says_what_it_lacks(tmp_path: Path) -> None:
    timeline = read_nsys(unpacked("mfu_2gpu_before.sqlite", tmp_path), comm=COMM)
    notes = " ".join(timeline.ranks[0].notes)
    assert (timeline.device, timeline.waits) == (None, None)
    assert "no TARGET_INFO_GPU" in notes
    assert "200 stream waits cannot be followed" in notes
    assert "31 of 5,299 activities have no launch time" in notes


@needs_recordings
def test_a_real_export_without_collectives_has_no_comm(tmp_path: Path) -> None:
    timeline = read_nsys(unpacked("h100_2gpu_1s.sqlite", tmp_path), comm=COMM)
    assert Counter(span.kind for span in timeline.spans) == {"compute": 3_442, "memory": 926}


@needs_recordings
def test_a_launch_never_comes_after_its_start(tmp_path: Path) -> None:
    timeline = read_nsys(unpacked("mfu_2gpu_before.sqlite", tmp_path), comm=COMM)
    asked = [(span.launched_ns, span.start_ns) for span in timeline.spans if span.launched_ns is not None]
    assert len(asked) == 5_299 - 31
    # The clocks of host and GPU are matched to about a millisecond.
    assert all(asked_ns <= start_ns + 1_000_000 for asked_ns, start_ns in asked)


@needs_recordings
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_an_export_cut_short_is_an_error_and_never_a_shorter_trace(tmp_path: Path, share: float) -> None:
    whole = (REAL / "mfu_2gpu_before.sqlite").read_bytes()
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(TraceError):
        read_nsys(cut, comm=COMM)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=30))
def test_a_damaged_export_gives_a_timeline_or_a_trace_error(tmp_path: Path, flips: list[tuple[float, int]]) -> None:
    damaged = export(tmp_path / "damaged.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [KERNEL] * 40, "StringIds": [STRINGS]})
    data = bytearray(damaged.read_bytes())
    for share, change in flips:
        data[int(len(data) * share)] ^= change
    damaged.write_bytes(data)
    try:
        assert read_nsys(damaged, comm=COMM).spans
    except TraceError:
        pass
    finally:
        damaged.unlink()


# --- one thing each ----------------------------------------------------------------------------


def test_a_block_asks_for_static_and_dynamic_memory_not_the_carve_out(tmp_path: Path) -> None:
    (span,) = read(tmp_path).spans
    resources = KernelResources(threads=256, registers_per_thread=96, smem_bytes=1_024, cluster=2)
    assert span.launch == Launch(blocks=16, threads=256, resources=resources, grid=(8, 2, 1))
    assert (span.kind, span.stream, span.start_ns, span.end_ns, span.name) == ("comm", "7", 1_000, 2_000, NCCL)


@pytest.mark.parametrize(("stored", "priority"), [(0, 0), (4_294_967_295, -1), (4_294_967_291, -5), (3, 3)])
def test_stream_priorities_are_signed(tmp_path: Path, stored: int, priority: int) -> None:
    stream = {"streamId": 7, "processId": 111, "contextId": 1, "priority": stored, "flag": 2}
    (span,) = read(tmp_path, TARGET_INFO_CUDA_STREAM=[stream]).spans
    assert span.priority == priority


def test_the_gpu_is_named_where_the_export_knows_it(tmp_path: Path) -> None:
    timeline = read(tmp_path, TARGET_INFO_GPU=[{"id": 0, "name": "NVIDIA H100 80GB HBM3", "smCount": 132}])
    assert timeline.device == "NVIDIA H100 80GB HBM3"
    assert (rank_of(timeline).device, rank_of(timeline).sms) == ("NVIDIA H100 80GB HBM3", 132)


def test_a_process_that_sees_one_gpu_of_many_gets_that_gpus_number(tmp_path: Path) -> None:
    timeline = read(
        tmp_path,
        TARGET_INFO_CUDA_DEVICE=[{"gpuId": 3, "cudaId": 0, "pid": 111}],
        TARGET_INFO_GPU=[{"id": 3, "name": "NVIDIA A40", "smCount": 84}],
    )
    assert (rank_of(timeline).rank, timeline.device, timeline.spans[0].rank) == (3, "NVIDIA A40", 3)


def test_two_processes_on_one_gpu_are_two_ranks(tmp_path: Path) -> None:
    timeline = read(tmp_path, [KERNEL, {**KERNEL, "globalPid": PROCESS + (1 << 24)}])
    assert [rank.rank for rank in timeline.ranks] == [0, 1]
    assert sorted(span.rank for span in timeline.spans) == [0, 1]
    assert any("several processes used one GPU" in note for note in timeline.ranks[0].notes)


def test_a_launch_is_the_call_of_the_same_process(tmp_path: Path) -> None:
    calls = [
        {"start": 900, "end": 950, "globalTid": PROCESS + 42, "correlationId": 5, "nameId": 1},
        {"start": 100, "end": 150, "globalTid": PROCESS + (1 << 24), "correlationId": 5, "nameId": 1},
        {"start": 800, "end": 850, "globalTid": PROCESS + 42, "correlationId": 4, "nameId": 1},
    ]
    (span,) = read(tmp_path, CUPTI_ACTIVITY_KIND_RUNTIME=calls).spans
    assert span.launched_ns == 900


def test_copies_between_gpus_are_communication_and_others_are_not(tmp_path: Path) -> None:
    place = {
        key: KERNEL[key] for key in ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
    }
    copies = [
        {**place, "copyKind": 10, "srcDeviceId": None, "dstDeviceId": None},
        {**place, "copyKind": 8, "srcDeviceId": 0, "dstDeviceId": 1},
        {**place, "copyKind": 8, "srcDeviceId": 0, "dstDeviceId": 0},
        {**place, "copyKind": 1, "srcDeviceId": None, "dstDeviceId": None},
    ]
    timeline = read(tmp_path, CUPTI_ACTIVITY_KIND_MEMCPY=copies, CUPTI_ACTIVITY_KIND_MEMSET=[place])
    assert Counter(span.kind for span in timeline.spans) == {"comm": 1, "copy": 2, "memory": 3}


def test_a_wait_leads_to_where_its_event_was_recorded(tmp_path: Path) -> None:
    calls = [
        {"start": 500, "end": 501, "globalTid": PROCESS + 42, "correlationId": 11},
        {"start": 600, "end": 601, "globalTid": PROCESS + 42, "correlationId": 12},
    ]
    event = {"globalPid": PROCESS, "contextId": 1, "streamId": 7, "correlationId": 11, "eventId": 9, "eventSyncId": 1}
    # The device of the record is wrong on purpose, as it is in real exports.
    wait = {**event, "deviceId": 6, "streamId": 20, "correlationId": 12, "syncType": 2, "start": 600, "end": 601}
    timeline = read(
        tmp_path,
        CUPTI_ACTIVITY_KIND_RUNTIME=calls,
        CUPTI_ACTIVITY_KIND_CUDA_EVENT=[event],
        CUPTI_ACTIVITY_KIND_SYNCHRONIZATION=[wait, {**wait, "syncType": 3}, {**wait, "eventSyncId": 2}],
    )
    assert timeline.waits == (Wait(rank=0, stream="20", asked_ns=600, on_stream="7", recorded_ns=500),)
    assert any("1 stream waits cannot be followed" in note for note in rank_of(timeline).notes)


def test_ranges_named_like_steps_become_steps(tmp_path: Path) -> None:
    thread = PROCESS + 42
    ranges: list[dict[str, Any]] = [
        {"start": 10, "end": 20, "eventType": 59, "text": "ProfilerStep#3", "textId": None, "globalTid": thread},
        {"start": 20, "end": 30, "eventType": 60, "text": None, "textId": 50, "globalTid": thread},
        {"start": 20, "end": 30, "eventType": 59, "text": "optimizer.step", "textId": None, "globalTid": thread},
        {"start": 20, "end": None, "eventType": 34, "text": "step 9", "textId": None, "globalTid": thread},
    ]
    timeline = read(tmp_path, NVTX_EVENTS=ranges, StringIds=[STRINGS, {"id": 50, "value": "step 4"}])
    assert timeline.steps == (
        Step(number=3, rank=0, start_ns=10, end_ns=20),
        Step(number=4, rank=0, start_ns=20, end_ns=30),
    )


def test_an_older_export_without_resources_still_gives_spans(tmp_path: Path) -> None:
    lean = {key: KERNEL[key] for key in ("start", "end", "deviceId", "streamId", "shortName")}
    timeline = read(tmp_path, [lean], StringIds=[{"id": 2, "value": "ncclDevKernel_SendRecv"}])
    (span,) = timeline.spans
    assert (span.kind, span.launch) == ("comm", None)
    assert any("1 kernels have no usable register" in note for note in rank_of(timeline).notes)


@pytest.mark.parametrize(
    "wrong",
    [{"registersPerThread": 0}, {"dynamicSharedMemory": None}, {"clusterX": 1_000}, {"registersPerThread": "x"}],
)
def test_resources_out_of_range_are_left_out_and_counted(tmp_path: Path, wrong: dict[str, Any]) -> None:
    timeline = read(tmp_path, [{**KERNEL, **wrong}])
    assert timeline.spans[0].launch == Launch(blocks=16, threads=256, grid=(8, 2, 1))
    assert any("1 kernels have no usable register" in note for note in rank_of(timeline).notes)


@pytest.mark.parametrize(
    "wrong", [{"end": 999}, {"start": None}, {"start": 0, "end": 0}, {"streamId": None}, {"end": "x"}]
)
def test_records_without_a_time_or_place_are_left_out_and_counted(tmp_path: Path, wrong: dict[str, Any]) -> None:
    timeline = read(tmp_path, [KERNEL, {**KERNEL, **wrong}])
    assert len(timeline.spans) == 1
    assert any(note.startswith("1 records are left out") for note in rank_of(timeline).notes)


# --- files that cannot be used -----------------------------------------------------------------


@needs_recordings
def test_what_is_no_export_is_refused_with_the_reason(tmp_path: Path) -> None:
    text = tmp_path / "text.sqlite"
    text.write_text("hello " * 1_000)
    with pytest.raises(TraceError, match="not an SQLite database"):
        read_nsys(text, comm=COMM)
    damaged = unpacked("h100_2gpu_1s.sqlite", tmp_path)
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    with pytest.raises(TraceError, match="cut short or damaged"):
        read_nsys(damaged, comm=COMM)
    with pytest.raises(TraceError, match="no such file"):
        read_nsys(tmp_path / "absent.sqlite", comm=COMM)
    other = export(tmp_path / "other.sqlite", {"PEOPLE": [{"name": "x"}]})
    with pytest.raises(TraceError, match=r"without kernels \(1 tables\)"):
        read_nsys(other, comm=COMM)
    lean = export(tmp_path / "lean.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [{"start": 1, "end": 2, "deviceId": 0}]})
    with pytest.raises(TraceError, match="lacks streamId"):
        read_nsys(lean, comm=COMM)
    untimed = export(tmp_path / "untimed.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [{**KERNEL, "start": None}]})
    with pytest.raises(TraceError, match="no kernel has a start"):
        read_nsys(untimed, comm=COMM)


@needs_recordings
def test_reading_leaves_the_file_and_its_folder_as_they_were(tmp_path: Path) -> None:
    file = unpacked("h100_2gpu_1s.sqlite", tmp_path)
    before = file.read_bytes()
    read_nsys(file, comm=COMM)
    assert file.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [file.name]
