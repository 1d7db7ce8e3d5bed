"""Triton kernels under a plan: padded launches, and autotuning kept to the plan's tile. Not yet run on hardware.

Triton launches with `metadata.shared` bytes of dynamic shared memory, as its compiler computed
(makeway.act.triton.gemm cites where); a copy of the compiled kernel with a larger figure occupies more.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from makeway.act.backend import TORCH_CARRIERS
from makeway.act.cuda.machine import load_torch
from makeway.act.plans import PlanLike, plan_of
from makeway.values.control import Control, SmemPad, TileChoice
from makeway.values.errors import InputError
from makeway.values.receipt import Receipt, Status

OnReceipt = Callable[[Receipt], None]
_SIDE = re.compile(r"(?:BLOCK|TILE)(?:_SIZE)?_?([MNK])", re.IGNORECASE)  # BLOCK_M, BLOCK_SIZE_M, TILE_M, blockM


def padded(kernel: Any, plan: PlanLike, *, on_receipt: OnReceipt = lambda receipt: None) -> Any:
    """A copy of a `triton.jit` (or autotuned) kernel that launches with the plan's pad; the kernel itself stays.

    `on_receipt` is called for each variant that Triton compiles. A pad that the device cannot hold is left out, and
    the variant launches as compiled. A plan without a pad for this kernel returns the kernel itself.
    """
    name = _name(kernel)
    control = _for_kernel(plan, SmemPad, name)
    if control is None:
        return kernel
    assert isinstance(control, SmemPad)
    if not hasattr(kernel, "device_caches"):
        if not hasattr(kernel, "fn") or not hasattr(kernel, "run"):
            raise InputError(f"{name} is not a Triton kernel; decorate it with triton.jit")
        if not hasattr(kernel.fn, "run"):  # Triton's interpreter launches no blocks
            _issue(on_receipt, control, "no effect", f"{name} runs in Triton's interpreter, which has no shared memory")
            return kernel
        outer = copy.copy(kernel)  # an Autotuner or Heuristics around it
        outer.fn = padded(kernel.fn, plan, on_receipt=on_receipt)
        if hasattr(outer, "cache"):
            outer.cache = {}  # timings with the pad may prefer another configuration
        return outer
    return _padding(kernel, control, on_receipt)


def _padding(kernel: Any, control: SmemPad, on_receipt: OnReceipt) -> Any:
    larger = copy.copy(kernel)

    def create_binder() -> Any:
        binder = type(kernel).create_binder(larger)  # sets `compile`, which makes every variant
        compile_plain = larger.compile

        def compile_padded(*args: Any, **kwargs: Any) -> Any:
            return _with_pad(compile_plain(*args, **kwargs), control, on_receipt)

        larger.compile = compile_padded
        return binder

    larger.device_caches = defaultdict(create_binder)
    return larger


def _with_pad(compiled: Any, control: SmemPad, on_receipt: OnReceipt) -> Any:
    from triton.compiler.compiler import max_shared_mem
    from triton.runtime.driver import driver

    from makeway.act.triton.gemm import padded as padded_copy

    before = compiled.metadata.shared
    after, limit = before + control.pad_bytes, max_shared_mem(driver.active.get_current_device())
    usage = f"{compiled.metadata.name}: {before:,} bytes of shared memory per block"
    if after > limit:
        _issue(on_receipt, control, "refused", f"{usage}; with the pad {after:,}, the device allows {limit:,}")
        return compiled
    larger = padded_copy(compiled, control.pad_bytes)
    status: Status = "applied" if larger.metadata.shared == after else "no effect"
    _issue(on_receipt, control, status, f"{usage}, {larger.metadata.shared:,} with the pad")
    return larger


def tiled(kernel: Any, plan: PlanLike, *, on_receipt: OnReceipt = lambda receipt: None) -> Any:
    """A copy of an autotuned kernel that tries only configurations of the plan's tile; the kernel itself stays.

    Sides are recognised by name: BLOCK_M, BLOCK_SIZE_M, TILE_M and the like. Where no configuration has the tile, the
    kernel itself is returned and the receipt says so.
    """
    name = _name(kernel)
    control = _for_kernel(plan, TileChoice, name)
    if control is None:
        return kernel
    assert isinstance(control, TileChoice)
    configs = getattr(kernel, "configs", None)
    if configs is None:
        _issue(on_receipt, control, "refused", f"{name} is not autotuned: it offers no choice of tiles")
        return kernel
    wanted = {"M": control.tile_m, "N": control.tile_n, "K": control.tile_k}
    fitting = [config for config in configs if tile_sides(config.kwargs) == wanted]
    if not fitting:
        tiles = sorted({"x".join(map(str, tile_sides(config.kwargs).values())) or "none" for config in configs})
        _issue(
            on_receipt, control, "refused", f"{name} offers no such tile; its configurations have {', '.join(tiles)}"
        )
        return kernel
    kept = copy.copy(kernel)
    kept.configs, kept.cache = fitting, {}
    _issue(on_receipt, control, "applied", f"{name}: {len(fitting)} of {len(configs)} configurations have the tile")
    return kept


def tile_sides(constants: Mapping[str, Any]) -> dict[str, int]:
    """The sides of a tile among a configuration's constants, in the order M, N, K, as far as they are there."""
    sides = {
        match[1].upper(): int(value)
        for name, value in constants.items()
        if (match := _SIDE.fullmatch(name)) is not None
    }
    return {side: sides[side] for side in "MNK" if side in sides}


def _for_kernel(plan: PlanLike, kind: type[Control], name: str) -> Control | None:
    controls = (control for control in plan_of(plan).controls if isinstance(control, kind))
    return next((control for control in controls if fnmatchcase(name, control.kernel)), None)  # type: ignore[union-attr]


def _name(kernel: Any) -> str:
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", kernel))


def _issue(on_receipt: OnReceipt, control: Control, status: Status, detail: str) -> None:
    carrier = TORCH_CARRIERS["rocm" if getattr(load_torch().version, "hip", None) else "cuda"]
    on_receipt(Receipt(control=control, status=status, detail=detail, carrier=carrier))
