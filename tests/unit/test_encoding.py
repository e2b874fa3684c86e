"""Embeddings, rerankers and classifiers by `Model`: what sentence-transformers' files say, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import encoder_checkpoints as checkpoints
import numpy as np
import pytest

import edgedec
from edgedec.bundle import Bundle
from edgedec.encoding.entry import EntryTables
from edgedec.encoding.numeric import convolved, unit
from edgedec.encoding.runner import batches
from edgedec.encoding.transport import aligned
from edgedec.errors import CheckpointError, EdgedecError, UsageError
from edgedec.export.exporter import ExportOptions, export
from edgedec.spec import EncoderEntry, ModelSpec
from edgedec.text.encoding import cut

TEXTS = ["the cat sat.", "a dog ran on the mat!", "", "cats"]
Make = Callable[..., edgedec.Model]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A model of a checkpoint that a function writes."""

    def model(write: Callable[..., Path], weights: str = "f32", **facts: Any) -> edgedec.Model:
        number = len(list(tmp_path.iterdir()))
        folder = write(tmp_path / f"checkpoint{number}", **facts)
        out = tmp_path / f"bundle{number}"
        export(str(folder), out, ExportOptions(weights=weights, runtimes=()))
        return edgedec.open(out, engine="native", threads=1)

    return model


def rows_of(model: edgedec.Model, text: str) -> np.ndarray:
    encoder = model.encoder
    return next(encoder._runner.hidden(encoder.read([text])))


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token", "max_tokens", "lasttoken"])
def test_pooling_is_that_of_the_files(make: Make, pooling: str) -> None:
    model = make(checkpoints.sentence_encoder, pooling=pooling, normalize=False)
    rows = rows_of(model, TEXTS[1])
    assert len(rows) == len(model.tokenizer.encode(TEXTS[1])) > 7  # what the tokenizer.json says of 7 tokens is ignored
    expected = {
        "mean_tokens": rows.mean(0),
        "cls_token": rows[0],
        "max_tokens": rows.max(0),
        "lasttoken": rows[-1],
    }
    np.testing.assert_allclose(model.embed(TEXTS[1]), expected[pooling], atol=1e-6)
    others = [vector for name, vector in expected.items() if name != pooling]
    assert all(np.abs(model.embed(TEXTS[1]) - vector).max() > 1e-2 for vector in others)


def test_dense_layers_and_normalisation_follow(make: Make) -> None:
    model = make(checkpoints.sentence_encoder, dense=20)
    weight, bias = (model.bundle.rows(name) for name in ("dense.0", "dense.0_bias"))
    expected = np.tanh(weight @ rows_of(model, TEXTS[0]).mean(0) + bias)
    found = model.embed(TEXTS[0])
    assert found.shape == (20,)
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-6)
    assert np.abs(bias).max() > 0.1
    assert abs(np.linalg.norm(expected) - 1) > 0.1


def test_a_text_is_embedded_alone_as_among_others(make: Make) -> None:
    model = make(checkpoints.sentence_encoder, "int8")
    together = model.embed([*TEXTS, *reversed(TEXTS)])
    assert together.shape == (8, 48)
    assert together.dtype == np.float32
    for i, text in enumerate(TEXTS):
        assert model.embed(text).tobytes() == together[i].tobytes() == together[7 - i].tobytes()
    assert len({vector.tobytes() for vector in together[:4]}) == 4


def test_prompts_are_words_in_front(make: Make) -> None:
    prompts = {"query": "query: ", "document": "passage: "}
    model = make(checkpoints.sentence_encoder, prompts=prompts, default_prompt_name="document")
    assert model.embed("cat", prompt="query").tobytes() == model.embed("query: cat", prompt="").tobytes()
    assert model.embed("cat").tobytes() == model.embed("passage: cat", prompt="").tobytes()
    with pytest.raises(UsageError, match="no prompt 'question'; this model has: query, document"):
        model.embed("cat", prompt="question")


def test_fewer_dimensions_are_the_first_ones(make: Make) -> None:
    model = make(checkpoints.sentence_encoder)
    whole, some = model.embed(TEXTS), model.embed(TEXTS, dimensions=5)
    np.testing.assert_allclose(some, whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True), atol=1e-6)
    for bad in (-1, 49):
        with pytest.raises(UsageError, match=f"dimensions {bad}: must be from 1 to 48"):
            model.embed(TEXTS, dimensions=bad)


