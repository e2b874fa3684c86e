"""Bundles of diffusion models from a checkpoint on: run, chat, serve, batch, sessions, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import VOCAB
from typer.testing import CliRunner

import edgedec
from edgedec.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST, DiffusionFacts
from edgedec.cli._app import app
from edgedec.decoding.scheduler.batch import Batch
from edgedec.errors import BundleCorrupt, CheckpointError, ContextFull, EdgedecError, RuntimeUnavailable, UsageError
from edgedec.runtime import Rows, logits_of

pytest.importorskip("onnx", reason="exporting needs onnx")
from diffusion.checkpoint import MASK, exported

PROMPTS = ["the thing", "in on", "a", "then they"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("diffusion"))


@pytest.fixture(scope="module")
def model(bundle: Path) -> edgedec.Model:
    return edgedec.open(bundle, threads=1)


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def tokens(session: edgedec.Session, prompt: str, **options: Any) -> list[int]:
    ids = session.model.tokenizer.encode(prompt)
    return list(map(int, session.tokens(ids, ignore_eos=True, **{"temperature": 0.0, "max_tokens": 18, **options})))


def test_the_manifest_says_how_it_decodes(bundle: Path) -> None:
    manifest = Bundle.open(bundle, verify=True).manifest
    assert manifest.diffusion == DiffusionFacts(MASK, True, "causal", 4)
    assert manifest.version == 7


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"mask": 10**6}, "does not fit"),
        ({"block": 0}, "does not fit"),
        ({"context": "none"}, "'none' is not one of 'causal', 'block', 'full'"),
        ({"steps": 3}, "unknown key 'steps'"),
        ({"shift": 1}, "expected bool"),
    ],
)
def test_a_config_that_says_nonsense_is_refused(facts: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=words):
        exported(tmp_path, **facts)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("mask", VOCAB + 8, "outside the vocabulary"),
        ("mask", -1, "outside the vocabulary"),
        ("mask", VOCAB - 3, "also ends a text"),
        ("block", 0, "block: 0 is out of range"),
        ("block", 129, "block: 129 is out of range"),
    ],
)
def test_a_manifest_that_says_nonsense_is_refused(
    key: str, value: int, words: str, bundle: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(bundle, tmp_path / "copied"))
    data = json.loads((copied / MANIFEST).read_text())
    data["diffusion"][key] = value
    (copied / MANIFEST).write_text(json.dumps(data))
    with pytest.raises(BundleCorrupt, match=words):
        Bundle.open(copied)


def test_run_needs_no_flags_and_says_what_it_did(bundle: Path) -> None:
    done = call("run", "-m", str(bundle), "-p", "the thing", "-n", "12", "--temp", "0", "--stats", "--no-echo")
    assert done.exit_code == 0, done.output
    assert "diffusion schedule=threshold,blocks=fixed,keep=block,ends=first,verify=none,fits=front: " in done.output
    assert " tokens a pass" in done.output
    as_json = json.loads(call("run", "-m", str(bundle), "-p", "the", "-n", "8", "--temp", "0", "--json").stdout)
    assert as_json["stats"]["diffusion"]["passes"] == as_json["stats"]["calls"] > 0
    assert MASK not in as_json["tokens"]


def test_methods_are_chosen_by_words(bundle: Path) -> None:
    arguments = ("run", "-m", str(bundle), "-p", "the", "-n", "12", "--temp", "0", "--json")
    found = {
        words: json.loads(call(*arguments, "--diffusion", words).stdout)["stats"]["diffusion"]
        for words in ("schedule=static", "schedule=static:count=2,keep=none", "steps=1", "blocks=fixed:size=2,steps=1")
    }
    assert [found[words]["tokens_per_pass"] for words in found] == [1.0, 2.0, 4.0, 2.0]
    rows = [found[words]["rows"] for words in found]
    assert rows[1] > rows[2]


def test_a_text_alone_is_the_text_in_a_batch_in_bytes(model: edgedec.Model) -> None:
    for options in ({"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9}):
        alone = [tokens(model.session(), text, seed=i, **options) for i, text in enumerate(PROMPTS)]
        batch, found = Batch(model.runtime), [list[int]() for _ in PROMPTS]
        for i, text in enumerate(PROMPTS):
            take = found[i]
            model.session().submit(
                batch,
                model.tokenizer.encode(text),
                lambda token, take=take: None if token is None else take.append(int(token)),  # type: ignore[misc]
                ignore_eos=True,
                max_tokens=18,
                seed=i,
                **options,
            )
        batch.run()
        assert found == alone
        assert len({tuple(text) for text in found}) == len(found)


def test_engines_agree_without_a_cache_and_with_one(bundle: Path) -> None:
    """On each engine the block cache gives the text of the oracle."""
    for engine in ("native", "reference"):
        try:
            opened = edgedec.open(bundle, engine=engine, threads=1)
        except RuntimeUnavailable as error:
            pytest.skip(str(error))
        for text in PROMPTS[:2]:
            kept = tokens(opened.session(), text, max_tokens=9)
            assert kept == tokens(opened.session(diffusion="keep=none"), text, max_tokens=9)


def test_a_session_goes_on_forks_and_saves(model: edgedec.Model, tmp_path: Path) -> None:
    session = model.session()
    tokens(session, "the thing", max_tokens=7)
    twin = session.fork()
    session.save(tmp_path / "text")
    other = model.session()
    other.load(tmp_path / "text")
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 9, "ignore_eos": True}
    found = [list(map(int, each.tokens(None, **options))) for each in (session, twin, other)]
    assert found[0] == found[1] == found[2]
    assert session.ids[-9:] == found[0]
    fresh = model.session()
    assert list(map(int, fresh.tokens(session.ids[:-9], **options))) == found[0]


def test_texts_with_a_common_beginning_share_it(bundle: Path) -> None:
    shared = edgedec.open(bundle, threads=1, prefix_tokens=4096)
    ids = [5 + i % 200 for i in range(100)]
    first, second = shared.session(), shared.session()
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}
    expected = list(first.tokens(ids, **options))
    assert list(second.tokens(ids, **options)) == expected
    assert second.stats.cached >= 64 or shared.runtime.capabilities.page_slots == 0


def test_off_decodes_one_token_after_another(model: edgedec.Model) -> None:
    plain = tokens(model.session(diffusion="off"), "the thing")
    drafted = model.session(diffusion="off", speculate="copy:fixed=3")
    assert tokens(drafted, "the thing") == plain == tokens(model.session(diffusion="blocks=fixed:size=1"), "the thing")
    assert MASK not in plain
    assert model.session(diffusion="off").diffusion_report() == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("schedule=nothing", "no schedule 'nothing'"),
        ("schedule=treshold", r"did you mean threshold\?"),
        ("shedule=static", r"did you mean schedule=…\?"),
        ("schedule=threshold:p=1.5", "p=1.5: must be from 0 to 1"),
        ("schedule=threshold:q=1", "no option 'q'"),
        ("schedule=static+threshold", "name one"),
        ("schedule=static,schedule=static", "given twice"),
        ("blocks=fixed:size=8", "trained for blocks of 1 to 4"),
        ("steps=-1", "must be a whole number"),
        ("static", "no part 'static'"),
        ("off,steps=2", "no part 'off'"),
    ],
)
def test_wrong_words_are_refused_in_one_line(model: edgedec.Model, words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as found:
        model.session(diffusion=words)
    assert "\n" not in str(found.value)


def test_what_it_cannot_serve_is_refused_in_one_line(model: edgedec.Model, bundle: Path) -> None:
    ids = model.tokenizer.encode("the thing")
    session = model.session()
    tokens(session, "the thing", max_tokens=6)
    before = session.ids
    cases: list[tuple[Any, str]] = [
        (lambda: model.session(speculate="copy"), "--spec copy: diffusion decoding drafts nothing"),
        (lambda: model.session(cache="streaming"), "--cache streaming"),
        (lambda: session.score([1, 2]), "log-probabilities of a given text"),
        (session.next_probs, "log-probabilities of a given text"),
        (lambda: session.tokens([3, MASK]), f"token {MASK} is the mask"),
        (lambda: session.append([MASK]), f"token {MASK} is the mask"),
        (lambda: session.submit(Batch(model.runtime), ids, print, on_scores=print), "log-probabilities"),
        (lambda: edgedec.open("nano", diffusion="schedule=static"), "nano is no diffusion model"),
        (lambda: edgedec.open("nano").session(diffusion="off"), "nano is no diffusion model"),
    ]
    for attempt, message in cases:
        with pytest.raises(EdgedecError, match=message) as found:
            attempt()
        assert "\n" not in str(found.value)
    assert session.ids in (before, ids)
    assert len(tokens(session, "the thing", max_tokens=6)) == 6


def test_other_contexts(tmp_path: Path) -> None:
    block = edgedec.open(exported(tmp_path / "block", context="block", shift=False), threads=1)
    for text in PROMPTS:
        assert tokens(block.session(), text) == tokens(block.session(diffusion="keep=none"), text)
    with pytest.raises(UsageError, match="trained to fill blocks only"):
        block.session(diffusion="off")
    with pytest.raises(UsageError, match="trained for blocks of 4 only"):
        block.session(diffusion="blocks=fixed:size=2")
    full = edgedec.open(exported(tmp_path / "full", context="full", shift=False), threads=1)
    assert len(tokens(full.session(), "the", max_tokens=12)) == 12
    with pytest.raises(UsageError, match="keep=block: is for models with causal or block context"):
        full.session(diffusion="keep=block")
    with pytest.raises(ContextFull, match="ask for"):
        tokens(full.session(), "the", max_tokens=1000)
    with pytest.raises(ContextFull, match="ask for"):
        tokens(full.session(), "the", max_tokens=None)


def test_a_canvas_of_more_rows_than_a_decoders_call(tmp_path: Path) -> None:
    bundle = exported(tmp_path, size=400, context="full", shift=False)
    model, reference = edgedec.open(bundle, threads=1), edgedec.open(bundle, engine="reference")
    ids = np.arange(390) * 7 % VOCAB
    rows = Rows(ids, np.arange(390), np.arange(-1, 389), groups=np.zeros(390, np.int64))
    given, other = (logits_of(m.runtime, rows, m.runtime.new_cache(400)) for m in (model, reference))
    assert np.abs(given - other).max() < 1e-4 < np.abs(given[:-1] - given[1:]).max(axis=-1).min()
    words = ids[:370].tolist(), {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True}
    assert len(text := list(model.session().tokens(words[0], **words[1]))) == 20
    assert list(map(int, text)) == list(map(int, reference.session().tokens(words[0], **words[1])))
    with pytest.raises(ContextFull, match="400 fit; ask for 30 tokens"):
        model.session().generate(words[0], max_tokens=31)


def test_an_engine_without_groups_is_refused(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = model.runtime.capabilities
    monkeypatch.setattr(model.runtime, "capabilities", replace(capabilities, groups=False))
    with pytest.raises(RuntimeUnavailable, match="runs no rows that see each other"):
        model.session()
    monkeypatch.setattr(model.runtime, "capabilities", replace(capabilities, largest_call=4))
    with pytest.raises(RuntimeUnavailable, match="needs a call of 5 rows"):
        model.session()


def test_a_constraint_is_kept(model: edgedec.Model) -> None:
    text = "".join(
        model.session().generate("the", constraint="regex:pattern='[0-9]{3}-[a-f]+x'", max_tokens=40, temperature=0.0)
    )
    assert re.fullmatch("[0-9]{3}-[a-f]+x?", text)


def test_rows_of_a_batch_say_how_they_are_decoded(bundle: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given = ["schedule=static", "steps=1", "off", None, "schedule=nothing"]
    lines = [{"prompt": "the thing"} | ({"diffusion": words} if words else {}) for words in given]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = call("batch", str(source), "-o", str(out), "-m", str(bundle), "-n", "10", "--temp", "0")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for words, row in zip(given[:4], rows, strict=False):
        more = ("--diffusion", words) if words else ()
        alone = call("run", "-m", str(bundle), "-p", "the thing", "-n", "10", "--temp", "0", "--json", *more).stdout
        assert row["text"] == json.loads(alone)["text"], words
    assert len({row["text"] for row in rows[:3]}) > 1
    assert "no schedule 'nothing'" in rows[4]["error"]
    assert done.exit_code == 0


def test_batch_writes_the_texts_of_run(bundle: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    done = call("batch", str(source), "-o", str(out), "-m", str(bundle), "-n", "10", "--temp", "0")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for text, row in zip(PROMPTS, rows, strict=True):
        alone = call("run", "-m", str(bundle), "-p", text, "-n", "10", "--temp", "0", "--json").stdout
        assert row["text"] == json.loads(alone)["text"]
