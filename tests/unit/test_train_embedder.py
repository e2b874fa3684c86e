"""Training of text encoders (RetroMAE v2): its masks and losses beside slow ones, and what a trained one finds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import encoder_checkpoints as checkpoints
import numpy as np
import pytest
from checkpoints import write_llama

import edgedec
from edgedec.cli import main
from edgedec.cli._app import run_app
from edgedec.cli.train_embedder import DuplexFlags, EmbedderTraining
from edgedec.errors import EdgedecError, UsageError

pytest.importorskip("torch", reason="encoders are trained with torch")
pytest.importorskip("transformers", reason="encoders are trained on transformers' networks")
pytest.importorskip("safetensors", reason="checkpoints are kept as safetensors")
pytest.importorskip("onnx", reason="exporting needs onnx")
import torch
import transformers
from safetensors.torch import load_file
from torch.nn import functional
from training import quiet

from edgedec.export.embedder_net import DuplexNet, bag_loss, corrupted, term_scores
from edgedec.export.embedder_output import FittedOutput, fit, measure, write_encoder
from edgedec.export.embedder_retrieval import Retrieval, questions, retrieval
from edgedec.export.embedder_texts import (
    PassageReader,
    _inner,
    batch_of,
    hidden_words,
    seen_by_rows,
    words_of,
)
from edgedec.export.embedder_train import EmbedderPlan, EmbedderTrainer
from edgedec.export.exits_data import is_held
from edgedec.export.training_loop import train

NAMES = 120
FILLERS = [f"f{i}" for i in range(24)]
WORDS = [*checkpoints.WORDS[:5], ".", *(f"w{i}" for i in range(NAMES)), *FILLERS, "the", "a", "is", "##s"]
PLAN = EmbedderPlan(minutes=60, steps=200, rate=1e-2, batch=16, length=40, bag=3.0)
TEXTS = ["the w1 is w2s.", "a w7s", "w1 w2 w3 the a is f1 f2 f3 w9s w8 w7 w6 w5. w4 w3 w2 w1"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These networks are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def texts(count: int, seed: int) -> list[str]:
    """Each of four sentences about three names of its own, two in a sentence among words that all texts have."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        names = draw.sample(range(NAMES), 3)
        said = []
        for _ in range(4):
            words = [*(f"w{name}" for name in draw.sample(names, 2)), *draw.sample(FILLERS, 5)]
            draw.shuffle(words)
            said.append(" ".join(words) + ".")
        made.append(" ".join(said))
    return made


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(1200, 0)))
    return file


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config and a tokenizer, no weights."""
    folder = tmp_path_factory.mktemp("start")
    sizes = {"vocab_size": len(WORDS), "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(**sizes, **dropout, intermediate_size=128, max_position_embeddings=40)
    config.initializer_range = 0.1
    config.save_pretrained(folder)
    checkpoints.tokenizer(folder / "tokenizer.json", WORDS)
    return folder


def network(name: str = "bert", **more: Any) -> DuplexNet:
    """A random one of a class of transformers."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, vocab_size=len(WORDS), pad_token_id=0, **more)
    for key, value in (("hidden_size", 32), ("num_attention_heads", 2), ("num_hidden_layers", 1)):
        setattr(config, key, value)
    return DuplexNet(transformers.AutoModelForMaskedLM.from_config(config), 40).eval()


def reader(folder: Path) -> PassageReader:
    return PassageReader.open(folder, len(WORDS))


def rows_of(folder: Path) -> list[list[int]]:
    found = reader(folder)
    return [found.passage(found.ids(text)) for text in TEXTS]


# What is hidden


def test_a_passage_is_a_text_between_the_tokenizers_own_tokens(start: Path) -> None:
    found = reader(start)
    ids = found.ids("The w1s.")
    assert [WORDS[i] for i in found.passage(ids)] == ["[CLS]", "the", "w1", "##s", ".", "[SEP]"]
    assert WORDS[found.mask] == "[MASK]"
    assert words_of(torch.tensor(ids), found.inner).tolist() == [0, 1, 1, 2]
    assert words_of(torch.tensor(ids[2:]), found.inner).tolist() == [0, 1], "a cut word is one too"


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_whole_words_are_hidden_of_a_share_of_the_tokens(share: float) -> None:
    torch.manual_seed(0)
    words = torch.tensor([0, 0, 1, 2, 2, 2, 3, 4, 5, 5, 6, 7, 8, 9, 9, 10, 11, 12, 13, 14])
    found = hidden_words(words, 4000, share)
    for word in range(15):
        of = found[:, words == word]
        assert (of.all(1) == of.any(1)).all()
    counts = found.sum(1)
    assert counts.max() == round(share * 20)
    assert counts.min() >= round(share * 20) - 2, "at most a word less"
    often = found.float().mean(0)
    assert (often - share).abs().max() < 0.07
    assert len(found.unique(dim=0)) > 1000
    assert hidden_words(torch.tensor([0, 0, 0]), 5, 0.1).all(), "one in any case"


