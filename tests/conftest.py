"""Shared set-up: a deterministic hypothesis profile and real kernels compiled by Triton."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("makeway", deadline=None, max_examples=200, print_blob=True)
settings.load_profile("makeway")

TRITON_SCRIPT = Path(__file__).parent / "oracle" / "compile_kernels.py"


@pytest.fixture(scope="session")
def triton_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of cubins and hsacos that Triton compiled just now, and its own figures beside them.

    Compiled in a process of its own: Triton warns on import, and warnings are errors here.
    """
    out = tmp_path_factory.mktemp("triton")
    subprocess.run([sys.executable, str(TRITON_SCRIPT), str(out)], check=True, timeout=300)
    return out


@pytest.fixture(scope="session")
def libnccl() -> Path:
    """The real NCCL library of the nvidia-nccl package."""
    import nvidia.nccl

    return Path(next(iter(nvidia.nccl.__path__))) / "lib" / "libnccl.so.2"
