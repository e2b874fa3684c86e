"""What not every engine runs is refused by its name, has its format of bundles, and fits together; parts of checkpoint
tensors are read in the order that they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zoo_golden
from checkpoints import write_llama

from edgedec.errors import BadTensor, BundleCorrupt, CheckpointError, RuntimeUnavailable, UsageError
from edgedec.export.checkpoint import Checkpoint, open_checkpoint
from edgedec.models import Part, architecture
from edgedec.runtime import Call, Outputs, Rows, RuntimeOptions, open_runtime
from edgedec.runtime.registry import lacking_kinds
from edgedec.spec import Attention, EncoderEntry, Mlp, ModelSpec, newer
from edgedec.spec.branches import first_beside
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

PLAIN = MODELS["plain"]


def _with(block: int, **facts: Any) -> ModelSpec:
    """The plain model with facts of one of its first layer's blocks."""
    layer = list(PLAIN.layers[0])
    layer[block] = replace(layer[block], **facts)
    return replace(PLAIN, layers=(tuple(layer), *PLAIN.layers[1:]))


EACH: dict[str, ModelSpec] = {
    newer.BRANCH: _with(0, branch=True),
    newer.RELU2: _with(1, activation="relu2"),
    newer.XIELU: _with(1, activation="xielu", gated=False),
    newer.HEAD_BIAS: replace(PLAIN, head_bias=True),
    newer.ENTRY: replace(PLAIN, entry=EncoderEntry(norm="rms")),
    newer.QK_NORM: _with(0, qk_norm="heads"),
    newer.CLIP: _with(0, clip=2.0),
    newer.SLOPES: _with(0, slopes=(0.5, 0.25, 0.1, 0.1)),
    newer.INNER_NORM: _with(1, inner_norm="layer"),
    newer.GATES: _with(0, gate="head"),
}


def test_each_fact_has_a_name() -> None:
    assert newer.newer(PLAIN) == ()
    for name, spec in EACH.items():
        assert newer.newer(spec.check()) == (name,)


@pytest.mark.parametrize("name", sorted(EACH))
def test_an_engine_without_it_names_it(name: str, tmp_path: Path) -> None:
    spec = EACH[name]
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec), kv=("f32",))
    assert bundle.manifest.version == 9
    reason = lacking_kinds(bundle, ("attention", "mlp"))
    assert reason == f"has no {name}, which this model needs"
    assert lacking_kinds(bundle, ("attention", "mlp"), facts=(name,)) is None
    with pytest.raises(RuntimeUnavailable) as found:
        open_runtime("tvm", bundle, RuntimeOptions())
    assert str(found.value) == f"engine tvm: {reason}"


def test_a_bundle_without_any_is_of_the_oldest_format(tmp_path: Path) -> None:
    assert write_bundle(tmp_path / "b", PLAIN, random_weights(PLAIN), kv=("f32",)).manifest.version == 4


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (_with(1, branch=True), "the last block of a layer has none beside it"),
        (_with(0, slopes=(0.5,)), "must be a finite number for each of 4 heads"),
        (_with(0, slopes=(0.5, 0.1, float("nan"), 0.1)), "must be a finite number"),
        (_with(0, clip=-1.0), "is out of range"),
        (_with(0, qk_norm="full", qk_norm_last=True), "one of all heads after the rope"),
        (replace(PLAIN, entry=EncoderEntry(positions=3)), "3 of a context of"),
        (replace(PLAIN, entry=EncoderEntry(types=2)), "no types and no other width"),
    ],
)
def test_facts_that_do_not_fit_are_refused(spec: ModelSpec, why: str) -> None:
    with pytest.raises(BundleCorrupt, match=why):
        spec.check()


def test_states_between_blocks_side_by_side_are_not_given(tmp_path: Path) -> None:
    """Nobody could go on from them; a block may be left out."""
    spec = MODELS["side by side"]
    assert [first_beside(spec, b) for b in range(spec.n_blocks)] == [0, 0, 2, 2, 2]
    runtime = open_runtime("reference", write_bundle(tmp_path / "b", spec, random_weights(spec), kv=("f32",)))
    rows = Rows.chain([1, 2, 3], 0)
    with pytest.raises(UsageError, match="hidden states after block 2: block 3 reads what it read"):
        runtime.forward([Call(rows, runtime.new_cache(4), outputs=Outputs(hidden=(2,)))])
    both, second = (
        runtime.forward([Call(rows, runtime.new_cache(4), blocks, outputs=Outputs(hidden=(1,)))])[0].hidden[1]
        for blocks in ((0, 1), (1,))
    )
    entered = runtime.forward([Call(rows, runtime.new_cache(4), (), outputs=Outputs(hidden=(-1,)))])[0].hidden[-1]
    assert np.abs(both - second).max() > 0.1
    assert np.abs(second - entered).max() > 0.1


