"""The bundled model, and what it says: goldens that every runtime is held to.

`nano.json` holds greedy continuations by the reference runtime. A golden token must be the likeliest
on the reference, and on every other runtime likeliest up to the rounding of its int8 products.

    python tests/golden/test_nano.py     writes nano.json anew (after the model was trained again)
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import edgedec
from edgedec.rows import Rows
from edgedec.runtime import forward, runtime_names

GOLDEN = Path(__file__).with_name("nano.json")
PROMPTS = ["Once upon a time", "One day, a little fox", '"Can I help you?" asked']
TOKENS = 48
ROUNDING = 0.25


def continuation(prompt: str) -> list[int]:
    session = edgedec.open("nano", engine="reference").session()
    return [int(t) for t in session.tokens(session.model.tokenizer.encode(prompt), max_tokens=TOKENS)]


@pytest.mark.parametrize("engine", runtime_names())
@pytest.mark.parametrize("prompt", PROMPTS)
def test_golden(nano, engine, prompt):
    golden = json.loads(GOLDEN.read_text("utf-8"))[prompt]
    model = edgedec.open(nano, engine=engine)
    ids = model.tokenizer.encode(prompt)
    rows = Rows.chain([*ids, *golden], 0)
    logits = forward(model.runtime, rows, model.runtime.new_cache(len(rows)))[len(ids) - 1 : -1]
    behind = logits.max(axis=1) - logits[np.arange(len(golden)), golden]
    assert behind.max() <= (1e-3 if engine == "reference" else ROUNDING)


def test_a_folder_of_that_name_does_not_hide_it(nano, tmp_path, monkeypatch):
    (tmp_path / "nano").mkdir()
    monkeypatch.chdir(tmp_path)
    assert edgedec.open("nano").bundle.path.resolve() == nano.resolve()


def test_it_is_what_it_says(nano):
    bundle = edgedec.open(nano).bundle
    bundle.verify()
    spec, size = bundle.spec, sum(file.size for file in bundle.manifest.files.values())
    parameters = sum(int(np.prod(shape)) for shape in spec.tensors().values())
    assert size <= 8_000_000
    assert 3_000_000 <= parameters <= 8_000_000
    assert spec.n_layers >= 12
    assert spec.n_kv_heads < spec.n_heads
    assert spec.tied
    assert spec.vocab_size == 4096


def test_a_story_ends_in_whole_sentences(nano):
    session = edgedec.open(nano).session()
    story = "".join(session.generate("Once upon a time", max_tokens=600, sampling=session.model.sampling))
    assert session.finish_reason in ("eos", "length")
    assert len(story.split()) > 30
    assert story.count(".") >= 3


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({prompt: continuation(prompt) for prompt in PROMPTS}, indent=1) + "\n", "utf-8")
