"""The progress bar on stderr while traces are read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from makeway.decide.analysis.analyze import Progress


@contextmanager
def trace_progress() -> Iterator[Progress | None]:
    """What `analyze` reports its progress to: a bar on a terminal, None elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("reading"), BarColumn(), TextColumn("{task.percentage:>3.0f} %  {task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("traces", total=1.0)

        def progress(share: float, file: Path) -> None:
            bar.update(task, completed=share, description=file.name)

        yield progress
