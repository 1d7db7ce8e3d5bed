"""Presets: published experiments and overlap patterns of transformer layers, as workloads for a device.

What no source gives is in the workload's `assumed`, in plain sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from makeway.model.residency import check_launch, resident_blocks
from makeway.values.collective import CollectiveKind
from makeway.values.device import Device
from makeway.values.errors import InputError, UnknownNameError, UnsupportedError, suggestion
from makeway.values.kernel import KernelResources
from makeway.values.units import KIB, MIB, check_whole, format_bytes
from makeway.values.workload import (
    DEFAULT_EFFICIENCY,
    ELEMENT_BYTES,
    BlockWork,
    DataType,
    Gemm,
    Workload,
    WorkloadBuilder,
)

Shape = tuple[int, int, int]  # M, N, K of a product or of a tile


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetOptions:
    """What to change in a preset; None keeps the preset's own choice."""

    ranks: int | None = None
    grid: tuple[int, int] | None = None  # X x Y blocks that loop over the tiles
    tile: Shape | None = None
    in_flight: int | None = None  # GEMMs of different iterations that may run at once: compute streams
    iterations: int | None = None
    library: str | None = None  # a footprint, taken as it is for every collective
    block: KernelResources | None = None  # what one block of its GEMMs occupies

    def __post_init__(self) -> None:
        for what, least in (("ranks", 2), ("in_flight", 1), ("iterations", 1)):
            if (value := getattr(self, what)) is not None:
                check_whole(what, value, least)


_NO_CHANGES = PresetOptions()


def preset_names() -> tuple[str, ...]:
    """Names of all presets."""
    return tuple(_PRESETS)


def preset_summary(name: str) -> str:
    """What a preset runs, in one line."""
    return _preset(name).summary


def load_preset(name: str, device: Device, options: PresetOptions = _NO_CHANGES) -> Workload:
    """The workload of that name with kernels that `device` can launch."""
    preset = _preset(name)
    if device.limits is None:
        raise UnsupportedError(f"presets run on GPUs; {device.name} is a CPU host. `makeway devices` lists GPUs.")
    for option in fields(options):
        if getattr(options, option.name) is not None and option.name not in preset.takes:
            raise InputError(f"preset {name!r} takes no {option.name}; it takes {', '.join(preset.takes)}")
    ranks = options.ranks or (8 if device.vendor == "amd" else preset.nvidia_ranks)
    draft = _Draft(WorkloadBuilder(name, ranks=ranks), device, options)
    preset.build(draft)
    workload = draft.builder.done()
    for kernel in workload.kernels:
        check_launch(device, kernel.resources)
    return replace(workload, assumed=(*preset.assumed, *_assumed(workload, draft)))


def preset_options(name: str) -> tuple[str, ...]:
    """The options that a preset takes."""
    return _preset(name).takes


def known_presets() -> str:
    """The presets in one sentence."""
    names = [name for name in _PRESETS if not name.startswith("conccl-")]
    return f"Presets: {', '.join(names)}, conccl-01 to conccl-30 (list them with --list)."


def _preset(name: str) -> _Preset:
    if name not in _PRESETS:
        raise UnknownNameError(f"no preset {name!r}{suggestion(name, _PRESETS)}\n{known_presets()}")
    return _PRESETS[name]


def _assumed(workload: Workload, draft: _Draft) -> tuple[str, ...]:
    """What every preset assumes."""
    block, work = next((kernel.resources, kernel.work) for kernel in workload.kernels if isinstance(kernel.work, Gemm))
    sentences = [
        f"The GEMM kernel is assumed: tile {_by(work.tile)}, {block.threads} threads, {block.registers_per_thread} "
        f"registers, {format_bytes(block.smem_bytes)} of shared memory, {work.efficiency:g} of {work.dtype} peak "
        "with as many blocks as an SM holds.",
        f"The library is assumed: {', '.join(dict.fromkeys(op.library for op in workload.collectives))}.",
        "Whether the tensors fit in the device's memory is not checked.",
    ]
    if draft.options.tile is not None and draft.options.block is None:
        sentences.append("A tile of your own changes shared memory in proportion, but not threads and registers.")
    if work.dtype == "fp16":
        sentences.append(f"GEMMs are fp16 in place of bf16, which {draft.device.arch} cannot multiply.")
    return tuple(sentences)


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


