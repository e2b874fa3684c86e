"""Decoders with the gated delta rule, gated attention and short convolutions, from a checkpoint to a text: drafts
change nothing, engines without these blocks refuse them, and what a config cannot mean is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zoo_golden
from bundles import KINDS, random_weights, write_bundle
from checkpoints import VOCAB, write_tokenizer
from typer.testing import CliRunner

from edgedec.bundle.manifest import OLDEST, VERSION
from edgedec.cli import _app
from edgedec.errors import BundleCorrupt, CheckpointError
from edgedec.export import adapter
from edgedec.export.checkpoint import open_checkpoint
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.renamed import together
from edgedec.kernels.cpu import loader
from edgedec.models import Part, architecture
from edgedec.runtime import Rows, RuntimeOptions, lacking_kinds, logits_of, open_runtime, unavailable_reason
from edgedec.runtimes.ort.recurrent import updates
from edgedec.spec import Conv, Delta
from edgedec.spec.newer import GATES

needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")
# Refused by all engines but those of the CPU.
OTHERS = ("cuda", "opencl", "tvm")


def checkpoint(folder: Path, name: str, **changes: Any) -> Path:
    """A random checkpoint of the zoo, with a tokenizer of whole bytes."""
    golden = zoo_golden.golden(name)
    old = golden.config.get("text_config", golden.config)["vocab_size"]
    shapes = {key: [VOCAB if size == old else size for size in shape] for key, shape in golden.tensors.items()}
    config = json.loads(json.dumps(golden.config).replace(f'"vocab_size": {old}', f'"vocab_size": {VOCAB}'))
    zoo_golden.write(folder, config | {"bos_token_id": None, "eos_token_id": None} | changes, shapes)
    write_tokenizer(folder)
    return folder


def run(bundle: Path, *more: object) -> dict[str, Any]:
    args = ("run", "-m", bundle, "--temp", 0, "--json", "-p", "abcabcab", "-n", 80, "--ignore-eos", *more)
    result = CliRunner().invoke(_app.app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@needs_native
@pytest.mark.parametrize("weights", ["int4", "int8"])
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("qwen3_5", {"attention", "mlp", "delta"}),
        ("lfm2", {"attention", "mlp", "conv"}),
        ("kimi_linear", {"latent", "mlp", "moe", "delta"}),
        ("rwkv7", {"rwkv7", "channel_mix"}),
        ("phi4flash", {"attention", "gmu", "mlp", "s6", "shared_attention"}),
        ("zamba2", {"attention", "mlp", "ssm"}),
        ("modernbert_decoder", {"attention", "mlp"}),
    ],
)
def test_drafts_change_no_token_of_an_exported_checkpoint(
    name: str, kinds: set[str], weights: Any, tmp_path: Path
) -> None:
    options = ExportOptions(weights=weights, check=False, runtimes=("native",))
    bundle = export(str(checkpoint(tmp_path / "checkpoint", name)), tmp_path / "bundle", options)
    assert set(bundle.spec.kinds) == kinds
    plain = run(tmp_path / "bundle", "--spec", "off")
    assert len(plain["tokens"]) == 80
    drafted = run(tmp_path / "bundle", "--spec", "copy+recycling+exit:layer=2,fixed=8")
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["stats"]["accepted"] > 0, "nothing was accepted"
    assert drafted["stats"]["proposed"] > drafted["stats"]["accepted"], "nothing was rejected"


@needs_native
@pytest.mark.parametrize("name", ["bloom", "rwkv7"])
def test_an_export_is_checked_from_what_enters_the_first_block(name: str, tmp_path: Path) -> None:
    """Embeddings are normed here; and of RWKV-7 the rows of more than one call stay pending, as later layers read
    them."""
    options = ExportOptions(weights="f32", runtimes=("native",))
    bundle = export(str(checkpoint(tmp_path / "checkpoint", name)), tmp_path / "bundle", options)
    assert bundle.spec.entry is not None
    assert bundle.manifest.parity is not None
    assert max(bundle.manifest.parity.kl.values()) < 1e-6


@needs_native
@pytest.mark.parametrize(
    "name",
    [
        "delta rules",
        "short convolutions",
        "state spaces",
        "time and channel mixing",
        "memory units",
        "blocks that feed",
    ],
)
def test_a_long_path_from_nothing_is_committed(name: str, tmp_path: Path) -> None:
    """Rows before the last of a tree over an empty text, so many that their state is kept: it is computed at once."""
    bundle = write_bundle(tmp_path / "b", KINDS[name], random_weights(KINDS[name], 1), "f32", block=32)
    runtime = open_runtime("native", bundle, RuntimeOptions(threads=1, kv="f32"))
    ids = [1, 2, 3, 4, 5] * 4
    tree, chain = (runtime.new_cache(64) for _ in range(2))
    logits_of(runtime, Rows.tree([*ids, 9], [*range(-1, 19), 3], 0), tree)
    tree.commit(range(20))
    for token in ids:
        logits_of(runtime, Rows.chain([token], chain.length), chain)
        chain.commit([0])
    assert {key: value.tobytes() for key, value in tree.save().items()} == {
        key: value.tobytes() for key, value in chain.save().items()
    }


def test_the_vision_tower_is_left_out(tmp_path: Path) -> None:
    found = open_checkpoint(checkpoint(tmp_path / "c", "qwen3_5"))
    used = {part.name for source in found.weights(found.spec()).values() for part in source}
    assert any(name.startswith("model.visual.") for name in found.names)
    assert not any(name.startswith("model.visual.") for name in used)
    assert {name for name in found.names if "visual" not in name} == used


@pytest.mark.parametrize("name", ["delta rules", "short convolutions"])
def test_engines_without_the_blocks_refuse_them(name: str, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "b", KINDS[name], random_weights(KINDS[name], 1), "f32", block=32)
    for engine in OTHERS:
        reason = unavailable_reason(engine, bundle)
        assert reason is not None
        assert "\n" not in reason
    kinds = tuple(kind for kind in bundle.spec.kinds if kind not in ("conv", "delta"))
    new = "delta" if name == "delta rules" else "conv"
    assert lacking_kinds(bundle, kinds) == f"has no {new} blocks, which this model needs"
    assert lacking_kinds(bundle, bundle.spec.kinds) == "has no gates of attention, which this model needs"
    assert lacking_kinds(bundle, bundle.spec.kinds, facts=(GATES,)) is None


def test_only_bundles_with_the_new_facts_have_the_new_version(tmp_path: Path) -> None:
    options = ExportOptions(weights="f32", check=False, runtimes=("native",))
    for name, version in (("lfm2", VERSION), ("qwen3_5_text", VERSION), ("llama", OLDEST)):
        found = export(str(checkpoint(tmp_path / f"{name}-c", name)), tmp_path / name, options)
        assert found.manifest.version == version, name


def test_experts_in_one_tensor_are_read_as_experts_apart(tmp_path: Path) -> None:
    """As Qwen 3.5 is published: the same weights, whichever way they lie."""
    from safetensors.numpy import load_file, save_file

    apart = open_checkpoint(checkpoint(tmp_path / "apart", "qwen3_5_moe_text"))
    tensors = load_file(tmp_path / "apart" / "model.safetensors")
    stacked = checkpoint(tmp_path / "stacked", "qwen3_5_moe_text")
    for layer in range(apart.spec().n_layers):
        where, n = f"model.layers.{layer}.mlp.experts", apart.config["num_experts"]
        parts = {
            kind: [tensors.pop(f"{where}.{e}.{kind}_proj.weight") for e in range(n)] for kind in ("gate", "up", "down")
        }
        pairs = [np.concatenate(pair) for pair in zip(parts["gate"], parts["up"], strict=True)]
        tensors |= {f"{where}.gate_up_proj": np.stack(pairs), f"{where}.down_proj": np.stack(parts["down"])}
    save_file(tensors, stacked / "model.safetensors")
    found = open_checkpoint(stacked)
    spec, mine, theirs = found.spec(), found.weights(found.spec()), apart.weights(apart.spec())
    assert mine["blocks.1.gate_up"] == (Part("model.layers.0.mlp.experts.gate_up_proj", flat=True),)
    for name, shape in spec.tensors().items():
        np.testing.assert_array_equal(
            found.read(mine[name], 0, shape[0]), apart.read(theirs[name], 0, shape[0]), err_msg=name
        )


def test_names_that_are_there_stay() -> None:
    source = (Part("m.experts.0.gate_proj.weight"), Part("m.experts.0.up_proj.weight"))
    assert together({"a": source}, {"m.experts.gate_up_proj"}) == {"a": (Part("m.experts.gate_up_proj", flat=True),)}
    assert together({"a": source}, {"m.experts.gate_up_proj", source[0].name}) == {"a": source}
    assert together({"a": (Part("m.norm"),)}, {"m.experts.gate_up_proj"}) == {"a": (Part("m.norm"),)}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("qwen3_5_text", {"attn_output_gate": False}, "attn_output_gate is false"),
        ("qwen3_5_text", {"hidden_act": "gelu"}, "not supported by delta blocks"),
        ("qwen3_5_text", {"layer_types": ["full_attention", "mamba", "full_attention"]}, "'mamba' is not supported"),
        ("qwen3_5_text", {"linear_num_key_heads": 4}, "6 heads do not share 4 groups evenly"),
        ("qwen3_5_text", {"linear_allow_neg_eigval": True}, "linear_allow_neg_eigval is not known"),
        ("qwen3_5_moe_text", {"norm_topk_prob": False}, "norm_topk_prob is false"),
        ("qwen3_5", {"tie_word_embeddings": True}, "differs from that of text_config"),
        ("lfm2", {"conv_dim": 24}, "conv_dim is 24"),
        ("lfm2", {"layer_types": ["conv"]}, "names 1 layers of 3"),
        ("lfm2", {"use_pos_enc": False}, "use_pos_enc is false"),
        ("lfm2_moe", {"conv_L_cache": 0}, "conv_L_cache must be a whole number of at least 1"),
        ("olmo_hybrid", {"linear_lower_bound": -5.0}, "linear_lower_bound is not known"),
    ],
)
def test_what_a_config_cannot_mean_is_one_line(name: str, changes: dict[str, Any], said: str) -> None:
    config = zoo_golden.golden(name).config | changes
    with pytest.raises(CheckpointError, match=said) as raised:
        architecture(config).spec(config)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name", ["lfm2", "lfm2_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "kimi_linear"]
)
def test_every_key_of_a_config_is_read(name: str) -> None:
    """Each one changed gives another spec, or is refused."""
    from edgedec.models._common import HARMLESS

    config = zoo_golden.golden(name).config
    arch = architecture(config)
    spec = arch.spec(config)
    for key, value in config.items():
        if HARMLESS.fullmatch(key) or value is None or key.startswith(("linear_a_", "linear_dt_")):
            continue
        changed = config | {key: _other(value)}
        try:
            found = arch.spec(changed)
        except CheckpointError:
            continue
        moved = found != spec or arch.weights(found, changed) != arch.weights(spec, config)
        assert moved, f"{key}: {value!r} -> {changed[key]!r} changes nothing"


def _other(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value * 3
        case str():
            return value + "x"
        case list():
            return value[::-1] if value != value[::-1] else value[:-1]
        case _:
            return value | {"rope_theta": 123.0}


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_text", "olmo_hybrid", "lfm3", "kimi_linear"])
def test_an_adapters_rows_are_those_of_the_tensors_it_is_made_for(name: str, tmp_path: Path) -> None:
    found = open_checkpoint(checkpoint(tmp_path / "c", name))
    spec = found.spec()
    for matrix, source in found.weights(spec).items():
        if matrix.endswith((".qkv", ".in_proj")):
            heights = [found.shape((part,))[0] for part in source]
            assert adapter._heights(spec, matrix, source) == heights, matrix


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (Delta(5, 8, 8, 2), "5 heads do not share 2 groups evenly"),
        (Delta(4, 8, 0, 2), "key_dim: 0 is out of range"),
        (Delta(4, 8, 8, 2, rank=-1), "rank: -1 is out of range"),
        (Delta(4, 8, 8, 2, beta_scale=0.0), "beta_scale 0.0 or eps 0.0 is out of range"),
        (Delta(4, 8, 8, 2, eps=-1.0), "beta_scale 1.0 or eps -1.0 is out of range"),
        (Conv(0), "inner_size: 0 is out of range"),
        (Conv(8, conv_size=0), "conv_size: 0 is out of range"),
    ],
)
def test_blocks_that_cannot_be_are_refused(block: Delta | Conv, said: str) -> None:
    with pytest.raises(BundleCorrupt, match=said):
        block.check("spec")


def test_the_order_in_which_rows_of_a_tree_are_applied() -> None:
    found = updates(Rows.tree([1, 2, 3], [-1, 0, 0], 0))
    assert {name: values.tolist() for name, values in found.items()} == {
        **{"updates": [0, 1, 0, 2], "resets": [1.0, 0.0, 1.0, 0.0]},
        "ends": [0, 1, 3],
    }
    chain = updates(Rows.chain([1, 2, 3], 0))
    assert (chain["updates"].tolist(), chain["resets"].tolist()) == ([0, 1, 2], [1.0, 0.0, 0.0])


def test_qwen3_nexts_projections_are_sorted_by_key_heads() -> None:
    """Of each key head q, k, v and z come one after another, then of each b and a."""
    config = zoo_golden.golden("qwen3_next").config
    arch = architecture(config)
    spec = arch.spec(config)
    block = next(b for b in spec.blocks if isinstance(b, Delta))
    rows = [part.rows for part in arch.weights(spec, config)["blocks.0.in_proj"]]
    assert (block.n_groups, block.n_heads, block.key_dim, block.head_dim) == (2, 6, 12, 20)
    assert rows == [
        *((24, 84), (168, 228)),  # v of both key heads
        *((12, 24), (156, 168)),  # k
        *((0, 12), (144, 156)),  # q
        *((84, 144), (228, 288)),  # z
        *((0, 3), (6, 9), (3, 6), (9, 12)),  # b, then a
    ]
