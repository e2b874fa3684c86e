"""Training of the network that joins subwords: what engines compute of its file is what torch does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the network is trained with torch")
pytest.importorskip("safetensors", reason="training keeps its state as safetensors")
pytest.importorskip("onnx", reason="the trainer shares code with the exporter")
import torch

import edgedec
from edgedec import UsageError
from edgedec.bundle.subwords import open_subwords
from edgedec.cli._app import run_app
from edgedec.export.exits_data import END
from edgedec.export.row_training import key_of
from edgedec.export.subwords import SubwordPlan, SubwordTrainer
from edgedec.export.training_loop import train
from edgedec.kernels.cpu.loader import why_not
from edgedec.text.subwords import joinable_of

ENGINES = ("reference", *(["native"] if why_not() is None else []))
NAMES = ("Bartholomew", "Elizabeth", "Maximilian", "Penelope", "Cornelius", "Josephine", "Theodora", "Wolfgang")
TEXT = "{0} the xylophonist met {1}, and they quarrelled about jurisprudence. {1} disagreed with {0}. " * 3


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """These products are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "text.txt"
    file.write_text(END.join(TEXT.format(a, b) for a in NAMES for b in NAMES * 2))
    return file


def trainer_of(nano: Path, data: Path, **options: Any) -> SubwordTrainer:
    model = edgedec.open(nano, engine="reference")
    joinable = joinable_of(model.tokenizer, model.spec.vocab_size)
    plan = SubwordPlan(**{"width": 16, "ahead": 8, "minutes": 1e6, "batch": 2, "length": 48, **options})
    return SubwordTrainer(model.bundle, [data], model.tokenizer.encode, joinable, plan)


@pytest.fixture(scope="module")
def trained(nano: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[SubwordTrainer, Path]:
    """A network after two updates, further from the mean than these lead, and its file."""
    trainer = trainer_of(nano, data, steps=2)
    path = tmp_path_factory.mktemp("made") / "it.subwords"
    train(trainer, None, "", lambda *_: None)
    with torch.no_grad():
        trainer.model.weights["up"].normal_(0, 0.3)
    trainer.write(path)
    return trainer, path


def test_the_file_computes_what_torch_does(trained: tuple[SubwordTrainer, Path], nano: Path) -> None:
    trainer, path = trained
    network, model = open_subwords(path, trainer.bundle.spec), trainer.model
    shapes, rng = [(n, trainer.bundle.spec.hidden_size) for n in (2, 8, 3, 5)], np.random.default_rng(2)
    parts = [rng.normal(0, model.scale, shape).astype(np.float32) for shape in shapes]
    with torch.no_grad():
        expected = model.made([torch.from_numpy(part) for part in parts]).numpy()  # padded, all at once
    found = np.concatenate([network.made(part[None]) for part in parts])
    np.testing.assert_allclose(found, expected, atol=2e-5)
    means = np.stack([part.mean(0) for part in parts])
    assert np.abs(found - means).max() > 0.01, "the network changes nothing"


def test_it_begins_as_the_mean(nano: Path, data: Path) -> None:
    trainer = trainer_of(nano, data)
    one, mean = trainer.measure((0.3,)), trainer.measure((0.3,), mean=True)
    assert one[0.3] == pytest.approx(mean[0.3], rel=1e-3)
    assert one[0.3].divergence > 0.05


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engines_compute_what_torch_does(engine: str, nano: Path, trained: tuple[SubwordTrainer, Path]) -> None:
    """The law after a prompt in joined rows."""
    trainer, path = trained
    model = edgedec.open(nano, engine=engine, threads=1, prefix_tokens=0)
    ids = model.tokenizer.encode(TEXT.format("Bartholomew", "Theodora"))[:60]
    session = model.session(cache=f"subwords:path={path},keep=0.7", speculate="off")
    (token,) = session.tokens(ids, max_tokens=1, logprobs=0, ignore_eos=True)
    (sizes,) = trainer.merged([ids[:-1]], 0.3)
    ends = torch.tensor([*sizes, 1]).cumsum(0)
    assert session._context.cache.positions(0).tolist() == (ends - 1).tolist()
    with torch.no_grad():
        whole, law = trainer.laws(ids, ends, trainer.model.made)
    assert abs(float(whole[-1, int(token)] - law[-1, int(token)])) > 0.01, "joining changes nothing"
    close = 0.1 if engine == "native" else 0.005  # its products round rows to int8
    assert token.logprob == pytest.approx(float(law[-1, int(token)]), abs=close)


def test_an_update_is_merged_as_one_batch(nano: Path, data: Path) -> None:
    trainer = trainer_of(nano, data)
    a, b = [trainer._joinable.encode(text, around=False) for text in ("Theodora Theodora dora", "Bartholomew")]
    together, alone = trainer.merged([a, b], 0.2), [trainer.merged([ids], 0.2)[0] for ids in (a, b)]
    assert together[0] == alone[0]
    assert together[1] == [1] * len(b) != alone[1], "the pairs of the first are more frequent"


def test_learning(nano: Path, data: Path) -> None:
    """The same texts again and again: their laws come nearer to those of the whole text."""
    trainer = trainer_of(nano, data, rate=0.01)
    rows = [next(trainer.stream) for _ in range(2)]
    trainer.stream.__dict__["_rows"], trainer.place.row = rows * 40, 0
    losses = [trainer.step(0.0) for _ in range(12)]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])


def test_a_training_goes_on(nano: Path, data: Path, tmp_path: Path) -> None:
    whole, first, second = (trainer_of(nano, data, steps=2) for _ in range(3))
    for progress in (0.0, 0.5):
        whole.step(progress)
    first.step(0.0)
    key = key_of([], [data], first.plan)
    first.save(tmp_path / "it", key)
    second.load(tmp_path / "it", key)
    second.step(0.5)
    for name, weight in whole.weights.items():
        torch.testing.assert_close(weight, second.weights[name])
    with pytest.raises(UsageError, match="another training"):
        trainer_of(nano, data, steps=2).load(tmp_path / "it", "x")


def test_a_command(nano: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["train-subwords", str(nano), str(data), "--length", "48", "--ahead", "8", "--width", "16"]
    path = tmp_path / "it"
    assert run_app([*given, "-o", str(path), "--steps", "1"]) == 0
    assert "of the rows saved: perplexity" in capsys.readouterr().out
    assert open_subwords(path, edgedec.open(nano).spec).longest == 8
    for wrong in (["-o", str(path)], ["-o", str(tmp_path / "x"), "--ahead", "40"]):
        assert run_app([*given, *wrong]) == 1
    assert run_app([*given[:-1], "18", "-o", str(tmp_path / "x")]) == 1
    assert not (tmp_path / "x").exists()
