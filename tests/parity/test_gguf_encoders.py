"""GGUF files of text encoders, written by the rules of llama.cpp's converter: what the safetensors of the same model
give, what transformers gave, and what llama.cpp makes of the same file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf_encoders as files
import ggufs
import numpy as np
import pytest
import zoo_golden
from encoders_golden import TOKENS, golden
from gguf_encoders import MODELS, Array

from edgedec.bundle import Bundle
from edgedec.encoding.results import Results
from edgedec.encoding.runner import TextRunner
from edgedec.encoding.texts import EncodedText
from edgedec.errors import BadTensor, CheckpointError, EdgedecError
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.gguf.config import ARCHITECTURES
from edgedec.export.gguf.encoders import ENCODERS
from edgedec.export.opening import open_source
from edgedec.runtime import open_runtime

ONLY_FIRST = EncodedText(TOKENS, [0] * len(TOKENS))
# Whose golden config is one that a file can say.
AS_THEY_ARE = [name for name, (_, own) in MODELS.items() if not own]
SCORES = [name for name in MODELS if name.endswith("-score")]
# Metadata that says nothing of the arithmetic, or twice what the tensors say.
SILENT = {"context_length", "attention.causal", "classifier.output_labels"}


def opened(place: Path, folder: Path, weights: str = "f32") -> tuple[Bundle, Any]:
    """The bundle of a checkpoint or a file, and the CPU engine with it."""
    bundle = export(str(place), folder, ExportOptions(weights=weights, check=False, runtimes=("native",)))
    return bundle, open_runtime("native", bundle)


def states(bundle: Bundle, runtime: Any, text: EncodedText = ONLY_FIRST) -> tuple[Array, Array]:
    """Of a text the states of the rows after the last norm, and its vector or its logits."""
    assert bundle.spec.output is not None
    results = Results(bundle, bundle.spec.output)
    hidden = next(TextRunner(bundle, runtime).hidden([text]))
    return results._normed(hidden), results.of(hidden)


def cosine(one: Array, other: Array) -> float:
    """The least of the rows."""
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return float(((one * other).sum(axis=-1) / lengths).min())


def test_every_encoder_is_tried() -> None:
    assert {arch for arch, _ in MODELS.values()} == set(ENCODERS) < set(ARCHITECTURES)


@pytest.mark.parametrize("name", MODELS)
def test_the_model_of_a_file_is_that_of_its_safetensors(name: str, tmp_path: Path) -> None:
    written = files.write(name, tmp_path, files.vocabulary())
    own, found = opened(written.folder, tmp_path / "own"), opened(written.path, tmp_path / "b")
    (rows, result), (expected, other) = states(*found), states(*own)
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    assert np.abs(rows).mean() > 0.1
    if name in SCORES:
        np.testing.assert_allclose(result, other, atol=1e-5)
        assert found[0].spec.output == own[0].spec.output
        return
    if files.metadata_of(name)["pooling_type"] == 2:  # of which the checkpoint says nothing
        other = expected[0]
    np.testing.assert_allclose(result, other / np.linalg.norm(other), atol=1e-5)


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_it_is_what_transformers_computed(name: str, tmp_path: Path) -> None:
    bundle, runtime = opened(files.write(name, tmp_path, files.vocabulary()).path, tmp_path / "b")
    of = golden(name)
    types = bundle.spec.entry.types if bundle.spec.entry else 0
    rows, result = states(bundle, runtime, EncodedText(TOKENS, files.types_of(types)))
    np.testing.assert_allclose(result if name in SCORES else rows, of.found, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_makes_the_same_of_the_file(name: str, tmp_path: Path) -> None:
    """It rounds its GELU to 16 bits."""
    path = files.write(name, tmp_path, files.vocabulary()).path
    rows, result = states(*opened(path, tmp_path / "b"))
    if own := files.as_llama_cpp_reads(name):
        path = files.write(name, tmp_path / "theirs", files.vocabulary(), **own).path
    theirs = files.llama_cpp_states(path, TOKENS)
    assert np.abs(rows).mean() > 0.1
    assert cosine(rows, theirs) > 0.99999
    np.testing.assert_allclose(rows, theirs, atol=0.01)
    if name not in SCORES:
        assert cosine(result, files.llama_cpp_states(path, TOKENS, files.metadata_of(name)["pooling_type"])) > 0.99999
    elif name != "distilbert-score":  # it has a tanh where the model's authors have a ReLU
        np.testing.assert_allclose(result, files.llama_cpp_states(path, TOKENS, 4), atol=2e-3)


@pytest.mark.parametrize(("number", "pool"), [(1, "mean"), (2, "cls"), (3, "last")])
def test_the_pooling_is_that_of_the_file(number: int, pool: str, tmp_path: Path) -> None:
    path = files.write("bert", tmp_path, files.vocabulary(), **{"bert.pooling_type": number}).path
    bundle, runtime = opened(path, tmp_path / "b")
    assert bundle.spec.output is not None
    assert (bundle.spec.output.pool, bundle.spec.output.normalize) == (pool, True)
    rows, found = states(bundle, runtime)
    expected = {"mean": rows.mean(axis=0), "cls": rows[0], "last": rows[-1]}[pool]
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-5)
    assert cosine(found, files.llama_cpp_states(path, TOKENS, number)) > 0.99999


def test_dense_layers_follow_the_pooling(tmp_path: Path) -> None:
    """EmbeddingGemma's two."""
    rng = np.random.default_rng(0)
    wide, narrow = rng.standard_normal((72, 48)).astype(np.float32), rng.standard_normal((40, 72)).astype(np.float32)
    sizes = {"dense_2_feat_in": 48, "dense_2_feat_out": 72, "dense_3_feat_in": 72, "dense_3_feat_out": 40}
    said = {f"gemma-embedding.{key}": size for key, size in sizes.items()}
    layers = {"dense_2.weight": wide, "dense_3.weight": narrow}
    path = files.write("embedding-gemma", tmp_path, files.vocabulary(), **said, **layers).path
    rows, found = states(*opened(path, tmp_path / "b"))
    expected = narrow @ (wide @ rows.mean(axis=0))
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-5)


