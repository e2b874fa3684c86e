"""Large requests: limited before they are parsed, counted only as far as they fit, and never in the way of others."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgedec

for package in ("starlette", "uvicorn", "httpx"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
from serving import fetch, serving, wait_for  # noqa: E402

from edgedec.server import api, bodies, completions, schema  # noqa: E402
from edgedec.server.errors import APIError  # noqa: E402
from edgedec.server.limits import most_body  # noqa: E402
from edgedec.text.encoding import at_least  # noqa: E402
from hostile.attacks import ask, together  # noqa: E402
from hostile.watch import connected  # noqa: E402

SLOW = bool(os.environ.get("EDGEDEC_SLOW_TESTS"))
TEXTS = {
    "story": "Once upon a time there was a little girl named Lily. ",
    "one letter": "a",
    "spaces": " ",
    "lines": "\n\n\t",
    "digits": "0123456789",
    "no words": "§é中🙂",
    "special tokens": "<|im_end|></s><s>",
}


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


@pytest.fixture(scope="module")
def place(model: edgedec.Model) -> Iterator[str]:
    with serving(model, slots=2, context=512) as (found, _):
        yield found


@pytest.mark.parametrize("kind", TEXTS)
def test_a_count_that_stops_is_never_too_high(model: edgedec.Model, kind: str) -> None:
    """Whatever a cut does to the tokens around it."""
    text, encoded = TEXTS[kind] * 4000, 0

    def count(piece: str) -> int:
        nonlocal encoded
        encoded += len(piece)
        return len(model.tokenizer.encode(piece, around=False))

    whole = len(model.tokenizer.encode(text, around=False))
    for most in (10, 500, whole // 2, whole + 1, 10 * whole):
        encoded = 0
        found = at_least(text, most, count)
        assert found == 0 or most < found <= whole
        if most <= whole // 2 and len(text) > 4 * most + 8192:
            assert found, "it is sure"
            assert encoded <= len(text) * (most + 300) / whole + 2 * 8192


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("kind", TEXTS)
def test_a_long_text_has_the_same_tokens(model: edgedec.Model, kind: str, special: bool) -> None:
    text, raw = TEXTS[kind] * 700, model.tokenizer._raw
    found = model.tokenizer.encode(text, special=special)
    raw.encode_special_tokens = not special
    assert found == raw.encode(text, add_special_tokens=special).ids
    raw.encode_special_tokens = not model.tokenizer._encoder._special


def test_texts_of_both_settings_are_encoded_at_a_time(model: edgedec.Model) -> None:
    text = f"a{model.tokenizer.token(min(model.tokenizer.hidden))}" * 300
    right = {special: model.tokenizer.encode(text, special=special, around=False) for special in (True, False)}
    assert right[True] != right[False]
    wrong: list[int] = []

    def act(i: int) -> None:
        for turn in range(40):
            special = (i + turn) % 2 == 0
            if model.tokenizer.encode(text, special=special, around=False) != right[special]:
                wrong.append(i)

    together(4, act)
    assert not wrong


def test_a_prompt_that_does_not_fit_is_refused_by_both_numbers(
    place: str, model: edgedec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, encode = [], type(model.tokenizer).encode

    def counted(self: Any, text: str, *more: Any, **named: Any) -> list[int]:
        encoded.append(len(text))
        return encode(self, text, *more, **named)

    monkeypatch.setattr(type(model.tokenizer), "encode", counted)
    text = TEXTS["story"] * 18_000
    for path, body in {
        "/v1/completions": {"prompt": text},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
        "/v1/responses": {"input": text},
        "/v1/embeddings": {"input": text},
        "/api/generate": {"model": "nano", "prompt": text, "raw": True},
    }.items():
        encoded.clear()
        answer = httpx.post(f"{place}{path}", json=body, timeout=60)
        assert answer.status_code == 400, answer.text[:300]
        assert "do not fit a context of 512" in answer.text
        assert int(answer.text.partition("at least ")[2].split()[0]) > 512
        assert sum(encoded) < len(text) / 50, "the rest is not read"


def test_a_body_is_limited_before_it_is_parsed(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is seen by a client that is still sending."""
    parsed: list[int] = []
    monkeypatch.setattr(bodies, "parse", lambda raw: parsed.append(len(raw)))
    most = most_body(512)
    assert 1 << 20 < most < 1 << 21
    for body in (b"[" * (most + 1), b" " * (6 << 20)):
        for content in (body, iter([body[: 1 << 16]] * (len(body) // (1 << 16) + 1))):
            headers = {"content-type": "application/json"}
            answer = httpx.post(f"{place}/v1/completions", content=content, headers=headers, timeout=60)
            assert answer.status_code == 413
            assert f"larger than {most} bytes (--max-body)" in answer.json()["error"]["message"]
    # A simple client, which reads when it has sent all.
    assert ask(place, {"prompt": "x" * (6 << 20)})[0] == 413
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(place) as end:
        end.sendall(head.encode() + (b"10000\r\n" + b"x" * (1 << 16) + b"\r\n") * 100 + b"0\r\n\r\n")
        assert end.recv(1 << 16).startswith(b"HTTP/1.1 413")
    assert not parsed


def test_a_context_has_the_body_that_it_needs() -> None:
    assert most_body(1 << 17) >= 5 << 20
    assert most_body(1024) < 1.1 * (1 << 20)


def test_a_large_body_is_parsed_beside_the_event_loop(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, parse = {}, bodies.parse

    def noted(raw: bytes) -> dict[str, Any]:
        where[len(raw) > 1 << 16] = threading.current_thread().name
        return parse(raw)

    monkeypatch.setattr(bodies, "parse", noted)
    for size in (10, 100_000):
        httpx.post(f"{place}/v1/completions", json={"prompt": "x " * size}, timeout=60)
    assert "worker" in where[True].lower()
    assert "worker" not in where[False].lower()


@pytest.mark.parametrize("values", ["0,", "[],", '{"a":1},', '"a",'])
def test_large_json_is_parsed_between_the_turns_of_other_threads(values: str) -> None:
    """Counted in turns of another thread, which has none while a parser in C runs."""
    raw = f'{{"a": [{values * (bodies._IN_PARTS // len(values))} 0]}}'.encode()
    turns, began, done = 0, threading.Event(), threading.Event()

    def count() -> None:
        nonlocal turns
        began.set()
        while not done.is_set():
            turns += 1
            sleep(0)

    def turns_during(work: Callable[[], object]) -> int:
        before = turns
        work()
        return turns - before

    usual, other = sys.getswitchinterval(), threading.Thread(target=count)
    sys.setswitchinterval(1e-5)
    try:
        other.start()
        began.wait(60)
        held = min(
            turns_during(lambda: json.loads(raw)) for _ in range(9)
        )  # of a thread that was not stopped meanwhile
        before = turns
        with mock.patch.object(bodies, "depth", return_value=2):  # which is Python
            parsed = bodies.parse(raw)
        shared = turns - before
    finally:
        done.set()
        other.join(60)
        sys.setswitchinterval(usual)
    assert parsed == json.loads(raw)
    assert shared > 5 * max(held, 1)


@given(text=st.text(alphabet='{}[]",:0123456789.eE+-truefalsnd\\u \n\x01é', max_size=40), data=st.data())
@settings(max_examples=400 if SLOW else 150, deadline=None)
def test_json_in_parts_is_the_same_json(text: str, data: st.DataObject) -> None:
    """Values and refusals; valid ones with a character changed too."""
    values = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=5)
    raw = json.dumps({"a": data.draw(values), "b": data.draw(st.dictionaries(st.text(), values))}).encode()
    at = data.draw(st.integers(0, len(raw)))
    for each in (raw, raw[:at] + text.encode()[:1] + raw[at + 1 :], text.encode()):
        in_parts_as_whole(each)


def in_parts_as_whole(raw: bytes) -> str | tuple[int, str]:
    """What both parsers say of a body."""
    found: list[str | tuple[int, str]] = []
    for least in (0, 1 << 30):
        with mock.patch.object(bodies, "_IN_PARTS", least):
            try:
                found.append(repr(bodies.parse(raw)))
            except APIError as error:
                found.append((error.status, error.message))
    assert found[0] == found[1]
    return found[0]


REFUSED = ['"\n"', '"\x01"', '"\\x"', '"\\u12"', '"', "NaN", "-Infinity", "1e999", "01", "1.", ".5", "+1", "nul"]
REFUSED += ["[1,]", '{"b": 1,}', "{b: 1}", "{1: 1}", "[" * 101 + "]" * 101, "1}}"]


@pytest.mark.parametrize("value", REFUSED)
def test_json_in_parts_refuses_the_same(value: str) -> None:
    status, _ = in_parts_as_whole(f'{{"a": {value}}}'.encode())
    assert status == 400


@pytest.mark.parametrize("value", ['"\\ud800"', '"\\n"', "-0", "1e5", "-1.5E+2", '{"b": 1, "b": 2}', " [ ] ", "true"])
def test_json_in_parts_is_the_same_by_hand(value: str) -> None:
    assert in_parts_as_whole(f'{{"a": {value}}}'.encode()) == repr({"a": json.loads(value)})


def test_others_are_served_while_large_prompts_are_read(
    place: str, model: edgedec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many large ones one is read at a time."""
    free, reading, most, check = threading.Event(), 0, 0, completions._check_length

    def held(*given: Any) -> None:
        nonlocal reading, most
        if len(given[1]) > 1 << 16:
            reading += 1
            most = max(most, reading)
            free.wait(60)
            reading -= 1
        check(*given)

    monkeypatch.setattr(completions, "_check_length", held)
    codes = []

    def act(_: int) -> None:
        body = {"prompt": TEXTS["story"] * 2000, "max_tokens": 2}
        codes.append(httpx.post(f"{place}/v1/completions", json=body, timeout=100).status_code)

    threads = threading.Thread(target=together, args=(6, act))
    threads.start()
    try:
        wait_for(lambda: reading == 1)
        small = httpx.post(f"{place}/v1/completions", json={"prompt": "Once", "max_tokens": 3}, timeout=60)
        assert small.status_code == 200
        assert "ok" in fetch(f"{place}/health")
        assert not codes
    finally:
        free.set()
        threads.join(100)
    assert codes == [400] * 6
    assert most == 1


def test_numbers_of_tokens_are_checked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the bytes allow, not one by one."""
    looks, wrong = [], schema._wrong

    def noted(*given: Any) -> Any:
        looks.append(1)
        return wrong(*given)

    monkeypatch.setattr(schema, "_wrong", noted)
    raw = json.dumps({"prompt": [1] * 400_000}).encode()
    assert len(api.completion(raw).prompts[0]) == 400_000
    assert len(looks) < 100
    for odd in (-1, 1.5, "a", True, 1 << 31):
        with pytest.raises(api.APIError, match="prompt"):
            api.completion(json.dumps({"prompt": [*[1] * 7, odd, *[1] * 9]}).encode())
