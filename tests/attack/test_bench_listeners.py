"""While ranks run, nobody but this user can speak to them."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.attack.running import MAKEWAY, NOBODY, Started, environment, run, start, until

ENDLESS = ("gemm-ar", "--size", "256KiB", "--scale", "0.5", "--repeats", "100000", "--no-plan", "--ranks", "2")
SPEAKER = Path(__file__).parent / "programs" / "speak_to_stores.py"
LISTENS = "0A"  # linux/include/net/tcp_states.h
START_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listening TCP socket of a process."""

    pid: int
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int

    @property
    def local(self) -> bool:
        mapped = self.address.ipv4_mapped if isinstance(self.address, ipaddress.IPv6Address) else None
        return (mapped or self.address).is_loopback


def listeners(pid: int) -> list[Listener]:
    """The TCP sockets that a process listens on, as the kernel has them (there may be no `ss`)."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
    result = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            address, port = words[1].split(":")
            if words[3] == LISTENS and words[9] in inodes:
                result.append(Listener(pid=pid, address=_address(address), port=int(port, 16)))
    return result


def _address(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Paragraph of 32 bits, each in the byte order of the machine."""
    packed = b"".join(int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8))
    return ipaddress.IPv4Address(packed) if len(packed) == 4 else ipaddress.IPv6Address(packed)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Two ranks in the middle of their rounds."""
    home = tmp_path_factory.mktemp("bench")
    with (home / "said").open("wb") as said:
        running = start(*MAKEWAY, "bench", *ENDLESS, stdout=said, stderr=said, env=environment(TMPDIR=str(home)))
    try:
        ready = until(
            lambda: b"round 2 of" in (home / "said").read_bytes() or running.process.poll() is not None, START_S
        )
        assert ready, (home / "said").read_text()[-500:]
        assert running.process.poll() is None, (home / "said").read_text()[-500:]
        yield running
    finally:
        running.kill()
        running.process.wait()


def ranks(bench: Started) -> list[int]:
    return [pid for pid, line in bench.alive().items() if "ranks" in line and " bench " not in line]


def test_ranks_listen_on_the_loopback_alone(bench: Started) -> None:
    pids = ranks(bench)
    assert len(pids) == 2
    outside = [listener for pid in bench.alive() for listener in listeners(pid) if not listener.local]
    assert outside == []


def test_another_user_cannot_speak_to_the_ranks_store(bench: Started, second_user: None) -> None:
    ports = [listener.port for pid in bench.alive() for listener in listeners(pid)]
    ended = run(sys.executable, SPEAKER, str(NOBODY), *map(str, ports))
    assert ended.code == 0, ended
    assert ended.out.split() == [], "a store answers to a stranger"


def test_what_ranks_hold_in_shared_memory_is_theirs_alone(bench: Started) -> None:
    assert ranks(bench)
    for path in Path("/dev/shm").glob("makeway-*"):
        with suppress(FileNotFoundError):  # another test's has gone
            facts = path.lstat()
            assert facts.st_uid != os.getuid() or facts.st_mode & 0o077 == 0, path
