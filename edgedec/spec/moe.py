"""The mixture-of-experts block: a router sends each row to a few of many MLPs, gated or plain (`Mlp`).

router: "softmax" weighs all experts and takes the k likeliest; "softmax_topk" takes the k largest logits and weighs
these; "sigmoid" weighs each by itself. router_bias: is added to the weights for the choice alone; logit_bias: to the
router's logits. `normalize`: weights of the chosen sum to 1.

"sparsemixer" (Phi-3.5-MoE, arXiv:2409.12136) takes the k largest logits; one of value s is weighed by softmax among
those that are not chosen before it and not further below it than 2 * `jitter` of the larger of s and their size.

"relu" (BlockFFN, arXiv:2507.08771) weighs all experts by an RMS norm of relu(logits) with weights, `score_norm`. A row
passes the experts whose weight is not zero, any number of them.

"given" (Read-ME, `spec.pre_router`) has no weights and no choice of its own: a row passes the one expert that block
`given_by` chose for it, with weight 1.

router_norm: the router reads the state over its root mean square, times weights of its own; expert_scale: a factor of
each expert's weight; joined: a norm of the sum of what this block and those beside it add (Gemma 4).

early_router (SmallThinker, arXiv:2507.20984): the router reads the state as it was before the block in front of this
one, which is attention: over router_norm if there is one, else as it is. Logits of such a state are large, and many
sigmoids of them may be 1: experts are chosen by logits.

sum_bias (nomic-embed-text-v2-moe): a bias of the sum of a row's experts, whatever their weights.

clamped (gpt-oss): gate and up are cut at LIMIT, up on both sides, and an expert's activation is
gate * sigmoid(ALPHA * gate) * (up + 1); bias: of the experts' matrices.

levels (MC-MoE, arXiv:2410.06270): of each expert the number of the tensors that hold it, so that these may have formats
of their own: 0 is `gate_up` and `down`, 1 is `gate_up_1` and `down_1`, and so on; in each the experts keep their order.

drop_below (the same paper; lossy): a row leaves out the last of its experts where that one's weight is less than this
part of its first one's, and the others are normalized without it. Rows of which the router reads values whose sizes sum
to `protect_from` or more keep it; 0: no row is protected.

Group-limited choice (DeepSeek-V3, LLaDA2): the experts are in `groups` of equal size, in order; a row's are chosen from
the `top_groups` groups whose two best experts have the largest sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Activation, Norm, Shapes, UpMatrix, norm_tensors, require_sizes

# An expert is whole groups of the packed layout.
LANES = 16
# The experts of a group by whose scores it is judged.
_JUDGED = 2
MOST_LEVELS = 4
ALPHA, LIMIT = 1.702, 7.0


@dataclass(frozen=True)
class Moe(UpMatrix):
    """`scale` multiplies all weights of routed experts; `shared_size`: inner size of an expert that every row passes,
    its output times sigmoid(x . shared_gate) if `shared_gate`; `branch`: as of attention; `state_scale`: as of a
    feed-forward."""

    n_experts: int
    top_k: int
    inner_size: int
    router: Literal["softmax", "softmax_topk", "sigmoid", "sparsemixer", "relu", "given"] = "softmax"
    normalize: bool = True
    scale: float = 1.0
    router_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    shared_size: int = 0
    shared_gate: bool = False
    bias: bool = False
    logit_bias: bool = False
    clamped: bool = False
    gated: bool = True
    jitter: float = 0.0
    router_norm: bool = False
    expert_scale: bool = False
    early_router: bool = False
    joined: Norm = "none"
    levels: tuple[int, ...] = ()
    drop_below: float = 0.0
    protect_from: float = 0.0
    given_by: int = -1
    sum_bias: bool = False
    activation: Activation = "silu"
    norm: Norm = "rms"
    post_norm: Norm = "none"
    after: Norm = "none"
    branch: bool = False
    state_scale: bool = False
    kind: Literal["moe"] = "moe"

    @property
    def given(self) -> bool:
        """Whether another block chooses a row's expert."""
        return self.router == "given"

    @property
    def shared_up(self) -> str:
        """The name of the shared expert's first matrix."""
        return f"shared_{self.up}"

    @property
    def n_levels(self) -> int:
        """How many tensors hold the experts' first matrices."""
        return max(self.levels, default=0) + 1

    def members(self, level: int) -> tuple[int, ...]:
        """The experts of a level, as they are stacked.

        levels 1 0 1 -> members(1) is 0 2
        """
        return tuple(e for e in range(self.n_experts) if not self.levels or self.levels[e] == level)

    def place(self, expert: int) -> tuple[int, int]:
        """The level of an expert, and which one of its tensors' experts it is."""
        level = self.levels[expert] if self.levels else 0
        return level, self.members(level).index(expert)

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape. Experts are stacked: rows e * up_rows on are expert e's gate and
        up."""
        shapes = self.matrices(hidden) | ({} if self.given else {"router": (self.n_experts, hidden)})
        shapes |= norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)
        shapes |= norm_tensors(self.after, "after_norm", hidden)
        shapes |= norm_tensors(self.joined, "joined_norm", hidden)
        if self.router_norm:
            shapes["router_norm"] = (hidden,)
        if self.router == "relu":
            shapes["score_norm"] = (self.n_experts,)
        if self.expert_scale:
            shapes["expert_scale"] = (self.n_experts,)
        if self.state_scale:
            shapes["state_scale"] = (1,)
        if self.router_bias:
            shapes["router_bias"] = (self.n_experts,)
        if self.shared_gate:
            shapes["shared_gate"] = (1, hidden)
        if self.logit_bias:
            shapes["router_logit_bias"] = (self.n_experts,)
        if self.sum_bias:
            shapes["sum_bias"] = (hidden,)
        if self.bias:
            shapes |= {f"{self.up}_bias": (self.n_experts * self.up_rows,), "down_bias": (self.n_experts * hidden,)}
        return shapes

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized; of the experts' a row reads `top_k` parts, by "relu" at most."""
        shapes: Shapes = {}
        for level in range(self.n_levels):
            n = len(self.members(level))
            shapes[level_name(self.up, level)] = (n * self.up_rows, hidden)
            shapes[level_name("down", level)] = (n * hidden, self.inner_size)
        if self.shared_size:
            rows = 2 * self.shared_size if self.gated else self.shared_size
            shapes |= {self.shared_up: (rows, hidden), "shared_down": (hidden, self.shared_size)}
        return shapes

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        require_sizes(where, {name: getattr(self, name) for name in ("n_experts", "top_k", "inner_size")})
        require_sizes(where, {"shared_size": self.shared_size}, least=0)
        if self.top_k > self.n_experts:
            raise BundleCorrupt(f"{where}.top_k: {self.top_k} of {self.n_experts} experts")
        if not 0 <= self.jitter < 1 or (self.jitter and self.router != "sparsemixer"):
            raise BundleCorrupt(f"{where}.jitter: {self.jitter} of a router by {self.router}")
        if self.router == "relu" and (self.top_k != self.n_experts or self.normalize):
            raise BundleCorrupt(f"{where}.router: relu chooses among all experts (top_k) and does not normalize")
        if self.router_bias and self.router in ("softmax_topk", "sparsemixer", "relu"):
            raise BundleCorrupt(f"{where}.router_bias: a router of logits has none, but logit_bias")
        if self.shared_size and (self.bias or self.clamped):
            raise BundleCorrupt(f"{where}.shared_size: beside experts that are clamped or have biases")
        if self.clamped and not self.gated:
            raise BundleCorrupt(f"{where}.clamped: only experts with a gate are")
        if self.clamped and self.activation != "silu":
            raise BundleCorrupt(f"{where}.clamped: has an activation of its own, not {self.activation}")
        self._check_groups(where)
        self._check_levels(where)
        self._check_given(where)
        if self.activation == "xielu":
            raise BundleCorrupt(f"{where}.activation: experts have no xielu")
        if self.shared_gate and not self.shared_size:
            raise BundleCorrupt(f"{where}.shared_gate: there is no shared expert")
        if self.up_rows % LANES:
            twice = "twice " if self.gated else ""
            raise BundleCorrupt(f"{where}.inner_size: {twice}{self.inner_size} is not a multiple of {LANES}")

    def _check_levels(self, where: str) -> None:
        if self.n_levels > MOST_LEVELS:
            raise BundleCorrupt(f"{where}.levels: {self.n_levels} of at most {MOST_LEVELS}")
        if self.levels and (len(self.levels) != self.n_experts or set(self.levels) != set(range(self.n_levels))):
            raise BundleCorrupt(f"{where}.levels: not a level of each expert, from 0 on without gaps")
        if not 0 <= self.drop_below <= 1 or (self.drop_below and (self.top_k < 2 or self.router == "relu")):
            raise BundleCorrupt(
                f"{where}.drop_below: {self.drop_below} with {self.top_k} experts a row by {self.router}"
            )
        if not 0 <= self.protect_from < inf or (self.protect_from and not self.drop_below):
            raise BundleCorrupt(f"{where}.protect_from: {self.protect_from} where experts below {self.drop_below} drop")

    def _check_given(self, where: str) -> None:
        if self.given_by < -1 or self.given != (self.given_by >= 0):
            raise BundleCorrupt(f"{where}.given_by: {self.given_by} of experts chosen by {self.router}")
        chooses = self.router_bias or self.logit_bias or self.router_norm or self.expert_scale or self.normalize
        chooses = chooses or self.early_router
        if self.given and (self.top_k != 1 or self.scale != 1 or chooses):
            raise BundleCorrupt(f"{where}.router: given experts are one a row, of weight 1, and have no router")

    def _check_groups(self, where: str) -> None:
        require_sizes(where, {"groups": self.groups, "top_groups": self.top_groups})
        if self.groups == 1 and self.top_groups == 1:
            return
        size, rest = divmod(self.n_experts, self.groups)
        if self.router != "sigmoid":
            raise BundleCorrupt(f"{where}.groups: only a sigmoid router has them")
        if rest or size < _JUDGED:
            raise BundleCorrupt(f"{where}.groups: {self.n_experts} experts are not {self.groups} groups of 2 or more")
        if self.top_groups > self.groups or self.top_k > self.top_groups * size:
            raise BundleCorrupt(
                f"{where}.top_groups: {self.top_groups} of {self.groups} do not give {self.top_k} experts"
            )


def level_name(name: str, level: int) -> str:
    """The tensor of a level of experts."""
    return f"{name}_{level}" if level else name
