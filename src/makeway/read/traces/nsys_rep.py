"""Nsight Systems reports (.nsys-rep): only NVIDIA's own tool reads them, so it exports them to SQLite first."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from makeway.read.traces.classify import CommNames
from makeway.read.traces.nsys import read_nsys
from makeway.values.errors import TraceError, printable
from makeway.values.timeline import Timeline

EXPORT_SECONDS = 1_800
GROWTH = 20  # the most that a report grows when it is exported; the temporary directory must hold that much


def read_nsys_rep(path: Path, *, comm: CommNames) -> Timeline:
    """The timeline of a report, through an export to a temporary directory."""
    nsys = shutil.which("nsys")
    if nsys is None:
        raise TraceError(
            f"{printable(path)} is an Nsight Systems report, which only `nsys` reads, and it is not installed here\n"
            f"Where it is, run: {_line(path)}"
        )
    with tempfile.TemporaryDirectory(prefix="makeway-nsys-") as folder:
        free, size = shutil.disk_usage(folder).free, path.stat().st_size
        if free < GROWTH * size:
            raise TraceError(
                f"{folder} has {free >> 20:,} MiB free; the export of {printable(path)} ({size >> 20:,} MiB) may need "
                f"{GROWTH * size >> 20:,}\nSet TMPDIR to a larger place, or run: {_line(path)}"
            )
        exported = Path(folder) / "report.sqlite"
        _export(nsys, path, exported)
        timeline = read_nsys(exported, comm=comm)
    return replace(timeline, ranks=tuple(replace(rank, source=str(path)) for rank in timeline.ranks))


def _line(path: Path) -> str:
    name = printable(path.with_suffix(""))
    return f"nsys export --type sqlite --output {name}.sqlite {printable(path)}"


def _export(nsys: str, path: Path, to: Path) -> None:
    command = [
        nsys,
        "export",
        "--type",
        "sqlite",
        "--force-overwrite",
        "true",
        "--output",
        str(to),
        str(path.resolve()),
    ]
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=EXPORT_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise TraceError(f"nsys export of {printable(path)} took more than {EXPORT_SECONDS} s") from None
    except OSError as error:
        raise TraceError(f"cannot run {printable(nsys)}: {error.strerror}") from None
    if done.returncode or not to.is_file():
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise TraceError(
            f"nsys export of {printable(path)} failed with exit code {done.returncode}; it said: {printable(said[-1])}"
        )
