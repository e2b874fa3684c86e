"""Cache policies: nothing depends on who drafts, batches, forks or saves; refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import KINDS, ODD, random_weights, write_bundle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pruning import DRAFTS, EVICTING, equal, generate, repeating, same

import edgedec
from edgedec import SessionError, UsageError
from edgedec.decoding.scheduler.batch import Batch
from edgedec.kernels.cpu import loader
from edgedec.policies import FAMILY, PolicyHost, make_policy
from edgedec.runtime import Capabilities, RuntimeOptions, open_runtime

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


@pytest.fixture(scope="module")
def ids(model: edgedec.Model) -> list[int]:
    return repeating(model, 300)


def test_every_policy_is_tested() -> None:
    assert {words.partition(":")[0] for words in EVICTING} <= set(FAMILY.names())
    assert all(FAMILY.summary(name) for name in FAMILY.names())


WHOLE = [f"{words.partition(':')[0]}:budget=1" for words in EVICTING if not words.startswith("lazyllm")]


@pytest.mark.parametrize("words", [*WHOLE, "lazyllm:keep=1"])
def test_the_whole_budget_is_the_whole_cache(model: edgedec.Model, ids: list[int], words: str) -> None:
    words += ",rate=1" if words.startswith("fastkv") else ""
    dense, whole = generate(model, ids, "full"), generate(model, ids, words)
    assert whole[0] == dense[0]
    assert equal([session._context.cache.save() for _, session in (dense, whole)])


@pytest.mark.parametrize("words", EVICTING)
def test_drafts_change_nothing(model: edgedec.Model, ids: list[int], words: str) -> None:
    plain, drafted = generate(model, ids, words), generate(model, ids, words, speculate=DRAFTS)
    stats, report = drafted[1].stats, drafted[1].cache_report()
    assert stats.proposed > 20
    assert stats.accepted > 5
    assert report["slots"] < 0.8 * report["of"]
    assert drafted[0] == plain[0]
    assert same(drafted[1], plain[1])


@pytest.mark.parametrize("words", EVICTING)
def test_saved_and_forked_texts_go_on_as_they_would_have(
    model: edgedec.Model, ids: list[int], words: str, tmp_path: Path
) -> None:
    whole, at_end = generate(model, ids, words, 80)
    for n in (1, 29, 33):
        first, session = generate(model, ids, words, n)
        session.save(tmp_path / "s")
        loaded, forked = model.session(speculate=DRAFTS, cache=words), session.fork()
        loaded.load(tmp_path / "s")
        for other in (loaded, forked, session):
            rest = [int(t) for t in other.tokens(max_tokens=80 - n, ignore_eos=True)]
            assert [*first, *rest] == whole
            assert same(other, at_end)


@pytest.mark.parametrize("kv", ["f16", "int8", "int4"])
def test_quantized_caches(nano: Path, ids: list[int], kv: str) -> None:
    model = edgedec.open(nano, engine="native", threads=1, kv=kv)
    for words in ("snapkv:budget=0.3,every=32", "fastkv", "streaming:budget=100"):
        plain, drafted = generate(model, ids, words, 60), generate(model, ids, words, 60, DRAFTS)
        assert drafted[1].stats.proposed > 0
        assert plain[1].cache_report()["share"] < 0.6
        assert drafted[0] == plain[0]


def test_texts_of_a_batch_are_what_they_are_alone(model: edgedec.Model, ids: list[int]) -> None:
    prompts = [ids, ids[:180], [*ids[:200], *ids[40:120]]]
    for words in ("snapkv:budget=0.2", "d2o:budget=64", "fastkv", "streaming:budget=64"):
        alone = [generate(model, prompt, words, 50)[0] for prompt in prompts]
        batch, found = Batch(model.runtime), [list[int]() for _ in prompts]
        for prompt, into in zip(prompts, found, strict=True):
            session = model.session(cache=words, speculate=DRAFTS)
            keep = _appends(into)
            session.submit(batch, prompt, keep, max_tokens=50, ignore_eos=True)
        batch.run()
        assert found == alone
        assert len(batch.prefixes) == 0, "a pruned cache is not shared"


def _appends(into: list[int]) -> Any:
    return lambda token: into.append(int(token)) if token is not None else None


def test_pruned_caches_and_whole_ones_are_not_shared(nano: Path, ids: list[int]) -> None:
    model = edgedec.open(nano, engine="native", threads=1, prefix_tokens=4096)
    fresh = generate(model, ids, "snapkv:budget=0.2", 20)[0]
    dense = generate(model, ids, "full", 20)[0]
    assert generate(model, ids, "full", 20)[1].stats.cached > 0
    again, session = generate(model, ids, "snapkv:budget=0.2", 20)
    assert (again, session.stats.cached) == (fresh, 0)
    assert generate(model, ids, "full", 20)[0] == dense


def test_another_prompt_is_read_anew(model: edgedec.Model, ids: list[int]) -> None:
    """What was dropped for the text that stood there is needed again; a prompt that goes on is not read again."""
    words, other = "snapkv:budget=0.2", [*ids[:250], *ids[10:60]]
    session = generate(model, ids, words)[1]
    found = [int(t) for t in session.tokens(other, max_tokens=40, ignore_eos=True)]
    assert session.stats.cached == 0
    assert found == generate(model, other, words, 40)[0]
    longer = [*session.ids, *ids[:20]]
    assert list(session.tokens(longer, max_tokens=4))
    assert session.stats.cached > 300


def test_scores_are_those_of_the_generated_text(model: edgedec.Model, ids: list[int]) -> None:
    for words in EVICTING:
        session = model.session(speculate="off", cache=words)
        tokens = list(session.tokens(ids, max_tokens=70, ignore_eos=True, logprobs=0))
        reader = model.session(speculate="off", cache=words)
        reader.append(ids)
        assert np.allclose(reader.score([int(t) for t in tokens]), [t.logprob for t in tokens])
        assert reader.next_probs().argmax() == tokens[0]


@pytest.mark.parametrize("name", ["plain", "all", "after", "heads by layer", "routers", "state spaces"])
def test_windows_mixtures_and_hybrids(tmp_path: Path, name: str) -> None:
    spec = {**ODD, **KINDS}[name]
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec))
    model = edgedec.Model(bundle, open_runtime("native", bundle, RuntimeOptions(threads=1, kv="f32")))
    ids = np.random.default_rng(0).integers(0, spec.vocab_size, 150).tolist()
    for words in ("streaming:budget=40,every=16", "h2o:budget=40,every=16", "snapkv:budget=0.2,every=16"):
        plain, drafted = generate(model, ids, words, 60), generate(model, ids, words, 60, DRAFTS)
        assert drafted[1].stats.proposed > 0
        assert plain[1].cache_report()["share"] < 0.5
        assert drafted[0] == plain[0]
        assert same(drafted[1], plain[1])


def test_memory_is_given_back(model: edgedec.Model, ids: list[int]) -> None:
    dense, pruned = generate(model, ids, "full", 1)[1], generate(model, ids, "streaming:budget=32", 1)[1]
    assert pruned._context.cache.nbytes < 0.35 * dense._context.cache.nbytes


def test_a_sliding_context_starts_over(model: edgedec.Model, ids: list[int]) -> None:
    for words in ("snapkv:budget=0.2", "streaming:budget=60"):
        session = model.session(context=128, on_full="slide", cache=words, speculate=DRAFTS)
        assert len(list(session.tokens(ids[:100], max_tokens=120, ignore_eos=True))) == 120


def test_snapshots_of_other_policies_are_refused(model: edgedec.Model, ids: list[int], tmp_path: Path) -> None:
    generate(model, ids, "snapkv:budget=0.2", 3)[1].save(tmp_path / "pruned")
    generate(model, ids, "full", 3)[1].save(tmp_path / "whole")
    with pytest.raises(SessionError, match=r"saved with cache policy snapkv:budget=0.2.*--cache snapkv:budget=0.2"):
        model.session().load(tmp_path / "pruned")
    with pytest.raises(SessionError, match=r"with the whole cache, this session has h2o; open it with --cache full"):
        model.session(cache="h2o").load(tmp_path / "whole")


def test_a_damaged_state_is_refused(model: edgedec.Model, ids: list[int]) -> None:
    session = generate(model, ids, "h2o:budget=64", 3)[1]
    policy, cache = session._context.policy, session._context.cache
    assert policy is not None
    state = policy.state()
    assert state, "sums over the whole text are kept"
    name = next(iter(state))
    wrong: dict[str, Any] = {
        "scores.1": state[name],
        "scores.x": state[name],
        "other": state[name],
        name: np.full(9999, 1, np.float32),
    }
    for key, value in wrong.items():
        with pytest.raises(SessionError, match=key):
            policy.fork().restore({key: value}, cache)
    with pytest.raises(SessionError):
        policy.fork().restore({name: state[name].astype(np.float64)}, cache)
    with pytest.raises(SessionError):
        policy.fork().restore({name: np.full_like(state[name], np.nan)}, cache)


BAD = {
    "nothing": "no policy .nothing.; there are: full, .*snapkv",
    "full:budget=1": "--cache full: takes no options",
    "snapkv:budget": "must be OPTION=VALUE",
    "snapkv:budget=x": "must be a finite number",
    "snapkv:budget=nan": "finite",
    "snapkv:budget=0": "above 0, up to 1",
    "snapkv:budget=3": "from 8 on",
    "snapkv:colour=1": "no option 'colour'",
    "snapkv:window=0": "window=0: must be from 1 to 128",
    "h2o:every=8,observe=8": "observe=8: must be below every=8",
    "streaming:every=0": "every=0: must be from 1 to",
    "fastkv:rate=0": "rate=0: must be above 0, up to 1",
    "fastkv:layer=14": "layer=14: must be from 1 to 13",
    "lazyllm:stages=14": "stages=14: must be from 1 to 13",
    "lazyllm:keep=0": "keep=0.*above 0",
    "lazyllm:back=65": "back=65: must be from 1 to 64",
    "pyramidkv:slope=3": "slope=3: must be from 1 to 2",
    "snapkv+h2o": "a text has one policy",
    "../x": "no policy '../x'",
    "_budget": "no policy '_budget'",
}


@pytest.mark.parametrize("words", BAD)
def test_refusals(model: edgedec.Model, words: str) -> None:
    with pytest.raises(UsageError, match=BAD[words]) as refused:
        model.session(cache=words)
    assert "\n" not in str(refused.value)


def test_runtimes_and_models_that_cannot(model: edgedec.Model, tmp_path: Path) -> None:
    can = Capabilities(kinds=("attention",), kv_formats=("f32",), attention_sums=False, drop=False)
    with pytest.raises(UsageError, match=r"needs a runtime with drop, attention_sums.*--engine native"):
        make_policy("snapkv", PolicyHost(model.spec, can))
    with pytest.raises(UsageError, match=r"cannot run blocks of kind ssm on fewer rows.*such as snapkv"):
        make_policy("fastkv", PolicyHost(KINDS["state spaces"], model.runtime.capabilities))


def test_a_model_opened_with_a_policy(nano: Path, ids: list[int], model: edgedec.Model) -> None:
    opened = edgedec.open(nano, engine="native", threads=1, cache="snapkv:budget=0.2")
    session = opened.session(speculate="off")
    found = [int(t) for t in session.tokens(ids, max_tokens=20, ignore_eos=True)]
    assert found == generate(model, ids, "snapkv:budget=0.2", 20)[0]
    assert session.cache_report()["lossy"] is True
    assert opened.session(cache="full").cache_report() == {}
    with pytest.raises(UsageError, match="no policy"):
        edgedec.open(nano, engine="native", threads=1, cache="nothing")


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    words=st.sampled_from(["streaming", "h2o", "snapkv", "prefixkv", "fastkv", "d2o"]),
    budget=st.one_of(st.integers(8, 120), st.floats(0.05, 1.0)),
    every=st.integers(9, 60),
    observe=st.integers(0, 8),
    length=st.integers(1, 300),
    parts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
)
def test_any_options_any_interruptions(
    model: edgedec.Model,
    ids: list[int],
    words: str,
    budget: float,
    every: int,
    observe: int,
    length: int,
    parts: list[int],
) -> None:
    """Stopped anywhere, forked there, drafted or not: the same text, the same bytes."""
    rest = "" if words == "streaming" else f",observe={observe}"
    words = f"{words}:budget={budget},every={every}{rest}"
    plain, whole = generate(model, ids[:length], words, sum(parts))
    session, found = model.session(speculate=DRAFTS, cache=words), list[int]()
    for i, n in enumerate(parts):
        found += [int(t) for t in session.tokens(ids[:length] if not i else None, max_tokens=n, ignore_eos=True)]
        session = session.fork()
    assert found == plain
    assert same(session, whole)
