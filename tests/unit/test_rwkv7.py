"""RWKV-7: published sizes, the value of the first layer for later ones, drafts and long paths, and what is refused by
name."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import KINDS, random_weights, write_bundle

from edgedec.errors import BundleCorrupt, CheckpointError, EdgedecError, UsageError
from edgedec.kernels.cpu import loader
from edgedec.models import architecture
from edgedec.runtime import (
    Call,
    Outputs,
    Rows,
    RuntimeOptions,
    forward_one,
    lacking_kinds,
    logits_of,
    open_runtime,
    unavailable_reason,
)
from edgedec.spec import ChannelMix, ModelSpec, Rwkv7

ENGINES = ("reference", *(["native"] if loader.why_not() is None else []))
SPEC = KINDS["time and channel mixing"]
# Of the model of 0.19 B, as published.
SMALL: dict[str, Any] = {
    "model_type": "rwkv7",
    "architectures": ["RWKV7ForCausalLM"],
    "attn": None,
    "attn_mode": "chunk",
    "a_low_rank_dim": 64,
    "decay_low_rank_dim": 64,
    "gate_low_rank_dim": 128,
    "v_low_rank_dim": 32,
    "fuse_cross_entropy": True,
    "fuse_norm": False,
    "head_dim": 64,
    "hidden_act": "sqrelu",
    "hidden_ratio": 4.0,
    "hidden_size": 768,
    "initializer_range": 0.006,
    "intermediate_size": 3072,
    "max_position_embeddings": 2048,
    "norm_bias": True,
    "norm_eps": 1e-05,
    "norm_first": True,
    "num_heads": 12,
    "num_hidden_layers": 12,
    "tie_word_embeddings": False,
    "use_cache": True,
    "value_dim": [768] * 12,
    "vocab_size": 65536,
}


def _spec(**changes: Any) -> ModelSpec:
    config = {key: value for key, value in (SMALL | changes).items() if value != "absent"}
    return architecture(config).spec(config)


def test_the_published_sizes() -> None:
    spec = _spec()
    assert sum(prod(shape) for shape in spec.tensors().values()) == 191034624
    assert [block.values_of for block in spec.blocks if isinstance(block, Rwkv7)] == [None] + [0] * 11
    assert spec.context_length > 100_000, "it has no positions"
    assert {block.eps for block in spec.blocks if isinstance(block, Rwkv7)} == {64e-5}


def test_a_silent_config_has_the_usual_sizes() -> None:
    silent = ("a_low_rank_dim", "decay_low_rank_dim", "gate_low_rank_dim", "value_dim", "head_dim", "num_heads")
    absent = dict.fromkeys(
        (*silent, "norm_eps", "norm_first", "hidden_act", "intermediate_size", "norm_bias"), "absent"
    )
    assert _spec(**absent) == _spec()
    assert _spec(v_low_rank_dim="absent") == _spec(v_low_rank_dim=16)
    assert _spec(head_dim=None) == _spec(num_heads=None) == _spec()
    narrow = _spec(hidden_ratio=3.51, intermediate_size=None)
    assert {block.inner_size for block in narrow.blocks if isinstance(block, ChannelMix)} == {2720}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn": {"layers": [1], "num_heads": 4}}, "attn is .*; supported is None only"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; supported is 'sqrelu' only"),
        ({"norm_bias": False}, "norm_bias is False"),
        ({"head_dim": 60}, "head_dim 60 with num_heads 12 does not divide hidden_size 768"),
        ({"num_heads": 6}, "head_dim 64 with num_heads 6"),
        ({"value_dim": [768] * 11}, "value_dim .* is not one multiple of 12 heads for each of 12 layers"),
        ({"value_dim": [768] * 11 + [1536]}, "value_dim"),
        ({"value_dim": 770}, "value_dim 770"),
        ({"rope_theta": 1e4}, "rope_theta is not known"),
    ],
)
def test_other_configs_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _spec(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values_of": 1}, "block 1 is no rwkv7 block before it with as many values"),
        ({"values_of": 4}, "block 4 is no rwkv7 block"),
        ({"values_of": -1}, "block -1 is no rwkv7 block"),
        ({"head_dim": 12}, "block 0 is no rwkv7 block before it with as many values"),
        ({"width": 60}, "width: 60, not the 48 of hidden_size"),
        ({"value_rank": 0}, "value_rank: 0 is out of range"),
        ({"eps": 0.0}, "eps: 0.0 is out of range"),
    ],
)
def test_blocks_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    (block, moe), others = SPEC.layers[2], SPEC.layers
    with pytest.raises(BundleCorrupt, match=message):
        replace(SPEC, layers=(*others[:2], (replace(block, **changes), moe), *others[3:])).check()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_block_runs_after_the_one_whose_values_it_reads(engine: str, tmp_path: Path) -> None:
    """In one call or in two; not without it, nor on other rows."""
    bundle = write_bundle(tmp_path / "b", SPEC, random_weights(SPEC, 1), "f32", block=32)
    runtime, n = open_runtime(engine, bundle, RuntimeOptions(threads=1, kv="f32")), SPEC.n_blocks
    cache, whole = runtime.new_cache(16), runtime.new_cache(16)
    for each in (cache, whole):
        logits_of(runtime, Rows.chain([9, 9], 0), each)
        each.commit([0, 1])
    rows = Rows.tree([5, 6, 7], [-1, 0, 0], 2)
    states = forward_one(runtime, Call(rows, cache, range(3), outputs=Outputs(hidden=(2,)))).hidden[2]
    found = forward_one(runtime, Call(rows, cache, range(3, n), states, Outputs(logits=True))).logits
    np.testing.assert_array_equal(found, logits_of(runtime, rows, whole))
    with pytest.raises(EdgedecError, match=r"run block 0 on them first|was not run on these rows"):
        forward_one(runtime, Call(rows, runtime.new_cache(16), range(3, n), states))
    fewer = rows.select([0, 2])
    with pytest.raises(UsageError):
        forward_one(runtime, Call(fewer, cache, range(3, n), states[:2]))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_value_of_a_row_is_that_of_its_own_text(engine: str, tmp_path: Path) -> None:
    """Rows of two texts in one call, after a saved state, and after any chunks: those of each text alone."""
    bundle = write_bundle(tmp_path / "b", SPEC, random_weights(SPEC, 2), "int8", block=32)
    runtime = open_runtime(engine, bundle, RuntimeOptions(threads=1, kv="f32"))
    texts = ([5, 6, 7, 8, 9, 10, 11], [30, 2, 2, 17, 4, 41, 8])
    alone = [logits_of(runtime, Rows.chain(text, 0), runtime.new_cache(16)) for text in texts]
    caches = [runtime.new_cache(16) for _ in texts]
    found: list[list[np.ndarray]] = [[], []]
    for start, stop in ((0, 1), (1, 4), (4, 7)):
        calls = [
            Call(Rows.chain(text[start:stop], start), cache, outputs=Outputs(logits=True))
            for text, cache in zip(texts, caches, strict=True)
        ]
        for i, result in enumerate(runtime.forward(calls)):
            found[i].append(result.logits)
        for i, cache in enumerate(caches):
            cache.commit(range(stop - start))
            loaded = runtime.new_cache(16)
            loaded.load({name: array.copy() for name, array in cache.save().items()})
            caches[i] = loaded.fork()
    for whole, parts in zip(alone, found, strict=True):
        np.testing.assert_allclose(np.concatenate(parts), whole, atol=0 if engine == "native" else 1e-5)


def test_engines_without_the_blocks_refuse_them(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "b", SPEC, random_weights(SPEC, 1), "f32", block=32)
    for engine in ("cuda", "opencl", "ort", "tvm"):
        reason = unavailable_reason(engine, bundle)
        assert reason is not None
        assert "\n" not in reason
    kinds = tuple(kind for kind in SPEC.kinds if kind not in ("rwkv7", "channel_mix"))
    found = lacking_kinds(bundle, kinds)
    assert found is not None
    assert "channel_mix" in found
    assert lacking_kinds(bundle, (*kinds, "channel_mix")) == "has no rwkv7 blocks, which this model needs"
    assert lacking_kinds(bundle, SPEC.kinds) is None
