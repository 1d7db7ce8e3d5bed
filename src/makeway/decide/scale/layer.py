"""The operations of one transformer layer on one GPU: products, attention, passes over memory, exchanges.

They follow from the shapes of a model and a layout alone; timing.py says how long each takes on a device. Sizes are
of one micro batch. Elements have two bytes unless they say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from makeway.values.collective import CollectiveKind
from makeway.values.layout import Gradients, Layout
from makeway.values.model import Model

Dimension = Literal["tp", "cp", "ep"]

ALL = "all"
NARROW = ("fp8", "fp4")  # precisions whose products read casts
ELEMENT = 2  # bytes of an activation
# Framework operations that the host launches for one dense layer in eager mode, counted in Megatron-DeepSpeed.
FORWARD_OPERATIONS, BACKWARD_OPERATIONS = 32, 45
EXPERT_OPERATIONS = 20  # more, for routing and permutation; assumed
# Launches for each expert of a GPU: Transformer Engine's grouped products are one product per expert, with its casts.
FORWARD_LAUNCHES, BACKWARD_LAUNCHES = 6, 12


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product [m, k] x [k, n], `batch` of them."""

    name: str
    m: int
    n: int
    k: int
    batch: int = 1
    grouped: bool = False  # of experts: one launch, uneven parts
    wide: bool = False  # 16-bit whatever the layout's precision
    out_bytes: int = ELEMENT  # per element; 8: added to a 32-bit buffer


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused attention: its arithmetic; scores never leave the SM."""

    name: str
    flops: float
    bytes: float
    rows: float  # of queries, over all heads and sequences
    backward: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """An element-wise kernel: reads and writes memory."""

    name: str
    bytes: float
    grouped: bool = False  # over tokens in the order of their experts


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective of the layer."""

    name: str
    kind: CollectiveKind
    bytes: float
    over: Dimension
    beside: str | None = None  # the operation that hides it by design; ALL: any of the phase
    copies: int = 1  # of a token that a dispatcher merges where they share a node or a GPU


Op = Product | Attention | Pass | Exchange