# --- what presets are made of ------------------------------------------------------------------

_VOLTA = "sm_70"  # its tensor cores multiply fp16, not bf16; NCCL 2.30.7 and 2.32.3 have no code for it
_NCCL, _NCCL_WITH_VOLTA = "nccl-2.32.3", "nccl-2.27.5"
_RCCL = {"gfx90a": "rccl-5.4.3/generic", "gfx942": "rccl-5.4.3/generic", "gfx950": "rccl-mi350x/generic"}


@dataclass(frozen=True, slots=True)
class _GemmKernel:
    """A GEMM kernel as a vendor's library would choose it."""

    tile: Shape
    block: KernelResources
    efficiency: float = DEFAULT_EFFICIENCY


# CUTLASS's warp-specialised sm_90 shape: three warp groups, 65,536 / 384 registers rounded down to 168, deep pipeline.
_WIDE = _GemmKernel((128, 256, 64), KernelResources(threads=384, registers_per_thread=168, smem_bytes=200 * KIB))
# Four stages of a 128x128x32 tile.
_NARROW = _GemmKernel((128, 128, 32), KernelResources(threads=256, registers_per_thread=170, smem_bytes=64 * KIB))
# One workgroup fills the 64 KiB LDS of a gfx90a or gfx942 CU; 0.55 of peak as on ConCCL's MI300X (arXiv 2412.14335).
_CDNA = _GemmKernel((256, 256, 64), KernelResources(threads=256, registers_per_thread=256, smem_bytes=64 * KIB), 0.55)
# For few tokens: narrow tiles, so that every CU or SM streams a part of the weights.
_SKINNY = _GemmKernel((128, 64, 64), KernelResources(threads=256, registers_per_thread=128, smem_bytes=48 * KIB), 0.55)
_FEW_TOKENS = 256
_NORM_BLOCK = KernelResources(threads=256, registers_per_thread=40)  # one row of activations per block


def _operands(tile: Shape) -> int:
    """Elements of A and B that one step of a tile over K needs."""
    return (tile[0] + tile[1]) * tile[2]


@dataclass(frozen=True, slots=True)
class _Draft:
    """A workload being written for one device."""

    builder: WorkloadBuilder
    device: Device
    options: PresetOptions

    @property
    def dtype(self) -> DataType:
        return "fp16" if self.device.arch == _VOLTA else "bf16"

    def bytes_of(self, elements: int) -> int:
        return elements * ELEMENT_BYTES[self.dtype]

    def gemm(self, name: str, shape: Shape) -> str:
        kernel = _usual_gemm(self.device)
        kernel = _SKINNY if shape[0] <= _FEW_TOKENS else kernel
        (m, n, k), tile, grid = shape, self.options.tile or kernel.tile, self.options.grid
        smem_bytes = kernel.block.smem_bytes * _operands(tile) // _operands(kernel.tile)
        work = Gemm(m=m, n=n, k=k, dtype=self.dtype, tile=tile, grid=grid, efficiency=kernel.efficiency)
        block = self.options.block or replace(kernel.block, smem_bytes=smem_bytes)
        return self.builder.kernel(name, block, work, share=1 / max(1, resident_blocks(self.device, block)))

    def norm(self, name: str, width: int, *, passes: int, after: tuple[str, ...] = ()) -> str:
        work = BlockWork(blocks=_TOKENS, hbm_bytes_per_block=self.bytes_of(passes * width), dtype=self.dtype)
        return self.builder.kernel(name, _NORM_BLOCK, work, after=after)

    def collective(self, name: str, kind: CollectiveKind, size_bytes: int, *, nccl: str = _NCCL, **more: Any) -> str:
        library = self.options.library or library_for(self.device, kind, nccl=nccl)
        return self.builder.collective(name, kind, size_bytes, library, **more)

    def share(self, what: str, size: int) -> int:
        """One rank's share of what is divided among the ranks."""
        if size % self.builder.ranks:
            raise InputError(f"{size} {what} cannot be divided among {self.builder.ranks} ranks")
        return size // self.builder.ranks


