"""The recordings of examples/ are makeway's own, made by its scripts and labelled as predicted or measured."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from makeway.decide.analysis.analyze import analyze
from makeway.read.traces.read import read_trace

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "examples" / "recordings"
MEASURED = "ddp-gloo"  # of real ranks: no two are the same


def test_the_script_makes_the_same_events_again(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "recordings", tmp_path], check=True, timeout=60)
    assert _events(tmp_path) == _events(RECORDED), "stale: run scripts/recordings"


def _events(place: Path) -> dict[Path, bytes]:
    files = sorted(path for path in place.rglob("*.json.gz") if not path.parent.name.startswith(MEASURED))
    return {path.relative_to(place): gzip.decompress(path.read_bytes()) for path in files}


def test_one_recording_shows_a_control_that_wins() -> None:
    analysis = analyze([RECORDED / "cb-ar"])
    assert analysis.what_if is not None
    assert analysis.what_if.replay.trusted
    gains = [item for item in analysis.advice if item.predicted_gain_ns is not None]
    assert gains
    assert all(0 < (item.predicted_gain_ns or 0.0) <= item.at_most_ns for item in gains)


def test_a_simulated_step_is_not_called_a_recording() -> None:
    timeline = read_trace(RECORDED / "tp-llama-70b" / "rank0.json.gz")
    assert timeline.origin == "predicted"
    assert {span.kind for span in timeline.spans} == {"compute", "comm"}
    assert timeline.waits


def test_no_recording_of_another_project_is_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    kept = [Path(line) for line in listed.stdout.splitlines() if line.endswith((".json.gz", ".sqlite", ".sqlite.gz"))]
    assert all(path.is_relative_to("examples/recordings") for path in kept), kept


@pytest.mark.parametrize("name", ["ddp-gloo-2ranks", "ddp-gloo-2ranks-controlled"])
def test_real_ranks_are_recorded_small_and_without_the_names_of_their_host(name: str) -> None:
    files = sorted((RECORDED / name).iterdir())
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