@dataclass(frozen=True, slots=True)
class LayerWork:
    """One layer: forward, the part of it that selective recompute repeats, and the two halves of backward."""

    forward: tuple[Op, ...]
    core: tuple[Op, ...]
    input: tuple[Op, ...]
    weight: tuple[Op, ...]
    forward_operations: int
    backward_operations: int


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What both passes need: tokens of the GPU, rows outside tensor parallelism, and the layer's shapes."""

    model: Model
    layout: Layout
    fused: bool

    @property
    def tokens(self) -> int:
        return self.layout.micro_batch * self.model.seq // self.layout.cp

    @property
    def rows(self) -> int:
        return self.tokens // self.layout.tp if self.layout.sp else self.tokens

    @property
    def residual(self) -> float:
        """Bytes of the residual stream outside tensor parallelism."""
        return float(self.rows * self.model.hidden * ELEMENT)

    def part(self, whole: int) -> int:
        return max(1, whole // self.layout.tp)


@lru_cache(maxsize=4096)
def layer_work(model: Model, layout: Layout, *, fused: bool, experts: bool, fused_experts: bool = False) -> LayerWork:
    """The operations of one layer; `experts`: of one with routed experts in place of the dense MLP.

    `fused_experts`: one kernel multiplies for all experts of a GPU.
    """
    sizes = _Sizes(model, layout, fused)
    linear = [*_attention_products(sizes), *(() if experts else _mlp_products(sizes))]
    core, core_back = _core(sizes)
    forward: list[Op] = [*_around(sizes, backward=False), *linear, *core, *_tensor_exchanges(sizes, backward=False)]
    back: list[Op] = [*_around(sizes, backward=True), *core_back, *_tensor_exchanges(sizes, backward=True)]
    weight: list[Op] = []
    if experts:
        routed = _expert_products(sizes)
        linear = [*linear, *routed]
        forward += [*routed, *_expert_passes(sizes, 1), *_expert_exchanges(sizes)]
        back += [*_expert_passes(sizes, 2), *_expert_exchanges(sizes)]
    else:
        forward.append(_activation(sizes, model.ffn, 1.0, sizes.tokens))
        back.append(_activation(sizes, model.ffn, 5 / 3, sizes.tokens))
    for product in linear:
        back.append(_input_gradient(product))
        if not layout.adapters:
            weight.append(_weight_gradient(product, layout.gradients))
    if layout.precision in NARROW:
        for name, grouped in (("casts", False), ("casts of experts", True)):
            cast = Pass(
                name, sum([4.0 * item.m * item.k * item.batch for item in linear if item.grouped == grouped]), grouped
            )
            if cast.bytes:
                forward.append(cast)
                back.append(cast)
    more = EXPERT_OPERATIONS if experts else 0
    local = max(1, model.experts.count // layout.ep) if experts and model.experts else 0
    launched = 1 if local and fused_experts else local
    return LayerWork(
        forward=tuple(forward),
        core=tuple(core),
        input=tuple(back),
        weight=tuple(weight),
        forward_operations=FORWARD_OPERATIONS + more + FORWARD_LAUNCHES * launched,
        backward_operations=BACKWARD_OPERATIONS + more + BACKWARD_LAUNCHES * launched,
    )


def _input_gradient(product: Product) -> Product:
    return Product(f"{product.name} dx", product.m, product.k, product.n, product.batch, product.grouped)


def _weight_gradient(product: Product, gradients: Gradients) -> Product:
    added = 4 if gradients == "bf16" else 8  # read and written
    return Product(
        f"{product.name} dw", product.k, product.n, product.m, product.batch, product.grouped, out_bytes=added
    )


def _attention_products(sizes: _Sizes) -> tuple[Product, ...]:
    model, tokens = sizes.model, sizes.tokens
    if model.latent is None:
        wide = sizes.part((model.heads + 2 * model.kv_heads) * model.head_dim)
        return (
            Product("qkv", tokens, wide, model.hidden),
            Product("projection", tokens, model.hidden, sizes.part(model.heads * model.head_dim)),
        )
    mla = model.latent
    head = model.head_dim + mla.rotary_dim
    queries = sizes.part(model.heads * head)
    query = (
        (Product("q down", tokens, mla.query_rank, model.hidden), Product("q up", tokens, queries, mla.query_rank))
        if mla.query_rank
        else (Product("q", tokens, queries, model.hidden),)
    )
    return (
        *query,
        Product("kv down", tokens, mla.key_value_rank + mla.rotary_dim, model.hidden),
        Product("kv up", tokens, sizes.part(model.heads * (model.head_dim + mla.value_dim)), mla.key_value_rank),
        Product("projection", tokens, model.hidden, sizes.part(model.heads * mla.value_dim)),
    )


def _mlp_products(sizes: _Sizes) -> tuple[Product, ...]:
    model, ffn = sizes.model, sizes.part(sizes.model.ffn)
    return (
        Product("mlp up", sizes.tokens, ffn * (model.mlp_matrices - 1), model.hidden),
        Product("mlp down", sizes.tokens, model.hidden, ffn),
    )


def _core(sizes: _Sizes) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Attention proper, forward and backward."""
    model, layout = sizes.model, sizes.layout
    heads = sizes.part(model.heads)
    key = model.head_dim + (model.latent.rotary_dim if model.latent else 0)
    value = model.latent.value_dim if model.latent else model.head_dim
    if sizes.fused:
        scores = float(sizes.tokens) * model.seq * heads * (0.5 if model.causal else 1.0)
        moved = float(sizes.tokens * heads * (2 * key + 2 * value) * ELEMENT)
        rows = float(sizes.tokens * heads)
        ring: tuple[Op, ...] = ()
        ring_back: tuple[Op, ...] = ()
        if layout.cp > 1:
            held = sizes.tokens * sizes.part(model.kv_heads) * (key + value) * ELEMENT * (layout.cp - 1)
            ring = (Exchange("keys and values", "send-recv", float(held), "cp", beside="attention"),)
            ring_back = (Exchange("keys and values dx", "send-recv", 2.0 * held, "cp", beside="attention dx"),)
        return (
            (Attention("attention", 2 * scores * (key + value), moved, rows), *ring),
            (Attention("attention dx", 2 * scores * (3 * key + 2 * value), 2 * moved, rows, backward=True), *ring_back),
        )
    batch, seq = layout.micro_batch * heads, model.seq // layout.cp
    scores = float(batch) * seq * model.seq
    forward: tuple[Op, ...] = (
        Product("scores", seq, model.seq, key, batch, wide=True),
        Pass("softmax", 4 * scores),
        Pass("attention dropout", 5 * scores),
        Product("context", seq, value, model.seq, batch, wide=True),
    )
    backward: tuple[Op, ...] = (
        Product("context dx", seq, model.seq, value, batch, wide=True),
        Product("context dv", model.seq, value, seq, batch, wide=True),
        Pass("attention dropout dx", 5 * scores),
        Pass("softmax dx", 6 * scores),
        Product("scores dq", seq, key, model.seq, batch, wide=True),
        Product("scores dk", model.seq, key, seq, batch, wide=True),
    )
    return forward, backward


def _around(sizes: _Sizes, *, backward: bool) -> tuple[Op, ...]:
    """Norms, residual additions with dropout, rotary embedding."""
    model = sizes.model
    rotary = float(sizes.tokens * sizes.part(model.heads + model.kv_heads) * model.head_dim * 2 * ELEMENT)
    norm = (5 if backward else 2) * sizes.residual  # backward: reads input and gradient, adds the residual's
    add = (2.5 if backward else 3.5) * sizes.residual  # with a mask of one byte
    return (
        Pass("norm 1", norm),
        Pass("norm 2", norm),
        Pass("addition 1", add),
        Pass("addition 2", add),
        *((Pass("rotary", rotary),) if model.gated else ()),
    )


def _activation(sizes: _Sizes, ffn: int, scale: float, tokens: int) -> Pass:
    return Pass("activation", scale * tokens * sizes.part(ffn) * sizes.model.mlp_matrices * ELEMENT)


def _tensor_exchanges(sizes: _Sizes, *, backward: bool) -> tuple[Op, ...]:
    layout = sizes.layout
    if layout.tp == 1:
        return ()
    size = float(sizes.tokens * sizes.model.hidden * ELEMENT)
    mark = " dx" if backward else ""
    if not layout.sp:
        return tuple(
            Exchange(f"{name} sum{mark}", "all-reduce", size, "tp")
            for name in (("qkv", "mlp up") if backward else ("projection", "mlp down"))
        )
    pairs: tuple[tuple[str, CollectiveKind], ...] = (
        ("qkv", "reduce-scatter" if backward else "all-gather"),
        ("projection", "all-gather" if backward else "reduce-scatter"),
        ("mlp up", "reduce-scatter" if backward else "all-gather"),
        ("mlp down", "all-gather" if backward else "reduce-scatter"),
    )
    return tuple(
        Exchange(f"{name} {kind}{mark}", kind, size, "tp", beside=f"{name}{mark}" if layout.overlap_tp else None)
        for name, kind in pairs
    )


def _routed(sizes: _Sizes) -> int:
    """Tokens that one GPU's experts receive, with balanced routing."""
    assert sizes.model.experts is not None
    return sizes.tokens // sizes.layout.tp * sizes.model.experts.top_k


def _expert_products(sizes: _Sizes) -> tuple[Product, ...]:
    model, layout = sizes.model, sizes.layout
    experts = model.experts
    assert experts is not None
    local = max(1, experts.count // layout.ep)
    each = max(1, _routed(sizes) // local)
    products = [
        Product("router", sizes.rows, experts.count, model.hidden, wide=True),
        Product("experts up", each, experts.ffn * (model.mlp_matrices - 1), model.hidden, local, grouped=True),
        Product("experts down", each, model.hidden, experts.ffn, local, grouped=True),
    ]
    if experts.shared:
        ffn = sizes.part(experts.shared * experts.shared_ffn)
        products += [
            Product("shared up", sizes.tokens, ffn * (model.mlp_matrices - 1), model.hidden),
            Product("shared down", sizes.tokens, model.hidden, ffn),
        ]
    return tuple(products)


def _expert_passes(sizes: _Sizes, scale: float) -> tuple[Op, ...]:
    model = sizes.model
    assert model.experts is not None
    routed = _routed(sizes)
    return (
        Pass("permute", scale * 2 * routed * model.hidden * ELEMENT, grouped=True),
        Pass("unpermute", scale * 2 * routed * model.hidden * ELEMENT, grouped=True),
        Pass("activation", scale * routed * model.experts.ffn * model.mlp_matrices * ELEMENT, grouped=True),
    )


def _expert_exchanges(sizes: _Sizes) -> tuple[Op, ...]:
    if sizes.layout.ep == 1:
        return ()
    size = float(_routed(sizes) * sizes.model.hidden * ELEMENT)
    assert sizes.model.experts is not None
    beside = ALL if sizes.layout.overlap_ep else None
    copies = sizes.model.experts.top_k if sizes.layout.dispatcher == "deepep" else 1
    return tuple(Exchange(name, "all-to-all", size, "ep", beside, copies) for name in ("dispatch", "combine"))
