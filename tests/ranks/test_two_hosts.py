"""Ranks on two "hosts": network namespaces joined by a veth pair, each with a host name and a /dev/shm of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PORT = 29_500  # the namespaces are ours alone: no other program listens in them
NETWORK = "198.18.77"  # RFC 2544: kept for tests of networks
TOOLS = ("ip", "unshare", "mount", "hostname")
RAN_WITHIN_S = 240
pytestmark = pytest.mark.timeout(RAN_WITHIN_S + 60)
ROOT = Path(__file__).parents[2]
PLAN, PROGRAM = ROOT / "examples" / "cpu-plan.toml", ROOT / "tests" / "ranks" / "programs" / "ddp_train.py"
BENCH = ("bench", "gemm-ar", "--size", "256KiB", "--scale", "0.5", "--repeats", "2", "--warmup", "1", "--no-plan")


@dataclass(frozen=True)
class Host:
    """One end of the cable."""

    rank: int
    namespace: str
    interface: str
    address: str

    def start(self, *arguments: str, own_memory: bool, **environ: str) -> subprocess.Popen[str]:
        """makeway here, with variables of its own."""
        own = f"hostname {self.namespace}" + (" && mount -t tmpfs tmpfs /dev/shm" if own_memory else "")
        inside = (
            "unshare",
            "--uts",
            "--mount",
            "sh",
            "-c",
            f'{own} && exec "$@"',
            "sh",
            sys.executable,
            "-m",
            "makeway",
        )
        return subprocess.Popen(
            ("ip", "netns", "exec", self.namespace, *inside, *arguments),
            env={**os.environ, "GLOO_SOCKET_IFNAME": self.interface, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_rank(self, *arguments: str, own_memory: bool) -> subprocess.Popen[str]:
        """A rank here, with the variables that Slurm and torchrun set."""
        variables = {
            "RANK": str(self.rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": f"{NETWORK}.1",
            "MASTER_PORT": str(PORT),
        }
        return self.start(*arguments, own_memory=own_memory, **variables)


def ip(*words: str) -> str:
    return subprocess.run(("ip", *words), capture_output=True, text=True, check=True).stdout


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"two hosts need root and {', '.join(TOOLS)}: user {os.geteuid()}, missing: {missing or 'none'}")
    mark = uuid.uuid4().hex[:8]
    pair = tuple(Host(rank, f"makeway-{mark}-{rank}", f"mw{mark}{rank}", f"{NETWORK}.{rank + 1}") for rank in (0, 1))
    made: list[str] = []
    try:
        for host in pair:
            try:
                ip("netns", "add", host.namespace)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
            made.append(host.namespace)
        one, other = pair
        ends = ("netns", one.namespace, "type", "veth", "peer", "name", other.interface, "netns", other.namespace)
        ip("link", "add", one.interface, *ends)
        for host in pair:
            ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", host.interface)
            for interface in ("lo", host.interface):
                ip("-n", host.namespace, "link", "set", interface, "up")
        yield one, other
    finally:
        for namespace in made:
            ip("netns", "delete", namespace)
    assert mark not in ip("netns", "list") + ip("link", "show")


def outputs(started: list[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    """What each printed, and its messages; none is left running."""
    try:
        return [process.communicate(timeout=RAN_WITHIN_S) for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def found_by(hosts: tuple[Host, Host], *more: str, own_memory: bool) -> dict[str, Any]:
    """The document of rank 0; the other rank must end well and print nothing."""
    ranks = [host.start_rank(*BENCH, *more, "--json", own_memory=own_memory) for host in hosts]
    said = outputs(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], said
    # makeway-NAMESPACE-PROCESS-...: each command replaces the one before it, so that a rank keeps its number.
    segments = [name.split("-") for name in os.listdir("/dev/shm") if name.startswith("makeway-")]
    assert not [name for name in segments if int(name[2]) in {rank.pid for rank in ranks}]
    assert said[1][0] == ""
    document: dict[str, Any] = json.loads(said[0][0])
    assert (document["ranks"], document["verified"]) == (2, True)
    assert {"sequential", "overlap", "overlap_torchrun"} <= set(document["variants"])
    return document


@pytest.mark.long
def test_hosts_that_share_no_memory_are_measured_and_copy_engines_refused(hosts: tuple[Host, Host]) -> None:
    found = found_by(hosts, "--control", "copy-engine", "--control", "chunks=2", own_memory=True)
    (refused,) = [note for note in found["notes"] if "refused" in note]
    assert refused.startswith("copy-engine was refused: direct collectives need ranks that share a host")
    assert "copy-engine" not in found["variants"]
    assert found["variants"]["chunks=2"]["n"] == 2


@pytest.mark.long
def test_ranks_with_networks_of_their_own_and_one_memory_may_copy_directly(hosts: tuple[Host, Host]) -> None:
    """What counts is whether a rank can open the other's memory, not how their networks look."""
    found = found_by(hosts, "--control", "copy-engine", own_memory=False)
    assert [one["status"] for one in found["variants"]["copy-engine"]["receipts"]] == ["applied"]
    assert not [note for note in found["notes"] if "refused" in note]


