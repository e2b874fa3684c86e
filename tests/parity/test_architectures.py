"""Every architecture against transformers: weight names, facts, and the logits they lead to.

Where torch is not installed the models are those of `zoo_golden`, beside what transformers once made of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zoo_golden
from config_names import delta_sizes, kv_heads, named, norm_eps
from zoo_golden import PROMPT, STEPS, TOKENS

from edgedec.errors import BadTensor, CheckpointError
from edgedec.export.checkpoint import Checkpoint, open_checkpoint
from edgedec.models import Part, Source, architecture
from edgedec.runtime import Rows, logits_of
from edgedec.runtimes.reference import Reference, moe
from edgedec.spec import (
    S6,
    AltUp,
    Attention,
    Block,
    Conv,
    Delta,
    EncoderEntry,
    Gmu,
    HeadLayer,
    LatentAttention,
    Laurel,
    Lookup,
    Mlp,
    ModelSpec,
    Moe,
    Rwkv7,
    SharedAttention,
    Ssm,
)

TORCH = all(map(find_spec, ("torch", "transformers")))
if TORCH:
    import torch
    import zoo


def _load(path: Path) -> Any:
    """A helper module by its path: importlib import mode puts no folder of tests on sys.path."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


oracle = _load(Path(__file__).parent / "oracle.py")

# Besides the plain float32 file: shards, and the half formats (compared with the model rounded alike).
SAVED = {
    "llama": {"max_shard_size": "30KB"},
    "qwen2": {"dtype": "bfloat16"},
    "phi3_longrope": {"dtype": "float16"},
}


@dataclass(frozen=True)
class Saved:
    """model: of transformers; None: golden has what it made of TOKENS and of PROMPT."""

    model: Any
    checkpoint: Checkpoint
    arch: Any
    golden: zoo_golden.Golden | None = None
    read: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def config(self) -> Any:
        """Of the text's model, by the names of transformers."""
        return named(self.golden.config) if self.golden is not None else self.model.config.get_text_config()

    def spec(self, context: int | None = None) -> ModelSpec:
        return self.arch.spec(self.checkpoint.config, context)

    @cached_property
    def weights(self) -> dict[str, Source]:
        return self.checkpoint.weights(self.spec())

    def get(self, name: str) -> np.ndarray:
        if name not in self.read:
            source = self.weights[name]
            self.read[name] = self.checkpoint.read(source, 0, self.checkpoint.shape(source)[0])
        return self.read[name]

    def runtime(self) -> Reference:
        """The float model of an export."""
        return Reference(self.spec(), lambda name, start, stop: self.get(name)[start:stop])


@pytest.fixture(scope="module", params=sorted(zoo.ZOO) if TORCH else zoo_golden.names())
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp(request.param) / "checkpoint"
    return _save(request.param, folder) if TORCH else _golden(request.param, folder)


def _golden(name: str, folder: Path) -> Saved:
    golden = zoo_golden.golden(name)
    checkpoint = open_checkpoint(zoo_golden.write(folder, golden.config, golden.tensors))
    return Saved(None, checkpoint, architecture(checkpoint.config), golden)


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
    if saved.golden is not None:
        assert tokens == TOKENS
        return saved.golden.logits.astype(np.float64)
    with torch.no_grad():
        return saved.model(torch.tensor([tokens])).logits[0].double().numpy()


def test_logits_are_those_of_transformers(saved: Saved) -> None:
    expected = _logits(saved, TOKENS)
    assert expected.std() > 0.1
    _close(oracle.forward(saved.spec(), saved.get, TOKENS), expected)


def _close(found: np.ndarray, expected: np.ndarray, times: int = 1) -> None:
    """float32 sums in another order, for logits that spread by 1; some models' do by more."""
    np.testing.assert_allclose(found, expected, atol=times * 1e-4 * max(1.0, float(expected.std())), rtol=1e-4)


