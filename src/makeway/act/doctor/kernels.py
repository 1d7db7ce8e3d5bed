"""The micro-kernel of the self-test: every block records its SM and its times. Not yet run on hardware.

%smid and %globaltimer: PTX ISA, "Special Registers". tests/oracle/test_doctor_kernels.py compiles it without a GPU.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
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


def compile_hold(capability: int) -> Any:
    """The kernel for an NVIDIA architecture such as 90, as Triton's compiled object."""
    source = ASTSource(makeway_hold, {"rows": "*i64", "hold_ns": "i32"}, {})
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": WARPS})
