"""A paced link between ranks of one host: a private network namespace whose loopback tc holds to a rate.

Needs `unshare`, `nsenter` and `setpriv` (util-linux), `ip` and `tc` (iproute2), and either root or a kernel that allows
user namespaces.
The loopback is one medium: all ranks together, in both directions, get the rate.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from makeway.errors import InputError

TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux", "ip": "iproute2", "tc": "iproute2"}
_OWN_NETWORK = ("--net",)  # for root: a rank keeps its rights, such as that to raise priorities
_OWN_USERS = ("--user", "--map-root-user", "--net")  # for everybody else
_UNITS = {"kbit": 1_000, "mbit": 1_000_000, "gbit": 1_000_000_000}

# A token bucket must hold the largest packet (the loopback's MTU is 65,536 bytes), and what passes between two
# timers; but after a pause so much passes unpaced.
LEAST_BURST_BYTES = 128 * 1024
BURST_S = 0.25e-3
QUEUE_MS = 50  # longer than TCP's window takes at 500 Mbit/s, so that nothing is dropped
_SETUP_TIMEOUT_S = 10.0
PROBE_S = 0.4
ACCEPTED_ERROR = 0.2  # of the asked rate


@dataclass(frozen=True, slots=True)
class Rate:
    """Bits per second of a link."""

    bits_per_s: int

    def __str__(self) -> str:
        for unit in ("gbit", "mbit", "kbit"):
            if self.bits_per_s >= _UNITS[unit]:
                return f"{self.bits_per_s / _UNITS[unit]:g} {unit[0].upper()}bit/s"
        return f"{self.bits_per_s} bit/s"


def parse_rate(text: str) -> Rate:
    """The rate that "2gbit" or "500mbit" names, in the words of tc."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]bit)", text.strip().lower())
    if not found or float(found[1]) <= 0:
        raise InputError(f"cannot read link rate {text!r}; write for example 2gbit, 8gbit or 500mbit")
    return Rate(round(float(found[1]) * _UNITS[found[2]]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How ranks reach one another, and what to put before a command so that it runs there."""

    words: str
    prefix: tuple[str, ...] = ()
    asked: Rate | None = None
    measured_bits_per_s: float | None = None

    @property
    def paced(self) -> bool:
        return bool(self.prefix)


LOOPBACK = Link(words="loopback of this host, unpaced")


@contextmanager
def paced_link(rate: Rate) -> Iterator[Link]:
    """A loopback of that rate for as long as the block runs, or the plain one where that is not allowed.

    The namespace ends with the process that holds it, which ends with the block or with this process.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        packages = ", ".join(dict.fromkeys(TOOLS[tool] for tool in missing))
        yield _unpaced(rate, f"{', '.join(missing)} not found; install {packages}")
        return
    reasons = []
    for spaces in (_OWN_NETWORK, _OWN_USERS) if os.geteuid() == 0 else (_OWN_USERS,):
        # `cat` returns when our end of the pipe closes, however this process ends.
        holder = subprocess.Popen(
            ["unshare", *spaces, "sh", "-c", _setup(rate)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert holder.stdout is not None
            if holder.stdout.readline().strip() == "ready":
                yield _measured(rate, _prefix(holder.pid, spaces))
                return
            _, error = holder.communicate()
            reasons.append(_line(error) or f"exit code {holder.returncode}")
        finally:
            holder.kill()
            holder.communicate()
    yield _unpaced(rate, "; ".join(reasons))


def _prefix(holder: int, spaces: tuple[str, ...]) -> tuple[str, ...]:
    enter = ("nsenter", "--target", str(holder), "--net")
    if spaces == _OWN_NETWORK:
        return (*enter, "--")
    # Root of a user namespace seems to have the right to raise priorities, and has not: take it away in name too.
    without = ("setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice")
    return (*enter, "--user", "--preserve-credentials", "--", *without, "--")


def _line(text: str) -> str:
    return " ".join(text.split())


def _setup(rate: Rate) -> str:
    burst = max(LEAST_BURST_BYTES, round(rate.bits_per_s / 8 * BURST_S))
    shape = f"rate {rate.bits_per_s}bit burst {burst} latency {QUEUE_MS}ms"
    return f"ip link set lo up && tc qdisc add dev lo root tbf {shape} && echo ready && exec cat"


def _unpaced(rate: Rate, reason: str) -> Link:
    return Link(words=f"loopback of this host, UNPACED: {rate} was asked, but not possible here ({reason})", asked=rate)


def _measured(rate: Rate, prefix: tuple[str, ...]) -> Link:
    try:
        bits = probed_bits_per_s(prefix)
    except subprocess.CalledProcessError as error:
        return _unpaced(rate, f"a trial transfer ended with exit code {error.returncode}: {_line(error.stderr)}")
    except subprocess.TimeoutExpired:
        return _unpaced(rate, f"a trial transfer took more than {_SETUP_TIMEOUT_S:g} s")
    words = f"loopback paced to {rate} for all ranks together, {bits / 1e9:.2f} Gbit/s measured"
    if abs(bits / rate.bits_per_s - 1) > ACCEPTED_ERROR:
        words += " (NOT the rate that was asked: the host was too busy or is too slow for it)"
    return Link(words=words, prefix=prefix, asked=rate, measured_bits_per_s=bits)


_PROBE = f"""
import socket, threading, time
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
peer, _ = server.accept()
until = time.perf_counter() + {PROBE_S}
def push():
    block = bytes(1 << 18)
    while time.perf_counter() < until:
        client.sendall(block)
    client.close()
threading.Thread(target=push, daemon=True).start()
room, total, first = bytearray(1 << 20), 0, None
while got := peer.recv_into(room):
    if first is None:
        first = time.perf_counter()
    else:
        total += got
print(total * 8 / (time.perf_counter() - first))
"""


def probed_bits_per_s(prefix: tuple[str, ...] = ()) -> float:
    """Bits per second of one TCP transfer over the loopback that a command with this prefix sees."""
    command = [*prefix, sys.executable, "-I", "-S", "-c", _PROBE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SETUP_TIMEOUT_S, check=True)
    return float(done.stdout)
