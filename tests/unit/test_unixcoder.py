"""UniXcoder: how a checkpoint is recognised, the mask that a text's first tokens choose, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import unixcoder_checkpoints as checkpoints
from drafting import of_any_bundle
from loops import decode
from typer.testing import CliRunner
from unixcoder_checkpoints import BEGIN, BOTH, DECODER, ENCODER, END, MASK, MODES, ids_of

import edgedec
from edgedec.bundle import Bundle
from edgedec.bundle.modes import ModeFacts
from edgedec.cli._app import app
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters import DrafterContext, make_drafter
from edgedec.drafters.off import Off
from edgedec.errors import BadTensor, BundleCorrupt, CheckpointError, ContextFull, UsageError
from edgedec.export.checkpoint import open_checkpoint
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.products import product_rows
from edgedec.models import Part, architecture
from edgedec.runtime import Call, Outputs, Rows, lacking_kinds
from edgedec.sampling import Sampling
from edgedec.spec import ModelSpec, Output
from edgedec.spec.newer import AFTER, ENTRY, newer
from edgedec.testing.conformance.models import MODELS

# unixcoder-base, as its authors publish it.
BASE: dict[str, Any] = {
    "model_type": "unixcoder",
    "architectures": ["RobertaModel"],
    "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 1026,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "output_past": True,
    "pad_token_id": 1,
    "type_vocab_size": 10,
    "vocab_size": 51416,
}
CODE, OTHER = "deff(a,b):returna+b", "deff(a,b):returna-b;x=a"
STEPS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("unixcoder")
    export(str(checkpoints.write(place / "checkpoint")), place / "bundle", ExportOptions("f32", runtimes=()))
    return place


@pytest.fixture(params=["native", "reference"])
def model(request: pytest.FixtureRequest, folder: Path) -> edgedec.Model:
    return edgedec.open(folder / "bundle", engine=request.param, threads=1)


@pytest.fixture
def native(folder: Path) -> edgedec.Model:
    return edgedec.open(folder / "bundle", engine="native", threads=1)


def source(text: str) -> list[int]:
    return [BEGIN, BOTH, END, *ids_of(text), END]


def written(model: edgedec.Model, ids: list[int], most: int = STEPS) -> list[int]:
    """What a new session writes after these tokens."""
    tokens = model.session(speculate="off").tokens(ids, max_tokens=most, ignore_eos=True)
    return [int(token) for token in tokens]


# ---- which checkpoints are recognised


def test_a_published_config_has_the_published_sizes() -> None:
    spec = architecture(BASE).spec(BASE)
    assert (spec.context_length, spec.n_layers, spec.causal, spec.output) == (1024, 12, True, None)
    assert newer(spec) == (ENTRY, AFTER)
    weights = architecture(BASE).weights(spec, BASE)
    assert weights.keys() == spec.tensors().keys()
    types = "embeddings.token_type_embeddings.weight"
    assert weights["positions"] == (Part("embeddings.position_embeddings.weight", (2, 1026), each=types),)


def test_mode_tokens_make_a_roberta_one(tmp_path: Path) -> None:
    found = open_checkpoint(checkpoints.write(tmp_path / "a"))
    assert found.spec().architecture == "unixcoder"
    assert found.modes == ModeFacts((BEGIN, ENCODER, END), (BEGIN, BOTH, END), END)
    plain = open_checkpoint(checkpoints.write(tmp_path / "b", lacking=MODES))
    assert (plain.spec().architecture, plain.spec().causal, plain.modes) == ("roberta", False, None)
    # One that scores texts has a head of its own; sentence-transformers' files give no mode token to a text.
    config = {"architectures": ["RobertaForSequenceClassification"]}
    labels = open_checkpoint(checkpoints.write(tmp_path / "c", **config))
    assert labels.config["model_type"] == "roberta"
    sentences = checkpoints.write(tmp_path / "d")
    kinds = [{"type": "sentence_transformers.models.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1"}]
    (sentences / "modules.json").write_text(json.dumps(kinds))
    (sentences / "1").mkdir()
    (sentences / "1" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    assert open_checkpoint(sentences).spec().architecture == "roberta"


def test_names_with_a_prefix_are_the_same_tensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    place = checkpoints.write(tmp_path / "m")
    usual = open_checkpoint(place)
    expected = {name: usual.read(parts, 0, 3) for name, parts in usual.weights(usual.spec()).items()}
    tensors = {f"roberta.{name}": value for name, value in load_file(place / "model.safetensors").items()}
    save_file(tensors, place / "model.safetensors", {"format": "pt"})
    found = open_checkpoint(place)
    spec = found.spec()
    for name, parts in found.weights(spec).items():
        np.testing.assert_array_equal(found.read(parts, 0, 3), expected[name])
    save_file(tensors | {"lm_head.dense.weight": tensors["roberta.encoder.layer.0.attention.self.query.weight"]},
              place / "model.safetensors", {"format": "pt"})  # fmt: skip
    with pytest.raises(BadTensor, match=r"lm_head.dense.weight: .* is not part of a unixcoder model"):
        open_checkpoint(place).weights(spec)


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        (("<encoder-only>",), "its vocabulary has UniXcoder's mode tokens but <encoder-only>"),
        (("<decoder-only>", "<encoder-decoder>"), "tokens but <decoder-only> and <encoder-decoder>"),
        (("<s>",), "tokenizer.json: has no <s>, which the modes of unixcoder need"),
    ],
)
def test_a_missing_token_is_named_and_nothing_is_written(tmp_path: Path, lacking: Any, message: str) -> None:
    if lacking == ("<s>",):
        place = checkpoints.write(tmp_path / "m")
        text = (place / "tokenizer.json").read_text().replace('"<s>"', '"<S>"')
        (place / "tokenizer.json").write_text(text)
    else:
        place = checkpoints.write(tmp_path / "m", lacking=lacking)
    with pytest.raises(CheckpointError, match=message):
        export(str(place), tmp_path / "out", ExportOptions(runtimes=()))
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_another_form_or_another_model_is_named(tmp_path: Path) -> None:
    place = checkpoints.write(tmp_path / "m")
    vocabulary = json.loads((place / "tokenizer.json").read_text())["model"]["vocab"]
    (place / "tokenizer.json").unlink()
    (place / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(CheckpointError, match=r"has vocab.json but no tokenizer.json; convert it"):
        open_checkpoint(place)
    (place / "vocab.json").unlink()
    assert open_checkpoint(place).spec().architecture == "roberta"  # nothing says that it is another
    place = checkpoints.write(tmp_path / "n")
    data = json.loads((place / "tokenizer.json").read_text())
    data["model"]["vocab"]["<encoder-only>"] = 600
    (place / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match=r"<encoder-only> is token 600 of 101 in the vocabulary"):
        export(str(place), tmp_path / "out", ExportOptions(runtimes=()))


def test_the_row_of_the_only_type_is_added_to_each_position(folder: Path) -> None:
    checkpoint = open_checkpoint(folder / "checkpoint")
    (part,) = checkpoint.weights(checkpoint.spec())["positions"]
    table, types = (checkpoint.read((Part(name),), 0, 3) for name in part.names)
    found = checkpoint.read((replace(part, rows=(0, 3)),), 1, 3)
    np.testing.assert_allclose(found, table[1:] + types[0], rtol=1e-6)
    assert np.abs(types[0]).max() > 0.01
    rows = {"a": np.ones((2, 3), np.float32), "b": np.arange(6, dtype=np.float32).reshape(2, 3)}
    made = product_rows(Part("a", each="b"), 1, 2, lambda name, of: rows[name][slice(*(of or (0, 2)))])
    np.testing.assert_array_equal(made, [[1, 2, 3]])
    with pytest.raises(BadTensor, match=r"encoder.layer.0.attention.self.query.bias: \[64\] has no row for those of"):
        checkpoint.shape((replace(part, each="encoder.layer.0.attention.self.query.bias"),))


def test_a_bundle_is_exported_again_with_its_modes(folder: Path, tmp_path: Path) -> None:
    made = export(str(folder / "bundle"), tmp_path / "int8", ExportOptions(runtimes=()))
    usual = Bundle.open(folder / "bundle")
    assert made.manifest.modes == usual.manifest.modes
    assert made.manifest.text == usual.manifest.text
    assert made.manifest.quantization["body"] == "int8"
    expected = edgedec.open(folder / "bundle", engine="native").embed([CODE, OTHER])
    found = edgedec.open(tmp_path / "int8", engine="native").embed([CODE, OTHER])
    assert 0.995 < (found * expected).sum(1).min() < 1


# ---- what a mode is


def test_the_tokenizer_puts_decoder_only_before_a_text_and_a_chat_is_a_source(native: edgedec.Model) -> None:
    assert native.tokenizer.encode(CODE) == [BEGIN, DECODER, END, *ids_of(CODE)]
    assert native.chat_ids([{"role": "user", "content": "x"}, {"role": "user", "content": CODE}]) == source(CODE)
    masked = native.chat_ids([{"role": "user", "content": "def<mask0>(a)"}])
    assert masked == [BEGIN, BOTH, END, *ids_of("def"), MASK, *ids_of("(a)"), END]
    assert native.tokenizer.decode([DECODER, MASK, *ids_of("ab"), END]) == "ab"


def test_added_tokens_stand_by_their_numbers(native: edgedec.Model) -> None:
    added = json.loads((native.bundle.path / "tokenizer.json").read_text())["added_tokens"]
    assert [token["id"] for token in added] == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_how_many_tokens_see_each_other() -> None:
    facts = ModeFacts((0, 6, 2), (0, 5, 2), 2)
    assert [facts.together(ids) for ids in ([0, 5, 2, 7, 8, 2, 9, 2], [0, 6, 2, 7, 2], [0, 5, 3, 2], [0], [])] == [
        *(6, 0, 0, 0, 0)
    ]
    with pytest.raises(UsageError, match="ends with token 2, which this text of 5 lacks"):
        facts.together([0, 5, 2, 7, 7])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": (0, 6, 2)}, "do not tell its modes apart"),
        ({"encoder": ()}, "do not tell its modes apart"),
        ({"end": 101}, "tokens outside the vocabulary of 101"),
        ({"encoder": (-1,)}, "tokens outside the vocabulary"),
        ({"output": Output("score", labels=("a",))}, "must be a vector of the rows, without layers"),
    ],
)
def test_facts_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    spec = MODELS["norms of sums"]
    facts = ModeFacts((0, 6, 2), (0, 5, 2), 2)
    facts.check(replace(spec, vocab_size=101), "here")
    with pytest.raises(BundleCorrupt, match=f"^here: modes.*{message}"):
        replace(facts, **changes).check(replace(spec, vocab_size=101), "here")
    with pytest.raises(BundleCorrupt, match="belong to a decoder of attention"):
        facts.check(MODELS["hybrid"], "here")


def test_other_engines_name_what_they_lack(folder: Path) -> None:
    bundle = Bundle.open(folder / "bundle")
    why = lacking_kinds(bundle, ("attention", "mlp"), facts=(ENTRY,))
    assert why == f"has no {AFTER}, which this model needs"
    cuda = pytest.importorskip("edgedec.runtimes.cuda")
    assert AFTER not in cuda.FACTS_OF_MODELS


# ---- vectors


def test_rows_are_those_of_the_plain_encoder(folder: Path, model: edgedec.Model, tmp_path: Path) -> None:
    """The same weights as `roberta`, whose rows are held to transformers' elsewhere."""
    checkpoints.write(tmp_path / "checkpoint", lacking=MODES)
    export(str(tmp_path / "checkpoint"), tmp_path / "roberta", ExportOptions("f32", runtimes=()))
    plain = edgedec.open(tmp_path / "roberta", engine="native")
    ids = [BEGIN, ENCODER, END, *ids_of(CODE), END]
    expected, found = (next(one.encoder._runner.hidden(one.encoder.read([ids]))) for one in (plain, model))
    np.testing.assert_allclose(found, expected, atol=2e-5)
    mean = expected.mean(0)
    np.testing.assert_allclose(model.embed(CODE), mean / np.linalg.norm(mean), atol=1e-6)
    causal = model.runtime.forward([_states(model, ids)])[0].hidden[model.spec.n_blocks - 1]
    assert np.abs(causal - found).max() > 0.1


