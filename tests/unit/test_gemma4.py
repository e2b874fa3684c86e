"""Gemma 4: published sizes, which layers read the slots of others, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BundleCorrupt, CheckpointError, UsageError
from edgedec.models import architecture
from edgedec.runtime import Call, Outputs, Rows, forward_one
from edgedec.runtimes.reference import Reference
from edgedec.spec import Lookup, ModelSpec, Moe
from edgedec.testing.conformance.bundles import random_weights
from edgedec.testing.conformance.models import MODELS

ROPES = {
    "full_attention": {"rope_theta": 1000000.0, "rope_type": "proportional", "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}
SLIDES = ["sliding_attention"]
COMMON = {"vocab_size": 262144, "head_dim": 256, "global_head_dim": 512, "rope_parameters": ROPES}
COMMON |= {"model_type": "gemma4_text", "final_logit_softcapping": 30.0}
E2B: dict[str, Any] = COMMON | {
    "hidden_size": 1536,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "layer_types": (SLIDES * 4 + ["full_attention"]) * 7,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "num_global_key_value_heads": None,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "sliding_window": 512,
    "max_position_embeddings": 131072,
}
A4B: dict[str, Any] = COMMON | {
    "hidden_size": 2816,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 2112,
    "num_hidden_layers": 30,
    "layer_types": (SLIDES * 5 + ["full_attention"]) * 5,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "use_bidirectional_attention": "vision",
    "num_kv_shared_layers": 0,
    "enable_moe_block": True,
    "num_experts": 128,
    "moe_intermediate_size": 704,
    "top_k_experts": 8,
    "sliding_window": 1024,
    "max_position_embeddings": 262144,
}


def _spec(config: dict[str, Any], **changes: Any) -> ModelSpec:
    config = config | changes
    return architecture(config).spec(config)


@pytest.mark.parametrize(
    ("config", "published", "again"),
    # A norm that all layers share is stored for each, and a factor a layer, which is no parameter there.
    [(E2B, 4_628_569_344, 34 * 256 + 35), (A4B, 25_233_141_760, 30)],
)
def test_published_sizes_have_the_published_number_of_parameters(
    config: dict[str, Any], published: int, again: int
) -> None:
    spec = _spec(config)
    assert sum(prod(shape) for shape in spec.tensors().values()) == published + again
    assert architecture(config).weights(spec, config).keys() == spec.tensors().keys()
    whole = {"model_type": "gemma4", "text_config": config, "vision_config": {}, "audio_config": None}
    assert replace(architecture(whole).spec(whole), architecture=spec.architecture) == spec


def test_what_a_config_leaves_out_is_what_transformers_assumes() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    theirs, spec = transformers.Gemma4TextConfig(), _spec({"model_type": "gemma4_text"})
    sizes = (spec.vocab_size, spec.hidden_size, spec.n_layers, spec.context_length, spec.norm_eps, spec.tied)
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings", "rms_norm_eps")
    assert sizes == (*(getattr(theirs, name) for name in names), theirs.tie_word_embeddings)
    assert not spec.shared
    assert {len(part) for part in spec.lookups.values()} == {theirs.hidden_size_per_layer_input}
    for b, block in spec.attention.items():
        layer = theirs.per_layer_config[spec.layer_of(b)]
        assert (block.head_dim, block.n_kv_heads) == (layer.head_dim, layer.num_key_value_heads)
        slides = theirs.layer_types[spec.layer_of(b)] == "sliding_attention"
        assert (block.window, block.rope) == ((theirs.sliding_window, 1) if slides else (None, 0))


def test_the_last_layers_read_the_last_of_their_kind_that_have_slots() -> None:
    spec = _spec(E2B)
    owners = {spec.layer_of(b): spec.layer_of(block.slots_of) for b, block in spec.shared.items()}
    assert owners == {i: 14 if i % 5 == 4 else 13 for i in range(15, 35)}
    assert len(spec.attention) == 15
    assert {block.head_dim for block in spec.attention.values()} == {256, 512}
    assert spec.tensors()["lookup"] == (262144, 35 * 256)
    assert np.count_nonzero(spec.ropes[0].inv_freq) == 64
    assert len(spec.ropes[0].inv_freq) == 256


def test_the_embeddings_of_layers_are_the_mean_of_two_of_one_size() -> None:
    """Of E2B: 256 values a layer, the state's 1536 in the projection; the sum of both is divided by sqrt(2)."""
    spec = _spec(E2B)
    weights = architecture(E2B).weights(spec, E2B)
    (table,), first = weights["lookup"], min(spec.lookups)
    assert table.times == pytest.approx(16 * 0.70710678)
    assert [part.times for part in weights[f"blocks.{first}.context_norm"]] == pytest.approx([0.70710678])
    assert [part.times for part in weights[f"blocks.{first}.context"]] == pytest.approx([1536**-0.5])
    assert [part.rows for part in weights[f"blocks.{max(spec.lookups)}.context"]] == [(34 * 256, 35 * 256)]