def test_a_layer_of_late_interaction_gives_a_vector_a_row(tmp_path: Path) -> None:
    layer = np.random.default_rng(0).standard_normal((16, 48)).astype(np.float32)
    path = files.write("modernbert", tmp_path, files.vocabulary(), **{"dense_2.weight": layer}).path
    rows, found = states(*opened(path, tmp_path / "b"))
    expected = rows @ layer.T
    assert found.shape == (len(TOKENS), 16)
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)


def test_tensors_of_one_row_may_be_vectors(tmp_path: Path) -> None:
    """As older converters wrote them; and q, k and v may be one matrix."""
    plain = files.write("roberta", tmp_path / "a", files.vocabulary())
    types = files.tensors_of("roberta")["token_types.weight"]
    assert types.shape == (1, 48)
    fused = {}
    for layer in range(3):
        for end in ("weight", "bias"):
            parts = {f"blk.{layer}.attn_{part}.{end}": None for part in "qkv"}
            found = np.concatenate([files.tensors_of("roberta")[part] for part in parts])
            fused |= {**parts, f"blk.{layer}.attn_qkv.{end}": found}
    other = files.write("roberta", tmp_path / "b", files.vocabulary(), **{"token_types.weight": types[0]}, **fused)
    one, two = (states(*opened(w.path, tmp_path / f"{i}")) for i, w in enumerate((plain, other)))
    assert np.array_equal(one[0], two[0])