def test_every_fact_shows_in_the_logits(saved: Saved) -> None:
    """The comparison above could not pass with a fact left out: each one moves the logits it is held to."""
    spec = saved.spec()
    short, whole = ((tokens, oracle.forward(spec, saved.get, tokens)) for tokens in (TOKENS[:12], TOKENS))
    for changed in _without(spec):
        # More tokens than any window has; groups of experts may show in few of them. Of gelu and its approximation the
        # least; four times what the comparison lets pass.
        moved = (np.abs(oracle.forward(changed, saved.get, ids) - logits).max() for ids, logits in (short, whole))
        assert any(most > 4e-4 for most in moved), changed


def _without(spec: ModelSpec) -> list[ModelSpec]:
    """`spec` with one of its facts taken away at a time."""
    changed = [replace(spec, **{key: value}) for key, value in MODEL_FACTS.items() if getattr(spec, key) != value]
    changed += [replace(spec, ropes=(replace(rope, scale=1.0), *spec.ropes[1:])) for rope in spec.ropes[:1]]
    changed += [replace(spec, entry=entry) for entry in _entries(spec.entry)]
    changed += [replace(spec, head_layer=layer) for layer in _head_layers(spec.head_layer)]
    for kind, facts in BLOCK_FACTS.items():
        changed += [_replaced(spec, kind, key, value) for key, value in facts]
    return [c for c in changed if c != spec]


def _entries(entry: EncoderEntry | None) -> list[EncoderEntry]:
    """What enters the first block, without its positions and without its norm."""
    return [] if entry is None else [replace(entry, positions=0), replace(entry, norm="none")]


def _head_layers(layer: HeadLayer | None) -> list[HeadLayer | None]:
    """What is before the head, without each of its parts and without all of them."""
    if layer is None:
        return []
    others = {"activation": ("silu", "gelu", "gelu_tanh"), "bias": (False,), "norm": ("rms",)}
    return [None, *(replace(layer, **{key: value}) for key, values in others.items() for value in values)]


MODEL_FACTS: dict[str, Any] = {"final_softcap": 0.0, "embed_scale": 1.0, "norm_eps": 0.1, "head_bias": False}
# What each fact is replaced with; the ones that are 1 bigger or less are not to be overlooked where they are usual.
BLOCK_FACTS: dict[type[Block], list[tuple[str, Any]]] = {
    Attention: [
        ("softcap", 0.0),
        ("qk_norm", "none"),
        ("qkv_bias", False),
        ("o_bias", False),
        ("window", None),
        ("scale", 1.0),
        ("sink_logit", False),
        ("rope", 0),
        ("rope", None),
        ("gate", "none"),
        ("gate", "head"),
        ("branch", False),
        ("clip", 0.0),
        ("slopes", ()),
        ("inner_norm", "none"),
        ("qk_norm_kind", "rms"),
        ("qk_norm_last", False),
        ("norm", "rms"),
        ("v_norm", False),
        ("differential", 0.3),
        ("feeds", False),
        ("after", "none"),
    ],
    AltUp: [("active", 0), ("active", 1)],
    Gmu: [("bias", False), ("norm", "rms")],
    Laurel: [("scale", 1.0), ("norm", "none")],
    SharedAttention: [
        ("qk_norm", "none"),
        ("window", None),
        ("scale", 3.0),
        ("rope", None),
        ("q_bias", False),
        ("o_bias", False),
        ("branch", False),
        ("norm", "rms"),
        ("differential", 0.3),
    ],
    Lookup: [
        ("activation", "relu"),
        ("post_norm", "none"),
        ("state_scale", False),
        ("streams", False),
        ("input_scale", False),
    ],
    Mlp: [
        ("state_scale", False),
        ("sparsity", 0.0),
        ("feeds", False),
        ("after", "none"),
        ("bias", False),
        ("activation", "silu"),
        ("activation", "gelu_tanh"),
        ("activation", "relu"),
        ("inner_norm", "none"),
        ("norm", "rms"),
    ],
    Conv: [("bias", False), ("conv_size", 2)],
    Delta: [
        ("beta_scale", 1.0),
        ("eps", 0.1),
        ("gate", "sigmoid"),
        ("gate", "silu"),
        ("conv_size", 2),
    ],
    LatentAttention: [("inner_eps", 0.1), ("scale", 1.0), ("qkv_bias", False), ("o_bias", False), ("rope", None)],
    Moe: [
        ("router", "softmax"),
        ("router", "softmax_topk"),
        ("normalize", False),
        ("normalize", True),
        ("scale", 0.5),
        ("top_k", 2),
        ("top_k", 3),
        ("shared_size", 0),
        ("shared_gate", False),
        ("router_bias", False),
        ("groups", 1),
        ("bias", False),
        ("logit_bias", False),
        ("clamped", False),
        ("shared_gate", False),
        ("router_bias", False),
        ("activation", "gelu_tanh"),
        ("jitter", 0.2),
        ("norm", "rms"),
        ("router_norm", False),
        ("expert_scale", False),
        ("early_router", False),
        ("activation", "silu"),
        ("joined", "none"),
        ("drop_below", 0.0),
        ("protect_from", 0.0),
        ("state_scale", False),
    ],
    Rwkv7: [("values_of", None), ("eps", 100.0)],
    S6: [("part_norm", "none"), ("part_norm", "plain"), ("part_eps", 1e-6), ("proj_bias", False)],
    Ssm: [("dt_min", 0.0), ("dt_max", 1e30), ("norm_groups", 1), ("norm_groups", 0), ("proj_bias", False)],
}


