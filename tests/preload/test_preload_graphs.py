"""Graphs that a program builds by hand, under the shim, on the stand-in drivers: cuda-bindings, and HIP by ctypes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.preload.programs import rules
from tests.standin.build import cuda_driver, environment, hip_runtime, program_kernels, shared_place
from tests.standin.records import Launch, launches

from makeway.act.preload.receipts import KernelCounts, read_receipts
from makeway.act.preload.rules import LaunchRule, Rules, encode_rules

PROGRAMS = Path(__file__).parents[1] / "standin" / "programs"
PAD = 4096
PADS = rules(LaunchRule(pattern="gemm", pad_bytes=PAD))
MAKES = ("add", "add-any", "add-handle")


@dataclass(frozen=True)
class Runs:
    """Starts a program that builds a graph, with and without the shim."""

    shim: Path
    home: Path

    def start(
        self, api: str, *steps: str, given: Rules | None = PADS, refuse: str | None = None
    ) -> tuple[list[Launch], KernelCounts | None]:
        """What the driver ran, and what the shim counted of the GEMM."""
        place = self.home / str(len(list(self.home.iterdir())))
        place.mkdir()
        made, device = (cuda_driver, "H100-SXM5-80GB") if api == "cuda" else (hip_runtime, "MI250X")
        program = PROGRAMS / ("graph_program.py" if api == "cuda" else "hip_graph_program.py")
        record = place / "record"
        settings = environment(made(shared_place()), device=device, record=record, refuse=refuse, base=dict(os.environ))
        if given is not None:
            (place / "rules").write_bytes(encode_rules(given))
            settings |= {"LD_PRELOAD": str(self.shim), "MAKEWAY_RULES": str(place / "rules")}
            settings |= {"MAKEWAY_RECEIPTS": str(place)}
        command = [sys.executable, str(program), str(program_kernels(shared_place())), *steps]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        counts = [kernel for process in read_receipts(place) for kernel in process.kernels if kernel.kernel == "gemm"]
        return [launch for launch in launches(record) if launch.via == "graph"], counts[0] if counts else None


@pytest.fixture
def runs(shim: Path, tmp_path: Path) -> Runs:
    (tmp_path / "runs").mkdir()
    return Runs(shim, tmp_path / "runs")


@pytest.fixture(scope="module")
def asked(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the GEMM asks for by itself."""
    plain = Runs(shim, tmp_path_factory.mktemp("plain"))
    ran = {api: plain.start(api, "add", "instantiate", "launch", given=None)[0] for api in ("cuda", "hip")}
    return {api: launches[0].smem_bytes for api, launches in ran.items()}


@pytest.mark.parametrize("make", MAKES)
def test_a_node_is_padded_however_it_is_made(runs: Runs, asked: dict[str, int], make: str) -> None:
    ran, counts = runs.start("cuda", make, "instantiate", "launch", "launch")
    assert [(launch.smem_bytes, launch.carve_out) for launch in ran] == [(asked["cuda"] + PAD, 100)] * 2
    assert counts is not None
    assert counts.padded == 1  # the node, however often it runs


@pytest.mark.parametrize("api", ["cuda", "hip"])
def test_a_node_written_back_as_it_was_read_gets_no_second_pad(runs: Runs, asked: dict[str, int], api: str) -> None:
    ran, _ = runs.start(api, "add", "same", "same", "instantiate", "launch")
    assert [launch.smem_bytes for launch in ran] == [asked[api] + PAD]


@pytest.mark.parametrize("api", ["cuda", "hip"])
@pytest.mark.parametrize(("set_node", "set_executable"), [("set", "exec"), ("set-any", "exec-any")])
def test_later_parameters_are_padded_in_the_graph_and_in_its_executable(
    runs: Runs, asked: dict[str, int], api: str, set_node: str, set_executable: str
) -> None:
    ran, counts = runs.start(api, "add", set_node, "instantiate", "launch", set_executable, "launch")
    assert [(launch.grid[0], launch.smem_bytes) for launch in ran] == [(2, asked[api] + PAD), (1, asked[api] + PAD)]
    assert counts is not None
    assert counts.padded == 3


@pytest.mark.parametrize("api", ["cuda", "hip"])
def test_a_node_that_becomes_cooperative_loses_its_pad(runs: Runs, asked: dict[str, int], api: str) -> None:
    ran, counts = runs.start(api, "add", "cooperative", "instantiate", "launch")
    assert [launch.smem_bytes for launch in ran] == [asked[api]]
    assert counts is not None
    assert "cooperative" in counts.reason
    ran, _ = runs.start(api, "add", "cooperative", "set", "instantiate", "launch")
    assert [launch.smem_bytes for launch in ran] == [asked[api]]


def test_a_node_in_clusters_keeps_its_pad_where_whole_clusters_fit(runs: Runs, asked: dict[str, int]) -> None:
    ran, _ = runs.start("cuda", "add", "cluster", "instantiate", "launch")
    assert [launch.smem_bytes for launch in ran] == [asked["cuda"] + PAD]


@pytest.mark.parametrize("api", ["cuda", "hip"])
def test_a_refused_node_is_made_as_the_program_asked(runs: Runs, asked: dict[str, int], api: str) -> None:
    steps = ("add", "instantiate", "launch", "exec", "launch")
    ran, counts = runs.start(api, *steps, refuse=f"smem-above:{asked[api]}")
    assert [launch.smem_bytes for launch in ran] == [asked[api]] * 2
    assert counts is not None
    assert (counts.refused, counts.padded) == (1, 0)
    assert "the driver refused a padded graph node" in counts.reason


@pytest.mark.parametrize("make", ["add", "add-any", "add-host"])
def test_hip_nodes_name_their_kernel_by_handle_or_by_host_pointer(runs: Runs, asked: dict[str, int], make: str) -> None:
    ran, counts = runs.start("hip", make, "instantiate", "launch")
    assert [launch.smem_bytes for launch in ran] == [asked["hip"] + PAD]
    assert counts is not None
    assert counts.padded == 1


@pytest.mark.parametrize("api", ["cuda", "hip"])
def test_nodes_without_a_rule_are_left_as_they_are(runs: Runs, asked: dict[str, int], api: str) -> None:
    ran, counts = runs.start(
        api, "add", "set", "instantiate", "exec", "launch", given=rules(LaunchRule(pattern="x", pad_bytes=8))
    )
    assert [launch.smem_bytes for launch in ran] == [asked[api]]
    assert counts is not None
    assert (counts.seen, counts.padded) == (3, 0)
