"""SmallThinker: what its configs say and what is refused, and experts whose router reads the state before attention."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafting import host, run

from edgedec.bench.experts import alone
from edgedec.drafters import make_drafter, skip
from edgedec.drafters._slices.costs import SliceCosts
from edgedec.drafters.off import Off
from edgedec.errors import BundleCorrupt, CheckpointError, UsageError
from edgedec.export.kv_heads import check_heads
from edgedec.export.passes._scaled import readers
from edgedec.export.passes._statistics import Statistics
from edgedec.kernels.cpu import loader
from edgedec.models import architecture
from edgedec.runtime import ALL_LOGITS, Call, Outputs, Rows, Runtime, RuntimeOptions, forward_one, open_runtime
from edgedec.runtimes.reference import Reference, moe
from edgedec.runtimes.reference.numeric import BlockWeights
from edgedec.spec import Attention, Mlp, ModelSpec, Moe
from edgedec.spec.branches import first_beside, may_enter, routed_from
from edgedec.spec.newer import EARLY_ROUTER, newer
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS
from edgedec.testing.fakes import random_reference, tiny_spec

# SmallThinker-4BA0.6B-Instruct.
SMALL: dict[str, Any] = {
    "model_type": "smallthinker",
    "model_name": "smallthinker_4b_instruct",
    "head_dim": 128,
    "hidden_size": 1536,
    "max_position_embeddings": 32768,
    "moe_ffn_hidden_size": 768,
    "moe_num_active_primary_experts": 4,
    "moe_num_primary_experts": 32,
    "norm_topk_prob": True,
    "num_attention_heads": 12,
    "num_hidden_layers": 32,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_layout": [1] * 32,
    "rope_scaling": None,
    "rope_theta": 1.5e6,
    "sliding_window_size": 4096,
    "sliding_window_layout": [0] * 32,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
# The sizes of the 21B model, as its authors list them, and its layers as llama.cpp has them.
LARGE = SMALL | {
    **{"hidden_size": 2560, "num_hidden_layers": 52, "num_attention_heads": 28, "num_key_value_heads": 4},
    **{"moe_num_primary_experts": 64, "moe_num_active_primary_experts": 6, "tie_word_embeddings": False},
    **dict.fromkeys(("rope_layout", "sliding_window_layout"), [0, 1, 1, 1] * 13),
}
NAME = "experts chosen before attention"
EARLY = MODELS[NAME]
HEADS = EARLY.attention[0]
EXPERTS = Moe(4, 2, 16, early_router=True)


def spec_of(config: dict[str, Any]) -> ModelSpec:
    return architecture(config).spec(config)


@pytest.mark.parametrize(("config", "total", "active"), [(SMALL, 4e9, 0.6e9), (LARGE, 21e9, 3e9)])
def test_published_models_have_the_published_sizes(config: dict[str, Any], total: float, active: float) -> None:
    spec = spec_of(config)
    assert sum(prod(shape) for shape in spec.tensors().values()) == pytest.approx(total, rel=0.1)
    experts = spec.blocks[1]
    assert isinstance(experts, Moe)
    matrices = sum(prod(shape) for shape in experts.matrices(spec.hidden_size).values()) * spec.n_layers
    read = sum(prod(spec.tensors()[name]) for name in spec.matrices & spec.tensors().keys() if name != "embed")
    read -= matrices * (1 - experts.top_k / experts.n_experts)
    assert read == pytest.approx(active, rel=0.2)
    assert experts.activation == "relu"
    assert (experts.router, experts.normalize, experts.early_router) == ("sigmoid", True, True)


def test_layers_with_a_window_turn_and_the_others_do_not() -> None:
    attention = list(spec_of(LARGE).attention.values())
    assert [(block.window, block.rope) for block in attention[:5]] == [(None, None), *[(4096, 0)] * 3, (None, None)]
    assert {(block.window, block.rope) for block in spec_of(SMALL).attention.values()} == {(None, 0)}


def test_what_a_config_leaves_out_is_what_the_authors_code_assumes() -> None:
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
    sizes = ("model_type", *keys, *(key for key in SMALL if key.startswith("moe_")))
    spec = spec_of({key: SMALL[key] for key in sizes})
    own = spec_of(SMALL | {"rope_theta": 1e6})
    assert spec == own
    windowed = spec_of({key: value for key, value in LARGE.items() if key != "sliding_window_size"})
    assert {block.window for block in windowed.attention.values()} == {None, 4096}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_layout": [1] * 31}, "rope_layout must be a 0 or a 1 for each of 32 layers"),
        ({"sliding_window_layout": [2] * 32}, "sliding_window_layout must be a 0 or a 1"),
        ({"sliding_window_size": None}, "sliding_window_size must be a whole number"),
        ({"moe_layer_layout": [1] * 31 + [0]}, "moe_layer_layout has a layer without experts"),
        ({"moe_enable_early_router": False}, "moe_enable_early_router False is not supported"),
        ({"moe_enable_secondary_experts": True}, "moe_enable_secondary_experts True is not supported"),
        ({"moe_shared_primary_experts": 1}, "moe_shared_primary_experts 1 is not supported"),
        ({"use_qk_norm": True}, "use_qk_norm True is not supported"),
        ({"norm_topk_prob": False}, "norm_topk_prob False is not supported"),
        ({"moe_primary_router_apply_softmax": 1}, "moe_primary_router_apply_softmax must be true or false"),
        ({"moe_num_active_primary_experts": 33}, "33 of 32 experts"),
        ({"hidden_act": "silu"}, "hidden_act is not known"),
    ],
)
def test_other_configs_are_refused_in_a_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        spec_of(SMALL | changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "layer",
    [
        (EXPERTS,),
        (EXPERTS, HEADS),
        (replace(HEADS, branch=True), EXPERTS),
        (HEADS, replace(EXPERTS, branch=True), Mlp(96)),
        (replace(HEADS, branch=True), Mlp(96), EXPERTS),
    ],
)
def test_an_early_router_stands_alone_after_one_block(layer: Any) -> None:
    with pytest.raises(BundleCorrupt, match="early_router: after one block of the layer, beside none"):
        replace(EARLY, layers=(layer,)).check()
    given = replace(EXPERTS, top_k=1, router="given", normalize=False, given_by=0)
    with pytest.raises(BundleCorrupt, match="given experts are one a row, of weight 1, and have no router"):
        replace(EARLY, layers=((HEADS, given),)).check()


def test_engines_without_it_refuse_by_name(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="bundles are written with onnx")
    from edgedec.export.onnx import unsupported_on_devices, whole_model_reason
    from edgedec.runtime import lacking_kinds
    from edgedec.runtimes.tvm.support import library_lacks, sources_lack

    spec = replace(EARLY, layers=((HEADS, EXPERTS),))
    assert newer(spec) == (EARLY_ROUTER,)
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec))
    assert bundle.manifest.version == 9
    assert lacking_kinds(bundle, ("attention", "moe")) == f"has no {EARLY_ROUTER}, which this model needs"
    reasons = {library_lacks(spec), sources_lack(spec), unsupported_on_devices(spec), whole_model_reason(spec)}
    assert reasons <= {f"it has {EARLY_ROUTER}", "it has moe blocks"}
    assert library_lacks(spec) == sources_lack(spec) == f"it has {EARLY_ROUTER}"


def test_what_runs_blocks_one_at_a_time_refuses_it() -> None:
    weights = random_weights(EARLY)
    with pytest.raises(UsageError, match=f"--passes: {NAME} has {EARLY_ROUTER}; calibration"):
        Statistics((np.arange(4),)).run(EARLY, lambda name, start, stop: weights[name][start:stop])
    with pytest.raises(UsageError, match=f"--kv-heads: the model has {EARLY_ROUTER}"):
        check_heads(replace(EARLY, layers=((HEADS, EXPERTS),)), 1)
    assert all(f"blocks.{b}.router" not in names for b in range(EARLY.n_blocks) for names in readers(EARLY).values())
    assert "blocks.1.router" in readers(MODELS["experts"])["blocks.1.norm"]


def test_where_a_call_may_begin() -> None:
    early = [b for b, block in enumerate(EARLY.blocks) if isinstance(block, Moe)]
    assert early == [1, 3, 5, 7, 10]
    assert [b for b in range(EARLY.n_blocks) if not may_enter(EARLY, b)] == early
    assert [routed_from(EARLY, b) for b in early] == [0, 2, 4, 6, 9]
    beside = MODELS["side by side"]
    assert [may_enter(beside, b) for b in range(5)] == [True, False, True, False, False]
    assert [routed_from(beside, b) for b in range(5)] == [first_beside(beside, b) for b in range(5)]


def runtimes(folder: Path) -> list[Runtime]:
    bundle = write_bundle(folder, EARLY, random_weights(EARLY))
    found = [open_runtime("reference", bundle)]
    if loader.why_not() is None:
        found.append(open_runtime("native", bundle, RuntimeOptions(threads=2)))
    assert alone(bundle) == {}
    return found


def test_a_call_does_not_begin_where_the_state_before_is_gone(tmp_path: Path) -> None:
    rows = Rows.chain([5, 6, 7], 0)
    for runtime in runtimes(tmp_path / "b"):
        n, cache = EARLY.n_blocks, runtime.new_cache(8)
        whole = forward_one(runtime, Call(rows, runtime.new_cache(8), outputs=ALL_LOGITS)).logits
        states = forward_one(runtime, Call(rows, cache, range(3), outputs=Outputs(hidden=(1, 2)))).hidden
        said = "block 3 first: its router reads the state before block 2; begin with"
        with pytest.raises(
            UsageError, match=said if runtime.name == "reference" else "a block that the model or the call"
        ):
            forward_one(runtime, Call(rows, cache, range(3, n), states[2]))
        rest = forward_one(runtime, Call(rows, cache, range(2, n), states[1], ALL_LOGITS)).logits
        np.testing.assert_array_equal(rest, whole)


def test_where_attention_is_left_out_the_router_reads_what_enters_the_experts(tmp_path: Path) -> None:
    """Also in a forward with calls that run it, and with the rows between them that run neither."""
    rows, kept = Rows.chain([5, 6, 7], 0), (0, 1, 3, 4, 5)
    weights = random_weights(EARLY)
    w = BlockWeights(EARLY, 3, lambda name, start, stop: weights[name][start:stop])
    for runtime in runtimes(tmp_path / "b"):

        def call(blocks: Any, runtime: Runtime = runtime) -> Call:
            return Call(rows, runtime.new_cache(8), blocks, None, Outputs(hidden=(blocks[-1],)))

        entered = forward_one(runtime, call((0, 1))).hidden[1]
        expected = entered + moe.run(EARLY.blocks[3], w, entered, before=entered)  # type: ignore[arg-type]
        np.testing.assert_allclose(forward_one(runtime, call((0, 1, 3))).hidden[3], expected, atol=1e-5)
        makers = [kept, range(6), (0, 1, 4, 5), (0, 1, 2, 3), kept]
        together = runtime.forward([call(blocks) for blocks in makers])
        for blocks, result in zip(makers, together, strict=True):
            last = blocks[-1]
            np.testing.assert_array_equal(result.hidden[last], forward_one(runtime, call(blocks)).hidden[last])
        assert not np.allclose(together[0].hidden[5], together[1].hidden[5], atol=1e-3)


def layered(n: int) -> ModelSpec:
    spec = tiny_spec(window=4, n_layers=n, hidden_size=32)
    heads = next(block for block in spec.blocks if isinstance(block, Attention))
    return replace(spec, layers=((heads, EXPERTS),) * n).check()


@pytest.mark.parametrize("skipped", [(3,), (2, 7), (5, 6)])
def test_a_draft_that_skips_experts_or_attention_is_verified(
    skipped: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verification goes on at attention, though the draft has run it."""
    monkeypatch.setattr(SliceCosts, "add", lambda *args: None)
    monkeypatch.setattr(skip, "even", lambda spec, share: skipped)
    runtime = random_reference(layered(6), 1)
    assert isinstance(runtime, Reference)
    drafter = make_drafter("skip", host(runtime), {"search": "off"})
    expected = run(runtime, Off(), capacity=64, max_tokens=40)[0]
    found, _, stats, trace = run(runtime, drafter, capacity=64, max_tokens=40)
    assert found == expected
    assert stats.proposed > 0
    starts = {turn.draft.blocks[0] for turn in trace if turn.draft.tokens}
    assert starts == {skipped[0] - skipped[0] % 2}


def test_experts_are_chosen_by_logits_where_sigmoids_are_equal() -> None:
    logits = np.array([[20.0, 30.0, 25.0, -1.0]], np.float32)
    early = replace(EXPERTS, router="sigmoid")
    assert moe.route(early, logits)[0].tolist() == [[1, 2]]
    assert moe.route(replace(early, early_router=False), logits)[0].tolist() == [[0, 1]], "all three are 1"
