"""`edgedec bench embed`: shapes, turns, ratios."""

from __future__ import annotations

import json
from pathlib import Path

import encoder_checkpoints as checkpoints
import pytest
from typer.testing import CliRunner

from edgedec.bench.embedding import EmbedShape, measure
from edgedec.cli._app import app
from edgedec.export.exporter import ExportOptions, export


def test_engines_take_turns_and_the_first_is_not_counted() -> None:
    now, order = [0.0], list[tuple[str, int]]()

    def engine(name: str, seconds: list[float]) -> tuple[str, object]:
        def run(texts: list[list[int]]) -> None:
            order.append((name, len(texts)))
            now[0] += seconds.pop(0)

        return name, run

    engines = [engine("a", [9.0, 1.0, 2.0, 4.0]), engine("b", [0.5, 3.0, 4.0, 4.0])]
    found = measure(engines, [EmbedShape(2, 5)], 50, 3, clock=lambda: now[0])  # type: ignore[arg-type]
    assert order == [("a", 2), ("b", 2)] * 4
    assert [(one.engine, one.seconds, one.tokens, one.ratio) for one in found] == [("a", 2, 10, 1), ("b", 4, 10, 2)]
    assert found[1].speed == 2.5


def test_texts_are_of_the_shape() -> None:
    assert [len(text) for text in EmbedShape(3, 7).draw(50)] == [7, 7, 7]
    lengths = {len(text) for text in EmbedShape(100, 40, mixed=True).draw(50)}
    assert (min(lengths), max(lengths)) == (10, 40)
    assert all(0 <= token < 50 for text in EmbedShape(9, 40).draw(50) for token in text)


def test_the_verb_measures_an_encoder(tmp_path: Path) -> None:
    export(str(checkpoints.sentence_encoder(tmp_path / "checkpoint")), tmp_path / "b", ExportOptions(runtimes=()))
    words = ["bench", "embed", "-m", str(tmp_path / "b"), "--tokens", "3,20,900", "--texts", "1,2", "-r", "1"]
    answer = CliRunner().invoke(app, [*words, "--peer", "reference", "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert [(one["engine"], one["shape"]["texts"], one["tokens"]) for one in found] == [
        (name, texts, texts * tokens) for tokens in (3, 20) for texts in (1, 2) for name in ("native", "reference")
    ]
    assert "tokens/s" in CliRunner().invoke(app, words).stdout
    refused = CliRunner().invoke(app, ["bench", "embed", "-m", "nano"])
    assert (refused.exit_code, "generates text" in refused.output) == (1, True)


def test_transformers_is_a_peer(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folder = checkpoints.sentence_encoder(tmp_path / "checkpoint")
    export(str(folder), tmp_path / "b", ExportOptions(runtimes=()))
    words = ["bench", "embed", "-m", str(tmp_path / "b"), "--tokens", "8", "--texts", "2", "-r", "1", "--mixed"]
    answer = CliRunner().invoke(app, [*words, "--peer", f"transformers:{folder}"])
    assert answer.exit_code == 0, answer.output
    assert "transformers" in answer.stdout
