"""Rows of published training steps: the model, layout, cluster and software that each describes.

A row has the columns of the tables of published steps (docs/scale.md). What a row leaves open is assumed, in plain
sentences; what it names and the model does not know makes the row uncovered, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from makeway.decide.scale.generation import Generation
from makeway.decide.scale.recipes import Asked, recipe_settings
from makeway.decide.scale.software import choose
from makeway.values.cluster import Cluster, Level
from makeway.values.device import Device, load_device
from makeway.values.errors import InputError, MakewayError, UnsupportedError
from makeway.values.layout import Layout, Precision, Recompute, Schedule, Sharding
from makeway.values.model import Experts, LatentAttention, Model
from makeway.values.units import MIB

# Columns that make a table one of training steps. A row says which others it lacks.
COLUMNS = frozenset({"id", "device", "gpus", "model", "metric", "value"})

_COLUMNS = COLUMNS | {
    "layers", "hidden", "seq", "tp", "pp", "source", "verified", "split", "system", "nodes_gpus", "net_gbps_per_gpu",
    "params_b", "ffn", "heads", "kv_heads",
    "vocab", "experts", "topk", "expert_ffn", "vp", "cp", "ep", "dp", "fsdp", "sp", "mbs", "gbs", "ga", "recompute",
    "precision", "schedule", "flags", "metric2", "value2", "metric3", "value3", "unknown", "date", "url", "notes",
}  # fmt: skip
_AS_USUAL = ("", "0", "1", "no", "none", "n/a", "-", "false", "off")  # values that a column without meaning may have
# What the cost of a prediction grows with is bounded: a table may come from anywhere.
_MOST = {"layers": 2_000, "pp": 256, "vp": 64, "hidden": 1 << 17, "heads": 1 << 12}
_MOST_OF_ALL = 1 << 24
_VOCAB = 51200  # GPT-2's, padded as Megatron pads it
_NET_GBPS = {"sm_80": 200.0, "sm_90": 400.0, "sm_100": 400.0, "sm_103": 800.0}
_SCHEDULES: dict[str, Schedule] = {
    "": "1f1b", "1f1b": "1f1b", "gpipe": "gpipe", "interleaved 1f1b": "interleaved", "interleaved": "interleaved",
    "1f1b-i": "interleaved", "zb-h1": "zb-h1", "zb-1p": "zb-h1", "zb-2p": "zb-2p", "zb-h2": "zb-h2", "zbv": "zbv",
    "zb-v": "zbv", "dualpipe": "dualpipe", "dualpipev": "dualpipev",
}  # fmt: skip
_GATED = re.compile(r"llama|mixtral|qwen|deepseek|mistral|gemma|kimi|glm|grok|yi-|falcon3|olmo", re.IGNORECASE)
_NOT_GATED = re.compile(r"nemotron|gpt|mpt|opt|bloom|megatron|turing", re.IGNORECASE)
_PRECISIONS: dict[str, Precision] = {"fp4": "fp4", "fp8": "fp8", "bf16": "bf16", "bfp16": "bf16", "fp16": "fp16"}
# DeepSeek's latent attention, from its published configurations; a row has no columns for it.
_LATENT = {
    "deepseekv2": LatentAttention(query_rank=1536, key_value_rank=512, rotary_dim=64, value_dim=128),
    "deepseekv3": LatentAttention(query_rank=1536, key_value_rank=512, rotary_dim=64, value_dim=128),
}
_LATENT["kimik2"] = _LATENT["deepseekv3"]
# Shared experts, their ffn, dense layers.
_SHARED = {"deepseekv2": (2, 1536, 1), "deepseekv3": (1, 2048, 3), "kimik2": (1, 2048, 1)}
_HEAD_DIM = {"qwen3": 128}  # where it is not hidden over heads; published configurations
# What a name tells of a model that the columns cannot say and the model does not have.
_NOT_MODELLED = tuple(
    (re.compile(names, re.IGNORECASE), why)
    for names, why in (
        (r"token.?drop", "dropped tokens are not modelled"),
        (
            r"mamba|nemotron.?(h(?![a-z])|3(?!\d)|nano)|qwen.?3?.?next|qwen.?3\.[5-9]|jamba|zamba|bamba|falcon.?h\d|"
            r"granite.?4|kimi.?(linear|k[3-9])|minimax.?(m1|01|text)|\b[lr]ing.?[23]|rwkv|retnet",
            "state-space and linear-attention layers are not modelled",
        ),
        (r"deepseek.?(v3\.[2-9]|v[4-9])|glm.?5|native.?sparse", "sparse attention is not modelled"),
        (r"gpt.?oss", "attention with sinks and windows, and experts with biases, are not modelled"),
        (r"llama.?4(?!\d)|gemma.?[2-4](?![b\d])", "layers of several kinds in turn are not modelled"),
        (r"\bwan\b|flux|diffusion|[^a-z]vl\b|vision|clip|whisper|t5\b|bert|omni", "only decoders of text are modelled"),
    )
)
_LATENT_HEAD = 128
_SAME, _MOST_LAYERS = 0.05, 256  # of published parameters, which are rounded; of a model that rows show a part of


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a row describes, completed by what it leaves open."""

    model: Model
    layout: Layout
    cluster: Cluster
    generation: Generation
    assumed: tuple[str, ...]


