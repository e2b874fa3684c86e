"""Disentangled attention: DeBERTa of any length against transformers, its tables and tokenizer, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import encoders_golden
import numpy as np
import pytest
from encoders_golden import TOKENS, TYPES, V3, golden
from numpy.typing import NDArray

import edgedec
from edgedec.bundle import Bundle
from edgedec.encoding.results import Results
from edgedec.encoding.runner import TextRunner
from edgedec.encoding.texts import EncodedText
from edgedec.errors import BadTensor, BundleCorrupt, CheckpointError, RuntimeUnavailable
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.onnx import unsupported
from edgedec.runtime import open_runtime
from edgedec.runtimes import _native_model
from edgedec.spec import Attention
from edgedec.spec.relative import relative_rows

PLAIN = Attention(2, 2, 16, 0.1, rope=None, relative=8, relative_far=20)
NAMES = ("deberta", "deberta-plain", "deberta-c2p", "deberta-p2c", "deberta-conv")


def bundle_of(folder: Path, config: dict[str, Any], tensors: dict[str, list[int]], *, check: bool = True) -> Bundle:
    """The bundle of a checkpoint of drawn tensors."""
    encoders_golden.write(folder / "checkpoint", config, tensors)
    return export(str(folder / "checkpoint"), folder / "bundle", ExportOptions(weights="f32", runtimes=(), check=check))


def states(bundle: Bundle, engine: str, text: EncodedText) -> NDArray[np.float32]:
    """The rows after the last norm."""
    assert bundle.spec.output is not None
    hidden = next(TextRunner(bundle, open_runtime(engine, bundle)).hidden([text]))
    return Results(bundle, bundle.spec.output)._normed(hidden)


@pytest.mark.parametrize("name", NAMES)
def test_texts_of_any_length_are_what_transformers_makes_of_them(tmp_path: Path, name: str) -> None:
    """Within half of the buckets, beyond the last one, and as many as the model reads: 14 and 8 or 9 of 44."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    of = golden(name)
    bundle = bundle_of(tmp_path, of.config, of.tensors)
    model = transformers.DebertaV2Model.from_pretrained(tmp_path / "checkpoint").eval()
    rng = np.random.default_rng(5)
    for length in (1, 4, 9, 15, 16, 17, 44):
        ids, types = rng.integers(0, 101, length).tolist(), rng.integers(0, 3, length).tolist()
        with torch.no_grad():
            told = {"token_type_ids": torch.tensor([types])} if of.config["type_vocab_size"] else {}
            expected = model(torch.tensor([ids]), **told).last_hidden_state[0].numpy()
        for engine in ("reference", "native"):
            np.testing.assert_allclose(states(bundle, engine, EncodedText(ids, types)), expected, atol=1e-4)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_convolution_stands_after_the_first_of_any_number_of_layers(tmp_path: Path, layers: int) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    of = golden("deberta-conv")
    left = {name: shape for name, shape in of.tensors.items() if not name.startswith(f"encoder.layer.{layers}.")}
    left = {name: shape for name, shape in left.items() if not name.startswith("encoder.layer.2.")}
    bundle = bundle_of(tmp_path, of.config | {"num_hidden_layers": layers, "conv_act": "tanh"}, left)
    model = transformers.DebertaV2Model.from_pretrained(tmp_path / "checkpoint").eval()
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).last_hidden_state[0].numpy()
    for engine in ("reference", "native"):
        np.testing.assert_allclose(states(bundle, engine, EncodedText(TOKENS, TYPES)), expected, atol=1e-4)


def test_a_bundle_whose_convolution_does_not_fit_is_refused(tmp_path: Path) -> None:
    of = golden("deberta-conv")
    spec = bundle_of(tmp_path, of.config, of.tensors).spec
    assert spec.entry is not None
    for facts, says in (
        ({"conv": 4}, "entry.conv: 4 rows, or 3 groups of channels"),
        ({"conv_groups": 5}, "entry.conv: 5 rows, or 5 groups of channels"),
        ({"conv_groups": 0}, "conv_groups: 0 is out of range"),
        ({"conv": 1 << 25}, "conv: 33554432 is out of range"),
        ({"conv_activation": "softmax"}, "entry.conv: in a decoder, or with the activation softmax"),
    ):
        with pytest.raises(BundleCorrupt, match=says):
            replace(spec, entry=replace(spec.entry, **facts)).check("spec")  # type: ignore[arg-type]


