"""Stand-ins for torch.cuda.green_contexts as three generations of torch have it, on one GPU that grants whole units.

Each rule is read from the source that its comment names.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any


class Driver:
    """The driver below them: it rounds a request up to the device's unit (CUDA driver API, Green Contexts)."""

    def __init__(self, sms: int = 132, unit: int = 8, refuses: str | None = None) -> None:
        self.sms, self.unit, self.refuses = sms, unit, refuses
        self.by_stream: dict[int, int] = {}
        self.requests: list[int] = []

    def granted(self, wanted: int) -> int:
        self.requests.append(wanted)
        if self.refuses is not None:
            raise RuntimeError(self.refuses)
        return -(-wanted // self.unit) * self.unit

    def stream(self, sms: int) -> Any:
        handle = 0x1000 + len(self.by_stream)
        self.by_stream[handle] = sms
        return SimpleNamespace(cuda_stream=handle, priority=0)

    def bindings(self) -> ModuleType:
        """cuda.bindings.driver, as far as the read-back uses it: answers are pairs of a status and a value."""
        module = ModuleType("cuda.bindings.driver")

        def of_stream(stream: int) -> tuple[int, int | None]:
            return (0, self.by_stream[stream]) if stream in self.by_stream else (400, None)

        def resource(green: int, kind: object) -> tuple[int, Any]:
            assert kind == "sm"
            return 0, SimpleNamespace(sm=SimpleNamespace(smCount=green))

        module.__dict__.update(
            cuStreamGetGreenCtx=of_stream,
            cuGreenCtxGetDevResource=resource,
            CUdevResourceType=SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM="sm"),
        )
        return module


def first(driver: Driver) -> tuple[Any, Any]:
    """torch 2.9 and 2.10: the module and torch._C.

    torch/csrc/cuda/GreenContext.cpp binds create, set_context and pop_context, no Stream; torch/cuda/green_contexts.py
    hands out the binding itself, not the Python class.
    """

    class Binding:
        def __init__(self, sms: int) -> None:
            self._sms = sms

        def set_context(self) -> None: ...
        def pop_context(self) -> None: ...

    class GreenContext(Binding):
        @staticmethod
        def create(num_sms: int, device_id: int = 0) -> Binding:
            return Binding(driver.granted(num_sms))

    return SimpleNamespace(GreenContext=GreenContext, SUPPORTED=True), SimpleNamespace(_CUDAGreenContext=Binding)


def second(driver: Driver, *, built: bool = True) -> tuple[Any, Any]:
    """torch 2.11 to 2.13: keywords only, the binding has Stream, nothing reports SMs.

    torch 2.13, torch/cuda/green_contexts.py; SUPPORTED is False in a build without them, and create raises.
    """

    class Binding:
        def __init__(self, sms: int) -> None:
            self._sms = sms

        def Stream(self) -> Any:  # noqa: N802
            return driver.stream(self._sms)

    class GreenContext:
        @staticmethod
        def create(*, num_sms: int | None = None, device_id: int | None = None, **_: Any) -> Binding:
            if not built:
                raise RuntimeError("PyTorch was not built with Green Context support!")
            assert num_sms is not None
            return Binding(driver.granted(num_sms))

        def Stream(self) -> Any:  # noqa: N802
            raise AssertionError("create hands out the binding")

    holder = SimpleNamespace(_CUDAGreenContext=Binding) if built else SimpleNamespace()
    return SimpleNamespace(GreenContext=GreenContext, SUPPORTED=built), holder


def third(driver: Driver, *, lacks: str | None = None, counts: bool = True) -> tuple[Any, Any]:
    """torch 2.14 on: Python on cuda.bindings; torch._C has no class and the module no SUPPORTED.

    pytorch main, torch/cuda/green_contexts.py: `_ensure_supported` raises RuntimeError, the constructor calls it first,
    a request above the device is refused, and later versions have `sm_count` (the first did not).
    """

    def ensure() -> None:
        if lacks is not None:
            raise RuntimeError(lacks)

    class GreenContext:
        def __init__(self, *, num_sms: int | None = None, device_id: int | None = None) -> None:
            ensure()
            assert num_sms is not None
            if num_sms <= 0 or num_sms > driver.sms:
                raise RuntimeError(f"Invalid number of SMs requested for green context: {num_sms}")
            self._sms = driver.granted(num_sms)
            if counts:
                self.sm_count = self._sms

        @staticmethod
        def create(*, num_sms: int | None = None, device_id: int | None = None) -> GreenContext:
            return GreenContext(num_sms=num_sms, device_id=device_id)

        def Stream(self) -> Any:  # noqa: N802
            return driver.stream(self._sms)

    return SimpleNamespace(GreenContext=GreenContext, _ensure_supported=ensure), SimpleNamespace()
