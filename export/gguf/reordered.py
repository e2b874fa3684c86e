"""Tensors of a bundle that take their rows of a GGUF file's in another order, or of more of them."""

from __future__ import annotations

from edgedec.models import Part, Source
from edgedec.models._dense import fused
from edgedec.spec import Attention, Block, Delta, LatentAttention, Mlp, Rwkv7

# Neighbouring channels of a query or key turn together in these.
_IN_PAIRS = ("deepseek2",)
# In these the value heads lie in turn: the first of each key head, then the second of each.
_IN_TURN = ("qwen35", "qwen35moe")


def reordered(block: Block, tensor: str, own: frozenset[str], architecture: str) -> Source | None:
    """The parts of such a tensor; None if it is none. own: names in the layer."""
    if isinstance(block, Delta) and block.decay == "channel":
        return _of_channels(tensor)
    if isinstance(block, Delta):
        return _of_delta(block, tensor, own, architecture in _IN_TURN)
    if isinstance(block, Rwkv7) and tensor == "mix":
        return (Part("time_mix_lerp_fused.weight", flat=True),)
    if isinstance(block, LatentAttention):
        return _of_latent(block, tensor, own, architecture in _IN_PAIRS)
    if architecture == "neo-bert" and isinstance(block, Attention) and tensor == "qkv":
        return fused("attn_qkv.weight", block, (block.head_dim, 0, block.head_dim))
    if architecture == "jina-bert-v2" and isinstance(block, Mlp):
        return _of_jina(block, tensor, own)
    if isinstance(block, Attention) and block.gate == "channel" and tensor in ("qkv", "qkv_bias"):
        return _gated(block, "bias" if tensor.endswith("bias") else "weight", own)
    return None


def _of_jina(block: Mlp, tensor: str, own: frozenset[str]) -> Source | None:
    """Jina v2's first matrices have no bias. Of the models for code, whose layers have one norm more, the gates lie
    below the ups, as in the checkpoint; llama.cpp takes the upper half for the gates there too."""
    inner, name = block.inner_size, "ffn_up.weight"
    if tensor == "gate_up_bias":
        return (Part(name, (0, 2 * inner), ones=True, times=0.0),)
    if tensor == "gate_up" and "attn_norm_2.weight" in own and "ffn_gate.weight" not in own:
        return Part(name, (inner, 2 * inner)), Part(name, (0, inner))
    return None


def _of_delta(block: Delta, tensor: str, own: frozenset[str], in_turn: bool) -> Source | None:
    """A file has queries, keys and values below each other, and what gates them apart. in_turn: value heads are."""
    share = block.n_heads // block.n_groups
    if in_turn and share > 1:
        return _in_turn(block, tensor, [j * block.n_groups + g for g in range(block.n_groups) for j in range(share)])
    keys = block.n_groups * block.key_dim
    cuts = (2 * keys, block.conv_dim), (keys, 2 * keys), (0, keys)  # values, keys, queries
    if tensor == "conv":
        return tuple(Part("ssm_conv1d.weight", rows) for rows in cuts)
    if tensor != "in_proj":
        return None
    qkv = tuple(Part("attn_qkv.weight", rows) for rows in cuts)
    return (*qkv, Part("attn_gate.weight"), *_steps(block, own))


def _in_turn(block: Delta, tensor: str, order: list[int]) -> Source | None:
    """order: where each value head lies."""
    keys, dim = block.n_groups * block.key_dim, block.head_dim

    def heads(name: str, width: int = 1, start: int = 0) -> Source:
        return tuple(Part(name, (start + h * width, start + (h + 1) * width)) for h in order)

    def channels(name: str) -> Source:
        return (*heads(name, dim, 2 * keys), Part(name, (keys, 2 * keys)), Part(name, (0, keys)))

    if tensor == "in_proj":
        gates = (*heads("attn_gate.weight", dim), *heads("ssm_beta.weight"), *heads("ssm_alpha.weight"))
        return (*channels("attn_qkv.weight"), *gates)
    usual = {"conv": channels("ssm_conv1d.weight"), "dt_bias": heads("ssm_dt.bias"), "a": heads("ssm_a")}
    if tensor == "out_proj":
        return (Part("ssm_out.weight", in_turn=(block.n_groups, dim)),)
    return usual.get(tensor)


def _steps(block: Delta, own: frozenset[str]) -> Source:
    """Of each head the rows of beta, then those of the time step; in files of Qwen3-Next each key head has its own."""
    if "ssm_ba.weight" not in own:
        return Part("ssm_beta.weight"), Part("ssm_alpha.weight")
    share = block.n_heads // block.n_groups
    starts = [2 * share * group + offset for offset in (0, share) for group in range(block.n_groups)]
    return tuple(Part("ssm_ba.weight", (start, start + share)) for start in starts)


def _of_channels(tensor: str) -> Source | None:
    """Of Kimi's delta rule all is apart."""
    if tensor == "conv":
        return tuple(Part(f"ssm_conv1d_{part}.weight", flat=True) for part in "vkq")
    parts = ("attn_v", "attn_k", "attn_q", "ssm_g_a", "ssm_beta", "ssm_f_a")
    apart = {"in_proj": parts, "out_proj": ("attn_output",)}.get(tensor)
    return tuple(Part(f"{part}.weight") for part in apart) if apart else None


def _gated(block: Attention, kind: str, own: frozenset[str]) -> Source:
    """The rows of a head's query come before those of its gate, unless the gate is apart."""
    if f"attn_gate.{kind}" in own:
        return tuple(Part(f"attn_{part}.{kind}") for part in ("q", "k", "v", "gate"))
    name, dim = f"attn_q.{kind}", block.head_dim
    both = [[Part(name, (at, at + dim)) for at in range(start, 2 * block.q_dim, 2 * dim)] for start in (0, dim)]
    return (*both[0], Part(f"attn_k.{kind}"), Part(f"attn_v.{kind}"), *both[1])


def _of_latent(block: LatentAttention, tensor: str, own: frozenset[str], pairs: bool) -> Source | None:
    """Of a query and a key the turned part comes first. Older files have the matrices that make keys and values of the
    state in one, a head after another."""
    turned, query, heads = block.rope_dim, block.nope_dim + block.rope_dim, range(block.n_heads)
    halves = (turned, 0, turned) if pairs else None
    if tensor == "kv_a":
        name = "attn_kv_a_mqa.weight"
        return Part(name, (block.rank, block.head_dim), halves=halves), Part(name, (0, block.rank))
    if tensor == "q":
        name = "attn_q_b.weight" if block.q_rank else "attn_q.weight"
        cuts = [(h * query, h * query + block.nope_dim, (h + 1) * query) for h in heads]
        return tuple(
            part
            for start, middle, end in cuts
            for part in (Part(name, (middle, end), halves=halves), Part(name, (start, middle)))
        )
    if tensor not in ("k_up", "v_up"):
        return None
    if "attn_kv_b.weight" not in own:
        return (Part(f"attn_{tensor[0]}_b.weight", flat=True),)
    both = block.nope_dim + block.v_dim
    if tensor == "v_up":
        return tuple(Part("attn_kv_b.weight", (h * both + block.nope_dim, (h + 1) * both)) for h in heads)
    return tuple(Part("attn_kv_b.weight", (h * both, h * both + block.nope_dim), transposed=True) for h in heads)
