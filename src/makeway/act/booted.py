"""Which host a process runs on: processes with one boot identifier share a kernel, whatever their host is called."""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(file: Path = _BOOT_ID) -> str:
    """The identifier of the host's boot, or its name where /proc does not say."""
    try:
        return file.read_text().strip()
    except OSError:
        return os.uname().nodename