def test_a_text_that_is_too_long_is_an_error_or_cut(make: Make) -> None:
    model = make(checkpoints.sentence_encoder)
    long = "cat " * 40
    with pytest.raises(UsageError, match="text 1: 42 tokens, this model reads 24; split it, or cut it with truncate"):
        model.embed(["cat", long])
    ids = model.encoder.read([long], truncate=True)[0].ids
    assert len(ids) == 24
    assert (ids[0], ids[-1]) == (2, 3)  # [CLS] and [SEP] stay
    assert model.embed(long, truncate=True).tobytes() == model.embed("cat " * 22).tobytes()


def test_tokens_are_taken_as_they_are(make: Make) -> None:
    model = make(checkpoints.sentence_encoder)
    ids = model.tokenizer.encode(TEXTS[0])
    assert model.embed([ids])[0].tobytes() == model.embed(TEXTS[0]).tobytes()
    for bad, says in (([101], "not in the vocabulary of 101"), ([-1], "not in the vocabulary"), ([], "has no tokens")):
        with pytest.raises(UsageError, match=says):
            model.embed([bad])
    assert model.embed([]).shape == (0, 48)


def test_the_padding_length_of_the_tokenizer_limits_a_text(make: Make, tmp_path: Path) -> None:
    def write(folder: Path) -> Path:
        checkpoints.sentence_encoder(folder)
        (folder / "sentence_bert_config.json").unlink()
        (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 11}))
        return folder

    assert make(write).encoder.reader.longest == 11


def test_without_modules_it_is_the_mean(make: Make) -> None:
    def write(folder: Path) -> Path:
        checkpoints.sentence_encoder(folder)
        (folder / "modules.json").unlink()
        return folder

    model = make(write)
    np.testing.assert_allclose(model.embed(TEXTS[0]), rows_of(model, TEXTS[0]).mean(0), atol=1e-6)


def test_a_reranker_orders_documents(make: Make) -> None:
    model = make(checkpoints.reranker)
    logits = model.encoder.scores([("who sat?", text) for text in TEXTS])[:, 0]
    found = model.rerank("who sat?", TEXTS)
    assert [rank.index for rank in found] == np.argsort(-logits, kind="stable").tolist()
    assert len(set(logits.tolist())) == 4
    np.testing.assert_allclose([rank.score for rank in found], np.sort(1 / (1 + np.exp(-logits)))[::-1], atol=1e-6)
    assert model.rerank("who sat?", TEXTS, top=2) == found[:2]
    assert model.rerank("who sat?", []) == []
    read = model.encoder.reader.pair("who", "the cat", 0)
    assert (list(read.ids), list(read.types)) == ([2, 69, 3, 62, 63, 3], [0, 0, 0, 1, 1, 1])
    swapped = model.encoder.scores([("the cat", "who")])
    assert swapped.tobytes() != model.encoder.scores([("who", "the cat")]).tobytes()


@pytest.mark.parametrize(
    ("config", "squash"),
    [
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
        ({"problem_type": "regression"}, "none"),
    ],
)
def test_the_scale_of_scores_is_that_of_the_config(make: Make, config: dict[str, Any], squash: str) -> None:
    model = make(checkpoints.reranker, **config)
    logit = float(model.encoder.scores([("who", "cat")])[0, 0])
    score = model.rerank("who", ["cat"])[0].score
    assert score == pytest.approx(logit if squash == "none" else 1 / (1 + np.exp(-logit)), abs=1e-6)


def test_a_classifier_names_labels(make: Make) -> None:
    model = make(checkpoints.scorer)
    found = model.classify(["cat", ("cat", "dog")])
    assert all(set(labels) == {"no", "maybe", "yes"} for labels in found)
    assert all(sum(labels.values()) == pytest.approx(1, abs=1e-5) for labels in found)
    assert all(list(labels.values()) == sorted(labels.values(), reverse=True) for labels in found)
    assert found[0] != found[1]
    several = make(checkpoints.scorer, problem_type="multi_label_classification").classify(["cat"])[0]
    assert sum(several.values()) != pytest.approx(1, abs=1e-3)


