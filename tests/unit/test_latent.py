"""Latent cache entries: what the engines compute is what torch does; they compose as any cache policy does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="coprocessors are trained with torch")
pytest.importorskip("safetensors", reason="training keeps its state as safetensors")
pytest.importorskip("onnx", reason="the trainer shares code with the exporter")
import torch

import edgedec
from edgedec import UsageError
from edgedec.cli._app import run_app
from edgedec.decoding.scheduler.batch import Batch
from edgedec.errors import ContextFull, SessionError
from edgedec.export.coprocessor import CoprocessorPlan, CoprocessorTrainer, key_of
from edgedec.export.exits_data import END
from edgedec.export.training_loop import train
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import Rows, Runtime, logits_of

ENGINES = ("reference", *(["native"] if why_not() is None else []))
TEXT = "One day a little dog saw a big red ball in the park. He ran to it and kicked it. " * 3


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
    words = ("dog", "cat", "bird", "frog", "girl", "boy", "bear", "fox", "bee", "ant")
    file.write_text(END.join(f"One day a {a} saw a {b}. {TEXT}" for a in words for b in words))
    return file


@pytest.fixture(scope="module")
def trained(nano: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[CoprocessorTrainer, Path]:
    """A coprocessor after a few updates, and its file."""
    model = edgedec.open(nano, engine="reference")
    plan = CoprocessorPlan(entries=4, rank=4, ahead=8, minutes=1e6, steps=3, rate=0.05, batch=1, length=48)
    trainer = CoprocessorTrainer(model.bundle, [data], model.tokenizer.encode, plan)
    path = tmp_path_factory.mktemp("made") / "it.coprocessor"
    train(trainer, None, "", lambda *_: None)
    trainer.write(path)
    return trainer, path


@pytest.fixture(scope="module", params=ENGINES)
def model(request: pytest.FixtureRequest, nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine=request.param, threads=1, prefix_tokens=0)


@pytest.fixture(scope="module")
def native(nano: Path) -> edgedec.Model:
    if why_not() is not None:
        pytest.skip(f"native engine: {why_not()}")
    return edgedec.open(nano, engine="native", threads=1, prefix_tokens=0)


def text(model: edgedec.Model, words: str, n: int = 16, **how: Any) -> tuple[list[int], edgedec.Session]:
    session = model.session(cache=words, **how)
    return [int(t) for t in session.tokens(model.tokenizer.encode(TEXT), max_tokens=n, ignore_eos=True)], session


@pytest.mark.parametrize("n", [1, 4])
def test_the_engines_compute_what_torch_does(
    model: edgedec.Model, trained: tuple[CoprocessorTrainer, Path], n: int
) -> None:
    trainer, path = trained
    session = model.session(cache=f"latent:path={path},n={n}", speculate="off")
    ids = model.tokenizer.encode(TEXT)[:30]
    (token,) = session.tokens(ids, max_tokens=1, logprobs=0, ignore_eos=True)
    assert session.cache_report()["latents"] == n
    with torch.no_grad():
        with_entries, without = (trainer.loss([*ids, int(token)], len(ids) - 1, count) for count in (n, 0))
    assert abs(float(with_entries - without)) > 0.01, "the entries change nothing"
    close = 0.1 if model.runtime.name == "native" else 0.005  # its products round rows to int8
    assert token.logprob == pytest.approx(-float(with_entries), abs=close)


def test_drafts_forks_and_files(
    native: edgedec.Model, trained: tuple[CoprocessorTrainer, Path], tmp_path: Path
) -> None:
    for after in (0, 5):
        words = f"latent:path={trained[1]},n=3,after={after}"
        plain, alone = text(native, words, speculate="off")
        drafted, session = text(native, words, speculate="copy+recycling:fixed=5")
        assert session.stats.accepted > 0
        assert drafted == plain
        saved = [s._context.cache.save() for s in (alone, session)]
        assert all(np.array_equal(saved[0][name], saved[1][name]) for name in saved[0])
        assert alone.cache_report()["latents"] == 3
        assert plain != text(native, "full", speculate="off")[0]
        session.save(tmp_path / "it")
        loaded, fork = native.session(cache=words), session.fork()
        loaded.load(tmp_path / "it")
        more = [[int(t) for t in s.tokens(None, max_tokens=6, ignore_eos=True)] for s in (session, fork, loaded)]
        assert more[0] == more[1] == more[2]
        with pytest.raises(SessionError):
            native.session().load(tmp_path / "it")


def test_texts_of_a_batch(native: edgedec.Model, trained: tuple[CoprocessorTrainer, Path]) -> None:
    words = f"latent:path={trained[1]},n=2,after=4"
    alone, prompt = text(native, words)[0], native.tokenizer.encode(TEXT)
    batch, found = Batch(native.runtime), [list[int](), list[int]()]
    for into in found:
        add = lambda token, into=into: None if token is None else into.append(int(token))  # noqa: E731
        native.session(cache=words).submit(batch, prompt, add, max_tokens=16, ignore_eos=True)
    batch.run()
    assert found == [alone, alone]


def test_a_later_prompt_has_entries_of_its_own(native: edgedec.Model, trained: tuple[CoprocessorTrainer, Path]) -> None:
    first, session = text(native, f"latent:path={trained[1]},n=4")
    ids = [*native.tokenizer.encode(TEXT), *first, *native.tokenizer.encode(" The dog was happy. The ball")]
    list(session.tokens(ids, max_tokens=3, ignore_eos=True))
    report = session.cache_report()
    blocks = len(native.spec.attention)
    assert report["slots"] - report["of"] == 4 * blocks


def test_without_a_coprocessor_nothing_changes(native: edgedec.Model) -> None:
    found, session = text(native, "latent")
    assert found == text(native, "full")[0]
    report = session.cache_report()
    assert (report["lossy"], report["latents"]) == (False, 0)
    assert report["absent"].endswith(".coprocessor")
    with pytest.raises(UsageError, match=r"path=./none: no such file; make it with edgedec train-cache"):
        native.session(cache="latent:path=./none")


def test_refusals(
    nano: Path, native: edgedec.Model, trained: tuple[CoprocessorTrainer, Path], tmp_path: Path, data: Path
) -> None:
    _, path = trained
    for words, why in (
        (f"n=5,path={path}", "trained for 4"),
        ("n=0", "must be 1 or more"),
        ("after=-1", "must be 0 or more"),
    ):
        with pytest.raises(UsageError, match=why):
            native.session(cache=f"latent:{words}")
    raw = path.read_bytes()
    for broken in (b"", raw[:100], raw[:-1], raw[:60] + b"x" + raw[61:]):
        (tmp_path / "broken").write_bytes(broken)
        with pytest.raises(UsageError, match="broken"):
            native.session(cache=f"latent:path={tmp_path}/broken")
    with pytest.raises(UsageError, match="adapters"):
        edgedec.open(nano, engine="ort").session(cache=f"latent:path={path}")
    assert run_app(["train-cache", str(nano), str(data), "-o", str(path)]) == 1
    assert run_app(["train-cache", str(nano), str(data), "-o", str(tmp_path / "x"), "--ahead", "300"]) == 1
    assert not (tmp_path / "x").exists()


def test_a_training_goes_on(nano: Path, data: Path, tmp_path: Path) -> None:
    model = edgedec.open(nano, engine="reference")

    def trainer(steps: int, **more: Any) -> CoprocessorTrainer:
        plan = CoprocessorPlan(
            entries=2, rank=2, ahead=8, minutes=1e6, steps=steps, rate=0.02, batch=1, length=40, **more
        )
        return CoprocessorTrainer(model.bundle, [data], model.tokenizer.encode, plan)

    whole, first, second = trainer(2), trainer(2), trainer(2)
    for progress in (0.0, 0.5):
        whole.step(progress)
    first.step(0.0)
    key = key_of(model.bundle, [data], first.plan)
    first.save(tmp_path / "it", key)
    second.load(tmp_path / "it", key)
    second.step(0.5)
    for name, weight in whole.weights.items():
        torch.testing.assert_close(weight, second.weights[name])
    with pytest.raises(UsageError, match="another training"):
        trainer(2).load(tmp_path / "it", "x")


def test_attached_slots(model: edgedec.Model) -> None:
    """They are seen by what follows, stay with their token, and are counted."""
    runtime: Runtime = model.runtime
    ids = model.tokenizer.encode(TEXT)[:12]

    def after(attached: bool, cut: int) -> np.ndarray:
        cache = runtime.new_cache(96)
        logits_of(runtime, Rows.chain(ids, 0), cache)
        cache.commit(range(len(ids)))
        if attached:
            logits_of(runtime, Rows.chain([5, 6], len(ids)), cache)
            cache.attach(2)
            assert (cache.length, cache.slots(0)) == (len(ids), len(ids) + 2)
        cache.truncate(cut)
        assert cache.slots(0) == cut + (2 if attached and cut == len(ids) else 0)
        twin = runtime.new_cache(96)
        twin.load(cache.fork().save())
        return logits_of(runtime, Rows.chain([7], cut), twin)

    assert not np.array_equal(after(True, 12), after(False, 12))
    assert np.array_equal(after(True, 11), after(False, 11))
    cache = runtime.new_cache(96)
    with pytest.raises(UsageError):
        cache.attach(1)
    logits_of(runtime, Rows.chain(ids, 0), cache)
    cache.commit(range(len(ids)))
    with pytest.raises(UsageError):
        cache.attach(1)
    for _ in range(16):
        logits_of(runtime, Rows.chain([5, 6, 7, 8], 11), cache)
        cache.attach(4)
    logits_of(runtime, Rows.chain([5], 11), cache)
    with pytest.raises(ContextFull):
        cache.attach(1)


@pytest.mark.parametrize(("after", "room"), [(0, 2), (5, 1), (5, 3), (5, 4)])
def test_entries_that_do_not_fit_are_left_out(
    model: edgedec.Model, trained: tuple[CoprocessorTrainer, Path], after: int, room: int
) -> None:
    """A text that has not so much of its capacity left goes on without them."""
    ids = model.tokenizer.encode(TEXT)[:30]
    due = len(ids) - 1 + after
    session = model.session(cache=f"latent:path={trained[1]},n=4,after={after}", context=due + room, speculate="off")
    found = list(session.tokens(ids, max_tokens=due + room + 1 - len(ids), ignore_eos=True))
    assert len(found) == due + room + 1 - len(ids)
    assert session.cache_report()["latents"] == (4 if room == 4 else 0)
