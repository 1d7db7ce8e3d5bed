"""`makeway scale`: layouts as words, compression, the search, sweeps and shards, exports, bad input."""

from __future__ import annotations

import json
import shlex
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway import load_cluster, load_model, parse_layout, scale
from makeway.act.export.layouts import export_layout
from makeway.cli.main import main
from makeway.decide.analysis.many.analyze_job import Shard
from makeway.decide.scale.closed_form import bubble_ns
from makeway.decide.scale.layouts import Bounds, layouts, stage_layers
from makeway.decide.scale.pipeline import PipelineCosts, step_pipeline
from makeway.decide.scale.search import search
from makeway.decide.scale.shards import curve_shard, merge_curves
from makeway.decide.scale.sweep import SweepRequest, sweep_gpus
from makeway.model.compression import Link, compressed, payoff
from makeway.show.scale import COLOURS
from makeway.values.errors import InputError, MakewayError
from makeway.values.layout import Compression, Layout
from makeway.values.layout_word import layout_word
from makeway.values.step import StepLineKind

LLAMA, DGX = load_model("llama-3-8b"), load_cluster("dgx-h100")
LINK = Link(bytes_per_s=50e9, hbm_bytes_per_s=3e12, flops_per_s=4e14)
REQUEST = SweepRequest(model=LLAMA, cluster=DGX, layout=parse_layout("tp=2,sharding=zero1"), sequences_per_gpu=1.0)


# --- words -----------------------------------------------------------------------------------------


def test_every_layout_of_a_search_is_read_back_from_its_word() -> None:
    for layout in list(layouts(LLAMA, DGX, Bounds(gpus=64, global_batch=128)))[::7]:
        assert parse_layout(layout_word(layout)) == layout


