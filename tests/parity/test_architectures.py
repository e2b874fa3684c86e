"""Every architecture against transformers: facts, weight names, and the logits they lead to."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from edgedec.errors import BadTensor, CheckpointError, UnknownArchitecture
from edgedec.export.checkpoint import Checkpoint, open_checkpoint
from edgedec.models import Part, Source, architecture, known
from edgedec.runtime import Rows, logits_of
from edgedec.runtimes.reference import Reference, moe
from edgedec.spec import Attention, Block, Mlp, ModelSpec, Moe, Ssm

torch = pytest.importorskip("torch", reason="needs torch to build the models compared with")


def _load(path: Path) -> Any:
    """A helper module by its path: importlib import mode puts no folder of tests on sys.path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


zoo = _load(Path(__file__).parents[1] / "zoo.py")
oracle = _load(Path(__file__).parent / "oracle.py")

TOKENS = [1, 7, 3, 99, 42, 42, 5, 0, 63, 17, 88, 2, 31, 54, 9, 77, 6, 12, 40, 100, 8, 21, 34, 55]
# Besides the plain float32 file: shards, and the half formats (compared with the model rounded alike).
SAVED = {
    "llama": {"max_shard_size": "30KB"},
    "qwen2": {"dtype": "bfloat16"},
    "phi3_longrope": {"dtype": "float16"},
}


@dataclass(frozen=True)
class Saved:
    model: Any
    checkpoint: Checkpoint
    arch: Any
    read: dict[str, np.ndarray] = field(default_factory=dict)

    def spec(self, context: int | None = None) -> ModelSpec:
        return self.arch.spec(self.checkpoint.config, context)

    @cached_property
    def weights(self) -> dict[str, Source]:
        return self.arch.weights(self.spec(), self.checkpoint.config)

    def get(self, name: str) -> np.ndarray:
        if name not in self.read:
            source = self.weights[name]
            self.read[name] = self.checkpoint.read(source, 0, self.checkpoint.shape(source)[0])
        return self.read[name]

    def runtime(self) -> Reference:
        """The float model of an export."""
        return Reference(self.spec(), lambda name, start, stop: self.get(name)[start:stop])


@pytest.fixture(scope="module", params=sorted(zoo.ZOO))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return _save(request.param, tmp_path_factory.mktemp(request.param))


def _save(name: str, folder: Path) -> Saved:
    options = dict(SAVED.get(name, {}))
    dtype = options.pop("dtype", None)
    if dtype is None:
        model = zoo.save(name, folder, **options)
    else:
        model = zoo.ZOO[name]().to(getattr(torch, dtype))
        model.save_pretrained(folder)
        # Read back, since .to() rounded the rope's buffers as well.
        model = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    checkpoint = open_checkpoint(folder)
    return Saved(model, checkpoint, architecture(checkpoint.config))


