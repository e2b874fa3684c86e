"""Searches under a cache policy: the log-probabilities of their texts are those of the text alone under that policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import edgedec

PROMPT = "She said goodbye and went home. They were all happy."
POLICIES = [
    "streaming:budget=8,every=4",
    "snapkv:budget=8,window=4",
    "h2o:budget=12,every=4,observe=2",
    "quest:budget=16",
]


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


def alone(model: edgedec.Model, cache: str | None, tokens: Sequence[int], ended: bool) -> float:
    """The sum of the log-probabilities of a text's tokens, and of the end, as it grows by one token after the other."""
    session = model.session(cache=cache)
    session.append(model.tokenizer.encode(PROMPT))
    (end,) = model.eos
    return sum(session.score([*map(int, tokens), *([end] if ended else [])]))


@pytest.mark.parametrize("cache", POLICIES)
def test_the_end_counts_as_after_the_text_alone(model: edgedec.Model, cache: str) -> None:
    session = model.session(cache=cache)
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "seed": 3, "logit_bias": {0: 2.0}}
    texts = session.search("best:n=4,by=likelihood", PROMPT, **options).texts
    ended = [text for text in texts if text.finish == "eos"]
    assert max(len(text.tokens) for text in ended) > 20
    for text in texts:
        assert text.value == pytest.approx(alone(model, cache, text.tokens, text.finish == "eos"), abs=1e-3)
    full = [alone(model, None, text.tokens, True) for text in ended]
    if "quest" not in cache:
        assert full != pytest.approx([text.value for text in ended], abs=1e-2), "the policy drops something"


@pytest.mark.parametrize("cache", POLICIES)
def test_beams_are_scored_as_texts_alone(model: edgedec.Model, cache: str) -> None:
    texts = model.session(cache=cache).search("beam:width=3", PROMPT, max_tokens=24, repetition_penalty=1.0).texts
    assert len(texts) == 3
    for text in texts:
        length = len(text.tokens) + (text.finish == "eos")
        total = alone(model, cache, text.tokens, text.finish == "eos")
        assert text.value * length == pytest.approx(total, abs=1e-3)
