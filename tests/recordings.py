"""Where tests find recordings of other projects: beside this repository, or where MAKEWAY_TRACES says.

They are read there and never copied here. A machine without them skips the tests that need them, with that reason.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

RECORDINGS = Path(os.environ.get("MAKEWAY_TRACES", Path(__file__).parents[2] / "shared" / "traces"))

needs_recordings = pytest.mark.skipif(
    not RECORDINGS.is_dir(),
    reason=f"no recordings of other projects in {RECORDINGS}; name their place in MAKEWAY_TRACES",
)

VALIDATION = Path(os.environ.get("MAKEWAY_VALIDATION", Path(__file__).parents[2] / "shared" / "validation"))
REFEREE_RUNS = VALIDATION / "gpgpusim" / "gpgpusim_dev.csv"
REFEREE_BLOCKS = VALIDATION / "gpgpusim" / "gpgpusim_blocks.csv"

needs_referee_runs = pytest.mark.skipif(
    not (REFEREE_RUNS.is_file() and REFEREE_BLOCKS.is_file()),
    reason=f"no runs of a cycle-level simulator in {VALIDATION}; name their place in MAKEWAY_VALIDATION",
)