def _logits(saved: Saved, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        return saved.model(torch.tensor([tokens])).logits[0].double().numpy()


def test_logits_are_those_of_transformers(saved: Saved) -> None:
    expected = _logits(saved, TOKENS)
    found = oracle.forward(saved.spec(), saved.get, TOKENS)
    assert expected.std() > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


def test_every_fact_shows_in_the_logits(saved: Saved) -> None:
    """The comparison above could not pass with a fact left out: each one moves the logits it is held to."""
    spec = saved.spec()
    expected = oracle.forward(spec, saved.get, TOKENS)
    for changed in _without(spec):
        assert np.abs(oracle.forward(changed, saved.get, TOKENS) - expected).max() > 1e-3, changed


def _without(spec: ModelSpec) -> list[ModelSpec]:
    """`spec` with one of its facts taken away at a time."""
    changed = [replace(spec, **{key: value}) for key, value in MODEL_FACTS.items() if getattr(spec, key) != value]
    changed += [replace(spec, ropes=(replace(rope, scale=1.0), *spec.ropes[1:])) for rope in spec.ropes[:1]]
    for kind, facts in BLOCK_FACTS.items():
        changed += [_replaced(spec, kind, key, value) for key, value in facts]
    return [c for c in changed if c != spec]


MODEL_FACTS: dict[str, Any] = {"final_softcap": 0.0, "embed_scale": 1.0, "norm_eps": 0.1}
# What each fact is replaced with; the ones that are 1 bigger or less are not to be overlooked where they are usual.
BLOCK_FACTS: dict[type[Block], list[tuple[str, Any]]] = {
    Attention: [
        ("softcap", 0.0),
        ("qk_norm", "none"),
        ("qkv_bias", False),
        ("o_bias", False),
        ("window", None),
        ("scale", 1.0),
        ("rope", 0),
        ("rope", None),
    ],
    Mlp: [("bias", False), ("activation", "silu"), ("activation", "gelu_tanh")],
    Moe: [
        ("router", "softmax"),
        ("router", "softmax_topk"),
        ("normalize", False),
        ("normalize", True),
        ("scale", 0.5),
        ("top_k", 2),
        ("top_k", 3),
        ("shared_size", 0),
        ("activation", "gelu_tanh"),
    ],
    Ssm: [("dt_min", 0.0), ("dt_max", 1e30), ("norm_groups", 1), ("proj_bias", False)],
}


def _replaced(spec: ModelSpec, kind: type[Block], key: str, value: Any) -> ModelSpec:
    """`spec` with one field of all its blocks of a kind; as it is if that gives no model, or the same function."""

    def changed(block: Any) -> Any:
        if not isinstance(block, kind) or (key == "rope" and value is not None and not spec.ropes):
            return block
        same = isinstance(block, Moe) and (
            (key == "normalize" and block.router == "softmax_topk") or (key == "router" and block.normalize)
        )
        return block if same else replace(block, **{key: value})

    return replace(spec, layers=tuple(tuple(changed(block) for block in layer) for layer in spec.layers))


def test_the_reference_runtime_agrees(saved: Saved) -> None:
    runtime = saved.runtime()
    found = logits_of(runtime, Rows.chain(TOKENS, 0), runtime.new_cache(32))
    np.testing.assert_allclose(found, _logits(saved, TOKENS), atol=1e-4, rtol=1e-4)


def test_greedy_text_is_that_of_transformers_across_a_saved_state(saved: Saved) -> None:
    """64 steps, of which the second half goes on from what a cache saved and another loaded."""
    runtime, ids = saved.runtime(), list(TOKENS[:4])
    steps = min(64, saved.spec().context_length - len(ids))
    cache = runtime.new_cache(len(ids) + steps)
    logits = [logits_of(runtime, Rows.chain(ids, 0), cache)]
    cache.commit(range(len(ids)))
    for step in range(steps):
        ids.append(int(logits[-1][-1].argmax()))
        if step == steps // 2:
            saved_cache, cache = cache, runtime.new_cache(cache.capacity)
            cache.load(saved_cache.save())
        logits.append(logits_of(runtime, Rows.chain(ids[-1:], cache.length), cache))
        cache.commit([0])
    expected = _logits(saved, ids)
    assert cache.length == len(ids) == 4 + steps
    assert expected.std() > 0.1
    assert expected[3:-1].argmax(axis=1).tolist() == ids[4:]
    np.testing.assert_allclose(np.concatenate(logits), expected, atol=1e-4, rtol=1e-4)


# 3 ─┬─ 9 ─┬─ 4 ── 8        two nodes carry the same token after different parents, and there are two roots
#    │     └─ 5
#    └─ 4 ── 9 ── 7
# 6
TREE = ([3, 9, 4, 4, 5, 8, 9, 7, 6], [-1, 0, 0, 1, 1, 3, 2, 6, -1])


def test_a_trees_nodes_are_the_ends_of_their_chains(saved: Saved) -> None:
    """Also after a branch is committed, and in a fork of the text before the tree."""
    runtime, before = saved.runtime(), TOKENS[:13]
    cache = runtime.new_cache(24)
    logits_of(runtime, Rows.chain(before, 0), cache)
    cache.commit(range(len(before)))
    tree = Rows.tree(*TREE, start=len(before))
    found = logits_of(runtime, tree, cache)
    for row, logits in enumerate(found):
        expected = _whole(runtime, [*before, *_path(tree, row)])
        np.testing.assert_allclose(logits, expected[-1], atol=1e-4, rtol=1e-4)
    fork = cache.fork()
    cache.commit([0, 2, 6])  # the branch 3 4 9
    for text, kept in (([*before, 3, 4, 9], cache), (before, fork)):
        assert kept.length == len(text)
        following = logits_of(runtime, Rows.chain([11], kept.length), kept)
        np.testing.assert_allclose(following, _whole(runtime, [*text, 11])[-1:], atol=1e-4, rtol=1e-4)


def _whole(runtime: Reference, ids: list[int]) -> np.ndarray:
    return logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(len(ids)))


