"""The vendor's GEMM as torch calls it: torch.mm, or torch._scaled_mm for fp8. Not yet run on hardware.

Results are fp32 whatever the operands are, so that a collective moves and adds the same numbers beside every kernel.
Small whole numbers are exact in all these types. Whether the tensor cores add fp8 products exactly is not known; if
they do not, the bench says that results differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from makeway.values.errors import UnsupportedError

LibraryType = Literal["fp32", "tf32", "bf16", "fp8"]

# PyTorch, _scaled_mm_allowed_device and _scaled_mm_is_fnuz
_FP8_AMD = ("gfx942", "gfx950", "gfx1200", "gfx1201")
_FNUZ = "gfx942"
_FP8_CAPABILITY, _BF16_CAPABILITY = 89, 80
_FP8_STEP = 16  # PyTorch, torch/_meta_registrations.py, _check_scaled_mm_sizes: n and k are divisible by it


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryGemm:
    """Multiplies operands of one type into an fp32 matrix; called as our own kernel is."""

    torch: Any
    dtype: LibraryType
    operand: Any  # torch's type of the operands
    name: str  # of the library
    scale: Any  # of both fp8 operands: 1

    @property
    def description(self) -> str:
        call = "torch._scaled_mm" if self.dtype == "fp8" else "torch.mm"
        return f"in {self.dtype} by {call} ({self.name})"

    def left(self, matrix: Any) -> Any:
        return matrix.to(self.operand)

    def right(self, matrix: Any) -> Any:
        """Fp8 takes the right matrix by columns."""
        return matrix.to(self.operand).t().contiguous().t() if self.dtype == "fp8" else matrix.to(self.operand)

    def __call__(self, a: Any, b: Any, config: object, out: Any) -> object:
        match self.dtype:
            case "fp32" | "tf32":
                return self.torch.mm(a, b, out=out)
            case "bf16":
                return self.torch.mm(a, b, out_dtype=out.dtype, out=out)
            case "fp8":
                return self.torch._scaled_mm(a, b, scale_a=self.scale, scale_b=self.scale, out_dtype=out.dtype, out=out)


def library_gemm(torch: Any, dtype: LibraryType, arch: str, *, n: int, k: int) -> LibraryGemm:
    """The library's GEMM of a type on this GPU, or an error that says why there is none. Sets torch's use of tf32."""
    amd = arch.startswith("gfx")
    if reason := _refusals(amd=amd)[dtype](arch, n, k):
        raise UnsupportedError(f"no {dtype} GEMM by torch here: {reason}")
    operand = torch.float32
    scale = None
    if dtype == "bf16":
        operand = torch.bfloat16
    elif dtype == "fp8":
        operand = torch.float8_e4m3fnuz if arch == _FNUZ else torch.float8_e4m3fn
        scale = torch.ones((), dtype=torch.float32, device="cuda")
    else:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    # Without a bias torch.mm may use either of the vendor's libraries; fp8 is in one of them only.
    either = "rocBLAS or hipBLASLt" if amd else "cuBLAS or cuBLASLt"
    name = either if dtype != "fp8" else "hipBLASLt" if amd else "cuBLASLt"
    return LibraryGemm(torch=torch, dtype=dtype, operand=operand, name=name, scale=scale)


_Refusal = Callable[[str, int, int], str | None]


def _refusals(*, amd: bool) -> dict[LibraryType, _Refusal]:
    """By type: why an architecture and sizes cannot have it."""
    return {
        "fp32": lambda arch, n, k: None,
        "tf32": lambda arch, n, k: None if (arch == "gfx942" if amd else _capability(arch) >= _BF16_CAPABILITY)
        else f"{arch} has no tf32; name --type fp32",
        "bf16": _no_bf16,
        "fp8": _no_fp8,
    }  # fmt: skip


def _no_bf16(arch: str, n: int, k: int) -> str | None:
    if arch.startswith("gfx"):
        # Reported by users of torch 2.9 on ROCm 7.0: "output type float is not supported for ROCm"; not tried on 2.13
        return "torch on ROCm refuses bf16 operands with an fp32 result; name --type fp8 or fp32"
    if _capability(arch) < _BF16_CAPABILITY:
        return f"{arch} has no bf16, which came with sm_80; name --type fp32"
    return None


def _no_fp8(arch: str, n: int, k: int) -> str | None:
    if arch.startswith("gfx") and arch not in _FP8_AMD:
        return f"torch has fp8 on {', '.join(_FP8_AMD)}, not on {arch}; name --type fp32"
    if not arch.startswith("gfx") and _capability(arch) < _FP8_CAPABILITY:
        return f"{arch} has no fp8, which came with sm_89; name --type bf16"
    if n % _FP8_STEP or k % _FP8_STEP:
        return f"n and k must be multiples of {_FP8_STEP}, got {n} and {k}; change --size or --scale"
    return None


def _capability(arch: str) -> int:
    """9.0 is 90; 0 where torch did not say."""
    digits = arch.removeprefix("sm_")
    return int(digits) if digits.isdigit() else 0