def _replaced(spec: ModelSpec, kind: type[Block], key: str, value: Any) -> ModelSpec:
    """`spec` with one field of all its blocks of a kind; as it is if that gives no model, or the same function."""

    def changed(block: Any) -> Any:
        if type(block) is not kind or (key == "rope" and value is not None and not spec.ropes):
            return block
        if key == "rope" and value == 0 and 2 * len(spec.ropes[0].inv_freq) > block.head_dim:
            return block
        same = isinstance(block, Moe) and (
            (key == "normalize" and block.router == "softmax_topk")
            or (key == "router" and block.normalize)
            or (key == "activation" and block.clamped)
            or (key in ("normalize", "scale", "router") and block.post_norm == "rms")  # which takes all sizes away
        )
        same |= key == "norm" and block.norm == "none"
        same |= isinstance(block, Moe) and block.router == "relu" and key == "top_k"  # it passes any number
        same |= key == "differential" and not block.differential
        same |= key == "gate" and bool(getattr(block, "differential", 0.0))  # nothing is known of it there
        same |= key == "jitter" and block.router != "sparsemixer"
        same |= key == "norm_groups" and block.norm_groups == 0  # it has no weights of a norm
        own = kind is Attention and (key, value) == ("qk_norm", "none")
        more = {"qk_norm_last": False} if own else {}
        return block if same else replace(block, **{key: value}, **more)

    return replace(spec, layers=tuple(tuple(changed(block) for block in layer) for layer in spec.layers))


def test_the_reference_runtime_agrees(saved: Saved) -> None:
    runtime = saved.runtime()
    found = logits_of(runtime, Rows.chain(TOKENS, 0), runtime.new_cache(32))
    _close(found, _logits(saved, TOKENS))


def test_greedy_text_is_that_of_transformers_across_a_saved_state(saved: Saved) -> None:
    """64 steps, of which the second half goes on from what a cache saved and another loaded."""
    runtime, ids = saved.runtime(), list(PROMPT)
    steps = min(STEPS, (saved.spec().original_length or saved.spec().context_length) - len(ids))
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
    assert cache.length == len(ids) == 4 + steps
    if saved.golden is not None:
        assert ids == saved.golden.text[: len(ids)]
        expected, times = _whole(runtime, ids), 2  # both of them round
    else:
        expected, times = _logits(saved, ids), 1
    assert expected.std() > 0.1
    assert expected[3:-1].argmax(axis=1).tolist() == ids[4:]
    _close(np.concatenate(logits), expected, times)


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
        _close(logits, expected[-1])
    fork = cache.fork()
    cache.commit([0, 2, 6])  # the branch 3 4 9
    for text, kept in (([*before, 3, 4, 9], cache), (before, fork)):
        assert kept.length == len(text)
        following = logits_of(runtime, Rows.chain([11], kept.length), kept)
        _close(following, _whole(runtime, [*text, 11])[-1:])


