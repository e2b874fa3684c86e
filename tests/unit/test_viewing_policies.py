"""Policies that keep everything and look at some of it: what they read; that drafts and forks change nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pruning import DRAFTS, generate, same
from typer.testing import CliRunner

import edgedec
from edgedec import BundleCorrupt, SessionError, UsageError
from edgedec.bench.head_budgets import measure_budgets
from edgedec.cli._app import app
from edgedec.decoding.scheduler.batch import Batch
from edgedec.kernels.cpu import loader
from edgedec.policies import actqkv
from edgedec.policies._head_budgets import budgets_for, budgets_of, read_budgets
from edgedec.policies._page_choice import worth_of
from edgedec.policies._views import Always
from edgedec.policies.lserve import streaming_heads
from edgedec.runtime import Call, CallResult, Outputs, Rows, forward_one

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")

WORDS = [
    "quest:budget=128,recent=64,dense=1",
    "quest:budget=0.3,recent=64,sinks=0",
    "lserve:budget=128,recent=64,sinks=4",
    "tca:budget=0.4,recent=64,every=32,mass=0.8",
    "anchor:theta=1,recent=64,sinks=4",
    "actqkv:budget=256,recent=64,every=32,window=4",
    "sentencekv:budget=256,recent=64,every=32,window=4",
    "deltallm:budget=0.4,recent=64,sinks=4",
]


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


@pytest.fixture(scope="module")
def ids(model: edgedec.Model) -> list[int]:
    said = "One day, Lily saw a big red ball in the park. She ran to the ball and kicked it. "
    said += "Tom had a little dog who liked to dig. They all played until it was dark and then went home to sleep. "
    return model.tokenizer.encode("Once upon a time there was a girl. " + said * 20)[:700]


@pytest.fixture
def forwarded(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Call, CallResult]]:
    """The calls with views, and the attention that their rows paid."""
    found: list[tuple[Call, CallResult]] = []
    forward = model.runtime.forward

    def watched(calls: Any) -> Any:
        results = forward([call._replace(outputs=call.outputs._replace(attention=True)) for call in calls])
        found.extend((call, result) for call, result in zip(calls, results, strict=True) if call.views)
        return results

    monkeypatch.setattr(model.runtime, "forward", watched)
    return found


@pytest.mark.parametrize("words", WORDS)
def test_less_is_read(model: edgedec.Model, ids: list[int], words: str, forwarded: list[Any]) -> None:
    _, session = generate(model, ids, words, 5)
    assert forwarded, "no call has a view"
    call, result = forwarded[-1]
    n = len(call.rows)
    shares = [float((result.attention[b][:, :-n] > 0).mean()) for b in call.views]
    assert min(shares) < 0.7
    assert session.cache_report()["lossy"]


@pytest.mark.parametrize(
    "words",
    [
        "quest:budget=1",
        "quest:budget=100000",
        "lserve:budget=1,stream=0",
        "tca:mass=1,budget=1",
        "actqkv:budget=1",
        "sentencekv:budget=1",
        "deltallm:budget=1",
        "anchor:theta=1e9",
    ],
)
def test_the_whole_budget_is_the_whole_cache(model: edgedec.Model, ids: list[int], words: str) -> None:
    dense, whole = generate(model, ids, "full", 50), generate(model, ids, words, 50)
    assert whole[0] == dense[0]
    if not words.startswith("anchor"):  # stripes that are everything are summed in another order
        assert dense[1]._context.cache.save()["state"].tobytes() == whole[1]._context.cache.save()["state"].tobytes()


@pytest.mark.parametrize("words", WORDS)
def test_drafts_change_nothing(model: edgedec.Model, ids: list[int], words: str) -> None:
    plain, drafted = generate(model, ids, words, 50), generate(model, ids, words, 50, DRAFTS)
    stats = drafted[1].stats
    assert stats.proposed > 20
    assert stats.accepted > 3
    assert drafted[0] == plain[0]
    assert same(drafted[1], plain[1])


@pytest.mark.parametrize("words", WORDS)
def test_saved_and_forked_texts_go_on_as_they_would_have(
    model: edgedec.Model, ids: list[int], words: str, tmp_path: Path
) -> None:
    whole, at_end = generate(model, ids, words, 40)
    first, session = generate(model, ids, words, 17)
    session.save(tmp_path / "s")
    loaded, forked = model.session(speculate=DRAFTS, cache=words), session.fork()
    loaded.load(tmp_path / "s")
    for other in (loaded, forked, session):
        rest = [int(token) for token in other.tokens(max_tokens=23, ignore_eos=True)]
        assert [*first, *rest] == whole
        assert same(other, at_end)


def test_texts_of_a_batch_are_what_they_are_alone(model: edgedec.Model, ids: list[int]) -> None:
    for words in WORDS:
        prompts = [ids, ids[:400]]
        alone = [generate(model, prompt, words, 20)[0] for prompt in prompts]
        batch, found = Batch(model.runtime), [list[int]() for _ in prompts]
        for prompt, into in zip(prompts, found, strict=True):
            session = model.session(cache=words, speculate=DRAFTS)
            session.submit(batch, prompt, _appends(into), max_tokens=20, ignore_eos=True)
        batch.run()
        assert found == alone


def _appends(into: list[int]) -> Any:
    return lambda token: into.append(int(token)) if token is not None else None


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_quantized_caches(nano: Path, ids: list[int], kv: str) -> None:
    model = edgedec.open(nano, engine="native", threads=1, kv=kv)
    for words in WORDS[:3]:
        plain, drafted = generate(model, ids, words, 30), generate(model, ids, words, 30, DRAFTS)
        assert drafted[1].stats.proposed > 0
        assert drafted[0] == plain[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("quest:budget=0", "budget=0"),
        ("quest:recent=3", "recent=3: must be from 64"),
        ("quest:dense=99", "dense=99"),
        ("lserve:stream=2", "stream=2: must be from 0 to 1"),
        ("tca:every=200", "every=200: must be above window=1, at most recent=128"),
        ("anchor:group=-1", "group=-1"),
        ("actqkv:every=200", "every=200: must be above window=8, at most recent=128"),
        ("actqkv:window=0", "window=0"),
    ],
)
def test_options_that_cannot_be(model: edgedec.Model, words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        model.session(cache=words)


@pytest.mark.parametrize("words", ["lserve", "tca", "actqkv", "sentencekv", "deltallm"])
def test_states_of_other_policies_are_refused(model: edgedec.Model, words: str) -> None:
    policy, cache = model.policy(words), model.runtime.new_cache(8)
    assert policy is not None
    for state in ({"needs.0": np.full(99, 1 << 40)}, {"streaming.0": np.zeros(1)}, {"other": np.zeros(1, bool)}):
        with pytest.raises(SessionError, match="not of cache policy"):
            policy.restore(state, cache)


def test_an_engine_without_views_is_named(nano: Path) -> None:
    with pytest.raises(UsageError, match="--cache quest: needs a runtime with views"):
        edgedec.open(nano, engine="ort").session(cache="quest")


def test_the_heads_that_look_least_elsewhere_stream() -> None:
    sums = {
        0: np.array([[5, 1, 1, 3], [1, 7, 1, 1]], np.float32),
        2: np.array([[4, 0, 0, 6], [2, 3, 3, 2]], np.float32),
    }
    found = streaming_heads(sums, Always(1, 1), 0.5)
    assert {b: heads.tolist() for b, heads in found.items()} == {0: [True, False], 2: [True, False]}


def test_budgets_of_heads_kept_in_the_bundle(nano: Path, tmp_path: Path, ids: list[int]) -> None:
    """`edgedec calibrate` measures them once; they are used wherever the bundle is, and damage is named."""
    folder, text = tmp_path / "b", tmp_path / "t.txt"
    shutil.copytree(nano, folder)
    with pytest.raises(UsageError, match=r"the bundle has no head_budgets.bin: make it with edgedec calibrate"):
        edgedec.open(folder, engine="native").session(cache="tca:measured=once")
    opened = edgedec.open(folder, engine="native", threads=1)
    text.write_text(opened.tokenizer.decode(ids) * 3)
    words = ["calibrate", str(folder), str(text), "--length", "512", "--limit", "2", "-t", "1", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["pieces"] == 2
    assert list(facts["share"].values()) == sorted(facts["share"].values())
    model = edgedec.open(folder, engine="native", threads=1, verify=True)
    _, session = generate(model, ids, "tca:recent=64,mass=0.9", 5)
    assert session.cache_report()["measured"] == "once"
    assert generate(model, ids, "tca:recent=64,mass=0.9,measured=prompt", 5)[1].cache_report()["measured"] == "prompt"
    table = read_budgets(str(folder), model.spec)
    assert table is not None
    policy: Any = session._context.policy
    assert policy._needs[0].tolist() == budgets_for(table, model.spec, 0.9)[0].tolist()
    plain, drafted = (generate(model, ids, "tca:recent=64,mass=0.9", 90, spec) for spec in ("off", DRAFTS))
    assert drafted[1].stats.accepted > 3
    assert drafted[0] == plain[0]
    (folder / "head_budgets.bin").write_bytes(b"\0" * 8)
    with pytest.raises(BundleCorrupt, match=r"head_budgets.bin"):
        edgedec.open(folder, engine="native").session(cache="tca")


@pytest.mark.parametrize(("length", "said"), [("9", "must be from 256"), ("1024", "the text must have 1024")])
def test_texts_that_calibrate_nothing(nano: Path, tmp_path: Path, length: str, said: str) -> None:
    (tmp_path / "t").write_text("Once upon a time.")
    done = CliRunner().invoke(app, ["calibrate", str(nano), str(tmp_path / "t"), "--length", length])
    assert done.exit_code != 0
    assert said in f"{done.output} {done.exception}"


def test_probes_and_pages_of_actqkv() -> None:
    assert actqkv.probes(np.array([[[0.0]], [[0.0]], [[3.0]]], np.float32)).tolist() == [[1.5]]
    worth = worth_of(np.array([[0.0], [0.0]], np.float32), np.zeros((1, 2, 1), np.float32), 1.0)
    assert worth.tolist() == [[0.5, 0.5]]
    assert [p.tolist() for p in actqkv.best_pages(np.array([[0.5, 0.5, 0.0]], np.float32), 3)] == [[0, 1]]
    assert [p.tolist() for p in actqkv.best_pages(np.array([[0.1, 0.4, 0.5]], np.float32), 2)] == [[1, 2]]


def test_calibration_measures_the_last_queries_on_the_whole_pages_before_them(nano: Path, ids: list[int]) -> None:
    """Two texts of 300 tokens: keys of the first 256, queries of rows 292 to 299, the mean of all tables."""
    model, tables = edgedec.open(nano, engine="native", threads=1), list[Any]()
    text = [*ids, *ids, *ids][:620]
    for at in (0, 300):
        cache, part = model.runtime.new_cache(300), text[at : at + 300]
        for start, stop in ((0, 128), (128, 256), (256, 300)):
            wanted = Outputs(queries=tuple(model.spec.attention) if stop == 300 else ())
            done = forward_one(model.runtime, Call(Rows.chain(part[start:stop], start), cache, outputs=wanted))
            cache.commit(range(stop - start))
        keys = {b: cache.keys(b)[:, :256] for b in model.spec.attention}
        tables += [budgets_of({b: q[row] for b, q in done.queries.items()}, keys, model.spec) for row in range(-8, 0)]
    mean, n = measure_budgets(model, text, 300, 9)
    assert n == 2
    assert np.allclose(mean, np.mean(tables, axis=0), atol=1e-5)
