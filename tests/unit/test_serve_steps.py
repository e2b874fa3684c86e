"""A step of the server's engine and the writing of its tokens: their order, and the bytes of each chunk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

for package in ("starlette", "uvicorn", "httpx"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
from python_steps import python_steps  # noqa: E402
from serving import serving  # noqa: E402

import edgedec  # noqa: E402
from edgedec.decoding.config import GenerationConfig  # noqa: E402
from edgedec.decoding.messages import Token  # noqa: E402
from edgedec.server import answers, api, engine, stream  # noqa: E402
from edgedec.server.completions import Completion  # noqa: E402
from edgedec.server.requests import EndEvent, GenerationRequest, Submission, TextEvent  # noqa: E402
from edgedec.server.stream import TextResponse  # noqa: E402

TOKENS = 12
# Quotes, line ends, what Python's `splitlines` cuts at, half an emoji, the text that stands for texts in a template.
TEXTS = [" word", '"', "\n\\", "\u2028\x85", "\ud83d", "é🙂", "\0", ""]
DRAFTERS = ["", "copy", "", "copy+suffix", "copy", "", "", ""]


@pytest.fixture
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


def watched(
    model: edgedec.Model,
    patch: pytest.MonkeyPatch,
    write: Callable[[list[str]], None],
    cores: int,
    longest: float,
) -> list[str]:
    """A streamed text's forwards and chunks in their order, on a machine of so many cores; `write` is called in the
    event loop for each chunk."""
    order: list[str] = []
    python_steps(model.runtime)
    forward, text_chunk = model.runtime.forward, stream.TextResponse._text_chunk

    def noted(calls: Any) -> Any:
        order.append("forward")
        return forward(calls)

    def written(self: Any, index: int, delta: Any) -> str:
        write(order)
        order.append("chunk")
        return text_chunk(self, index, delta)

    patch.setattr(model.runtime, "forward", noted)
    patch.setattr(stream.TextResponse, "_text_chunk", written)
    patch.setattr(engine, "available_cores", lambda: cores)
    patch.setattr(engine, "_LONGEST_WAIT", longest)
    body = {"prompt": "Once", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    with serving(model, speculate="off") as (place, _):
        text = httpx.post(f"{place}/v1/completions", json=body, timeout=60).text
    assert text.endswith("data: [DONE]\n\n")
    return order


def test_where_all_cores_compute_a_step_begins_when_the_last_one_is_written(
    model: edgedec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = watched(model, monkeypatch, lambda order: sleep(0.01), cores=1, longest=10)
    assert order == ["forward", "chunk"] * TOKENS


@pytest.mark.parametrize(("cores", "longest"), [(2, 10), (1, 0.01)], ids=["a core is free", "the event loop is busy"])
def test_a_step_does_not_wait(
    model: edgedec.Model, monkeypatch: pytest.MonkeyPatch, cores: int, longest: float
) -> None:
    """Each chunk is held until the next forward has begun, which would not happen if that waited."""
    late: list[int] = []

    def hold(order: list[str]) -> None:
        begun, end = order.count("forward"), monotonic() + 5
        while order.count("forward") == begun < TOKENS and monotonic() < end:
            sleep(0.001)
        late.extend([begun] if monotonic() >= end else [])

    order = watched(model, monkeypatch, hold, cores, longest)
    assert order.count("chunk") == TOKENS
    assert not late


async def chunks_of(kind: str, model: edgedec.Model, body: dict[str, Any]) -> list[str]:
    """The chunks of a streamed request for two texts, of TEXTS."""
    parse, prompt = (
        (api.chat, {"messages": [{"role": "user", "content": "x"}]})
        if kind == "chat"
        else (api.completion, {"prompt": "x"})
    )
    request = parse(json.dumps({**prompt, **body, "n": 2, "stream": True}).encode())
    run = Submission(2, lambda run: None)
    texts = [Completion((1,), GenerationConfig())] * 2
    for text, by in zip(TEXTS, DRAFTERS, strict=True):
        for index in (0, 1):
            run.post(TextEvent(index, text, Token(5, by=by)))
    for index in (0, 1):
        run.post(EndEvent(index, "length"))
    found = [chunk async for chunk in TextResponse(run, texts, request, "na\0me", model.tokenizer).chunks()]
    return "".join(found).removesuffix("\n\n").split("\n\n")


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize("usage", [False, True])
def test_a_chunk_of_text_is_the_json_of_its_members(model: edgedec.Model, kind: str, usage: bool) -> None:
    body: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = asyncio.run(chunks_of(kind, model, body))
    chat = kind == "chat"
    opening, ends = (2, 2) if chat else (0, 2)
    pieces = chunks[opening : len(chunks) - ends - 1 - usage]
    said = [(text, by, i) for text, by in zip(TEXTS, DRAFTERS, strict=True) if text for i in (0, 1)]
    assert len(pieces) == len(said)
    head = json.loads(pieces[0].removeprefix("data: "))
    for piece, (text, by, index) in zip(pieces, said, strict=True):
        content = {"delta": {"content": text}} if chat else {"text": text}
        choice = {"index": index, **content, "logprobs": None, "finish_reason": None}
        choice |= {"edgedec": {"by": by}} if by else {}
        whole = {**{name: head[name] for name in ("id", "created", "model", "object")}, "choices": [choice]}
        whole |= {"usage": None} if usage else {}
        assert piece + "\n\n" == answers.sse(whole)
    assert head["model"] == "na\0me"


def test_a_text_that_ended_in_the_queue_says_nothing_of_its_speed() -> None:
    """Who is refused meanwhile is told a time by the speed of the texts that run."""
    ended = list[EndEvent]()
    text = Completion((1,), GenerationConfig(max_tokens=9))
    run = Submission(1, lambda run: None)
    request = GenerationRequest(run, 0, (1,), 1e9, lambda _, event: ended.append(event), completion=text)
    request.end()
    assert request.started
    assert len(ended) == 1
    assert request.progress() is None