@pytest.mark.long
def test_torchrun_on_two_hosts_runs_under_the_plan_on_both(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """Gradients cannot go through a memory that the hosts do not share; what each host can apply, it applies."""
    launch = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1")
    meeting = ("--master-addr", f"{NETWORK}.1", "--master-port", str(PORT))
    started = []
    for host in hosts:
        document = ("--out", str(tmp_path / f"{host.rank}.json"))
        run = ("run", "--plan", str(PLAN), *document, "--", *launch, "--node-rank", str(host.rank), *meeting)
        started.append(host.start(*run, str(PROGRAM), "--steps", "3", own_memory=True, OMP_NUM_THREADS="1"))
    said = outputs(started)
    assert [process.returncode for process in started] == [0, 0], said
    for host, (out, _) in zip(hosts, said, strict=True):
        assert sum(f"rank {host.rank} step" in line for line in out.splitlines()) == 3
        copies, priority = json.loads((tmp_path / f"{host.rank}.json").read_text())["controls"]
        assert [(one["rank"], one["status"]) for one in priority["receipts"]] == [(host.rank, "applied")]
        (refused,) = copies["receipts"]
        assert (refused["rank"], refused["status"]) == (host.rank, "refused")
        assert "share a host" in refused["detail"]


@pytest.mark.long
def test_tuning_on_two_hosts_tries_larger_buckets_in_place_of_copies(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    document = tmp_path / "tuned.json"
    tune = ("run", "--tune", "--tune-share", "0.5", "--job-steps", "300", "--out", str(document), "--")
    launch = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1")
    meeting = ("--master-addr", f"{NETWORK}.1", "--master-port", str(PORT))
    started = []
    for host in hosts:
        words = (
            *tune,
            *launch,
            "--node-rank",
            str(host.rank),
            *meeting,
            str(PROGRAM),
            "--steps",
            "300",
            "--width",
            "1024",
            "--wait-ms",
            "10",
        )
        chosen = tuple(word if word != str(document) or host.rank == 0 else os.devnull for word in words)
        started.append(host.start(*chosen, own_memory=True, OMP_NUM_THREADS="1"))
    said = outputs(started)
    assert [process.returncode for process in started] == [0, 0], said
    tuned = json.loads(document.read_text())
    assert all(("copy-engine" in controls) != ("priority" in controls) for controls in tuned["candidates"][3:])
    refused = {tuple(item["controls"]): item["reason"] for item in tuned["refused"]}
    assert all("copy-engine" in controls and "share a host" in reason for controls, reason in refused.items())
    tried = {tuple(item["controls"]) for item in tuned["tried"]}
    assert ("priority", "chunks=8") in tried
