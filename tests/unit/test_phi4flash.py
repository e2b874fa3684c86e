"""Phi-4-mini-flash: published sizes, memories and slots of other layers, any chunks, and what is refused by name."""

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
from edgedec.spec import S6, Attention, Gmu, ModelSpec, SharedAttention

ENGINES = ("reference", *(["native"] if loader.why_not() is None else []))
SPEC = KINDS["memory units"]
# As published.
MINI: dict[str, Any] = {
    "model_type": "phi4flash",
    "architectures": ["Phi4FlashForCausalLM"],
    "attention_dropout": 0.0,
    "embd_pdrop": 0.0,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "initializer_range": 0.02,
    "intermediate_size": 10240,
    "layer_norm_eps": 1e-5,
    "lm_head_bias": False,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_dt_rank": 160,
    "mamba_expand": 2,
    "mamba_proj_bias": False,
    "max_position_embeddings": 262144,
    "mb_per_layer": 2,
    "mlp_bias": False,
    "num_attention_heads": 40,
    "num_hidden_layers": 32,
    "num_key_value_heads": 20,
    "resid_pdrop": 0.0,
    "rope_theta": 10000.0,
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 200064,
}


def _spec(**changes: Any) -> ModelSpec:
    config = {key: value for key, value in (MINI | changes).items() if value != "absent"}
    return architecture(config).spec(config)


def test_the_published_sizes() -> None:
    """3.8 billion parameters; eight windows of 512, and one cache of the whole text, which seven layers read."""
    spec = _spec()
    assert 3.8e9 < sum(prod(shape) for shape in spec.tensors().values()) < 3.9e9
    kinds = [layer[0].kind for layer in spec.layers]
    assert kinds == ["s6", "attention"] * 9 + ["gmu", "shared_attention"] * 7
    assert [block.window for block in spec.attention.values()] == [512] * 8 + [None]
    assert {block.slots_of for block in spec.shared.values()} == {list(spec.attention)[-1]} == {34}
    assert {b.values_of for b in spec.blocks if isinstance(b, Gmu)} == {list(spec.recurrent)[-1]} == {32}
    assert {(b.n_heads, b.n_kv_heads, b.head_dim, b.scale) for b in spec.attention.values()} == {(40, 10, 128, 0.125)}
    layers = [b for b in spec.blocks if isinstance(b, Attention | SharedAttention)]
    assert [b.differential for b in layers] == [0.8 - 0.6 * np.exp(-0.3 * i) for i in range(1, 32, 2)]


def test_what_a_config_leaves_out() -> None:
    """The sizes that its authors' code has for a silent config; a list of windows is what that code makes of one."""
    silent = ("hidden_act", "lm_head_bias", "mamba_conv_bias", "mamba_d_conv", "mamba_d_state", "mamba_dt_rank")
    more = ("mamba_expand", "mamba_proj_bias", "mb_per_layer", "mlp_bias", "layer_norm_eps", "tie_word_embeddings")
    assert _spec(**dict.fromkeys((*silent, *more), "absent")) == _spec()
    assert _spec(sliding_window=[None, 512] * 8 + [None] * 16) == _spec()
    assert _spec(sliding_window="absent") == _spec(sliding_window=2047)
    assert _spec(num_key_value_heads=None) == _spec(num_key_value_heads=40)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_norm_eps": 1e-6}, "layer_norm_eps is 1e-06; the norms of pairs of heads have 1e-05 always"),
        ({"mb_per_layer": 3}, "mb_per_layer is 3; supported is 2 only"),
        ({"num_hidden_layers": 30}, "num_hidden_layers is 30; of these models it is a multiple of 4"),
        ({"num_hidden_layers": 4}, "num_hidden_layers is 4; of these models it is a multiple of 4, of at least 8"),
        ({"num_key_value_heads": 5}, "num_key_value_heads 5 of 40 heads are not pairs"),
        ({"num_key_value_heads": 12}, "40 heads do not share 6 kv heads evenly"),
        ({"num_key_value_heads": 16}, "heads of 128 values, or an odd number for a kv head"),
        ({"sliding_window": [512] * 31}, "sliding_window must be a whole number of at least 1, or of each layer"),
        ({"sliding_window": [None, 0] * 8 + [None] * 16}, "sliding_window must be a whole number"),
        ({"sliding_window": [None, 512] * 16}, "sliding_window is set for layer 17, which has none"),
        ({"mamba_conv_bias": False}, "mamba_conv_bias is false"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported by Mamba blocks"),
        ({"num_experts": 4}, "num_experts is set: this architecture has no experts"),
    ],
)
def test_other_configs_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _spec(**changes)


@pytest.mark.parametrize(
    ("block", "changes", "message"),
    [
        (8, {"values_of": 2}, "block 2 is no s6 block before it with as many channels"),
        (8, {"values_of": 12}, "block 12 is no s6 block"),
        (8, {"values_of": -1}, "values_of: -1 is out of range"),
        (8, {"inner_size": 56}, "block 4 is no s6 block before it with as many channels"),
        (2, {"differential": 1.0}, "differential: 1.0 is out of range"),
        (2, {"n_heads": 6}, "an odd number for a kv head"),
        (2, {"head_dim": 21}, "heads of 21 values"),
        (2, {"qk_norm": "head"}, "qk_norm: beside differential attention"),
        (2, {"gate": "head"}, "gate: beside differential attention"),
        (2, {"sink_logit": True}, "sink_logit: beside differential attention"),
        (10, {"differential": -0.1}, "differential: -0.1 is out of range"),
    ],
)
def test_blocks_that_cannot_be_are_refused(block: int, changes: dict[str, Any], message: str) -> None:
    layers = tuple(
        tuple(replace(each, **changes) if each is SPEC.blocks[block] else each for each in layer)
        for layer in SPEC.layers
    )
    with pytest.raises(BundleCorrupt, match=message):
        replace(SPEC, layers=layers).check()