def test_what_a_model_cannot_do_is_refused_in_one_line(make: Make) -> None:
    encoder, ranker = make(checkpoints.sentence_encoder), make(checkpoints.reranker)
    classifier, decoder = make(checkpoints.scorer), edgedec.open()
    tried: list[tuple[Callable[[], Any], str]] = [
        (encoder.session, "a text encoder, it generates no text; use embed, rerank or classify"),
        (lambda: encoder.rerank("a", ["b"]), "cannot rerank; this model can embed"),
        (lambda: encoder.classify(["a"]), "cannot classify"),
        (lambda: ranker.embed("a"), "cannot embed; this model can rerank or classify"),
        (lambda: classifier.rerank("a", ["b"]), "has 3 labels, a reranker has one"),
        (lambda: decoder.embed("a"), "generates text; embed, rerank and classify need a text encoder"),
        (lambda: encoder.rerank("a", ["b"], top=0), "top 0: must be 1 or more"),
    ]
    for act, says in tried:
        with pytest.raises(EdgedecError, match=says) as error:
            act()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "value", "says"),
    [
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "cls_token"),
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, "weightedmean_tokens is not supported"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "include_prompt": False}, "include_prompt"),
        ("2_Dense/config.json", {"out_features": 20, "activation_function": "os.system"}, "'os.system' is not one of"),
        ("2_Dense/config.json", {"out_features": 21}, "shape"),
        ("modules.json", [{"type": "sentence_transformers.models.LSTM", "path": "4_LSTM"}], "a module 'LSTM'"),
        ("modules.json", [{"type": "sentence_transformers.models.Pooling", "path": "../x"}], "not the plain name"),
        ("modules.json", {"type": "x"}, "expected a list of objects"),
        ("config_sentence_transformers.json", {"prompts": {}, "default_prompt_name": "q"}, "is not one of its prompts"),
        ("config_sentence_transformers.json", {"prompts": [1]}, "prompts must be words by name"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, file: str, value: Any, says: str) -> None:
    folder = checkpoints.sentence_encoder(tmp_path / "checkpoint", dense=20)
    (folder / file).write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match=says) as error:
        export(str(folder), tmp_path / "bundle", ExportOptions(runtimes=()))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "bundle").exists()


def test_the_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = checkpoints.sentence_encoder(tmp_path / "checkpoint")
    checkpoints.tokenizer(folder / "tokenizer.json", checkpoints.WORDS + [f"w{i}" for i in range(60)])
    with pytest.raises(CheckpointError, match="the model has 101: it is the tokenizer of another model"):
        export(str(folder), tmp_path / "bundle", ExportOptions(runtimes=()))


def test_names_with_a_prefix_and_of_tensorflow_are_found(make: Make) -> None:
    from safetensors.numpy import load_file, save_file

    def write(folder: Path) -> Path:
        checkpoints.sentence_encoder(folder)
        tensors = load_file(folder / "model.safetensors")
        old = {f"bert.{name}": values for name, values in tensors.items()}
        old = {n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): v for n, v in old.items()}
        old["cls.predictions.bias"] = np.zeros(101, np.float32)
        assert any(name.endswith("gamma") for name in old)
        save_file(old, folder / "model.safetensors")
        return folder

    assert make(write).embed(TEXTS[0]).tobytes() == make(checkpoints.sentence_encoder).embed(TEXTS[0]).tobytes()


def test_bundles_say_that_they_are_of_a_newer_format(make: Make) -> None:
    manifest = make(checkpoints.sentence_encoder).bundle.manifest
    assert manifest.version == 8
    assert manifest.encoder is not None
    assert manifest.encoder.longest == 24


def test_a_manifest_without_its_facts_is_refused(make: Make) -> None:
    path = make(checkpoints.sentence_encoder).bundle.path
    data = json.loads((path / "edgedec.json").read_text())
    for change, says in (
        (lambda d: d.pop("encoder"), "encoder: belongs to a spec with an output"),
        (lambda d: d["spec"].pop("output"), "output: is missing"),
        (lambda d: d["spec"]["output"].update(pool="rows"), "output.pool: rows of vector"),
        (lambda d: d["spec"]["entry"].update(positions=3), "entry.positions: 3 of a context of 44"),
    ):
        changed = json.loads(json.dumps(data))
        change(changed)
        (path / "edgedec.json").write_text(json.dumps(changed))
        with pytest.raises(EdgedecError, match=says):
            Bundle.open(path)


