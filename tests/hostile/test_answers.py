"""Large answers, and large requests without a text to generate: made beside the event loop, in parts, in turns."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgedec

for package in ("starlette", "uvicorn", "httpx"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
from serving import fetch, serving, wait_for  # noqa: E402

from edgedec.server import answers, bodies, shapes, turns  # noqa: E402
from edgedec.server.fairness import Turns  # noqa: E402
from hostile.attacks import together  # noqa: E402

LIMITS = {"prompt": "Once", "n": 4, "max_tokens": 250, "ignore_eos": True, "logprobs": 20}


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


@pytest.fixture(scope="module")
def place(model: edgedec.Model) -> Iterator[str]:
    with serving(model, slots=4, context=512) as (found, _):
        yield found


@pytest.mark.parametrize(
    "body",
    [
        {"a": [1] * 50_000, "b": {"c": [{"d": [0.5, None, "e\ud800"]}] * 9000}},
        [[i] for i in range(40_000)],
        {str(i): {"a": i} for i in range(30_000)},
        [[[[{"a": "x" * 40_000}]]]],
        {"a": {}, "b": [], "c": True},
    ],
    ids=["numbers", "lists", "members", "text", "small"],
)
def test_a_large_answer_is_written_in_small_parts(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, parts = answers._encode, list[int]()

    def noted(value: Any) -> str:
        if isinstance(value, dict | list):
            parts.append(bodies.weight(value, 1 << 20))
        return encode(value)

    monkeypatch.setattr(answers, "_encode", noted)
    assert answers._text(body) == encode(body)
    assert len(parts) > 2 or body == {"a": {}, "b": [], "c": True} or "x" in str(body)
    assert all(part < bodies.LARGE for part in parts)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/api/generate"])
def test_many_log_probabilities_are_not_made_in_the_event_loop(
    place: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, render, finite = set[str](), answers.JsonAnswer.render, shapes.finite
    wrote = dict[int, str]()

    def noted(logprob: float | None) -> float:
        made.add(threading.current_thread().name)
        return finite(logprob)

    def rendered(self: Any, content: Any) -> bytes:
        found = bytes(render(self, content))
        wrote[len(found)] = threading.current_thread().name
        return found

    monkeypatch.setattr(shapes, "finite", noted)
    monkeypatch.setattr(answers.JsonAnswer, "render", rendered)
    talk = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 20}
    body: dict[str, Any] = {"/v1/chat/completions": {**LIMITS, **talk}}.get(path, LIMITS)
    if "messages" in body:
        body = {name: value for name, value in body.items() if name != "prompt"}
    if path.startswith("/api"):
        options = {"num_predict": 60, "seed": 1}
        body = {"model": "nano", "prompt": "Once", "raw": True, "stream": False, "options": options}
        body |= {"logprobs": True, "top_logprobs": 20}
    answer = httpx.post(f"{place}{path}", json=body, timeout=120)
    assert answer.status_code == 200, answer.text[:300]
    assert made, "there were log-probabilities"
    assert not any("MainThread" in name or "asyncio" in name for name in made)
    assert all("worker" in name.lower() for name in made), made
    if not path.startswith("/api"):
        assert "worker" in wrote[max(wrote)].lower()


def test_large_texts_are_tokenized_one_at_a_time(
    place: str, model: edgedec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many come, a small one does not wait for them, nor does a text."""
    free, encode, reading, most = threading.Event(), type(model.tokenizer).encode, 0, 0

    def held(self: Any, text: str, *more: Any, **named: Any) -> Any:
        nonlocal reading, most
        if len(text) > bodies.LARGE:
            reading += 1
            most = max(most, reading)
            free.wait(60)
            reading -= 1
        return encode(self, text, *more, **named)

    monkeypatch.setattr(type(model.tokenizer), "encode", held)
    counts = list[int]()

    def act(i: int) -> None:
        text = "Once upon a time " * 2000
        body = {"prompt": text} if i % 2 else {"messages": [{"role": "user", "content": text}]}
        counts.append(httpx.post(f"{place}/tokenize", json=body, timeout=100).json()["count"])

    threads = threading.Thread(target=together, args=(6, act))
    threads.start()
    try:
        wait_for(lambda: reading == 1)
        assert httpx.post(f"{place}/tokenize", json={"prompt": "Once"}, timeout=60).json()["count"] > 0
        body = {"prompt": "Once", "max_tokens": 2}
        assert httpx.post(f"{place}/v1/completions", json=body, timeout=60).status_code == 200
        assert "ok" in fetch(f"{place}/health")
        assert not counts
    finally:
        free.set()
        threads.join(100)
    assert len(counts) == 6
    assert most == 1


def test_many_small_messages_are_large() -> None:
    """And so are many functions: their templates and schemas take time."""
    from edgedec.server import api

    talk = {"messages": [{"role": "user", "content": ""}] * 2500}
    assert api.chat(json.dumps(talk).encode()).size == bodies.LARGE
    functions = [{"type": "function", "function": {"name": f"f{i}", "description": "x" * 200}} for i in range(100)]
    few = {"messages": [{"role": "user", "content": "Hi"}]}
    assert api.chat(json.dumps({**few, "tools": functions}).encode()).size == bodies.LARGE
    assert api.chat(json.dumps(few).encode()).size < 100


def test_clients_of_an_encoder_take_turns() -> None:
    """Steps of many requests of one client, and of one of another: a step of that waits for one at most."""
    ran = list[str]()

    async def act(turns: Turns, client: str, steps: int) -> None:
        for _ in range(steps):
            async with turns.turn(client):
                ran.append(client)
                await asyncio.sleep(0)

    async def run() -> None:
        turns = Turns()
        many = [asyncio.create_task(act(turns, "a", 10)) for _ in range(6)]
        await asyncio.sleep(0)
        gone = asyncio.create_task(act(turns, "c", 5))
        one = asyncio.create_task(act(turns, "b", 5))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(one, *many)
        async with turns.turn("d"):
            pass

    asyncio.run(asyncio.wait_for(run(), 20))
    assert len(ran) == 65 + ran.count("c")
    first = ran.index("b")
    assert first <= 3
    assert ran[first : first + 10].count("b") >= 4


def test_a_server_takes_short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.getswitchinterval()
    try:
        turns.shorten_turns()
        assert sys.getswitchinterval() <= 0.001
        assert gc.get_freeze_count() > 0
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()
