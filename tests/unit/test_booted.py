"""The identifier of a host's boot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from makeway.act.booted import boot_id


def test_processes_of_one_host_agree_without_torch() -> None:
    check = "import sys; from makeway.act.booted import boot_id; assert 'torch' not in sys.modules; print(boot_id())"
    said = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
    assert said.strip() == boot_id() != ""


def test_without_proc_the_host_has_its_name(tmp_path: Path) -> None:
    assert boot_id(tmp_path / "missing") == os.uname().nodename
