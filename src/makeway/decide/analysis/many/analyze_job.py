"""`analyze_job`, `write_shard` and `merge`: a job's traces to summaries on any engine, and summaries to one answer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from makeway.decide.analysis.many.job import JobAnalysis
from makeway.decide.analysis.many.map_rank import MapOptions, summaries_of
from makeway.decide.analysis.many.reduce import job_of
from makeway.decide.analysis.many.summary import MAGIC, stored_summaries
from makeway.read.fanout import engine, is_root, spread
from makeway.read.traces.places import size_bytes
from makeway.read.traces.read import find_traces
from makeway.values.errors import InputError, MakewayError, printable

MANY_FILES = 64  # from here on, `makeway analyze` summarises ranks by itself

Progress = Callable[[int, int], None]  # traces read, of all


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A part of a job's traces, by number from 1."""

    index: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.of:
            raise InputError(f"a shard is 1/N to N/N, got {self.index}/{self.of}")

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """The summaries of a shard, written to a file."""

    shard: Shard
    path: Path
    traces: int
    all_traces: int
    trace_bytes: int
    summary_bytes: int
    notes: tuple[str, ...] = ()


def parse_shard(text: str) -> Shard:
    """The shard that "3/16" names."""
    index, separator, of = text.partition("/")
    if not separator or not index.isdecimal() or not of.isdecimal() or len(text) > 12:
        raise InputError(f"--shard takes I/N, such as 3/16, got {text!r}")
    return Shard(index=int(index), of=int(of))


def analyze_job(
    paths: Iterable[Path | str],
    *,
    on: str = "local",
    options: MapOptions | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> JobAnalysis | None:
    """Analyse the traces of a job of any size; `on` names the engine that reads them (see `fanout.engine`).

    The answer is the same on every engine. It is None on MPI ranks other than 0, which only read.
    """
    with tempfile.TemporaryDirectory(prefix="makeway-") as folder:
        spool = Path(folder) / "job.summary"
        traces = _summarised(paths, spool, on=on, options=options, jobs=jobs, progress=progress)
        return None if traces is None else job_of(stored_summaries([spool]), notes=traces[1])


def write_shard(
    paths: Iterable[Path | str],
    shard: Shard,
    out: Path,
    *,
    on: str = "local",
    options: MapOptions | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> ShardFile | None:
    """Write the summaries of one shard of the traces, for `merge`; every Nth trace belongs to a shard."""
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.unfinished")
    try:
        traces = _summarised(paths, unfinished, shard, on=on, options=options, jobs=jobs, progress=progress)
        if traces is None:
            return None
        os.replace(unfinished, out)
    except OSError as error:
        raise InputError(f"cannot write {printable(out)}: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    files, notes, everything = traces
    return ShardFile(
        shard=shard,
        path=out,
        traces=len(files),
        all_traces=everything,
        trace_bytes=sum(map(size_bytes, files)),
        summary_bytes=out.stat().st_size,
        notes=tuple(notes),
    )


def merge(paths: Iterable[Path | str]) -> JobAnalysis:
    """The job whose shards are in these files."""
    files = [Path(path) for path in paths]
    try:
        return job_of(stored_summaries(files))
    except (IndexError, KeyError, ValueError, OverflowError) as error:  # columns that contradict their header
        names = ", ".join(printable(path) for path in files[:3])
        raise InputError(f"the summaries in {names} contradict themselves ({error}); write them again") from None


def _summarised(
    paths: Iterable[Path | str],
    out: Path,
    shard: Shard | None = None,
    *,
    on: str,
    options: MapOptions | None,
    jobs: int | None,
    progress: Progress | None,
) -> tuple[Sequence[Path], Sequence[str], int] | None:
    """Write the summaries of all traces to `out`: the traces, notes, and how many there are in all shards."""
    open_executor = engine(on, jobs=jobs)
    work = partial(summaries_of, options=options or MapOptions())
    if not is_root(on):
        list(spread(work, (), open_executor))
        return None
    try:
        traces = find_traces([Path(path) for path in paths])
    except MakewayError:
        list(spread(work, (), open_executor))  # the others wait for work, and may go
        raise
    files = traces.files if shard is None else traces.files[shard.index - 1 :: shard.of]
    with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(MAGIC)
        with closing(spread(work, files, open_executor)) as results:
            for done, (_, data) in enumerate(results, start=1):
                file.write(data)
                if progress is not None:
                    progress(done, len(files))
    return files, traces.notes, len(traces.files)
