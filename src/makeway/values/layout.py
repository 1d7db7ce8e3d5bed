"""Layouts: how a model and its batch are divided over GPUs, and how a step is scheduled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from makeway.values.control import DEFAULT_RANK, DEFAULT_SHARE, Control, method_word
from makeway.values.errors import InputError
from makeway.values.model import Model
from makeway.values.units import MIB, check_whole

Sharding = Literal["none", "zero1", "zero2", "zero3", "fsdp", "hsdp"]
Recompute = Literal["none", "selective", "ops", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-2p", "zbv", "dualpipe", "dualpipev"]
Precision = Literal["fp16", "bf16", "fp8", "fp4"]
Gradients = Literal["fp32", "bf16"]
Dispatcher = Literal["alltoall", "deepep"]
CompressionKind = Literal["fp16", "bf16", "fp8", "powersgd", "topk", "1-bit"]

TWO_CHUNK_SCHEDULES: tuple[Schedule, ...] = ("zbv", "dualpipe", "dualpipev")  # each stage holds two parts of the model


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """How gradients are encoded before they are exchanged between replicas."""

    kind: CompressionKind
    rank: int = DEFAULT_RANK  # PowerSGD
    share: float = DEFAULT_SHARE  # top-k: of the gradient's elements that are sent

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", method_word(self.kind))
        if self.kind not in get_args(CompressionKind):
            raise InputError(f"compression {self.kind!r}; it must be one of {', '.join(get_args(CompressionKind))}")
        check_whole("rank of PowerSGD", self.rank, 1)
        if not 0 < self.share <= 1:
            raise InputError(f"top-k sends a share of the elements above 0 and up to 1, got {self.share!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to train; products and divisions are checked here, against a model in `check_for`."""

    tp: int = 1
    cp: int = 1
    ep: int = 1  # experts are spread over this many of the tp x cp x dp ranks of a stage
    pp: int = 1
    vp: int = 1  # model chunks per stage
    dp: int = 1
    sp: bool = False  # sequence parallelism: norms and dropout divided over tp
    sharding: Sharding = "none"
    shard_group: int | None = None  # hsdp: ranks that share one copy
    micro_batch: int = 1
    global_batch: int = 1
    recompute: Recompute = "none"  # ops: every second product and all passes, as torch selects by operator
    schedule: Schedule = "1f1b"
    precision: Precision = "bf16"
    gradients: Gradients = "fp32"  # that are added up over micro batches and replicas
    bucket_bytes: int = 40 * MIB
    overlap_dp: bool = True  # gradients are reduced, and parameters gathered, beside compute
    overlap_tp: bool = False  # tensor-parallel collectives in pieces beside their GEMMs
    overlap_pp: bool = False  # pipeline hops beside compute
    overlap_ep: bool = False  # all-to-alls of one micro batch beside compute of another
    dispatcher: Dispatcher = "alltoall"  # deepep: a token is sent once per node and per GPU, not once per expert
    adapters: bool = False  # LoRA: weights are frozen, their gradients and optimizer do not exist
    graphs: bool = False  # CUDA graphs or a compiled step: launches cost the host nothing
    compression: Compression | None = None
    controls: tuple[Control, ...] = ()
    stage_layers: tuple[int, ...] = ()  # layers of each stage, where they are uneven

    def __post_init__(self) -> None:
        for what in ("tp", "cp", "ep", "pp", "vp", "dp", "micro_batch", "global_batch", "bucket_bytes"):
            check_whole(what.replace("_", " "), getattr(self, what), 1)
        for what, choices in (
            ("sharding", Sharding),
            ("recompute", Recompute),
            ("schedule", Schedule),
            ("precision", Precision),
            ("dispatcher", Dispatcher),
            ("gradients", Gradients),
        ):
            if getattr(self, what) not in get_args(choices):
                raise InputError(f"{what} {getattr(self, what)!r}; it must be one of {', '.join(get_args(choices))}")
        if self.global_batch % (self.dp * self.micro_batch):
            raise InputError(
                f"a global batch of {self.global_batch:,} does not divide into {self.dp:,} replicas with micro batches "
                f"of {self.micro_batch}; it must be a multiple of {self.dp * self.micro_batch:,}"
            )
        if (self.tp * self.cp * self.dp) % self.ep:
            raise InputError(f"ep {self.ep} does not divide tp x cp x dp = {self.tp * self.cp * self.dp:,}")
        if self.vp > 1 and self.schedule not in ("interleaved", *TWO_CHUNK_SCHEDULES):
            raise InputError(f"vp {self.vp} needs the interleaved schedule, not {self.schedule}")
        if self.vp > 2 and self.schedule in TWO_CHUNK_SCHEDULES:
            raise InputError(f"vp {self.vp}: a stage of {self.schedule} holds two parts of the model")
        if self.sharding == "hsdp" and (self.shard_group is None or self.dp % self.shard_group):
            raise InputError(f"hsdp needs a shard group that divides dp {self.dp:,}, got {self.shard_group}")
        self._check_compression()
        if self.stage_layers and len(self.stage_layers) != self.pp:
            raise InputError(f"stage_layers names {len(self.stage_layers)} stages; pp is {self.pp}")

    def _check_compression(self) -> None:
        if self.compression is None or self.sharding == "none":
            return
        if self.sharding not in ("zero1", "zero2") or self.compression.kind not in ("fp16", "bf16", "fp8"):
            raise InputError(
                f"compression {self.compression.kind} needs whole gradients on every replica, not sharding "
                f"{self.sharding}; take sharding=none, or compression=bf16 or fp8 with sharding=zero1"
            )

    @property
    def gpus(self) -> int:
        return self.tp * self.cp * self.pp * self.dp

    @property
    def micro_batches(self) -> int:
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def chunks(self) -> int:
        """Parts of the model that one stage holds."""
        return max(2, self.vp) if self.schedule in TWO_CHUNK_SCHEDULES else self.vp

    def layers_of(self, model: Model) -> tuple[int, ...]:
        """Layers of each stage."""
        return self.stage_layers or (model.layers // self.pp,) * self.pp

    def check_for(self, model: Model) -> None:
        """Refuse a division that this model does not allow."""
        whole = [("heads", model.heads, "tp", self.tp), ("sequence", model.seq, "cp", self.cp)]
        if model.ffn:
            whole.append(("ffn", model.ffn, "tp", self.tp))
        if not self.stage_layers:
            whole.append(("layers", model.layers, "pp x chunks", self.pp * (self.chunks if self.vp > 1 else 1)))
        if model.experts:
            whole.append(("experts", model.experts.count, "ep", self.ep))
        elif self.ep > 1:
            raise InputError(f"ep {self.ep}: {model.name} has no experts")
        for what, total, by, parts in whole:
            if total % parts:
                raise InputError(
                    f"{model.name}: {total:,} {what} do not divide by {by} {parts:,}; {by} may be {_near(total, parts)}"
                )
        if self.stage_layers and sum(self.stage_layers) != model.layers:
            raise InputError(
                f"{model.name} has {model.layers} layers; stage_layers adds up to {sum(self.stage_layers)}"
            )


def _near(total: int, parts: int) -> str:
    """The divisors of `total` on both sides of `parts`."""
    divisors = [number for number in range(1, min(total, 2 * parts) + 1) if total % number == 0]
    below = [number for number in divisors if number < parts][-1:]
    above = [number for number in divisors if number > parts][:1]
    return " or ".join(f"{number:,}" for number in (*below, *above))