def test_a_feed_forward_and_experts_are_normed_as_one_sum() -> None:
    _, mlp, moe = _spec(A4B).layers[0]
    assert mlp.branch
    assert isinstance(moe, Moe)
    assert (moe.joined, moe.router_norm, moe.expert_scale, moe.state_scale) == ("rms", True, True, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is set: an embedding model"),
        ({"vocab_size_per_layer_input": 9}, "vocab_size_per_layer_input is not vocab_size"),
        ({"num_kv_shared_layers": 35}, "num_kv_shared_layers leaves no layer whose keys and values layer 0"),
        ({"per_layer_config": {"4": {"sliding_window": 3}}}, "per_layer_config has other sizes"),
        (A4B | {"hidden_size_per_layer_input": 8}, "embeddings of layers beside experts are not supported"),
        ({"altup_num_inputs": 4}, "altup_num_inputs is not known"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _spec(E2B, **changes)


SHARED = MODELS["shared slots"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots_of": 1}, "block 1 is no attention block before it"),
        ({"slots_of": 8}, "block 8 is no attention block before it"),
        ({"head_dim": 48}, "head_dim: not as in block 0"),
        ({"window": None}, "window: not as in block 0"),
    ],
)
def test_slots_of_other_heads_are_refused(changes: dict[str, Any], message: str) -> None:
    block = replace(SHARED.shared[6], **changes)
    layers = (*SHARED.layers[:2], (block, SHARED.blocks[7]), SHARED.layers[3])
    with pytest.raises(BundleCorrupt, match=message):
        replace(SHARED, layers=layers).check()


def _runtime(name: str) -> Reference:
    spec = MODELS[name].check()
    weights = random_weights(spec)
    return Reference(spec, lambda name, start, stop: weights[name][start:stop])


def test_a_block_runs_after_the_one_whose_slots_it_reads() -> None:
    """In one call or in two; not without it."""
    runtime, rows = _runtime("shared slots"), Rows.chain([5, 6, 7], 0)
    n, cache = runtime.spec.n_blocks, runtime.new_cache(8)
    whole = forward_one(runtime, Call(rows, runtime.new_cache(8), outputs=Outputs(logits=True))).logits
    states = forward_one(runtime, Call(rows, cache, range(5), outputs=Outputs(hidden=(4,)))).hidden[4]
    rest = forward_one(runtime, Call(rows, cache, range(5, n), states, Outputs(logits=True))).logits
    np.testing.assert_array_equal(rest, whole)
    with pytest.raises(UsageError, match="run block 0 on them first"):
        forward_one(runtime, Call(rows, runtime.new_cache(8), range(5, n), states))


def test_rows_without_tokens_and_cut_sums_are_refused() -> None:
    runtime = _runtime("shared slots")
    rows = Rows.embedded(np.zeros((2, runtime.spec.hidden_size), np.float32), 0)
    with pytest.raises(UsageError, match="embeddings of layers, which tokens name"):
        forward_one(runtime, Call(rows, runtime.new_cache(8)))
    runtime = _runtime("experts beside a feed-forward")
    with pytest.raises(UsageError, match="block 1 without the one beside it"):
        forward_one(runtime, Call(Rows.chain([1], 0), runtime.new_cache(8), (0, 1)))


def test_a_token_has_values_of_its_own_in_each_layer() -> None:
    weights = random_weights(SHARED)
    spec = SHARED
    plain = Reference(spec, lambda name, start, stop: weights[name][start:stop])
    for part in spec.lookups.values():
        other = weights["lookup"].copy()
        other[6, part.start : part.stop] += 1
        changed = Reference(spec, lambda n, i, j, other=other: (other if n == "lookup" else weights[n])[i:j])
        for token, moves in ((6, True), (7, False)):
            rows = Rows.chain([token], 0)
            a, b = (
                forward_one(r, Call(rows, r.new_cache(4), outputs=Outputs(logits=True))).logits
                for r in (plain, changed)
            )
            assert bool(np.abs(a - b).max() > 1e-4) == moves
    assert [block.size for block in spec.blocks if isinstance(block, Lookup)] == [24, 12, 24]


@pytest.mark.parametrize("config", [E2B, A4B])
def test_a_config_without_ropes_has_the_published_ones(config: dict[str, Any]) -> None:
    silent = {key: value for key, value in config.items() if key != "rope_parameters"}
    model = architecture(config)
    assert model.spec(silent, 64) == model.spec(config, 64)
