"""What a policy promises to hold at most: never less than it holds, and what is admitted by it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pruning import DRAFTS, repeating

import edgedec
from edgedec.cache import memory
from edgedec.decoding.apply_policy import most_held, most_of_any
from edgedec.decoding.scheduler.batch import Batch
from edgedec.errors import ContextFull
from edgedec.kernels.cpu import loader
from edgedec.policies import FAMILY, TextSize
from edgedec.policies._admission import evicted_peak, whole_peak
from edgedec.runtime import PAGE, Call, CallResult
from edgedec.runtime import memory as refusal
from edgedec.server.limits import ServerLimits

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")

BUDGETED = ["streaming", "h2o", "snapkv", "pyramidkv", "prefixkv", "fastkv", "d2o"]


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


@pytest.fixture(scope="module")
def ids(model: edgedec.Model) -> list[int]:
    text = repeating(model, 400)
    return (text * 4)[:1000]


class Watch:
    """At every forward of a session: what is held, beside the least that was promised before."""

    def __init__(self, model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session: edgedec.Session | None = None
        self.length, self.promised, self.most = 0, 1 << 30, 0
        self._can, self._forward = model.runtime.capabilities, model.runtime.forward
        monkeypatch.setattr(model.runtime, "forward", self._watched)

    def turn(self, session: edgedec.Session, length: int) -> None:
        """A text that comes to so many tokens begins or goes on."""
        self.session, self.length, self.promised = session, min(length, session.capacity), 1 << 30

    def _watched(self, calls: Sequence[Call]) -> list[CallResult]:
        context = self.session._context if self.session else None
        if context is None or all(call.cache is not context.cache for call in calls):
            return self._forward(calls)
        self.promised = min(self.promised, most_held(context, self.length, self._can))
        found = self._forward(calls)
        blocks, cache = len(context.cache.spec.attention), context.cache
        rows = max(call.rows.first + call.rows.count for call in calls if call.cache is cache)
        within = [call for call in calls if call.cache is cache and call.blocks is None]
        slots = max(cache.slots(b) for b in cache.spec.attention) + (rows if within else 0)
        pages = -(-cache.handle.pages()[0] // blocks)  # type: ignore[attr-defined]
        self.most = max(self.most, slots)
        assert slots <= self.promised, (slots, self.promised)
        assert pages <= -(-self.promised // PAGE), (pages, self.promised)
        return found


def words_of(data: st.DataObject) -> str:
    """Any policy with options by chance."""
    name = data.draw(
        st.sampled_from([name for name in FAMILY.names() if name not in ("aif", "vision")])
    )  # they need images
    budget = data.draw(st.sampled_from([8, 20, 64, 200, 0.05, 0.2, 0.5, 1]))
    every = data.draw(st.sampled_from([0, 16, 50, 128]))
    if name == "streaming":
        return f"{name}:budget={budget},every={every or 64},sinks={data.draw(st.sampled_from([0, 4, 30]))}"
    if name in BUDGETED:
        apart = ",heads=apart" if name in ("h2o", "snapkv") and data.draw(st.booleans()) else ""
        return f"{name}:budget={budget},every={every},observe=5{apart}"
    if name == "lazyllm":
        stages, back = data.draw(st.sampled_from([1, 3, 5])), data.draw(st.sampled_from([1, 16, 64]))
        return f"{name}:keep=0.2,every={every},observe=5,stages={stages},back={back}"
    return name


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_never_more_is_held_than_was_promised(
    model: edgedec.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    """Of any policy: prompts, what follows them, texts that go on, with drafts and without, and texts that slide."""
    words, speculate = words_of(data), data.draw(st.sampled_from(["off", DRAFTS]))
    slides, context = data.draw(st.booleans()), data.draw(st.sampled_from([150, 400, 1000]))
    with monkeypatch.context() as patch:
        watch = Watch(model, patch)
        session = model.session(
            cache=words, speculate=speculate, context=context, on_full="slide" if slides else "error"
        )
        for _ in range(data.draw(st.integers(1, 3))):
            more, n = data.draw(st.integers(1, 900)), data.draw(st.integers(1, 90))
            prompt = [*session.ids, *ids[:more]][: context - 1]
            if data.draw(st.booleans()) and session.ids:
                prompt = session.ids[:context]
            watch.turn(session, len(prompt) + n)
            most = n if slides else min(n, context - len(prompt)) or 1
            list(session.tokens(prompt, max_tokens=most, ignore_eos=True))
        if data.draw(st.booleans()) and len(session.ids) < context:
            watch.turn(session, context)
            list(session.tokens(None, max_tokens=context - len(session.ids), ignore_eos=True))
    assert watch.most > 0


@pytest.mark.parametrize("words", ["streaming:budget=64,every=32", "h2o:budget=64,every=32"])
def test_what_is_promised_is_what_it_takes(
    model: edgedec.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """A long prompt under policies that decide while they read it: four chunks beside what stays."""
    session, watch = model.session(cache=words, speculate="off"), Watch(model, monkeypatch)
    watch.turn(session, 1000)
    list(session.tokens(ids[:990], max_tokens=10, ignore_eos=True))
    chunk = 4 * model.runtime.capabilities.prefill_chunk
    assert most_of_any(session._context.policy, 1000, model.runtime.capabilities) == 64 + chunk
    assert watch.most == 64 + 989 - chunk  # the second four are not quite full


def test_a_text_that_slides_is_read_anew(model: edgedec.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    words, watch = "snapkv:budget=20,every=16,observe=5", Watch(model, monkeypatch)
    session = model.session(cache=words, speculate="off", context=200, on_full="slide")
    watch.turn(session, 10 + 250)
    list(session.tokens(ids[:10], max_tokens=250, ignore_eos=True))
    assert watch.most >= 99


def test_the_worst_of_a_text() -> None:
    def kept(length: int) -> int:
        return 64

    fresh = TextSize(0, 0, 901, 1000, 128)
    assert evicted_peak(fresh, kept, 32, 512) == 576
    assert evicted_peak(fresh, kept, 32, 0) == 900  # the prompt, as a whole
    assert evicted_peak(fresh._replace(length=5000), kept, 0, 0) == 64 + 5000 - 900
    assert evicted_peak(TextSize(64, 900, 901, 5000, 128), kept, 32, 0) == 64 + 32  # the prompt is read
    assert evicted_peak(TextSize(500, 900, 901, 5000, 128), kept, 0, 0) == 500 + 5000 - 900  # nothing decides any more


def test_the_worst_of_a_whole_text() -> None:
    assert whole_peak(TextSize(0, 0, 901, 1000, 128)) == 1000
    assert whole_peak(TextSize(940, 900, 901, 1000, 128)) == 940 + 1000 - 900
    assert whole_peak(TextSize(901, 901, 901, 1000, 128)) == 901 + 1000 - 900  # its last token is read once more


@pytest.mark.parametrize("policy", ["streaming:budget=64,every=32", "h2o:budget=64,every=32"])
def test_a_text_is_read_that_was_refused(
    model: edgedec.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(refusal, "_SMALL", 1 << 20)
    monkeypatch.setattr(memory, "available_memory", lambda: memory.cache_bytes(model.spec, "f32", 600, PAGE))
    with pytest.raises(ContextFull, match=r"920 tokens take .*--cache streaming"):
        list(model.session().tokens(ids[:900], max_tokens=20))
    told = list(model.session(cache=policy).tokens(ids[:900], max_tokens=20, ignore_eos=True))
    assert len(told) == 20
    with pytest.raises(ContextFull, match="920 tokens take") as error:  # it prunes after the prompt only
        list(model.session(cache="snapkv:budget=64").tokens(ids[:900], max_tokens=20))
    assert "--cache" not in str(error.value)


def running(model: edgedec.Model, ids: list[int], cache: str, room: int) -> tuple[int, int, list[list[Any]]]:
    """Texts of a batch that run together at first and at most, and what they say."""
    batch, told = Batch(model.runtime, tokens=room), []
    for i in range(4):
        told.append(list[Any]())
        session = model.session(cache=cache, speculate="off")
        session.submit(batch, ids[i : i + 700], told[-1].append, max_tokens=40, ignore_eos=True)
    first = most = 0
    while batch.step():
        assert batch.held() <= max(room, batch._bound())
        used = sum(int(job.context.cache.handle.pages()[0]) for job in batch.jobs)  # type: ignore[attr-defined]
        assert used * PAGE <= room * len(model.spec.attention)
        first, most = first or batch.running, max(most, batch.running)
    return first, most, told


def test_a_batch_takes_as_many_as_fit(model: edgedec.Model, ids: list[int]) -> None:
    room = 1280
    assert running(model, ids, "full", room)[:2] == (1, 1)
    first, most, told = running(model, ids, "streaming:budget=64,every=32", room)
    assert (first, most) == (2, 4)  # two while prompts are read, all of them later
    for i, tokens in enumerate(told):
        session = model.session(cache="streaming:budget=64,every=32", speculate="off")
        assert tokens[:-1] == list(session.tokens(ids[i : i + 700], max_tokens=40, ignore_eos=True))
    assert running(model, ids, "snapkv:budget=64,every=32", room)[:2] == (1, 4)  # a prompt, and what stays of three


def test_forks_that_prune_are_counted_apart(model: edgedec.Model, ids: list[int]) -> None:
    """They share pages until one of them drops something, which moves all that comes after."""
    session = model.session(cache="streaming:budget=200,every=16", speculate="off")
    list(session.tokens(ids[:400], max_tokens=1, ignore_eos=True))
    twin, batch = session.fork(), Batch(model.runtime, tokens=2000)
    for one in (session, twin):
        one.submit(batch, None, lambda token: None, max_tokens=40, ignore_eos=True)
    batch.step()
    before = batch.held()
    while batch.step():
        pages = {page for job in batch.jobs for page in job.context.cache.page_ids().tolist()}
        assert len(pages) * PAGE <= before


def test_a_server_has_room_for_what_its_policy_keeps(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("starlette", reason="serving needs starlette")
    from edgedec.server.pool import fitted, limits_under

    monkeypatch.setattr(refusal, "_SMALL", 1 << 20)
    whole = edgedec.open(nano, engine="native", threads=1)
    each = memory.cache_bytes(whole.spec, "f32", 64, PAGE) // 64
    monkeypatch.setattr(memory, "available_memory", lambda: 900 * each)
    pruned = edgedec.open(nano, engine="native", threads=1, cache="streaming:budget=64,every=32")
    limits = ServerLimits(slots=3, context=1000)
    with pytest.raises(ContextFull, match=r"1000 tokens take .*--cache streaming"):
        fitted(limits, whole)
    found = fitted(limits, pruned)
    assert (found.tokens, found.each) == (640, 576)
    assert limits_under(found, pruned).room == 640
    assert limits_under(limits, pruned).room == 3 * 576
    assert fitted(ServerLimits(slots=1, context=1000), pruned).tokens == 0
    monkeypatch.setattr(memory, "available_memory", lambda: 500 * each)
    with pytest.raises(ContextFull, match="1000 tokens take") as error:
        fitted(limits, pruned)
    assert "--cache" not in str(error.value)
