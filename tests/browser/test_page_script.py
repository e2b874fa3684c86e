"""The chat page's script before a real server, without a browser: node runs it on jsdom's elements."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import metrics, started, wait_for

for package in ("starlette", "uvicorn"):
    pytest.importorskip(package, reason=f"`edgedec serve` needs {package}")
HERE = Path(__file__).parent
NODE = shutil.which("node")
PAGES = sorted((HERE.parents[1] / "edgedec").rglob("*.html"))
needs_node = pytest.mark.skipif(NODE is None, reason="no node here")
needs_jsdom = pytest.mark.skipif(
    NODE is None or not (HERE / "node_modules" / "jsdom").is_dir(), reason="no node or no jsdom: npm install in tests/browser"
)


@needs_node
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_of_pages_parse(page: Path, tmp_path: Path) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", page.read_text("utf-8"), re.S)
    assert scripts
    for i, script in enumerate(scripts):
        path = tmp_path / f"{i}.js"
        path.write_text(script, "utf-8")
        done = subprocess.run([NODE, "--check", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def seen(place: str, act: str) -> dict[str, Any]:
    done = subprocess.run([str(NODE), HERE / "chat.mjs", f"{place}/", act], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["complaints"] == []
    return found


@pytest.fixture(scope="module")
def quick(nano: Path) -> Iterator[str]:
    with started(nano, "--slots", "1", "--spec", "copy:fixed=6+recycling") as (place, _):
        yield place


def said(place: str, *turns: str) -> str:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    body = {"model": "nano", "messages": messages, "temperature": 0, "max_tokens": 40}
    request = urllib.request.Request(
        f"{place}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


@needs_jsdom
def test_a_conversation_is_the_servers_and_outlives_a_reload(quick: str) -> None:
    before = metrics(quick)["edgedec_accepted_tokens_total"]
    found = seen(quick, "talk")
    first, second = found["users"]
    assert found["title"] == "nano · edgedec"
    assert second.startswith("<img") and found["markup"] == 0, "text stays text"
    accepted = metrics(quick)["edgedec_accepted_tokens_total"] - before
    assert found["answers"][0] == said(quick, first)
    assert found["answers"][1] == said(quick, first, found["answers"][0], second)
    assert found["marks"] == accepted > 0, "each accepted guess is marked"
    counts = {name: int(n) for name, n in found["counts"]}
    assert counts.pop("the model itself") > 0 and sum(counts.values()) == accepted
    assert all(re.match(r"[\d,.]+ tokens/s · ", line) for line in found["figures"])
    assert found["again"]["users"] == found["users"] and found["again"]["answers"] == found["answers"]


@needs_jsdom
def test_openings_begin_a_story(quick: str) -> None:
    found = seen(quick, "openings")
    assert len(found["before"]) == 3
    assert found["users"] == found["before"][:1]
    assert len(found["answers"][0]) > 20


@needs_jsdom
def test_storage_that_is_anybodys_breaks_nothing(quick: str) -> None:
    assert seen(quick, "damaged")["users"] == ["kept"]


@needs_jsdom
def test_stopping_frees_the_slot(nano: Path) -> None:
    with started(nano, "--slots", "1", "--engine", "reference", "--spec", "off") as (place, _):
        found = seen(place, "stop")
        assert found["answers"][0]
        assert found["figures"][0].endswith("stopped")
        cancelled = 'edgedec_texts_total{reason="cancelled"}'
        wait_for(lambda: metrics(place).get(cancelled) == 1)


@needs_jsdom
def test_a_key_is_asked_for(nano: Path) -> None:
    with started(nano, "--slots", "1", "--api-key", "secret") as (place, _):
        found = seen(place, "locked")
        assert found["before"]["asks"] and "API key" in found["before"]["notice"]
        assert found["notice"] == "" and len(found["answers"][0]) > 20
