"""Training draft heads: what they learn from, that they learn it, that a run cut short goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import decode

import edgedec
from edgedec.bundle.folder import Bundle
from edgedec.bundle.read_grams import ReadRecord
from edgedec.cache.rows import Rows
from edgedec.cli._app import run_app
from edgedec.cli.train_heads import documents
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats
from edgedec.drafters import DrafterContext, make_drafter
from edgedec.errors import UsageError
from edgedec.runtime import Call, Outputs, forward_one, logits_of
from edgedec.testing.fakes import Limited

pytest.importorskip("onnx", reason="heads are built with onnx")
pytest.importorskip("torch", reason="heads are trained with torch")
pytest.importorskip("safetensors", reason="training keeps its state as safetensors")
from edgedec.export.heads import arrays_of
from edgedec.export.heads_data import Data, collect, key_of, most_said, windows
from edgedec.export.heads_train import run, train
from edgedec.export.heads_trainer import HeadTrainer, TrainingPlan

OPENINGS = [[5, 7], [1, 2, 3], [40, 41], [9], [100, 3, 77], [31, 30]]


def quiet(stage: str, done: int, total: int) -> None:
    pass


def plan(kind: str, **changes: Any) -> TrainingPlan:
    facts: dict[str, Any] = {
        "depth": 3,
        "minutes": 1e6,
        "steps": 12,
        "batch": 64,
        "keep": 60,
        "layer": int(kind == "exit"),
    }
    return TrainingPlan(kind, **facts | changes)


@pytest.fixture(scope="module")
def model(tiny: Path) -> edgedec.Model:
    return edgedec.open(tiny, engine="reference")


@pytest.fixture(scope="module")
def texts(model: edgedec.Model) -> list[list[int]]:
    """What the model says after each opening, greedily."""
    session = model.session(speculate="off")
    return [[*o, *map(int, session.tokens(o, max_tokens=60, ignore_eos=True))] for o in OPENINGS]


@pytest.fixture(scope="module")
def data(model: edgedec.Model, texts: list[list[int]]) -> Data:
    return collect(model.runtime, texts, 0, quiet)


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "bundle"))


# ---- data -------------------------------------------------------------------------------------------


def test_windows_keep_the_begin_token() -> None:
    long = [1, *range(10, 21)]
    assert windows([long], 5, 1) == [[1, 10, 11, 12, 13], [1, 14, 15, 16, 17], [1, 18, 19, 20]]
    assert windows([[7, 8, 9], [5], []], 2, 1) == [[7, 8]]  # single tokens teach nothing
    assert windows([long], 100, None) == [long]


def test_collected_is_what_the_model_says(model: edgedec.Model, texts: list[list[int]], data: Data) -> None:
    first = texts[0]
    logits = logits_of(model.runtime, Rows.chain(first, 0), model.runtime.new_cache(len(first)))
    assert data.labels[: len(first)].tolist() == logits.argmax(1).tolist()
    assert data.tokens.tolist() == [token for text in texts for token in text]
    assert data.left.tolist() == [len(text) - 1 - i for text in texts for i in range(len(text))]
    hidden = data.hidden[:5].astype(np.float32)
    call = Call(Rows.chain(first[:5], 0), model.runtime.new_cache(5), (), hidden, Outputs(logits=True))
    found = forward_one(model.runtime, call).logits
    assert found is not None
    np.testing.assert_allclose(found, logits[:5], atol=0.05, rtol=0.05)


def test_an_exit_sees_the_first_layers_only(model: edgedec.Model, texts: list[list[int]], data: Data) -> None:
    runtime = model.runtime
    found = collect(runtime, texts[:1], 2, quiet)
    rows = Rows.chain(texts[0], 0)
    part = runtime.spec.span(0, 2)
    call = Call(rows, runtime.new_cache(len(rows)), part, outputs=Outputs(hidden=(part[-1],)))
    np.testing.assert_allclose(found.hidden, forward_one(runtime, call).hidden[part[-1]], atol=1e-2)
    assert found.labels.tolist() == data.labels[: len(rows)].tolist()


def test_the_most_said_are_kept() -> None:
    labels = np.array([4, 4, 4, 2, 2, 7])
    data = Data(np.zeros((6, 1), np.float16), labels, labels, labels)
    assert most_said(data, 9, 2).tolist() == [2, 4]
    assert most_said(data, 9, 3).tolist() == [2, 4, 7]
    assert most_said(data, 9, 0).tolist() == most_said(data, 9, 9).tolist() == list(range(9))


def test_documents() -> None:
    assert documents("one\n<|endoftext|>\n  <|endoftext|>two", "a.txt") == ["one\n", "two"]
    assert documents('{"text": "a"}\n\n{"prompt": "b", "n": 1}\n', "a.jsonl") == ["a", "b"]
    for bad in ('{"text": 1}', "[]", "{", "{}"):
        with pytest.raises(UsageError, match=r"a\.jsonl: line 2"):
            documents('{"text": "a"}\n' + bad, "a.jsonl")


def test_data_have_names(model: edgedec.Model) -> None:
    keys = {
        key_of(model.bundle, engine, layer, pieces)
        for engine in ("ort", "native")
        for layer in (0, 1)
        for pieces in ([[1, 2]], [[1], [2]], [[1, 3]])
    }
    assert len(keys) == 12


# ---- training ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hydra", "medusa", "exit"])
def test_it_learns(model: edgedec.Model, texts: list[list[int]], kind: str) -> None:
    """On texts that are written over and over a few steps teach much."""
    found = collect(model.runtime, texts, int(kind == "exit"), quiet)
    start, _ = train(model.bundle, found, plan(kind, steps=1, keep=0), None, "", quiet)
    start.held = start.train
    trained, loss = train(model.bundle, found, plan(kind, steps=150, keep=0, rate=0.01), None, "", quiet)
    trained.held = trained.train
    assert min(trained.measure()) > max(start.measure()) + 0.3
    assert loss < 4  # knowing nothing is 5.6


def test_one_seed_one_head(model: edgedec.Model, data: Data) -> None:
    heads = [train(model.bundle, data, plan("hydra", seed=seed), None, "", quiet)[0].arrays() for seed in (1, 1, 2)]
    assert all(np.allclose(heads[0][name], heads[1][name], atol=1e-6) for name in heads[0])
    assert not np.allclose(heads[0]["down"], heads[2]["down"], atol=1e-3)


@pytest.mark.parametrize("kind", ["hydra", "medusa"])
def test_a_run_cut_short_goes_on(model: edgedec.Model, data: Data, tmp_path: Path, kind: str) -> None:
    whole, _ = train(model.bundle, data, plan(kind), None, "k", quiet)

    def stop(stage: str, done: int, total: int) -> None:
        if done >= total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(model.bundle, data, plan(kind), tmp_path, "k", stop)
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {f"{kind}.checkpoint.safetensors"}
    halfway = HeadTrainer(model.bundle, data, plan(kind))
    key = f"k {kind} 3 {halfway.facts.width} 60 model 0"
    halfway.load(tmp_path / f"{kind}.checkpoint.safetensors", key)
    assert 0 < halfway.steps < 12
    again, _ = train(model.bundle, data, plan(kind), tmp_path, "k", quiet)
    assert again.steps == whole.steps == 12
    for name, array in whole.arrays().items():
        np.testing.assert_allclose(again.arrays()[name], array, atol=1e-5, err_msg=name)


def test_a_checkpoint_of_another_training_is_refused(model: edgedec.Model, data: Data, tmp_path: Path) -> None:
    train(model.bundle, data, plan("hydra", steps=1), tmp_path, "k", quiet)
    for other, key in ((plan("hydra", seed=3), "k"), (plan("hydra"), "other"), (plan("hydra", keep=50), "k")):
        with pytest.raises(UsageError, match="of another training"):
            train(model.bundle, data, other, tmp_path, key, quiet)
    (tmp_path / "hydra.checkpoint.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(UsageError, match="not a checkpoint of train-heads"):
        train(model.bundle, data, plan("hydra"), tmp_path, "k", quiet)


def test_too_little_text_is_refused(model: edgedec.Model) -> None:
    data = collect(model.runtime, [[1, 2, 3, 4]], 0, quiet)
    with pytest.raises(UsageError, match="give more text"):
        train(model.bundle, data, plan("hydra", steps=1), None, "", quiet)


def test_unknown_kinds_are_refused(model: edgedec.Model, texts: list[list[int]]) -> None:
    with pytest.raises(UsageError, match="no draft head 'eagle'; there are: exit, hydra, medusa"):
        run(model.bundle, model.runtime, texts, plan("eagle"), None, quiet)


@pytest.mark.parametrize("kind", ["hydra", "medusa"])
def test_a_trained_head_saves_calls(folder: Path, texts: list[list[int]], kind: str) -> None:
    model = edgedec.open(folder, engine="reference")
    trained = run(model.bundle, model.runtime, texts, plan(kind, steps=120, rate=0.01), None, quiet)
    assert trained.tokens == sum(map(len, texts))
    assert trained.covered > 0.5
    trained.bundle.verify()
    found, facts = arrays_of(trained.bundle.file(trained.head.file))
    assert facts.format == "f32"
    assert len(found["vocab"]) == trained.head.vocab == 60
    np.testing.assert_array_equal(found["readout"], trained.bundle.gather("head", found["vocab"]))
    drafter = make_drafter(kind, DrafterContext(model.runtime, trained.bundle, lambda: model.tokenizer))
    stats = Stats()
    context = Context(texts[0][:2], 2, model.runtime.new_cache(100))
    said = list(decode(model.runtime, context, GenerationConfig(max_tokens=60), Limited(drafter, 6), stats=stats))
    assert said == texts[0][2:]
    assert stats.accepted > 10


def test_what_was_read_is_kept(folder: Path, texts: list[list[int]], tmp_path: Path) -> None:
    model = edgedec.open(folder, engine="reference")
    stages: list[str] = []
    work = tmp_path / "work"
    for _ in range(2):
        run(model.bundle, model.runtime, texts, plan("hydra", steps=2), work, lambda stage, *_: stages.append(stage))
    assert stages.count("read") == len(texts)
    names = sorted(path.name.partition("-")[0] for path in work.iterdir())
    assert names == ["hydra.checkpoint.safetensors", "read"]
    next(work.glob("read-*")).write_bytes(b"x" * 50)
    run(model.bundle, model.runtime, texts, plan("hydra", steps=2), work, quiet)
    assert next(work.glob("read-*")).stat().st_size > 1000


# ---- the command ------------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("the thing in the ring<|endoftext|>an ant on the thing, and on it\n" * 12)
    return path


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = run_app(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command(folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = str(tmp_path / "work")
    common = ("train-heads", str(folder), str(text), "--steps", "3", "--threads", "1", "--work", work, "--in-place")
    code, out, _ = told(capsys, *common, "--heads", "2", "--self-distill", "3", "--json")
    assert code == 0
    report = json.loads(out)
    assert (report["kind"], report["depth"], report["steps"], report["file"]) == ("hydra", 2, 3, "head_hydra.onnx")
    assert report["vocab"] == Bundle.open(folder).spec.vocab_size // 4
    assert [path for path in Path(work).iterdir() if path.name.startswith("written-")]
    code, out, _ = told(capsys, *common, "--kind", "exit", "--layer", "2")
    assert code == 0
    assert "head_exit.onnx" in out
    assert Bundle.open(folder).manifest.heads["exit"].layer == 2
    assert told(capsys, "verify", str(folder))[0] == 0
    code, out, _ = told(capsys, "inspect", str(folder), "--json")
    assert code == 0
    assert "head_hydra.onnx" in json.loads(out)["files"]


def test_a_copy_gets_the_head_and_the_bundle_stays(
    folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    common = ("train-heads", str(folder), str(text), "--steps", "2", "--threads", "1", "--heads", "1")
    code, out, _ = told(capsys, *common)
    assert code == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    copy = Path(f"{folder.name}-hydra")
    assert str(copy) in out
    assert set(Bundle.open(copy, verify=True).manifest.heads) >= {"hydra"}
    read = ReadRecord.of(Bundle.open(copy))
    assert [part.of for part in read.parts] == [("hydra",)]
    assert {read.seen([one], ["hydra"]) for one in documents(text.read_text(), text.name)} == {"seen"}
    assert read.seen(["none of these"], ["hydra"]) == "unseen"
    code, _, err = told(capsys, *common)
    assert code == 1
    assert "exists already" in err, "and nothing was trained for it"
    assert told(capsys, *common, "--out", str(tmp_path / "other"), "--kind", "medusa")[0] == 0
    assert set(Bundle.open(tmp_path / "other").manifest.heads) >= {"medusa"}
    assert told(capsys, *common, "--force")[0] == 0
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--in-place", "--out", "x"), 2, "--in-place"),
        (
            ("--kind", "eagle"),
            1,
            "chimera, eagle3, exit, falcon, hiddentransfer, hydra, hydrapp, kangaroo, longspec, lud, m2r2, medusa, "
            "prompt, sec",
        ),
        (("--layer", "1"), 1, "only kinds after an early layer have one"),
        (("--kind", "exit", "--layer", "3"), 1, "must be from 1 to 2"),
        (("--heads", "0"), 2, "--heads"),
    ],
)
def test_misuse_is_one_line(
    folder: Path, text: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], code: int, message: str
) -> None:
    found, _, err = told(capsys, "train-heads", str(folder), str(text), "--in-place", *options)
    assert found == code
    assert message in err
    assert err.count("\n") == 1


def test_no_text_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    code, _, err = told(capsys, "train-heads", str(folder), str(tmp_path / "empty.txt"), "--in-place")
    assert code == 1
    assert "hold no text" in err
    code, _, err = told(capsys, "train-heads", str(folder), str(tmp_path / "none.txt"), "--in-place")
    assert code == 1
    assert "none.txt: No such file" in err
