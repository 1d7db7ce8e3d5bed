"""Where command output goes: results to stdout, as text or one JSON document."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from rich.console import Console


def print_json(document: dict[str, Any]) -> None:
    """One indented JSON document on stdout."""
    encoded = msgspec.json.format(msgspec.json.encode(document), indent=2)
    sys.stdout.write(encoded.decode() + "\n")


class _Console(Console):
    """Prints tables without trailing blanks where nobody sees them, and leaves a closed pipe to makeway's main."""

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """The console for results: coloured on a terminal, plain and never cut short elsewhere."""
    plain_width = None if sys.stdout.isatty() else 160
    return _Console(highlight=False, soft_wrap=True, width=plain_width)
