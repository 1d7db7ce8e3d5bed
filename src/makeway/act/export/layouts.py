"""A layout as the arguments of a training framework: Megatron-LM's command line, torchtitan's TOML.

torchtitan's keys are those of torchtitan/config/job_config.py in 0.2.0, whose parser reads TOML; 0.3 takes no TOML.
Megatron-LM's are of megatron/training/arguments.py, read but never run against its parser. What a
framework cannot be asked for is refused, or said in a comment where the run is right without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from makeway.values.errors import InputError, UnsupportedError, suggestion
from makeway.values.layout import Layout, Schedule
from makeway.values.layout_word import compression_word, layout_word
from makeway.values.model import Model

LAYOUT_TARGETS = ("megatron", "torchtitan")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutExport:
    """A layout as one framework's settings."""

    target: str
    text: str
    unsaid: tuple[str, ...]  # what the framework has no setting for, in sentences


def export_layout(model: Model, layout: Layout, target: str) -> LayoutExport:
    """The settings of `target` that train `model` under `layout`."""
    if layout.stage_layers:
        raise UnsupportedError("a layout with uneven stages cannot be exported; take a pp that divides the layers")
    match target:
        case "megatron":
            return _megatron(model, layout)
        case "torchtitan":
            return _torchtitan(model, layout)
        case _:
            raise InputError(f"unknown framework {target!r}{suggestion(target, LAYOUT_TARGETS)}")


def _unsaid(layout: Layout, framework: str, *, refused: tuple[str, ...]) -> tuple[str, ...]:
    lines = [f"{item}: {framework} has no setting for it" for item in refused]
    if layout.compression is not None:
        lines.append(f"compression={compression_word(layout.compression)}: {framework} has no setting for it")
    if layout.adapters:
        lines.append("adapters: name their kind, rank and layers yourself")
    if layout.controls:
        lines.append("controls: give them to `makeway run --plan`")
    return tuple(lines)


# --- Megatron ----------------------------------------------------------------------------------------

_MEGATRON_SCHEDULES: tuple[Schedule, ...] = ("1f1b", "interleaved")


def _megatron(model: Model, layout: Layout) -> LayoutExport:
    if layout.schedule not in _MEGATRON_SCHEDULES:
        raise UnsupportedError(
            f"Megatron-LM runs {' and '.join(_MEGATRON_SCHEDULES)}, not {layout.schedule}; give such a layout"
        )
    lines = [
        f"--tensor-model-parallel-size {layout.tp}",
        f"--pipeline-model-parallel-size {layout.pp}",
        f"--context-parallel-size {layout.cp}",
        f"--micro-batch-size {layout.micro_batch}",
        f"--global-batch-size {layout.global_batch}",
        *_megatron_model(model),
        "--bf16" if layout.precision != "fp16" else "--fp16",
    ]
    if layout.precision == "fp8":
        lines.append("--fp8-format hybrid")
    if layout.sp and layout.tp > 1:
        lines.append("--sequence-parallel")
    if layout.ep > 1:
        lines.append(f"--expert-model-parallel-size {layout.ep}")
        if layout.dispatcher == "deepep":
            lines.append("--moe-token-dispatcher-type flex --moe-enable-deepep")
    if layout.vp > 1:
        lines.append(f"--num-virtual-stages-per-pipeline-rank {layout.vp}")
    lines += _megatron_sharding(layout)
    if layout.recompute == "selective":
        lines.append("--recompute-granularity selective")
    elif layout.recompute == "full":
        lines.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    if layout.overlap_dp and layout.sharding != "none":
        lines.append("--overlap-grad-reduce --overlap-param-gather")
    elif layout.overlap_dp:
        lines.append("--overlap-grad-reduce")
    if layout.overlap_tp:
        lines.append("--tp-comm-overlap")
    if layout.overlap_ep:
        lines.append("--overlap-moe-expert-parallel-comm")
    if layout.vp > 1 and not layout.overlap_pp:
        lines.append("--no-overlap-p2p-communication")
    if layout.graphs:
        lines.append("--enable-cuda-graph")
    unsaid = _unsaid(layout, "Megatron-LM", refused=("recompute=ops",) if layout.recompute == "ops" else ())
    if layout.precision == "fp4":
        unsaid = ("fp4: name its format and recipe yourself, as your version of Megatron-LM spells them", *unsaid)
    return LayoutExport(target="megatron", text=_file(layout, unsaid, lines), unsaid=unsaid)


