"""`makeway compare` on recordings of real Gloo ranks: benchmarks/bench_compare.py as a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from makeway import compare

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_compare.py"


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_equal_programs_are_rarely_told_apart_and_slower_ones_never_the_wrong_way(tmp_path: Path) -> None:
    """20 pairs of equal recordings: no difference shown in at least 18. More work is never called faster."""
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--repetitions", "20", "--keep", tmp_path], check=False, capture_output=True
    )
    assert done.returncode in (0, 1), done.stderr  # 1: a busy host hides a difference, which is no wrong verdict
    places = sorted(tmp_path.iterdir())
    assert len(places) == 20
    equal = [compare(place / "plain", place / "again").verdict for place in places]
    assert equal.count("no difference shown") >= 18, equal
    slower = [compare(place / "plain", place / "slow").verdict for place in places]
    assert "faster" not in slower, slower
