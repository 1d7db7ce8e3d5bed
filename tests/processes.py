"""Start programs from tests the way an interactive shell does, whatever started the tests.

`make test &` in a script starts the tests with SIGINT ignored, and `nohup make test` with SIGHUP ignored. Children
inherit that, so a program under test would never hear Ctrl-C. Every test that sends signals starts its program with
`hearing`, or runs in `interruptible` when it sends the signal to itself.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# SIGPIPE and SIGXFSZ: Python ignores both in itself, and what it executes would inherit that.
_RESET = """
import os, signal, sys
for name in "INT QUIT HUP TERM USR1 USR2 WINCH PIPE XFSZ".split():
    signal.signal(getattr(signal, "SIG" + name), signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def hearing(*command: str) -> tuple[str, ...]:
    """The command, with the default action for every signal; it keeps the process number that it is started with."""
    return (sys.executable, "-I", "-S", "-c", _RESET, *command)


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, SIGINT raises KeyboardInterrupt in this process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def free_port() -> int:
    """A port of the loopback that is free at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