def _states(model: edgedec.Model, ids: list[int]) -> Call:
    wanted = Outputs(hidden=(model.spec.n_blocks - 1,))
    return Call(Rows.chain(ids, 0), model.runtime.new_cache(len(ids)), outputs=wanted)


def test_a_text_has_the_same_bytes_alone_and_among_others(native: edgedec.Model) -> None:
    texts = [CODE, "x", OTHER, "returna" * 9, ""]
    together = native.embed([*texts, *reversed(texts)])
    for i, text in enumerate(texts):
        assert native.embed(text).tobytes() == together[i].tobytes() == together[-1 - i].tobytes()
    assert len({vector.tobytes() for vector in together}) == len(texts)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


def test_rows_of_one_group_have_the_bytes_of_rows_that_list_what_they_see(native: edgedec.Model) -> None:
    """The native engine takes the first as a text, unless attention sums are wanted; also after committed tokens."""
    runtime, ids = native.runtime, np.array([BEGIN, ENCODER, END, *ids_of(CODE), END])
    for before in (0, 5):
        found = []
        for wanted in (Outputs(logits=True), Outputs(logits=True, attention=True)):
            cache = runtime.new_cache(64)
            if before:
                runtime.forward([Call(Rows.chain(ids[:before], 0), cache)])
                cache.commit(range(before))
            rows = replace(Rows.text(ids), positions=np.arange(before, before + len(ids)))
            found.append(runtime.forward([Call(rows, cache, outputs=wanted)])[0])
        assert found[0].logits.tobytes() == found[1].logits.tobytes()
        assert found[1].attention