def _path(tree: Rows, row: int) -> list[int]:
    parent = int(tree.parents[row])
    return [*(_path(tree, parent) if parent >= 0 else []), int(tree.tokens[row])]


KINDS = {
    "mixtral": {"moe"},
    "qwen3_moe": {"moe"},
    "olmoe": {"moe"},
    "granitemoe": {"moe"},
    "granitemoehybrid": {"ssm"},
    "bamba": {"ssm", "mlp"},
}


def test_rows_go_to_different_experts_and_states_carry_on(saved: Saved) -> None:
    spec, runtime = saved.spec(), saved.runtime()
    assert {"attention"} | KINDS.get(spec.architecture, {"mlp"}) <= set(spec.kinds)
    chosen = []

    def route(block: Moe, *args: Any) -> Any:
        chosen.append((block, found := usual(block, *args)))
        return found

    usual = moe.route
    with mock.patch.object(moe, "route", route):
        first = logits_of(runtime, Rows.chain(TOKENS, 0), runtime.new_cache(32))
    assert len(chosen) == sum(isinstance(block, Moe) for block in spec.blocks)
    for block, (experts, _) in chosen:
        assert experts.shape == (len(TOKENS), block.top_k)
        assert len(np.unique(experts)) > block.top_k, "all rows went to the same experts"
    if spec.recurrent:
        other = logits_of(runtime, Rows.chain([TOKENS[0] + 1, *TOKENS[1:]], 0), runtime.new_cache(32))
        assert np.abs(first - other)[1:9].max(axis=1).min() > 1e-4


def test_weights_cover_the_spec_and_the_checkpoint(saved: Saved) -> None:
    spec, weights = saved.spec(), saved.weights
    assert weights.keys() == spec.tensors().keys()
    assert {name: saved.checkpoint.shape(source) for name, source in weights.items()} == spec.tensors()
    saved.checkpoint.check(weights, spec, saved.arch.ignored)


def test_every_fact_is_the_models_own(saved: Saved) -> None:
    spec, config = saved.spec(), saved.model.config.get_text_config()
    assert spec.architecture == saved.checkpoint.config["model_type"]
    assert (spec.vocab_size, spec.hidden_size) == (config.vocab_size, config.hidden_size)
    assert spec.n_layers == config.num_hidden_layers
    for block in spec.attention.values():
        assert (block.n_heads, block.n_kv_heads) == (config.num_attention_heads, config.num_key_value_heads)
    for block in spec.blocks:
        assert not isinstance(block, Mlp) or block.inner_size in _mlp_sizes(config)
        assert not isinstance(block, Moe) or block.top_k == config.num_experts_per_tok
        assert not isinstance(block, Ssm) or block.inner_size == config.mamba_expand * config.hidden_size
    assert spec.tied == ("lm_head.weight" not in {n.split("model.")[-1] for n in saved.checkpoint.names})
    assert spec.norm_eps == config.rms_norm_eps


def _mlp_sizes(config: Any) -> list[int]:
    """The MLP of a hybrid Granite without experts is the one beside them."""
    shared = getattr(config, "shared_intermediate_size", None)
    return [config.intermediate_size] if shared is None else [shared]


def test_frequencies_are_those_of_transformers(saved: Saved) -> None:
    """To the last bits of float32: at position 100000 more would turn into an angle that is wrong."""
    buffers = {
        name.split(".")[-1]: value.double().numpy()
        for name, value in saved.model.named_buffers()
        if name.endswith("inv_freq") and "original" not in name and "vision" not in name
    }
    kinds = {"full_attention_inv_freq": 0, "sliding_attention_inv_freq": 1, "inv_freq": 0}
    assert buffers or not saved.spec().ropes
    for name, expected in buffers.items():
        found = saved.spec().ropes[kinds[name]].inv_freq
        np.testing.assert_allclose(found, expected, rtol=2.5e-7)


