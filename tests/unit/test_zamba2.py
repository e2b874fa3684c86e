"""Zamba2: published sizes, blocks that feed one another, weights that adapters go into, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BadTensor, BundleCorrupt, CheckpointError, UsageError
from edgedec.export.products import product_rows, shape_of
from edgedec.kernels.cpu import loader
from edgedec.models import Part, Through, architecture
from edgedec.runtime import Call, Outputs, Rows, Runtime, RuntimeOptions, forward_one, logits_of
from edgedec.runtimes import native
from edgedec.runtimes.reference import Reference
from edgedec.spec import Attention, Mlp, ModelSpec, Ssm
from edgedec.spec.branches import cut_sums, first_beside
from edgedec.spec.newer import FEEDS, HEAD_LAYER, WITH_EMBEDDING, newer
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

SMALL: dict[str, Any] = {  # Zamba2-1.2B
    "model_type": "zamba2",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "num_hidden_layers": 38,
    "layers_block_type": ["hybrid" if i in (5, 11, 17, 23, 29, 35) else "mamba" for i in range(38)],
    "hybrid_layer_ids": [5, 11, 17, 23, 29, 35],
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "attention_hidden_size": 4096,
    "attention_head_dim": 128,
    "intermediate_size": 8192,
    "n_mamba_heads": 64,
    "mamba_headdim": 64,
    "mamba_d_state": 128,
    "num_mem_blocks": 1,
    "use_shared_attention_adapter": True,
    "use_mem_rope": True,
    "rope_theta": 10000,
    "adapter_rank": 128,
    "max_position_embeddings": 4096,
}
FED = MODELS["blocks that feed"]


def _spec(config: dict[str, Any] = SMALL, **changes: Any) -> ModelSpec:
    config = config | changes
    return architecture(config).spec(config)


def test_every_tensor_of_the_published_sizes_has_a_source() -> None:
    spec, weights = _spec(), architecture(SMALL).weights(_spec(), SMALL)
    assert weights.keys() == spec.tensors().keys()
    kinds = [[block.kind for block in layer] for layer in spec.layers]
    assert [i for i, layer in enumerate(kinds) if layer == ["attention", "mlp", "ssm"]] == SMALL["hybrid_layer_ids"]
    assert [i for i, layer in enumerate(kinds) if layer == ["ssm"]] == [
        i for i in range(38) if i not in SMALL["hybrid_layer_ids"]
    ]
    attention, ssm = spec.attention[5], spec.ssm[0]
    assert (attention.head_dim, attention.scale, attention.q_dim) == (128, 0.125, 4096)
    assert (ssm.inner_size, ssm.head_dim) == (4096, 64)
    shapes = spec.tensors()
    assert (shapes["blocks.5.norm"], shapes["blocks.5.qkv"], shapes["blocks.5.o"]) == (
        (4096,),
        (12288, 4096),
        (2048, 4096),
    )


def test_a_use_reads_shared_weights_with_adapters_of_its_own() -> None:
    """Of two blocks in turn the third use is of the first, whose weights are in the layer of its first use."""
    config = SMALL | {"num_mem_blocks": 2}
    spec = _spec(config)
    weights = architecture(config).weights(spec, config)
    b = spec.span(17)[0]
    shared = "model.layers.5.shared_transformer."
    adapter = f"{shared}self_attn.linear_k_adapter_list.2."
    assert weights[f"blocks.{b}.qkv"][1] == Part(
        f"{shared}self_attn.k_proj.weight", plus=(f"{adapter}1.weight", f"{adapter}0.weight")
    )
    down = Part(f"{shared}feed_forward.down_proj.weight", left="model.layers.17.linear.weight")
    assert weights[f"blocks.{b + 1}.down"] == (down,)
    assert weights[f"blocks.{b + 2}.in_proj"] == (Part("model.layers.17.mamba_decoder.mamba.in_proj.weight"),)
    assert weights[f"blocks.{spec.span(11)[0]}.o"][0].name.startswith("model.layers.11.")
    plain = config | {"use_shared_attention_adapter": False}
    assert not any(part.plus for part in architecture(plain).weights(_spec(plain), plain)[f"blocks.{b}.qkv"])


def test_what_a_config_leaves_out_is_what_transformers_assumes() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    theirs = transformers.Zamba2Config()
    spec = _spec({"model_type": "zamba2", "vocab_size": theirs.vocab_size, "hidden_size": theirs.hidden_size})
    assert (spec.n_layers, spec.context_length) == (theirs.num_hidden_layers, theirs.max_position_embeddings)
    assert (spec.norm_eps, spec.tied, spec.ropes) == (theirs.rms_norm_eps, theirs.tie_word_embeddings, ())
    assert [i for i, layer in enumerate(spec.layers) if len(layer) == 3] == theirs.hybrid_layer_ids
    attention, mlp, ssm = spec.layers[theirs.hybrid_layer_ids[0]]
    assert isinstance(attention, Attention)
    assert isinstance(mlp, Mlp)
    assert isinstance(ssm, Ssm)
    sizes = (attention.n_heads, attention.n_kv_heads, attention.head_dim, attention.rope)
    assert sizes == (theirs.num_attention_heads, theirs.num_key_value_heads, theirs.attention_head_dim, None)
    assert (mlp.inner_size, mlp.activation, mlp.bias) == (theirs.intermediate_size, theirs.hidden_act, False)
    sizes = (ssm.n_heads, ssm.head_dim, ssm.state_size, ssm.n_groups, ssm.conv_size)
    names = ("n_mamba_heads", "mamba_headdim", "mamba_d_state", "mamba_ngroups", "mamba_d_conv")
    assert sizes == tuple(getattr(theirs, name) for name in names)
    assert (ssm.dt_min, ssm.proj_bias) == (theirs.time_step_min, theirs.add_bias_linear)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_long_context": True}, "use_long_context is set"),
        ({"rms_norm_eps": 1e-3}, "rms_norm_eps is 0.001; the norm inside of Mamba has 1e-05"),
        ({"layers_block_type": ["mamba"] * 37}, "layers_block_type names 37 layers of 38"),
        ({"layers_block_type": ["attention"] * 38}, "'attention' is not supported"),
        ({"hybrid_layer_ids": [5]}, "hybrid_layer_ids .* is not supported"),
        ({"n_mamba_heads": 60}, "60 heads do not share 4096 channels evenly"),
        ({"mamba_headdim": 32}, "mamba_headdim 32 is not supported"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is not 32"),
        ({"use_conv_bias": False}, "use_conv_bias is false"),
        ({"attention_hidden_size": 2048}, "attention_hidden_size 2048 is not supported"),
        ({"num_mem_block": 2}, "num_mem_block is not known"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _spec(**changes)


def test_products_go_into_weights_row_by_row_as_all_at_once() -> None:
    rng = np.random.default_rng(0)
    shapes = {"w": (7, 5), "up": (7, 3), "down": (3, 5), "left": (4, 7), "vector": (7,), "layer": (6, 5), "bias": (6,)}
    tensors = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}

    def rows(name: str, of: tuple[int, int] | None) -> np.ndarray:
        return tensors[name] if of is None else tensors[name][slice(*of)]

    added, times, bias = Part("w", plus=("up", "down")), Part("w", left="left"), Part("vector", left="left")
    passed = Part("w", rows=(1, 6), through=Through("layer", (2, 6), 6, "bias"))
    expected = {
        added: tensors["w"] + tensors["up"] @ tensors["down"],
        times: tensors["left"] @ tensors["w"],
        bias: tensors["left"] @ tensors["vector"],
        passed: tensors["w"][1:6] @ tensors["layer"][2:].T + tensors["bias"][2:],
        replace(added, through=Through("layer", (0, 6), 6)): (tensors["w"] + tensors["up"] @ tensors["down"])
        @ tensors["layer"].T,
    }
    for part, whole in expected.items():
        assert shape_of(part, tensors, Path()) == whole.shape
        found = product_rows(part, 0, len(whole), rows)
        np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-6)
        pieces = [product_rows(part, at, min(at + 2, len(whole)), rows) for at in range(0, len(whole), 2)]
        np.testing.assert_allclose(np.concatenate(pieces), found, rtol=1e-6, atol=1e-7)
        assert not part.plain
    odd: list[tuple[Part, str, tuple[int, ...]]] = [
        *((added, "up", (7, 2)), (added, "down", (3, 4)), (times, "left", (4, 6))),
        *((passed, "layer", (6, 4)), (passed, "bias", (5,))),
    ]
    for part, name, shape in odd:
        with pytest.raises(BadTensor, match=r"is not added to w|does not multiply w|rows of w \(5, 5\) go through it"):
            shape_of(part, tensors | {name: np.zeros(shape, np.float32)}, Path())


def test_every_tensor_of_a_part_is_required_and_renamed() -> None:
    part = Part("w", plus=("up", "down"), left="left", through=Through("layer", (0, 6), 6, "bias", ("norm", "beta")))
    assert part.names == ("w", "layer", "bias", "norm", "beta", "up", "down", "left")
    assert part.renamed(str.upper).names == tuple(map(str.upper, part.names))
    assert Part("w").renamed(str.upper) == Part("W")
    every = dict.fromkeys(part.names, np.zeros((6, 6), np.float32))
    for name in part.names:
        with pytest.raises(BadTensor, match=f"^{name}: missing from here$"):
            shape_of(part, {key: value for key, value in every.items() if key != name}, Path("here"))


def test_an_adapter_that_is_missing_or_of_another_size_is_refused(tmp_path: Path) -> None:
    zoo_golden = pytest.importorskip("zoo_golden")
    checkpoints = pytest.importorskip("edgedec.export.checkpoint", reason="needs what exports need")
    golden = zoo_golden.golden("zamba2")
    name = next(name for name in golden.tensors if "linear_q_adapter_list" in name and name.endswith(".1.weight"))
    rows, columns = golden.tensors[name]
    for i, (shape, message) in enumerate([(None, f"{name}: missing"), ([rows, columns + 1], "is not added to")]):
        tensors = {key: value for key, value in golden.tensors.items() if key != name}
        tensors |= {} if shape is None else {name: shape}
        checkpoint = checkpoints.open_checkpoint(zoo_golden.write(tmp_path / str(i), golden.config, tensors))
        with pytest.raises(BadTensor, match=message):
            checkpoint.weights(checkpoint.spec())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layer: layer[:2], "the last block of a layer has none after it"),
        (lambda layer: (layer[0], replace(layer[1], branch=True), layer[2]), "beside a branch"),
        (lambda layer: (layer[0], layer[1], replace(layer[2], branch=True), Mlp(96)), "beside a branch"),
        (lambda layer: (layer[0], layer[1], Mlp(96, after="layer")), "a norm after it"),
        (
            lambda layer: (replace(layer[0], with_embedding=True, embedding_norm="rms"), *layer[1:]),
            "with_embedding: beside embedding_norm",
        ),
    ],
)
def test_blocks_that_feed_none_or_two_are_refused(change: Any, message: str) -> None:
    (attention, *others), *_ = FED.layers
    alone = replace(FED, layers=(change((replace(attention, with_embedding=False), *others)),))
    with pytest.raises(BundleCorrupt, match=message):
        alone.check()


def _runtimes(tmp_path: Path, spec: ModelSpec = FED) -> list[Runtime]:
    weights = random_weights(spec)
    found: list[Runtime] = [Reference(spec, lambda name, start, stop: weights[name][start:stop])]
    if loader.why_not() is None:
        found.append(native.open(write_bundle(tmp_path / "b", spec, weights), RuntimeOptions(kv="f32", threads=1)))
    return found


def test_blocks_that_feed_run_together_and_no_state_is_between_them(tmp_path: Path) -> None:
    assert [first_beside(FED, b) for b in range(8)] == [0, 0, 0, 3, 4, 5, 5, 5]
    assert cut_sums(FED, (0, 1, 2)) == cut_sums(FED, (3, 4)) == []
    assert cut_sums(FED, (1, 2, 3)) == [1]
    rows = Rows.chain([5, 6, 7], 0)
    for runtime in _runtimes(tmp_path):
        state = forward_one(runtime, Call(rows, runtime.new_cache(8), (0, 1, 2), outputs=Outputs(hidden=(2,)))).hidden[
            2
        ]
        for cut in ((1, 2), (2,), (0, 2), (0, 1), (0,)):
            call = Call(rows, runtime.new_cache(8), cut, state if cut[0] else None, Outputs(logits=False))
            with pytest.raises(
                UsageError, match=r"one reads what the other makes|block that the model or the call does not have"
            ):
                forward_one(runtime, call)
        with pytest.raises(
            UsageError, match=r"what it makes is for block 1 alone|block that the model or the call does not have"
        ):
            forward_one(runtime, Call(rows, runtime.new_cache(8), outputs=Outputs(hidden=(0,))))


def test_what_is_fed_shows_in_the_next_block_alone(tmp_path: Path) -> None:
    """Without the last block of a layer's output, the state after it is the one before: what feeds it is not added."""
    weights = random_weights(FED)
    weights |= {name: np.zeros_like(weights[name]) for name in ("blocks.2.out_proj",)}
    runtimes: list[Runtime] = [Reference(FED, lambda name, start, stop: weights[name][start:stop])]
    if loader.why_not() is None:
        runtimes.append(native.open(write_bundle(tmp_path / "b", FED, weights), RuntimeOptions(kv="f32", threads=1)))
    for runtime in runtimes:
        call = Call(Rows.chain([5, 6, 7], 0), runtime.new_cache(8), outputs=Outputs(hidden=(-1, 2, 3)))
        states = forward_one(runtime, call).hidden
        np.testing.assert_array_equal(states[2], states[-1])
        assert np.abs(states[3] - states[2]).max() > 0.1