class Numbered:
    """A tensor whose values are their places."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def values(self, name: str, first: int, shape: tuple[int, ...]) -> np.ndarray:
        whole = np.arange(np.prod(self.shape), dtype=np.float32).reshape(-1, *shape[1:])
        return whole[first : first + shape[0]]


@pytest.fixture
def read(tmp_path: Path) -> Callable[[Part, Numbered], np.ndarray]:
    """The rows of a part, which one by one are what they are at once."""
    checkpoint = open_checkpoint(write_llama(tmp_path / "llama"))

    def of(part: Part, tensor: Numbered) -> np.ndarray:
        one: Checkpoint = replace(checkpoint, tensors={part.name: tensor})
        whole = one.read((part,), 0, one.shape((part,))[0])
        rows = [one.read((part,), row, row + 1) for row in range(len(whole))]
        np.testing.assert_array_equal(np.concatenate(rows), whole)
        return whole

    return of


def test_parts_are_read_in_their_order(read: Callable[[Part, Numbered], np.ndarray]) -> None:
    heads = read(Part("q", (6, 18), halves=(6, 0, 4)), Numbered(24, 2))[:, 0] / 2
    assert heads.tolist() == [6, 8, 7, 9, 10, 11, 12, 14, 13, 15, 16, 17]
    np.testing.assert_array_equal(read(Part("w", transposed=True), Numbered(2, 3)), [[0, 3], [1, 4], [2, 5]])
    assert read(Part("w", ones=True), Numbered(5, 3)).tolist() == [1, 1, 1]
    assert read(Part("n", vector=True, halves=(4, 0, 4)), Numbered(2, 4)).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert read(Part("s", vector=True), Numbered()).tolist() == [0]
    with pytest.raises(BadTensor, match="its 5 rows are not groups of 4 with 2 in pairs"):
        read(Part("q", (0, 5), halves=(4, 0, 2)), Numbered(8, 2))
    with pytest.raises(BadTensor, match="is no matrix"):
        read(Part("w", transposed=True), Numbered(8))


REFUSED = [
    ("falcon", {"alibi": True}, "alibi is not supported: these models round it"),
    ("opt", {"word_embed_proj_dim": 8}, "word_embed_proj_dim is not hidden_size"),
    ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before False is not supported"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln True is not supported"),
    ("mpt", {"attn_config": {"unheard": 1}}, "unheard is not known"),
    ("mpt", {"no_bias": False}, "no_bias False is not supported"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "is not supported"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention True is not supported"),
    ("gpt2", {"hidden_size": 8}, "make them equal"),
    ("cohere2", {"rotary_pct": 0.5}, "rotary_pct 0.5 is not supported"),
    ("apertus", {"post_norm": True}, "post_norm True is not supported"),
    ("starcoder2", {"norm_type": "rms"}, "norm_type 'rms' is not supported"),
    ("olmo", {"unheard": 1}, "unheard is not known"),
]


@pytest.mark.parametrize(("name", "changed", "why"), REFUSED)
def test_what_a_type_does_not_compute_is_refused(name: str, changed: dict[str, Any], why: str) -> None:
    config = zoo_golden.golden(name).config
    architecture(config).spec(config)
    with pytest.raises(CheckpointError, match=why):
        architecture(config).spec(config | changed)


def test_blocks_of_each_kind_are_there() -> None:
    """The conformance models have every fact, so that each engine is held to it."""
    assert {name for spec in MODELS.values() for name in newer.newer(spec)} == set(newer.NEWER)
    assert any(isinstance(block, Attention) and block.qk_norm_last for block in MODELS["learned positions"].blocks)
    assert any(isinstance(block, Mlp) and block.branch for block in MODELS["side by side"].blocks)