def _usual_gemm(device: Device) -> _GemmKernel:
    if device.vendor == "amd":
        return _CDNA
    return _WIDE if _WIDE.block.smem_bytes <= device.sm.smem_block_bytes else _NARROW


def gemm_kernel(device: Device) -> tuple[Shape, KernelResources, float]:
    """Tile, block and efficiency of the GEMM kernel that presets take for large shapes on a device."""
    kernel = _usual_gemm(device)
    return kernel.tile, kernel.block, kernel.efficiency


def library_for(device: Device, kind: CollectiveKind, *, nccl: str = _NCCL) -> str:
    """The footprint that presets take for a collective on a device."""
    if device.vendor == "nvidia":
        version = _NCCL_WITH_VOLTA if device.arch == _VOLTA else nccl
        return f"{version}/{'sendrecv' if kind in ('all-to-all', 'send-recv') else 'ring-simple'}"
    if device.arch not in _RCCL:
        raise UnsupportedError(f"no RCCL footprint is known for {device.arch}; name one with --library.")
    return _RCCL[device.arch]


# --- published experiments: arXiv 2606.09200 and ConCCL, arXiv 2412.14335 ----------------------

_TILING_GEMMS: dict[str, Shape] = {"cb": (8192, 8192, 8192), "mb": (8192, 57344, 8192)}  # arXiv 2606.09200, sec. 4.1
_TILING_KINDS: dict[str, CollectiveKind] = {"ar": "all-reduce", "a2a": "all-to-all"}
_TILING_BYTES = 896 * MIB
_TILING_TILE = (64, 64, 32)  # the paper's opt1; its opt2 is (64, 64, 64)
_TILING_ASSUMED = (
    "fp32, and 16 blocks per collective on NVIDIA or 32 on AMD, are assumed; arXiv 2606.09200 gives neither.",
    "X x Y, the paper's block counts, are taken as the grid of a GEMM whose blocks loop over the tiles.",
    "896 MB are taken as 896 MiB: exactly an 8192 x 57344 matrix of 2-byte elements.",
    "10 iterations, and 4 GEMMs in flight on NVIDIA or 2 on AMD, are fitted to the paper's time ratios (9 iterations "
    "fit MI250X better); the paper itself speaks of one compute stream.",
    "The GEMM is taken as a hand-written one: 64 floating-point operations per clock and SM on every device, which is "
    "what shared memory feeds, and so few registers that shared memory limits residency, as the paper says it does.",
    "The host is far ahead of the device.",
)
_TILING_FLOPS = 64  # per clock and SM: half of an A100's or MI250X's FP32 peak, a quarter of an A40's or H100's


