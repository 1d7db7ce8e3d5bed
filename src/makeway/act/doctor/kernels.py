"""The micro-kernels of the self-test: every block records its SM and its times. Not yet run on hardware.

NVIDIA: %smid and %globaltimer (PTX ISA, "Special Registers"). AMD: HW_ID bits 8 to 15 are CU, SH and SE, XCC_ID is
register 20 from gfx940 on, and s_memrealtime counts at 100 MHz (LLVM, AMDGPUUsage and SIDefines.h). It is a scalar
load, so it is waited for with lgkmcnt; Triton's own memrealtime waits for vmcnt, which does not cover it.
tests/oracle/test_doctor_kernels.py compiles both without a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer, smid

NAME = "makeway_hold"
WARPS = 4
COLUMNS = 3  # SM, start, end
AMD_TICK_NS = 10
XCC_ARCHS = ("gfx942", "gfx950")  # several chiplets, whose CUs have the same numbers


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


@triton.jit
def _amd_ticks():  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise(
        "s_memrealtime $0\ns_waitcnt lgkmcnt(0)", "=s", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit  # type: ignore[untyped-decorator]
def makeway_hold_amd(rows, hold_ns, XCC: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """The same on AMD; `XCC` where the chiplet is part of a CU's number."""
    start = _amd_ticks() * 10
    now = start
    while now - start < hold_ns:
        now = _amd_ticks() * 10
    unit = tl.inline_asm_elementwise("s_getreg_b32 $0, hwreg(4, 8, 8)", "=s", [], dtype=tl.int32, is_pure=False, pack=1)
    if XCC:
        unit += 256 * tl.inline_asm_elementwise(
            "s_getreg_b32 $0, hwreg(20, 0, 4)", "=s", [], dtype=tl.int32, is_pure=False, pack=1
        )
    row = rows + tl.program_id(0) * 3
    tl.store(row, unit.to(tl.int64))
    tl.store(row + 1, start)
    tl.store(row + 2, now)
