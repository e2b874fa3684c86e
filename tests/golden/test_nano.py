"""The bundled model, and what it says: goldens that every runtime is held to.

`nano.json` holds greedy continuations by the reference runtime. A golden token must be the likeliest
on the reference, and on every other runtime likeliest up to the rounding of its int8 products.

The native engine is held to bytes: `nano_native.json` has the hash of its logits, a prompt in one call, for
every cache format. They are the same on every machine, instruction set and number of threads.

    python tests/golden/test_nano.py     writes both files anew (after the model was trained again)
"""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import edgedec
from edgedec.bundle import Bundle
from edgedec.kernels.cpu import loader
from edgedec.runtime import RUNTIMES, Rows, logits_of, unavailable_reason
from edgedec.spec import KV_FORMATS

GOLDEN = Path(__file__).with_name("nano.json")
NATIVE = Path(__file__).with_name("nano_native.json")
needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
PROMPTS = ["Once upon a time", "One day, a little fox", '"Can I help you?" asked']
TOKENS = 48
ROUNDING = 0.25


def continuation(prompt: str) -> list[int]:
    session = edgedec.open("nano", engine="reference").session()
    return [int(t) for t in session.tokens(session.model.tokenizer.encode(prompt), max_tokens=TOKENS)]


def native_hash(kv: str, threads: int = 1) -> str:
    """Of the logits of a prompt, [n, vocab] little-endian float32, and of the 30 tokens that follow it."""
    model = edgedec.open("nano", engine="native", kv=kv, threads=threads)
    ids = model.tokenizer.encode(PROMPTS[0])
    logits = logits_of(model.runtime, Rows.chain(ids, 0), model.runtime.new_cache(len(ids)))
    told = [int(token) for token in model.session().tokens(ids, max_tokens=30)]
    return hashlib.sha256(logits.astype("<f4").tobytes() + np.array(told, "<i4").tobytes()).hexdigest()


@needs_native
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("isa", [name for name, runs in loader.isas().items() if runs] if not loader.why_not() else [])
def test_the_engines_bytes(nano, isa, kv, threads, monkeypatch):
    monkeypatch.setenv("EDGEDEC_ISA", isa)
    assert native_hash(kv, threads) == json.loads(NATIVE.read_text("utf-8"))[kv]


def runs(engine):
    """Is the engine made for blocks as nano's?"""
    return "attention" in RUNTIMES.facts(engine).kinds


@pytest.mark.parametrize("engine", list(filter(runs, RUNTIMES.names())))
@pytest.mark.parametrize("prompt", PROMPTS)
def test_golden(nano, engine, prompt, monkeypatch):
    if engine == "native" and (reason := loader.why_not()):
        pytest.skip(f"native engine: {reason}")
    golden = json.loads(GOLDEN.read_text("utf-8"))[prompt]
    if engine == "cuda":
        monkeypatch.setenv("EDGEDEC_CUDA", "emulated")
        if reason := import_module("edgedec.kernels.cuda.emulated").why_not():
            pytest.skip(f"cuda engine: {reason}")
    elif engine not in ("native", "ort", "reference") and (reason := unavailable_reason(engine, Bundle.open(nano))):
        pytest.skip(f"{engine} engine: {reason}")
    model = edgedec.open(nano, engine=engine)
    ids = model.tokenizer.encode(prompt)
    rows = Rows.chain([*ids, *golden], 0)
    logits = logits_of(model.runtime, rows, model.runtime.new_cache(len(rows)))[len(ids) - 1 : -1]
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
    assert all(block.n_kv_heads < block.n_heads for block in spec.attention.values())
    assert spec.tied
    assert spec.vocab_size == 4096


def test_a_story_ends_in_whole_sentences(nano):
    session = edgedec.open(nano).session()
    story = "".join(session.generate("Once upon a time", max_tokens=600, sampling=session.model.sampling))
    assert session.finish_reason in ("eos", "length")
    assert len(story.split()) > 30
    assert story.count(".") >= 3


if __name__ == "__main__":
    NATIVE.write_text(json.dumps({kv: native_hash(kv) for kv in KV_FORMATS}, indent=1) + "\n", "utf-8")
    GOLDEN.write_text(json.dumps({prompt: continuation(prompt) for prompt in PROMPTS}, indent=1) + "\n", "utf-8")
