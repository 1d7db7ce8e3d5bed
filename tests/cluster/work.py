"""Work for engines in tests: their own processes import it."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from makeway.read.fanout import engine, spread


def die_once(number: int, *, mark: Path) -> int:
    """The square; the process that first works on 3 dies."""
    if number == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return number * number


if __name__ == "__main__":
    from tests.cluster.work import die_once as work  # by its importable name, not __main__'s

    found = dict(spread(partial(work, mark=Path(sys.argv[2])), range(int(sys.argv[3])), engine(sys.argv[1], jobs=2)))
    print(sorted(found.items()))
