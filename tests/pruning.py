"""What tests of cache policies share: policies that evict, texts, what two sessions hold."""

from __future__ import annotations

from typing import Any

import numpy as np

import edgedec
from edgedec.runtime import Runtime, forward_one

# Each keeps a fifth of the tokens, and decides again while generating.
EVICTING = [
    "streaming:budget=0.2,every=32",
    *(f"{name}:budget=0.2,every=32,observe=5" for name in ("h2o", "snapkv", "pyramidkv", "prefixkv", "fastkv", "d2o")),
    *(f"{name}:budget=0.2,every=32,observe=5,heads=apart" for name in ("h2o", "snapkv")),
    "lazyllm:keep=0.2,every=32,observe=5",
]
# Drafts that are always made, right or wrong.
DRAFTS = "copy:fixed=5+recycling:fixed=5"


def generate(
    model: edgedec.Model, ids: list[int], words: str, n: int = 90, speculate: str = "off"
) -> tuple[list[int], edgedec.Session]:
    session = model.session(speculate=speculate, cache=words)
    return [int(token) for token in session.tokens(ids, max_tokens=n, ignore_eos=True)], session


def same(one: edgedec.Session, other: edgedec.Session) -> bool:
    """Do both hold the same bytes, and do their policies know the same?"""
    caches = [session._context.cache.save() for session in (one, other)]
    known = [policy.state() for session in (one, other) if (policy := session._context.policy) is not None]
    return all(equal(pair) for pair in (caches, known or [{}, {}]))


def equal(pair: list[dict[str, Any]]) -> bool:
    return pair[0].keys() == pair[1].keys() and all(np.array_equal(pair[0][k], pair[1][k]) for k in pair[0])


def repeating(model: edgedec.Model, n: int) -> list[int]:
    """A text that repeats itself, so that drafts come true."""
    said = "One day, Lily saw a big red ball in the park. She ran to the ball and kicked it. "
    return model.tokenizer.encode("Once upon a time there was a girl. " + said * 13)[:n]


def run_calls(runtime: Runtime, calls: Any) -> None:
    """Run the calls that a generator yields, one by one."""
    done = None
    try:
        while True:
            done = type("Done", (), {"result": forward_one(runtime, calls.send(done))})
    except StopIteration:
        return
