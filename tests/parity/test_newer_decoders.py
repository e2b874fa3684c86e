"""From a checkpoint to text by the commands: gpt-oss, latent attention, Gemma 3n and 4; the same with drafts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zoo_golden
from checkpoints import VOCAB, write_tokenizer

from edgedec.bundle import Bundle
from edgedec.cli import main
from edgedec.kernels.cpu.loader import why_not

pytest.importorskip("onnx", reason="exporting needs onnx")
pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"native engine: {why_not()}")
PROMPT = "a b a b a b"
WIDE = ("model.embed_tokens.weight", "model.embed_tokens_per_layer.weight", "lm_head.weight")


def exported(name: str, weights: str, folder: Path) -> Path:
    """The zoo's model with a tokenizer's vocabulary, as a bundle."""
    golden = zoo_golden.golden(name)
    tensors = {key: [VOCAB, shape[1]] if key in WIDE else shape for key, shape in golden.tensors.items()}
    sizes = {key: VOCAB for key in ("vocab_size", "vocab_size_per_layer_input") if key in golden.config}
    zoo_golden.write(folder / "checkpoint", golden.config | sizes, tensors)
    write_tokenizer(folder / "checkpoint")
    out = folder / "bundle"
    assert main(["export", str(folder / "checkpoint"), "-o", str(out), "--weights", weights, "--for", "native"]) == 0
    return out


@pytest.mark.parametrize("weights", ["int4", "int8"])
@pytest.mark.parametrize("name", ["gpt_oss", "deepseek_v3", "gemma3n_active", "gemma4_text"])
def test_drafts_change_nothing(name: str, weights: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bundle = exported(name, weights, tmp_path)
    assert Bundle.open(bundle).manifest.version == 9
    said = {}
    for spec in ("off", "copy:fixed=4+suffix+trigram"):
        capfd.readouterr()
        assert main(["run", "-m", str(bundle), "-p", PROMPT, "-n", "48", "--temp", "0", "--spec", spec, "--json"]) == 0
        said[spec] = json.loads(capfd.readouterr().out)
    plain, drafted = said.values()
    assert drafted["stats"]["calls"] < plain["stats"]["calls"], drafted["stats"]
    assert plain["text"] == drafted["text"]
    assert len(plain["text"]) > 4
