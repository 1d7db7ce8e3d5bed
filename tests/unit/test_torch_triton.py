"""Padded launches through Triton's own JIT, with a driver that writes down what it is asked to launch.

Triton runs in a process of its own (this file as a script): it warns on import, and warnings are errors here.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAD_BYTES = 50_000
LIMIT_BYTES = 232_448  # of an H100

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    result = tmp_path_factory.mktemp("triton") / "found.json"
    subprocess.run([sys.executable, "-W", "ignore", __file__, result], check=True, timeout=240)
    answer: dict[str, Any] = json.loads(result.read_text())
    return answer


def test_a_padded_kernel_asks_for_the_pad_when_it_is_loaded_and_launched(launches: dict[str, Any]) -> None:
    plain, padded = launches["plain"], launches["padded"]
    assert padded["loaded"] == [size + PAD_BYTES for size in plain["loaded"]]
    assert padded["launched"] == [size + PAD_BYTES for size in plain["launched"]]
    assert [status for status, _ in padded["receipts"]] == ["applied"]


def test_the_rest_of_a_padded_launch_is_unchanged(launches: dict[str, Any]) -> None:
    assert launches["padded"]["grids"] == launches["plain"]["grids"] == [[7, 1, 1], [7, 1, 1]]
    assert launches["padded"]["binaries"] == launches["plain"]["binaries"]
    assert launches["padded"]["arguments"] == launches["plain"]["arguments"]


def test_the_kernel_itself_stays_unpadded(launches: dict[str, Any]) -> None:
    assert launches["again"]["launched"] == launches["plain"]["launched"]


def test_a_pad_that_the_device_cannot_hold_is_left_out(launches: dict[str, Any]) -> None:
    assert launches["too large"]["launched"] == launches["plain"]["launched"]
    ((status, detail),) = launches["too large"]["receipts"]
    assert status == "refused"
    assert f"{LIMIT_BYTES:,}" in detail


def test_autotuned_kernels_are_padded_inside(launches: dict[str, Any]) -> None:
    assert set(launches["autotuned"]["launched"]) == {size + PAD_BYTES for size in launches["plain"]["launched"]}


def test_a_plan_without_a_pad_for_the_kernel_gives_it_back(launches: dict[str, Any]) -> None:
    assert launches["not named"] is True


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_our_gemm_asks_for_the_bytes_that_were_announced_and_dispatches_once(
    launches: dict[str, Any], arch: str
) -> None:
    """Every launch goes the same way, padded or not: what Triton's dispatch costs the host would bias a comparison."""
    found = launches[f"gemm {arch}"]
    assert found["launched"] == 3 * [found["announced"]] + 3 * [found["announced"] + PAD_BYTES]
    assert found["dispatches"] == 2  # one for each configuration
    assert len(set(found["binaries"])) == 1


# --- in a process of its own ----------------------------------------------------------------------


def main(result: Path) -> None:
    import hashlib
    from dataclasses import replace

    import torch
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    from makeway.act.triton import gemm as gemm_module
    from makeway.act.triton.config import GemmConfig
    from makeway.torch import padded
    from makeway.values.control import SmemPad

    log: dict[str, list[Any]] = {}

    class Utils:
        def get_device_properties(self, device: int) -> dict[str, int]:
            return {"max_shared_mem": LIMIT_BYTES}

        def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, ...]:
            log["loaded"].append(shared)
            log["binaries"].append(hashlib.sha256(binary).hexdigest())
            return object(), object(), 32, 0, 1024

        def unload_module(self, module: Any) -> None: ...

    class Launcher:
        """Takes what Triton's own launcher takes; the figure that counts is the one in the packed metadata."""

        def __init__(self, src: Any, metadata: Any) -> None:
            self.shared = metadata.shared if hasattr(metadata, "shared") else metadata["shared"]

        def __call__(self, *given: Any) -> None:
            grid, packed, arguments = given[:3], given[5], given[9:]
            assert self.shared in packed, (self.shared, packed)
            log["grids"].append(list(grid))
            log["launched"].append(self.shared)
            log["arguments"].append([one for one in arguments if isinstance(one, int)])

    class Driver:
        utils = Utils()
        launcher_cls = Launcher

        arch = 90

        def get_current_device(self) -> int:
            return self.arch - 90

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", self.arch, 32)

        def get_benchmarker(self) -> Any:
            def bench(call: Any, quantiles: Any) -> list[float]:
                call()
                return [1.0, 1.0, 1.0]

            return bench

    driver.set_active(Driver())

    def gemm(a, b, c, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        at = tl.arange(0, BLOCK)
        left = tl.load(a + at[:, None] * BLOCK + at[None, :])
        right = tl.load(b + at[:, None] * BLOCK + at[None, :])
        tl.store(c + at[:, None] * BLOCK + at[None, :], tl.dot(left, right).to(tl.float16))

    kernel = triton.jit(gemm)
    tensors = [torch.empty(64, 64, dtype=torch.float16) for _ in range(3)]

    def launched(which: Any, receipts: list[Any], **options: int) -> dict[str, Any]:
        log.update({name: [] for name in ("loaded", "binaries", "grids", "launched", "arguments")})
        for _ in range(2):
            which[lambda _: (7,)](*tensors, **options)
        return {**log, "receipts": [(receipt.status, receipt.detail) for receipt in receipts]}

    def with_pad(which: Any, pad: int, **options: int) -> dict[str, Any]:
        receipts: list[Any] = []
        return launched(padded(which, [SmemPad(pad)], on_receipt=receipts.append), receipts, **options)

    def own_gemm(arch: int) -> dict[str, Any]:
        Driver.arch = arch
        dispatches: list[str] = []
        plain_warmup = gemm_module.tiled_gemm.warmup

        def counted(*args: Any, **kwargs: Any) -> Any:
            dispatches.append("once")
            return plain_warmup(*args, **kwargs)

        gemm_module.tiled_gemm.warmup = counted
        gemm_module._KERNELS.clear()
        log.update({name: [] for name in ("loaded", "binaries", "grids", "launched", "arguments")})
        config = GemmConfig()
        for pad in (0, PAD_BYTES):
            for _ in range(3):
                gemm_module.matmul(tensors[0], tensors[1], replace(config, pad_bytes=pad), out=tensors[2])
        gemm_module.tiled_gemm.warmup = plain_warmup
        Driver.arch = 90
        return {**log, "dispatches": len(dispatches), "announced": gemm_module.launch_bytes(config, f"sm_{arch}")}

    configs = [triton.Config({"BLOCK": 64}, num_warps=warps) for warps in (4, 4)]
    answer = {
        "plain": launched(kernel, [], BLOCK=64),
        "padded": with_pad(kernel, PAD_BYTES, BLOCK=64),
        "again": launched(kernel, [], BLOCK=64),
        "too large": with_pad(kernel, LIMIT_BYTES, BLOCK=64),
        "autotuned": with_pad(triton.autotune(configs, key=[])(kernel), PAD_BYTES),
        "gemm sm_90": own_gemm(90),
        "gemm sm_100": own_gemm(100),
        "not named": padded(kernel, [SmemPad(PAD_BYTES, "attention*")]) is kernel,
    }
    result.write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
