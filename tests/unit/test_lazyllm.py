"""LazyLLM: what stays behind comes back once it is looked at, as it would have been, and nothing later is seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pruning import DRAFTS, generate, repeating, run_calls, same

import edgedec
from edgedec import SessionError, UsageError
from edgedec.kernels.cpu import loader
from edgedec.policies import PolicyHost, make_policy
from edgedec.policies._parked import Left, runs
from edgedec.runtime import Call, Capabilities, Rows

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
WORDS = "lazyllm:keep=0.2,every=16,observe=6"


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


@pytest.fixture(scope="module")
def ids(model: edgedec.Model) -> list[int]:
    return repeating(model, 300)


def spans(session: edgedec.Session) -> list[range]:
    found: list[range] = session._context.policy._spans  # type: ignore[union-attr]
    return found


def back(session: edgedec.Session, stage: int, prompt: int) -> list[int]:
    """The positions of what came back to a stage, in the order of its slots."""
    first = next(b for b in spans(session)[stage] if b in session._context.cache.spec.attention)
    at = session._context.cache.positions(first)
    ends = np.flatnonzero(np.diff(at) < 0) + 1
    return [int(p) for part in np.split(at, ends) for p in part if p < prompt][count(at, prompt) :]


def count(at: np.ndarray[Any, Any], prompt: int) -> int:
    """Slots of the prompt that were there from the beginning: ascending, before the first generated one."""
    return int(np.flatnonzero(at >= prompt)[0])


def test_tokens_come_back(model: edgedec.Model, ids: list[int]) -> None:
    session, never = (generate(model, ids, f"{words}", 70)[1] for words in (WORDS, "lazyllm:keep=0.2,every=0"))
    held = [[s._context.cache.slots(b) for b in model.spec.attention] for s in (session, never)]
    assert held[0][0] == held[1][0] == len(ids) + 69, "the first layers hold everything"
    assert all(more >= few for more, few in zip(*held, strict=True))
    for stage in range(1, len(spans(session))):
        came = back(session, stage, len(ids))
        assert came, f"nothing came back to stage {stage}"
        for b in spans(session)[stage]:
            if b in model.spec.attention:
                at = session._context.cache.positions(b)
                assert len(set(at.tolist())) == len(at), "a token is held once"
    assert not back(never, 1, len(ids))
    assert never.cache_report()["waiting_bytes"] == 0 < session.cache_report()["waiting_bytes"]


def test_what_comes_back_is_what_was_left(model: edgedec.Model, ids: list[int]) -> None:
    """Below the first stage nothing was left out: its first keys are those of the whole cache, to the byte."""
    session, dense = generate(model, ids, WORDS, 70)[1], generate(model, ids, "full", 70)[1]
    first = next(b for b in spans(session)[1] if b in model.spec.attention)
    cache = session._context.cache
    at, keys, whole = cache.positions(first), cache.keys(first), dense._context.cache.keys(first)
    assert back(session, 1, len(ids))
    prompt = at < len(ids) - 1
    np.testing.assert_array_equal(keys[:, prompt], whole[:, at[prompt]])


def test_nothing_later_is_seen(model: edgedec.Model, ids: list[int]) -> None:
    """The calls that bring tokens back run in forks that end before the first of them."""
    context = generate(model, ids, WORDS, 15)[1]._context
    calls = list[Call]()
    policy, cache = context.policy, context.cache
    while cache.length % 16:
        row = Call(Rows.chain(context.ids[cache.length : cache.length + 1] or [7], cache.length), cache)
        shaped = policy.shape(row)  # type: ignore[union-attr]
        result = model.runtime.forward([shaped])[0]
        cache.commit([0])
        policy.observe(cache, result)  # type: ignore[union-attr]
    run_calls(model.runtime, watched(policy.work(cache, None), calls))  # type: ignore[union-attr]
    forks = [call for call in calls if call.cache is not cache]
    assert forks
    assert all(call.cache.length == call.rows.positions[0] for call in forks)
    assert all(len(call.rows) <= 16 for call in calls)


def watched(calls: Any, into: list[Call]) -> Iterator[Call]:
    done = None
    try:
        while True:
            call = calls.send(done)
            into.append(call)
            done = yield call
    except StopIteration:
        return


@pytest.mark.parametrize("kv", ["f32", "int8"])
def test_drafts_forks_and_files_change_nothing(nano: Path, ids: list[int], kv: str, tmp_path: Path) -> None:
    model = edgedec.open(nano, engine="native", threads=2, kv=kv)
    plain, drafted = generate(model, ids, WORDS, 80), generate(model, ids, WORDS, 80, DRAFTS)
    assert back(plain[1], 1, len(ids))
    assert drafted[1].stats.proposed > 20
    assert drafted[0] == plain[0]
    assert same(drafted[1], plain[1])
    first, session = generate(model, ids, WORDS, 40)
    session.save(tmp_path / "s")
    loaded = model.session(speculate="off", cache=WORDS)
    loaded.load(tmp_path / "s")
    for other in (loaded, session.fork()):
        assert [*first, *map(int, other.tokens(max_tokens=40, ignore_eos=True))] == plain[0]
        assert same(other, plain[1])


def test_a_later_prompt_leaves_more(model: edgedec.Model, ids: list[int]) -> None:
    session = generate(model, ids, WORDS, 40)[1]
    before = session.cache_report()["waiting_bytes"]
    list(session.tokens([*session.ids, *ids[:200]], max_tokens=40, ignore_eos=True))
    assert session.cache_report()["waiting_bytes"] > before
    assert session.stats.cached > 300


@pytest.mark.parametrize("room", [1, 3])
def test_the_end_of_the_capacity_changes_nothing(model: edgedec.Model, ids: list[int], room: int) -> None:
    """Tokens come back where fewer rows than these fit: what is held is that of a larger cache, to the byte."""
    found, length = [], 320  # tokens come back every 16
    for capacity in (length + room, 1000):
        session = model.session(speculate="off", cache=WORDS, context=capacity)
        tokens = session.tokens(ids, max_tokens=length + room + 1 - len(ids), ignore_eos=True)
        found.append(([int(token) for token in tokens], session))
    (tokens, tight), (plain, wide) = found
    cache = tight._context.cache
    assert cache.length == cache.capacity
    before = cache.fork(length - 1)  # what came back are slots of the token after these
    came = [cache.slots(b) - before.slots(b) - (room + 1) for b in cache.spec.attention]
    assert max(came) > room
    assert tokens == plain
    assert same(tight, wide)


def test_engines_agree(nano: Path, ids: list[int]) -> None:
    held = []
    for engine in ("native", "reference"):
        session = generate(edgedec.open(nano, engine=engine, threads=1), ids[:120], WORDS, 20)[1]
        held.append([session._context.cache.positions(b).tolist() for b in session._context.cache.spec.attention])
        assert back(session, 1, 120)
    shared = [len(set(a) & set(b)) / len(a) for a, b in zip(*held, strict=True)]
    assert min(shared) > 0.85  # what the two round differently may change places


def test_engines_that_cannot_bring_back(model: edgedec.Model) -> None:
    can = Capabilities(kinds=("attention", "mlp"), kv_formats=("f32",), attention_sums=True, selections=True)
    host = PolicyHost(model.spec, can)
    with pytest.raises(UsageError, match=r"every=32: this engine cannot bring tokens back.*every=0"):
        make_policy("lazyllm", host)
    assert make_policy("lazyllm:every=0", host) is not None


def test_a_damaged_state_is_refused(model: edgedec.Model, ids: list[int]) -> None:
    session = generate(model, ids, WORDS, 3)[1]
    policy, cache = session._context.policy, session._context.cache
    assert policy is not None
    state = policy.state()
    assert {"left.1.positions", "left.1.hidden"} <= set(state)
    policy.fork().restore(state, cache)
    hidden, at = state["left.1.hidden"], state["left.1.positions"]
    for change in (
        {"left.1.hidden": hidden[:, :-1]},
        {"left.1.hidden": hidden.astype(np.float64)},
        {"left.1.positions": at[::-1].copy()},
        {"left.1.positions": at + 100_000},
        {"left.9.positions": at, "left.9.tokens": at, "left.9.hidden": hidden},
        {"left.x.positions": at},
        {"left.1.more": at},
        {"left.1.positions": np.int64(3).reshape(()), "left.1.tokens": np.int64(3).reshape(())},
        {"left.1.positions": np.array([*at[:-1], -(2**63)])},  # a difference of int64 that wraps
        {f"left.{chr(0xB2)}.positions": at},
        {f"left.{'1' * 5000}.positions": at},
        {"left": at},
    ):
        with pytest.raises(SessionError, match="not of cache policy lazyllm"):
            policy.fork().restore(state | change, cache)


def test_runs() -> None:
    positions = np.array([3, 5, 90, 400, 401, 900, 2000])
    worth = np.array([1, 1, 1, 1, 1, 3, 0.5], np.float32)
    assert [part.tolist() for part in runs(positions, worth)] == [[0, 1], [2], [3, 4], [5]]


def test_left_are_kept_in_order() -> None:
    def left(*at: int) -> Left:
        return Left(np.array(at), np.array(at) + 100, np.array(at, np.float32)[:, None] * np.ones(3, np.float32))

    joined = left(2, 9).plus(Left(np.array([1, 9]), np.array([5, 6]), np.zeros((2, 3), np.float32)))
    assert joined.positions.tolist() == [1, 2, 9]
    assert joined.tokens.tolist() == [5, 102, 6]
    assert joined.at(np.array([2])).hidden.tolist() == [[2, 2, 2]]
