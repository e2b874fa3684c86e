"""Heads trained on nano for a minute or two accept more than what comes without training (slow)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import edgedec
from edgedec import Sampling
from edgedec.cli._app import run_app

pytestmark = pytest.mark.skipif(not os.environ.get("EDGEDEC_SLOW_TESTS"), reason="trains heads: EDGEDEC_SLOW_TESTS=1")
OPENINGS = (
    "Once upon a time",
    "One day",
    "The little",
    "Tom and",
    "Lily had a",
    "There was a",
    "Mom said",
    "A big dog",
)
HEADS = {"hidden-transfer": ("hiddentransfer", ("--layer", "4", "--heads", "3"))}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What nano writes itself."""
    model, file = edgedec.open("nano", engine="native", threads=1), tmp_path_factory.mktemp("own") / "texts.txt"
    session, found = model.session(speculate="off"), list[str]()
    for seed in range(240):
        how, start = Sampling(temperature=0.8, seed=seed), OPENINGS[seed % len(OPENINGS)]
        found.append(start + "".join(session.generate(start, max_tokens=160, sampling=how)))
    file.write_text("<|endoftext|>".join(found))
    return file


def tokens_a_call(model: edgedec.Model, speculate: str) -> float:
    """Greedy, of eight texts that begin as the training texts do."""
    made = calls = 0
    for start in OPENINGS:
        session = model.session(speculate=speculate)
        made += len(list(session.tokens(model.tokenizer.encode(f"{start} very"), max_tokens=64, ignore_eos=True)))
        calls += session.stats.calls
    return made / calls


@pytest.mark.parametrize("kind", HEADS)
def test_trained_heads_accept_more_than_chance(
    kind: str, texts: Path, nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trivial is what the untrained weights accept, and a tenth of a token more a call."""
    drafter, options = HEADS[kind]
    rates = {}
    for name, how in (("untrained", ("--steps", "1")), ("trained", ("--minutes", os.environ.get("MINUTES", "1.5")))):
        out = tmp_path / name
        command = ["train-heads", str(nano), str(texts), "--kind", kind, "--out", str(out), "--threads", "1"]
        assert run_app([*command, "--vocab-trim", "0", "--length", "96", *options, *how, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        model = edgedec.open(out, engine="native", threads=1)
        rates[name] = tokens_a_call(model, f"{drafter}:fixed=7"), report["run"]
    print(rates)
    assert rates["trained"][0] > max(rates["untrained"][0], 1.0) + 0.1


def test_tokens_leave_where_the_text_loses_little(
    texts: Path, nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stop and exit controller: layers that tokens left out, and how likely the model finds the text."""
    out = tmp_path / "sec"
    command = ["train-heads", str(nano), str(texts), "--kind", "sec", "--out", str(out), "--threads", "1"]
    minutes = os.environ.get("MINUTES", "1.5")
    assert run_app([*command, "--vocab-trim", "0", "--length", "128", "--minutes", minutes, "--json"]) == 0
    capsys.readouterr()
    model, found = edgedec.open(out, engine="native", threads=1), {}
    for spec in ("off", "sec:leave=0.9", "sec:leave=0.6"):
        left = scores = tokens = 0.0
        for start in OPENINGS:
            session, ids = model.session(speculate=spec), model.tokenizer.encode(f"{start} very")
            text = [int(t) for t in session.tokens(ids, max_tokens=64, ignore_eos=True)]
            tokens += len(text)
            judge = model.session(speculate="off")
            judge.append(ids)
            scores += sum(judge.score(text))
            if spec != "off":
                counts = session.report()["drafters"]["sec"]
                left += sum((8 - layer) / 8 * counts.get(f"exit {i}", 0) for i, layer in ((1, 1), (2, 4), (3, 7)))
        found[spec] = left / tokens, scores / tokens
    print(found)
    assert 0.0 < found["sec:leave=0.9"][0] < found["sec:leave=0.6"][0]
    assert found["sec:leave=0.9"][1] > found["off"][1] - 0.5
