"""Files that are damaged, cut short, empty or no traces at all: one clear error, or what is readable and a note."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.processes import interruptible

from makeway.read.traces.ranks import map_traces
from makeway.read.traces.read import find_traces, read_trace, recognise
from makeway.values.errors import InputError, TraceError
from makeway.values.timeline import Span, Timeline

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def kernel(number: int, **changed: Any) -> dict[str, Any]:
    name = NCCL if number % 5 == 0 else f"void gemm<{{lambda()#{number % 3}}}>(\"a\", 'b')"
    args = {"device": 0, "stream": 7, "correlation": number + 1, "grid": [8, 1, 1], "block": [256, 1, 1]}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 100 * number, "dur": 50, "args": args, **changed}


def document(*events: Any, **header: Any) -> bytes:
    gpu = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}
    whole = {"deviceProperties": [gpu], "distributedInfo": {"rank": 0}, "traceEvents": list(events), **header}
    return json.dumps(whole, indent=1).encode()


def written(path: Path, data: bytes) -> Path:
    path.unlink(missing_ok=True)  # writing over a file can wait for the disk
    path.write_bytes(data)
    return path


def spans_of(path: Path) -> tuple[Span, ...]:
    try:
        return read_trace(path).spans
    except TraceError:
        return ()


# --- cut short ---------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_left_of_a_file_is_the_start_of_the_whole(tmp_path: Path, packed: bool) -> None:
    data = document(*(kernel(number) for number in range(60)), traceName="a}]b")
    data = gzip.compress(data, mtime=0) if packed else data
    whole = read_trace(written(tmp_path / "whole", data)).spans
    assert len(whole) == 60
    read = [spans_of(written(tmp_path / "part", data[:size])) for size in range(0, len(data), 1 + len(data) // 400)]
    assert all(spans == whole[: len(spans)] for spans in read)
    assert [len(spans) for spans in read] == sorted(len(spans) for spans in read)
    assert len(read[-1]) >= 50


def test_a_file_cut_short_says_after_how_many_events(tmp_path: Path) -> None:
    data = document(*(kernel(number) for number in range(60)))
    at = data.index(b'"correlation": 31')
    (rank,) = read_trace(written(tmp_path / "part.json", data[:at])).ranks
    assert any("cut short" in note and "after 30 events" in note for note in rank.notes)


def test_a_cut_before_the_first_kernel_is_an_error_that_says_so(tmp_path: Path) -> None:
    data = document(kernel(1))
    with pytest.raises(TraceError, match=r"no GPU activity.*cut short"):
        read_trace(written(tmp_path / "a", data[: data.index(b'"ph"')]))
    with pytest.raises(TraceError, match="JSON object without traceEvents"):
        read_trace(written(tmp_path / "b", data[:40]))


def test_damaged_gzip_data_are_an_error_or_a_note(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(document(*(kernel(number) for number in range(2000))), mtime=0))
    assert recognise(written(tmp_path / "whole", bytes(data))) == "kineto"
    data[len(data) // 2] ^= 0xFF
    read = read_trace(written(tmp_path / "flipped", bytes(data)))
    assert len(read.spans) > 900
    assert any("cut short or damaged" in note for note in read.ranks[0].notes)
    with pytest.raises(TraceError, match="gzip data end early or are damaged"):
        read_trace(written(tmp_path / "start", bytes(data[:10])))


# --- events that cannot be used ----------------------------------------------------------------


def test_events_without_times_or_with_negative_durations_are_counted(tmp_path: Path) -> None:
    bad = [kernel(2, ts=None), kernel(3, dur=None), kernel(4, dur=-1), kernel(5, ts="soon"), kernel(6, dur=1e300)]
    read = read_trace(written(tmp_path / "a", document(kernel(1), *bad)))
    assert len(read.spans) == 1
    assert any(note.startswith("5 events are left out: they have no time") for note in read.ranks[0].notes)


def test_events_whose_arguments_cannot_be_read_are_counted(tmp_path: Path) -> None:
    bad = [kernel(2, args=3), kernel(3, args={"grid": "large"}), kernel(4, args={"correlation": 2**80})]
    read = read_trace(written(tmp_path / "a", document(kernel(1), *bad)))
    assert len(read.spans) == 1
    assert any(note.startswith("3 events are left out: their arguments") for note in read.ranks[0].notes)


def test_things_that_are_no_events_are_counted(tmp_path: Path) -> None:
    read = read_trace(written(tmp_path / "a", document(kernel(1), 3, None, "x", [], {"cat": 5}, kernel(2))))
    assert len(read.spans) == 2
    assert any(note.startswith("5 events are left out: they are not valid") for note in read.ranks[0].notes)


def test_kernels_of_no_duration_are_kept(tmp_path: Path) -> None:
    (span,) = read_trace(written(tmp_path / "a", document(kernel(1, dur=0)))).spans
    assert span.duration_ns == 0


def test_a_clock_that_goes_backwards_gives_ordered_spans(tmp_path: Path) -> None:
    read = read_trace(written(tmp_path / "a", document(*(kernel(number, ts=1000 - number) for number in range(9)))))
    assert [span.start_ns for span in read.spans] == sorted(span.start_ns for span in read.spans)
    assert len(read.spans) == 9


@pytest.mark.parametrize(
    "header",
    [
        {"deviceProperties": None, "distributedInfo": None},
        {"deviceProperties": {"id": 0}, "distributedInfo": [1]},
        {"deviceProperties": [3, {"id": "0"}, {"id": 0, "name": 7}], "distributedInfo": {"rank": "0", "pg_config": 1}},
        {"baseTimeNanoseconds": "today", "distributedInfo": {"nccl_version": [2, 3], "world_size": 2.5}},
    ],
)
def test_a_strange_header_costs_only_what_it_would_have_said(tmp_path: Path, header: dict[str, Any]) -> None:
    read = read_trace(written(tmp_path / "a", document(kernel(1), **header)))
    assert len(read.spans) == 1
    assert (read.ranks[0].rank, read.ranks[0].world, read.ranks[0].library) == (0, None, None)


# --- no traces ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is empty"),
        (gzip.compress(b"", mtime=0), "it is empty"),
        (b"   \n", "starts with"),
        (b'{"model": 1, "layers": [1, 2]}', r"without traceEvents \(its keys: model, layers\)"),
        (b'{"traceEvents": {}}', "without traceEvents"),
        (b"[1, 2, 3]", "a JSON array, but not of events"),
        (b"step,loss\n1,2.5\n", "starts with 'step,loss"),
        (b"\x7fELF\x02\0\0\0", "a binary file"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x28\xb5\x2f\xfdrest", "zstd"),
        (gzip.compress(b"SQLite format 3\0", mtime=0), "compressed database"),
    ],
)
def test_a_file_that_is_no_trace_is_told_what_it_is(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        recognise(written(tmp_path / "rank0.json.gz", data))


def test_the_name_of_a_file_says_nothing(tmp_path: Path) -> None:
    assert recognise(written(tmp_path / "notes.txt", document(kernel(1)))) == "kineto"
    assert recognise(written(tmp_path / "a.sqlite", gzip.compress(document()))) == "kineto"
    assert recognise(written(tmp_path / "b.json", b'{"rocprofiler-sdk-tool": [{}]}')) == "rocprofv3"
    assert recognise(written(tmp_path / "c.gz", b"SQLite format 3\0")) == "nsys"
    assert recognise(written(tmp_path / "d", b'[ {"pid": 1, "ph": "X"}')) == "kineto"


@pytest.mark.parametrize("events", [[], [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}] * 3])
def test_a_trace_without_gpu_activity_says_how_to_record_one(tmp_path: Path, events: list[Any]) -> None:
    with pytest.raises(TraceError, match=rf"no GPU activity.*: {len(events)} other events\n.*ProfilerActivity.CUDA"):
        read_trace(written(tmp_path / "a", document(*events)))


def test_missing_files_and_directories_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(tmp_path / "none")
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(tmp_path)


# --- which files -------------------------------------------------------------------------------


def test_a_directory_is_its_traces_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        written(tmp_path / f"rank{number}.json", document(kernel(number)))
    written(tmp_path / "notes.md", b"# notes")
    written(tmp_path / ".hidden", b"x")
    found = find_traces([tmp_path])
    assert [path.name for path in found.files] == ["rank1.json", "rank2.json", "rank10.json"]
    assert [("notes.md" in note, "starts with '# notes'" in note) for note in found.notes] == [(True, True)]


def test_one_file_under_two_names_counts_once(tmp_path: Path) -> None:
    path = written(tmp_path / "rank0.json", document(kernel(1)))
    (tmp_path / "latest.json").symlink_to(path)
    assert find_traces([path, tmp_path / "." / "rank0.json", tmp_path]).files == (path,)


def test_paths_that_hold_no_trace_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no file or directory"):
        find_traces([tmp_path / "none"])
    with pytest.raises(TraceError, match="no trace in directory"):
        find_traces([tmp_path])
    written(tmp_path / "notes.md", b"# notes")
    with pytest.raises(TraceError, match=r"no trace in directory .* 1 other file"):
        find_traces([tmp_path])


# --- several files -----------------------------------------------------------------------------


def first_name(timeline: Timeline) -> str:
    return timeline.spans[0].name


def dies_at_two(timeline: Timeline) -> str:
    if timeline.spans[0].start_ns == 200_000:
        os.kill(os.getpid(), signal.SIGKILL)
    return first_name(timeline)


def interrupts(timeline: Timeline) -> str:
    os.kill(os.getppid(), signal.SIGINT)
    signal.pause()
    return first_name(timeline)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [written(tmp_path / f"{number}.json", document(kernel(number, name=f"k{number}"))) for number in range(4)]


def test_results_come_in_the_order_of_the_files_however_they_are_read(files: list[Path]) -> None:
    told: list[tuple[Path, int]] = []
    alone = map_traces(files, first_name, jobs=1)
    assert alone == ["k0", "k1", "k2", "k3"]
    assert map_traces(files, first_name, jobs=2, progress=lambda *now: told.append(now)) == alone
    assert map_traces(files, first_name) == alone
    assert {(path, size) for path, size in told} == {(path, path.stat().st_size) for path in files}
    assert map_traces([], first_name) == []
    assert multiprocessing.active_children() == []


def test_the_first_error_ends_all(files: list[Path]) -> None:
    files[1].write_text("no trace")
    with pytest.raises(TraceError, match=r"1\.json holds no trace"):
        map_traces(files, first_name, jobs=2)
    assert multiprocessing.active_children() == []


def test_a_process_that_is_killed_is_an_error_that_names_the_file(files: list[Path]) -> None:
    with pytest.raises(TraceError, match=r"the process that read .*2\.json ended by signal SIGKILL"):
        map_traces(files, dies_at_two, jobs=2)
    assert multiprocessing.active_children() == []


def test_an_interrupt_leaves_no_process_behind(files: list[Path]) -> None:
    with interruptible(), pytest.raises(KeyboardInterrupt):
        map_traces(files, interrupts, jobs=2)
    assert multiprocessing.active_children() == []


def test_no_jobs_are_refused(files: list[Path]) -> None:
    with pytest.raises(InputError, match="at least 1 job"):
        map_traces(files, first_name, jobs=0)
