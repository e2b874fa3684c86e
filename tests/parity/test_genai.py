"""The same folder in onnxruntime-genai: its configuration, its whole-model graph, its own loop.

onnxruntime-genai 0.18 takes every cache format that edgedec writes, int8 and int4 included; the whole-model
graph carries the first of `--kv`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_llama

import edgedec
from edgedec.bundle.folder import Bundle

genai = pytest.importorskip("onnxruntime_genai", reason="needs onnxruntime-genai")
pytest.importorskip("onnx", reason="exporting needs onnx")
from edgedec.export.exporter import ExportOptions, export  # noqa: E402

PROMPT = [5, 100, 200, 17, 40]
STEPS = 64
TEXTS = [
    "Once upon a time, the king went into the thing and on.",
    "Don't say we've 12345 cats!\n\n  It's  odd:\ttabs, “quotes”, ünï ☃.",
    "one",
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("genai") / "checkpoint", head_dim=16, hidden_size=64)


def greedy(bundle: Path, prompt: list[int], steps: int) -> list[int]:
    """What onnxruntime-genai makes of the folder; it ends at the end token."""
    model = genai.Model(str(bundle))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, max_length=len(prompt) + steps)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[len(prompt) :]]


def ours(bundle: Path, prompt: list[int], steps: int) -> list[int]:
    """What edgedec makes of it on the same kernels: no others give the same tokens of quantized weights."""
    session = edgedec.open(bundle, engine="ort", threads=1).session()
    return [int(token) for token in session.tokens(prompt, max_tokens=steps)]


@pytest.mark.parametrize("kv", ["f32", "f16", "int8", "int4"])
@pytest.mark.parametrize("weights", ["f32", "int4"])
def test_greedy_text_is_ours(checkpoint: Path, tmp_path: Path, weights: str, kv: str) -> None:
    export(str(checkpoint), tmp_path / "bundle", ExportOptions(weights=weights, kv=(kv,), check=False))
    found = greedy(tmp_path / "bundle", PROMPT, STEPS)
    assert len(set(found)) > 5
    assert len(found) == STEPS
    assert found == ours(tmp_path / "bundle", PROMPT, STEPS)


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_so_is_that_of_a_packed_bundle(checkpoint: Path, tmp_path: Path, weights: str) -> None:
    for target in ("portable", "cpu"):
        export(str(checkpoint), tmp_path / target, ExportOptions(weights=weights, target=target, check=False))
    found = greedy(tmp_path / "cpu", PROMPT, STEPS)
    assert len(set(found)) > 5
    assert found == greedy(tmp_path / "portable", PROMPT, STEPS) == ours(tmp_path / "cpu", PROMPT, STEPS)


def test_it_stops_at_the_same_end(checkpoint: Path, tmp_path: Path) -> None:
    """The end token made the one that comes tenth: neither program gives it nor what follows."""
    export(str(checkpoint), tmp_path / "long", ExportOptions(weights="f32", check=False))
    tokens = ours(tmp_path / "long", PROMPT, 10)
    write_llama(tmp_path / "ending", head_dim=16, hidden_size=64, eos_token_id=tokens[-1])
    export(str(tmp_path / "ending"), tmp_path / "short", ExportOptions(weights="f32", check=False))
    until = tokens.index(tokens[-1])
    assert ours(tmp_path / "short", PROMPT, STEPS) == tokens[:until]
    assert greedy(tmp_path / "short", PROMPT, STEPS)[:until] == tokens[:until]
    assert len(greedy(tmp_path / "short", PROMPT, STEPS)) <= until + 1


def test_its_tokenizer_reads_a_byte_level_folder(checkpoint: Path, tmp_path: Path) -> None:
    export(str(checkpoint), tmp_path / "bundle", ExportOptions(weights="f32", check=False))
    same_tokenizer(tmp_path / "bundle")


def same_tokenizer(bundle: Path) -> None:
    """It puts no begin token in front of a text; ours does if the tokenizer says so."""
    theirs, tokenizer = genai.Tokenizer(genai.Model(str(bundle))), edgedec.open(bundle).tokenizer
    for text in TEXTS:
        ids = tokenizer.encode(text, around=False)
        assert [int(i) for i in theirs.encode(text)][-len(ids) :] == ids
        assert theirs.decode(np.array(ids, np.int32)) == text


def test_nano(nano: Path) -> None:
    manifest = Bundle.open(nano).manifest
    same_tokenizer(nano)
    prompt = edgedec.open(nano).tokenizer.encode("Once upon a time")
    expected = ours(nano, prompt, STEPS)
    found = greedy(nano, prompt, STEPS)
    assert len(expected) > 20
    assert [token for token in found if token not in manifest.text.eos] == expected
