"""scripts/first-hour goes on whatever its steps do, and keeps what they said."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "first-hour"
FAKE = """#!/bin/sh
case "$1" in
    doctor) echo "doctor ran"; [ "$2" = --self-test ] && { echo '{}' > "$4"; exit 1; }; exit 0 ;;
    calibrate) echo "no GPU in it" >&2; exit 2 ;;
    *) kill -SEGV $$ ;;
esac
"""


def test_every_step_runs_and_each_ending_is_told_apart(tmp_path: Path) -> None:
    fake, place = tmp_path / "makeway", tmp_path / "results"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    environ = {**os.environ, "MAKEWAY": str(fake), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([SCRIPT, place], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    steps = {line.split()[0]: line for line in (place / "steps.log").read_text().splitlines()}
    assert "exit 0  done" in steps["doctor"]
    assert "exit 1  ran, and something failed" in steps["self-test"]
    assert "exit 2  could not run: no GPU in it" in steps["calibrate"]
    assert {"simulate", "bench", "bench-copies"} <= steps.keys()
    assert "certificate.json" in (place / "sha256sums").read_text()