def test_rows_are_read_across_the_parts_of_a_source(saved: Saved) -> None:
    block = next(iter(saved.spec().attention))
    source = saved.weights[f"blocks.{block}.qkv"]
    whole = saved.get(f"blocks.{block}.qkv")
    cut = whole.shape[0] // 3
    np.testing.assert_array_equal(saved.checkpoint.read(source, cut, len(whole) - 5), whole[cut:-5])


def test_longrope_takes_the_long_set_only_if_asked(tmp_path: Path) -> None:
    phi = _save("phi3_longrope", tmp_path)
    short, long = phi.spec(), phi.spec(96)
    assert (short.context_length, long.context_length, phi.spec(20).context_length) == (32, 96, 20)
    assert short.ropes[0].inv_freq[0] == 1.0
    assert short.ropes[0].scale == long.ropes[0].scale == pytest.approx((1 + np.log(3) / np.log(32)) ** 0.5)
    tokens = (TOKENS * 2)[:40]  # past the original length transformers takes the long set too
    found = oracle.forward(long, phi.get, tokens)
    np.testing.assert_allclose(found, _logits(phi, tokens), atol=1e-4, rtol=1e-4)
    with pytest.raises(CheckpointError, match="a context of 97 is out of range"):
        phi.spec(97)


def test_old_and_new_ways_to_write_a_rope_agree() -> None:
    new = LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    old = LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert architecture(new).spec(new) == architecture(old).spec(old)
    gemma = LLAMA | {"model_type": "gemma3_text", "num_hidden_layers": 7}
    old = gemma | {
        "rope_theta": 2e6,
        "rope_local_base_freq": 3e4,
        "rope_scaling": {"type": "linear", "factor": 8.0},
    }
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6}
    sliding = {"rope_type": "default", "rope_theta": 3e4}
    new = gemma | {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}
    assert architecture(old).spec(old) == architecture(new).spec(new)
    assert [block.rope for block in architecture(old).spec(old).attention.values()] == [1, 1, 1, 1, 1, 0, 1]


LLAMA = {
    "model_type": "llama",
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def _spec(**changes: Any) -> ModelSpec:
    config = LLAMA | changes
    return architecture(config).spec(config)


# What no architecture guesses; the rest of its keys is left out.
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
ASKED: dict[str, dict[str, Any]] = {
    "mixtral": EXPERTS,
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": EXPERTS,
    "granitemoehybrid": EXPERTS | HYBRID | {"mamba_n_heads": 8},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8},
}
MIXTRAL = ASKED["mixtral"] | {"model_type": "mixtral", "num_key_value_heads": 2}
HYBRID_CONFIG = ASKED["granitemoehybrid"] | {"model_type": "granitemoehybrid"}


def test_what_a_config_leaves_out_is_what_transformers_assumes() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    for name in known():
        if name == "gemma3":
            continue
        changes: dict[str, Any] = {"num_attention_heads": 32, "hidden_size": 128} | ASKED.get(name, {})
        changes.pop("mamba_n_heads", None)
        spec, config = _spec(model_type=name, **changes), {k: v for k, v in LLAMA.items() if k != "model_type"}
        theirs = transformers.AutoConfig.for_model(name, **config | changes)
        block = next(iter(spec.attention.values()))
        assert block.n_kv_heads == theirs.num_key_value_heads, name
        assert block.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // 32), name
        assert spec.tied == theirs.tie_word_embeddings, name
        assert spec.norm_eps == theirs.rms_norm_eps, name
        for last in (layer[-1] for layer in spec.layers):
            if isinstance(last, Moe) and last.router == "softmax":
                assert last.normalize == getattr(theirs, "norm_topk_prob", True), name
            if isinstance(last, Moe):
                assert last.shared_size == getattr(theirs, "shared_intermediate_size", 0), name
        for ssm in spec.recurrent.values():
            sizes = (ssm.n_heads, ssm.head_dim, ssm.n_groups, ssm.state_size, ssm.conv_size)
            names = ("n_heads", "d_head", "n_groups", "d_state", "d_conv")
            assert sizes == tuple(getattr(theirs, f"mamba_{name}") for name in names), name
            assert (ssm.proj_bias, ssm.dt_min, ssm.dt_max) == (theirs.mamba_proj_bias, 0.0, 1e30), name


