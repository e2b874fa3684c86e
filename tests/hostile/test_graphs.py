"""ONNX graphs from outside are refused before ONNX Runtime sees them, or limited while they run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import edgedec
from edgedec.bundle import Bundle, onnx_rules
from edgedec.bundle.onnx_reading import NotOnnx, OnnxGraph, parse_onnx
from edgedec.bundle.onnx_rules import DECODER_RULES, check_graph
from edgedec.cli import main
from edgedec.errors import BundleCorrupt, BundleError, BundleUnsafe, CheckpointError
from edgedec.runtime import Rows, RuntimeOptions, logits_of, onnx_memory, open_runtime
from hostile import graphs

onnx = pytest.importorskip("onnx", reason="hostile graphs are made with onnx")

from decoder_graphs import write_decoder  # noqa: E402

from edgedec.export.decoder_graph import import_graph  # noqa: E402


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime must not see the graph."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a session was made")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)


def refused(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    """The one line of a command that fails."""
    assert main([str(word) for word in argv]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("edgedec")]
    assert len(lines) == 1, lines
    return lines[0]


# ---- heads: every way to open one


def branch() -> Any:
    out = onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, None)
    return onnx.helper.make_graph([onnx.helper.make_node("Identity", ["hidden"], ["b"])], "branch", [], [out])


def with_function(model: Any) -> Any:
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    opset = [onnx.helper.make_opsetid("", 17)]
    model.functions.append(onnx.helper.make_function("mine", "f", ["x"], ["y"], [node], opset))
    return model


def with_sparse(model: Any) -> Any:
    values, indices = graphs.tensor("s", [1], b"\0" * 4), onnx.numpy_helper.from_array(np.array([0]), "at")
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [graphs.HUGE]))
    return model


def with_tensor(made: Any) -> Callable[[Any], Any]:
    def add(model: Any) -> Any:
        model.graph.initializer.append(made)
        return model

    return add


HEADS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a size out of a value": (lambda m: graphs.add_node(m, "ConstantOfShape"), "the operator ConstantOfShape"),
    "an operator that runs code": (lambda m: graphs.add_node(m, "PyOp", domain="ai.onnx.contrib"), "contrib:PyOp"),
    "control flow": (
        lambda m: graphs.add_node(m, "If", then_branch=branch(), else_branch=branch()),
        "the operator If",
    ),
    "a function": (with_function, "defines functions"),
    "a sparse tensor": (with_sparse, "a sparse tensor"),
    "a tensor without data": (with_tensor(graphs.tensor("t", [graphs.HUGE])), "data for fewer"),
    "a tensor of half its data": (with_tensor(graphs.tensor("t", [64], b"\0" * 128)), "64 values, and data for fewer"),
    "a tensor of a negative size": (with_tensor(graphs.tensor("t", [-1], b"\0" * 4)), "a shape of"),
    "data that is not listed": (
        with_tensor(graphs.external("t", [2], location="secret.bin")),
        "its data is in 'secret.bin', which the manifest does not list",
    ),
    "data out of the bundle": (
        with_tensor(graphs.external("t", [2], location="../../etc/passwd")),
        "which the manifest does not list",
    ),
    "data after its file": (
        with_tensor(graphs.external("t", [2], location="token_counts.bin", offset="16380", length="8")),
        "lies outside token_counts.bin",
    ),
    "data before its file": (
        with_tensor(graphs.external("t", [2], location="token_counts.bin", offset="-8", length="8")),
        "lies outside token_counts.bin",
    ),
}


@pytest.mark.parametrize("case", HEADS)
@pytest.mark.usefixtures("no_session")
def test_a_head_that_may_not_be_opened(nano: Path, tmp_path: Path, case: str) -> None:
    change, why = HEADS[case]
    content = change(graphs.head_of(nano)).SerializeToString()
    bundle = graphs.replace_file(nano, tmp_path / "bundle", "head_medusa.onnx", content)
    model = edgedec.open(bundle, engine="native")
    with pytest.raises(BundleError, match=r"head_medusa\.onnx: ") as error:
        list(model.session(speculate="medusa").tokens([1, 2], max_tokens=2))
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_verify_says_what_run_says(nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = HEADS["control flow"][0](graphs.head_of(nano)).SerializeToString()
    bundle = graphs.replace_file(nano, tmp_path / "bundle", "head_medusa.onnx", content)
    said = refused(capsys, "run", "-m", bundle, "-p", "Once", "-n", "2", "--spec", "medusa")
    assert "the operator If is not one that a draft head may use" in said
    assert refused(capsys, "verify", bundle) == said


def test_verify_opens_the_tokenizer(nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = graphs.replace_file(nano, tmp_path / "bundle", "tokenizer.json", b'{"model": {"type": "none"}}')
    said = refused(capsys, "run", "-m", bundle, "-p", "Once", "-n", "2")
    assert "tokenizer.json" in said
    assert refused(capsys, "verify", bundle) == said


# ---- imports


def imported(source: Path, change: Callable[[Any], Any], out: Path) -> Bundle:
    """A bundle of the decoder, changed."""
    model = onnx.load(source / "model.onnx")
    onnx.save(change(model), source / "model.onnx")
    return import_graph(source, out).bundle


def doubled() -> Any:
    """A loop of 60,000 runs in a loop."""
    inner = onnx.helper.make_node("Constant", [], ["n"], value_int=60_000)
    loop = onnx.helper.make_node("Loop", ["n", "", "v"], ["x"], body=graphs.body())
    return graphs.body(inner=[inner, loop])


IMPORTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a loop as long as a value": (lambda m: graphs.with_loop(m, None), "how often it runs is not a constant"),
    "a loop without end": (lambda m: graphs.with_loop(m, 1 << 62), "runs 4611686018427387904 times"),
    "loops in a loop": (lambda m: graphs.with_loop(m, 3, doubled()), "runs 180000 times"),
    "an unknown operator": (lambda m: graphs.add_node(m, "StringNormalizer", ["input_ids"]), "StringNormalizer"),
    "an operator in a loop": (lambda m: graphs.with_loop(m, 3, graphs.body("RandomNormalLike")), "RandomNormalLike"),
    "a function": (with_function, "defines functions"),
    "a tensor without data": (with_tensor(graphs.tensor("t", [graphs.HUGE])), "data for fewer"),
}


@pytest.mark.parametrize("case", IMPORTS)
@pytest.mark.usefixtures("no_session")
def test_an_import_that_may_not_be_opened(tmp_path: Path, case: str) -> None:
    change, why = IMPORTS[case]
    with pytest.raises(CheckpointError) as error:
        imported(write_decoder(tmp_path / "source"), change, tmp_path / "bundle")
    assert why in str(error.value)
    assert not (tmp_path / "bundle").exists()


def test_a_scan_goes_along_a_constant(tmp_path: Path) -> None:
    scan = onnx.helper.make_node("Scan", ["input_ids"], ["s"], num_scan_inputs=1, body=branch())
    path = tmp_path / "scan.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([scan], "g", [], [])), path)
    with pytest.raises(BundleUnsafe, match="Scan: how often it runs is not a constant"):
        check_graph(path, DECODER_RULES, {})


def test_a_loop_of_a_constant_length_is_run(tmp_path: Path) -> None:
    bundle = imported(write_decoder(tmp_path / "source"), lambda m: graphs.with_loop(m, 3), tmp_path / "bundle")
    runtime = open_runtime("graph", bundle, RuntimeOptions(threads=1))
    assert np.isfinite(logits_of(runtime, Rows.chain([1, 2], 0), runtime.new_cache(8))).all()


def test_a_graph_changed_after_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules hold for bundles that others imported."""
    assert onnx_rules.MOST_RUNS == 65536
    bundle = imported(write_decoder(tmp_path / "source"), lambda m: graphs.with_loop(m, 70), tmp_path / "bundle")
    monkeypatch.setattr(onnx_rules, "MOST_RUNS", 64)
    runtime = open_runtime("graph", bundle, RuntimeOptions(threads=1))
    with pytest.raises(BundleUnsafe, match="Loop: runs 70 times, more than 64"):
        logits_of(runtime, Rows.chain([1], 0), runtime.new_cache(8))