def _whole(runtime: Reference, ids: list[int]) -> np.ndarray:
    return logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(len(ids)))


def _path(tree: Rows, row: int) -> list[int]:
    parent = int(tree.parents[row])
    return [*(_path(tree, parent) if parent >= 0 else []), int(tree.tokens[row])]


LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_linear", "minicpm3", "youtu")
KINDS = {
    "mixtral": {"moe"},
    "gemma4": {"mlp", "lookup", "shared_attention"},
    "gemma3n_text": {"altup", "laurel", "lookup", "mlp", "shared_attention"},
    "qwen3_moe": {"moe"},
    "olmoe": {"moe"},
    "granitemoe": {"moe"},
    "granitemoehybrid": {"ssm"},
    **{name: {"ssm", "mlp"} for name in ("bamba", "falcon_h1", "zamba2")},
    **{name: {"moe"} for name in ("flex_olmo", "gpt_oss", "granitemoeshared", "minimax_m2", "qwen2_moe")},
    **{name: {"moe"} for name in ("phimoe", "hunyuan_v1_moe", "smallthinker")},
    **{name: {"moe", "mlp"} for name in ("glm4_moe", "dots1", "ernie4_5_moe", "afmoe")},
    **{name: {"moe", "mlp"} for name in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")},
    **{"jamba": {"s6", "mlp"}, "nemotron_h": {"ssm", "mlp"}},
    "rwkv7": {"rwkv7", "channel_mix"},
    "phi4flash": {"gmu", "mlp", "s6", "shared_attention"},
    **{"mamba": {"s6"}, "falcon_mamba": {"s6"}, "mamba2": {"ssm"}},
    "lfm2": {"conv", "mlp"},
    "lfm2_moe": {"conv", "moe"},
    "lfm3": {"conv", "mlp"},
    "qwen3_next": {"delta", "moe"},
    "qwen3_5": {"delta", "mlp"},
    "qwen3_5_text": {"delta", "mlp"},
    "qwen3_5_moe_text": {"delta", "moe"},
    "olmo_hybrid": {"delta", "mlp"},
    "kimi_linear": {"delta", "mlp", "moe"},
}
ALONE = {"mamba", "falcon_mamba", "mamba2", "rwkv7"}  # without attention


def _latent(saved: Saved) -> bool:
    return saved.spec().architecture in LATENT or saved.checkpoint.config.get("attention_type") == "mla"


def test_rows_go_to_different_experts_and_states_carry_on(saved: Saved) -> None:
    spec, runtime = saved.spec(), saved.runtime()
    attention = {"latent"} if _latent(saved) else set() if spec.architecture in ALONE else {"attention"}
    blockffn = saved.checkpoint.config.get("ffn_type", "").startswith("block")
    assert attention | ({"moe"} if blockffn else KINDS.get(spec.architecture, {"mlp"})) <= set(spec.kinds)
    assert bool(spec.attention) == (spec.architecture not in ALONE)
    chosen = []

    def route(block: Moe, *args: Any) -> Any:
        chosen.append((block, found := usual[block.router == "relu"](block, *args)))
        return found

    usual = moe.route, moe.rectified
    with mock.patch.multiple(moe, route=route, rectified=route):
        first = logits_of(runtime, Rows.chain(TOKENS, 0), runtime.new_cache(32))
    assert len(chosen) == sum(isinstance(block, Moe) for block in spec.blocks)
    for block, (experts, _) in chosen:
        assert experts.shape == (len(TOKENS), block.top_k)
        several = np.unique(experts, axis=0) if block.router == "relu" else np.unique(experts)
        assert len(several) > block.top_k, "all rows went to the same experts"
    if spec.recurrent:
        other = logits_of(runtime, Rows.chain([TOKENS[0] + 1, *TOKENS[1:]], 0), runtime.new_cache(32))
        assert np.abs(first - other)[1:9].max(axis=1).min() > 1e-4


def test_weights_cover_the_spec_and_the_checkpoint(saved: Saved) -> None:
    spec, weights = saved.spec(), saved.weights
    assert weights.keys() == spec.tensors().keys()
    assert {name: saved.checkpoint.shape(source) for name, source in weights.items()} == spec.tensors()
    saved.checkpoint.check(weights, spec, saved.arch.FACTS.ignored)


def test_every_fact_is_the_models_own(saved: Saved) -> None:
    spec, config = saved.spec(), saved.config
    assert spec.architecture == saved.checkpoint.config["model_type"]
    assert (spec.vocab_size, spec.hidden_size) == (config.vocab_size, config.hidden_size)
    assert spec.n_layers == config.num_hidden_layers
    for block in spec.attention.values():
        expected = {1 if isinstance(block, LatentAttention) else 0}
        if spec.architecture.startswith("gemma4"):
            expected = {
                layer.num_key_value_heads for layer in map(config.per_layer_config.__getitem__, range(spec.n_layers))
            }
        assert block.n_heads == config.num_attention_heads
        assert block.n_kv_heads in (expected if any(expected) else {kv_heads(config)})
    for block in spec.blocks:
        assert not isinstance(block, Mlp) or block.inner_size in _mlp_sizes(config)
        keys = ("top_k_experts", "num_experts_per_tok", "moe_num_active_primary_experts")
        top_k = next((found for key in keys if (found := getattr(config, key, None))), None)
        assert not isinstance(block, Moe) or block.top_k == (top_k or config.num_experts)
        assert not isinstance(block, Delta) or (block.n_heads, block.key_dim) == delta_sizes(config)
        assert not isinstance(block, Rwkv7) or (block.n_heads, block.key_dim) == (config.num_heads, config.head_dim)
        assert not isinstance(block, Conv) or block.conv_size == config.conv_L_cache
        assert not isinstance(block, Ssm | S6) or block.inner_size == _inner(config, block)
    stored = {name.split("model.")[-1] for name in saved.checkpoint.names}
    assert spec.tied == (not stored & {"decoder.weight", "lm_head.weight", "embed_out.weight"})
    assert spec.norm_eps == norm_eps(config)


def _inner(config: Any, block: Ssm | S6) -> int:
    """`intermediate_size` of models of Mamba-1 alone, which may be another than `expand` says."""
    if isinstance(block, S6) and hasattr(config, "expand"):
        return int(config.intermediate_size)
    if hasattr(config, "mamba_num_heads"):
        return int(config.mamba_num_heads * config.mamba_head_dim)
    if getattr(config, "mamba_d_ssm", None):
        return int(config.mamba_d_ssm)
    return int(config.expand if hasattr(config, "expand") else config.mamba_expand) * int(config.hidden_size)


def _mlp_sizes(config: Any) -> list[int]:
    """The MLP of a hybrid Granite without experts is the one beside them; LFM2's is two thirds, stretched, rounded."""
    if getattr(config, "block_auto_adjust_ff_dim", False):
        wide, multiple = (
            config.block_ffn_dim_multiplier * int(2 * config.intermediate_size / 3),
            config.block_multiple_of,
        )
        return [-(-int(wide) // multiple) * multiple]
    older = [getattr(config, name, None) for name in ("n_inner", "ffn_dim", "ffn_hidden_size", "intermediate_size")]
    if any(older[:3]):
        return [size for size in older if size]
    if older[3] is None:
        return [4 * config.hidden_size]
    if getattr(config, "use_double_wide_mlp", False):
        return [config.intermediate_size, 2 * config.intermediate_size]
    if isinstance(config.intermediate_size, list):
        return list(config.intermediate_size)
    shared = getattr(config, "shared_intermediate_size", None)
    return [config.intermediate_size] if shared is None else [shared]


@pytest.mark.skipif(not TORCH, reason="needs torch and transformers")
def test_frequencies_are_those_of_transformers(saved: Saved) -> None:
    """To the last bits of float32: at position 100000 more would turn into an angle that is wrong."""
    known, last = dict(saved.model.named_buffers()), "original_inv_freq" if saved.spec().original_length else "inv_freq"
    buffers = {
        name.split(".")[-1].removeprefix("original_"): value.double().numpy()
        for name, value in known.items()
        if name.endswith(last) and ("original" in name) == ("original" in last) and "vision" not in name
    }
    kinds = {"full_attention_inv_freq": 0, "sliding_attention_inv_freq": 1, "inv_freq": 0}
    # GPT-J and CodeGen have sines and cosines instead, and nanochat turns backwards.
    assert buffers or not saved.spec().ropes or hasattr(saved.model.config, "rotary_dim")
    for name, expected in buffers.items():
        found = saved.spec().ropes[kinds[name]].inv_freq
        np.testing.assert_allclose(np.abs(found), expected, rtol=2.5e-7)


def test_rows_are_read_across_the_parts_of_a_source(saved: Saved) -> None:
    part = "q" if _latent(saved) else "qkv"
    name = next((f"blocks.{b}.{part}" for b in saved.spec().attention), "blocks.0.in_proj")
    name = "blocks.0.k" if "rwkv7" in saved.spec().kinds else name
    source, whole = saved.weights[name], saved.get(name)
    cut = whole.shape[0] // 3
    np.testing.assert_array_equal(saved.checkpoint.read(source, cut, len(whole) - 5), whole[cut:-5])


def test_longrope_has_the_long_set_where_a_long_text_fits(tmp_path: Path) -> None:
    phi = _golden("phi3_longrope", tmp_path / "checkpoint")
    both, short = phi.spec(), phi.spec(32)
    assert (both.context_length, short.context_length, phi.spec(33).context_length) == (96, 32, 33)
    assert (both.original_length, phi.spec(33).original_length, short.original_length) == (32, 32, 0)
    assert both.ropes[0].inv_freq == short.ropes[0].inv_freq
    assert both.ropes[0].scale == short.ropes[0].scale == pytest.approx((1 + np.log(3) / np.log(32)) ** 0.5)
    with pytest.raises(CheckpointError, match="a context of 97 is out of range"):
        phi.spec(97)


@pytest.mark.skipif(not TORCH, reason="needs torch and transformers")
def test_past_the_original_length_transformers_takes_the_long_set_too(tmp_path: Path) -> None:
    phi, tokens = _save("phi3_longrope", tmp_path), (TOKENS * 2)[:40]
    both = phi.spec()
    rope = both.ropes[0]
    long = replace(both, ropes=(replace(rope, inv_freq=rope.long_inv_freq, long_inv_freq=(), original=0),))
    found = oracle.forward(long, phi.get, tokens)
    _close(found, _logits(phi, tokens))


def test_check_names_the_first_offender(tmp_path: Path) -> None:
    saved = _golden("qwen2", tmp_path / "checkpoint")
    spec, weights = saved.spec(), saved.weights
    with pytest.raises(BadTensor, match=r"^lm_head.weight: \(101, 64\) is not part of a qwen2 model"):
        saved.checkpoint.check({k: v for k, v in weights.items() if k != "head"} | {"head": weights["embed"]}, spec, ())
    with pytest.raises(BadTensor, match=r"^nowhere: missing from .*; part of final_norm \(64,\)"):
        saved.checkpoint.check(weights | {"final_norm": (Part("nowhere"),)}, spec, saved.arch.FACTS.ignored)
    with pytest.raises(BadTensor, match=r"blocks.1.gate_up has shape \(72, 64\), expected \(144, 64\)"):
        saved.checkpoint.check(weights | {"blocks.1.gate_up": weights["blocks.1.gate_up"][:1]}, spec, ())


def test_a_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    saved = _golden("qwen2", tmp_path / "checkpoint")
    config = saved.checkpoint.config | {"tie_word_embeddings": True}
    spec = saved.arch.spec(config)
    with pytest.raises(BadTensor, match=r"lm_head.weight: differs from the embedding"):
        saved.checkpoint.check(saved.arch.weights(spec, config), spec, saved.arch.FACTS.ignored)
