"""Every architecture against transformers: facts, weight names, and the logits they lead to."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BadTensor, CheckpointError, UnknownArchitecture
from edgedec.export.checkpoint import Checkpoint, open_checkpoint
from edgedec.models import Part, architecture, known
from edgedec.spec import Layer, ModelSpec

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

    def spec(self, context: int | None = None) -> ModelSpec:
        return self.arch.spec(self.checkpoint.config, context)

    def get(self, name: str) -> np.ndarray:
        source = self.arch.weights(self.spec())[name]
        return self.checkpoint.read(source, 0, self.checkpoint.shape(source)[0])


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
    facts: dict[str, Any] = {"attn_softcap": 0.0, "final_softcap": 0.0, "embed_scale": 1.0, "qk_norm": "none"}
    facts |= {"qkv_bias": False, "o_bias": False, "mlp_bias": False, "norm_eps": 0.1}
    facts |= {"layers": tuple(replace(layer, window=None) for layer in spec.layers), "attn_scale": 1.0}
    changed = [replace(spec, **{key: value}) for key, value in facts.items() if getattr(spec, key) != value]
    changed.append(replace(spec, layers=tuple(replace(layer, rope=0) for layer in spec.layers)))
    changed.append(replace(spec, layers=tuple(replace(layer, rope=None) for layer in spec.layers)))
    changed += [replace(spec, ropes=(replace(spec.ropes[0], scale=1.0), *spec.ropes[1:]))]
    other = "silu" if spec.activation == "gelu_tanh" else "gelu_tanh"
    return [c for c in (*changed, replace(spec, activation=other)) if c != spec]


def test_the_reference_runtime_agrees(saved: Saved) -> None:
    reference = pytest.importorskip("edgedec.runtimes.reference", reason="the reference runtime is not there")
    rows = pytest.importorskip("edgedec.runtime.rows", reason="the reference runtime is not there")
    runtime = reference.Reference(saved.spec(), lambda name, start, stop: saved.get(name)[start:stop])
    hidden = runtime.embed(np.array(TOKENS))
    hidden = runtime.run(hidden, rows.Rows.chain(TOKENS, 0), runtime.new_cache(32), saved.spec().blocks())
    np.testing.assert_allclose(runtime.head(hidden), _logits(saved, TOKENS), atol=1e-4, rtol=1e-4)


def test_weights_cover_the_spec_and_the_checkpoint(saved: Saved) -> None:
    spec = saved.spec()
    weights = saved.arch.weights(spec)
    assert weights.keys() == spec.tensors().keys()
    assert {name: saved.checkpoint.shape(source) for name, source in weights.items()} == spec.tensors()
    saved.checkpoint.check(weights, spec, saved.arch.ignored)


def test_every_fact_is_the_models_own(saved: Saved) -> None:
    spec, config = saved.spec(), saved.model.config.get_text_config()
    assert spec.architecture == saved.checkpoint.config["model_type"]
    assert (spec.vocab_size, spec.hidden_size, spec.intermediate_size) == (
        config.vocab_size,
        config.hidden_size,
        config.intermediate_size,
    )
    assert (spec.n_layers, spec.n_heads, spec.n_kv_heads) == (
        config.num_hidden_layers,
        config.num_attention_heads,
        config.num_key_value_heads,
    )
    assert spec.tied == ("lm_head.weight" not in {n.split("model.")[-1] for n in saved.checkpoint.names})
    assert spec.norm_eps == config.rms_norm_eps


def test_frequencies_are_those_of_transformers(saved: Saved) -> None:
    """To the last bits of float32: at position 100000 more would turn into an angle that is wrong."""
    buffers = {
        name.split(".")[-1]: value.double().numpy()
        for name, value in saved.model.named_buffers()
        if name.endswith("inv_freq") and "original" not in name and "vision" not in name
    }
    kinds = {"full_attention_inv_freq": 0, "sliding_attention_inv_freq": 1, "inv_freq": 0}
    assert buffers
    for name, expected in buffers.items():
        found = saved.spec().ropes[kinds[name]].inv_freq
        np.testing.assert_allclose(found, expected, rtol=2.5e-7)


def test_rows_are_read_across_the_parts_of_a_source(saved: Saved) -> None:
    source = saved.arch.weights(saved.spec())["layers.1.qkv"]
    whole = saved.get("layers.1.qkv")
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
    assert [layer.rope for layer in architecture(old).spec(old).layers] == [1, 1, 1, 1, 1, 0, 1]


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


def test_what_a_config_leaves_out_is_what_transformers_assumes() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    for name in known():
        if name == "gemma3":
            continue
        spec, config = _spec(model_type=name, num_attention_heads=32, hidden_size=64), dict(LLAMA)
        theirs = transformers.AutoConfig.for_model(
            name,
            **{
                **{k: v for k, v in config.items() if k != "model_type"},
                "num_attention_heads": 32,
                "hidden_size": 64,
            },
        )
        assert spec.n_kv_heads == theirs.num_key_value_heads, name
        assert spec.head_dim == (getattr(theirs, "head_dim", None) or 2), name
        assert spec.tied == theirs.tie_word_embeddings, name
        assert spec.norm_eps == theirs.rms_norm_eps, name


def test_gemma3_text_config_may_be_almost_empty() -> None:
    """As published: sizes that are the usual ones are not written down."""
    text = {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024, "intermediate_size": 10240}
    text |= {"model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}}
    spec = architecture(config).spec(config)
    assert (spec.vocab_size, spec.n_heads, spec.n_kv_heads, spec.head_dim) == (262208, 8, 4, 256)
    assert (spec.context_length, spec.tied, spec.embed_scale) == (131072, True, float(np.float32(2560**0.5)))
    assert spec.layers[4:7] == (Layer(1, 1024), Layer(0, None), Layer(1, 1024))


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
    ],
)
def test_what_published_configs_add_is_understood(changes: dict[str, Any]) -> None:
    assert _spec(**changes) == _spec(**{k: v for k, v in changes.items() if k in ("model_type", "num_key_value_heads")})


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
        ({"num_local_experts": 8}, "mixtures of experts"),
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
    ],
)
def test_what_is_not_understood_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        _spec(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_keys_that_are_off_pass() -> None:
    assert _spec(rope_interleaved=False, some_scale=None, _attn="x", unsloth_fixed=True) == _spec()


def test_unknown_architectures_are_listed() -> None:
    with pytest.raises(UnknownArchitecture, match=r"'mamba' is not one of gemma2, .*, smollm3$"):
        architecture({"model_type": "mamba"})
    for name in ("_common", "nano", "heads", "../llama"):
        with pytest.raises(UnknownArchitecture):
            architecture({"model_type": name})
    with pytest.raises(CheckpointError, match="model_type must be a string"):
        architecture({})


def test_a_window_as_wide_as_the_context_is_none() -> None:
    assert _spec(model_type="mistral", num_key_value_heads=2, sliding_window=64).windows == (None,)
    assert _spec(model_type="mistral", num_key_value_heads=2, sliding_window=63).windows == (63,)


def test_check_names_the_first_offender(tmp_path: Path) -> None:
    saved = _save("qwen2", tmp_path)
    spec, weights = saved.spec(), saved.arch.weights(saved.spec())
    with pytest.raises(BadTensor, match=r"^lm_head.weight: \(101, 48\) is not part of a qwen2 model"):
        saved.checkpoint.check({k: v for k, v in weights.items() if k != "head"} | {"head": weights["embed"]}, spec, ())
    with pytest.raises(BadTensor, match=r"^nowhere: missing from .*; part of final_norm \(48,\)"):
        saved.checkpoint.check(weights | {"final_norm": (Part("nowhere"),)}, spec, saved.arch.ignored)
    with pytest.raises(BadTensor, match=r"layers.0.gate_up has shape \(72, 48\), expected \(144, 48\)"):
        saved.checkpoint.check(weights | {"layers.0.gate_up": weights["layers.0.gate_up"][:1]}, spec, ())


def test_a_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    saved = _save("qwen2", tmp_path)
    config = saved.checkpoint.config | {"tie_word_embeddings": True}
    spec = saved.arch.spec(config)
    with pytest.raises(BadTensor, match=r"lm_head.weight: differs from the embedding"):
        saved.checkpoint.check(saved.arch.weights(spec), spec, saved.arch.ignored)