def test_a_row_of_the_decoder_sees_cls_and_not_its_own_token() -> None:
    torch.manual_seed(0)
    words = torch.arange(20) // 2
    seen = torch.stack([seen_by_rows(words, 0.5) for _ in range(300)])
    assert seen.shape == (300, 22, 22)
    assert not seen.diagonal(dim1=1, dim2=2).any()
    assert seen[:, 1:, 0].all()
    assert seen[:, :-1, -1].all()
    others = torch.stack([seen[:, i, 1:-1].float().sum(1) for i in range(1, 21)])
    assert set(others.unique().tolist()) == {9.0, 10.0}, "half, and its own token where that was not among them"
    assert (seen[:, 3] != seen[:, 4]).any(1).float().mean() > 0.9, "each row draws its own"


def test_a_batch_ends_where_its_texts_do(start: Path) -> None:
    rows = rows_of(start)
    torch.manual_seed(0)
    batch = batch_of(rows, reader(start).inner, 0.3, 0.5)
    for i, row in enumerate(rows):
        n = len(row)
        assert batch.ids[i, :n].tolist() == row
        assert batch.kept[i].tolist() == [at < n for at in range(len(rows[2]))]
        assert batch.ordinary[i].tolist() == [0 < at < n - 1 for at in range(len(rows[2]))]
        assert 1 <= batch.hidden[i].sum() <= max(2, round(0.3 * (n - 2)))
        assert not (batch.hidden[i] & ~batch.ordinary[i]).any()
        assert not batch.visible[i, n:].any()
        assert not batch.visible[i, :, n:].any()


def test_of_hidden_tokens_a_tenth_stay_and_a_tenth_are_others(start: Path) -> None:
    row = reader(start).passage([6] * 4000)
    torch.manual_seed(0)
    batch = batch_of([row[:3000]], torch.zeros(len(WORDS), dtype=torch.bool), 0.3, 0.5)
    read = corrupted(batch, 4, len(WORDS))
    assert torch.equal(read[~batch.hidden], batch.ids[~batch.hidden])
    hidden = read[batch.hidden]
    assert abs((hidden == 4).float().mean() - 0.8) < 0.05
    assert abs((hidden == 6).float().mean() - 0.1) < 0.05
    other = hidden[(hidden != 4) & (hidden != 6)]
    assert len(other) > 50
    assert len(other.unique()) > 30


# The losses, row by row


def slow_row(net: DuplexNet, cls: torch.Tensor, row: list[int], seen: torch.Tensor, i: int) -> torch.Tensor:
    """Row i of the decoder from the tokens it sees alone: no mask, no batch."""
    d, w = net.decoder, net.lm.get_input_embeddings().weight
    asked = d.norm(cls + d.positions[i])
    keys = [cls] if seen[0] else []
    keys += [d.norm(w[row[j]] + d.positions[j]) for j in range(1, len(row)) if seen[j]]
    read = torch.stack(keys)
    parts = []
    for head in range(d.heads):
        size = len(cls) // d.heads
        at = slice(head * size, (head + 1) * size)
        scores = d.k(read)[:, at] @ d.q(asked)[at] / size**0.5
        parts.append(scores.softmax(0) @ d.v(read)[:, at])
    x = d.attention_norm(asked + d.o(torch.cat(parts)))
    return d.mlp_norm(x + d.down(functional.gelu(d.up(x))))