def test_gates_may_be_apart(tmp_path: Path) -> None:
    """As older converters wrote Jina's; of models for code they are the lower half of the checkpoint's matrix."""
    for name, first in (("jina2", "ffn_gate"), ("jina2-code", "ffn_up")):
        halves: dict[str, Any] = {}
        second = "ffn_up" if first == "ffn_gate" else "ffn_gate"
        for tensor, values in files.tensors_of(name).items():
            if "ffn_up" in tensor:
                upper, lower = np.split(values, 2)
                halves |= {tensor.replace("ffn_up", first): upper, tensor.replace("ffn_up", second): lower}
        apart = files.write(name, tmp_path / f"{name}-apart", files.vocabulary(), **halves).path
        one = files.write(name, tmp_path / f"{name}-one", files.vocabulary()).path
        found = [states(*opened(path, tmp_path / f"{name}{i}"))[0] for i, path in enumerate((apart, one))]
        assert np.array_equal(*found)


def test_the_width_of_a_feed_forward_may_be_that_before_it_was_rounded_up(tmp_path: Path) -> None:
    """NeoBERT's: llama.cpp does not load such a file."""
    own, other = (files.write("neobert", tmp_path / str(n), **{"neo-bert.feed_forward_length": n}) for n in (80, 78))
    assert _facts(own.path) == _facts(other.path)


@pytest.mark.parametrize("name", MODELS)
def test_every_fact_of_a_file_counts(name: str, tmp_path: Path) -> None:
    """Changed, each changes the model or is refused; and there is none that nothing reads."""
    arch, tried = MODELS[name][0], 0
    said = files.metadata_of(name)
    whole = _facts(files.write(name, tmp_path / "whole").path)
    for key, value in said.items():
        if key in SILENT:
            continue
        path = files.write(name, tmp_path / key, **{f"{arch}.{key}": _other(value)}).path
        counts = _facts(path) != whole
        # Of a score the pooling is that of its head.
        assert counts or (key == "pooling_type" and name in SCORES), f"{key} {value!r} is not read"
        tried += 1
    assert tried > 5


def _other(value: Any) -> Any:
    if isinstance(value, list):
        return [not on for on in value] if isinstance(value[0], bool) else value[:-1]
    return not value if isinstance(value, bool) else value * 2


def _facts(path: Path) -> Any:
    try:
        found = open_source(path)
        spec = found.spec()
        return spec, found.weights(spec)
    except (CheckpointError, BadTensor) as error:
        return str(error)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("bert", {"bert.attention.causal": True}, "bert.attention.causal must be false: the rows of an encoder see"),
    ("eurobert", {"eurobert.attention.causal": True}, "eurobert.attention.causal must be false"),
    ("bert", {"bert.attention.head_count_kv": 1}, "bert.attention.head_count_kv is not 3, the heads of queries"),
    ("bert", {"bert.context_length": 45}, "position_embd.weight.*44"),
    ("bert", {"tokenizer.ggml.token_type_count": 2}, "token_type_count is 2; token_types.weight has 3 rows"),
    ("bert", {"bert.pooling_type": 5}, "bert.pooling_type must be a whole number from 0 to 4, found 5"),
    ("bert", {"bert.attention.layer_norm_epsilon": None}, "bert.attention.layer_norm_epsilon is missing"),
    ("bert", {"token_types.weight": None}, "0.0[0-9]*: of BERT without token types it is 1e-12"),
    ("bert", {"cls.output.weight": np.ones((1, 48), np.float32)}, "converter leaves BERT's pooler out. Export the"),
    ("bert", {"cls.weight": np.ones((48, 48), np.float32), "cls.bias": np.ones(48, np.float32)},
     "cls.output.weight: missing from"),
    ("roberta-score", {"bert.classifier.output_labels": ["a"]}, "must be a list of 3 names, one for each row of cls"),
    ("roberta-score", {"cls.bias": None}, "cls.bias: missing from"),
    ("roberta", {"blk.1.layer_output_norm.weight": None}, "blk.1.layer_output_norm.weight: missing from"),
    ("roberta", {"blk.1.more.weight": np.ones(48, np.float32)}, "blk.1.more.weight: .* is not part of a bert model"),
    ("modernbert", {"modern-bert.attention.layer_norm_rms_epsilon": 1e-6}, "and that of RMSNorms 1e-06|RMSNorms 9"),
    ("modernbert", {"modern-bert.hidden_activation": "mish"}, "'mish' is not supported"),
    ("modernbert", {"modern-bert.rope.freq_base_swa": None}, "modern-bert.rope.freq_base_swa is missing"),
    ("modernbert-score", {"modern-bert.classifier.pooling_type": 3}, "'last' is not cls or mean"),
    ("embedding-gemma", {"dense_2.weight": np.ones((8, 48), np.float32), "gemma-embedding.dense_2_feat_out": 9},
     "gemma-embedding.dense_2_feat_out is 9; dense_2.weight has 8"),
    ("nomic", {"nomic-bert.rope.scaling.type": "odd"}, "'odd' is not supported; known: none, linear"),
    ("nomic-moe", {"nomic-bert-moe.moe_every_n_layers": 0}, "moe_every_n_layers must be a whole number .*, found 0"),
    ("nomic-moe", {"nomic-bert-moe.expert_count": 4}, "expert_count is 4; the tensors .*_exps.weight stack"),
    ("neobert", {"neo-bert.feed_forward_length": 72}, "feed_forward_length is 72; blk.0.ffn_up.weight has 80"),
    ("neobert", {"blk.0.ffn_up.weight": None}, "blk.0.ffn_up.weight is missing"),
    ("jina2", {"cls.weight": np.ones((1, 48), np.float32)}, "converter leaves BERT's pooler out. Export the"),
    ("jina2-code", {"blk.2.attn_norm_2.bias": np.ones(47, np.float32)}, "blk.2.attn_norm_2.bias: blocks.4.again_norm"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changed", "why"), WRONG)
def test_what_contradicts_itself_is_refused(name: str, changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = files.write(name, tmp_path, files.vocabulary(), **changed).path
    with pytest.raises(EdgedecError, match=why) as caught:
        export(str(path), tmp_path / "b", ExportOptions(check=False, runtimes=("native",)))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "b").exists()


# Rules of the converter, by what is without them.
def _from_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "OFFSET", ())