class _UncoveredError(UnsupportedError):
    """A row that the model cannot predict."""


@dataclass(slots=True)
class _Reader:
    row: Mapping[str, str]
    assumed: list[str]

    def text(self, key: str) -> str:
        return (self.row.get(key) or "").strip()

    def given(self, key: str) -> bool:
        return self.text(key).lower() not in ("", "n/a", "na", "-", "none")

    def whole(self, key: str, default: int | None = None) -> int:
        text = self.text(key)
        if not self.given(key):
            if default is None:
                raise _UncoveredError(f"{key} is not given")
            return default
        try:
            value = int(number := float(re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)))
        except (ValueError, OverflowError):
            raise _UncoveredError(f"{key} {text!r} is not a number") from None
        if value < 1 or value != number:
            raise _UncoveredError(f"{key} {text!r} is not a whole number of 1 or more")
        if value > _MOST.get(key, _MOST_OF_ALL):
            raise _UncoveredError(f"{key} {text!r}; the model takes at most {_MOST.get(key, _MOST_OF_ALL):,}")
        return value

    def assume(self, sentence: str) -> None:
        self.assumed.append(sentence)


def describe(row: Mapping[str, str], *, generation: Generation | None = None, without: str = "") -> Described:
    """What a row describes, with the generation of its software or a given one; `without` one, to test the others.

    An `UnsupportedError` says why it cannot be predicted.
    """
    read = _Reader(row, [])
    for key in sorted(key for key in set(row) - _COLUMNS if key and read.text(key).lower() not in _AS_USUAL):
        raise _UncoveredError(f"{key} {read.text(key)!r}: such a column is not known")
    device = _device(read)
    generation = generation or _generation(read, device, without)
    model = _model(read)
    layout = _layout(read, model, generation)
    if not read.text("recompute"):
        read.assume("nothing is computed again")
    cluster = _cluster(read, device)
    return Described(
        model=model,
        layout=layout,
        cluster=cluster,
        generation=generation,
        assumed=tuple(read.assumed),
    )


def _device(read: _Reader) -> Device:
    name = read.text("device")
    try:
        return load_device(name)
    except MakewayError:
        raise _UncoveredError(f"no facts for device {name!r}") from None


def _where(read: _Reader) -> str:
    """What a row says of its software, lower case."""
    return " ".join(read.text(key) for key in ("id", "source", "flags", "system")).lower()


