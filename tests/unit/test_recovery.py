"""Training after a model lost key and value heads: it computes what the engines do, and says again what was said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="trains with torch")
pytest.importorskip("onnx", reason="exporting needs onnx")

from bundles import ODD, random_weights  # noqa: E402
from checkpoints import write_llama  # noqa: E402
from training import quiet, write_sentences  # noqa: E402

from edgedec.cli._app import run_app  # noqa: E402
from edgedec.errors import UsageError  # noqa: E402
from edgedec.export.exporter import ExportOptions, export  # noqa: E402
from edgedec.export.kv_heads_text import smaller_heads  # noqa: E402
from edgedec.export.recovery import Recovery, RecoveryPlan, TorchModel, check_plain, recover  # noqa: E402
from edgedec.runtime import ALL_LOGITS, Call, Rows, forward_one  # noqa: E402
from edgedec.runtimes.reference import Reference  # noqa: E402
from edgedec.spec import Attention, Mlp, ModelSpec, Rope  # noqa: E402

IDS = np.random.default_rng(0).integers(0, 37, 40)


def plain(**changes: Any) -> ModelSpec:
    """A small Llama with all that is computed here: biases, part of a head turned, a layer without rope, a cap."""
    blocks = [Attention(8, 4, 10, 0.3, rope, qkv_bias=rope == 0) for rope in (0, None, 1)]
    layers = tuple((block, Mlp(24)) for block in blocks)
    ropes = (Rope((1.0, 0.4, 0.1, 0.03, 0.01)), Rope((0.9, 0.2, 0.05), scale=1.2))
    spec = ModelSpec("llama", 37, 20, 64, layers, 1e-5, False, ropes, embed_scale=1.5, final_softcap=4.0)
    return replace(spec, **changes).check("here")


def read_of(spec: ModelSpec, seed: int = 1) -> Any:
    weights = random_weights(spec, seed)
    return lambda name, start, stop: weights(name)[start:stop]


def said(spec: ModelSpec, read: Any, ids: Any = IDS) -> Any:
    runtime = Reference(spec, read)
    return forward_one(runtime, Call(Rows.chain(ids, 0), runtime.new_cache(len(ids)), outputs=ALL_LOGITS)).logits


@pytest.mark.parametrize("tied", [False, True])
def test_it_computes_what_the_engines_do(tied: bool) -> None:
    spec = plain(tied=tied, final_softcap=0.0 if tied else 4.0)
    read = read_of(spec)
    few = smaller_heads(spec, 0.5, read, IDS)
    for model in ((spec, read), (few.spec, few.read)):
        found = TorchModel(*model).logits(torch.tensor(IDS)).numpy()
        assert np.abs(found - said(*model)).max() < 1e-4 * found.std()


@pytest.mark.parametrize(
    "change",
    [{"window": 8}, {"softcap": 20.0}, {"o_bias": True}, {"sinks": 2}, {"post_norm": "rms"}, {"norm": "layer"}],
)
def test_other_models_are_refused(change: dict[str, Any]) -> None:
    check_plain(plain())
    spec = plain()
    layers = ((replace(spec.attention[0], **change), Mlp(24)), *spec.layers[1:])
    with pytest.raises(UsageError, match="--recover: block 0 of llama is not like Llama's"):
        check_plain(replace(spec, layers=layers))
    with pytest.raises(UsageError, match="--recover: block 1"):
        check_plain(replace(spec, layers=((spec.attention[0], Mlp(24, activation="gelu")), *spec.layers[1:])))
    with pytest.raises(UsageError, match="not like Llama's"):
        check_plain(ODD["all"])
    with pytest.raises(UsageError, match="not like Llama's"):
        check_plain(replace(spec, final_norm="layer"))


def plan(**changes: Any) -> RecoveryPlan:
    return RecoveryPlan(**({"minutes": 60.0, "steps": 40, "rate": 3e-3, "length": 24, "threads": 1} | changes))


def encode(text: str) -> list[int]:
    return [ord(char) % 37 for char in text]


def test_the_smaller_model_learns_what_the_whole_one_says(tmp_path: Path) -> None:
    text = write_sentences(tmp_path / "text.txt", 400, 12)
    spec = plain()
    read, held = read_of(spec), encode("the cat in a hat sat on and then an inn")
    heads = smaller_heads(spec, 2, read, IDS)
    before = {name: heads.read(name, 0, 999).copy() for name in heads.spec.tensors()}
    far = distance(spec, read, heads, held)
    facts = recover(heads, read, [text], encode, plan(), quiet)
    assert facts["steps"] == 40
    assert facts["kl_after"] < 0.6 * facts["kl_before"]
    assert distance(spec, read, heads, held) < 0.6 * far
    changed = {name for name, old in before.items() if not np.array_equal(old, heads.read(name, 0, 999))}
    assert changed == {name for name in before if name.rsplit(".")[-1] in ("qkv", "qkv_bias", "o")}
    assert np.array_equal(heads.read("blocks.0.o", 3, 7), heads.read("blocks.0.o", 0, 999)[3:7])


def distance(spec: ModelSpec, read: Any, heads: Any, ids: Any) -> float:
    """The divergence of the next token's distribution, in numpy."""
    p, q = (log_softmax(said(*model, ids)) for model in ((spec, read), (heads.spec, heads.read)))
    return float((np.exp(p) * (p - q)).sum(1).mean())


