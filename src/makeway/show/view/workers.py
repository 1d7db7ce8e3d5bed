"""The server's side of its worker processes: ask, hear of progress, give up on an old question."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from makeway.values.errors import InputError, MakewayError

LONG_S = 1.5  # work on an old question that has taken this long is given up
_END_S = 2.0


class SupersededError(MakewayError):
    """The question was replaced by another before it was answered."""


class WorkerEndedError(MakewayError):
    """The process that worked on a question ended."""


class Worker:
    """One process that answers one request at a time; it starts with the first."""

    def __init__(self, device_file: Path | None = None) -> None:
        self._command = [sys.executable, "-m", "makeway.show.view.worker", *([str(device_file)] if device_file else [])]
        self._turn = threading.Lock()  # one request at a time
        self._state = threading.Lock()  # of the fields below
        self._process: subprocess.Popen[bytes] | None = None
        self._client: str | None = None  # whose request is worked on
        self._since = 0.0
        self._given_up = self._closed = False

    def ask(
        self, request: Mapping[str, Any], *, client: str = "", progress: Callable[[str], None] = lambda stage: None
    ) -> dict[str, Any]:
        """The answer of the worker, or its error."""
        with self._turn:
            process = self._begin(client)
            try:
                assert process.stdin is not None
                process.stdin.write(msgspec.json.encode(request) + b"\n")
                process.stdin.flush()
                return self._heard(process, progress)
            except (BrokenPipeError, ValueError):
                raise self._ended() from None
            finally:
                with self._state:
                    self._client = None

    def start(self) -> None:
        """Start the process before it is asked, so that the first answer does not wait for its imports."""
        with self._state:
            self._started()

    def give_up(self, client: str) -> None:
        """End work on an older question of the same client, if it takes long; short work is left to end."""
        with self._state:
            long = self._client == client and time.monotonic() - self._since > LONG_S
            if long and self._process is not None:
                self._given_up = True
                self._process.kill()

    def close(self) -> None:
        """End the process; nothing can be asked any more."""
        with self._state:
            self._closed = True
            process = self._process
        if process is not None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

    def _begin(self, client: str) -> subprocess.Popen[bytes]:
        with self._state:
            process = self._started()
            self._client, self._since, self._given_up = client, time.monotonic(), False
            return process

    def _started(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise WorkerEndedError("makeway view is ending")
        if self._process is None or self._process.poll() is not None:
            # A session of its own: Ctrl-C is for the server, which ends its workers by closing their stdin.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        return self._process

    def _heard(self, process: subprocess.Popen[bytes], progress: Callable[[str], None]) -> dict[str, Any]:
        assert process.stdout is not None
        for line in process.stdout:
            match msgspec.json.decode(line):
                case {"answer": dict(answer)}:
                    return answer
                case {"error": str(message)}:
                    raise InputError(message)
                case {"progress": str(stage)}:
                    progress(stage)
        raise self._ended()

    def _ended(self) -> MakewayError:
        with self._state:
            if self._given_up:
                return SupersededError("replaced by a newer question")
            return WorkerEndedError("the process that worked on it ended, perhaps for lack of memory; ask again")