def test_the_losses_are_those_computed_row_by_row(start: Path) -> None:
    net, rows = network(), rows_of(start)
    with torch.no_grad():
        for w in net.decoder.parameters():
            w.add_(0.3 * torch.randn(w.shape))
    batch = batch_of(rows, reader(start).inner, 0.3, 0.5)
    torch.manual_seed(5)
    found = net.losses(batch, 4)
    torch.manual_seed(5)
    read = corrupted(batch, 4, len(WORDS))
    hidden, rebuilt, bags = [], [], []
    for i, row in enumerate(rows):
        n = len(row)
        out = net.lm(input_ids=read[i : i + 1, :n], output_hidden_states=True)
        logits, cls = out.logits[0], out.hidden_states[-1][0, 0]
        hidden += [-logits[j].log_softmax(0)[row[j]] for j in range(n) if batch.hidden[i, j]]
        for j in range(1, n - 1):
            state = slow_row(net, cls, row, batch.visible[i, j], j)
            rebuilt.append(-net.lm.cls(state[None, None])[0, 0].log_softmax(0)[row[j]])
        law = logits[1:].max(0).values.log_softmax(0)
        bags.append(-sum(law[term].item() / (n - 2) for term in set(row[1 : n - 1])))
    torch.testing.assert_close(found.encoder, torch.stack(hidden).mean())
    torch.testing.assert_close(found.decoder, torch.stack(rebuilt).mean())
    assert found.bag.item() == pytest.approx(np.mean(bags), rel=1e-5)


def test_a_bag_of_words_has_each_token_once_at_one_over_the_length() -> None:
    ids = torch.tensor([[2, 5, 6, 5, 3, 0]])
    ordinary = torch.tensor([[False, True, True, True, False, False]])
    scores = torch.tensor([[0.0, 1.0, 2.0, 0.5, -1.0, 3.0, 0.25]])
    law = scores[0].log_softmax(0)
    torch.testing.assert_close(bag_loss(scores, ids, ordinary), -(law[5] + law[6]) / 3)


def test_scores_of_terms_are_the_largest_after_cls_and_before_the_padding() -> None:
    logits = torch.tensor([[[9.0, 9.0], [1.0, -3.0], [0.0, -2.0], [8.0, 8.0]]])
    assert term_scores(logits, torch.tensor([[True, True, True, False]])).tolist() == [[1.0, -2.0]]


