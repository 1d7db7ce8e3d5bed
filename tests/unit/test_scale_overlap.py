"""Contention inside a step: the rates that steps are put together from, against whole runs of the engines."""

from __future__ import annotations

import pytest
from tests.hosts import host

from makeway.decide.scale.overlap import Kernels, Traffic, beside, meeting
from makeway.model.presets import load_preset, preset_names
from makeway.model.simulate.predict import Settings, predicted_run
from makeway.values.control import CommPriority, CopyEngine
from makeway.values.device import host_fact_key, load_device

H100 = load_device("H100-SXM5-80GB")
GATHER = Traffic("all-gather", 1e6, 300e6)
LAYERS = [name for name in preset_names() if name.startswith(("fsdp", "tp", "ddp", "moe"))]
# Differences that are known, and why: held queues depend on history (docs/model.md).
ALLOWED = 0.02


def test_a_collective_takes_sms_from_products_and_bandwidth_from_passes() -> None:
    product, streaming = (meeting(H100, kernel, GATHER, ()) for kernel in ("product", "pass"))
    assert 0.5 < product.compute_rate < 1
    assert 0.3 < streaming.compute_rate < 1
    assert product.wait > 0


def test_priority_takes_the_wait_and_a_copy_engine_the_sms() -> None:
    assert meeting(H100, "product", GATHER, (CommPriority(),)).wait < meeting(H100, "product", GATHER, ()).wait
    copied = meeting(H100, "product", GATHER, (CopyEngine(),))
    assert copied.compute_rate > meeting(H100, "product", GATHER, ()).compute_rate


@pytest.mark.parametrize("comm_ns", [1e3, 1e6, 5e6, 1e8])
def test_no_overlap_beats_the_longer_of_the_two_and_none_is_worse_than_in_turn(comm_ns: float) -> None:
    compute = {"product": Kernels(5e6, 5e12)}
    outcome = beside(H100, compute, Traffic("all-gather", comm_ns, 300 * comm_ns), (), contention=True)  # type: ignore[arg-type]
    total = 5e6 + outcome.exposed_ns + outcome.contention_ns
    assert max(5e6, comm_ns) <= total * (1 + 1e-9)
    assert total <= 5e6 + comm_ns * (1 + 1e-9) + 1


@pytest.mark.parametrize("cpu_ns_per_byte", [0.1, 0.5, 0.7, 3.0])
def test_hidden_bytes_take_from_a_hosts_compute_what_each_of_them_costs(cpu_ns_per_byte: float) -> None:
    device = host(**{host_fact_key("gloo", "all-reduce", "cpu_ns_per_byte"): cpu_ns_per_byte})
    traffic = Traffic("all-reduce", 1e6, 1e6)  # 1 ns per byte alone
    hidden = beside(device, {"product": Kernels(1e9, 1e18)}, traffic, (), contention=True)
    assert hidden.exposed_ns == 0
    assert hidden.contention_ns == pytest.approx(1e6 * cpu_ns_per_byte)


def test_bytes_that_cost_a_host_more_than_half_a_core_move_more_slowly_beside_compute() -> None:
    cheap, dear = (
        meeting(
            host(**{host_fact_key("gloo", "all-reduce", "cpu_ns_per_byte"): cost}),
            "product",
            Traffic("all-reduce", 1e6, 1e6),
            (),
        )
        for cost in (0.25, 2.0)
    )
    assert (cheap.compute_rate, cheap.comm_rate) == (0.75, 1.0)
    assert (dear.compute_rate, dear.comm_rate) == (0.5, 0.25)


@pytest.mark.long
@pytest.mark.parametrize("device", ["A100-SXM4-80GB", "H100-SXM5-80GB", "B200"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_fluid_engine_agrees_with_the_full_one_on_layers(name: str, device: str) -> None:
    workload = load_preset(name, load_device(device))
    fluid, full = (
        predicted_run(workload, load_device(device), (), Settings(engine=engine, jitter=0.0)).result.end_ns
        for engine in ("fluid", "block")
    )
    assert fluid == pytest.approx(full, rel=ALLOWED)