def test_long_texts_of_many_pieces_are_the_reference_s(tmp_path: Path) -> None:
    """Texts of several chunks of keys, whose pieces of rows are not whole."""
    of = golden("deberta")
    config = of.config | {"max_position_embeddings": 700, "max_relative_positions": 300, "position_buckets": 64}
    bundle = bundle_of(tmp_path, config, of.tensors | {"encoder.rel_embeddings.weight": [128, 48]})
    rng = np.random.default_rng(6)
    for length in (63, 65, 257, 700):
        text = EncodedText(rng.integers(0, 101, length).tolist(), [0] * length)
        expected = states(bundle, "reference", text)
        np.testing.assert_allclose(states(bundle, "native", text), expected, atol=1e-4)
        assert np.abs(expected).mean() > 0.1


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("deberta", {"max_relative_positions": 30}),
    ("deberta", {"max_relative_positions": -1}),
    ("deberta", {"pos_att_type": "c2p"}),
    ("deberta", {"pos_att_type": ["p2c"]}),
    ("deberta", {"layer_norm_eps": 1e-7}),
    ("deberta", {"num_attention_heads": 2}),
    ("deberta-conv", {"conv_act": "tanh"}),
    ("deberta-plain", {"hidden_act": "gelu"}),
    ("deberta-score", {"pooler_hidden_act": "relu"}),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("deberta", {"share_att_key": False}, "pos_key_proj.weight: missing"),
    ("deberta", {"norm_rel_ebd": "none"}, "LayerNorm.bias: .* is not part of"),
    ("deberta-plain", {"norm_rel_ebd": "layer_norm"}, "LayerNorm.weight: missing"),
    ("deberta-plain", {"share_att_key": True}, "pos_key_proj.bias: .* is not part of"),
    (
        "deberta-plain",
        {"position_buckets": 16},
        "rel_embeddings.weight: blocks.0.relative_k has shape .84, 16., expected",
    ),
    ("deberta-c2p", {"position_buckets": 8}, "rel_embeddings.weight: blocks.0.relative_k has shape .54, 16., expected"),
    ("deberta-plain", {"max_relative_positions": 13}, "relative_k has shape .84, 16., expected .78, 16."),
    ("deberta-plain", {"embedding_size": 48}, "embed has shape .101, 24., expected .101, 48."),
    ("deberta-plain", {"type_vocab_size": 0}, "token_type_embeddings.weight: .* is not part of"),
    ("deberta", {"position_biased_input": True}, "position_embeddings.weight: missing"),
    ("deberta", {"relative_attention": False}, "relative_attention is False; supported is True only"),
    ("deberta", {"conv_kernel_size": 3}, "encoder.conv.conv.weight: missing"),
    ("deberta-conv", {"conv_kernel_size": 0}, "encoder.conv.LayerNorm.bias: .* is not part of"),
    ("deberta-conv", {"conv_kernel_size": 4}, "conv_kernel_size must be odd, found 4"),
    ("deberta-conv", {"conv_groups": 5}, "conv_groups must divide hidden_size"),
    ("deberta-conv", {"conv_act": "softmax"}, "conv_act 'softmax' is not supported"),
    ("deberta-conv", {"conv_groups": 2}, "conv has shape .768, 5., expected .1152, 5."),
    ("deberta", {"pos_att_type": "c2p|p2p"}, "pos_att_type 'c2p.p2p' is not supported; known: c2p, p2c and both"),
    ("deberta", {"pos_att_type": None}, "pos_att_type .* is not supported"),
    ("deberta", {"norm_rel_ebd": "batch"}, "norm_rel_ebd 'batch' is not supported"),
    ("deberta", {"attention_head_size": 8}, "attention_head_size must be 16"),
    ("deberta", {"pooler_hidden_size": 24}, "pooler_hidden_size must be hidden_size, 48"),
    ("deberta", {"max_relative_positions": 5}, "relative_far: 5 with 8 buckets"),
    ("deberta", {"z_steps": 2}, "z_steps is not known"),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_facts_of_a_config_change_what_is_computed(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    of, text = golden(name), EncodedText(TOKENS, TYPES)
    bundles = [bundle_of(tmp_path / name, config, of.tensors) for name, config in _both(of.config, change)]
    if name == "deberta-score":
        found = [Results(one, one.spec.output).of(states(one, "native", text)) for one in bundles if one.spec.output]
    else:
        found = [states(one, "native", text) for one in bundles]
    np.testing.assert_allclose(found[0], of.found, atol=1e-4)
    assert np.abs(found[1] - found[0]).max() > 1e-2


def _both(config: dict[str, Any], change: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [("as it is", config), ("changed", config | change)]


@pytest.mark.parametrize(("name", "change", "says"), REFUSED)
def test_configs_that_do_not_fit_are_refused(tmp_path: Path, name: str, change: dict[str, Any], says: str) -> None:
    of = golden(name)
    with pytest.raises((BadTensor, CheckpointError), match=says) as error:
        bundle_of(tmp_path, of.config | change, of.tensors)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("encoder.layer.1.attention.self.pos_key_proj.weight", [48, 47], r"has shape .48, 47., expected .48, 48."),
        ("encoder.layer.1.attention.self.pos_query_proj.weight", [47, 48], r"has shape .47, 48., expected .48, 48."),
        ("encoder.layer.2.attention.self.pos_query_proj.bias", [40], r"has shape .40,., expected .48,."),
        ("encoder.rel_embeddings.weight", [27, 48], "blocks.0.relative_k has shape .81, 16., expected .84, 16."),
        ("encoder.layer.0.attention.self.pos_key_proj.weight", [60, 48], r"has shape .60, 48., expected .48, 48."),
        ("embeddings.embed_proj.weight", [48, 20], r"has shape .48, 20., expected .48, 24."),
    ],
)
def test_tables_of_other_shapes_are_refused(tmp_path: Path, name: str, shape: list[int], says: str) -> None:
    of = golden("deberta-plain")
    assert name in of.tensors
    with pytest.raises(BadTensor, match=f"{name}: {says}"):
        bundle_of(tmp_path, of.config, of.tensors | {name: shape})