def test_many_short_texts_beside_a_long_one(make: Make) -> None:
    model = make(checkpoints.sentence_encoder, "int8")
    texts: list[Any] = [[7]] * 3000 + [[5] * 24] + [[7]] * 3000
    found = model.embed(texts)
    assert len({vector.tobytes() for vector in found}) == 2
    assert found[3000].tobytes() != found[0].tobytes()


@pytest.mark.parametrize(("n", "size", "groups"), [(1, 5, 1), (2, 5, 2), (7, 3, 3), (9, 1, 6)])
def test_a_convolution_sums_over_neighbours(n: int, size: int, groups: int) -> None:
    rng = np.random.default_rng(n)
    x, bias = rng.standard_normal((n, 6)).astype(np.float32), rng.standard_normal(6).astype(np.float32)
    own = 6 // groups
    weight = rng.standard_normal((6, own, size)).astype(np.float32)
    expected = np.tile(bias, (n, 1)).astype(np.float64)
    for row in range(n):
        for out in range(6):
            for tap in range(size):
                at, first = row + tap - size // 2, out // own * own
                if 0 <= at < n:
                    expected[row, out] += weight[out, :, tap] @ x[at, first : first + own]
    np.testing.assert_allclose(convolved(x, weight.reshape(-1, size), bias, groups), expected, atol=1e-5)


def test_texts_go_in_batches_of_rows() -> None:
    assert list(batches([3, 4, 9, 1], 8)) == [[0, 1], [2], [3]]
    assert list(batches([], 8)) == []
    lengths = np.random.default_rng(0).integers(1, 40, 200).tolist()
    made = list(batches(lengths, 50))
    assert [i for batch in made for i in batch] == list(range(200))
    assert all(sum(lengths[i] for i in batch) <= 50 for batch in made)


def test_pairs_are_cut_as_tokenizers_does_it() -> None:
    from tokenizers import Tokenizer

    for first in range(1, 14):
        for second in range(1, 14):
            for room in range(0, 20):
                made = cut([first, second], room)
                assert sum(made) <= max(room, 0) or sum(made) == first + second
                raw = _words()
                raw.enable_truncation(max(room, 1), strategy="longest_first")
                if room:
                    encoded = raw.encode("a " * first, "b " * second)
                    assert made == [encoded.type_ids.count(0), encoded.type_ids.count(1)]
    assert isinstance(_words(), Tokenizer)


def _words() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    raw = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return raw


def test_late_interaction_sums_the_best_match_of_each_token(make: Make) -> None:
    model = make(
        checkpoints.sentence_encoder,
        pooling="",
        dense=20,
        normalize=False,
        query_prefix="query: ",
        document_prefix="passage: ",
    )
    assert model.bundle.spec.output is not None
    assert model.bundle.spec.output.kind == "vectors"
    tokens = model.encoder.token_vectors(TEXTS, prompt="document")
    asked = model.encoder.token_vectors(["who sat?"], prompt="query")[0]
    assert [len(vectors) for vectors in tokens] == [len(model.tokenizer.encode("passage: " + text)) for text in TEXTS]
    np.testing.assert_allclose(np.linalg.norm(asked, axis=1), 1, atol=1e-5)
    expected = [max_sim(asked, vectors) for vectors in tokens]
    found = model.rerank("who sat?", TEXTS)
    assert [rank.index for rank in found] == np.argsort(-np.array(expected), kind="stable").tolist()
    np.testing.assert_allclose(sorted(rank.score for rank in found), sorted(expected), atol=1e-4)
    assert len(set(expected)) == len(TEXTS)
    with pytest.raises(UsageError, match="cannot embed; this model can embed tokens or rerank"):
        model.embed(TEXTS)


def max_sim(asked: np.ndarray, held: np.ndarray) -> float:
    return sum(max(float(query @ token) for token in held) for query in asked)