def test_a_text_that_is_too_long_is_cut_only_if_asked(native: edgedec.Model) -> None:
    assert native.spec.context_length == 91
    with pytest.raises(UsageError, match=r"text 1: 104 tokens, this model reads 91"):
        native.embed(["x", "y" * 100])
    (read,) = native.encoder.read(["y" * 100], truncate=True)
    assert read.ids == [BEGIN, ENCODER, END, *ids_of("y" * 87), END]


# ---- a source, and the target after it


def test_a_source_is_read_as_a_whole_and_its_target_is_causal(model: edgedec.Model) -> None:
    """By calls by hand: the rows of the source in one group; each later row alone."""
    ids, runtime, found = source(CODE), model.runtime, list[int]()
    cache = runtime.new_cache(len(ids) + STEPS)
    result = runtime.forward([Call(Rows.text(np.array(ids)), cache, outputs=Outputs(logits=True))])[0]
    cache.commit(range(len(ids)))
    for _ in range(STEPS):
        found.append(int(result.logits[-1].argmax()))
        call = Call(Rows.chain(found[-1:], cache.length), cache, outputs=Outputs(logits=True))
        result = runtime.forward([call])[0]
        cache.commit([0])
    assert written(model, ids) == found
    assert written(model, [BEGIN, DECODER, END, *ids_of(CODE), END]) != found
    assert len(set(found)) > 2


