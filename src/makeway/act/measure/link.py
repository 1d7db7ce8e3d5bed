"""A paced link between ranks of one host: a private network namespace whose loopback tc holds to a rate.

Needs `unshare`, `nsenter` and `setpriv` (util-linux), `ip` and `tc` (iproute2), and either root or a kernel that allows
user namespaces.
The loopback is one medium: all ranks together, in both directions, get the rate.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from makeway.values.errors import InputError
from makeway.values.units import format_bytes

TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux", "ip": "iproute2", "tc": "iproute2"}
_OWN_NETWORK = ("--net",)  # for root: a rank keeps its rights, such as that to raise priorities
_OWN_USERS = ("--user", "--map-root-user", "--net")  # for everybody else
_UNITS = {"kbit": 1_000, "mbit": 1_000_000, "gbit": 1_000_000_000}

# tbf sets a timer for every packet, and every packet wakes its receiver: at 2 Gbit/s in packets of 64 KiB that is 3,800
# times a second, on the cores that compute. A network card does this for the processor; here packets are made larger.
PACKET_S = 2e-3  # of the link's time
LEAST_PACKET_BYTES = 65_536  # the loopback's MTU
MOST_PACKET_BYTES = 524_280  # GSO_MAX_SIZE of linux/netdevice.h
BURST_PACKETS = 1.25  # a token bucket must hold the largest packet; but after a pause so much passes unpaced
LEAST_BURST_BYTES = 128 * 1024
QUEUE_MS = 50  # longer than TCP's window takes at 500 Mbit/s, so that nothing is dropped
_SETUP_TIMEOUT_S = 10.0
PROBE_S = 0.4
ACCEPTED_ERROR = 0.2  # of the wanted rate


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
    """The rate of "2gbit" or "500mbit", spelled as for tc."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]bit)", text.strip().lower())
    if not match or float(match[1]) <= 0:
        raise InputError(f"cannot read link rate {text!r}; write for example 2gbit, 8gbit or 500mbit")
    return Rate(round(float(match[1]) * _UNITS[match[2]]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How ranks reach one another, and the prefix of a command that runs there."""

    description: str
    prefix: tuple[str, ...] = ()
    rate: Rate | None = None  # that was wanted
    measured_bits_per_s: float | None = None

    @property
    def paced(self) -> bool:
        return bool(self.prefix)


LOOPBACK = Link(description="loopback of this host, unpaced")


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
            answer = holder.stdout.readline().split()
            if answer[:1] == ["ready"]:
                yield _measured(rate, _prefix(holder.pid, spaces), packet_bytes=int(answer[1]))
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
    # Root of a user namespace seems to have the right to raise priorities but has not: drop it in name, too.
    without = ("setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice")
    return (*enter, "--user", "--preserve-credentials", "--", *without, "--")


def _line(text: str) -> str:
    return " ".join(text.split())


def packet_bytes(rate: Rate) -> int:
    """The largest packet of a link of that rate, if the kernel allows it."""
    return min(max(round(rate.bits_per_s / 8 * PACKET_S), LEAST_PACKET_BYTES), MOST_PACKET_BYTES)


def _setup(rate: Rate) -> str:
    packet = packet_bytes(rate)
    burst = max(LEAST_BURST_BYTES, round(BURST_PACKETS * packet))
    shape = f"rate {rate.bits_per_s}bit burst {burst} latency {QUEUE_MS}ms"
    larger = shlex.join((sys.executable, "-I", "-S", "-c", _LARGER_PACKETS, str(packet)))
    sized = f"if {larger}; then bytes={packet}; else bytes={LEAST_PACKET_BYTES}; fi"
    return f"ip link set lo up && tc qdisc add dev lo root tbf {shape} && {sized} && echo ready $bytes && exec cat"


# Asks the kernel for packets of so many bytes on the loopback, for IPv4 too: Linux 6.3 and later. Only recent iproute2
# has words for it, so the request (RTM_NEWLINK of rtnetlink(7), attributes of linux/if_link.h) is written here.
_LARGER_PACKETS = """
import socket, struct, sys
RTM_NEWLINK, REQUEST_AND_ACKNOWLEDGE = 16, 1 | 4
GSO_MAX_SIZE, GRO_MAX_SIZE, GSO_IPV4_MAX_SIZE, GRO_IPV4_MAX_SIZE = 41, 58, 63, 64
size = int(sys.argv[1])
body = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex("lo"), 0, 0)
for attribute in (GSO_MAX_SIZE, GRO_MAX_SIZE, GSO_IPV4_MAX_SIZE, GRO_IPV4_MAX_SIZE):
    body += struct.pack("=HHI", 8, attribute, size)
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
    kernel.settimeout(5)
    kernel.send(struct.pack("=IHHII", 16 + len(body), RTM_NEWLINK, REQUEST_AND_ACKNOWLEDGE, 1, 0) + body)
    (error,) = struct.unpack_from("=i", kernel.recv(4096), 16)
sys.exit(error != 0)
"""


def _unpaced(rate: Rate, reason: str) -> Link:
    return Link(description=f"loopback of this host, UNPACED: {rate} is not possible here ({reason})", rate=rate)


def _measured(rate: Rate, prefix: tuple[str, ...], *, packet_bytes: int) -> Link:
    try:
        bits = probed_bits_per_s(prefix)
    except subprocess.CalledProcessError as error:
        return _unpaced(rate, f"a trial transfer ended with exit code {error.returncode}: {_line(error.stderr)}")
    except subprocess.TimeoutExpired:
        return _unpaced(rate, f"a trial transfer took more than {_SETUP_TIMEOUT_S:g} s")
    description = (
        f"loopback paced to {rate} for all ranks together in packets of up to {format_bytes(packet_bytes)}, "
        f"{bits / 1e9:.2f} Gbit/s measured"
    )
    if abs(bits / rate.bits_per_s - 1) > ACCEPTED_ERROR:
        description += " (NOT the wanted rate: the host was too busy or is too slow for it)"
    return Link(description=description, prefix=prefix, rate=rate, measured_bits_per_s=bits)


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
