"""The model drafts with a pruned fork of its cache: drafts come true, and the text and its cache are as without."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec import Sampling, UsageError
from edgedec.drafters import sparse
from edgedec.kernels.cpu import loader
from edgedec.speculation import choose

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")

HOW = "sparse:least=100,fixed=4"


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


@pytest.fixture(scope="module")
def ids(model: edgedec.Model) -> list[int]:
    text = "Once upon a time there was a girl. " + "Lily saw a big red ball in the park. She ran and kicked it. " * 20
    return model.tokenizer.encode(text)[:260]


def generate(model: edgedec.Model, ids: list[int], how: str, n: int = 80, **options: Any) -> Any:
    session = model.session(speculate=how, cache=options.pop("cache", None))
    return [int(t) for t in session.tokens(ids, max_tokens=n, ignore_eos=True, **options)], session


def drafts(session: edgedec.Session) -> dict[str, Any]:
    facts: dict[str, Any] = session.report()["drafters"]["sparse"]
    return facts


@pytest.mark.parametrize("policy", ["view,pages=1,recent=64", "snapkv", "streaming", "h2o", "prefixkv"])
def test_same_text_fewer_calls(model: edgedec.Model, ids: list[int], policy: str) -> None:
    plain = generate(model, ids, "off")
    own = "" if policy.startswith("view") else ",budget=0.3,refresh=30"
    found, session = generate(model, ids, f"{HOW},policy={policy}{own}")
    assert session.stats.accepted > 20
    assert session.stats.calls < 70
    assert found == plain[0]
    saved = [s._context.cache.save() for s in (plain[1], session)]
    assert all(np.array_equal(saved[0][name], saved[1][name]) for name in saved[0])


def test_drawn_texts_are_the_same_too(model: edgedec.Model, ids: list[int]) -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=3)
    found, session = generate(model, ids, HOW, sampling=sampling)
    assert session.stats.proposed > 0
    assert found == generate(model, ids, "off", sampling=sampling)[0]


def test_the_whole_budget_is_never_refused(model: edgedec.Model, ids: list[int]) -> None:
    _, session = generate(model, ids, "sparse:policy=snapkv,least=100,budget=1,fixed=4,refresh=500")
    assert session.stats.accepted > 0.9 * session.stats.proposed > 40  # some are guesses beside the likeliest


def test_a_view_looks_at_few_pages(model: edgedec.Model, ids: list[int]) -> None:
    _, session = generate(model, ids * 3, "sparse:least=100,pages=0,recent=64,fixed=4")
    assert session.report()["drafters"]["sparse"]["policy"] == "view"
    wide = generate(model, ids * 3, "sparse:least=100,pages=12,recent=64,fixed=4")[1]
    assert wide.stats.accepted / wide.stats.proposed > session.stats.accepted / session.stats.proposed > 0


def test_beside_drafters_that_begin_the_call(model: edgedec.Model, ids: list[int]) -> None:
    """They hand over rows that went through the first blocks; what sparse runs in between is not among them."""
    found, session = generate(model, ids, f"exit:layer=6+{HOW}")
    facts = session.report()["drafters"]
    assert facts["exit"]["proposed"] > 0
    assert facts["sparse"]["proposed"] > 0
    assert found == generate(model, ids, "off")[0]


def test_short_texts_are_not_drafted(model: edgedec.Model, ids: list[int]) -> None:
    _, session = generate(model, ids[:20], "sparse:least=100,fixed=4", 40)
    assert session.stats.proposed == 0


def test_under_a_cache_policy(model: edgedec.Model, ids: list[int]) -> None:
    """The draft prunes what the policy left; the text is the policy's."""
    plain = generate(model, ids, "off", cache="snapkv:budget=0.5")
    found, session = generate(model, ids, HOW, cache="snapkv:budget=0.5")
    assert session.stats.accepted > 0
    assert found == plain[0]


def test_turns_of_a_chat(model: edgedec.Model, ids: list[int]) -> None:
    sessions = [model.session(speculate=how) for how in ("off", HOW)]
    for prompt in (ids, ids[:150], [*ids[:150], *ids[20:120]]):
        one, other = ([int(t) for t in s.tokens(prompt, max_tokens=30, ignore_eos=True)] for s in sessions)
        assert one == other
        assert sessions[1].stats.proposed > 0


def test_pruned_forks_take_little_memory(model: edgedec.Model, ids: list[int]) -> None:
    runtime: Any = model.runtime
    cache = generate(model, ids, "off", 1)[1]._context.cache
    before = runtime.pages
    twin = cache.fork()
    for b in model.spec.attention:
        twin.drop(b, range(4, 230))
    assert runtime.pages - before == len(model.spec.attention), "a page each, not a copy of all"
    assert twin.slots(0) == cache.slots(0) - 226
    saved = cache.keys(0)[:, [0, 1, 2, 3, *range(230, cache.slots(0))]]
    assert np.array_equal(twin.keys(0), saved)


@pytest.mark.parametrize(
    "how", ["sparse:policy=full", "sparse:policy=nothing", "sparse:least=0", "sparse:policy=h2o,budget=7"]
)
def test_refusals(model: edgedec.Model, how: str) -> None:
    with pytest.raises(UsageError, match=r"sparse|no policy|budget=7"):
        model.session(speculate=how)


def test_auto_considers_it_where_contexts_are_long(
    model: edgedec.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it drafts nothing before a step takes twice as long as one that reads a part, by what was measured."""
    found, session = generate(model, ids, "auto", 20)
    assert "sparse" not in session.report()["drafters"]
    monkeypatch.setattr(sparse, "_LONG", 1024)
    monkeypatch.setattr(choose, "_step_seconds", lambda costs, cells: 1.0)
    again, session = generate(model, ids, "auto", 20)
    assert again == found
    assert session.report()["drafters"]["sparse"]["proposed"] == 0
    drafter = sparse.SparseDrafter.__new__(sparse.SparseDrafter)
    drafter._least, drafter._sparse = 2048, SimpleNamespace(seen=1024)
    drafter.step_seconds = None
    assert [drafter.pays(n) for n in (2047, 2048)] == [False, True], "as it was named"
    drafter.step_seconds = lambda cells: 0.0
    assert not drafter.pays(9999), "nothing is known yet"
    drafter.step_seconds = lambda cells: 2.0 + cells / 1024
    assert [drafter.pays(n) for n in (1500, 3500, 4095, 4096)] == [False, False, False, True], "twice 3 seconds"
