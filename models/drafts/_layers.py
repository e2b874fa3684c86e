"""Decoder layers of draft checkpoints as blocks, and where their tensors are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from edgedec.models import Part, Source
from edgedec.models._common import ConfigReader, activation, heads
from edgedec.models._names import ATTENTION, MLP
from edgedec.models._rope import rope, rope_table
from edgedec.spec import Attention, Block, Mlp, ModelSpec, Norm

Sources = dict[str, Source | None]
ROTARY = (r".*rotary_emb\.inv_freq", r".*embed_tokens\.weight")


def layer_blocks(
    r: ConfigReader, names: Collection[str], prefix: str, *, norm: Norm = "rms", embedding_norm: Norm = "none"
) -> tuple[Attention, Mlp]:
    """Attention and feed-forward of the layer whose tensors begin with `prefix`; biases and norms of queries and keys
    are there if their tensors are."""
    attention = Attention(
        **heads(r),
        qkv_bias=f"{prefix}self_attn.q_proj.bias" in names,
        o_bias=f"{prefix}self_attn.o_proj.bias" in names,
        qk_norm="head" if f"{prefix}self_attn.q_norm.weight" in names else "none",
        norm=norm,
        embedding_norm=embedding_norm,
    )
    mlp = Mlp(r.whole("intermediate_size"), bias=f"{prefix}mlp.up_proj.bias" in names, activation=activation(r))
    return attention, mlp


def draft_spec(
    r: ConfigReader,
    architecture: str,
    target: ModelSpec,
    layers: Sequence[tuple[Block, ...]],
    vocab: int = 0,
    **changes: Any,
) -> ModelSpec:
    """The spec of a draft's layers for its target: same context length, and `vocab` tokens (0: all of the target's).
    changes: other fields of the spec."""
    attention = layers[0][0]
    assert isinstance(attention, Attention)
    return ModelSpec(
        architecture=architecture,
        vocab_size=vocab or target.vocab_size,
        hidden_size=r.whole("hidden_size"),
        context_length=target.context_length,
        layers=tuple(layers),
        norm_eps=r.number("rms_norm_eps", 1e-6),
        tied=True,
        ropes=(rope(r, rope_table(r), attention.head_dim, target.context_length),),
        **changes,
    )


def layer_sources(
    spec: ModelSpec, layer: int, prefix: str, renamed: Mapping[str, str], norm_add: float = 0.0
) -> Sources:
    """Where the tensors of a layer's blocks are. renamed: paths other than the usual ones, by the name of a tensor."""
    found: Sources = {}
    for b in spec.span(layer, layer + 1):
        usual: Mapping[str, Any] = ATTENTION if spec.blocks[b].kind == "attention" else MLP
        for tensor in spec.blocks[b].tensors(spec.hidden_size):
            own = renamed.get(f"{spec.blocks[b].kind}.{tensor}")
            add = norm_add if tensor.endswith("norm") else 0.0
            found[f"blocks.{b}.{tensor}"] = tuple(
                Part(prefix + path, add=add) for path in ((own,) if own else usual[tensor])
            )
    return found