def test_gemma3_text_config_may_be_almost_empty() -> None:
    """As published: sizes that are the usual ones are not written down."""
    text = {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024, "intermediate_size": 10240}
    text |= {"model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}}
    spec = architecture(config).spec(config)
    block = spec.attention[0]
    assert (spec.vocab_size, block.n_heads, block.n_kv_heads, block.head_dim) == (262208, 8, 4, 256)
    assert (spec.context_length, spec.tied, spec.embed_scale) == (131072, True, float(np.float32(2560**0.5)))
    assert [(spec.attention[b].rope, spec.attention[b].window) for b in (8, 10, 12)] == [
        (1, 1024),
        (0, None),
        (1, 1024),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {
            "model_type": "llama",
            "is_llama_config": True,
            "rope_interleaved": False,
            "transformers.js_config": {"a": 1},
        },
        {"model_type": "smollm3", "max_window_layers": 28, "sliding_window": None, "pretraining_tp": 2},
        {
            "model_type": "gemma2",
            "hidden_act": "gelu",
            "sliding_window_size": 8,
            "cache_implementation": "hybrid",
        },
        {
            "model_type": "phi3",
            "full_attn_mod": 1,
            "interpolate_factor": 1,
            "lm_head_bias": False,
            "embd_pdrop": 0.1,
        },
        {"model_type": "qwen2", "use_mrope": False, "max_window_layers": 28, "num_key_value_heads": 2},
        {"model_type": "mixtral", "num_key_value_heads": 2, "router_aux_loss_coef": 0.02, "sliding_window": None},
        {"model_type": "qwen3_moe", "max_window_layers": 48, "sliding_window": 8, "num_local_experts": 4},
        {"model_type": "olmoe", "clip_qkv": None, "output_router_logits": True},
        {"model_type": "granitemoehybrid", "position_embedding_type": "nope", "init_method": "mup"},
        {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"], "mamba_chunk_size": 64},
        {"model_type": "granitemoehybrid", "normalization_function": "rmsnorm", "layers_block_type": None},
        {"model_type": "bamba", "attn_rotary_emb": 6, "num_key_value_heads": 2, "z_loss_coefficient": 0.1},
        {"model_type": "bamba", "num_key_value_heads": 2, "time_step_limit": [0, {"__float__": "Infinity"}]},
    ],
)
def test_what_published_configs_add_is_understood(changes: dict[str, Any]) -> None:
    asked = ASKED.get(changes["model_type"], {}) | {"hidden_size": 48}
    least = {k: v for k, v in changes.items() if k in ("model_type", "num_key_value_heads")}
    assert _spec(**asked | changes) == _spec(**asked | least)


ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
    {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768},
    {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 40.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "truncate": False,
    },
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "attention_factor": 1.7, "beta_fast": 16.0},
]