def test_names_with_a_prefix_and_of_tensorflow_are_found(tmp_path: Path) -> None:
    of = golden("deberta")
    plain = bundle_of(tmp_path / "plain", of.config, of.tensors)
    moved = {f"deberta.{name}": shape for name, shape in of.tensors.items()}
    folder = encoders_golden.write(tmp_path / "checkpoint", of.config, moved)
    from safetensors.numpy import load_file, save_file

    drawn = load_file(tmp_path / "plain" / "checkpoint" / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    named = {f"deberta.{_replaced(name, old)}": values for name, values in drawn.items()}
    spare = {"deberta.embeddings.position_embeddings.weight": [44, 48], "mask_predictions.dense.weight": [48, 48]}
    save_file(named | encoders_golden.drawn(spare), folder / "model.safetensors")
    other = export(str(folder), tmp_path / "bundle", ExportOptions(weights="f32", runtimes=()))
    text = EncodedText(TOKENS, TYPES)
    assert states(other, "native", text).tobytes() == states(plain, "native", text).tobytes()


def _replaced(name: str, by: dict[str, str]) -> str:
    for old, new in by.items():
        name = name.replace(old, new)
    return name


def test_buckets_are_distances_and_then_grow_with_their_logarithm() -> None:
    """The example of the docstring, cut at both ends."""
    apart = relative_rows(PLAIN, 31)[30:].astype(int) - 8
    expected = [0, 1, 2, 3, 4, 5, 5, *[6] * 5, *[7] * 8, *[7] * 11]  # a bucket of 8 is cut to the last row
    assert apart.tolist() == expected
    before = relative_rows(PLAIN, 31)[30::-1].astype(int) - 8
    assert before.tolist() == [0, -1, -2, -3, -4, -5, -5, *[-6] * 5, *[-7] * 8, *[-8] * 11]
    linear = relative_rows(replace(PLAIN, relative_far=0), 12).tolist()
    assert linear == [0] * 4 + list(range(1, 16)) + [15] * 4


@pytest.mark.parametrize(("span", "far"), [(256, 512), (8, 14), (9, 14), (2, 44), (320, 512), (256, 24528), (48, 50)])
def test_buckets_are_those_of_transformers(span: int, far: int) -> None:
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    rows, length = torch.zeros(1, 1300, 1), 1300
    expected = (modeling.build_relative_position(rows, rows, span, far)[0] + span).clamp(0, 2 * span - 1).numpy()
    places = np.arange(length)
    found = relative_rows(replace(PLAIN, relative=span, relative_far=far), length)
    np.testing.assert_array_equal(found[places[:, None] - places[None, :] + length - 1], expected)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"rope": 0}, "rope: beside disentangled attention"),
        ({"softcap": 5.0}, "softcap: beside"),
        ({"n_kv_heads": 1}, "relative: with 2 heads of 1 kv heads"),
        ({"relative_far": 5}, "relative_far: 5 with 8 buckets"),
        ({"relative": 0}, "relative: is missing"),
        ({"relative": -1}, "relative"),
        ({"relative_scores": "p2p"}, "relative_scores: 'p2p' is not one of"),
    ],
)
def test_facts_that_do_not_go_together_are_refused(facts: dict[str, Any], says: str) -> None:
    PLAIN.check("block")
    with pytest.raises(BundleCorrupt, match=says):
        replace(PLAIN, **facts).check("block")