@pytest.mark.parametrize("speculate", ["auto", "copy", "recycling+copy", "jacobi", "skip", "exit", "suffix"])
def test_sessions_with_drafts_write_the_same(native: edgedec.Model, speculate: str) -> None:
    for ids in (source(CODE), native.tokenizer.encode(OTHER)):
        session, expected = native.session(speculate=speculate), written(native, ids)
        assert list(session.tokens(ids, max_tokens=STEPS, ignore_eos=True)) == expected
        assert list(session.tokens(ids, max_tokens=STEPS, ignore_eos=True)) == expected


# Hydra's heads are trained; a text of these lengths has no slots that sparse attention leaves out.
@pytest.mark.parametrize("name", [name for name in of_any_bundle() if name not in ("hydra", "sparse")])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=5)])
def test_drafts_change_no_text(native: edgedec.Model, name: str, sampling: Sampling) -> None:
    """Each drafter as it is, without a governor that would silence it."""
    runtime, proposed = native.runtime, 0
    for ids in (source("ab" * 15), native.tokenizer.encode(OTHER)):
        texts = []
        own = DrafterContext(runtime, native.bundle, lambda: native.tokenizer)
        for drafter in (Off(), make_drafter(name, own, {"layer": "1", "threshold": "0"} if name == "exit" else {})):
            rng, modes, stats = np.random.default_rng(5), native.bundle.manifest.modes, Stats()
            context = Context(list(ids), len(ids), runtime.new_cache(91), rng=rng, modes=modes)
            config = GenerationConfig(sampling=sampling, max_tokens=48)
            texts.append([int(token) for token in decode(runtime, context, config, drafter, stats)])
        assert texts[0] == texts[1]
        proposed += stats.proposed
    assert proposed > 0


