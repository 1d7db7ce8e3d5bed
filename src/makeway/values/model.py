"""Models: the shape of a transformer that is trained, with the source of its numbers."""

from __future__ import annotations

from dataclasses import dataclass

from makeway.values.errors import InputError
from makeway.values.units import check_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2 and later): queries, keys and values pass through low ranks."""

    query_rank: int  # 0: queries are projected directly
    key_value_rank: int
    rotary_dim: int  # of a head, besides `Model.head_dim`
    value_dim: int  # of a head


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture-of-experts layers of a model."""

    count: int
    top_k: int
    ffn: int  # of one expert
    shared: int = 0  # experts that every token visits
    shared_ffn: int = 0  # of one shared expert
    dense_layers: int = 0  # of the model, with its own `ffn` in place of experts

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.count:
            raise InputError(f"a token visits 1 to {self.count} experts, got top_k {self.top_k}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer. It knows nothing of GPUs."""

    name: str
    layers: int
    hidden: int
    ffn: int  # of a dense layer; 0: all layers have experts
    heads: int
    kv_heads: int
    vocab: int
    seq: int
    head_dim: int
    gated: bool = False  # the MLP has a third matrix (SwiGLU and its kin)
    experts: Experts | None = None
    latent: LatentAttention | None = None
    tied_embeddings: bool = False
    causal: bool = True
    source: str = ""

    def __post_init__(self) -> None:
        for what in ("layers", "hidden", "heads", "kv_heads", "vocab", "seq", "head_dim"):
            check_whole(f"model {self.name}: {what}", getattr(self, what), 1)
        check_whole(f"model {self.name}: ffn", self.ffn, 0 if self.experts else 1)
        if self.heads % self.kv_heads:
            raise InputError(
                f"model {self.name}: {self.heads} heads do not share {self.kv_heads} key-value heads evenly"
            )

    @property
    def summary(self) -> str:
        """Its size in a few words."""
        active = f", {self.active_parameters / 1e9:,.1f} B active" if self.experts else ""
        return f"{self.parameters / 1e9:,.1f} B parameters{active}, {self.layers} layers, sequence {self.seq:,}"

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.experts.dense_layers if self.experts else 0

    @property
    def mlp_matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def attention_parameters(self) -> int:
        """Of one layer."""
        if self.latent is None:
            return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        mla = self.latent
        head = self.head_dim + mla.rotary_dim
        queries = self.heads * head
        query = mla.query_rank * (self.hidden + queries) if mla.query_rank else self.hidden * queries
        keys = self.hidden * (mla.key_value_rank + mla.rotary_dim)
        values = mla.key_value_rank * self.heads * (self.head_dim + mla.value_dim)
        return query + keys + values + self.heads * mla.value_dim * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Of one routed expert."""
        return self.mlp_matrices * self.hidden * self.experts.ffn if self.experts else 0

    @property
    def shared_parameters(self) -> int:
        """Of the shared experts and the router of one layer."""
        if self.experts is None:
            return 0
        shared = self.experts.shared * self.mlp_matrices * self.hidden * self.experts.shared_ffn
        return shared + self.hidden * self.experts.count

    @property
    def dense_mlp_parameters(self) -> int:
        """Of the MLP of one dense layer."""
        return self.mlp_matrices * self.hidden * self.ffn

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding, or of the output projection."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Of the whole model, without the few of norms and biases."""
        return self._counted(self.experts.count if self.experts else 0)

    @property
    def active_parameters(self) -> int:
        """Those that one token uses."""
        return self._counted(self.experts.top_k if self.experts else 0)

    def _counted(self, experts: int) -> int:
        embeddings = self.embedding_parameters * (1 if self.tied_embeddings else 2)
        dense = (self.layers - self.moe_layers) * self.dense_mlp_parameters
        moe = self.moe_layers * (experts * self.expert_parameters + self.shared_parameters)
        return self.layers * self.attention_parameters + dense + moe + embeddings