def _megatron_model(model: Model) -> list[str]:
    lines = [
        f"--num-layers {model.layers}",
        f"--hidden-size {model.hidden}",
        f"--ffn-hidden-size {model.ffn or (model.experts.ffn if model.experts else 0)}",
        f"--num-attention-heads {model.heads}",
        f"--kv-channels {model.head_dim}",
        f"--seq-length {model.seq}",
        f"--max-position-embeddings {model.seq}",
    ]
    if model.kv_heads < model.heads:
        lines.append(f"--group-query-attention --num-query-groups {model.kv_heads}")
    if model.gated:
        lines.append("--swiglu")
    if not model.tied_embeddings:
        lines.append("--untie-embeddings-and-output-weights")
    if model.experts is not None:
        lines.append(f"--num-experts {model.experts.count} --moe-router-topk {model.experts.top_k}")
        lines.append(f"--moe-ffn-hidden-size {model.experts.ffn} --moe-grouped-gemm")
        if model.experts.shared:
            shared = model.experts.shared * model.experts.shared_ffn
            lines.append(f"--moe-shared-expert-intermediate-size {shared}")
    if model.latent is not None:
        mla = model.latent
        lines.append(f"--multi-latent-attention --kv-lora-rank {mla.key_value_rank}")
        lines.append(
            f"--qk-head-dim {model.head_dim} --qk-pos-emb-head-dim {mla.rotary_dim} --v-head-dim {mla.value_dim}"
        )
        if mla.query_rank:
            lines.append(f"--q-lora-rank {mla.query_rank}")
    return lines


def _megatron_sharding(layout: Layout) -> list[str]:
    match layout.sharding:
        case "none":
            return []
        case "zero1":
            return ["--use-distributed-optimizer"]
        case "hsdp":
            shards = layout.shard_group or layout.dp
            return [
                "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params",
                f"--num-distributed-optimizer-instances {layout.dp // shards}",
            ]
        case "zero2":
            return ["--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads"]
        case "zero3" | "fsdp":
            return ["--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"]


def _file(layout: Layout, unsaid: tuple[str, ...], lines: list[str]) -> str:
    head = [f"# makeway scale: {layout_word(layout)}", *(f"# not said here: {line}" for line in unsaid)]
    return "\n".join([*head, *lines]) + "\n"


# --- torchtitan --------------------------------------------------------------------------------------

_TITAN_SCHEDULES: dict[Schedule, str] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}


def _torchtitan(model: Model, layout: Layout) -> LayoutExport:
    if layout.pp > 1 and layout.schedule not in _TITAN_SCHEDULES:
        raise UnsupportedError(
            f"torchtitan runs {', '.join(_TITAN_SCHEDULES)}, not {layout.schedule}; give such a layout"
        )
    if layout.precision == "fp16":
        raise UnsupportedError("torchtitan trains in bfloat16 or float32, not fp16; take precision=bf16")
    if layout.sharding in ("zero1", "zero2"):
        raise UnsupportedError(f"torchtitan shards parameters (fsdp, hsdp) or nothing, not {layout.sharding}")
    shards = {"none": 1, "hsdp": layout.shard_group or layout.dp}.get(layout.sharding, layout.dp)
    local = layout.global_batch // layout.dp
    document: dict[str, dict[str, str | int | bool]] = {
        "training": {
            "local_batch_size": local if layout.pp > 1 else layout.micro_batch,
            "global_batch_size": layout.global_batch,
            "seq_len": model.seq,
            "mixed_precision_param": "bfloat16",
        },
        "parallelism": {
            "data_parallel_replicate_degree": layout.dp // shards,
            "data_parallel_shard_degree": shards,
            "tensor_parallel_degree": layout.tp,
            "enable_async_tensor_parallel": layout.overlap_tp,
            "context_parallel_degree": layout.cp,
            "pipeline_parallel_degree": layout.pp,
            "expert_parallel_degree": layout.ep,
        },
        "activation_checkpoint": {"mode": "selective" if layout.recompute == "ops" else layout.recompute},
        "compile": {"enable": layout.graphs or layout.overlap_tp},
    }
    if layout.pp > 1:
        document["parallelism"] |= {
            "pipeline_parallel_schedule": _TITAN_SCHEDULES[layout.schedule],
            "pipeline_parallel_microbatch_size": layout.micro_batch,
        }
        if layout.chunks > 1:
            document["parallelism"]["pipeline_parallel_layers_per_stage"] = max(
                1, model.layers // (layout.pp * layout.chunks)
            )
    refused = [f"model {model.name}: name it under [model] yourself"]
    if layout.precision == "fp8":
        refused.append("fp8: add the converter quantize.linear.float8")
    elif layout.precision == "fp4":
        refused.append("fp4: torchtitan has no converter for it that is known here")
    if layout.dispatcher == "deepep":
        refused.append("dispatcher deepep: set it in the model's configuration")
    unsaid = (*refused, *_unsaid(layout, "torchtitan", refused=()))
    return LayoutExport(target="torchtitan", text=_file(layout, unsaid, _toml(document)), unsaid=unsaid)


def _toml(document: dict[str, dict[str, str | int | bool]]) -> list[str]:
    lines = []
    for section, values in document.items():
        lines += ["", f"[{section}]", *(f"{key} = {_toml_value(value)}" for key, value in values.items())]
    return lines


def _toml_value(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


SCHEDULES: dict[str, tuple[Schedule, ...]] = {"megatron": _MEGATRON_SCHEDULES, "torchtitan": tuple(_TITAN_SCHEDULES)}
