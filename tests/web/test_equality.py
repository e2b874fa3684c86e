"""edgedec.js replays what Python generated: the 200 random requests that C and Kotlin replay too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kotlin_golden import CACHES, GOLDEN
from weblibrary import Driver, needs_web

pytestmark = needs_web


@pytest.fixture(scope="module")
def js() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


def for_js(sampling: dict[str, Any]) -> dict[str, Any]:
    """Python's settings in JavaScript's spelling."""
    made = {}
    for name, value in sampling.items():
        first, *rest = name.split("_")
        made[first + "".join(map(str.title, rest))] = str(value) if name == "seed" else value
    return made


def test_javascript_generates_what_python_generates(js: Driver, nano: Path) -> None:
    requests = json.loads(GOLDEN.read_text("utf-8"))["requests"]
    accepted, kinds = 0, set()
    for number, request in enumerate(requests):
        given = {name: request[name] for name in ("ids", "drafts", "then")} | {"options": for_js(request["sampling"])}
        told = js("replay", model={"bundle": str(nano), "kv": request["kv"]}, request=given)
        assert (told["tokens"], told["more"]) == (request["tokens"], request["more"]), number
        accepted += told["accepted"]
        kinds.add((request["kv"], request["drafts"], request["then"]))
    assert len(requests) >= 200
    assert len(kinds) == len(CACHES) * 3 * 4
    assert accepted, "nothing was drafted and right"