def log_softmax(x: Any) -> Any:
    x = x.astype(np.float64) - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def test_the_loss_is_the_divergence_from_the_whole_model(tmp_path: Path) -> None:
    text, spec = write_sentences(tmp_path / "text.txt", 200, 12), plain()
    read = read_of(spec)
    heads = smaller_heads(spec, 1, read, IDS)
    trainer = Recovery(heads, read, [text], encode, plan())
    row = encode("a hat sat on and then the cat")
    loss = float(trainer.row_loss(row, None, 0.0).detach())
    assert loss == pytest.approx(distance(spec, read, heads, row[:-1]), rel=1e-3)
    wanted = np.concatenate([[distance(spec, read, heads, row)] * len(row) for row in trainer.held]).mean()
    assert trainer.measure() == pytest.approx(wanted, rel=1e-3)


def test_blocks_that_keep_their_heads_are_not_trained(tmp_path: Path) -> None:
    text, spec = write_sentences(tmp_path / "text.txt", 200, 12), plain()
    heads = smaller_heads(spec, 0.75, read_of(spec), IDS)
    kept = [b for b, block in heads.spec.attention.items() if block.n_kv_heads == 4]
    trainer = Recovery(heads, read_of(spec), [text], encode, plan())
    assert 0 < len(kept) < 3
    assert {int(name.split(".")[1]) for name in trainer.weights} == set(heads.spec.attention) - set(kept)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_llama(tmp_path / "checkpoint", num_key_value_heads=4)
    text = write_sentences(tmp_path / "text.txt", 300, 30)
    options = ["export", str(source), "--kv-heads", "50%", "--weights", "f32", "--calibrate", str(text)]
    assert run_app([*options, "-o", str(tmp_path / "few"), "--recover", "0.02", "-t", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["source"]["kv_heads"] == [4, 4, 4]
    recovered = report["source"]["recovered"]
    assert recovered["steps"] > 0
    assert recovered["kl_after"] < recovered["kl_before"]
    assert run_app([*options, "-o", str(tmp_path / "less"), "--json"]) == 0
    plainly = json.loads(capsys.readouterr().out)
    assert "recovered" not in plainly["source"]
    assert report["digest"] != plainly["digest"]


def test_what_does_not_go_together_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, text = write_llama(tmp_path / "checkpoint"), write_sentences(tmp_path / "text.txt", 300, 30)
    short = tmp_path / "short.txt"
    short.write_text("the cat sat on the mat")
    for options, says in (
        (["--recover", "1"], "give --kv-heads and --calibrate"),
        (["--recover", "1", "--kv-heads", "1"], "give --kv-heads and --calibrate"),
        (["--recover", "1", "--calibrate", str(text)], "give --kv-heads and --calibrate"),
        (["--recover", "1", "--kv-heads", "1", "--calibrate", str(short)], "too few texts"),
        (["--kv-heads", "half"], "--kv-heads half: give a number, or a share as 50%"),
        (["--kv-heads", "40%"], "each attention block needs one head; give 50% or more"),
    ):
        assert run_app(["export", str(source), "-o", str(tmp_path / "none"), *options]) != 0
        error = " ".join(capsys.readouterr().err.split())
        assert says in error
        assert not (tmp_path / "none").exists()
    other = write_llama(tmp_path / "other", tokenizer=False, num_key_value_heads=4)
    with pytest.raises(UsageError, match="no tokenizer to read the text with"):
        export(str(other), tmp_path / "none", ExportOptions(kv_heads=2, recover=1.0, calibrate=text))