@pytest.mark.parametrize("engine", ENGINES)
def test_units_run_after_the_block_whose_outputs_they_read(engine: str, tmp_path: Path) -> None:
    """In one call or in two, of a tree too; not without it, nor on other rows."""
    bundle = write_bundle(tmp_path / "b", SPEC, random_weights(SPEC, 1), "f32", block=32)
    runtime, n = open_runtime(engine, bundle, RuntimeOptions(threads=1, kv="f32")), SPEC.n_blocks
    cache, whole = runtime.new_cache(16), runtime.new_cache(16)
    for each in (cache, whole):
        logits_of(runtime, Rows.chain([9, 9], 0), each)
        each.commit([0, 1])
    rows, cut = Rows.tree([5, 6, 7], [-1, 0, 0], 2), 8
    states = forward_one(runtime, Call(rows, cache, range(cut), outputs=Outputs(hidden=(cut - 1,)))).hidden[cut - 1]
    found = forward_one(runtime, Call(rows, cache, range(cut, n), states, Outputs(logits=True))).logits
    np.testing.assert_array_equal(found, logits_of(runtime, rows, whole))
    with pytest.raises(EdgedecError, match=r"run block 4 on them first|was not run on these rows"):
        forward_one(runtime, Call(rows, runtime.new_cache(16), range(cut, n), states))
    with pytest.raises(EdgedecError):
        forward_one(runtime, Call(rows.select([0, 2]), cache, range(cut, n), states[:2]))


@pytest.mark.parametrize("engine", ENGINES)
def test_memories_and_slots_of_a_row_are_those_of_its_own_text(engine: str, tmp_path: Path) -> None:
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
        np.testing.assert_allclose(np.concatenate(parts), whole, atol=0 if engine == "native" else 2e-4)


def test_an_engine_shows_the_queries_that_it_scores(tmp_path: Path) -> None:
    """Those of a pair are zero in the half of a key that the other head scores."""
    bundle = write_bundle(tmp_path / "b", SPEC, random_weights(SPEC, 1), "f32", block=32)
    rows, found = Rows.chain([5, 6, 7], 0), []
    for engine in ENGINES:
        runtime = open_runtime(engine, bundle, RuntimeOptions(threads=1, kv="f32"))
        found.append(forward_one(runtime, Call(rows, runtime.new_cache(8), outputs=Outputs(queries=(2,)))).queries[2])
    halves = found[0].reshape(3, 4, 2, 2, 10)  # pair, head of it, half of the key
    assert not halves[:, :, 0, 1].any()
    assert not halves[:, :, 1, 0].any()
    assert halves[:, :, 0, 0].any(axis=-1).all()
    assert halves[:, :, 1, 1].any(axis=-1).all()
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-4)


def test_a_state_space_that_no_block_reads_keeps_no_outputs(tmp_path: Path) -> None:
    """The last inputs of its rows and its state are all that a cache has of it, whether it is read or not."""
    alone = tuple(layer for layer in SPEC.layers if not isinstance(layer[0], Gmu | SharedAttention))
    caches = []
    for name, spec in (("read", SPEC), ("alone", replace(SPEC, layers=alone))):
        bundle = write_bundle(tmp_path / name, spec, random_weights(spec, 1), "f32", block=32)
        runtime = open_runtime("reference", bundle, RuntimeOptions(threads=1, kv="f32"))
        cache = runtime.new_cache(8)
        logits_of(runtime, Rows.chain([5, 6, 7], 0), cache)
        cache.commit(range(3))
        caches.append(cache.save())
    assert {name: array.shape for name, array in caches[0].items()} == {n: a.shape for n, a in caches[1].items()}
    assert sum(isinstance(block, S6) for block in SPEC.blocks) == 2


def test_engines_without_the_blocks_refuse_them(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "b", SPEC, random_weights(SPEC, 1), "f32", block=32)
    for engine in ("cuda", "opencl", "ort", "tvm"):
        reason = unavailable_reason(engine, bundle)
        assert reason is not None
        assert "\n" not in reason
    kinds = tuple(kind for kind in SPEC.kinds if kind != "gmu")
    assert lacking_kinds(bundle, kinds) == "has no gmu blocks, which this model needs"
    assert lacking_kinds(bundle, SPEC.kinds, facts=()) == "has no differential attention, which this model needs"


def test_tools_that_know_attention_by_its_matrices_leave_pairs_alone() -> None:
    """A norm is between the values and the last matrix: neither factors of channels nor other heads pass it."""
    pytest.importorskip("torch", reason="heads are combined with torch")
    from edgedec.export.kv_heads import check_heads
    from edgedec.export.passes.awq import groups

    block = replace(SPEC.attention[2], norm="rms")
    spec = replace(SPEC, layers=((block, SPEC.blocks[3]),))
    assert [group.matrices for group in groups(spec, 0)] == [("blocks.0.qkv",)]
    single = replace(block, differential=0.0)
    assert len(list(groups(replace(spec, layers=((single, SPEC.blocks[3]),)), 0))) == 2
    with pytest.raises(UsageError, match="--kv-heads: the model has differential attention"):
        check_heads(spec, 0.5)
