"""Dense decoders from a checkpoint to a text: exported, and decoded with drafts as without, whatever their facts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zoo_golden
from checkpoints import VOCAB, write_tokenizer

from edgedec.bundle import Bundle
from edgedec.cli import main
from edgedec.kernels.cpu import loader

pytest.importorskip("onnx", reason="exporting needs onnx")
ENGINES = ["reference", *([] if loader.why_not() else ["native"])]
# Blocks side by side, learned positions, ALiBi and a norm after the embedding: one of each, in both formats.
MODELS = [("gpt_neox", "int4"), ("gpt2", "int8"), ("bloom", "int4"), ("cohere", "int8")]
DRAFTS = ["copy:fixed=4", "skip:fixed=3", "recycling:fixed=8"]


def _written(name: str, folder: Path) -> Path:
    """The zoo's model with as many tokens as the tokenizer has."""
    golden = zoo_golden.golden(name)
    shapes = {key: [VOCAB if n == 101 else n for n in shape] for key, shape in golden.tensors.items()}
    ends = {"vocab_size": VOCAB, "bos_token_id": VOCAB - 4, "eos_token_id": VOCAB - 3}
    zoo_golden.write(folder, golden.config | ends, shapes)
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize(("name", "weights"), MODELS)
def test_texts_are_the_same_with_drafts(
    name: str, weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = _written(name, tmp_path / "model"), tmp_path / "bundle"
    assert main(["export", str(folder), "-o", str(out), "--weights", weights, "--for", "native"]) == 0
    assert Bundle.open(out).manifest.version == 9
    for engine in ENGINES:
        texts = {}
        for spec in ["off", *DRAFTS]:
            capsys.readouterr()
            command = ["run", "-m", str(out), "-p", "the red fox, the red", "-n", "32", "--temp", "0", "--spec", spec]
            assert main([*command, "--engine", engine, "--json"]) == 0
            texts[spec] = json.loads(capsys.readouterr().out)["text"]
        assert len(set(texts.values())) == 1, texts
        assert texts["off"]