def test_the_state_and_the_embedding_are_normed_as_one_row(tmp_path: Path) -> None:
    """A larger embedding makes the part of the state smaller, though all weights of its own part are zero."""
    spec = replace(FED, layers=FED.layers[:1])
    weights = random_weights(spec)
    weights["blocks.0.qkv"][:, 64:] = 0
    runtimes: list[Runtime] = [Reference(spec, lambda name, start, stop: weights[name][start:stop])]
    if loader.why_not() is None:
        runtimes.append(native.open(write_bundle(tmp_path / "b", spec, weights), RuntimeOptions(kv="f32", threads=1)))
    rng = np.random.default_rng(1)
    hidden, given = (rng.standard_normal((3, 64), np.float32) for _ in range(2))
    for runtime in runtimes:
        found = []
        for factor in (1, 1, 8):
            rows = replace(Rows.chain([5, 6, 7], 0), embeddings=given * np.float32(factor))
            call = Call(rows, runtime.new_cache(8), range(3), hidden, Outputs(logits=False, hidden=(2,)))
            found.append(forward_one(runtime, call).hidden[2])
        np.testing.assert_array_equal(found[0], found[1])
        assert np.abs(found[2] - found[0]).max() > 1e-3, runtime.name


def test_other_engines_name_what_they_lack() -> None:
    assert {WITH_EMBEDDING, FEEDS, HEAD_LAYER} <= set(newer(FED))
    lacking = pytest.importorskip("edgedec.runtimes.ort")
    assert not {WITH_EMBEDDING, FEEDS, HEAD_LAYER} & set(lacking.FACTS_OF_MODELS)


