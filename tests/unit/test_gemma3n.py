"""Gemma 3n: published sizes, streams beside the state, sparse gates, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from edgedec.bundle import Bundle
from edgedec.errors import BundleCorrupt, CheckpointError, UsageError
from edgedec.kernels.cpu import loader
from edgedec.models import architecture
from edgedec.runtime import Call, Outputs, Rows, Runtime, RuntimeOptions, forward_one
from edgedec.runtime.checks import check_one_stream
from edgedec.runtimes import native
from edgedec.runtimes.ort import KINDS as ORT
from edgedec.runtimes.reference import Reference
from edgedec.runtimes.reference.mlp import cut_off
from edgedec.spec import AltUp, Laurel, Lookup, Mlp, ModelSpec
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

SLIDES = ["sliding_attention"]
E2B: dict[str, Any] = {
    "model_type": "gemma3n_text",
    "vocab_size": 262400,
    "vocab_size_per_layer_input": 262144,
    "hidden_size": 2048,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": [8192] * 30,
    "num_hidden_layers": 30,
    "layer_types": (SLIDES * 4 + ["full_attention"]) * 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "num_kv_shared_layers": 10,
    "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 20,
    "laurel_rank": 64,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "sliding_window": 512,
    "max_position_embeddings": 32768,
    "altup_coef_clip": 120.0,
    "altup_lr_multiplier": 1.0,
    "query_pre_attn_scalar": 256,
}
STREAMS = MODELS["streams"]


def _spec(config: dict[str, Any] = E2B, **changes: Any) -> ModelSpec:
    config = config | changes
    return architecture(config).spec(config)


def test_every_tensor_of_the_published_sizes_has_a_source_and_the_wrapper_is_the_text_model() -> None:
    spec, model = _spec(), architecture(E2B)
    weights = model.weights(spec, E2B)
    assert weights.keys() == spec.tensors().keys()
    assert prod(spec.tensors()["lookup"]) == 262400 * 30 * 256
    whole = {"model_type": "gemma3n", "text_config": E2B, "vision_config": {}, "audio_config": {}}
    wrapper = architecture(whole)
    assert replace(wrapper.spec(whole), architecture=spec.architecture) == spec
    renamed = {name: tuple(part.name for part in source) for name, source in wrapper.weights(spec, whole).items()}
    for name, source in weights.items():
        inner = tuple(part.name.replace("model.", "model.language_model.", 1) for part in source)
        assert renamed[name] == inner, name


def test_tokens_that_the_table_of_layers_lacks_read_its_first_row() -> None:
    source = architecture(E2B).weights(_spec(), E2B)["lookup"]
    assert [part.rows for part in source] == [(0, 262144), *[(0, 1)] * 256]
    fewer = E2B | {"vocab_size": 1000}
    assert [part.rows for part in architecture(fewer).weights(_spec(fewer), fewer)["lookup"]] == [(0, 1000)]


def test_what_a_config_leaves_out_is_what_transformers_assumes() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    theirs, spec = transformers.Gemma3nTextConfig(), _spec({"model_type": "gemma3n_text"})
    sizes = (spec.vocab_size, spec.hidden_size, spec.n_layers, spec.context_length, spec.norm_eps, spec.tied)
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings", "rms_norm_eps")
    assert sizes == (*(getattr(theirs, name) for name in names), theirs.tie_word_embeddings)
    assert spec.final_softcap == theirs.final_logit_softcapping
    mlps = [block for block in spec.blocks if isinstance(block, Mlp)]
    assert [block.inner_size for block in mlps] == theirs.intermediate_size
    assert [block.sparsity for block in mlps] == theirs.activation_sparsity_pattern
    assert {block.rank for block in spec.blocks if isinstance(block, Laurel)} == {theirs.laurel_rank}
    looked = [block for block in spec.blocks if isinstance(block, Lookup)]
    assert {(block.size, block.input_scale) for block in looked} == {(theirs.hidden_size_per_layer_input, True)}
    updates = [block for block in spec.altups.values() if block.routed]
    assert {(block.streams, block.active) for block in updates} == {(theirs.altup_num_inputs, theirs.altup_active_idx)}
    own = theirs.num_hidden_layers - theirs.num_kv_shared_layers
    assert (len(spec.attention), len(spec.shared)) == (own, theirs.num_kv_shared_layers)
    for b, block in (spec.attention | spec.shared).items():
        slides = theirs.layer_types[spec.layer_of(b)] == "sliding_attention"
        assert (block.window, block.rope) == ((theirs.sliding_window, 1) if slides else (None, 0))


def test_the_last_layers_read_the_last_of_their_kind_that_have_slots() -> None:
    spec = _spec()
    owners = {spec.layer_of(b): spec.layer_of(block.slots_of) for b, block in spec.shared.items()}
    assert owners == {i: 19 if i % 5 == 4 else 18 for i in range(20, 30)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"altup_active_idx": 4}, "active: 4 of 4 streams"),
        ({"altup_num_inputs": 1}, "altup_num_inputs must be a whole number of at least 2"),
        ({"intermediate_size": [8192] * 29}, "intermediate_size has 29 values for 30 layers"),
        ({"activation_sparsity_pattern": [0.9]}, "activation_sparsity_pattern has 1 values for 30 layers"),
        ({"activation_sparsity_pattern": [1.0] * 30}, "sparsity: 1.0 is out of range"),
        ({"num_kv_shared_layers": 30}, "num_kv_shared_layers leaves no layer"),
        ({"router_jitter": 4}, "router_jitter is not known"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _spec(**changes)


def test_gates_below_the_quantile_are_cut_off() -> None:
    np.testing.assert_allclose(cut_off(np.array([[1, 1, 1, 5]], np.float32), 1.0), [[0, 0, 0, 3 - 3**0.5]], rtol=1e-6)
    gates = np.random.default_rng(0).standard_normal((3, 20000), np.float32) * 2 + 1
    kept = cut_off(gates, Mlp(4, sparsity=0.95).cutoff) > 0
    np.testing.assert_allclose(kept.mean(axis=1), 0.05, atol=0.005)
    assert Mlp(4, sparsity=0.95).cutoff == NormalDist().inv_cdf(0.95)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (("predict", "correct", "leave"), "enter, predict and correct in turn, and leave"),
        (("enter", "correct", "predict", "leave"), "in turn"),
        (("enter", "predict", "correct"), "in turn"),
    ],
)
def test_streams_in_another_order_are_refused(steps: tuple[Any, ...], message: str) -> None:
    layers = ((*(AltUp(step, 3) for step in steps), Mlp(32)),)
    with pytest.raises(BundleCorrupt, match=message):
        replace(STREAMS, layers=layers).check()


def test_a_lookup_outside_streams_and_other_numbers_of_them_are_refused() -> None:
    first, *rest = STREAMS.layers
    with pytest.raises(BundleCorrupt, match=r"blocks\[0\].streams: the state has none here"):
        replace(STREAMS, layers=((Lookup(12, streams=True), *first), *rest)).check()
    with pytest.raises(BundleCorrupt, match=r"streams: 3, not 2"):
        replace(STREAMS, layers=((AltUp("enter", 2), *first[1:]), *rest)).check()


def _runtimes(tmp_path: Any) -> list[Runtime]:
    weights = random_weights(STREAMS)
    bundle: Bundle = write_bundle(tmp_path / "bundle", STREAMS, weights)
    found: list[Runtime] = [Reference(STREAMS, lambda name, start, stop: weights[name][start:stop])]
    if loader.why_not() is None:
        found.append(native.open(bundle, RuntimeOptions(kv="f32", threads=1)))
    return found


def test_rows_of_hidden_states_have_streams_inside_and_the_head_reads_their_state(tmp_path: Any) -> None:
    leave, rows = max(STREAMS.altups), Rows.chain([5, 6, 7], 0)
    widths = {-1: 64, 0: 4 * 64, 4: 4 * 64, leave - 1: 4 * 64, leave: 64, STREAMS.n_blocks - 1: 64}
    assert {b: STREAMS.width(b) for b in widths} == widths
    for runtime in _runtimes(tmp_path):
        wanted = Outputs(hidden=tuple(widths))
        states = forward_one(runtime, Call(rows, runtime.new_cache(8), outputs=wanted)).hidden
        assert {b: rows.shape for b, rows in states.items()} == {b: (3, width) for b, width in widths.items()}
        heads = []
        for given in (states[4], states[4][:, :64]):
            call = Call(rows, runtime.new_cache(8), (), np.ascontiguousarray(given), Outputs(logits=True))
            heads.append(forward_one(runtime, call).logits)
        np.testing.assert_array_equal(*heads)
        with pytest.raises(UsageError, match=r"hidden \[3, 64\]: expected \[3, 256\]"):
            forward_one(runtime, Call(rows, runtime.new_cache(8), range(5, STREAMS.n_blocks), states[4][:, :64]))
        # All streams carry something: any of them changes what comes after.
        after = range(5, STREAMS.n_blocks)
        wanted = Outputs(logits=True)
        expected = forward_one(runtime, Call(rows, runtime.new_cache(8), after, states[4], wanted)).logits
        for stream in range(4):
            other = states[4].copy()
            other[:, stream * 64 : (stream + 1) * 64] += np.linspace(-1, 1, 64, dtype=np.float32)
            found = forward_one(runtime, Call(rows, runtime.new_cache(8), after, other, wanted)).logits
            assert np.abs(found - expected).max() > 1e-3, stream


def test_a_lookup_changes_streams_and_neither_the_state_nor_the_rows_that_were_given(tmp_path: Any) -> None:
    (lookup, _), *_ = STREAMS.lookups.items()
    rows = Rows.chain([5], 0)
    for runtime in _runtimes(tmp_path):
        cache, wanted = runtime.new_cache(8), Outputs(hidden=(lookup - 1,))
        given = forward_one(runtime, Call(rows, cache, range(lookup), outputs=wanted)).hidden[lookup - 1]
        before = given.copy()
        call = Call(rows, cache, (lookup,), given, Outputs(hidden=(lookup,)))
        after = forward_one(runtime, call).hidden[lookup]
        np.testing.assert_array_equal(given, before)
        changed = np.abs(after - before).reshape(4, 64).max(axis=1) > 1e-3
        assert changed.tolist() == [False, False, True, True], runtime.name


def test_a_projection_of_nothing_stays_small(tmp_path: Any) -> None:
    """What is as small as 1e-5 in the mean square is not made as large as the embedding."""
    weights = random_weights(STREAMS)
    names = [name for name in weights if ".projection_" in name and name.startswith("blocks.0.")]
    tiny = weights | {name: weights[name] * np.float32(1e-4) for name in names}
    bundle = write_bundle(tmp_path / "bundle", STREAMS, tiny)
    runtimes: list[Runtime] = [Reference(STREAMS, lambda name, start, stop: tiny[name][start:stop])]
    if loader.why_not() is None:
        runtimes.append(native.open(bundle, RuntimeOptions(kv="f32", threads=1)))
    for runtime in runtimes:
        rows = Rows.chain([5, 6, 7], 0)
        state = forward_one(runtime, Call(rows, runtime.new_cache(8), (0,), outputs=Outputs(hidden=(0,)))).hidden[0]
        x, first, *others = state.reshape(3, 4, 64).transpose(1, 0, 2)
        np.testing.assert_array_equal(first, x)
        for name, stream in zip(names, others, strict=True):
            made = x @ tiny[name].T
            by = np.sqrt(np.square(x).mean(1, keepdims=True)) / np.sqrt(1e-5)
            assert np.square(made).mean() < 1e-5
            np.testing.assert_allclose(stream, made * by, rtol=1e-3, atol=1e-6)


def test_what_reads_states_of_the_usual_width_refuses_streams_in_one_line() -> None:
    check_one_stream(STREAMS, (-1, max(STREAMS.altups)), "drafter eagle")
    with pytest.raises(UsageError, match=r"^drafter eagle: the state after block 4 of streams has streams beside it; "):
        check_one_stream(STREAMS, (4,), "drafter eagle")


def test_graphs_of_onnx_have_no_streams() -> None:
    assert not {"altup", "laurel", "lookup"} & set(ORT)
