"""Facts of decoders that came later: a bundle says the version that has them, engines without them refuse by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.cache.base import kv_bytes_per_token
from edgedec.cache.memory import cache_bytes, row_bytes
from edgedec.errors import BundleCorrupt, CheckpointError
from edgedec.kernels.cpu.loader import why_not
from edgedec.models import architecture
from edgedec.runtime import Rows, RuntimeOptions, lacking_kinds, logits_of, open_runtime
from edgedec.runtimes.reference import attention, moe
from edgedec.runtimes.tvm.support import library_lacks, sources_lack
from edgedec.spec import Attention, ModelSpec, Moe
from edgedec.spec.newer import (
    CHOICE_BIAS,
    CLAMPED,
    EXPERT_BIAS,
    PLAIN_EXPERTS,
    RELU_ROUTER,
    SINK_LOGIT,
    SPARSEMIXER,
    is_newer,
    newer,
)
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

EXPERTS = MODELS["experts of gpt-oss"]


def only(block: Any) -> ModelSpec:
    return replace(MODELS["plain"], layers=((block,),))


HEADS = EXPERTS.attention[0]
PLAIN = Moe(4, 2, 16)
RELU = Moe(4, 4, 16, "relu", normalize=False)
CASES = {
    SINK_LOGIT: replace(HEADS, window=None),
    EXPERT_BIAS: replace(PLAIN, bias=True),
    CLAMPED: replace(PLAIN, clamped=True),
    CHOICE_BIAS: replace(PLAIN, router_bias=True),
    PLAIN_EXPERTS: replace(PLAIN, gated=False),
    SPARSEMIXER: replace(PLAIN, router="sparsemixer", jitter=0.1),
    RELU_ROUTER: RELU,
}


@pytest.mark.parametrize("fact", CASES)
def test_a_fact_is_in_the_version_and_in_refusals(fact: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="bundles are written with onnx")
    from edgedec.export.onnx import unsupported_on_devices, whole_model_reason

    spec = only(CASES[fact])
    assert newer(spec) == (fact,)
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec))
    assert bundle.manifest.version == 9
    kinds = ("attention", "latent", "moe")
    assert lacking_kinds(bundle, kinds) == f"has no {fact}, which this model needs"
    assert lacking_kinds(bundle, kinds, facts=(fact,)) is None
    for reason in (library_lacks(spec), sources_lack(spec), unsupported_on_devices(spec), whole_model_reason(spec)):
        assert reason == f"it has {fact}"


def test_other_bundles_keep_their_version_and_bytes(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="bundles are written with onnx")
    spec = MODELS["experts"]
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec))
    assert newer(spec) == ()
    assert bundle.manifest.version == 4
    text = (tmp_path / "b" / "edgedec.json").read_text()
    assert not any(key in text for key in ("sink_logit", "logit_bias", "clamped", '"bias"'))


def test_one_block_that_scores_distances_is_enough() -> None:
    plain = Attention(2, 2, 16, 0.1, rope=None)
    spec = only(plain)
    assert not is_newer(spec)
    for layers in ([0, 8], [8, 0], [8, 8]):
        assert is_newer(replace(spec, layers=tuple((replace(plain, relative=n),) for n in layers)))


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (replace(PLAIN, router="softmax_topk", router_bias=True), "router_bias: a router of logits has none"),
        (replace(PLAIN, shared_size=16, bias=True), "shared_size: beside experts that are clamped or have biases"),
        (replace(PLAIN, shared_size=16, clamped=True), "shared_size: beside experts"),
        (replace(PLAIN, clamped=True, activation="gelu"), "clamped: has an activation of its own, not gelu"),
        (replace(PLAIN, clamped=True, gated=False), "clamped: only experts with a gate are"),
        (replace(PLAIN, gated=False, inner_size=24), "inner_size: 24 is not a multiple of 16"),
        (replace(PLAIN, jitter=0.1), "jitter: 0.1 of a router by softmax"),
        (replace(PLAIN, router="sparsemixer", jitter=1.0), "jitter: 1.0 of a router by sparsemixer"),
        (replace(PLAIN, router="sparsemixer", router_bias=True), "router_bias: a router of logits has none"),
        (replace(PLAIN, router="sparsemixer", groups=2), "groups: only a sigmoid router has them"),
        (replace(RELU, top_k=2), "router: relu chooses among all experts"),
        (replace(RELU, normalize=True), "router: relu chooses among all experts .top_k. and does not normalize"),
        (replace(RELU, router_bias=True), "router_bias: a router of logits has none"),
        (replace(RELU, groups=2), "groups: only a sigmoid router has them"),
        (replace(RELU, drop_below=0.5), "drop_below: 0.5 with 4 experts a row by relu"),
        (replace(PLAIN, levels=(0, 10**9)), "levels: 1000000001 of at most 4"),  # none of which is counted out
    ],
)
def test_facts_that_do_not_go_together_are_refused(block: Moe, said: str) -> None:
    with pytest.raises(BundleCorrupt, match=said):
        only(block).check()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("softcap", 30.0),
        ("qk_norm", "head"),
        ("qk_norm_kind", "layer"),
        ("after", "rms"),
        ("embedding_norm", "rms"),
        ("distances", 3),
        ("sink_logit", True),
        ("gate", "head"),
        ("clip", 2.0),
        ("slopes", (0.5, 0.25, 0.1, 0.1)),
        ("inner_norm", "rms"),
    ],
)
def test_latent_attention_without_what_no_engine_computes_there(name: str, value: Any) -> None:
    block = MODELS["latent"].attention[0]
    block.check("block")
    with pytest.raises(BundleCorrupt, match=rf"block\.{name}: latent attention has none"):
        replace(block, **{name: value}).check("block")


def test_clamped_experts() -> None:
    """The example of the docstring, and each limit on its own side."""
    gate, up = np.array([[9.0, -9.0, 2.0]], np.float32), np.array([[-8.0, 8.0, 0.5]], np.float32)
    found = moe.clamped(gate, up)[0]
    expected = [-41.99972, -9 / (1 + np.exp(1.702 * 9)) * 8, 2 / (1 + np.exp(-3.404)) * 1.5]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_sparse_mixed() -> None:
    """The example of the docstring; and of negative logits, by whose size what is near is judged."""
    block = replace(PLAIN, n_experts=3, router="sparsemixer", normalize=False, jitter=0.1)
    experts, weights = moe.route(block, np.array([[1.0, 2.0, 1.9], [-3.0, -2.5, -9.0]], np.float32))
    assert experts.tolist() == [[1, 2], [1, 0]]
    near = 1 / (1 + np.exp([-0.1, -0.5]))
    np.testing.assert_allclose(weights, [[near[0], 1.0], [near[1], 1.0]], rtol=1e-5)


def test_rectified() -> None:
    """The example of the docstring; a row that passes no expert; weights of the norm below zero choose too."""
    block = replace(RELU, n_experts=3, top_k=3, scale=2.0)
    logits, ones = np.array([[3.0, -1.0, 4.0], [-2.0, -0.5, 0.0]], np.float32), np.ones(3, np.float32)
    experts, weights = moe.rectified(block, logits, ones, 1e-12)
    assert experts.tolist() == [[0, -1, 2], [-1, -1, -1]]
    np.testing.assert_allclose(weights, [[6 / (25 / 3) ** 0.5, 0, 8 / (25 / 3) ** 0.5], [0, 0, 0]], rtol=1e-5)
    experts, turned = moe.rectified(block, logits, np.array([-1, 1, 0], np.float32), 1e-12)
    assert experts.tolist() == [[0, -1, -1], [-1, -1, -1]]
    np.testing.assert_allclose(turned[0], [-weights[0, 0], 0, 0])


def test_a_score_of_no_token_takes_weight_and_gives_no_value() -> None:
    """Two equal keys and an equal score of no token: each takes a third."""
    block = Attention(2, 1, 2, 1.0, rope=None)
    q, keys = np.ones((2, 1, 2), np.float32), np.full((1, 2, 2), 0.5, np.float32)
    values = np.array([[[3.0, 0.0], [0.0, 3.0]]], np.float32)
    seen, sink = np.ones((1, 2), bool), np.array([1.0, -1e9], np.float32)
    y, paid = attention.attend(q, keys, values, seen, block, sink=sink)
    np.testing.assert_allclose(y[0], [1.0, 1.0, 1.5, 1.5], rtol=1e-6)
    np.testing.assert_allclose(paid[0], [1 / 3 + 0.5] * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"swiglu_limit": 10.0}, "swiglu_limit is 10.0; supported is 7.0 only"),
        ({"swiglu_alpha": 1.5}, "swiglu_alpha is 1.5; supported is 1.702 only"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    ],
)
def test_other_limits_are_refused(changes: dict[str, Any], said: str) -> None:
    config = {"model_type": "gpt_oss", "vocab_size": 101, "hidden_size": 64, "intermediate_size": 32}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
    config |= {"num_local_experts": 4, "num_experts_per_tok": 2} | changes
    with pytest.raises(CheckpointError, match=said):
        architecture(config).spec(config)


def test_passes_scale_what_reads_the_norm_of_latent_attention() -> None:
    from edgedec.export.passes._scaled import readers
    from edgedec.export.passes.awq import groups

    found = readers(MODELS["latent"])
    assert found["blocks.0.norm"] == ("blocks.0.q_a", "blocks.0.kv_a")
    assert found["blocks.2.norm"] == ("blocks.2.q", "blocks.2.kv_a")
    assert [group.matrices for group in groups(MODELS["latent"], 0)] == [("blocks.0.q_a", "blocks.0.kv_a")]


@pytest.mark.parametrize("name", ["latent", "experts of gpt-oss"])
def test_tools_that_know_attention_by_its_matrices_refuse_these(name: str) -> None:
    pytest.importorskip("torch", reason="training needs torch")
    from edgedec.errors import UsageError
    from edgedec.export.kv_heads import check_heads
    from edgedec.export.students._frozen import require_frozen

    with pytest.raises(UsageError, match="--kv-heads: the model has"):
        check_heads(MODELS[name], 0.5)
    with pytest.raises(UsageError, match="it is trained through the target's attention and feed-forward blocks"):
        require_frozen(MODELS[name])


def test_a_slot_of_latent_attention_holds_one_vector(tmp_path: Path) -> None:
    """rank + rope_dim values for all heads, in every format and in both kinds of caches."""
    pytest.importorskip("onnx", reason="bundles are written with onnx")
    spec = only(MODELS["latent"].attention[4])
    block = spec.attention[0]
    assert (block.n_heads, block.head_dim, block.head_dim) == (4, 64, block.rank + block.rope_dim)
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec))
    for kv, token in (("f32", 256), ("f16", 128), ("int8", 64), ("int4", 32)):
        assert kv_bytes_per_token(spec, kv) == token
        runtime = open_runtime("reference", bundle, RuntimeOptions(kv=kv))
        cache = runtime.new_cache(8)
        logits_of(runtime, Rows.chain([1, 2, 3], 0), cache)
        assert cache.data(0).shape[:2] == (1, 1)
        if why_not() is None:
            native = open_runtime("native", bundle, RuntimeOptions(kv=kv, threads=1))
            paged = native.new_cache(100)
            logits_of(native, Rows.chain([1] * 70, 0), paged)
            paged.commit(range(70))
            assert paged.nbytes == cache_bytes(spec, kv, 70, 64) == 2 * 64 * row_bytes(64, kv)