def test_texts_beside_others_and_forks_are_as_alone(tmp_path: Path) -> None:
    """A call of two texts, of which one runs all blocks and one the first layer only, and a fork."""
    texts = [1, 2, 3, 4, 5, 6, 7], [9, 8, 7, 6]
    for runtime in _runtimes(tmp_path):
        alone = [logits_of(runtime, Rows.chain(list(ids), 0), runtime.new_cache(16)) for ids in texts]
        caches = [runtime.new_cache(16) for _ in range(3)]
        outputs = Outputs(logits=True)
        calls = [
            Call(Rows.chain(list(texts[0]), 0), caches[0], outputs=outputs),
            Call(Rows.chain(list(texts[1]), 0), caches[1], range(3), outputs=Outputs(logits=False, hidden=(2,))),
            Call(Rows.chain(list(texts[1]), 0), caches[2], outputs=outputs),
        ]
        found = runtime.forward(calls)
        np.testing.assert_array_equal(found[0].logits, alone[0])
        np.testing.assert_array_equal(found[2].logits, alone[1])
        caches[0].commit(range(7))
        fork = caches[0].fork(7)
        both = [logits_of(runtime, Rows.chain([3], 7), cache) for cache in (caches[0], fork)]
        np.testing.assert_array_equal(*both)
