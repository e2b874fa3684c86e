"""What the files of models with latent attention (MLA) share: its sizes, and where its weights are.

A checkpoint has the matrices that make keys and values of the state in one, `kv_b_proj`, a head after another; a spec
has them apart, and of a query and a key the turned part first.
"""

from __future__ import annotations

import math

from edgedec.models import Part
from edgedec.models._common import ConfigReader
from edgedec.models._names import ATTENTION, Paths
from edgedec.spec import LatentAttention, ModelSpec


def latent_heads(
    r: ConfigReader, table: ConfigReader, *, q_rank: int | None, sizes: tuple[int, int, int, int]
) -> LatentAttention:
    """The latent attention of config `r`, whose rope `table` describes. q_rank, and the sizes (kv_lora_rank,
    qk_nope_head_dim, qk_rope_head_dim, v_head_dim): where the config says nothing."""
    n, names = r.whole("num_attention_heads"), ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rank, nope, turned, value = (r.whole(name, usual) for name, usual in zip(names, sizes, strict=True))
    for key, wanted in (("num_key_value_heads", n), ("head_dim", turned), ("qk_head_dim", nope + turned)):
        if (r.maybe_whole(key) or wanted) != wanted:  # transformers writes them beside the sizes that they follow from
            raise r.fail(key, f"is {r.values[key]}: of latent attention with these sizes it is {wanted}")
    bias = r.flag("attention_bias", False)
    return LatentAttention(
        n_heads=n,
        n_kv_heads=1,
        head_dim=rank + turned,
        scale=(nope + turned) ** -0.5 * _mscale(table) ** 2,
        qkv_bias=bias,
        o_bias=bias,
        rank=rank,
        rope_dim=turned,
        nope_dim=nope,
        v_dim=value,
        q_rank=r.maybe_whole("q_lora_rank", q_rank) or 0,
    )


def _mscale(table: ConfigReader) -> float:
    """What queries and keys are multiplied by under YaRN, as DeepSeek scales it."""
    all_dims = table.maybe_number("mscale_all_dim")
    if table.text("rope_type") == "default" or not all_dims:
        return 1.0
    factor = table.number("factor")
    return 0.1 * all_dims * math.log(factor) + 1.0 if factor > 1 else 1.0


def latent_names(spec: ModelSpec, pairs: bool) -> Paths:
    """Where the tensors of latent blocks are. pairs: neighbouring channels of a checkpoint turn together."""
    block = next(block for block in spec.blocks if isinstance(block, LatentAttention))
    turned, query, both = block.rope_dim, block.nope_dim + block.rope_dim, block.nope_dim + block.v_dim
    halves, heads, up = (turned, 0, turned) if pairs else None, range(block.n_heads), "self_attn.kv_b_proj.weight"
    q = "self_attn.q_b_proj.weight" if block.q_rank else "self_attn.q_proj.weight"

    def state(name: str) -> tuple[Part, ...]:
        return Part(name, (block.rank, block.head_dim), halves=halves), Part(name, (0, block.rank))

    return {
        "norm": ATTENTION["norm"],
        "q_a": ("self_attn.q_a_proj.weight",),
        "q_a_bias": ("self_attn.q_a_proj.bias",),
        "q_a_norm": ("self_attn.q_a_layernorm.weight",),
        "q": tuple(
            part
            for h in heads
            for part in (
                Part(q, (h * query + block.nope_dim, (h + 1) * query), halves=halves),
                Part(q, (h * query, h * query + block.nope_dim)),
            )
        ),
        "kv_a": state("self_attn.kv_a_proj_with_mqa.weight"),
        "kv_a_bias": state("self_attn.kv_a_proj_with_mqa.bias"),
        "kv_norm": ("self_attn.kv_a_layernorm.weight",),
        "k_up": tuple(Part(up, (h * both, h * both + block.nope_dim), transposed=True) for h in heads),
        "v_up": tuple(Part(up, (h * both + block.nope_dim, (h + 1) * both)) for h in heads),
        "o": ATTENTION["o"],
        "o_bias": ATTENTION["o_bias"],
    }
