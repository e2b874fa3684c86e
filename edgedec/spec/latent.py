"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): a slot holds one vector for all heads, the rotated key
that they share and the state of `rank` values from which each makes its own key and value.

The matrices that make them are absorbed: k_up into the queries, v_up into what is attended. So attention is that of
one kv head of rope_dim + rank values, the turned ones first, whose values are its keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Shapes, norm_tensors, require_sizes
from edgedec.spec.attention import Attention

# The matrices of a head are whole groups of the packed layout.
LANES = 16


@dataclass(frozen=True)
class LatentAttention(Attention):
    """rope_dim and nope_dim: of a query's turned part and of the rest; v_dim: of a head's value; q_rank: queries are
    made by way of so many values, which are normed (0: at once); inner_eps: of the norms of these and of the state.
    qkv_bias: of the first matrices, q_a and kv_a."""

    rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    v_dim: int = 0
    q_rank: int = 0
    inner_eps: float = 1e-6
    kind: Literal["latent"] = "latent"  # type: ignore[assignment]

    @property
    def kv_parts(self) -> int:
        return 1

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape; matrices are (out, in)."""
        shapes = self.matrices(hidden) | norm_tensors("rms", "kv_norm", self.rank)
        shapes |= norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)
        if self.q_rank:
            shapes |= norm_tensors("rms", "q_a_norm", self.q_rank)
        if self.qkv_bias:
            shapes["kv_a_bias"] = (self.head_dim,)
        if self.qkv_bias and self.q_rank:
            shapes["q_a_bias"] = (self.q_rank,)
        if self.o_bias:
            shapes["o_bias"] = (hidden,)
        return shapes

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized. Rows of a head lie side by side in q (its turned part first), k_up, v_up."""
        low: Shapes = {"q_a": (self.q_rank, hidden)} if self.q_rank else {}
        return low | {
            "q": (self.n_heads * (self.rope_dim + self.nope_dim), self.q_rank or hidden),
            "kv_a": (self.head_dim, hidden),
            "k_up": (self.n_heads * self.rank, self.nope_dim),
            "v_up": (self.n_heads * self.v_dim, self.rank),
            "o": (hidden, self.n_heads * self.v_dim),
        }

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        super().check(where)
        require_sizes(where, {name: getattr(self, name) for name in ("rank", "nope_dim", "v_dim")})
        require_sizes(where, {"q_rank": self.q_rank, "rope_dim": self.rope_dim}, least=0)
        if self.n_kv_heads != 1 or self.head_dim != self.rank + self.rope_dim:
            raise BundleCorrupt(f"{where}: {self.n_kv_heads} kv heads of {self.head_dim}, not one of rope_dim + rank")
        for name in ("rank", "v_dim"):
            if getattr(self, name) % LANES:
                raise BundleCorrupt(f"{where}.{name}: {getattr(self, name)} is not a multiple of {LANES}")
        if not self.inner_eps > 0:
            raise BundleCorrupt(f"{where}.inner_eps: {self.inner_eps} is out of range")
        plain = Attention(1, 1, 1, 1.0)
        odd = [name for name in _PLAIN if getattr(self, name) != getattr(plain, name)]
        if odd:
            raise BundleCorrupt(f"{where}.{odd[0]}: latent attention has none")


_PLAIN = (
    *("softcap", "qk_norm", "qk_norm_kind", "after", "embedding_norm", "distances", "sink_logit", "gate", "clip"),
    *("slopes", "inner_norm", "k_is_v", "v_norm", "relative", "with_embedding", "feeds", "again"),
)
