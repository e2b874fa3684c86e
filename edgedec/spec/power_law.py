"""A decoder layer with power law graph attention (PLDR-LLM), once its energy-curvature tensor has been inferred."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Shapes, norm_tensors, require_sizes
from edgedec.spec.attention import Attention


@dataclass(frozen=True)
class PowerLaw(Attention):
    """A whole layer, normed after each residual: queries are multiplied by `curvature` (a matrix a head: the G-cache)
    after they are turned; then attention, and a gated feed-forward of `inner_size`. entry: a norm of what enters. It
    adds what leads from x to its output."""

    inner_size: int = 0
    entry: bool = False
    kind: Literal["power_law"] = "power_law"  # type: ignore[assignment]

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape; matrices are (out, in)."""
        shapes = self.matrices(hidden) | {"curvature": (self.n_heads * self.head_dim, self.head_dim)}
        for name, width in (("qkv", self.q_dim + 2 * self.kv_dim), ("o", hidden), ("gate_up", 2 * self.inner_size)):
            shapes[f"{name}_bias"] = (width,)
        shapes["down_bias"] = (hidden,)
        for name in ("entry_norm", "attention_norm", "output_norm") if self.entry else _NORMS:
            shapes |= norm_tensors("layer", name, hidden)
        return shapes

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized; of them a row reads every byte."""
        inner = {"gate_up": (2 * self.inner_size, hidden), "down": (hidden, self.inner_size)}
        return super().matrices(hidden) | inner

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        super().check(where)
        require_sizes(where, {"inner_size": self.inner_size})
        plain = Attention(self.n_heads, self.n_kv_heads, self.head_dim, self.scale, self.rope, norm="none")
        if self.n_heads != self.n_kv_heads or any(getattr(self, f) != getattr(plain, f) for f in _PLAIN):
            raise BundleCorrupt(f"{where}: a power_law layer has as many kv heads as heads, and none of {_PLAIN}")


_NORMS = ("attention_norm", "output_norm")
_PLAIN = (
    *("window", "sinks", "softcap", "qk_norm", "qkv_bias", "o_bias", "norm", "post_norm", "after", "embedding_norm"),
    *("distances", "sink_logit", "gate", "qk_norm_kind", "qk_norm_last", "clip", "slopes", "inner_norm", "branch"),
    *("k_is_v", "v_norm", "relative", "with_embedding", "feeds", "again"),
)
