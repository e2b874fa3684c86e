"""Image rows, as synthetic embeddings: only they are dropped, and nothing depends on drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pruning import run_calls
from typer.testing import CliRunner

import edgedec
from edgedec import SessionError, UsageError
from edgedec.cli._app import app
from edgedec.kernels.cpu import loader
from edgedec.policies import PolicyHost, make_policy
from edgedec.policies.vision import Vision, merge_neighbours
from edgedec.runtime import Call, Rows, forward_one

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")

IMAGE, TEXT = 120, 40


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


def opened(model: edgedec.Model, words: str, speculate: str = "off") -> edgedec.Session:
    """A session whose text may have images; no model has them yet, so that `--cache vision` is refused."""
    session = model.session(speculate=speculate)
    host = PolicyHost(model.spec, model.runtime.capabilities, images=True)
    session._context.policy = make_policy(words, host)
    return session


def read(model: edgedec.Model, words: str, speculate: str = "off") -> edgedec.Session:
    """A session whose text begins with an image and goes on in words."""
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 0.05, (IMAGE + TEXT, model.spec.hidden_size)).astype(np.float32)
    session = opened(model, words, speculate)
    context = session._context
    policy: Any = context.policy
    policy.mark(4, IMAGE)
    run_calls(model.runtime, policy.read_rows(context.cache, Rows.embedded(rows, 0), 64))
    context.ids = [0] * (IMAGE + TEXT) + [5]
    return session


def test_only_image_rows_are_dropped(model: edgedec.Model) -> None:
    cache = read(model, "vision:budget=0.25,rate=0.5,layer=4")._context.cache
    for b in model.spec.attention:
        kept = cache.positions(b)
        assert kept[:4].tolist() == [0, 1, 2, 3]
        assert kept[-TEXT:].tolist() == [*range(IMAGE, IMAGE + TEXT)]
        assert len(kept) == 4 + 29 + TEXT
    assert len({tuple(cache.positions(b)) for b in model.spec.attention}) > 1, "each block chose by itself"


def test_fewer_image_rows_above_the_layer(model: edgedec.Model) -> None:
    cache = read(model, "vision:budget=1,rate=0.5,layer=4")._context.cache
    slots = [cache.slots(b) for b in model.spec.attention]
    assert slots == [IMAGE + TEXT] * 4 + [4 + 58 + TEXT] * 10


def test_all_of_it_is_the_whole_cache(model: edgedec.Model) -> None:
    session, whole = read(model, "vision:budget=1,rate=1"), model.runtime.new_cache(400)
    rows = np.random.default_rng(0).normal(0, 0.05, (IMAGE + TEXT, model.spec.hidden_size)).astype(np.float32)
    forward_one(model.runtime, Call(Rows.embedded(rows, 0), whole))
    whole.commit(range(IMAGE + TEXT))
    saved = [cache.save() for cache in (session._context.cache, whole)]
    assert all(np.array_equal(saved[0][name], saved[1][name]) for name in saved[0])


def test_text_after_an_image(model: edgedec.Model, tmp_path: Path) -> None:
    """Drafted or not, saved or not: the same, also where the text is pruned on the way."""
    words = "vision:budget=0.25,text=0.8,every=16,observe=4"
    plain = read(model, words)
    found = [int(t) for t in plain.tokens(max_tokens=60, ignore_eos=True)]
    drafted = read(model, words, "recycling:fixed=4+copy:fixed=4")
    assert [int(t) for t in drafted.tokens(max_tokens=60, ignore_eos=True)] == found
    assert drafted.stats.proposed > 0
    part = read(model, words)
    first = [int(t) for t in part.tokens(max_tokens=21, ignore_eos=True)]
    part.save(tmp_path / "s")
    loaded = opened(model, words)
    loaded.load(tmp_path / "s")
    assert first + [int(t) for t in loaded.tokens(max_tokens=39, ignore_eos=True)] == found
    cache = plain._context.cache
    assert cache.slots(0) < 0.8 * (cache.length - 116) + 29 + 24


def test_without_a_mark_nothing_is_dropped(model: edgedec.Model) -> None:
    ids = model.tokenizer.encode("Once upon a time there was a little dog who saw a cat. " * 4)
    sessions = model.session(speculate="off"), opened(model, "vision")
    texts = [[int(t) for t in session.tokens(ids, max_tokens=20)] for session in sessions]
    assert texts[0] == texts[1]


def test_texts_without_images_refuse_it(model: edgedec.Model) -> None:
    """As the command line opens a model: it would do nothing."""
    said = r"--cache vision: this model reads no images, so a text has no rows of them; .*such as snapkv"
    with pytest.raises(UsageError, match=said):
        model.session(cache="vision:budget=0.5")
    done = CliRunner().invoke(app, ["run", "-m", str(model.bundle.path), "-p", "x", "--cache", "vision"])
    assert done.exit_code != 0
    assert "this model reads no images" in f"{done.output} {done.exception}"


def test_neighbours_that_are_alike_are_merged() -> None:
    a, b, c = np.eye(3, dtype=np.float32)
    rows, counts = merge_neighbours(np.stack([a, a, b, 2 * b, 3 * b, c]), 0.9)
    assert counts.tolist() == [2, 3, 1]
    assert np.allclose(rows, [a, 2 * b, c])
    assert merge_neighbours(np.zeros((0, 3), np.float32), 0.9)[0].shape == (0, 3)


def test_refusals(model: edgedec.Model) -> None:
    with pytest.raises(UsageError, match="budget=20: must be above 0, up to 1"):
        model.session(cache="vision:budget=20")
    policy = make_policy("vision", PolicyHost(model.spec, model.runtime.capabilities, images=True))
    assert isinstance(policy, Vision)
    with pytest.raises(UsageError, match="at least one row"):
        policy.mark(4, 4)
    for wrong in (np.zeros((1, 3), np.int64), np.array([[5, 2]]), np.zeros((1, 2), np.float32)):
        with pytest.raises(SessionError, match="images"):
            policy.restore({"images": wrong}, model.runtime.new_cache(8))