def test_a_decoder_and_endless_texts_are_refused(tmp_path: Path) -> None:
    of = golden("deberta")
    spec = bundle_of(tmp_path, of.config, of.tensors).spec
    spec.check("spec")
    for facts in ({"causal": True}, {"context_length": 1 << 21}):
        with pytest.raises(
            BundleCorrupt, match="disentangled attention in a decoder, or of texts of more than 1048576"
        ):
            replace(spec, **facts).check("spec")


def test_the_engine_refuses_rows_that_do_not_ascend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = golden("deberta")
    bundle = bundle_of(tmp_path, of.config, of.tensors)
    open_runtime("native", bundle)
    monkeypatch.setattr(_native_model, "relative_rows", lambda block, n: relative_rows(block, n)[::-1].copy())
    with pytest.raises(RuntimeUnavailable):
        open_runtime("native", bundle)


def test_graphs_refuse_it_by_name_and_the_format_is_newer(tmp_path: Path) -> None:
    of = golden("deberta")
    bundle = bundle_of(tmp_path, of.config, of.tensors)
    assert unsupported(bundle.spec) == "it has disentangled attention"
    assert bundle.manifest.version == 9
    tables = bundle.manifest.tensors["blocks.0.relative_k"], bundle.manifest.tensors["blocks.0.relative_q"]
    assert [(table.format, table.shape) for table in tables] == [("f32", (3 * 16, 16))] * 2


def test_pairs_of_texts_are_read_and_scored_as_transformers_does_it(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    of = golden("deberta-score")
    folder = encoders_golden.write(tmp_path / "checkpoint", of.config, of.tensors)
    tokenizer = transformers.DebertaV2Tokenizer(vocab=_pieces())
    tokenizer.save_pretrained(folder)
    export(str(folder), tmp_path / "bundle", ExportOptions(weights="f32", runtimes=()))
    model = edgedec.open(tmp_path / "bundle", engine="native", threads=1)
    theirs = transformers.DebertaV2ForSequenceClassification.from_pretrained(folder).eval()
    for first, second in (("A man sat.", "Nobody  sat"), ("the cat\nran", "a cat moved!"), ("", "é 猫 sat")):
        read = tokenizer(first, second, return_tensors="pt")
        assert model.encoder.reader.pair(first, second, 0).ids == read["input_ids"][0].tolist()
        with torch.no_grad():
            expected = theirs(**read).logits[0].softmax(0).numpy()
        found = model.classify([(first, second)])[0]
        np.testing.assert_allclose([found[label] for label in ("no", "maybe", "yes")], expected, atol=1e-5)
    assert (folder / "tokenizer.json").is_file()
    assert json.loads((folder / "tokenizer.json").read_text())["model"]["type"] == "Unigram"


def _pieces() -> list[tuple[str, float]]:
    """A vocabulary of 101 pieces as sentencepiece stores it, with scores."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    words = ["▁the", "▁cat", "▁sat", "▁ran", "▁man", "▁no", "body", "▁a", "ed", "▁mov", "▁", "!", "."]
    letters = [chr(c) for c in (*range(97, 123), *range(65, 91))]
    filled = special + words + letters
    filled += [f"▁x{i}" for i in range(100 - len(filled))] + ["[MASK]"]
    return [(piece, 0.0 if i < 4 else -1.0 - 0.1 * i) for i, piece in enumerate(filled)]


def test_the_golden_models_are_of_both_kinds() -> None:
    assert V3["share_att_key"]
    assert not golden("deberta-plain").config["share_att_key"]
    assert len(TOKENS) > V3["max_relative_positions"] + 1
