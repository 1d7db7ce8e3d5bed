"""Start `makeway view` for tests, with temporary files of its own, and end it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import hearing

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Viewing:
    """A running `makeway view`."""

    process: subprocess.Popen[bytes]
    url: str
    port: int
    place: Path  # its directory for temporary files

    @property
    def token(self) -> str:
        return self.url.split("/")[3]

    def request(
        self, path: str, *, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        """Code, body and headers of the answer; `path` is taken as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    def ask(self, what: str, value: Any = None, **headers: str) -> tuple[int, Any]:
        """Code and JSON of the answer to a request with the token."""
        body = None if value is None else json.dumps(value).encode()
        method = "GET" if value is None else "POST"
        code, content, _ = self.request(f"/{self.token}/{what}", method=method, body=body, headers=headers)
        return code, json.loads(content)

    def workers(self) -> list[int]:
        """The worker processes that live."""
        return children_of(self.process.pid)


def children_of(parent: int) -> list[int]:
    """Processes whose parent is this one."""
    children = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] not in "ZX":
                children.append(int(entry.name))
    return children


def command(*arguments: str | Path) -> tuple[str, ...]:
    return hearing(sys.executable, "-m", "makeway", "view", "--json", "--no-browser", *map(str, arguments))


def environment(place: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(place), "PYTHONPATH": str(ROOT / "src")}


@contextmanager
def viewing(place: Path, *arguments: str | Path, **options: Any) -> Iterator[Viewing]:
    """`makeway view` while the block runs."""
    place.mkdir(exist_ok=True)
    process = subprocess.Popen(
        command(*arguments), env=environment(place), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read().decode() if process.stderr else ""
        document = json.loads(line)
        yield Viewing(process=process, url=document["url"], port=document["port"], place=place)
    finally:
        process.kill()
        process.communicate()
