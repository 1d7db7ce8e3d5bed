"""PyTorch's own distributed tests, in ranks that a launcher started: each with a process group of its own.

Usage: torch_own_tests.py PLACE NAME... Writes PLACE/rank-N.json: by test "passed", "skipped" or what went wrong.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import unittest
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

TIMEOUT = timedelta(seconds=20)  # a rank whose peer has failed goes on
os.environ |= {"BACKEND": "gloo", "TEMP_DIR": "/nonexistent"}
if find_spec("expecttest") is None:  # torch's tests are built on it; none of these uses what it adds
    sys.modules["expecttest"] = ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.distributed_test import (  # noqa: E402
    CUSTOM_PG_TIMEOUT,
    Barrier,
    DistributedTest,
    TestDistBackend,
)


class InThisProcess(TestDistBackend, DistributedTest._DistTestBase):
    """The tests without the processes that they start for themselves."""

    def setUp(self) -> None:
        unittest.TestCase.setUp(self)

    def tearDown(self) -> None:
        unittest.TestCase.tearDown(self)


def outcome(name: str, rank: int, place: Path) -> str:
    """How a test ends in this rank."""
    for directory in ("barrier", "test_dir", "init_dir"):
        (place / directory).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(place)
    Barrier.barrier_id = 0
    torch.manual_seed(1234)  # as torch's own set-up does: ranks draw the same inputs
    random.seed(1234)
    test: Any = InThisProcess(name)
    test.rank, test.file_name = rank, str(place / "store")
    timeout = timedelta(seconds=CUSTOM_PG_TIMEOUT[name]) if name in CUSTOM_PG_TIMEOUT else TIMEOUT
    ranks = int(os.environ["WORLD_SIZE"])
    dist.init_process_group(init_method=test.init_method, backend="gloo", world_size=ranks, rank=rank, timeout=timeout)
    try:
        test._barrier()
        getattr(test, name)()
        test._barrier()
    except unittest.SkipTest:
        return "skipped"
    except SystemExit as end:  # how torch says that a test needs more GPUs or ranks
        return "skipped" if end.code else "passed"
    except BaseException as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0][:300]
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return "passed"


def main(place: Path, names: list[str]) -> None:
    rank = int(os.environ["RANK"])
    if names == ["all"]:
        names = sorted(name for name in dir(DistributedTest._DistTestBase) if name.startswith("test_"))
    outcomes = {}
    for name in names:
        began = time.monotonic()
        outcomes[name] = outcome(name, rank, place / name)
        print(f"{rank} {name}: {outcomes[name]} ({time.monotonic() - began:.1f} s)", file=sys.stderr, flush=True)
    (place / f"rank-{rank}.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