def test_texts_of_all_modes_share_a_batch(native: edgedec.Model) -> None:
    """Also those with the same first tokens: a source is neither continued from another nor by it."""
    texts = [source(CODE), native.tokenizer.encode(CODE), source(OTHER), source(CODE), native.tokenizer.encode(CODE)]
    batch, found = Batch(native.runtime, most=4), [list[int]() for _ in texts]
    for ids, into in zip(texts, found, strict=True):
        add = lambda token, into=into: into.append(int(token)) if token is not None else None  # noqa: E731
        native.session(speculate="copy").submit(batch, ids, add, max_tokens=STEPS, ignore_eos=True)
    batch.run()
    assert found == [written(native, ids) for ids in texts]
    assert len({tuple(one) for one in found}) == 3


def test_sessions_do_not_continue_from_the_rows_of_another_source(folder: Path) -> None:
    model = edgedec.open(folder / "bundle", engine="native", threads=1, prefix_tokens=4096)
    alone = edgedec.open(folder / "bundle", engine="native", threads=1, prefix_tokens=0)
    long = "returna+b;" * 7  # more than a page
    for ids in (source(long + "x"), source(long + "y=a"), source(long + "x")):
        session = model.session(speculate="off")
        assert list(session.tokens(ids, max_tokens=8, ignore_eos=True)) == written(alone, ids, 8)
        assert session.stats.cached == 0
    assert len(model.prefixes.shared) == 0
    for _ in range(2):
        session = model.session(speculate="off")
        list(session.tokens(model.tokenizer.encode(long), max_tokens=8, ignore_eos=True))
    assert session.stats.cached > 0  # completions do


def test_a_session_goes_on_and_takes_another_source(model: edgedec.Model) -> None:
    session = model.session(speculate="off")
    expected = written(model, source(CODE))
    first = list(session.tokens(source(CODE), max_tokens=9, ignore_eos=True))
    assert first + list(session.tokens(max_tokens=STEPS - 9, ignore_eos=True)) == expected
    assert list(session.tokens(source(CODE), max_tokens=STEPS, ignore_eos=True)) == expected  # nothing is read again
    assert session.stats.cached == len(source(CODE))
    for text in (CODE[:-1], CODE + "+1", OTHER):
        found = list(session.tokens(source(text), max_tokens=STEPS, ignore_eos=True))
        assert found == written(model, source(text))
    assert list(session.tokens(model.tokenizer.encode(CODE), max_tokens=4, ignore_eos=True)) == written(
        model, model.tokenizer.encode(CODE)
    )[:4]  # fmt: skip
    with pytest.raises(UsageError, match="which this text of 5 lacks"):
        session.rewrite(source(CODE)[:5])
    assert list(session.tokens(source(CODE), max_tokens=STEPS, ignore_eos=True)) == expected


def test_forks_and_saved_texts_go_on_the_same(native: edgedec.Model, tmp_path: Path) -> None:
    expected, session = written(native, source(CODE)), native.session(speculate="off")
    begun = list(session.tokens(source(CODE), max_tokens=5, ignore_eos=True))
    fork = session.fork()
    session.save(tmp_path / "whole")
    session.save(tmp_path / "text", reread=True)
    for name in ("whole", "text"):
        other = native.session(speculate="off")
        other.load(tmp_path / name)
        assert begun + list(other.tokens(max_tokens=STEPS - 5, ignore_eos=True)) == expected
    assert begun + list(fork.tokens(max_tokens=STEPS - 5, ignore_eos=True)) == expected


def test_scores_and_searches_read_a_source_as_a_whole(model: edgedec.Model) -> None:
    expected = written(model, source(CODE))
    session = model.session(speculate="off")
    session.rewrite(source(CODE))
    assert int(session.next_probs().argmax()) == expected[0]
    session = model.session(speculate="off")
    session.rewrite(source(CODE))
    scores = session.score(expected[:4])
    probs = np.log([session.next_probs()[expected[0]]])
    np.testing.assert_allclose(scores[:1], probs, atol=1e-5)
    beams = model.session(speculate="off")
    found = list(beams.tokens(source(CODE), max_tokens=4, search="beam:width=1", ignore_eos=True))
    assert found == expected[:4]


def test_a_constraint_holds_in_every_mode(native: edgedec.Model) -> None:
    session = native.session()
    for ids in (source(CODE), native.tokenizer.encode(CODE)):
        text = "".join(session.generate(ids, max_tokens=12, constraint="regex:pattern='[0-9]{6}'"))
        assert len(text) == 6
        assert text.isdigit()