def test_dp_and_batch_follow_from_the_gpus() -> None:
    layout = parse_layout("tp=8, pp=4, vp=2, sp", gpus=1024, global_batch=512)
    assert (layout.dp, layout.global_batch, layout.schedule) == (32, 512, "interleaved")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tp=3x", "tp takes a whole number"),
        ("tp=0", "tp takes a whole number of 1 or more, got '0'"),
        ("dp=0", "dp takes a whole number of 1 or more"),
        ("stages=20+0", "stages takes a whole number of 1 or more"),
        ("shedule=1f1b", "did you mean 'schedule'"),
        ("tp=2,tp=4", "tp twice"),
        ("overlap=dq", "not one of dp, tp, pp, ep"),
        ("compression=gzip", "Known: fp16"),
        ("compression=top-k:2", "above 0 and up to 1"),
        ("compression=powersgd,sharding=fsdp", "needs whole gradients"),
        ("sp=maybe", "on or off"),
    ],
)
def test_a_bad_word_is_refused_with_what_would_work(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_layout(text)


# --- compression -------------------------------------------------------------------------------------

KINDS = [Compression(kind=kind) for kind in ("fp16", "fp8", "powersgd", "topk", "1-bit")]


@given(st.sampled_from(KINDS), st.integers(2, 4096), st.floats(1e6, 1e10))
def test_a_compression_pays_exactly_below_its_link_rate(kind: Compression, ranks: int, elements: float) -> None:
    answer = payoff(kind, elements, ranks, LINK)
    below = answer.pays_below_bytes_per_s
    assert answer.pays == (below is not None and LINK.bytes_per_s < below)
    assert (answer.binds == "nothing") == answer.pays


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_no_sum_grows_with_ranks_and_the_rest_does_not(kind: Compression) -> None:
    few, many = (compressed(kind, 1e9, ranks).wire_bytes(ranks) for ranks in (16, 1024))
    assert many / few > 50 if kind.kind in ("topk", "1-bit") else many / few < 1.1


def test_a_gather_of_messages_crosses_the_sum_at_twice_the_ratio_of_bytes() -> None:
    """All-reduce moves 2 (n - 1) / n B, the gather (n - 1) B / ratio: equal at n = 2 ratio, 64 for one bit of 32."""
    free = replace(LINK, hbm_bytes_per_s=1e30, flops_per_s=1e30)
    assert payoff(Compression(kind="1-bit"), 1e9, 8, free).pays_up_to_ranks == 63


def test_a_cast_to_the_same_width_changes_nothing() -> None:
    assert compressed(Compression(kind="bf16"), 1e9, 8, element_bytes=2) == compressed(None, 1e9, 8, element_bytes=2)


# --- search ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "interleaved"])
def test_the_closed_form_of_a_bubble_is_the_pipelines_for_equal_stages(schedule: str) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    layout = Layout(pp=4, vp=chunks, schedule=schedule, global_batch=32)  # type: ignore[arg-type]
    costs = [((each / chunks,) * chunks,) * 4 for each in (3.0, 3.0, 2.0)]
    run = step_pipeline(layout, PipelineCosts(forward_ns=costs[0], input_ns=costs[1], weight_ns=costs[2]))
    waited = run.makespan_ns - 32 * 8.0
    assert waited == pytest.approx(bubble_ns(layout.schedule, 4, chunks, 3.0, 3.0, 2.0))


def test_a_search_accounts_for_every_layout_and_ranks_by_time() -> None:
    step, answer = search(LLAMA, DGX, Bounds(gpus=32, global_batch=64), top=5)
    assert answer.considered == answer.simulated + sum(item.layouts for item in answer.turned_down)
    times = [item.step_ns for item in answer.ranked]
    assert times == sorted(times)
    assert step.step_ns == times[0]
    assert all(item.layout.gpus == 32 for item in answer.ranked)
    room = DGX.device.memory_bytes
    assert room is not None
    assert all(item.memory_bytes <= room for item in answer.ranked)
    sizes = [item.memory_bytes for item in answer.ranked if item.pareto]
    assert sizes == sorted(sizes, reverse=True)


def test_no_two_lines_of_a_ledger_have_the_same_colour() -> None:
    assert set(COLOURS) == set(get_args(StepLineKind))
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_text_page_and_json_have_the_same_goodput(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ["scale", "llama-3-8b", "--cluster", "dgx-h100", "--layout", "tp=2,pp=2,gbs=64,dp=16", "--restart-s", "900"]
    page = tmp_path / "step.html"
    assert main([*asked, "--verbose", "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["goodput"]
    assert answer["restart_s"] == 900
    assert sum(answer[key] for key in ("useful_percent", "checkpoint_percent", "lost_percent")) == pytest.approx(100)
    for place in (text, page.read_text()):
        assert f"{answer['useful_percent']:.2f}" in place
        assert f"{answer['useful_tokens_per_s_per_gpu']:,.1f}" in place
    assert "stage 1" in page.read_text()


def test_failures_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["scale", "llama-3-8b", "--cluster", "dgx-h100"]
    assert main([*asked, "--gpus", "64", "--checkpoint-s", "0"]) == 2
    assert "checkpoint cost above 0" in capsys.readouterr().err
    assert main([*asked, "--sweep", "gpus=64", "--restart-s", "1"]) == 2
    assert "--gpus N" in capsys.readouterr().err


def test_a_step_has_a_ledger_for_each_stage_that_adds_up() -> None:
    result = scale(LLAMA, DGX, gpus=32, layout=parse_layout("tp=2,pp=4,mbs=1,gbs=64,sharding=zero1", gpus=32))
    assert len(result.step.stage_ledgers) == 4
    for lines in (result.step.ledger, *result.step.stage_ledgers):
        assert sum(line.ns for line in lines) == pytest.approx(result.step.step_ns)
    assert result.step.timeline is not None
    assert {span.rank for span in result.step.timeline.spans} == {0, 1, 2, 3}


def test_compression_takes_bytes_off_and_adds_kernels() -> None:
    plain = "tp=2,pp=4,mbs=1,gbs=64,sharding=zero1,overlap=none"
    before, after = (
        {line.kind: line.ns for line in scale(LLAMA, DGX, gpus=32, layout=parse_layout(text, gpus=32)).step.ledger}
        for text in (plain, f"{plain},compression=fp8")
    )
    assert after["exposed-dp"] < before["exposed-dp"]
    assert after["compression"] > 0


def test_stages_of_uneven_size_hold_all_layers_and_the_ends_fewest() -> None:
    assert stage_layers(126, 16) == (7, *(8,) * 14, 7)
    for layers, pp in ((61, 16), (126, 4), (94, 8), (7, 4)):
        each = stage_layers(layers, pp)
        assert (sum(each), len(each)) == (layers, pp)
        assert each[0] == min(each)
        assert max(each) - min(each) == 1


def test_the_published_division_of_llama_405b_is_looked_at() -> None:
    considered = layouts(load_model("llama-3-405b"), DGX, Bounds(gpus=8192, global_batch=2048))
    assert any((item.tp, item.pp) == (8, 16) for item in considered)


# --- sweeps --------------------------------------------------------------------------------------------


def test_a_curve_is_the_same_on_an_executor_and_from_shards(tmp_path: Path) -> None:
    gpus = (8, 16, 64)
    whole = sweep_gpus(REQUEST, gpus)
    with ThreadPoolExecutor(2) as pool:
        assert sweep_gpus(REQUEST, gpus, open_executor=lambda: nullcontext(pool)) == whole
    paths = [tmp_path / f"{index}.json" for index in (1, 2)]
    for index, path in enumerate(paths, start=1):
        path.write_bytes(curve_shard(REQUEST, gpus, Shard(index=index, of=2)).content)
    assert merge_curves(paths) == whole
    with pytest.raises(InputError, match="shard 2/2 is missing"):
        merge_curves(paths[:1])
    paths[0].write_text('{"schema": "makeway/scale-shard/1", "points": 3}')
    with pytest.raises(InputError, match="is not a shard"):
        merge_curves(paths)


# --- exports ---------------------------------------------------------------------------------------------


def test_megatron_gets_every_part_of_a_layout() -> None:
    layout = parse_layout("tp=8,pp=4,vp=2,dp=2,mbs=1,gbs=64,sp,sharding=zero1,recompute=full")
    words = shlex.split(export_layout(LLAMA, layout, "megatron").text, comments=True)
    given = {word: after for word, after in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}
    assert given["--tensor-model-parallel-size"] == "8"
    assert given["--num-virtual-stages-per-pipeline-rank"] == "2"
    assert given["--num-query-groups"] == "8"
    assert {"--use-distributed-optimizer", "--sequence-parallel", "--swiglu", "--recompute-granularity"} <= set(given)


def test_a_schedule_that_a_framework_does_not_run_is_refused() -> None:
    layout = parse_layout("pp=4,schedule=zb-h1,gbs=8")
    for target in ("megatron", "torchtitan"):
        with pytest.raises(MakewayError, match="not zb-h1"):
            export_layout(LLAMA, layout, target)


def test_torchtitan_gets_toml_whose_degrees_multiply_to_the_gpus() -> None:
    import tomllib

    layout = parse_layout("tp=4,pp=2,dp=8,mbs=1,gbs=64,sharding=fsdp,schedule=interleaved,vp=2")
    document = tomllib.loads(export_layout(LLAMA, layout, "torchtitan").text)
    degrees = document["parallelism"]
    names = (
        "data_parallel_replicate",
        "data_parallel_shard",
        "tensor_parallel",
        "context_parallel",
        "pipeline_parallel",
    )
    product = 1
    for name in names:
        product *= degrees[f"{name}_degree"]
    assert product == layout.gpus == 64
    assert degrees["pipeline_parallel_layers_per_stage"] == 8


# --- the command -------------------------------------------------------------------------------------------

ONE = "scale llama-3-8b --cluster dgx-h100"


def test_one_layout_gives_the_keys_that_scripts_rely_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "step.json"
    assert main(shlex.split(f"{ONE} --gpus 16 --layout tp=2,pp=2,gbs=32,sharding=zero1 --json --perfetto {trace}")) == 0
    document = json.loads(capsys.readouterr().out)
    keys = "step_s tokens_per_s_per_gpu mfu memory_gib ledger layout controls assumed"
    assert set(keys.split()) <= set(document)
    assert sum(line["ms"] for line in document["ledger"]) / 1e3 == pytest.approx(document["step_s"], rel=1e-6)
    assert (document["layout"]["tp"], document["layout"]["dp"]) == (2, 4)
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (f"{ONE} --gpus 16 --layout tp=3", "16 GPUs do not divide by tp x cp x pp = 3; take 15 or 18 GPUs"),
        (f"{ONE} --gpus 15 --layout tp=3,gbs=5", "32 heads do not divide by tp 3; tp may be 2 or 4"),
        (f"{ONE} --gpus 16 --layout tp=2,gbs=7", "it must be a multiple of 8"),
        (f"{ONE} --gpus 2 --layout tp=1,gbs=2", "does not fit"),
        ("scale llama-3-9b --cluster dgx-h100 --gpus 8", "did you mean"),
        (f"{ONE}", "how many GPUs"),
        (f"{ONE} --sweep gpus=x", "--sweep takes gpus=64..16384"),
        (f"{ONE} --gpus 8 --shard 1/2 --out x", "--shard divides a sweep"),
        ("simulate gemm-ar --device H100-SXM5-80GB --gpus 4096", "makeway scale MODEL --cluster NAME --gpus 4096"),
        ("simulate gemm-ar --device H100-SXM5-80GB --ranks 4096", "makeway scale"),
    ],
)
def test_bad_input_gets_one_message_that_says_what_would_work(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(words)) == 2
    message = capsys.readouterr().err
    assert says in message
    assert "Traceback" not in message


def test_tensor_parallelism_across_nodes_without_links_is_refused() -> None:
    alone = replace(DGX, levels=DGX.levels[:1])
    with pytest.raises(InputError, match=r"Take tp and --gpus of at most 8"):
        scale(LLAMA, alone, gpus=16, layout=parse_layout("tp=16,gbs=1"))
