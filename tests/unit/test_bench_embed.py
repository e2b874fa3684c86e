"""`edgedec bench embed`: shapes, turns, ratios."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import encoder_checkpoints as checkpoints
import gguf_encoders
import numpy as np
import pytest
from typer.testing import CliRunner

import edgedec
from edgedec.bench.embedding import EmbedShape, measure
from edgedec.bench.encoder_peers import _parts, of_llama_cpp, of_onnx
from edgedec.cli._app import app
from edgedec.encoding.texts import EncodedText
from edgedec.errors import UsageError
from edgedec.export.exporter import ExportOptions, export


def test_engines_take_turns_and_the_first_is_not_counted() -> None:
    now, order = [0.0], list[tuple[str, int]]()

    def engine(name: str, seconds: list[float]) -> tuple[str, object]:
        def run(texts: list[list[int]]) -> None:
            order.append((name, len(texts)))
            now[0] += seconds.pop(0)

        return name, run

    engines = [engine("a", [9.0, 1.0, 2.0, 4.0]), engine("b", [0.5, 3.0, 4.0, 4.0])]
    shapes, rest = [EmbedShape(2, 5)], lambda seconds: order.append(("rest", round(10 * seconds)))
    found = measure(engines, shapes, 50, 3, clock=lambda: now[0], rest=rest)  # type: ignore[arg-type]
    assert order == [("rest", 1), ("a", 2), ("rest", 1), ("b", 2)] * 4
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


def graph(path: Path, inputs: list[str]) -> str:
    """Each row's number, two values wide: that of the token, and of the sum of what else is read."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    ints, floats = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    nodes = [helper.make_node("Add", [inputs[0], inputs[1]], ["sum"])]
    nodes += [helper.make_node("Unsqueeze", [name, "last"], [f"{name}_"]) for name in (inputs[0], "sum")]
    nodes += [helper.make_node("Concat", [f"{inputs[0]}_", "sum_"], ["both"], axis=2)]
    nodes += [helper.make_node("Cast", ["both"], ["rows"], to=floats)]
    last = helper.make_tensor("last", ints, [1], [2])
    given = [helper.make_tensor_value_info(name, ints, ["n", "t"]) for name in inputs]
    out = [helper.make_tensor_value_info("rows", floats, ["n", "t", 2])]
    made = helper.make_model(
        helper.make_graph(nodes, "g", given, out, [last]), opset_imports=[helper.make_opsetid("", 17)]
    )
    made.ir_version = 8
    onnx.save(made, path)
    return str(path)


def test_an_onnx_graph_is_a_peer_whose_padding_does_not_count(tmp_path: Path) -> None:
    name, run = of_onnx(graph(tmp_path / "m.onnx", ["input_ids", "attention_mask"]), 1)
    assert (name, np.asarray(run([[1, 2, 6], [5]])).tolist()) == ("onnx m", [[3.0, 4.0], [5.0, 6.0]])
    export(str(checkpoints.sentence_encoder(tmp_path / "checkpoint")), tmp_path / "b", ExportOptions(runtimes=()))
    words = ["bench", "embed", "-m", str(tmp_path / "b"), "--tokens", "4", "--texts", "2", "-r", "1", "--json"]
    answer = CliRunner().invoke(app, [*words, "--peer", f"onnx:{tmp_path}/m.onnx"])
    assert [one["engine"] for one in json.loads(answer.stdout)] == ["native", "onnx m"]


def test_a_peer_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reads input_ids, past; must be input_ids, attention_mask"):
        of_onnx(graph(tmp_path / "m.onnx", ["input_ids", "past"]), 1)
    for peer in (of_onnx, of_llama_cpp):
        with pytest.raises(UsageError, match=r"nothing\.bin: there is no such file"):
            peer("nothing.bin", 1)


def test_texts_share_calls_of_llama_cpp() -> None:
    lengths = [[len(text) for text in part] for part in _parts([[0] * n for n in (2048, 1000, 1048, 1, 2047, 2)])]
    assert lengths == [[2048], [1000, 1048], [1, 2047], [2]]
    assert [len(part) for part in _parts([[0]] * 130)] == [64, 64, 2]
    assert list(_parts([])) == []
    with pytest.raises(UsageError, match="a text of 2049 tokens; a call has 2048"):
        list(_parts([[0] * 2049]))


def test_llama_cpp_is_a_peer(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="comparing with llama.cpp needs the package llama_cpp")
    written = gguf_encoders.write("bert", tmp_path, gguf_encoders.vocabulary())
    export(str(written.path), tmp_path / "b", ExportOptions(runtimes=()))
    code = (
        "import sys, json; from edgedec.bench.encoder_peers import of_llama_cpp; "
        "print(json.dumps([v.tolist() for v in of_llama_cpp(sys.argv[1], 1)[1]([[3, 4, 5], [6], [7, 8]])]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(written.path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    encoder = edgedec.open(tmp_path / "b").encoder
    read = [EncodedText(ids, [0] * len(ids)) for ids in ([3, 4, 5], [6], [7, 8])]
    for own, theirs in zip(encoder.vectors(read), json.loads(done.stdout), strict=True):
        assert float(np.dot(own, theirs) / np.linalg.norm(own) / np.linalg.norm(theirs)) > 0.999
