"""The attention block: grouped queries over cached keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Norm, Shapes, norm_tensors, require_sizes
from edgedec.spec.differential import check_pairs, pair_tensors
from edgedec.spec.relative import check_relative, relative_tensors


@dataclass(frozen=True)
class Attention:
    """Causal attention, but in an encoder. `rope`: which of the model's ropes turns queries and keys (None: none). A
    window of w lets position p see positions p-w+1 to p, in an encoder to p+w-1, and always the first `sinks` tokens.
    `after`: norm of the state after the sum. `distances`: of d, a learned number is added to the scores, of each head
    and distance key - query from -d to d, beyond these the nearest (0: none). `embedding_norm`: of the embedding of the
    row's token, which is read before the normed state ("none": it is not read). `sink_logit`: each head has a learned
    score of no token, which takes its part of the softmax and has no value (gpt-oss); not `sinks`, which are tokens.
    `gate`: the output is multiplied by a sigmoid of further rows of `qkv`, one a head or one a channel.

    `qk_norm`: of queries and keys, each head by itself with weights of all ("head") or its own ("heads"), or all heads
    as one row ("full"); `qk_norm_kind`: which norm; `qk_norm_last`: after the rope. `clip`: q, k and v are cut to
    -clip .. clip first (0: they are not). `slopes`: of each head, times the distance of key and query, taken from its
    scores (ALiBi, in an encoder on both sides). `inner_norm`: of the heads' outputs before the last matrix. `branch`:
    the next block reads the state that this one reads, and both are added (`spec.branches`). `k_is_v`: values are the
    keys before norm and rope, so `qkv` has no rows of theirs; `v_norm`: each head's value over its root mean square,
    without weights.

    `differential`: heads are pairs, 2i and 2i + 1, whose outputs are subtracted (`spec.differential`); it is the part
    of the second one's factor that is not learned. Queries have half of head_dim values, and a rope turns each half of
    a key (0.0: heads are single). `relative`: queries and keys are scored against learned rows of 2 relative distances
    or buckets of them (`spec.relative`; 0: they are not).

    `with_embedding`: the state and the embedding of the row's token, as one row of twice the width, are normed and
    read. `feeds`: what it makes is read by the next block and not added (`spec.branches`). `again`: after the norm
    `after` the state that the block read is added once more, and that is normed: again(x + after(x + y))."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    rope: int | None = 0
    window: int | None = None
    sinks: int = 0
    softcap: float = 0.0
    qk_norm: Literal["none", "head", "full", "heads"] = "none"
    qkv_bias: bool = False
    o_bias: bool = False
    norm: Norm = "rms"
    post_norm: Norm = "none"
    after: Norm = "none"
    embedding_norm: Norm = "none"
    distances: int = 0
    sink_logit: bool = False
    gate: Literal["none", "head", "channel"] = "none"
    qk_norm_kind: Norm = "rms"
    qk_norm_last: bool = False
    clip: float = 0.0
    slopes: tuple[float, ...] = ()
    inner_norm: Norm = "none"
    branch: bool = False
    k_is_v: bool = False
    v_norm: bool = False
    differential: float = 0.0
    relative: int = 0
    relative_far: int = 0
    relative_scores: Literal["c2p", "p2c", "both"] = "both"
    with_embedding: bool = False
    feeds: bool = False
    again: Norm = "none"
    kind: Literal["attention"] = "attention"

    @property
    def q_dim(self) -> int:
        """Values of all queries, and of what `o` reads."""
        return self.n_heads * self.head_dim // (2 if self.differential else 1)

    @property
    def kv_dim(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def kv_parts(self) -> int:
        """The vectors of a kv head that a slot holds: a key and a value."""
        return 2

    @property
    def gate_dim(self) -> int:
        """Rows of the gate."""
        return {"none": 0, "head": self.n_heads, "channel": self.q_dim}[self.gate]

    @property
    def qkv_rows(self) -> int:
        """Rows of `qkv`: of queries, keys, values (unless these are the keys) and the gate."""
        return self.q_dim + (1 if self.k_is_v else 2) * self.kv_dim + self.gate_dim

    @property
    def paired(self) -> bool:
        """Whether it reads the embedding besides the state."""
        return self.embedding_norm != "none" or self.with_embedding

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape; matrices are (out, in)."""
        shapes = self.matrices(hidden) | norm_tensors(self.embedding_norm, "embedding_norm", hidden)
        shapes |= norm_tensors(self.norm, "norm", 2 * hidden if self.with_embedding else hidden)
        shapes |= norm_tensors(self.post_norm, "post_norm", hidden)
        shapes |= norm_tensors(self.after, "after_norm", hidden) | norm_tensors(self.again, "again_norm", hidden)
        if self.distances:
            shapes["distance"] = (2 * self.distances + 1, self.n_heads)
        if self.sink_logit:
            shapes["sink_logit"] = (self.n_heads,)
        if self.qk_norm != "none":
            q, k = (self.head_dim, self.head_dim) if self.qk_norm == "head" else (self.q_dim, self.kv_dim)
            shapes |= norm_tensors(self.qk_norm_kind, "q_norm", q) | norm_tensors(self.qk_norm_kind, "k_norm", k)
        shapes |= norm_tensors(self.inner_norm, "inner_norm", self.q_dim)
        if self.qkv_bias:
            shapes["qkv_bias"] = (self.qkv_rows,)
        if self.o_bias:
            shapes["o_bias"] = (hidden,)
        return shapes | pair_tensors(self) | relative_tensors(self)

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized; of them a row reads every byte."""
        read = 2 * hidden if self.paired else hidden
        return {"qkv": (self.qkv_rows, read), "o": (hidden, self.q_dim)}

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        require_sizes(where, {name: getattr(self, name) for name in ("n_heads", "n_kv_heads", "head_dim")})
        require_sizes(where, {"sinks": self.sinks, "distances": self.distances}, least=0)
        if self.n_heads % self.n_kv_heads:
            raise BundleCorrupt(f"{where}: {self.n_heads} heads do not share {self.n_kv_heads} kv heads evenly")
        if self.window is not None and self.window < 1:
            raise BundleCorrupt(f"{where}.window: {self.window} is out of range")
        if self.qk_norm_kind == "none" or (self.qk_norm_last and self.qk_norm not in ("head", "heads")):
            raise BundleCorrupt(f"{where}.qk_norm: a {self.qk_norm_kind} norm, or one of all heads after the rope")
        if self.k_is_v and (self.gate != "none" or self.paired):
            raise BundleCorrupt(f"{where}.k_is_v: beside a gate, or an embedding that is read")
        if self.with_embedding and self.embedding_norm != "none":
            raise BundleCorrupt(f"{where}.with_embedding: beside embedding_norm")
        if self.again != "none" and self.after == "none":
            raise BundleCorrupt(f"{where}.again: without a norm after the sum")
        if not 0 <= self.clip < inf:
            raise BundleCorrupt(f"{where}.clip: {self.clip} is out of range")
        if self.slopes and (len(self.slopes) != self.n_heads or not all(isfinite(slope) for slope in self.slopes)):
            raise BundleCorrupt(f"{where}.slopes: must be a finite number for each of {self.n_heads} heads")
        check_pairs(self, where)
        check_relative(self, where)
