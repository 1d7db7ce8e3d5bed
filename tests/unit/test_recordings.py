"""The recordings of examples/ are makeway's own, made by scripts/recordings and labelled as predictions."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from makeway import analyze
from makeway.read.traces.read import read_trace

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "examples" / "recordings" / "tp-llama-70b"


def test_the_script_makes_the_same_events_again(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "recordings", tmp_path], check=True, timeout=60)
    again = {path.name: gzip.decompress(path.read_bytes()) for path in tmp_path.iterdir()}
    assert again == {path.name: gzip.decompress(path.read_bytes()) for path in RECORDED.iterdir()}, (
        "stale: run scripts/recordings"
    )


def test_a_simulated_step_is_not_called_a_recording() -> None:
    timeline = read_trace(RECORDED / "rank0.json.gz")
    assert timeline.origin == "predicted"
    assert {span.kind for span in timeline.spans} == {"compute", "comm"}
    assert timeline.waits


def test_no_recording_of_another_project_is_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    kept = [Path(line) for line in listed.stdout.splitlines() if line.endswith((".json.gz", ".sqlite", ".sqlite.gz"))]
    assert all(path.is_relative_to("examples/recordings") for path in kept), kept


@pytest.mark.parametrize("name", ["ddp-gloo-2ranks", "ddp-gloo-2ranks-controlled"])
def test_real_ranks_are_recorded_small_and_without_the_names_of_their_host(name: str) -> None:
    files = sorted((RECORDED.parent / name).iterdir())
    assert sum(path.stat().st_size for path in files) < 150_000
    for path in files:
        document = json.loads(gzip.decompress(path.read_bytes()))
        assert not {"host_name", "traceName", "trace_id"} & set(document)
        assert not re.search(r"/(?:home|root|tmp|work)\b", json.dumps(document))
    analysis = analyze(files, what_if=False, jobs=1)
    assert analysis.origin == "measured"
    assert len(analysis.ranks[0].steps) == 12
    assert len(analysis.matching.matched) == 4 * 12, "four buckets of gradients in each step"
    for rank in analysis.ranks:
        assert rank.figures.exposed_ns > 0
        assert rank.figures.overlap_ns > 0