def test_a_few_examples_make_labels(make: Make) -> None:
    model = make(checkpoints.sentence_encoder)
    examples = {"cats": ["the cat sat", "cats"], "dogs": ["a dog ran", "dogs, dogs", "dog"]}
    vectors = {label: model.embed(texts).mean(0) for label, texts in examples.items()}
    for text in ("the cat", "dogs ran"):
        found = model.classify([text], examples=examples)[0]
        expected = {name: float(model.embed(text) @ v / np.linalg.norm(v)) for name, v in vectors.items()}
        assert found == pytest.approx(expected, abs=1e-5)
        assert list(found.values()) == sorted(found.values(), reverse=True)
    assert next(iter(model.classify(["the cat sat"], examples=examples)[0])) == "cats"
    assert next(iter(model.classify(["a dog ran"], examples=examples)[0])) == "dogs"
    for bad in ({}, {"cats": []}):
        with pytest.raises(UsageError, match="every label needs one at least"):
            model.classify(["a"], examples=bad)
    with pytest.raises(UsageError, match="a pair of texts has no vector"):
        model.classify([("a", "b")], examples=examples)
    with pytest.raises(UsageError, match="cannot embed"):
        make(checkpoints.scorer).classify(["a"], examples=examples)


def test_means_are_moved_towards_the_texts(make: Make) -> None:
    model, texts = make(checkpoints.sentence_encoder), ["the cat", "cats sat", "dogs ran on", "a dog", "dog, dog"]
    examples = {"cats": ["the cat sat"], "dogs": ["a dog ran", "dogs"]}
    plain = model.classify(texts, examples=examples)
    for align in ("measured", "even"):
        means = np.stack([unit(model.embed(held).mean(0)) for held in examples.values()])
        moved = aligned(means, np.array([1, 2]), model.embed(texts), align)
        for text, found in zip(texts, model.classify(texts, examples=examples, align=align), strict=True):
            assert found == pytest.approx(dict(zip(examples, moved @ model.embed(text), strict=True)), abs=1e-5)
            assert list(found.values()) == sorted(found.values(), reverse=True)
        assert model.classify(texts, examples=examples, align=align) != plain
        assert model.classify([], examples=examples, align=align) == []
    with pytest.raises(UsageError, match="align: moves the means of examples"):
        model.classify(texts, align="even")


def test_labels_are_learned_and_kept(make: Make, tmp_path: Path) -> None:
    model, file = make(checkpoints.sentence_encoder), tmp_path / "pets.labels"
    encoder = model.encoder
    known = encoder.learn_labels(
        encoder.new_labels(TEXTS * 3), {"cats": ["the cat sat", "cats"], "dogs": ["a dog ran"]}
    )
    known.save(file)
    more = encoder.learn_labels(encoder.open_labels(file), {"mats": ["on the mat", "mat"]})
    asked = ["the cat sat", "a dog ran", "on the mat"]
    assert [next(iter(found)) for found in model.classify(asked, labels=more)] == ["cats", "dogs", "mats"]
    alone = [model.classify([text], labels=file)[0] for text in asked]
    assert alone == model.classify(asked, labels=known) == model.classify(asked, labels=str(file))
    other = make(checkpoints.sentence_encoder, dense=20)
    for wrong in (
        lambda: other.classify(asked, labels=file),
        lambda: other.classify(asked, labels=known),
        lambda: other.encoder.learn_labels(known, {"a": ["a"]}),
    ):
        with pytest.raises(UsageError, match="of another encoder's vectors"):
            wrong()
    with pytest.raises(UsageError, match="give examples or learned labels, not both"):
        model.classify(asked, labels=known, examples={"a": ["a"]})
    with pytest.raises(UsageError, match="a pair of texts has no vector"):
        model.classify([("a", "b")], labels=known)
    with pytest.raises(UsageError, match="cannot learn labels"):
        make(checkpoints.scorer).classify(["a"], labels=file)
    with pytest.raises(UsageError, match="cannot learn labels"):
        make(checkpoints.scorer).encoder.new_labels(["a"])


def test_what_enters_without_a_norm_is_scaled_and_moved() -> None:
    """A norm would hide a shift of all values."""

    class Tables:
        def rows(self, name: str) -> np.ndarray:
            return {"positions": np.float32([[0, 1], [2, 3], [4, 5]]), "types": np.float32([[7, 8], [9, 9]])}[name]

        def gather(self, name: str, rows: np.ndarray) -> np.ndarray:
            assert name == "embed"
            return np.float32([[10, 20], [30, 40], [50, 60]])[rows]

    entry = EncoderEntry(positions=3, types=2)
    spec = ModelSpec("entry", 3, 2, 3, (), 1e-5, True, (), embed_scale=2.0, entry=entry)
    found = EntryTables(spec, entry, Tables()).rows([2, 0], [1, 0])
    assert found.tolist() == [[100 + 0 + 9, 120 + 1 + 9], [20 + 2 + 7, 40 + 3 + 8]]
