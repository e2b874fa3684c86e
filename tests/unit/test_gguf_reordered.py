"""Which rows of a GGUF file's tensors make a bundle's, by hand: small sizes, no two of them alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgedec.export.gguf.reordered import reordered
from edgedec.models import Part
from edgedec.spec import Attention, Delta, Mlp
from edgedec.testing.conformance.models import MODELS

# Two key heads of 24 and four value heads of 16: 48 rows of queries, 48 of keys, 64 of values.
RULE = Delta(n_heads=4, head_dim=16, key_dim=24, n_groups=2, conv_size=3)
NONE = frozenset[str]()


def rows(block: Any, tensor: str, own: frozenset[str] = NONE, architecture: str = "qwen3next") -> list[Any]:
    """Of each part its name without "weight", and its rows."""
    found = reordered(block, tensor, own, architecture)
    assert found is not None
    return [(part.name.removesuffix(".weight"), part.rows) for part in found]


def test_the_delta_rule_has_values_keys_and_queries_in_turn() -> None:
    assert rows(RULE, "conv") == [("ssm_conv1d", at) for at in ((96, 160), (48, 96), (0, 48))]
    qkv = [("attn_qkv", at) for at in ((96, 160), (48, 96), (0, 48))]
    apart = [("attn_gate", None), ("ssm_beta", None), ("ssm_alpha", None)]
    assert rows(RULE, "in_proj") == [*qkv, *apart]
    # Of each key head two rows of beta, then two of the time step.
    both = [("ssm_ba", at) for at in ((0, 2), (4, 6), (2, 4), (6, 8))]
    assert rows(RULE, "in_proj", frozenset({"ssm_ba.weight"})) == [*qkv, apart[0], *both]
    assert reordered(RULE, "out_proj", NONE, "qwen3next") is None


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe"])
def test_value_heads_in_turn_are_put_below_their_key_heads(architecture: str) -> None:
    """Files have the first of each key head, then the second of each: heads 0, 2, 1 and 3 of the bundle."""
    values = [(96 + 16 * h, 112 + 16 * h) for h in (0, 2, 1, 3)]
    channels = [*values, (48, 96), (0, 48)]
    assert rows(RULE, "conv", NONE, architecture) == [("ssm_conv1d", at) for at in channels]
    found = rows(RULE, "in_proj", NONE, architecture)
    assert found[:6] == [("attn_qkv", at) for at in channels]
    assert found[6:10] == [("attn_gate", (16 * h, 16 * h + 16)) for h in (0, 2, 1, 3)]
    assert found[10:] == [(name, (h, h + 1)) for name in ("ssm_beta", "ssm_alpha") for h in (0, 2, 1, 3)]
    assert rows(RULE, "a", NONE, architecture) == [("ssm_a", (h, h + 1)) for h in (0, 2, 1, 3)]
    assert rows(RULE, "dt_bias", NONE, architecture) == [("ssm_dt.bias", (h, h + 1)) for h in (0, 2, 1, 3)]
    assert reordered(RULE, "out_proj", NONE, architecture) == (Part("ssm_out.weight", in_turn=(2, 16)),)
    assert reordered(RULE, "gate_norm", NONE, architecture) is None
    single = replace(RULE, n_heads=2)  # nothing lies in turn: 32 rows of values
    assert rows(single, "conv", NONE, architecture) == [("ssm_conv1d", at) for at in ((96, 128), (48, 96), (0, 48))]


def test_decays_of_channels_have_all_apart() -> None:
    block = next(b for b in MODELS["channel decays beside latent attention"].blocks if isinstance(b, Delta))
    assert block.decay == "channel"
    assert reordered(block, "conv", NONE, "kimi-linear") == tuple(
        Part(f"ssm_conv1d_{part}.weight", flat=True) for part in "vkq"
    )
    names = ["attn_v", "attn_k", "attn_q", "ssm_g_a", "ssm_beta", "ssm_f_a"]
    assert rows(block, "in_proj") == [(name, None) for name in names]
    assert rows(block, "out_proj") == [("attn_output", None)]
    assert reordered(block, "a", NONE, "kimi-linear") is None


def test_queries_lie_before_the_gates_of_their_heads() -> None:
    """Two heads of 8: query, gate, query, gate."""
    block = Attention(2, 1, 8, 0.35, gate="channel")
    for tensor, kind in (("qkv", "weight"), ("qkv_bias", "bias")):
        found = reordered(block, tensor, NONE, "qwen3next")
        assert found is not None
        q, gates = [Part(f"attn_q.{kind}", at) for at in ((0, 8), (16, 24))], ((8, 16), (24, 32))
        assert [*found] == [
            *q,
            Part(f"attn_k.{kind}"),
            Part(f"attn_v.{kind}"),
            *(Part(f"attn_q.{kind}", at) for at in gates),
        ]
        apart = reordered(block, tensor, frozenset({f"attn_gate.{kind}"}), "afmoe")
        assert apart == tuple(Part(f"attn_{part}.{kind}") for part in ("q", "k", "v", "gate"))
    assert reordered(replace(block, gate="none"), "qkv", NONE, "llama") is None
    assert reordered(block, "o", NONE, "qwen3next") is None
    assert reordered(Mlp(16), "down", NONE, "llama") is None


# Two heads: queries of 5 + 4 rows, of which 4 turn; 6 rows in the latent state beside 4; values of 3.
LATENT = replace(
    MODELS["latent"].attention[0], n_heads=2, head_dim=10, rank=6, rope_dim=4, nope_dim=5, v_dim=3, q_rank=7
)


@pytest.mark.parametrize(("architecture", "halves"), [("deepseek2", (4, 0, 4)), ("kimi-linear", None)])
def test_latent_attention_has_what_turns_first(architecture: str, halves: Any) -> None:
    a = reordered(LATENT, "kv_a", NONE, architecture)
    name = "attn_kv_a_mqa.weight"
    assert a == (Part(name, (6, 10), halves=halves), Part(name, (0, 6)))
    for q_rank, name in ((7, "attn_q_b.weight"), (0, "attn_q.weight")):
        cuts = (((5, 9), (0, 5)), ((14, 18), (9, 14)))
        expected = [part for turn, rest in cuts for part in (Part(name, turn, halves=halves), Part(name, rest))]
        assert reordered(replace(LATENT, q_rank=q_rank), "q", NONE, architecture) == tuple(expected)
    for tensor in ("k_up", "v_up"):
        apart = (Part(f"attn_{tensor[0]}_b.weight", flat=True),)
        assert reordered(LATENT, tensor, NONE, architecture) == apart
    older = frozenset({"attn_kv_b.weight"})  # of each head five rows of keys, then three of values
    keys = tuple(Part("attn_kv_b.weight", at, transposed=True) for at in ((0, 5), (8, 13)))
    assert reordered(LATENT, "k_up", older, architecture) == keys
    assert reordered(LATENT, "v_up", older, architecture) == tuple(
        Part("attn_kv_b.weight", at) for at in ((5, 8), (13, 16))
    )
    assert reordered(LATENT, "o", NONE, architecture) is None