def test_values_are_limited_before_they_are_allocated(tmp_path: Path) -> None:
    """A value of more than what is free is refused by the allocator that has the limit, not by the system's."""
    most = onnx_memory._limited()
    with pytest.raises(BundleCorrupt, match="cannot run it") as error:
        imported(write_decoder(tmp_path / "source"), lambda m: graphs.with_size(m, most), tmp_path / "bundle")
    assert "Available memory of" in str(error.value)
    assert f"is smaller than requested bytes of {4 * most}" in str(error.value)


# ---- the reader, beside onnx's own


def operators(graph: Any) -> set[tuple[str, str]]:
    """All operators by onnx's reader."""
    found = set()
    for node in graph.node:
        found.add((node.domain, node.op_type))
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found |= operators(inner)
    return found


def own_operators(graph: OnnxGraph) -> set[tuple[str, str]]:
    inner = [body for node in graph.nodes for body in node.graphs.values()]
    return {(node.domain, node.op) for node in graph.nodes}.union(*map(own_operators, inner))


def test_a_field_that_comes_twice_is_refused() -> None:
    """Protobuf would join them to one graph that neither is."""
    raw = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [])).SerializeToString()
    assert not parse_onnx(memoryview(raw)).graph.nodes
    with pytest.raises(NotOnnx, match="two graphs"):
        parse_onnx(memoryview(raw + raw))


def test_damaged_graphs_are_read_as_onnx_reads_them(nano: Path, tmp_path: Path) -> None:
    """Whatever is changed in a file: what this reader accepts has the operators that onnx finds."""
    write_decoder(tmp_path / "source")
    looped = graphs.with_loop(onnx.load(tmp_path / "source" / "model.onnx"), 3).SerializeToString()
    rng, read, agreed = random.Random(0), 0, 0
    for _ in range(1500):
        raw = bytearray(looped)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(raw))
            if rng.random() < 0.5:
                raw[at] = rng.randrange(256)
            else:
                raw[at:at] = raw[rng.randrange(len(raw)) :][: rng.randrange(40)]
        try:
            found = own_operators(parse_onnx(memoryview(bytes(raw))).graph)
        except NotOnnx:
            continue
        read += 1
        try:
            model = onnx.load_from_string(bytes(raw))
        except Exception:  # protobuf's own
            continue
        agreed += 1
        assert operators(model.graph) <= found
    assert read > 300
    assert agreed > 300
