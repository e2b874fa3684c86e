"""`edgedec embed`, `rerank`, `classify`, and what other verbs say of a text encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import encoder_checkpoints as checkpoints
import numpy as np
import pytest
from typer.testing import CliRunner

import edgedec
from edgedec.cli._app import app
from edgedec.export.exporter import ExportOptions, export


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, found = tmp_path_factory.mktemp("verbs"), {}
    for name, write in (
        ("encoder", lambda at: checkpoints.sentence_encoder(at, prompts={"query": "query: "})),
        ("reranker", checkpoints.reranker),
        ("classifier", checkpoints.scorer),
    ):
        export(str(write(folder / f"{name}-checkpoint")), folder / name, ExportOptions(runtimes=()))
        found[name] = str(folder / name)
    return found


def run(*args: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, list(args), input=stdin)


def test_vectors_are_printed_or_written(bundles: dict[str, str], tmp_path: Path) -> None:
    model, file = edgedec.open(bundles["encoder"]), tmp_path / "notes.txt"
    file.write_bytes(b"the cat\r\n\na dog\n")
    expected = model.embed(["who", "the cat", "", "a dog"])
    printed = run("embed", "who", str(file), "-m", bundles["encoder"])
    assert printed.exit_code == 0, printed.output
    np.testing.assert_array_equal(np.array([json.loads(line) for line in printed.stdout.splitlines()]), expected)
    out = tmp_path / "vectors.npy"
    assert run("embed", "who", str(file), "-m", bundles["encoder"], "-o", str(out)).exit_code == 0
    assert np.load(out).tobytes() == expected.tobytes()
    piped = run("embed", "-m", bundles["encoder"], "--dimensions", "3", "--prompt", "query", stdin="who\na dog\n")
    found = np.array([json.loads(line) for line in piped.stdout.splitlines()])
    np.testing.assert_allclose(found, model.embed(["who", "a dog"], dimensions=3, prompt="query"), atol=1e-7)


def test_nothing_is_left_half_written(bundles: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "vectors.npy"
    failed = run("embed", "cat", "cat " * 50, "-m", bundles["encoder"], "-o", str(out))
    assert failed.exit_code == 1
    assert "text 1: 52 tokens, this model reads 24" in failed.output
    assert list(tmp_path.iterdir()) == []
    cut = run("embed", "cat", "cat " * 50, "-m", bundles["encoder"], "-o", str(out), "--truncate")
    assert (cut.exit_code, len(np.load(out))) == (0, 2)
    assert "must end in .npy" in run("embed", "a", "-m", bundles["encoder"], "-o", str(tmp_path / "v.bin")).output


def test_documents_are_ranked(bundles: dict[str, str]) -> None:
    documents = ["the cat", "a dog ran", "mat"]
    expected = edgedec.open(bundles["reranker"]).rerank("who sat", documents)
    printed = run("rerank", *documents, "-q", "who sat", "-m", bundles["reranker"])
    assert printed.exit_code == 0, printed.output
    lines = [line.split("\t") for line in printed.stdout.splitlines()]
    assert [(int(number), text) for _, number, text in lines] == [(r.index, documents[r.index]) for r in expected]
    best = json.loads(run("rerank", *documents, "-q", "who sat", "-m", bundles["reranker"], "-n", "1", "--json").stdout)
    assert best == [{"index": expected[0].index, "score": expected[0].score, "document": documents[expected[0].index]}]


def test_texts_are_labelled(bundles: dict[str, str]) -> None:
    expected = edgedec.open(bundles["classifier"]).classify(["the cat"])[0]
    printed = run("classify", "the cat", "-m", bundles["classifier"])
    label, score, text = printed.stdout.rstrip("\n").split("\t")
    assert (label, text) == (next(iter(expected)), "the cat")
    assert float(score) == pytest.approx(expected[label], abs=1e-4)
    found = json.loads(run("classify", "the cat", "-m", bundles["classifier"], "--json").stdout)
    assert found == [{"text": "the cat", "labels": expected}]


@pytest.mark.parametrize(
    "verb",
    [
        ["run", "-p", "a"],
        ["chat"],
        ["eval", "ppl", "{file}"],
        ["trace", "-p", "a", "-o", "{out}"],
        ["batch", "{jobs}", "-o", "{out}"],
        ["bench"],
        ["bench", "spec"],
        ["bench", "scaling"],
        ["calibrate", "{bundle}", "{file}"],
        ["train-heads", "{bundle}", "{file}"],
        ["add-draft", "nano", "{bundle}"],
        ["web", "{bundle}", "-o", "{out}"],
    ],
)
def test_other_verbs_refuse_an_encoder_in_one_line(bundles: dict[str, str], tmp_path: Path, verb: list[str]) -> None:
    if verb[0] == "train-heads":
        pytest.importorskip("torch", reason="heads are trained with torch")
    (tmp_path / "file").write_text("the cat sat on the mat " * 3)
    (tmp_path / "jobs.jsonl").write_text(json.dumps({"prompt": "a"}) + "\n")
    places = {"file": tmp_path / "file", "jobs": tmp_path / "jobs.jsonl", "out": tmp_path / "out.jsonl"}
    words = [word.format(**places, bundle=bundles["encoder"]) for word in verb]
    answer = run(*words, *([] if bundles["encoder"] in words else ["-m", bundles["encoder"]]), stdin="hello\n")
    assert answer.exit_code == 1, answer.output
    assert "a text encoder, it generates no text; use embed, rerank or classify" in answer.output
    assert not (tmp_path / "out.jsonl").exists() or not (tmp_path / "out.jsonl").read_text()


def test_verbs_of_encoders_refuse_a_decoder() -> None:
    for verb in (["embed", "a"], ["rerank", "a", "-q", "b"], ["classify", "a"]):
        answer = run(*verb, "-m", "nano")
        assert answer.exit_code == 1
        assert "generates text; embed, rerank and classify need a text encoder" in answer.output


def test_labels_of_a_few_examples(bundles: dict[str, str], tmp_path: Path) -> None:
    few = tmp_path / "few.tsv"
    few.write_text("cats\tthe cat sat\ndogs\ta dog ran\ncats\tcats\n")
    words = ["classify", "a dog ran", "-m", bundles["encoder"], "--examples", str(few)]
    label, score, text = run(*words).stdout.rstrip("\n").split("\t")
    assert (label, text) == ("dogs", "a dog ran")
    assert float(score) == pytest.approx(1, abs=1e-4)
    few.write_text("cats\tthe cat\nno tab\n")
    failed = run(*words)
    assert (failed.exit_code, "line 2: must be a label, a tab and a text" in failed.output) == (1, True)
    few.write_text("cats\tthe cat sat\ndogs\ta dog ran\n")
    moved = json.loads(run("classify", "a dog ran", "the dog", *words[2:], "--align", "even", "--json").stdout)
    examples = {"cats": ["the cat sat"], "dogs": ["a dog ran"]}
    expected = edgedec.open(bundles["encoder"]).classify(["a dog ran", "the dog"], examples=examples, align="even")
    assert [found["labels"] for found in moved] == expected
    assert run(*words, "--align", "most").exit_code == 2


def test_labels_are_learned_some_now_and_more_later(bundles: dict[str, str], tmp_path: Path) -> None:
    out, few, notes = tmp_path / "pets.labels", tmp_path / "few.tsv", tmp_path / "notes.txt"
    notes.write_text("the cat\na dog ran\nwho sat on the mat\n")
    of = ["-m", bundles["encoder"], "-o", str(out)]
    built = run("labels", "build", str(notes), *of)
    assert (built.exit_code, "192 keys of 3 texts" in built.stdout) == (0, True), built.output
    empty = run("classify", "cats", "-m", bundles["encoder"], "--labels", str(out))
    assert (empty.exit_code, "none are learned yet" in empty.output) == (1, True)
    assert "exists already" in run("labels", "build", "a", *of).output
    few.write_text("cats\tthe cat sat\ndogs\ta dog ran\n")
    added = run("labels", "add", str(few), *of)
    assert added.exit_code == 0, added.output
    assert "2 labels, 2 of them new" in added.stdout
    few.write_text("mats\ton the mat\ncats\tcats\n")
    found = json.loads(run("labels", "add", str(few), *of, "--json").stdout)
    assert (found["labels"], found["keys"]) == (["cats", "dogs", "mats"], 192)
    assert 0 < found["changed"] <= 128
    printed = run("classify", "a dog ran", "-m", bundles["encoder"], "--labels", str(out)).stdout
    label, score, text = printed.rstrip("\n").split("\t")
    expected = edgedec.open(bundles["encoder"]).classify(["a dog ran"], labels=out)[0]
    assert (label, text, set(expected)) == (next(iter(expected)), "a dog ran", {"cats", "dogs", "mats"})
    assert float(score) == pytest.approx(expected[label], abs=1e-4)
    before = out.read_bytes()
    few.write_text("no tab\n")
    failed = run("labels", "add", str(few), *of)
    assert (failed.exit_code, "line 1: must be a label" in failed.output) == (1, True)
    other = run("labels", "add", str(few), "-m", bundles["reranker"], "-o", str(out))
    assert other.exit_code == 1
    assert (out.read_bytes(), sorted(p.name for p in tmp_path.iterdir())) == (
        before,
        ["few.tsv", "notes.txt", "pets.labels"],
    )
    forced = json.loads(run("labels", "build", "a", "b", *of, "--force", "--json").stdout)
    assert (forced["texts"], forced["keys"], edgedec.open(bundles["encoder"]).encoder.open_labels(out).labels) == (
        2,
        128,
        (),
    )