@pytest.mark.parametrize("table", ROPES)
def test_ropes_of_real_sizes(table: dict[str, Any]) -> None:
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils", reason="needs transformers")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama", reason="needs transformers")
    sizes = {"head_dim": 128, "max_position_embeddings": 131072, "rope_parameters": table}
    config = llama.LlamaConfig(**{k: v for k, v in LLAMA.items() if k != "model_type"} | sizes)
    default = llama.LlamaRotaryEmbedding.compute_default_rope_parameters
    inv_freq, scale = rope_utils.ROPE_INIT_FUNCTIONS.get(table["rope_type"], default)(config)
    found = _spec(**sizes).ropes[0]
    np.testing.assert_allclose(found.inv_freq, inv_freq.double().numpy(), rtol=2.5e-7)
    assert found.scale == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": None}, "vocab_size must be a whole number, found null"),
        ({"vocab_size": "101"}, "vocab_size must be a whole number of at least 1, found '101'"),
        ({"vocab_size": 0}, "vocab_size must be a whole number of at least 1, found 0"),
        ({"hidden_act": "relu2"}, "hidden_act 'relu2' is not supported"),
        ({"attention_bias": 1}, "attention_bias must be true or false, found 1"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is set: is already quantized"),
        ({"num_local_experts": 8}, "num_local_experts is set: this architecture has no experts"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier is not known"),
        ({"rope_scaling": {"type": "abf"}}, "rope_type 'abf' is not one of default, linear"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "default", "mrope_section": [1, 2]}}, "mrope_section is not known"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported by this architecture"),
        ({"head_dim": 15}, "rotates 15 of 15 dims"),
        ({"hidden_size": 50}, "hidden_size 50 is not a multiple of 4 heads"),
        ({"num_key_value_heads": 3}, "4 heads do not share 3 kv heads evenly"),
        (
            {"model_type": "qwen2", "num_key_value_heads": 2, "layer_types": ["full_attention"]},
            "names 1 layers of 2",
        ),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention is set"),
        (
            {"model_type": "smollm3", "layer_types": ["sliding_attention"] * 2},
            "while use_sliding_window is false",
        ),
        ({"model_type": "mistral", "layer_types": ["full_attention"] * 2}, "contradicts sliding_window"),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "su", "short_factor": [1.0]}},
            "short_factor must be a list",
        ),
        ({"model_type": "mixtral"}, "num_local_experts is missing"),
        (MIXTRAL | {"intermediate_size": 20}, "is not a multiple of 16"),
        (MIXTRAL | {"num_experts_per_tok": 5}, "top_k: 5 of 4 experts"),
        (
            ASKED["qwen3_moe"] | {"model_type": "qwen3_moe", "num_local_experts": 8},
            "num_experts is 4, num_local_experts",
        ),
        (ASKED["qwen3_moe"] | {"model_type": "qwen3_moe", "mlp_only_layers": ["0"]}, "mlp_only_layers must be a list"),
        (ASKED["olmoe"] | {"model_type": "olmoe", "clip_qkv": 8.0}, "clip_qkv is set"),
        (ASKED["granitemoe"] | {"model_type": "granitemoe", "logits_scaling": 0}, "must be a positive number"),
        (HYBRID_CONFIG | {"layer_types": ["mamba"]}, "layer_types names 1 layers of 2"),
        (HYBRID_CONFIG | {"layer_types": ["mamba", "moe"]}, "layer_types 'moe' is not supported"),
        (HYBRID_CONFIG | {"position_embedding_type": "alibi"}, "position_embedding_type 'alibi' is not supported"),
        (
            HYBRID_CONFIG | {"normalization_function": "layernorm"},
            "normalization_function 'layernorm' is not supported",
        ),
        (HYBRID_CONFIG | {"mamba_conv_bias": False}, "mamba_conv_bias is false"),
        (HYBRID_CONFIG | {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported by Mamba blocks"),
        (HYBRID_CONFIG | {"mamba_n_heads": 7}, "7 heads of 13 do not fill 96 channels"),
        (HYBRID_CONFIG | {"mamba_n_groups": 5}, "heads do not share 5 groups evenly"),
        (HYBRID_CONFIG | {"time_step_limit": [1.0, 0.5]}, "time_step_limit must be two ascending numbers"),
        (HYBRID_CONFIG | {"time_step_limit": 3}, "time_step_limit must be two ascending numbers"),
        (HYBRID_CONFIG | {"mamba_step_rank": 3}, "mamba_step_rank is not known"),
        (
            {"model_type": "bamba", "num_key_value_heads": 2, "mamba_n_heads": 8, "attn_rotary_emb": 12},
            "is not 6, half",
        ),
        ({"model_type": "bamba", "partial_rotary_factor": 1.0}, "partial_rotary_factor is not supported; known: 0.5"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        _spec(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_which_layers_have_experts() -> None:
    """Every second layer, and none of those named; as transformers builds them."""
    asked = ASKED["qwen3_moe"] | {"model_type": "qwen3_moe", "num_hidden_layers": 6, "mlp_only_layers": [3]}
    spec = _spec(**asked, decoder_sparse_step=2)
    assert [layer[1].kind for layer in spec.layers] == ["mlp", "moe", "mlp", "mlp", "mlp", "moe"]
    assert [spec.span(i, i + 1) for i in (0, 5)] == [range(2), range(10, 12)]


def test_hybrids_with_and_without_positions_and_experts() -> None:
    rotated = _spec(**HYBRID_CONFIG, position_embedding_type="rope")
    assert [block.kind for block in rotated.blocks] == ["ssm", "moe", "attention", "moe"]
    assert (rotated.attention[2].rope, len(rotated.ropes)) == (0, 1)
    still = _spec(**HYBRID_CONFIG)
    assert (still.attention[2].rope, still.ropes) == (None, ())
    dense = _spec(**HYBRID_CONFIG | {"num_local_experts": 0, "num_experts_per_tok": 0})
    assert [block.kind for block in dense.blocks] == ["ssm", "mlp", "attention", "mlp"]


def test_multipliers_are_in_the_spec_or_in_the_weights() -> None:
    config = LLAMA | ASKED["granitemoe"] | {"model_type": "granitemoe", "embedding_multiplier": 12}
    config |= {"attention_multiplier": 0.25, "residual_multiplier": 0.22, "logits_scaling": 8.0}
    spec = architecture(config).spec(config)
    found = architecture(config).weights(spec, config)
    assert (spec.embed_scale, spec.attention[0].scale) == (12.0, 0.25)
    times = {name: {part.times for part in source} for name, source in found.items()}
    last = {"blocks.0.o", "blocks.1.down", "blocks.2.o", "blocks.3.down"}
    assert {name for name, factors in times.items() if factors == {0.22}} == last
    assert times["final_norm"] == {0.125}
    assert all(factors == {1.0} for name, factors in times.items() if name not in last | {"final_norm"})


def test_unknown_keys_that_are_off_pass() -> None:
    assert _spec(rope_interleaved=False, some_scale=None, _attn="x", unsloth_fixed=True) == _spec()


def test_unknown_architectures_are_listed() -> None:
    with pytest.raises(UnknownArchitecture, match=r"'mamba' is not one of bamba, .*, smollm3$"):
        architecture({"model_type": "mamba"})
    for name in ("_common", "nano", "heads", "../llama"):
        with pytest.raises(UnknownArchitecture):
            architecture({"model_type": name})
    with pytest.raises(CheckpointError, match="model_type must be a string"):
        architecture({})


def test_a_window_as_wide_as_the_context_is_none() -> None:
    assert _spec(model_type="mistral", num_key_value_heads=2, sliding_window=64).windows == ((None, 0),)
    assert _spec(model_type="mistral", num_key_value_heads=2, sliding_window=63).windows == ((63, 0),)


def test_check_names_the_first_offender(tmp_path: Path) -> None:
    saved = _save("qwen2", tmp_path)
    spec, weights = saved.spec(), saved.weights
    with pytest.raises(BadTensor, match=r"^lm_head.weight: \(101, 48\) is not part of a qwen2 model"):
        saved.checkpoint.check({k: v for k, v in weights.items() if k != "head"} | {"head": weights["embed"]}, spec, ())
    with pytest.raises(BadTensor, match=r"^nowhere: missing from .*; part of final_norm \(48,\)"):
        saved.checkpoint.check(weights | {"final_norm": (Part("nowhere"),)}, spec, saved.arch.ignored)
    with pytest.raises(BadTensor, match=r"blocks.1.gate_up has shape \(72, 48\), expected \(144, 48\)"):
        saved.checkpoint.check(weights | {"blocks.1.gate_up": weights["blocks.1.gate_up"][:1]}, spec, ())


def test_a_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    saved = _save("qwen2", tmp_path)
    config = saved.checkpoint.config | {"tie_word_embeddings": True}
    spec = saved.arch.spec(config)
    with pytest.raises(BadTensor, match=r"lm_head.weight: differs from the embedding"):
        saved.checkpoint.check(saved.arch.weights(spec, config), spec, saved.arch.ignored)
