"""KL divergence beside the plainest computation of it; the commands that show it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ODD, random_weights, write_bundle
from checkpoints import write_llama
from typer.testing import CliRunner

from edgedec.bench.divergence import divergence
from edgedec.bench.formats import step_speeds
from edgedec.cli._app import app
from edgedec.errors import UsageError
from edgedec.runtime import Rows, logits_of, open_runtime

SPEC = ODD["plain"]
IDS = np.random.default_rng(0).integers(0, SPEC.vocab_size, 41).tolist()


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("divergence")
    bundles = [write_bundle(folder / fmt, SPEC, random_weights(SPEC), fmt) for fmt in ("int4", "f32")]
    return open_runtime("reference", bundles[0]), open_runtime("reference", bundles[1])


def probabilities(runtime: Any, ids: list[int]) -> Any:
    logits = logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(len(ids))).astype(np.float64)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("window", [41, 16])
def test_it_is_what_the_definition_says(runtimes: tuple[Any, Any], window: int) -> None:
    own, theirs = runtimes
    kl, same, nll, other = [], [], [], []
    for at in range(0, 41, window):
        ids = IDS[at : at + window]
        q, p = probabilities(own, ids), probabilities(theirs, ids)
        kl += (p * np.log(p / q)).sum(axis=1).tolist()
        same += (p.argmax(axis=1) == q.argmax(axis=1)).tolist()
        for total, of in ((nll, q), (other, p)):
            total += [-np.log(of[i, token]) for i, token in enumerate(ids[1:])]
    found = divergence(own, theirs, IDS, window)
    assert found.tokens == 41
    assert found.kl == pytest.approx(np.mean(kl), rel=1e-5)
    assert found.kl_99 == pytest.approx(np.quantile(kl, 0.99), rel=1e-5)
    assert 0 < found.top1 < 1
    assert found.top1 == pytest.approx(np.mean(same))
    assert found.perplexity == pytest.approx(np.exp(np.mean(nll)), rel=1e-5) != found.reference
    assert found.reference == pytest.approx(np.exp(np.mean(other)), rel=1e-5)
    same_model = divergence(theirs, theirs, IDS, window)
    assert (same_model.kl, same_model.top1) == (0, 1)


def test_what_it_refuses(runtimes: tuple[Any, Any], tmp_path: Path) -> None:
    own, theirs = runtimes
    for ids, window, said in ((IDS, 1, "window 1"), ([1], 8, "at least 2"), ([1, 99999], 8, "outside the vocabulary")):
        with pytest.raises(UsageError, match=said):
            divergence(own, theirs, ids, window)
    other = write_bundle(tmp_path / "o", ODD["least"], random_weights(ODD["least"]))
    with pytest.raises(UsageError, match="do not compare"):
        divergence(own, open_runtime("reference", other), IDS, 8)


def test_runtimes_take_turns(runtimes: tuple[Any, Any]) -> None:
    ticks = itertools.cycle([0.0, 0.5, 1.0, 1.25])  # the first takes twice as long
    assert step_speeds(list(runtimes), 4, lambda: next(ticks)) == [2.0, 4.0]


# ---- commands ----


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint c, two texts and a calibration text."""
    folder = tmp_path_factory.mktemp("commands")
    write_llama(folder / "c", head_dim=16, hidden_size=64, num_hidden_layers=1, max_position_embeddings=64)
    words = ["the", "thing", "and", "the", "other", "thing", "on", "another", "day", "in", "the", "morning"]
    for seed, name in enumerate(("one.txt", "two.txt", "notes.txt")):
        text = " ".join(np.random.default_rng(seed).choice(words, 400))
        (folder / name).write_text(text, "utf-8")
    return folder


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_quantize_inspect_and_eval_kl(place: Path, tmp_path: Path) -> None:
    floats, low = str(tmp_path / "f"), str(tmp_path / "low")
    assert run("export", str(place / "c"), "-o", floats, "--weights", "f32", "--no-check").exit_code == 0
    words = ["--weights", "int3", "--passes", "gptq", "--calibration", str(place / "notes.txt")]
    made = run("quantize", floats, "-o", low, *words)
    assert made.exit_code == 0
    assert "gptq, calibrated on" in made.output
    assert "notes.txt" in made.output
    shown = run("inspect", low).output
    assert "the bundle f (f32)" in shown
    assert "gptq, calibrated on" in shown
    assert "perplexity" in shown
    words = ["eval", "kl", str(place / "one.txt"), "-m", low, "--to", floats, "--limit", "64"]
    found = json.loads(run(*words, "--json").output)
    assert found["model"] == "low"
    assert found["tokens"] == 64
    assert found["kl"] > 0
    assert f"KL {found['kl']:.4f} nats a token" in run(*words).output


def test_list_shows_bits_passes_and_divergence(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    made = tmp_path / "kind" / "low"
    words = ["export", str(place / "c"), "-o", str(made), "--weights", "int3", "--passes", "gptq:sweeps=0"]
    assert run(*words, "--calibrate", str(place / "notes.txt")).exit_code == 0
    broken = tmp_path / "kind" / "other"
    broken.mkdir()
    (broken / "edgedec.json").write_text("{}", "utf-8")
    low, other = json.loads(run("list", "--json").output)
    facts = json.loads(run("inspect", str(made), "--json").output)
    assert 3.5 < low["bits_per_weight"] == facts["bits_per_weight"] < 5
    assert (low["passes"], low["kl"]) == ("gptq:sweeps=0", facts["parity"]["kl"]["f32"])
    assert low["kl"] > 0
    assert [other[key] for key in ("bits_per_weight", "passes", "kl")] == [None] * 3
    line = next(line for line in run("list").output.splitlines() if "low" in line)
    assert line.split()[-3:] == [f"{low['bits_per_weight']:.2f}", "gptq:sweeps=0", f"{low['kl']:.4f}"]


def test_bench_formats(place: Path) -> None:
    words = ["bench", "formats", str(place / "c"), "--text", str(place / "one.txt"), "--text", str(place / "two.txt")]
    words += ["--type", "int8", "--type", "int3", "--type", "int3=gptq", "--limit", "80"]
    words += ["--calibrate", str(place / "notes.txt"), "-t", "1"]
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    rows = {row["name"]: row for row in json.loads(done.output)["formats"]}
    assert list(rows) == ["f32", "int8", "int3", "int3=gptq"]
    assert set(rows["int8"]["texts"]) == {"one.txt", "two.txt"}
    assert rows["f32"]["bits_per_weight"] == 32
    assert rows["int3"]["bits_per_weight"] < 4
    for text in ("one.txt", "two.txt"):
        kl = {name: row["texts"][text]["kl"] for name, row in rows.items()}
        assert kl["f32"] < 1e-9 < kl["int8"] < kl["int3"]
        assert kl["int3=gptq"] < kl["int3"]
    assert all(row["tokens_per_s"] > 0 for row in rows.values())


def test_a_text_that_was_calibrated_on_is_refused(place: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.txt"
    copy.write_bytes((place / "notes.txt").read_bytes())
    words = ["bench", "formats", str(place / "c"), "--text", str(copy), "--calibrate", str(place / "notes.txt")]
    refused = run(*words)
    assert refused.exit_code == 2
    assert "is the calibration text" in refused.output
    twice = run("bench", "formats", str(place / "c"), "--text", str(copy), "--text", str(copy))
    assert twice.exit_code == 2
    assert "two files of one name" in twice.output
