"""Facts and kinds of blocks that came later than most engines: an engine names those that it has and refuses the
others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgedec.spec.attention import Attention
from edgedec.spec.lookup import Lookup
from edgedec.spec.mlp import Mlp
from edgedec.spec.moe import Moe
from edgedec.spec.ssm import Ssm

if TYPE_CHECKING:
    from edgedec.spec import Block, ModelSpec

BRANCH = "blocks side by side"
RELU2 = "squared ReLU"
XIELU = "xIELU"
HEAD_BIAS = "a bias of the head"
ENTRY = "learned positions, a norm or a matrix after the embedding"
QK_NORM = "norms of queries and keys other than RMS norms before the rope"
CLIP = "clipped queries, keys and values"
SLOPES = "ALiBi"
INNER_NORM = "a norm before the last matrix of a block"
SINK_LOGIT = "attention with a score of no token"
GATES = "gates of attention"
EXPERT_BIAS = "experts with biases"
CLAMPED = "clamped experts"
CHOICE_BIAS = "experts chosen by softmax and a bias"
PLAIN_EXPERTS = "experts without gates"
SPARSEMIXER = "experts weighed by SparseMixer"
RELU_ROUTER = "experts chosen by ReLU"
GATE_ALONE = "state spaces with a gate and no norm"
K_IS_V = "keys that are values too"
V_NORM = "norms of values"
DIFFERENTIAL = "differential attention"
STATE_SCALE = "a factor of the state"
ROUTER_NORM = "routers with a norm of their own"
EXPERT_SCALE = "factors of experts"
JOINED = "a norm of what blocks side by side add"
EXPERT_LEVELS = "experts in tensors of their own formats"
EXPERT_DROP = "experts that some rows leave out"
SPARSITY = "sparse gates"
WITH_EMBEDDING = "attention over the state and the embedding as one row"
FEEDS = "blocks whose output only the next one reads"
HEAD_LAYER = "a layer before the head"
EARLY_ROUTER = "routers that read the state before attention"
SUM_BIAS = "a bias of the experts' sum"
AGAIN = "a state that is added and normed twice"
AFTER = "norms of the sum of a block and the state"
SCALED = "factors in the place of a norm"
# Which graphs of ONNX do not have: they are of the CPU engine and of the reference.
NO_GRAPHS = (
    *(K_IS_V, V_NORM, DIFFERENTIAL, STATE_SCALE, ROUTER_NORM, EXPERT_SCALE, JOINED, EXPERT_LEVELS, EXPERT_DROP),
    *(SPARSITY, WITH_EMBEDDING, FEEDS, HEAD_LAYER, EARLY_ROUTER),
)
# In the order in which refusals name them.
NEWER = (
    *(BRANCH, RELU2, XIELU, HEAD_BIAS, ENTRY, QK_NORM, CLIP, SLOPES, INNER_NORM, SINK_LOGIT, GATES, EXPERT_BIAS),
    *(SUM_BIAS, AGAIN, CLAMPED, CHOICE_BIAS, GATE_ALONE, PLAIN_EXPERTS, SPARSEMIXER, RELU_ROUTER, AFTER, SCALED),
    *NO_GRAPHS,
)
_KINDS = frozenset(
    (
        *("altup", "channel_mix", "conv", "delta", "gmu", "latent", "laurel", "lookup", "pre_router"),
        "rwkv7",
        "s6",
        "shared_attention",
    )
)


def newer(spec: ModelSpec) -> tuple[str, ...]:
    """The facts that a model has, in words."""
    own = {HEAD_BIAS: spec.head_bias, ENTRY: spec.entry is not None and spec.output is None}
    own[HEAD_LAYER] = spec.head_layer is not None
    own[AFTER] = spec.output is None and any(block.after != "none" for block in spec.blocks)
    found = {fact for facts in (own, *map(_of, spec.blocks)) for fact, on in facts.items() if on}
    return tuple(fact for fact in NEWER if fact in found)


def is_newer(spec: ModelSpec) -> bool:
    """Whether a model has facts or kinds that readers of format 8 do not know."""
    relative = any(block.relative for block in spec.attention.values())  # text encoders only, like `distances`
    convolved = spec.entry is not None and spec.entry.conv
    duplex = spec.output is not None and spec.output.kind == "duplex"
    return bool(newer(spec) or _KINDS & set(spec.kinds) or relative or convolved or duplex)


def _of(block: Block) -> dict[str, Any]:
    activation, inner = getattr(block, "activation", ""), getattr(block, "inner_norm", "none")
    found = {
        BRANCH: getattr(block, "branch", False),
        RELU2: activation == "relu2",
        XIELU: activation == "xielu",
        INNER_NORM: inner != "none",
        FEEDS: getattr(block, "feeds", False),
        SCALED: block.norm == "scale",
    }
    if isinstance(block, Lookup | Mlp | Moe):
        found[STATE_SCALE] = block.state_scale
    if isinstance(block, Mlp):
        found[SPARSITY] = block.sparsity
    if isinstance(block, Attention):
        found |= {
            QK_NORM: block.qk_norm == "heads" or block.qk_norm_kind != "rms" or block.qk_norm_last,
            CLIP: block.clip,
            SLOPES: block.slopes,
            SINK_LOGIT: block.sink_logit,
            GATES: block.gate != "none",
            K_IS_V: block.k_is_v,
            V_NORM: block.v_norm,
            DIFFERENTIAL: block.differential,
            WITH_EMBEDDING: block.with_embedding,
            AGAIN: block.again != "none",
        }
    if isinstance(block, Moe):
        found |= _of_experts(block)
    if isinstance(block, Ssm):
        found[GATE_ALONE] = not block.norm_groups
    return found


def _of_experts(block: Moe) -> dict[str, Any]:
    return {
        EXPERT_BIAS: block.bias or block.logit_bias,
        SUM_BIAS: block.sum_bias,
        CLAMPED: block.clamped,
        ROUTER_NORM: block.router_norm,
        EXPERT_SCALE: block.expert_scale,
        EARLY_ROUTER: block.early_router,
        JOINED: block.joined != "none",
        EXPERT_LEVELS: block.levels,
        EXPERT_DROP: block.drop_below,
        CHOICE_BIAS: block.router_bias and block.router == "softmax",
        PLAIN_EXPERTS: not block.gated,
        SPARSEMIXER: block.router == "sparsemixer",
        RELU_ROUTER: block.router == "relu",
    }
