"""The micro-kernel of the self-test: every block records its SM and its times. Not yet run on hardware.

%smid and %globaltimer: PTX ISA, "Special Registers". tests/oracle/test_doctor_kernels.py compiles it without a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer, smid

NAME = "makeway_hold"
WARPS = 4
COLUMNS = 3  # SM, start, end


@triton.jit
def makeway_hold(rows, hold_ns):  # type: ignore[no-untyped-def]
    """Each block runs for `hold_ns` and writes one row."""
    start = globaltimer()
    now = start
    while now - start < hold_ns:
        now = globaltimer()
    row = rows + tl.program_id(0) * 3
    tl.store(row, smid().to(tl.int64))
    tl.store(row + 1, start)
    tl.store(row + 2, now)