def _norms_less_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SHIFT", np.float32(0))


@pytest.mark.parametrize(("name", "without"), [("roberta", _from_the_first_row), ("embedding-gemma", _norms_less_one)])
def test_each_rule_of_the_converter_counts(
    name: str, without: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch)
    written = files.write(name, tmp_path, files.vocabulary())
    rows, expected = (states(*opened(place, tmp_path / f"b-{place.stem}"))[0] for place in written[::-1])
    assert np.abs(rows - expected).max() > 1e-2


def test_a_vocabulary_that_is_larger_than_the_table_is_refused(tmp_path: Path) -> None:
    said = files.vocabulary([*files.NAMES, "more"])
    path = files.write("bert", tmp_path, said).path
    with pytest.raises(CheckpointError, match="102 tokens, the model has 101: it is the tokenizer of another model"):
        export(str(path), tmp_path / "b", ExportOptions(check=False, runtimes=("native",)))


def test_a_decoder_with_a_pooling_embeds(tmp_path: Path) -> None:
    """Qwen3-Embedding: the last token's state, scaled to length 1."""
    of = zoo_golden.golden("qwen3")
    folder = zoo_golden.write(tmp_path / "checkpoint", of.config, of.tensors)
    checkpoint = open_source(folder)
    tensors = {n: s.values(n, 0, s.shape) for n, s in checkpoint.tensors.items() if hasattr(s, "values")}
    said = {"qwen3.pooling_type": 3, **files.vocabulary(files.padded(of.config["vocab_size"]))}
    path = ggufs.write(ggufs.Drawn(SimpleNamespace(**of.config), tensors), tmp_path / "m.gguf", **said)
    bundle, runtime = opened(path, tmp_path / "b")
    assert bundle.spec.causal
    text = EncodedText(zoo_golden.TOKENS, [])
    rows, found = states(bundle, runtime, text)
    np.testing.assert_allclose(found, rows[-1] / np.linalg.norm(rows[-1]), atol=1e-5)
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    np.testing.assert_allclose(head @ rows[-1], of.logits[-1], atol=1e-3)
