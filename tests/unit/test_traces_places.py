"""Where traces are found: directories below one another, remote places, reports that nsys must export."""

from __future__ import annotations

import builtins
import json
import os
import sqlite3
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from makeway import analyze
from makeway.read.traces import places
from makeway.read.traces.read import find_traces, read_trace
from makeway.values.errors import MissingExtraError, TraceError


def trace(path: Path, rank: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(document(rank))
    return path


def document(rank: int) -> bytes:
    args = {"device": 0, "stream": 7}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 5, "args": args}
    return json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": [kernel]}).encode()


# --- directories -----------------------------------------------------------------------------------


def test_directories_are_searched_to_the_bottom(tmp_path: Path) -> None:
    deep = trace(tmp_path / "a" / "b" / "rank1.json")
    top = trace(tmp_path / "rank0.json")
    trace(tmp_path / ".hidden" / "rank2.json")
    (tmp_path / "a" / "again").symlink_to(tmp_path)  # a loop
    (tmp_path / "a" / "notes.txt").write_text("notes")
    (tmp_path / "a" / "more.txt").write_text("notes")
    found = find_traces([tmp_path])
    assert set(found.files) == {deep, top}
    assert len(found.notes) == 1
    assert found.notes[0].startswith("2 other files are left out")


def test_depth_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MOST_DEPTH", 2)
    near = trace(tmp_path / "1" / "2" / "rank0.json")
    trace(tmp_path / "1" / "2" / "3" / "rank1.json")
    assert find_traces([tmp_path]).files == (near,)


def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MOST_FILES", 2)
    for rank in range(3):
        trace(tmp_path / f"rank{rank}.json", rank)
    with pytest.raises(TraceError, match="more than 2 files"):
        find_traces([tmp_path])


# --- remote places ---------------------------------------------------------------------------------


def test_a_remote_directory_reads_like_a_local_one(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for rank in range(2):
        with memory.open(f"/makeway-test/run/rank{rank}.json", "wb") as file:
            file.write(document(rank))
    monkeypatch.setattr(type(memory), "get", None)  # nothing is copied as a whole
    analysis = analyze(["memory://makeway-test"], what_if=False)
    assert [rank.figures.compute_ns for rank in analysis.ranks] == [5_000, 5_000]
    with pytest.raises(TraceError, match="no file or directory"):
        find_traces([Path("memory://makeway-test/none")])


def test_a_local_file_comes_before_a_remote_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trace(Path("memory:/rank0.json"))
    assert places.remote_url(Path("memory:/rank0.json")) is None
    assert read_trace(Path("memory:/rank0.json")).spans


def test_a_missing_package_names_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_fsspec(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("fsspec"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.delitem(sys.modules, "fsspec.core", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_fsspec)
    with pytest.raises(MissingExtraError, match=r"pip install 'makeway\[remote\]'"):
        find_traces([Path("s3://bucket/run")])


def test_an_unknown_scheme_is_no_place() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(TraceError, match="nowhere:// is no place"):
        find_traces([Path("nowhere://bucket/run")])


# --- reports of Nsight Systems ---------------------------------------------------------------------


def report(path: Path) -> Path:
    path.write_bytes(b"\x00\x01report\x00\xff" * 4)
    return path


def test_a_report_names_the_export_line_where_nsys_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = report(tmp_path / "job.nsys-rep")
    with pytest.raises(TraceError, match=f"nsys export --type sqlite --output {tmp_path}/job.sqlite {path}"):
        read_trace(path)


def stand_in(place: Path, body: str) -> None:
    """An nsys that writes what the test gives it."""
    program = place / "nsys"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_nsys_exports_a_report_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "ready.sqlite"
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        db.execute("INSERT INTO StringIds VALUES (1, 'gemm')")
        db.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, "
            "globalPid, demangledName, shortName, gridX, gridY, gridZ, blockX, blockY, blockZ)"
        )
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 6000, 0, 1, 7, 1, 0, 1, 1, 8, 1, 1, 64, 1, 1)")
    db.close()
    stand_in(tmp_path, f'while [ "$1" != --output ]; do shift; done; cp {database} "$2"')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    path = report(tmp_path / "job.nsys-rep")
    timeline = read_trace(path)
    assert [(span.name, span.duration_ns) for span in timeline.spans] == [("gemm", 5_000)]
    assert timeline.ranks[0].source == str(path), "not the temporary file"


def test_a_failed_export_says_what_nsys_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "echo 'unsupported version' >&2; exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(TraceError, match="exit code 3; it said: unsupported version"):
        read_trace(report(tmp_path / "job.nsys-rep"))