def _tiling(shape: Shape, kind: CollectiveKind, draft: _Draft) -> None:
    options, tile, (m, n, k) = draft.options, draft.options.tile or _TILING_TILE, shape
    registers, streams, blocks = (64, 2, 32) if draft.device.vendor == "amd" else (32, 4, 16)
    block = options.block or KernelResources(
        threads=256,
        registers_per_thread=registers,
        smem_bytes=4 * _operands(tile),  # 4 B: fp32
    )
    grid = options.grid or (-(-n // tile[1]), -(-m // tile[0]))  # all tiles: the kernel's blocks loop, if only once
    work = Gemm(m=m, n=n, k=k, dtype="fp32", tile=tile, grid=grid, efficiency=_hand_written(draft.device))
    for i in range(options.iterations or 10):
        stream = f"compute{i % (options.in_flight or streams)}"
        gemm = draft.builder.kernel(f"gemm {i}", block, work, stream=stream, launched_ns=0.0)
        draft.collective(
            f"comm {i}", kind, _TILING_BYTES, nccl=_NCCL_WITH_VOLTA, after=(gemm,), blocks=blocks, launched_ns=0.0
        )


def _hand_written(device: Device) -> float:
    """The share of its FP32 peak that the paper's GEMM is taken to reach."""
    if device.clock_hz is None or device.fp32_flops_per_s is None:
        return DEFAULT_EFFICIENCY
    return min(_TILING_FLOPS * device.sms * device.clock_hz / device.fp32_flops_per_s, 1.0)


# ConCCL's list is not published. M, N, K of the GEMM and MiB of the collective, from the weights of LLaMA-70B (hidden
# 8192, ffn 28672) and 405B (16384, 53248): 128 MiB is a 70B output projection, 3.25 GiB a 405B gate and up together.
# The first 15 are compute-bound, of M tokens; the others multiply few tokens by whole weights: memory bounds them.
_CONCCL_PAIRS = (
    (8192, 8192, 8192, 448), (8192, 8192, 8192, 576), (8192, 8192, 8192, 896), (8192, 10240, 8192, 896),
    (8192, 10240, 8192, 1664), (16384, 8192, 8192, 512), (16384, 10240, 8192, 896), (8192, 28672, 8192, 896),
    (8192, 28672, 8192, 3328), (8192, 8192, 28672, 1664), (8192, 57344, 8192, 3328), (8192, 16384, 16384, 1664),
    (8192, 18432, 16384, 3328), (16384, 16384, 16384, 1664), (8192, 53248, 16384, 3328),
    (64, 57344, 8192, 64), (32, 57344, 8192, 64), (64, 57344, 8192, 128), (32, 57344, 8192, 128),
    (64, 106496, 16384, 128), (32, 106496, 16384, 160), (64, 106496, 16384, 448), (32, 106496, 16384, 448),
    (64, 106496, 16384, 576), (64, 16384, 53248, 256), (32, 16384, 53248, 160), (64, 16384, 53248, 64),
    (32, 16384, 53248, 128), (64, 128256, 8192, 128), (32, 128256, 8192, 64),
)  # fmt: skip
_CONCCL_ASSUMED = (
    "The shape, the size and their pairing are assumed: ConCCL (arXiv 2412.14335) used 30 pairs of LLaMA-70B and 405B "
    "GEMMs with all-gather and all-to-all, but does not list them.",
    "Compute is launched first, and the two are independent.",
)


def _pair(shape: Shape, kind: CollectiveKind, size_mib: int, draft: _Draft) -> None:
    draft.gemm("gemm", shape)
    draft.collective("comm", kind, size_mib * MIB)


# --- transformer layers ------------------------------------------------------------------------

_TOKENS = 4096  # one sequence
_BUCKET_BYTES = 25 * MIB  # PyTorch DistributedDataParallel, bucket_cap_mb
_EXPERTS, _TOP = 8, 2  # Mixtral-8x7B, arXiv 2401.04088


@dataclass(frozen=True, slots=True)
class _Model:
    """Dimensions of one transformer layer."""

    title: str
    hidden: int
    ffn: int
    kv: int  # width of keys, and of values

    @property
    def weights(self) -> tuple[tuple[str, int, int], ...]:
        """Name, inputs and outputs of each weight matrix, in the order of the forward pass."""
        h = self.hidden
        return ("qkv", h, h + 2 * self.kv), ("out", h, h), ("gate-up", h, 2 * self.ffn), ("down", self.ffn, h)


_MODELS = {
    "llama-7b": _Model("LLaMA-7B", 4096, 11008, 4096),  # arXiv 2307.09288, as 70B
    "llama-70b": _Model("LLaMA-70B", 8192, 28672, 1024),
    "llama-405b": _Model("LLaMA-405B", 16384, 53248, 1024),  # arXiv 2407.21783
    "moe": _Model("Mixtral-8x7B", 4096, 14336, 1024),
}
_LAYER_ASSUMED = (
    f"One layer, and one sequence of {_TOKENS} tokens per micro-batch.",
    "GEMMs and one norm per pass or phase stand for the layer; attention itself and other small kernels are left out.",
    "The norm is assumed: 256 threads and 40 registers, one row per block, activations read and written once.",
)


def _backward(draft: _Draft, name: str, inputs: int, outputs: int) -> str:
    """The weight-gradient GEMM of one weight, after its input-gradient GEMM."""
    draft.gemm(f"backward {name} input", (_TOKENS, inputs, outputs))
    return draft.gemm(f"backward {name} weight", (inputs, outputs, _TOKENS))


def _fsdp(model: _Model, draft: _Draft) -> None:
    size = draft.bytes_of(sum(inputs * outputs for _, inputs, outputs in model.weights))
    last = draft.norm("forward norm", model.hidden, passes=2)
    for name, inputs, outputs in model.weights:
        last = draft.gemm(f"forward {name}", (_TOKENS, outputs, inputs))
    draft.collective("gather next", "all-gather", size)
    draft.collective("scatter following", "reduce-scatter", size, after=(last,))
    draft.collective("gather previous", "all-gather", size, after=(last,))
    for name, inputs, outputs in reversed(model.weights):
        _backward(draft, name, inputs, outputs)
    draft.norm("backward norm", model.hidden, passes=3)


def _ddp(model: _Model, draft: _Draft) -> None:
    ready, sent, gradient = 0, 0, ""
    for name, inputs, outputs in reversed(model.weights):
        gradient = _backward(draft, name, inputs, outputs)
        ready += draft.bytes_of(inputs * outputs)
        while ready - sent >= _BUCKET_BYTES:
            draft.collective(f"bucket {sent // _BUCKET_BYTES}", "all-reduce", _BUCKET_BYTES, after=(gradient,))
            sent += _BUCKET_BYTES
    draft.norm("backward norm", model.hidden, passes=3)
    if ready > sent:
        draft.collective(f"bucket {sent // _BUCKET_BYTES}", "all-reduce", ready - sent, after=(gradient,))


def _take_turns(draft: _Draft, width: int, kind: CollectiveKind, size_bytes: int, **phases: dict[str, Shape]) -> None:
    """Two micro-batches through phases that each end in a collective: while one exchanges, the other computes."""
    waits: dict[str, tuple[str, ...]] = {"a": (), "b": ()}
    for exchange, gemms in phases.items():
        for batch, after in waits.items():
            last = draft.norm(f"{batch} norm before {next(iter(gemms))}", width, passes=2, after=after)
            for name, shape in gemms.items():
                last = draft.gemm(f"{batch} {name}", shape)
            waits[batch] = (draft.collective(f"{batch} {exchange}", kind, size_bytes, after=(last,)),)


def _tp(model: _Model, draft: _Draft) -> None:
    hidden, qkv, gate_up = model.hidden, model.hidden + 2 * model.kv, 2 * model.ffn
    attention = {"qkv": (_TOKENS, draft.share("qkv columns", qkv), hidden)}
    attention["out"] = (_TOKENS, hidden, draft.share("out rows", hidden))
    ffn = {"gate-up": (_TOKENS, draft.share("gate-up columns", gate_up), hidden)}
    ffn["down"] = (_TOKENS, hidden, draft.share("down rows", model.ffn))
    size = draft.bytes_of(_TOKENS * hidden)
    _take_turns(draft, hidden, "all-reduce", size, reduce_attention=attention, reduce_ffn=ffn)


def _ep(model: _Model, draft: _Draft) -> None:
    rows = draft.share("experts", _EXPERTS) * (_TOKENS * _TOP * draft.builder.ranks // _EXPERTS)  # experts x rows each
    attention = {name: (_TOKENS, outputs, inputs) for name, inputs, outputs in model.weights[:2]}
    experts = {f"expert {name}": (rows, outputs, inputs) for name, inputs, outputs in model.weights[2:]}
    size = draft.bytes_of(rows * model.hidden)
    _take_turns(draft, model.hidden, "all-to-all", size, dispatch=attention, combine=experts)


# --- the list ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Preset:
    """How to build one preset, what it assumes, and which options it takes."""

    summary: str
    build: Callable[[_Draft], None]
    assumed: tuple[str, ...]
    takes: tuple[str, ...] = ("ranks", "tile", "library", "block")
    nvidia_ranks: int = 8  # AMD: always 8


def _tiling_preset(bound: str, short: str) -> _Preset:
    shape, kind = _TILING_GEMMS[bound], _TILING_KINDS[short]
    summary = f"arXiv 2606.09200: GEMM {_by(shape)}, then {kind} of 896 MiB, repeated"
    takes = tuple(option.name for option in fields(PresetOptions))
    return _Preset(summary, partial(_tiling, shape, kind), _TILING_ASSUMED, takes, nvidia_ranks=4)  # its table 1


def _pair_preset(origin: str, shape: Shape, kind: CollectiveKind, size_mib: int, *assumed: str) -> _Preset:
    summary = f"{origin}: GEMM {_by(shape)} beside {kind} of {size_mib:,} MiB"
    return _Preset(
        summary, partial(_pair, shape, kind, size_mib), assumed, ("ranks", "grid", "tile", "library", "block")
    )


def _conccl_preset(index: int) -> _Preset:
    m, n, k, size_mib = _CONCCL_PAIRS[index]
    bound = "compute-bound" if 2 * index < len(_CONCCL_PAIRS) else "memory-bound"
    kind: CollectiveKind = "all-to-all" if index % 2 else "all-gather"
    return _pair_preset(f"after ConCCL, {bound}", (m, n, k), kind, size_mib, *_CONCCL_ASSUMED)


# Pattern: how it is built, its models, its summary, what it assumes.
_PATTERNS: dict[str, tuple[Callable[[_Model, _Draft], None], tuple[str, ...], str, str]] = {
    "fsdp": (
        _fsdp,
        ("llama-7b", "llama-70b", "llama-405b"),
        "FSDP: weights gathered and gradients scattered beside its GEMMs",
        "Beside forward the next layer's weights are gathered; beside backward the gradients of the layer after are "
        "scattered and the weights of the layer before gathered, all on one stream and in the GEMMs' type.",
    ),
    "ddp": (
        _ddp,
        ("llama-7b",),
        "data parallel: 25 MiB gradient buckets all-reduced beside backward GEMMs",
        "Backward only. Buckets of 25 MiB are cut across weights; PyTorch keeps a weight whole and sends larger ones.",
    ),
    "tp": (
        _tp,
        ("llama-70b", "llama-405b"),
        "tensor parallel: one micro-batch is all-reduced while another computes",
        "Two micro-batches take turns, forward only, without sequence parallelism.",
    ),
    "ep": (
        _ep,
        ("moe",),
        "expert parallel: all-to-all of one micro-batch beside GEMMs of another",
        "Two micro-batches take turns, forward only; routing is balanced, each token goes to 2 of 8 experts and "
        "travels once for each, and the experts of a rank run as one grouped GEMM.",
    ),
}


def _layer_preset(pattern: str, model: _Model) -> _Preset:
    build, _, summary, assumed = _PATTERNS[pattern]
    return _Preset(f"{model.title} layer, {summary}", partial(build, model), (*_LAYER_ASSUMED, assumed))


_PRESETS: dict[str, _Preset] = {
    **{f"{bound}-{short}": _tiling_preset(bound, short) for bound in _TILING_GEMMS for short in _TILING_KINDS},
    "gemm-ar": _pair_preset("small example", (8192, 8192, 8192), "all-reduce", 256, "Shape and size are an example's."),
    **{
        f"{pattern}-{name}": _layer_preset(pattern, _MODELS[name])
        for pattern, row in _PATTERNS.items()
        for name in row[1]
    },
    **{f"conccl-{index + 1:02d}": _conccl_preset(index) for index in range(len(_CONCCL_PAIRS))},
}
