"""Traces given on a command line, read by one process each, with a bar on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from makeway.decide.analysis.rank import Question, RankRecord, rank_records
from makeway.read.traces.classify import load_comm_names
from makeway.read.traces.ranks import map_traces
from makeway.read.traces.read import find_traces
from makeway.values.timeline import Timeline

Told = Callable[[Path, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceInput:
    """What the traces say rank by rank, what was passed over, and the spans where they are to be drawn."""

    records: list[RankRecord]
    timelines: list[Timeline]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What a worker sends back: findings always, the spans only when asked for."""

    records: list[RankRecord]
    timeline: Timeline | None


def read_records(
    paths: Sequence[Path],
    question: Question,
    *,
    comm_names: Path | None = None,
    jobs: int | None = None,
    keep_spans: bool = False,
) -> TraceInput:
    """The records of all ranks in the files and directories named."""
    found = find_traces(paths)
    with _progress(found.files) as told:
        read = map_traces(
            found.files,
            partial(_read, question=question, keep=keep_spans),
            comm=load_comm_names(comm_names),
            jobs=jobs,
            progress=told,
        )
    return TraceInput(
        records=[record for item in read for record in item.records],
        timelines=[item.timeline for item in read if item.timeline is not None],
        notes=found.notes,
    )


def _read(timeline: Timeline, *, question: Question, keep: bool) -> _Read:
    return _Read(records=rank_records(timeline, question), timeline=timeline if keep else None)


@contextmanager
def _progress(files: Sequence[Path]) -> Iterator[Told | None]:
    """A bar over the bytes of all files; nothing where stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    seen = dict.fromkeys(files, 0)
    columns = (TextColumn("reading"), BarColumn(), TextColumn("{task.percentage:>3.0f} %  {task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{len(files)} traces", total=sum(path.stat().st_size for path in files) or 1)

        def told(path: Path, read_bytes: int) -> None:
            seen[path] = read_bytes
            bar.update(task, completed=sum(seen.values()), description=path.name)

        yield told
