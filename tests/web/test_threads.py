"""Threads of the engine in JavaScript: the bytes of one thread, and work that they share."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from weblibrary import Driver, Failed, for_js, needs_web, options_of

import edgedec
from edgedec.errors import ContextFull

pytestmark = needs_web
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "nano_native.json").read_text("utf-8"))
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def js() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


@pytest.mark.parametrize(("threads", "kv"), [(2, "f32"), (3, "int8"), (5, "int4"), (1, "f16")])
def test_the_engines_bytes(js: Driver, nano: Path, threads: int, kv: str) -> None:
    model = {"bundle": str(nano), "kv": kv, "threads": threads}
    assert js("about", model=model)["threads"] == threads
    assert js("golden", model=model, prompt=PROMPT, n=30) == GOLDEN[kv]


def test_random_requests_are_pythons(js: Driver, nano: Path) -> None:
    python, drafted = edgedec.open(nano, engine="native"), 0
    for seed in range(12):
        r = random.Random(f"threads {seed}")
        vocab = python.spec.vocab_size
        prompt = [r.randrange(vocab) for _ in range(r.choice([1, 20, 39]))]
        options = options_of(r, vocab)
        try:
            want = [int(token) for token in python.session(speculate="off").tokens(prompt, **options)]
        except ContextFull:
            continue
        given = {"model": {"bundle": str(nano), "threads": 3}, "session": {"speculate": "copy+recycling", "draft": 6}}
        got = js("generate", **given, prompt=prompt, options=for_js(options))
        assert got["ids"] == want
        drafted += got["drafted"]
    assert drafted


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_they_share_the_work(js: Driver, nano: Path) -> None:
    prompt = edgedec.open(nano).tokenizer.encode(PROMPT) * 60
    found = js("worked", model={"bundle": str(nano), "threads": 3}, prompt=prompt, times=8)
    assert found["threads"] == 3
    assert found["worked"] >= 3


def test_a_closed_model_ends_its_threads(js: Driver, nano: Path) -> None:
    assert js("closed", model={"bundle": str(nano), "threads": 3}, prompt=PROMPT) == "unavailable"


@pytest.mark.parametrize("threads", [-1, 1.5, 65, "two"])
def test_no_such_number_of_threads(js: Driver, nano: Path, threads: object) -> None:
    with pytest.raises(Failed) as caught:
        js("about", model={"bundle": str(nano), "threads": threads})
    assert caught.value.code == "usage"
