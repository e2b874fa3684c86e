"""The table of limits in docs/serve.md: at a limit a request is accepted, above it refused by the parameter's name."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgedec

for package in ("starlette", "uvicorn", "httpx", "llguidance"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
from serving import fetch, serving, wait_for  # noqa: E402

from edgedec.cli._serve_flags import LimitFlags  # noqa: E402
from edgedec.constraints.matcher import DEEPEST, LARGEST_TEXT, MOST_REFERENCES  # noqa: E402
from edgedec.server import api, bodies, fields, tools  # noqa: E402
from edgedec.server.errors import APIError  # noqa: E402
from edgedec.server.limits import ConnectionLimits, ServerLimits, most_body  # noqa: E402
from hostile.inputs import nested  # noqa: E402

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8")
TALK: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
FUNCTION = {"type": "function", "function": {"name": "f"}}


def functions(n: int) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"f{i}"}} for i in range(n)]


def bias(n: int) -> dict[str, int]:
    return {str(i): 1 for i in range(n)}


# (endpoint, the body at n, the limit): the parameter is the body's first member.
LIMITS: dict[str, tuple[Any, Any, int]] = {
    "prompt": (api.completion, lambda n: {"prompt": ["a"] * n}, 128),
    "input": (api.embedding, lambda n: {"input": ["a"] * n}, 2048),
    "messages": (api.chat, lambda n: {"messages": [{"role": "user", "content": ""}] * n}, 10_000),
    "n": (api.completion, lambda n: {"n": n, "prompt": "a"}, 128),
    "best_of": (api.completion, lambda n: {"best_of": n, "prompt": "a"}, 128),
    "logprobs": (api.completion, lambda n: {"logprobs": n, "prompt": "a"}, 20),
    "top_logprobs": (api.chat, lambda n: {"top_logprobs": n, "logprobs": True, **TALK}, 20),
    "logit_bias": (api.completion, lambda n: {"logit_bias": bias(n), "prompt": "a"}, 1024),
    "stop_tokens": (api.completion, lambda n: {"stop_tokens": list(range(n)), "prompt": "a"}, 1024),
    "stop": (api.completion, lambda n: {"stop": ["x" * 1000] * n, "prompt": "a"}, 16),
    "stop[0]": (api.completion, lambda n: {"stop": ["x" * n], "prompt": "a"}, 1000),
    "tools": (api.chat, lambda n: {"tools": functions(n), **TALK}, 128),
    "tools[0].function.name": (
        api.chat,
        lambda n: {"tools": [{"type": "function", "function": {"name": "f" * n}}], **TALK},
        64,
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_each_limit_is_refused_by_name(name: str) -> None:
    parse, body, limit = LIMITS[name]
    parse(json.dumps(body(limit)).encode())
    with pytest.raises(APIError) as error:
        parse(json.dumps(body(limit + 1)).encode())
    assert error.value.status == 400
    assert (error.value.param or "").startswith(name.partition("[")[0])
    assert str(limit) in error.value.message


def rows() -> dict[str, str]:
    """The table of the page."""
    table = PAGE.partition("### Limits of a request")[2].partition("### ")[0]
    return dict(re.findall(r"^\| (.*?) \| (.*) \|$", table, re.MULTILINE))


def test_the_page_has_each_limit() -> None:
    found = rows()
    for name, (_, _, limit) in LIMITS.items():
        text = next(value for key, value in found.items() if f"`{name.partition('[')[0]}`" in key or f"`{name}`" in key)
        assert f"{limit:,}" in text, name
    shapes = found["schemas, patterns, grammars"]
    assert all(f"{limit:,}" in shapes for limit in (LARGEST_TEXT, DEEPEST, MOST_REFERENCES))
    assert f"{tools.MOST_CALLS} calls" in found["`tools`"]
    assert f"{bodies.MOST_DEPTH} levels" in found["body"]
    assert fields.MOST_CHOICES == 128


@pytest.fixture(scope="module")
def place(nano: Path) -> Iterator[str]:
    with serving(edgedec.open(nano, threads=1), slots=4, queue=12) as (found, _):
        yield found


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"n": 17}, "n"),
        ({"best_of": 17}, "n"),
        ({"prompt": ["a"] * 17}, "n"),
        ({"json_schema": json.loads(nested(201))}, "json_schema"),
        ({"regex": "a" * (LARGEST_TEXT + 1)}, "regex"),
        ({"grammar": "start: " + "(" * 300 + '"a"' + ")" * 300}, "grammar"),
        ({"logit_bias": {"5000": 1}}, "logit_bias"),
        ({"stop_tokens": [5000]}, "stop_tokens"),
        ({"prompt": "a " * 2000}, "prompt"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_the_model_cannot_hold_is_refused_by_name(place: str, body: Any, name: str) -> None:
    """201 levels of a schema are more than 100 of a body's JSON."""
    answer = httpx.post(f"{place}/v1/completions", json={"prompt": "Once", **body}, timeout=60)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == name or (name == "json_schema" and error["code"] == "invalid_json"), error


def test_a_decoder_embeds_as_many_texts_as_a_request_has_prompts(place: str) -> None:
    answer = httpx.post(f"{place}/v1/embeddings", json={"input": ["a"] * 129}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
    assert "129 texts, at most 128" in answer.json()["error"]["message"]


def test_all_limits_at_once_are_served_beside_others(place: str) -> None:
    """As many texts as there are places, each with all that it may have."""
    most: dict[str, Any] = {
        "prompt": "Once",
        "n": 16,
        "logprobs": 20,
        "logit_bias": {str(i): 0.1 for i in range(1024)},
        "stop": ["x" * 999 + chr(65 + i) for i in range(16)],
        "stop_tokens": list(range(3000, 4024)),
        "json_schema": json.loads(nested(30)),
        "max_tokens": 40,
        "seed": 1,
    }
    found: list[Any] = []
    ask = threading.Thread(
        target=lambda: found.append(httpx.post(f"{place}/v1/completions", json=most, timeout=120)), daemon=True
    )
    ask.start()
    wait_for(lambda: sum(json.loads(fetch(f"{place}/health"))[name] for name in ("running", "waiting")) > 4)
    for _ in range(3):
        other = httpx.post(f"{place}/v1/completions", json={"prompt": "A dog", "max_tokens": 4}, timeout=60)
        assert other.status_code == 200
    ask.join(120)
    (answer,) = found
    assert answer.status_code == 200, answer.text[:300]
    choices = answer.json()["choices"]
    assert len(choices) == 16
    assert {choice["text"][:1] for choice in choices} <= {"{", ""}, "a stop token may end it"


def test_defaults_of_time_and_of_bodies_are_those_of_the_page() -> None:
    """Of the classes as of the command."""

    def default(option: str) -> str:
        row = next(line for line in PAGE.splitlines() if line.startswith("| `--") and f"`{option}" in line)
        return row.split("|")[2].strip()

    flags = LimitFlags()
    assert flags.connections == ConnectionLimits()
    times = ConnectionLimits().header, ConnectionLimits().body, ConnectionLimits().idle
    assert default("--header-timeout") == ", ".join(f"{seconds:g}" for seconds in times)
    assert default("--timeout") == f"{ServerLimits().seconds:g}" == f"{flags.timeout:g}"
    assert default("--queue") == str(ServerLimits().queue) == str(flags.queue)
    assert default("--max-body") == "1 MiB and 32 bytes for each token of the context"
    assert [most_body(context) for context in (0, 1, 1000)] == [1 << 20, (1 << 20) + 32, (1 << 20) + 32_000]