def test_what_would_tear_a_source_apart_is_refused_in_one_line(native: edgedec.Model) -> None:
    ids = source(CODE)
    with pytest.raises(UsageError, match=r"^--cache snapkv.*: a source whose tokens see each other is kept as it is"):
        list(native.session(cache="snapkv:budget=0.5").tokens(ids, max_tokens=4))
    assert list(native.session(cache="snapkv:budget=0.5").tokens(native.tokenizer.encode(CODE), max_tokens=4))
    with pytest.raises(UsageError, match="ends with token 2, which this text of 9 lacks"):
        native.session().rewrite(ids[:9])
    with pytest.raises(
        ContextFull, match="31 tokens do not fit a context of 30, and a source that sees itself is not cut"
    ):
        list(native.session(context=30, on_full="slide").tokens(ids, max_tokens=40, ignore_eos=True))
    slid = native.session(context=30, on_full="slide")
    assert len(list(slid.tokens(native.tokenizer.encode(CODE), max_tokens=40, ignore_eos=True))) == 40
    with pytest.raises(UsageError, match="--fuse: a source whose tokens see each other"):
        list(native.session().tokens(ids, max_tokens=4, fuse="cfg:scale=2"))


def test_log_probabilities_of_a_source_are_refused(native: edgedec.Model) -> None:
    batch, found = Batch(native.runtime, most=2), list[Any]()
    job = native.session().submit(batch, source(CODE), found.append, max_tokens=2, on_scores=lambda scores: None)
    batch.run()
    assert "tokens that see each other have none" in str(job.error)


# ---- the doors


def test_the_verbs_take_each_mode(folder: Path, native: edgedec.Model) -> None:
    def ran(*args: str) -> str:
        done = CliRunner().invoke(app, [*args, "-m", str(folder / "bundle")])
        assert done.exit_code == 0, done.output
        return done.stdout

    vectors = np.array([json.loads(line) for line in ran("embed", CODE, "x").splitlines()])
    np.testing.assert_allclose(vectors, native.embed([CODE, "x"]), atol=1e-6)
    made = json.loads(ran("run", "-p", CODE, "-n", "5", "--temp", "0", "--ignore-eos", "--json"))
    assert made["tokens"] == written(native, native.tokenizer.encode(CODE))[:5]
    said = ran("chat", "-p", CODE, "-n", "5", "--temp", "0", "--single-turn", "--ignore-eos")
    assert native.tokenizer.decode(written(native, source(CODE))[:5]) in said


@pytest.fixture(scope="module")
def place(folder: Path) -> Iterator[str]:
    pytest.importorskip("starlette")
    from serving import serving

    from edgedec.server.pool import ModelSource

    with serving([ModelSource.of(edgedec.open(folder / "bundle", engine="native", threads=1))]) as (address, _):
        yield address


def test_the_server_serves_each_mode(place: str, native: edgedec.Model) -> None:
    import urllib.request

    def post(path: str, **body: Any) -> Any:
        data = json.dumps({"temperature": 0, **body} if "input" not in body else body).encode()
        request = urllib.request.Request(place + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    found = post("/v1/embeddings", input=[CODE, OTHER])
    vectors = np.array([one["embedding"] for one in found["data"]], np.float32)
    assert vectors.tobytes() == native.embed([CODE, OTHER]).tobytes()
    assert found["usage"]["prompt_tokens"] == len(ids_of(CODE + OTHER)) + 8
    text = post("/v1/completions", prompt=CODE, max_tokens=5, ignore_eos=True)["choices"][0]["text"]
    assert text == native.tokenizer.decode(written(native, native.tokenizer.encode(CODE))[:5])
    said = post("/v1/chat/completions", messages=[{"role": "user", "content": CODE}], max_tokens=5, ignore_eos=True)
    assert said["choices"][0]["message"]["content"] == native.tokenizer.decode(written(native, source(CODE))[:5])


def test_a_spec_with_modes_is_no_encoder(folder: Path) -> None:
    bundle = Bundle.open(folder / "bundle")
    spec: ModelSpec = bundle.spec
    assert not spec.encoder
    assert bundle.manifest.whole_texts
    assert bundle.output == Output(normalize=True)
    bundle.require_decoder()