def test_the_loss_is_the_weighted_sum(start: Path, data: Path) -> None:
    trainer = EmbedderTrainer(start, [data], replace(PLAN, cls=0.5, bag=3.0))
    rows = [trainer.passage(text) for text in trainer.texts(4)]
    found = float(next(trainer.losses(rows, random.Random(1), 0.0)))
    torch.manual_seed(random.Random(1).getrandbits(62))
    parts = trainer.net.losses(batch_of(rows, trainer.reader.inner, 0.3, 0.5), trainer.reader.mask)
    assert found == pytest.approx(4 * float(parts.encoder + 0.5 * parts.decoder + 3 * parts.bag), rel=1e-6)
    trainer.plan = replace(PLAN, cls=0.0, bag=0.0)
    masked = next(trainer.losses(rows, random.Random(1), 0.0))
    assert float(masked) == pytest.approx(4 * float(parts.encoder), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *(("bert", {}), ("roberta", {}), ("distilbert", {}), ("xlm-roberta", {}), ("mpnet", {}), ("modernbert", {})),
        *(("electra", {"embedding_size": 16}), ("deberta-v2", {"relative_attention": True})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_any_class_of_transformers_gives_its_own_logits_and_learns(
    name: str, more: dict[str, Any], start: Path
) -> None:
    net = network(name, **more)
    batch = batch_of(rows_of(start), reader(start).inner, 0.3, 0.5)
    with torch.no_grad():
        expected = net.lm(input_ids=batch.ids, attention_mask=batch.kept.long()).logits
        torch.testing.assert_close(net.logits(net.states(batch.ids, batch.kept)), expected)
    sum(net.losses(batch, 4)).backward()
    assert all(w.grad is not None for name, w in net.decoder.named_parameters())
    assert net.lm.get_input_embeddings().weight.grad.abs().sum() > 0


# Training


def trained(start: Path, data: Path, plan: EmbedderPlan, path: Path | None = None) -> EmbedderTrainer:
    trainer = EmbedderTrainer(start, [data], plan)
    train(trainer, path, "key", quiet)
    return trainer


@pytest.fixture(scope="module")
def duplex(start: Path, data: Path) -> EmbedderTrainer:
    return trained(start, data, PLAN)


def test_training_lowers_each_loss(start: Path, data: Path, duplex: EmbedderTrainer) -> None:
    before, after = EmbedderTrainer(start, [data], PLAN).measure(), duplex.measure()
    assert all(float(new) < float(old) - 1 for new, old in zip(after, before, strict=True))


def test_the_same_seed_gives_the_same_weights_and_another_does_not(start: Path, data: Path) -> None:
    one, same, other = (trained(start, data, replace(PLAN, steps=3, seed=seed)) for seed in (1, 1, 2))
    assert all(torch.equal(w, same.weights[name]) for name, w in one.weights.items())
    assert not torch.equal(one.weights["decoder.q.weight"], other.weights["decoder.q.weight"])


def test_an_interrupted_training_goes_on_where_it_was(start: Path, data: Path, tmp_path: Path) -> None:
    plan, path = replace(PLAN, steps=6), tmp_path / "work.safetensors"
    whole = trained(start, data, plan)

    def stop(stage: str, done: int, total: int) -> None:
        if done >= total // 2:
            raise KeyboardInterrupt

    first = EmbedderTrainer(start, [data], plan)
    with pytest.raises(KeyboardInterrupt):
        train(first, path, "key", stop)
    assert first.steps == 3
    second = trained(start, data, plan, path)
    assert second.steps == 6
    for name, w in whole.weights.items():
        torch.testing.assert_close(second.weights[name], w, atol=1e-6, rtol=1e-5)


def found_by(trainer: EmbedderTrainer, top: int = 0) -> Retrieval:
    """How well texts that no training saw are found."""
    fresh = questions(texts(150, 99), 0)
    return measure(trainer, fit(trainer, trainer.texts(500), 0, top), fresh)


def test_a_trained_encoder_finds_texts_that_untrained_and_masked_language_ones_do_not(
    start: Path, data: Path, duplex: EmbedderTrainer
) -> None:
    untrained = found_by(EmbedderTrainer(start, [data], PLAN))
    masked = trained(start, data, replace(PLAN, cls=0.0, bag=0.0))
    least = max(untrained.mrr, found_by(masked).mrr, found_by(masked, 8).mrr)
    own, both = found_by(duplex), found_by(duplex, 8)
    assert own.mrr > least + 0.05
    assert both.mrr > least + 0.3


def test_a_text_is_found_if_no_other_is_as_near() -> None:
    asked = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    held = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    found = retrieval(asked, held)  # ranks 1, 2 and 2: equals count before
    assert found == Retrieval(3, pytest.approx(1 / 3), pytest.approx(2 / 3))


def test_a_question_is_a_sentence_that_its_text_lost() -> None:
    given = ["One. Two! Three?", "only. two", "a b. c d. e f. g h."]
    found = questions(given, 0)
    assert len(found) == 2
    for text, (asked, rest) in zip((given[0], given[2]), found, strict=True):
        assert asked in text
        assert asked not in rest
        assert sorted((asked + " " + rest).split()) == sorted(text.split())


@pytest.mark.parametrize(
    ("words", "goes_on"),
    [
        (["[CLS]", "run", "##ning", "a"], [2]),
        (["<s>", "\u0120run", "ning", "\u0120a"], [0, 2]),
        (["<s>", "\u2581run", "ning"], [0, 2]),
        (["run", "ning"], []),
    ],
)
def test_a_token_goes_on_with_a_word_by_the_marks_of_its_vocabulary(words: list[str], goes_on: list[int]) -> None:
    tokenizer = SimpleNamespace(get_vocab=lambda: {word: i for i, word in enumerate(words)})
    found = _inner(tokenizer, len(words) + 2)
    assert found.nonzero().flatten().tolist() == goes_on
    assert len(found) == len(words) + 2


# What is written


@pytest.fixture(scope="module")
def short(start: Path, data: Path) -> EmbedderTrainer:
    return trained(start, data, replace(PLAN, steps=5))


def bundle_of(trainer: EmbedderTrainer, output: FittedOutput, room: Path) -> tuple[Path, edgedec.Model]:
    out = room / "out"
    out.mkdir()
    write_encoder(trainer, output, out)
    assert main(["export", str(out), "-o", str(room / "bundle"), "--weights", "f32"]) == 0
    return out, edgedec.open(room / "bundle", threads=1)


def states_of(out: Path, text: str) -> Any:
    """What transformers makes of a text, its head over the vocabulary included."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(out).eval()
    found = reader(out)
    with torch.no_grad():
        return model(torch.tensor([found.passage(found.ids(text))]), output_hidden_states=True)


def test_the_bundle_embeds_as_torch_does(short: EmbedderTrainer, tmp_path: Path) -> None:
    output = fit(short, short.texts(300), 12, 0)
    out, model = bundle_of(short, output, tmp_path)
    dense = load_file(out / "2_Dense" / "model.safetensors")
    found = model.embed(TEXTS)
    assert found.shape == (3, 12)
    for vector, text in zip(found, TEXTS, strict=True):
        cls = states_of(out, text).hidden_states[-1][0, 0]
        expected = functional.normalize(dense["linear.weight"] @ cls + dense["linear.bias"], dim=0).numpy()
        assert vector @ expected > 0.9999
    np.testing.assert_allclose(found, output.vectors(*short.embedded(TEXTS)).numpy(), atol=1e-4)
    assert found[0] @ found[1] < 0.99
    with pytest.raises(EdgedecError, match="this model reads 40"):
        model.embed("a " * 60)


def test_the_bundle_puts_the_weightiest_terms_after_cls(short: EmbedderTrainer, tmp_path: Path) -> None:
    output = replace(fit(short, short.texts(300), 12, 6), share=0.3)
    out, model = bundle_of(short, output, tmp_path)
    own = load_file(out / "1_Duplex" / "model.safetensors")
    bias = states_bias(out)
    found = model.embed(TEXTS)
    assert found.shape == (3, 12 + len(WORDS))
    assert model.encoder.width == 12 + len(WORDS)
    for vector, text in zip(found, TEXTS, strict=True):
        got = states_of(out, text)
        cls = functional.normalize(own["cls.weight"] @ got.hidden_states[-1][0, 0] + own["cls.bias"], dim=0)
        scores = (got.logits[0, 1:] - bias + own["terms.bias"]).max(0).values
        weights = scores.relu().log1p()
        weights[weights < weights.topk(6).values[-1]] = 0
        sparse = functional.normalize(weights, dim=0)
        expected = torch.cat([0.7**0.5 * cls, 0.3**0.5 * sparse]).numpy()
        assert vector @ expected > 0.9999
        assert 1 <= np.count_nonzero(vector[12:]) <= 6
    np.testing.assert_allclose(found, output.vectors(*short.embedded(TEXTS)).numpy(), atol=1e-4)


def states_bias(out: Path) -> torch.Tensor:
    return transformers.AutoModelForMaskedLM.from_pretrained(out).get_output_embeddings().bias.detach()


def test_texts_of_the_training_are_centred_and_of_equal_deviation(short: EmbedderTrainer) -> None:
    texts_read = short.texts(300)
    assert len(texts_read) == 300
    assert not any(map(is_held, texts_read))
    cls, scores = short.embedded(texts_read)
    output = fit(short, texts_read, 0, 4)
    white = cls @ output.matrix.T + output.bias
    torch.testing.assert_close(white.mean(0), torch.zeros(white.shape[1]), atol=1e-3, rtol=0)
    torch.testing.assert_close(white.T @ white / 300, torch.eye(white.shape[1]), atol=1e-2, rtol=0)
    torch.testing.assert_close(output.mean, scores.mean(0))
    ahead = fit(short, texts_read, 3, 0)
    torch.testing.assert_close(ahead.matrix, output.matrix[:3])


def test_the_share_of_terms_is_the_one_that_finds_most(short: EmbedderTrainer) -> None:
    asked = questions(short.texts(200), short.plan.seed)
    found = fit(short, short.texts(200), 0, 8)
    mrr = {share: measure(short, replace(found, share=share), asked).mrr for share in (0.0, 0.3, 0.5, 0.7, 1.0)}
    assert measure(short, found, asked).mrr >= max(mrr.values())
    assert len(set(mrr.values())) > 1


def test_no_more_directions_are_taken_than_texts_differ_in(
    start: Path,
    data: Path,
    tmp_path: Path,
    short: EmbedderTrainer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was trained for hours is not lost for want of them."""
    alike = fit(short, short.texts(6), 24, 0)
    assert len(alike.matrix) == 5, "six texts less their mean"
    with pytest.raises(UsageError, match="the same for all of 3 texts"):
        fit(short, short.texts(1) * 3, 0, 0)
    monkeypatch.setattr("edgedec.export.embedder_output.FITTED_ON", 6)
    assert run_app(argv(start, data, tmp_path / "out", "--dimensions", "24")) == 0
    said = capsys.readouterr()
    assert "--dimensions 24: texts of the data differ in 5 directions of [CLS]; the embedding has as many" in said.err
    assert "embeddings of 5 values" in said.out


# The verb


def argv(start: Path, data: Path, out: Path, *more: str) -> list[str]:
    how = ["--steps", "2", "--batch", "2", "--length", "40", "-t", "1"]
    return ["train-embedder", str(start), str(data), "-o", str(out), *how, *more]


def test_the_verbs_defaults_are_those_of_the_plan() -> None:
    """The authors' rate and weight of the bag of words."""
    plan, flags, minutes = EmbedderPlan(), DuplexFlags(), EmbedderTraining().minutes
    assert (flags.rate, flags.batch, flags.length, flags.cls, flags.bag, minutes) == (1e-4, 32, 128, 1.0, 0.1, 10.0)
    assert {**asdict(plan), **asdict(flags), "minutes": minutes} == asdict(plan)


def test_the_verb_trains_reports_and_goes_on(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    assert run_app(argv(start, data, out, "--json", "--terms", "5", "--dimensions", "9", "--work", str(work))) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["steps"] == 2
    assert report["width"] == 9 + len(WORDS)
    assert set(report["nats"]) == {"encoder", "decoder", "bag"}
    assert 0 <= report["share"] <= 1
    held = [text for text in texts(1200, 0) if is_held(text)]
    assert report["before"]["texts"] == report["after"]["texts"] == len(held)
    assert (work / "embedder.safetensors").is_file()
    assert json.loads((out / "modules.json").read_text())[1]["type"] == "edgedec.Duplex"
    assert main(argv(start, data, out)) == 1
    assert "exists already" in capsys.readouterr().err
    # A trained folder has weights: it is where the next training begins.
    again = EmbedderTrainer(out, [data], PLAN)
    stored = load_file(out / "model.safetensors")
    for name, w in again.net.lm.named_parameters():
        torch.testing.assert_close(w, stored[name])
    assert run_app(argv(out, data, tmp_path / "more")) == 0
    assert "a sentence finds the text it is from" in capsys.readouterr().out
    assert json.loads((tmp_path / "more" / "sentence_bert_config.json").read_text())["max_seq_length"] == 40


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(words) == 1
    return capsys.readouterr().err


def test_what_cannot_be_trained_is_said_in_a_line(
    start: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, few = tmp_path / "out", tmp_path / "few.txt"
    few.write_text("the w1 is a w2.")
    assert "reads 40 tokens" in refused(argv(start, data, out, "--length", "41"), capsys)
    assert "too few texts" in refused(argv(start, few, out), capsys)
    assert f"--terms {len(WORDS)}" in refused(argv(start, data, out, "--terms", str(len(WORDS))), capsys)
    assert "[CLS] of this encoder has" in refused(argv(start, data, out, "--dimensions", "999"), capsys)
    assert "generates text" in refused(argv(write_llama(tmp_path / "llama"), data, out), capsys)
    roberta = tmp_path / "roberta"
    network("roberta", max_position_embeddings=50).lm.save_pretrained(roberta)
    assert "tokenizer.json: missing" in refused(argv(roberta, data, out), capsys)
    checkpoints.tokenizer(roberta / "tokenizer.json", WORDS)
    assert "BERT and DistilBERT, not of roberta" in refused(argv(roberta, data, out, "--terms", "5"), capsys)
    checkpoints.tokenizer(roberta / "tokenizer.json", [*WORDS, "more"])
    assert f"{len(WORDS) + 1} tokens" in refused(argv(roberta, data, out), capsys)
    assert not out.exists()


def test_the_files_of_terms_are_checked(short: EmbedderTrainer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write_encoder(short, fit(short, short.texts(100), 4, 4), out)
    config = out / "1_Duplex" / "config.json"
    for change, says in (({"top": 0}, "whole numbers"), ({"share": 2}, "from 0 to 1"), ({"cls": 5}, "cls")):
        given = json.loads(config.read_text())
        config.write_text(json.dumps(given | change))
        with pytest.raises(EdgedecError, match=says):
            edgedec_export(out, tmp_path / "bundle")
        config.write_text(json.dumps(given))
    (out / "1_Duplex" / "model.safetensors").unlink()
    with pytest.raises(EdgedecError, match="missing"):
        edgedec_export(out, tmp_path / "bundle")


def edgedec_export(out: Path, bundle: Path) -> None:
    from edgedec.export.exporter import ExportOptions, export

    export(str(out), bundle, ExportOptions(weights="f32", runtimes=()))
