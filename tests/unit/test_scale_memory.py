"""Memory of a training step: published figures, laws, and layouts that do not fit."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from makeway.decide.scale.memory import RUNTIME_BYTES, alive_chunks, check_fits, memory
from makeway.read.presets import load_model
from makeway.values.device import Device, load_device
from makeway.values.errors import UnsupportedError
from makeway.values.layout import Layout, Recompute, Sharding
from makeway.values.layout_word import parse_layout
from makeway.values.model import Model
from makeway.values.units import GIB

# arXiv 2205.05198, figures 1 and 7 as read by the authors of calculon: model, stages, chunks, micro batch;
# activations in GiB without anything and with sequence parallelism and selective recomputation; parameters in GiB.
SEQUENCE_PARALLEL = (
    ("megatron-22b", 1, 1, 4, 59.25, 9.5625, 45.5625),
    ("gpt-3-175b", 8, 3, 1, 66.84375, 12.3515625, 45.5625),
    ("megatron-530b", 35, 3, 1, 114.0234375, 23.076171875, 31.640625),
    ("megatron-1t", 64, 1, 1, 131.25, 26.5625, 32.958984375),
)


@pytest.mark.parametrize(
    ("name", "stages", "chunks", "micro_batch", "plain", "selective", "parameters"), SEQUENCE_PARALLEL
)
def test_published_memory_of_megatron(
    name: str, stages: int, chunks: int, micro_batch: int, plain: float, selective: float, parameters: float
) -> None:
    layout = Layout(
        tp=8, pp=stages, vp=chunks, micro_batch=micro_batch, global_batch=8 * stages * micro_batch,
        schedule="interleaved" if chunks > 1 else "1f1b",
    )  # fmt: skip
    first = memory(load_model(name), layout, fused_attention=False)[0]
    less = replace(layout, sp=True, recompute="selective")
    assert first.activations / GIB == pytest.approx(plain, rel=0.001)
    assert memory(load_model(name), less, fused_attention=False)[0].activations / GIB == pytest.approx(
        selective, rel=0.001
    )
    assert (first.weights + first.gradients + first.optimizer) / GIB == pytest.approx(parameters, rel=0.1)


# MooreThreads/SimuMax, docs/b200/b200_release_v1.2_summary.md: model, layers, tp, pp, ep, dp, GiB allocated. Its
# scripts use the distributed optimizer, and one layer without experts in the truncated DeepSeek models
# (simu_tools/megatron_scripts/scripts/run_pretrain_deepseekv2.sh).
NODE = (
    ("llama-3-70b", 12, 1, 2, 1, 4, 66.55),
    ("llama-3-70b", 12, 2, 1, 1, 4, 60.68),
    ("llama-3-70b", 12, 4, 1, 1, 2, 39.07),
    ("llama-3-70b", 12, 8, 1, 1, 1, 28.29),
    ("deepseek-v2", 4, 1, 1, 8, 8, 45.63),
    ("deepseek-v2", 4, 1, 2, 4, 4, 44.70),
    ("deepseek-v3", 4, 1, 1, 8, 8, 104.30),
    ("deepseek-v3", 4, 1, 2, 4, 4, 114.00),
)


def truncated(name: str, layers: int, seq: int) -> Model:
    model = load_model(name)
    experts = replace(model.experts, dense_layers=1) if model.experts else None
    return replace(model, layers=layers, seq=seq, experts=experts)


@pytest.mark.parametrize(("name", "layers", "tp", "pp", "ep", "dp", "allocated"), NODE)
def test_measured_memory_of_a_b200_node(
    name: str, layers: int, tp: int, pp: int, ep: int, dp: int, allocated: float
) -> None:
    layout = Layout(tp=tp, pp=pp, ep=ep, dp=dp, sp=tp > 1, sharding="zero1", global_batch=4 * dp)
    fullest = max(stage.total for stage in memory(truncated(name, layers, 4096), layout))
    assert (fullest - RUNTIME_BYTES) / GIB == pytest.approx(allocated, rel=0.1)


# arXiv 2401.10241, Table 4, in GB: hidden, heads, layers of a middle stage, micro batch, chunks of 1F1B-I; 1F1B,
# 1F1B-I, ZB-1p, ZB-2p. The first and last of 8 stages hold one layer less; the vocabulary is not published.
ZERO_BUBBLE = ((2304, 24, 3, 6, 3, 30, 40, 32, 59), (4096, 32, 4, 3, 4, 39, 48, 42, 70))


@pytest.mark.parametrize("row", ZERO_BUBBLE, ids=("1.5B", "6.2B"))
def test_measured_memory_of_schedules(row: tuple[int, ...]) -> None:
    hidden, heads, each, micro_batch, chunks = row[:5]
    layers = (each - 1, *(each,) * 6, each - 1)
    model = Model(
        name="GPT", layers=sum(layers), hidden=hidden, ffn=4 * hidden, heads=heads, kv_heads=heads,
        head_dim=hidden // heads, vocab=50304, seq=1024,
    )  # fmt: skip
    plain = Layout(pp=8, micro_batch=micro_batch, global_batch=24 * micro_batch, stage_layers=layers)
    layouts = (
        plain,
        replace(plain, schedule="interleaved", vp=chunks),
        replace(plain, schedule="zb-h1"),
        replace(plain, schedule="zb-2p"),
    )
    for layout, measured in zip(layouts, row[5:], strict=True):
        fullest = max(stage.total for stage in memory(model, layout, fused_attention=False))
        assert (fullest - RUNTIME_BYTES) / 1e9 == pytest.approx(measured, rel=0.1)


SMALL = load_model("llama-3-8b")
layouts = st.builds(
    lambda tp, pp, dp, sharding, recompute, micro_batch: Layout(
        tp=tp, pp=pp, dp=dp, sp=tp > 1, sharding=sharding, recompute=recompute, micro_batch=micro_batch,
        shard_group=dp if sharding == "hsdp" else None, global_batch=dp * micro_batch * 8,
    ),
    st.sampled_from((1, 2, 4, 8)),
    st.sampled_from((1, 2, 4)),
    st.sampled_from((1, 2, 8)),
    st.sampled_from(get_args(Sharding)),
    st.sampled_from(get_args(Recompute)),
    st.sampled_from((1, 2)),
)  # fmt: skip


def fullest_bytes(layout: Layout, model: Model = SMALL) -> int:
    return max(stage.total for stage in memory(model, layout))


@settings(deadline=None)
@given(layouts)
def test_more_sharding_recompute_or_tensor_parallelism_never_takes_more(layout: Layout) -> None:
    order: tuple[Sharding, ...] = ("none", "zero1", "zero2")
    if layout.sharding in order[:-1]:
        after = order[order.index(layout.sharding) + 1]
        assert fullest_bytes(replace(layout, sharding=after)) <= fullest_bytes(layout)
    if layout.tp < 8:
        assert fullest_bytes(replace(layout, tp=2 * layout.tp, sp=True)) <= fullest_bytes(layout)
    if layout.recompute != "full":
        kept = [stage.activations for stage in memory(SMALL, layout)]
        again = [stage.activations for stage in memory(SMALL, replace(layout, recompute="full"))]
        assert all(less < more for less, more in zip(again, kept, strict=True))


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_micro_batches_alive_follow_the_published_counts(stages: int) -> None:
    many = 4 * stages
    assert alive_chunks("1f1b", stages, 1, many) == tuple(range(stages, 0, -1))
    assert alive_chunks("zb-h1", stages, 1, many) == (stages,) * stages
    assert alive_chunks("zb-h2", stages, 1, many) == (2 * stages - 1,) * stages
    assert alive_chunks("zb-2p", stages, 1, many) == (2 * stages,) * stages
    assert alive_chunks("dualpipe", stages, 2, many) == (stages + 1,) * stages
    assert alive_chunks("gpipe", stages, 1, many) == (many,) * stages


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 400))
def test_micro_batches_alive_do_not_grow_with_their_number(stages: int, more: int) -> None:
    assert alive_chunks("zb-h1", stages, 1, 3 * stages + more) == alive_chunks("zb-h1", stages, 1, 3 * stages)


@pytest.mark.parametrize(
    ("layout", "part", "cure"),
    [
        (Layout(tp=8, global_batch=1), "optimizer", "pp=4,dp=1 on 32 GPUs"),
        (Layout(tp=8, dp=64, global_batch=64), "optimizer", "sharding=fsdp"),
        (Layout(tp=8, dp=64, sharding="fsdp", micro_batch=8, global_batch=512), "activations", "mbs=1"),
    ],
)
def test_a_layout_that_does_not_fit_names_what_binds_and_what_would_work(layout: Layout, part: str, cure: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"does not fit(.|\n)*{part}(.|\n)*{cure}"):
        check_fits(load_model("llama-3-70b"), layout, load_device("H100-SXM5-80GB"))


def advice(model: Model, layout: Layout, device: Device) -> str:
    try:
        check_fits(model, layout, device)
    except UnsupportedError as error:
        return str(error).partition("\n")[2]
    return ""


@settings(deadline=None, max_examples=40)
@given(
    st.builds(
        Layout,
        tp=st.sampled_from((1, 4, 8)),
        pp=st.sampled_from((1, 2, 8)),
        dp=st.sampled_from((1, 3, 8)),
        micro_batch=st.sampled_from((1, 2, 6)),
        recompute=st.sampled_from(get_args(Recompute)),
        sharding=st.sampled_from(("none", "zero1", "zero2", "fsdp")),
        global_batch=st.just(144),
    ),
    st.sampled_from((8, 24, 80)),
)
def test_every_change_that_advice_names_makes_the_layout_fit(layout: Layout, room: int) -> None:
    model, device = load_model("llama-3-70b"), replace(load_device("H100-SXM5-80GB"), memory_bytes=room * GIB)
    said = advice(model, layout, device)
    named = re.search(r"^(?:This|Any of these) makes room: (.*)\.$", said)
    if named is None:
        assert not said or said.startswith("Nothing tried makes room")
        return
    for way in named[1].split("; "):
        words, _, gpus = way.removesuffix(" GPUs").partition(" on ")
        given = parse_layout(f"{words},gbs=144")
        asked = {word.partition("=")[0].replace("mbs", "micro_batch") for word in words.split(",")}
        changed = replace(layout, **{key: getattr(given, key) for key in asked})
        assert changed.gpus == (int(gpus.replace(",", "")) if gpus else layout.gpus)
        assert fullest_bytes(changed, model) <= room * GIB


def test_advice_says_plainly_that_nothing_makes_room() -> None:
    tiny = replace(load_device("H100-SXM5-80GB"), memory_bytes=RUNTIME_BYTES)
    assert advice(load_model("llama-3-70b"), Layout(tp=8, global_batch=1), tiny).startswith("Nothing tried makes room")


def test_a_layout_that_fits_returns_its_memory() -> None:
    layout = Layout(tp=4, pp=2, global_batch=8)
    assert check_fits(SMALL, layout, load_device("H100-SXM5-80GB")) == memory(SMALL, layout)
