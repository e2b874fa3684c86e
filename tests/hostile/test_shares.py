"""Slots and waiting places are shared between clients, then between requests; 429 says truly when to come again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

import edgedec

for package in ("starlette", "uvicorn", "httpx"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
from serving import serving, wait_for  # noqa: E402

from edgedec.decoding.config import GenerationConfig  # noqa: E402
from edgedec.sampling import Sampling  # noqa: E402
from edgedec.server import engine as engine_module  # noqa: E402
from edgedec.server import requests  # noqa: E402
from edgedec.server.completions import Completion  # noqa: E402
from edgedec.server.engine import EngineThread  # noqa: E402
from edgedec.server.fairness import Owner, TextProgress, client_of, has_place, seconds_until, starves, turns  # noqa: E402
from edgedec.server.limits import ServerLimits  # noqa: E402
from edgedec.server.requests import TextEvent  # noqa: E402
from edgedec.server.service import CLIENT_HEADER  # noqa: E402


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


def texts(*names: str) -> list[Any]:
    """Texts by client and request: "a1"."""
    return [SimpleNamespace(owner=Owner(name[0], name), name=name, started=0.0) for name in names]


def started(waiting: Sequence[str], running: Sequence[str] = ()) -> list[str]:
    return [text.name for text in turns(texts(*waiting), texts(*running))]


def test_clients_take_turns_then_requests() -> None:
    many = ["a1"] * 6
    assert started([*many, "b1"], ["a1"] * 4)[0] == "b1"
    assert started([*many, "b1", "b2"])[:4] == ["a1", "b1", "b2", "a1"]
    assert started([*many, "a2"])[:2] == ["a1", "a2"], "requests of one client too"
    assert started([*many, "a2", "b1"], ["a1", "a1"])[:3] == ["b1", "a2", "a1"]
    assert started(["a1", "b1", "c1"]) == ["a1", "b1", "c1"], "among equals those that came first"
    assert started(["a1", "b1", "c1"], ["a1", "c2"])[0] == "b1"
    assert sorted(started([*many, "b1"])) == sorted([*many, "b1"])


def test_a_request_without_a_running_text_starves_beside_one_with_several() -> None:
    def state(running: Sequence[str], waiting: Sequence[str]) -> bool:
        found = texts(*running, *waiting)
        for text in found[: len(running)]:
            text.started = 1.0
        return starves(found)

    assert state(["a1", "a1"], ["a1", "b1"])
    assert state(["a1", "a1"], ["a2"])
    assert state(["a1", "a1", "b1"], ["c1"])
    assert not state(["a1", "a1"], ["a1"])
    assert not state(["a1", "a2"], ["b1"])
    assert not state(["a1", "a1", "b1"], ["a1", "b1"])


@pytest.mark.parametrize(
    ("held", "owner", "count", "fits"),
    [
        (["a1"] * 7, "a1", 1, True),  # one client may have it all
        (["a1"] * 8, "b1", 1, True),
        (["a1"] * 8, "b1", 4, True),
        (["a1"] * 8, "b1", 5, False),
        ([*["a1"] * 8, *["b1"] * 4], "b2", 1, True),  # the share of a request
        ([*["a1"] * 8, *["b1"] * 4], "b2", 3, False),
        (["a1"] * 8, "a2", 1, True),
        (["a1"] * 8, "a2", 4, True),
        (["a1"] * 8, "a2", 5, False),
        ([f"a{i}" for i in range(8)], "a9", 1, False),  # each has as much
        ([f"{name}1" for name in "abcdefgh"], "i1", 1, False),
        (["a1"] * 16, "b1", 1, False),  # a limit there is
    ],
)
def test_places_are_divided_when_they_are_short(held: list[str], owner: str, count: int, fits: bool) -> None:
    assert has_place(texts(*held), texts(owner)[0].owner, count, 8) is fits


def test_an_ipv6_network_is_one_client() -> None:
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff:1%eth0")
    assert client_of("2001:db8::1") != client_of("2001:db8:0:1::1")
    assert client_of("::ffff:10.0.0.1") == client_of("10.0.0.1") != client_of("10.0.0.2")
    assert client_of("testclient") == "testclient"


def test_the_time_until_there_is_room() -> None:
    half, near = TextProgress(10.0, 100, 200), TextProgress(10.0, 100, 110)
    assert seconds_until(1, [half, near], 20.0) == 1
    assert seconds_until(2, [half, near], 20.0) == 10
    assert seconds_until(3, [half, near], 20.0) == 21
    assert seconds_until(4, [half, near], 20.0) == 30
    assert seconds_until(3, [half, half], 0.0) == 30, "those that run say how long others take"
    assert seconds_until(1, [], 5.0) == 1
    assert seconds_until(1, [TextProgress(10.5, 100, 200)], 0.0) == 11, "not before"


def held_back(server: Any) -> tuple[threading.Event, threading.Semaphore]:
    """Steps of the engine that wait, each for a permit, until all may go."""
    free, permits, batch = threading.Event(), threading.Semaphore(0), server.engine._batch
    step = batch.step

    def slow() -> bool:
        while not free.is_set() and not permits.acquire(timeout=0.01):
            pass
        return bool(step())

    batch.step = slow
    return free, permits


BODY = {"prompt": "Once", "ignore_eos": True, "temperature": 0}


def test_one_text_waits_for_one_of_many_at_most(model: edgedec.Model) -> None:
    """Though all of the others came first, and fill every place."""
    with serving(model, slots=2, queue=6) as (place, server):
        free, permits = held_back(server)
        engine, ends, first = server.engine, [], []

        def ask(name: str, n: int, tokens: int) -> None:
            body = {**BODY, "n": n, "max_tokens": tokens, "stop": ["never"]}
            answer = httpx.post(f"{place}/v1/completions", json=body, timeout=100)
            first.append((name, answer.status_code))

        engine._on_end = lambda end: ends.append(end.stats.generated)
        many = threading.Thread(target=ask, args=("many", 8, 100))
        many.start()
        permits.release(5)
        wait_for(lambda: engine.running == 2)
        one = threading.Thread(target=ask, args=("one", 1, 5))
        one.start()
        wait_for(lambda: len(engine._requests) == 9)
        more = httpx.post(f"{place}/v1/completions", json={**BODY, "n": 5}, timeout=100)
        assert more.status_code == 429
        assert 1 <= int(more.headers["retry-after"]) <= 600
        free.set()
        for thread in (many, one):
            thread.join(100)
        assert sorted(first) == [("many", 200), ("one", 200)]
        assert ends.index(5) == 0, "one text more than there are slots"


@pytest.mark.parametrize("apart", [True, False], ids=["clients", "requests"])
def test_no_call_goes_without_the_one_text_of_another(
    model: edgedec.Model, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight long prompts fill calls by two of their chunks. Meanwhile the text of another has a token of each call, and
    is what it is alone; and the prompt of a third is read by every second call. Calls of prompts may take their time,
    so that chunks are of the same sizes on any machine (`unit/test_pace.py` has those that may not)."""
    monkeypatch.setattr(engine_module, "_PAUSE", 1e6)
    limits = ServerLimits(slots=10, context=1024, speculate="off")
    config = GenerationConfig(Sampling(0.0), max_tokens=24, ignore_eos=True)
    asked = ["Once upon a time", *(f"{i} is a number. " * 150 for i in range(9))]
    ids = [tuple(model.tokenizer.encode(text)[:900]) for text in asked]
    session = model.session(context=1024, speculate="off")
    alone = [int(token) for token in session.tokens(ids[0], config)]
    engine, calls = EngineThread(model, limits), count(1)
    step, post, call, reading = engine._batch.step, engine._post, [0], list[int]()
    tokens: dict[str, list[tuple[int, int]]] = {"one": [], "many": [], "third": []}

    def counted() -> bool:
        call[0] = next(calls)
        jobs = engine._batch.jobs
        reading.append(sum(job.context.cache.length < job.context.n_prompt - 1 for job in jobs))
        return bool(step())

    def noted(request: Any, event: Any) -> None:
        if isinstance(event, TextEvent) and event.token is not None:
            tokens[names[request.run]].append((call[0], int(event.token)))
        post(request, event)

    async def run() -> None:
        texts = [Completion(found, config) for found in ids]
        clients = ["10.0.0.1", "10.0.0.2", "10.0.0.3"] if apart else ["10.0.0.1"] * 3
        for name, own, client in zip(tokens, (texts[:1], texts[1:-1], texts[-1:]), clients, strict=True):
            names[engine.generate(own, client)] = name
        engine.start()
        for each in names:
            async for _ in each.events():
                pass
        engine.close()

    names: dict[Any, str] = {}
    engine._batch.step, engine._post = counted, noted  # type: ignore[method-assign]
    asyncio.run(run())
    assert [token for _, token in tokens["one"]] == alone
    at = [when for when, _ in tokens["one"]]
    assert min(reading[1:24]) >= 6, "most of the prompts are being read"
    assert at == list(range(at[0], at[0] + 24))
    assert tokens["third"][0][0] <= 18, "eight chunks"
    assert not engine._batch._shares._had
    assert not engine._batch._pace._shares._had


