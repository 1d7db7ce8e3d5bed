"""A predicted training step: its ledger adds up, and it follows the laws that every step follows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hosts import ROUND, host

from makeway.decide.scale.generation import Generation, known_generations, load_generation
from makeway.decide.scale.layer import Attention, Product, layer_work
from makeway.decide.scale.rows import plain_cluster
from makeway.decide.scale.software import choose, newest_generation
from makeway.decide.scale.stages import Pricing
from makeway.decide.scale.step import hop_ns, model_flops_per_token, predict_step
from makeway.decide.scale.timing import compute_ns, product_ns, rates
from makeway.values.cluster import Cluster, Level
from makeway.values.control import CommPriority, SmPartition
from makeway.values.device import HOST_SHARING_KEY, host_fact_key, load_device
from makeway.values.errors import InputError, UnknownNameError, UnsupportedError
from makeway.values.layout import Layout
from makeway.values.model import Experts, Model
from makeway.values.step import Step
from makeway.values.units import MIB

DENSE = Model(
    name="dense", layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256, seq=4096, head_dim=128,
    gated=True,
)  # fmt: skip
ROUTED = replace(DENSE, name="routed", ffn=0, experts=Experts(count=64, top_k=4, ffn=1536))
H100 = plain_cluster(load_device("H100-SXM5-80GB"), node_gpus=8, net_bytes_per_s=50e9)
SLOW = plain_cluster(load_device("H100-SXM5-80GB"), node_gpus=8, net_bytes_per_s=5e9)
PLAIN = Layout(tp=2, sp=True, pp=2, dp=4, micro_batch=1, global_batch=64, sharding="zero1")

layouts = st.builds(
    lambda tp, pp, dp, micro, batches, sharding, recompute, overlap: Layout(
        tp=tp, sp=tp > 1, pp=pp, dp=dp, micro_batch=micro, global_batch=dp * micro * batches * pp,
        sharding=sharding if dp > 1 else "none", recompute=recompute, overlap_dp=overlap,
    ),
    st.sampled_from((1, 2, 8)),
    st.sampled_from((1, 2, 4)),
    st.sampled_from((1, 2, 16)),
    st.sampled_from((1, 2)),
    st.integers(1, 4),
    st.sampled_from(("none", "zero1", "fsdp")),
    st.sampled_from(("none", "full")),
    st.booleans(),
)  # fmt: skip


def lines(step: Step) -> dict[str, float]:
    return {line.kind: line.ns for line in step.ledger}


@given(layouts)
@settings(max_examples=40, deadline=None)
def test_the_ledger_adds_up_to_the_step(layout: Layout) -> None:
    step = predict_step(DENSE, layout, H100)
    assert sum(line.ns for line in step.ledger) == pytest.approx(step.step_ns, rel=1e-9)
    assert all(line.ns >= -1e-6 for line in step.ledger)
    assert 0 < step.mfu < 1


@given(layouts)
@settings(max_examples=25, deadline=None)
def test_contention_never_makes_a_step_faster(layout: Layout) -> None:
    with_it = predict_step(DENSE, layout, H100).step_ns
    assert with_it >= predict_step(DENSE, layout, H100, contention=False).step_ns * (1 - 1e-9)


@given(layouts)
@settings(max_examples=25, deadline=None)
def test_a_slower_network_never_makes_a_step_faster(layout: Layout) -> None:
    assert predict_step(DENSE, layout, SLOW).step_ns >= predict_step(DENSE, layout, H100).step_ns * (1 - 1e-9)


def test_full_recompute_costs_one_more_forward_pass() -> None:
    without, again = (
        lines(predict_step(DENSE, replace(PLAIN, recompute=kind), H100, contention=False)) for kind in ("none", "full")
    )
    assert 0.2 < again["recompute"] / without["compute"] < 0.4


def test_more_micro_batches_take_proportionally_longer_and_leave_the_bubble() -> None:
    few, many = (
        lines(predict_step(DENSE, replace(PLAIN, global_batch=batch), H100, jitter=None)) for batch in (64, 256)
    )
    assert many["compute"] == pytest.approx(4 * few["compute"])
    assert many["bubble"] == pytest.approx(few["bubble"], rel=0.05)


def test_stragglers_grow_with_gpus_and_are_absent_without_jitter() -> None:
    small, large = (
        lines(predict_step(DENSE, replace(PLAIN, dp=dp, global_batch=16 * dp), H100))["stragglers"] for dp in (8, 1024)
    )
    assert large > small > 0
    assert "stragglers" not in lines(predict_step(DENSE, PLAIN, H100, jitter=None))


def test_exchanges_beside_compute_slow_it_down_and_priority_does_not_undo_it() -> None:
    fsdp = Layout(dp=16, micro_batch=1, global_batch=32, sharding="fsdp")
    plain, first = (predict_step(DENSE, replace(fsdp, controls=kind), H100) for kind in ((), (CommPriority(),)))
    assert lines(plain)["contention"] > 0
    assert lines(first)["contention"] > 0
    assert first.step_ns <= plain.step_ns


def test_a_partition_costs_compute_even_where_nothing_is_exchanged() -> None:
    alone = Layout(micro_batch=1, global_batch=2)
    kept = replace(alone, controls=(SmPartition(24),))
    assert "contention" not in lines(predict_step(DENSE, alone, H100))
    assert lines(predict_step(DENSE, kept, H100))["contention"] > 0


def test_experts_exchange_tokens_and_cost_the_host_a_launch_each() -> None:
    layout = Layout(dp=8, ep=8, micro_batch=1, global_batch=16, sharding="zero1")
    step = lines(predict_step(ROUTED, layout, H100))
    assert step["exposed-ep"] > 0
    few, many = (
        layer_work(ROUTED, replace(layout, ep=ep), fused=True, experts=True).forward_operations for ep in (8, 1)
    )
    assert many > few


@pytest.mark.parametrize("experts", [False, True])
def test_the_products_of_a_layer_do_the_flops_of_the_formula(experts: bool) -> None:
    model = ROUTED if experts else DENSE
    work = layer_work(model, Layout(micro_batch=1), fused=True, experts=experts)
    ops = [*work.forward, *work.input, *work.weight]
    products = sum(2.0 * op.m * op.n * op.k * op.batch for op in ops if isinstance(op, Product))
    attention = sum(op.flops for op in work.forward if isinstance(op, Attention)) * 3
    per_layer = model_flops_per_token(model) - 6 * model.embedding_parameters
    assert products + attention == pytest.approx(per_layer * model.seq / model.layers, rel=1e-6)


@given(st.integers(1, 1 << 14), st.integers(1, 1 << 14), st.integers(1, 1 << 14))
def test_a_product_is_never_faster_than_peak_and_never_faster_for_more_rows(m: int, n: int, k: int) -> None:
    speed = rates(H100.device, newest_generation(H100.device)[0])
    time = product_ns(Product("p", m, n, k), speed, "bf16")
    assert time * 1e-9 * speed.flops_per_s >= 2.0 * m * n * k
    assert product_ns(Product("p", m + 256, n, k), speed, "bf16") >= time


def test_every_generation_is_a_dozen_named_numbers_of_a_known_device() -> None:
    for name in known_generations():
        generation = load_generation(name)
        assert load_device(generation.device).fp16_flops_per_s
        assert sum("calibrate-scale" in fact.source for fact in generation.facts.values()) <= 12
        assert generation.calibrated_on
        assert generation.split
        assert all(fact.source for fact in generation.facts.values())


def test_an_unknown_generation_and_a_cluster_that_is_too_small_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="no generation 'h100'"):
        load_generation("h100")
    bounded = replace(H100, levels=(H100.levels[0], replace(H100.levels[1], gpus=64)))
    with pytest.raises(InputError, match="joins at most 64"):
        predict_step(DENSE, replace(PLAIN, dp=64, global_batch=64), bounded)


def test_a_device_without_numbers_of_its_own_borrows_and_says_so() -> None:
    generation, assumed = newest_generation(load_device("H200"))
    assert generation.device == "H100-SXM5-80GB"
    assert any("stand in" in sentence for sentence in assumed)


@pytest.mark.parametrize(
    ("device", "where", "without", "software"),
    [
        ("B200", "nvidia nemo 25.02", "", "2025 Megatron-Bridge"),  # NVIDIA's recipes, not other Megatron
        ("B200", "megatron-lm", "", "2026 Megatron-LM (Megatron)"),
        ("GB200", "nvidia nemo 25.04", "", "2025 Megatron-Bridge to 26.04"),  # of its year, not the newest
        ("GB200", "nvidia nemo", "", "2026 Megatron-Bridge from 26.06"),
        ("H100-SXM5-80GB", "some fsdp", "h100-llm-foundry", "2023 llm-foundry, torch FSDP"),  # of an A100
        ("H200", "megatron-lm", "", "2025 NeMo and Megatron-Bridge"),
    ],
)
def test_software_without_numbers_takes_those_of_its_kind_and_year(
    device: str, where: str, without: str, software: str
) -> None:
    choice = choose(load_device(device), where, without=without)
    assert choice.generation.software == software
    assert any(software in sentence for sentence in choice.assumed)


@given(st.integers(1, 128), st.integers(1, 128), st.booleans())
def test_attention_of_more_heads_takes_longer_but_never_longer_per_head(few: int, more: int, backward: bool) -> None:
    speed = rates(H100.device, newest_generation(H100.device)[0])
    heads = sorted((few, few + more))
    times = [
        compute_ns(Attention("attention", count * 1e9, count * 1e6, 4096.0 * count, backward), speed, "bf16")
        for count in heads
    ]
    assert times[0] < times[1]
    assert times[1] / heads[1] <= times[0] / heads[0]


def test_the_optimizer_moves_less_where_gradients_are_narrow() -> None:
    layout = replace(PLAIN, sharding="none")
    wide, narrow = (_line(predict_step(DENSE, replace(layout, gradients=kind), H100)) for kind in ("fp32", "bf16"))
    assert narrow / wide == pytest.approx(32 / 38)


def _line(step: Step) -> float:
    return sum(line.ns for line in step.ledger if line.kind == "optimizer")


def test_a_product_of_experts_pays_for_each_of_them_unless_one_kernel_serves_all() -> None:
    generation = newest_generation(H100.device)[0]
    few, many = (Product("p", 4096 // batch, 2048, 2048, batch, grouped=True) for batch in (2, 32))
    apart, fused = (rates(H100.device, replace(generation, fused_experts=flag)) for flag in (False, True))
    gap = product_ns(many, apart, "bf16") - product_ns(many, fused, "bf16")
    assert gap == pytest.approx((2 * 32 - 1) * generation.kernel_ns)
    assert product_ns(few, apart, "bf16") - product_ns(few, fused, "bf16") < gap


def test_stages_send_less_the_more_ranks_share_a_message() -> None:
    model = replace(DENSE, seq=4096)
    sizes = []
    for tp in (1, 2, 4, 8):
        layout = Layout(tp=tp, pp=2, dp=8 // tp, micro_batch=1, global_batch=8, sp=tp > 1)
        pricing = Pricing(model, layout, H100, newest_generation(H100.device)[0], False)
        sizes.append(hop_ns(pricing))
    assert sizes == sorted(sizes, reverse=True)


# --- CPU hosts ---------------------------------------------------------------------------------------

SMALL = Model(
    name="small", layers=4, hidden=256, ffn=1024, heads=4, kv_heads=4, head_dim=64, vocab=1024, seq=128, causal=True
)
CORE = Generation(
    name="round", device="this-host", software="round numbers", gemm_share=1.0, gemm_half_k=0.0, attention_share=1.0,
    attention_backward_share=1.0, hbm_share=1.0, kernel_ns=0.0, host_ns=0.0, step_ns=0.0, hop_ns=0.0, network_share=1.0,
)  # fmt: skip


def on_host(layout: Layout, *, link_bytes_per_s: float = 1e12, sharing: float = 1.0) -> Step:
    level = Level(name="loopback", gpus=None, bytes_per_s=link_bytes_per_s, latency_ns=0.0, efficiency=1.0)
    sends = {host_fact_key("gloo", "send-recv", quantity): value for quantity, value in ROUND.items()}
    device = host(hbm_bytes_per_s=1e10, **sends, **{HOST_SHARING_KEY: sharing})
    cluster = Cluster(name="host", device=device, levels=(level,))
    return predict_step(SMALL, layout, cluster, generation=CORE, jitter=None)


def test_replicas_on_a_host_hide_gradients_beside_the_cores_they_take() -> None:
    layout = Layout(dp=2, micro_batch=4, global_batch=8, bucket_bytes=MIB)
    alone = on_host(replace(layout, dp=1, global_batch=4))
    exposed, beside = (on_host(replace(layout, overlap_dp=overlap)) for overlap in (False, True))
    parameters = (
        SMALL.layers * (SMALL.attention_parameters + SMALL.dense_mlp_parameters) + 2 * SMALL.embedding_parameters
    )
    wire_ns = 4 * parameters  # 4 bytes each, as many on the wire as in the buffer, 1 ns per byte
    calls = 4 * parameters / MIB * 1e5  # of 0.1 ms
    assert exposed.step_ns - alone.step_ns == pytest.approx(wire_ns + calls)
    lines = {line.kind: line.ns for line in beside.ledger}
    assert lines["contention"] == pytest.approx(0.5 * wire_ns, rel=0.1)  # 0.5 ns of a core per byte
    assert alone.step_ns < beside.step_ns < exposed.step_ns


@pytest.mark.parametrize("layout", [Layout(dp=4, global_batch=4), Layout(tp=4), Layout(pp=2, dp=2, global_batch=16)])
def test_a_slower_shared_link_never_makes_a_step_faster(layout: Layout) -> None:
    times = [on_host(layout, link_bytes_per_s=rate).step_ns for rate in (1e12, 1e9, 1e8, 1e7)]
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_a_stage_that_waits_leaves_its_core_to_the_other() -> None:
    layout = Layout(pp=2, dp=2, micro_batch=1, global_batch=8)
    own, shared = ({line.kind: line.ns for line in on_host(layout, sharing=sharing).ledger} for sharing in (1.0, 2.0))
    assert own["bubble"] > 0.2 * own["compute"]  # 1 of 4 micro batches
    assert shared.get("bubble", 0.0) == pytest.approx(0.0, abs=1e-6 * own["compute"])
    assert shared["compute"] == own["compute"]  # the rates of a share are in the device


@pytest.mark.parametrize("link_bytes_per_s", [1e12, 1e8, 1e7])
def test_sharing_cores_never_makes_a_pipeline_faster_than_its_work_or_slower_than_bubbles(
    link_bytes_per_s: float,
) -> None:
    layout = Layout(pp=4, micro_batch=1, global_batch=4)
    steps = [on_host(layout, link_bytes_per_s=link_bytes_per_s, sharing=sharing) for sharing in (1.0, 1.5, 2.0, 4.0)]
    times = [step.step_ns for step in steps]
    assert times == sorted(times, reverse=True)
    assert all(line.ns >= 0 for step in steps for line in step.ledger)


def test_sharing_cores_changes_nothing_where_all_ranks_work_at_once() -> None:
    layout = Layout(dp=4, global_batch=4)
    assert on_host(layout, sharing=2.0).step_ns == on_host(layout).step_ns


def test_controls_and_memory_of_a_host_are_not_made_up() -> None:
    assert on_host(Layout(dp=2, global_batch=2)).memory == ()
    with pytest.raises(UnsupportedError, match="CPU host"):
        on_host(Layout(dp=2, global_batch=2, bucket_bytes=MIB, controls=(CommPriority(),)))
