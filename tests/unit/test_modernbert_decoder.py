"""ModernBERT's decoders: published sizes, the layer before the head, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BadTensor, BundleCorrupt, CheckpointError, UsageError
from edgedec.kernels.cpu import loader
from edgedec.models import Part, architecture
from edgedec.runtime import Call, Outputs, Rows, Runtime, RuntimeOptions, forward_one
from edgedec.runtime.checks import check_bare_head
from edgedec.runtimes import native
from edgedec.runtimes.reference import Reference
from edgedec.spec import Attention, HeadLayer, ModelSpec, Output
from edgedec.spec.newer import HEAD_LAYER, newer
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

ETTIN: dict[str, Any] = {  # ettin-decoder-17m
    "model_type": "modernbert-decoder",
    "vocab_size": 50368,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "max_position_embeddings": 7999,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 160000.0,
    "local_attention": 128,
    "tie_word_embeddings": True,
    "decoder_bias": True,
    "norm_bias": False,
}
HEADED = replace(MODELS["plain"], head_layer=HeadLayer("gelu", bias=True))


def _spec(config: dict[str, Any] = ETTIN, **changes: Any) -> ModelSpec:
    config = config | changes
    return architecture(config).spec(config)


def test_every_tensor_of_the_published_sizes_has_a_source() -> None:
    spec, weights = _spec(), architecture(ETTIN).weights(_spec(), ETTIN)
    assert weights.keys() == spec.tensors().keys()
    assert spec.head_layer == HeadLayer("gelu", False, "layer")
    assert spec.tensors()["head_layer"] == (256, 256)
    assert weights["head_bias"] == (Part("decoder.bias"),)
    windows = [block.window for block in spec.attention.values() if isinstance(block, Attention)]
    assert windows == [None, 64, 64, None, 64, 64, None]
    assert [block.norm for block in spec.attention.values()] == ["none"] + ["layer"] * 6
    assert weights["final_norm_bias"] == (Part("model.final_norm.weight", times=0.0),)


def test_what_a_config_leaves_out_is_what_transformers_assumes() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    given = {key: ETTIN[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    given |= {"intermediate_size": 384, "max_position_embeddings": 512}
    theirs, spec = transformers.ModernBertDecoderConfig(**given), _spec({"model_type": "modernbert-decoder"} | given)
    assert (spec.tied, spec.head_bias, spec.norm_eps) == (
        theirs.tie_word_embeddings,
        theirs.decoder_bias,
        theirs.norm_eps,
    )
    assert spec.head_layer == HeadLayer(theirs.classifier_activation, theirs.classifier_bias)
    slides = [kind == "sliding_attention" for kind in theirs.layer_types]
    found = [(block.window, block.rope) for block in spec.attention.values()]
    assert found == [(theirs.sliding_window, 1) if on else (None, 0) for on in slides]
    thetas = [1 / rope.inv_freq[1] for rope in spec.ropes]
    for theta, kind in zip(thetas, ("full_attention", "sliding_attention"), strict=True):
        np.testing.assert_allclose(theta, theirs.rope_parameters[kind]["rope_theta"] ** (1 / 32), rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 5}, "5 do not share 256 values evenly"),
        ({"local_attention": None}, "local_attention is null, though layers have a window"),
        ({"sliding_window": 128}, "sliding_window 128 is not supported"),
        ({"classifier_activation": "tanh"}, "classifier_activation"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers of 7"),
        ({"head_bias": True}, "head_bias is not known"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _spec(**changes)


def test_a_head_that_is_stored_beside_the_embedding_must_be_the_same(tmp_path: Path) -> None:
    zoo_golden = pytest.importorskip("zoo_golden")
    checkpoints = pytest.importorskip("edgedec.export.checkpoint", reason="needs what exports need")
    golden = zoo_golden.golden("modernbert_decoder")
    assert "decoder.weight" not in golden.tensors
    embed = golden.tensors["model.embeddings.tok_embeddings.weight"]
    place = zoo_golden.write(tmp_path / "m", golden.config, golden.tensors | {"decoder.weight": embed})
    checkpoint = checkpoints.open_checkpoint(place)
    with pytest.raises(BadTensor, match=r"decoder.weight: differs from the embedding"):
        checkpoint.weights(checkpoint.spec())


def _runtimes(tmp_path: Path, weights: dict[str, Any]) -> list[Runtime]:
    found: list[Runtime] = [Reference(HEADED, lambda name, start, stop: weights[name][start:stop])]
    if loader.why_not() is None:
        found.append(native.open(write_bundle(tmp_path / "b", HEADED, weights), RuntimeOptions(kv="f32", threads=1)))
    return found


def test_states_are_those_before_the_layer_and_the_head_alone_runs_it(tmp_path: Path) -> None:
    """Other weights of the layer change no state, and the head alone makes of a state what a whole call makes."""
    weights = random_weights(HEADED)
    other = weights | {"head_layer": -weights["head_layer"]}
    rows, last = Rows.chain([5, 6, 7], 0), HEADED.n_blocks - 1
    for i, (runtime, changed) in enumerate(
        zip(_runtimes(tmp_path / "a", weights), _runtimes(tmp_path / "c", other), strict=True)
    ):
        wanted = Outputs(logits=True, hidden=(last,))
        found, theirs = (forward_one(r, Call(rows, r.new_cache(8), outputs=wanted)) for r in (runtime, changed))
        np.testing.assert_array_equal(found.hidden[last], theirs.hidden[last])
        assert np.abs(found.logits - theirs.logits).max() > 0.1
        alone = forward_one(runtime, Call(rows, runtime.new_cache(8), (), found.hidden[last], Outputs(logits=True)))
        np.testing.assert_array_equal(alone.logits, found.logits, err_msg=str(i))


def test_best_tokens_and_sums_are_of_the_same_logits(tmp_path: Path) -> None:
    rows = Rows.chain([5, 6, 7, 8], 0)
    for runtime in _runtimes(tmp_path, random_weights(HEADED)):
        whole = forward_one(runtime, Call(rows, runtime.new_cache(8), outputs=Outputs(logits=True))).logits
        wanted = Outputs(logits=False, top=3, logsum=True)
        found = forward_one(runtime, Call(rows, runtime.new_cache(8), outputs=wanted))
        np.testing.assert_array_equal(found.ids, np.argsort(-whole, axis=1, kind="stable")[:, :3])
        np.testing.assert_allclose(found.logsum, np.log(np.exp(whole.astype(np.float64)).sum(1)), rtol=1e-5)


def test_what_is_trained_for_the_matrix_of_the_head_is_refused_in_one_line() -> None:
    check_bare_head(MODELS["plain"], "train-heads")
    with pytest.raises(UsageError, match=r"^train-heads: plain has a layer before its head, which it does not read$"):
        check_bare_head(HEADED, "train-heads")


def test_a_text_encoder_and_an_activation_with_weights_are_refused() -> None:
    with pytest.raises(BundleCorrupt, match="head_layer: belongs to a decoder"):
        replace(HEADED, tied=True, output=Output()).check()
    with pytest.raises(BundleCorrupt, match=r"head_layer.activation: xielu"):
        replace(HEADED, head_layer=HeadLayer("xielu")).check()


def test_other_engines_name_what_they_lack() -> None:
    assert newer(HEADED) == (HEAD_LAYER,)
    assert HEAD_LAYER not in pytest.importorskip("edgedec.runtimes.ort").FACTS_OF_MODELS
