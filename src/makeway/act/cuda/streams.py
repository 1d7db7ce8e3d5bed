"""Streams with priority, and a compute stream confined to some SMs. Not yet run on hardware.

Priority orders waiting blocks only; running blocks stay (CUDA driver API, cuStreamCreateWithPriority).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from makeway.values.errors import InputError, UnsupportedError
from makeway.values.units import floor_to

# Smallest green context and its granularity in SMs, by major compute capability: CUDA driver API, "Green Contexts",
# guideline for each architecture. The driver rounds up; we round down, so that communication loses no SM.
_GREEN_UNITS = {6: (1, 1), 7: (2, 2), 8: (4, 2)}
_GREEN_UNITS_FROM_9 = (8, 8)


def prioritised_stream(torch: Any, device: int) -> Any:
    """A stream of the device's highest priority (the lowest number)."""
    return torch.cuda.Stream(device=device, priority=min(torch.cuda.Stream(device=device).priority_range()))


def compute_sms(sms: int, comm_sms: int, major: int) -> int:
    """The SMs left to compute when communication gets at least `comm_sms`, rounded to CUDA's granularity."""
    least, unit = _GREEN_UNITS.get(major, _GREEN_UNITS_FROM_9)
    left = floor_to(sms - comm_sms, unit)
    if comm_sms < 1 or left < least:
        raise InputError(
            f"{comm_sms} of {sms} SMs for communication leave {max(left, 0)} for compute; a green context needs at "
            f"least {least}, in steps of {unit}"
        )
    return left


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfinedStream:
    """A stream whose kernels stay on some SMs, and what was read back."""

    stream: Any
    sms: int  # or CUs
    detail: str
    reported: bool = True  # `sms` was read back; False: it is what was requested
    evidence: tuple[tuple[str, int], ...] = ()


# --- green contexts -----------------------------------------------------------------------------
#
# torch.cuda.green_contexts has had three forms:
#   2.9, 2.10    a C++ binding with create, set_context and pop_context only (torch/csrc/cuda/GreenContext.cpp)
#   2.11 - 2.13  the binding also has Stream (pull request 171116); create takes keywords
#   2.14 on      written in Python on cuda.bindings (pull request 185527): torch._C has no class, the constructor
#                raises RuntimeError for what is missing, and later versions have `sm_count`


def green_module(torch: Any) -> Any | None:
    """torch.cuda.green_contexts, which torch does not load itself before 2.14; None where there is none."""
    module = getattr(torch.cuda, "green_contexts", None)
    if module is not None or getattr(torch, "__spec__", None) is None:
        return module
    try:
        return importlib.import_module("torch.cuda.green_contexts")
    except ImportError:
        return None


def green_refusal(torch: Any) -> str | None:
    """Why this torch offers no stream in a green context; None when it may."""
    module = green_module(torch)
    if module is None or not hasattr(module, "GreenContext"):
        return f"torch {torch.__version__} has no green contexts; they came with 2.9"
    if not getattr(module, "SUPPORTED", True):
        return f"torch {torch.__version__} was built without green contexts (CUDA 12.8 or later)"
    binding = getattr(torch._C, "_CUDAGreenContext", module.GreenContext)
    if not hasattr(binding, "Stream"):
        return f"green contexts of torch {torch.__version__} offer no stream; torch 2.11 and later do"
    if (check := getattr(module, "_ensure_supported", None)) is not None:
        try:
            check()
        except Exception as error:
            return f"torch {torch.__version__}: {error}"
    return None


@contextmanager
def green_stream(torch: Any, device: int, comm_sms: int) -> Iterator[ConfinedStream]:
    """A compute stream in a green context of all but `comm_sms` SMs; an UnsupportedError where torch cannot make one.

    Only what is launched on it is confined; communication may still use every SM.
    """
    if reason := green_refusal(torch):
        raise UnsupportedError(reason)
    facts = torch.cuda.get_device_properties(device)
    sms = facts.multi_processor_count
    wanted = compute_sms(sms, comm_sms, facts.major)
    try:
        context = green_module(torch).GreenContext.create(num_sms=wanted, device_id=device)  # type: ignore[union-attr]
        stream = context.Stream()
    except Exception as error:  # the driver's, torch's or a missing method's
        raise UnsupportedError(
            f"a green context of {wanted} SMs was refused: {type(error).__name__}: {error}"
        ) from error
    try:
        granted = _granted_sms(context, stream)
        if granted is not None and sms - granted < comm_sms:
            raise UnsupportedError(
                f"{wanted} SMs were requested for compute and {granted} granted, which leaves {sms - granted} of {sms} "
                f"to communication, not {comm_sms}"
            )
        size = f"{wanted} of {sms} SMs (requested, not reported)" if granted is None else f"{granted} of {sms} SMs"
        yield ConfinedStream(
            stream=stream,
            sms=wanted if granted is None else granted,
            detail=f"compute stream in a green context of {size}; only kernels on that stream are confined",
            reported=granted is not None,
            evidence=(("SMs requested", wanted), *((("SMs granted", granted),) if granted is not None else ())),
        )
    finally:
        torch.cuda.synchronize(device)  # nothing may run in a context that is destroyed
        del stream, context


def _granted_sms(context: Any, stream: Any) -> int | None:
    """The SMs of a green context as torch or the driver reports them; None where neither does."""
    try:
        count = getattr(context, "sm_count", None)
        if count is None:
            driver = importlib.import_module("cuda.bindings.driver")
            _, green = driver.cuStreamGetGreenCtx(stream.cuda_stream)
            kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
            _, resource = driver.cuGreenCtxGetDevResource(green, kind)
            count = resource.sm.smCount  # None has no such field: the driver refused one of the two calls
        return int(count)
    except Exception:  # no cuda.bindings, an older driver, a binding that lacks the call
        return None