def _generation(read: _Reader, device: Device, without: str) -> Generation:
    tensor = read.whole("tp", 1) > 1 or read.whole("pp", 1) > 1
    precision = _precision(read.text("precision"))
    try:
        choice = choose(device, _where(read), precision=precision, tensor=tensor, without=without)
    except MakewayError as error:
        raise _UncoveredError(str(error).splitlines()[0]) from None
    for sentence in choice.assumed:
        read.assume(sentence)
    if "flash" in _where(read) and not choice.generation.fused_attention:
        read.assume("fused attention, as the row says, at a usual rate")
        return replace(choice.generation, fused_attention=True, calibrated_on=())
    return choice.generation


def _precision(text: str) -> Precision:
    wanted = text.lower().replace("float", "fp")
    if "rowwise" in wanted:
        raise _UncoveredError(f"precision {text!r}: scales by row are not modelled")
    for mark, precision in _PRECISIONS.items():
        if mark in wanted:
            return precision
    if wanted:
        raise _UncoveredError(f"precision {text!r} is not modelled")
    return "bf16"


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _model(read: _Reader) -> Model:
    name = read.text("model")
    for names, why in _NOT_MODELLED:
        if names.search(name):
            raise _UncoveredError(f"{name}: {why}")
    key = _key(name)
    latent = next((value for known, value in _LATENT.items() if key.startswith(known)), None)
    count = read.whole("experts", 0 + 1) if read.text("experts") else 0
    experts = None
    if count > 1:
        shared, shared_ffn, dense = next((item for known, item in _SHARED.items() if key.startswith(known)), (0, 0, 0))
        if dense >= read.whole("layers") - 1:
            dense = 1
            read.assume("a truncated model keeps one layer without experts")
        experts = Experts(
            count=count,
            top_k=read.whole("topk"),
            ffn=read.whole("expert_ffn"),
            shared=shared,
            shared_ffn=shared_ffn,
            dense_layers=dense,
        )
    hidden, heads = read.whole("hidden"), read.whole("heads")
    if not read.text("vocab"):
        read.assume(f"a vocabulary of {_VOCAB:,}")
    kv_heads = read.whole("kv_heads", heads)
    known = next((size for start, size in _HEAD_DIM.items() if key.startswith(start)), hidden // heads)
    head_dim = _LATENT_HEAD if latent else known
    model = Model(
        name=name,
        layers=read.whole("layers"),
        hidden=hidden,
        ffn=read.whole("ffn", 0 if experts else None) if not experts or experts.dense_layers else 0,
        heads=heads,
        kv_heads=kv_heads,
        vocab=read.whole("vocab", _VOCAB),
        seq=read.whole("seq"),
        head_dim=head_dim,
        gated=bool(_GATED.search(name)),
        experts=experts,
        latent=latent,
    )
    return _checked(read, model, known=model.gated or bool(_NOT_GATED.search(name)))


def _checked(read: _Reader, model: Model, *, known: bool) -> Model:
    """The model, if its published parameters agree; they also tell the kind of one whose name says nothing."""
    if not read.given("params_b"):
        if known:
            return model
        raise _UncoveredError(f"{model.name}: an unknown model, and params_b, which could tell its kind, is not given")
    try:
        published = float(read.text("params_b")) * 1e9
    except ValueError:
        raise _UncoveredError(f"params_b {read.text('params_b')!r} is not a number") from None
    if known and model.parameters <= 1.5 * published and model.layers * published / model.parameters <= _MOST_LAYERS:
        return model  # or some of its layers
    for kind in (replace(model, gated=gated) for gated in (True, False) if not known):
        if any(
            abs(held / published - 1) <= _SAME for held in (kind.parameters, kind.parameters - kind.vocab * kind.hidden)
        ):
            read.assume(f"a decoder {'with' if kind.gated else 'without'} a gated MLP, as its parameters say")
            return kind
    held = f"{model.parameters / 1e9:,.3g} B parameters"
    raise _UncoveredError(f"{model.name}: a decoder of these dimensions has {held}, not {read.text('params_b')} B")


def _sharding(read: _Reader, generation: Generation) -> Sharding:
    text = read.text("fsdp").lower()
    if text in ("full_shard", "fsdp", "fsdp2", "zero3", "yes", "true") or (text.isdigit() and int(text) > 0):
        return "fsdp"
    if text in ("zero1", "zero2", "shard_grad_op"):
        return "zero1" if text == "zero1" else "zero2"
    if text not in ("", "0", "no", "none", "n/a", "-", "false", "ddp", "no_shard"):
        raise _UncoveredError(f"fsdp {text!r} is not modelled")
    if generation.fused_attention and "megatron" in generation.software.lower():
        read.assume("a distributed optimizer")
        return "zero1"
    return "none"


def _recompute(read: _Reader) -> Recompute:
    text = read.text("recompute").lower()
    if not text or text in ("none", "no", "sp"):
        return "none"
    if "full" in text:
        return "full"
    if "per-op" in text or "per op" in text:
        return "ops"
    if "selective" in text:
        return "selective"
    raise _UncoveredError(f"recompute {text!r} is not modelled")


def _layout(read: _Reader, model: Model, generation: Generation) -> Layout:
    schedule_text = read.text("schedule").lower()
    if schedule_text not in _SCHEDULES:
        raise _UncoveredError(f"schedule {schedule_text!r} is not modelled")
    schedule = _SCHEDULES[schedule_text]
    gpus, tp, pp, cp = read.whole("gpus"), read.whole("tp"), read.whole("pp"), read.whole("cp", 1)
    vp = read.whole("vp", 1) if pp > 1 else 1
    if gpus % (tp * pp * cp):
        raise _UncoveredError(f"{gpus} GPUs do not divide by tp {tp} x pp {pp} x cp {cp}")
    dp = gpus // (tp * pp * cp)
    if read.text("dp") and read.whole("dp") != dp:
        read.assume(f"dp {dp}, from the other dimensions; the row says {read.text('dp')}")
    if vp > 1 and schedule == "1f1b":
        schedule = "interleaved"
    for key, sentence in (("mbs", "micro batches of one sequence"), ("ep", "all experts on every GPU")):
        if not read.given(key) and (key == "mbs" or model.experts):
            read.assume(sentence)
    if not (read.given("gbs") or read.given("ga")):
        read.assume("one micro batch per replica")
    micro = read.whole("mbs", 1)
    batch = read.whole("gbs", micro * dp * read.whole("ga", 1))
    ep = read.whole("ep", 1)
    if not model.experts:
        ep = 1
    precision = _precision(read.text("precision"))
    flags = read.text("flags").lower()
    if "offload" in flags:
        raise _UncoveredError("offloading is not modelled")
    sp_text = read.text("sp").lower()
    if sp_text not in ("", "yes", "no", "true", "false", "0", "1", "n/a", "-"):
        raise _UncoveredError(f"sp {sp_text!r} is not modelled")
    sp = sp_text in ("yes", "true", "1") or (not sp_text and tp > 1 and generation.fused_attention)
    megatron = "megatron" in generation.software.lower() and generation.fused_attention
    asked = Asked(
        where=_where(read),
        model=_key(model.name),
        device=read.text("device"),
        precision=read.text("precision").lower(),
        experts=model.experts is not None,
    )
    settings = recipe_settings(asked)
    if settings:
        read.assume(f"{', '.join(f'{name} {value}' for name, value in settings.items())}: the published recipe")
    overlap_tp = (generation.overlap_tp or "async tp" in flags) and tp > 1 and sp
    if overlap_tp:
        read.assume("tensor-parallel collectives beside their products")
    try:
        layout = Layout(
            tp=tp,
            cp=cp,
            ep=ep,
            pp=pp,
            vp=vp,
            dp=dp,
            sp=sp and tp > 1,
            sharding=_sharding(read, generation) if dp * cp > 1 else "none",
            micro_batch=micro,
            global_batch=batch,
            recompute=_recompute(read),
            schedule=schedule if pp > 1 else "1f1b",
            precision=precision,
            overlap_dp="no dp overlap" not in flags,
            overlap_tp=overlap_tp,
            overlap_pp=megatron and vp > 1,
            adapters="lora" in model.name.lower(),
            stage_layers=_stage_layers(read, model.layers, pp, vp),
            **settings,
        )
        layout.check_for(model)
    except InputError as error:
        raise _UncoveredError(str(error)) from None
    return layout


def _stage_layers(read: _Reader, layers: int, pp: int, vp: int) -> tuple[int, ...]:
    """Uneven stages where layers do not divide: embedding and output count as a layer each, as Megatron can."""
    if pp == 1 or layers % (pp * vp) == 0:
        return ()
    each, rest = divmod(layers + 2, pp)
    if rest == 0:
        read.assume("the first and the last stage hold one layer less")
        return (each - 1, *((each,) * (pp - 2)), each - 1)
    each, rest = divmod(layers, pp)
    read.assume("layers spread as evenly as they go")
    return tuple(each + (stage < rest) for stage in range(pp))


def _cluster(read: _Reader, device: Device) -> Cluster:
    node = read.whole("nodes_gpus", 8)
    net = read.text("net_gbps_per_gpu")
    if net:
        try:
            gbps = float(net)
        except ValueError:
            raise _UncoveredError(f"net_gbps_per_gpu {net!r} is not a number") from None
        if gbps <= 0:
            raise _UncoveredError(f"net_gbps_per_gpu {net!r} is not above 0")
        if not 0.1 <= gbps <= 1e5:
            raise _UncoveredError(f"net_gbps_per_gpu {net!r} is not the rate of a network")
    else:
        gbps = _NET_GBPS.get(device.arch, 400.0)
        if read.whole("gpus") > node:
            read.assume(f"a network of {gbps:g} Gb/s per GPU")
    return plain_cluster(device, node_gpus=node, net_bytes_per_s=gbps / 8 * 1e9)


# Share of the rate, latency of a hop and payload at half the rate. A100 and H100: nccl-tests, vTrain's tables on eight
# A100, stas00's on eight H200. Blackwell: all-gather and reduce-scatter on two to eight B200, measured in bursts as
# layers send them (SimuMax, configs/system/b200_bf16_ceperm.json): 24 us, 8.6 us per further rank, 72 % of the rate.
_LINK_SHARE = {"sm_80": 0.77, "sm_100": 0.72, "sm_103": 0.72}
_LINK_SHARE_DEFAULT = 0.81
_LINK_LATENCY_NS = {"sm_100": 8_600.0, "sm_103": 8_600.0}
_LINK_HALF_MIB = {"sm_80": 6.0, "sm_90": 10.0, "sm_100": 15.0, "sm_103": 15.0}


def plain_cluster(device: Device, *, node_gpus: int, net_bytes_per_s: float) -> Cluster:
    """Nodes of a device with its own links inside and one network between them, as nccl-tests measures them."""
    link_bytes_per_s = device.link_bytes_per_s or device.pcie_bytes_per_s
    if link_bytes_per_s is None:
        raise _UncoveredError(f"the link rate of {device.name} is not known")
    node = Level(
        name="node",
        gpus=node_gpus,
        bytes_per_s=link_bytes_per_s,
        latency_ns=_LINK_LATENCY_NS.get(device.arch, 2_000.0),
        efficiency=_LINK_SHARE.get(device.arch, _LINK_SHARE_DEFAULT),
        half_rate_bytes=_LINK_HALF_MIB.get(device.arch, 10.0) * MIB,
        reduces=device.link == "nvlink-switch" and device.arch != "sm_80",
    )
    network = Level(
        name="network",
        gpus=None,
        bytes_per_s=net_bytes_per_s,
        latency_ns=8_000.0,
        efficiency=0.85,
        half_rate_bytes=8.0 * MIB,
    )
    return Cluster(name=f"{device.name} x {node_gpus}", device=device, levels=(node, network))