def test_after_the_time_that_is_told_there_is_room(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes faster, so that a short text takes many seconds."""
    monkeypatch.setattr(requests, "monotonic", lambda: 500 * monotonic())
    with serving(model, slots=1, queue=0) as (place, server):
        free, permits = held_back(server)
        answers: list[int] = []

        def ask() -> None:
            body = {**BODY, "max_tokens": 40}
            answers.append(httpx.post(f"{place}/v1/completions", json=body, timeout=100).status_code)

        thread = threading.Thread(target=ask)
        thread.start()
        engine = server.engine
        wait_for(lambda: engine._requests)
        permits.release(10)
        wait_for(lambda: engine.running and engine._requests[0].progress().tokens >= 5)
        progress = engine._requests[0].progress()
        assert progress.most == 40
        told = httpx.post(f"{place}/v1/completions", json={**BODY, "n": 1}, timeout=100)
        left = progress.seconds / progress.tokens * (40 - progress.tokens)
        assert told.status_code == 429
        assert left > 2
        assert int(told.headers["retry-after"]) >= min(int(left), 600), "not sooner than the text can end"
        free.set()
        thread.join(100)
        assert answers == [200]
        again = httpx.post(f"{place}/v1/completions", json={**BODY, "max_tokens": 2}, timeout=100)
        assert again.status_code == 200


def test_only_a_router_names_clients(model: edgedec.Model) -> None:
    for routed in (False, True):
        with serving(model, routed=routed) as (place, server):
            free, _ = held_back(server)
            headers = {CLIENT_HEADER: "10.9.9.9"}
            body = {**BODY, "max_tokens": 1}
            thread = threading.Thread(
                target=httpx.post, args=(f"{place}/v1/completions",), kwargs={"json": body, "headers": headers}
            )
            thread.start()
            wait_for(lambda server=server: server.engine._requests)
            assert server.engine._requests[0].owner.client == ("10.9.9.9" if routed else "127.0.0.1")
            free.set()
            thread.join(60)


def test_a_router_gives_the_name_and_no_client_can(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgedec.server.replicas import router

    sent: list[Any] = []

    @asynccontextmanager
    async def ask(port: int, method: str, target: bytes, headers: Any, body: bytes) -> AsyncIterator[None]:
        sent.extend(headers)
        yield

    async def run() -> None:
        made: Any = lambda number, key: SimpleNamespace(number=number, port=1, load=SimpleNamespace(running=0))  # noqa: E731
        found = router.Router(made, 1, router.RouterSettings())
        given = [(CLIENT_HEADER.encode(), b"forged"), (b"accept", b"*/*")]
        async with found.ask(0, "POST", b"/", given, b"", "10.0.0.1"):
            pass

    monkeypatch.setattr(router, "ask", ask)
    asyncio.run(run())
    assert [value for name, value in sent if name == CLIENT_HEADER.encode()] == [b"10.0.0.1"]
    assert (b"accept", b"*/*") in sent
