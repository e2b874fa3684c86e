"""What the drafters' tests share: a generation and its traces, what every draft must be, what it was worth."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.cache.host import Cache
from edgedec.decoding.context import Context
from edgedec.decoding.loop import Ask, Stats, Turn, decode
from edgedec.drafters import Draft, Drafter, Host
from edgedec.runtime.core import Runtime
from edgedec.sampling import Sampling
from edgedec.testing.fakes import tiny_spec

PROMPT = [3, 1, 4, 1, 5]
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, seed=5)}


def host(runtime: Runtime, heads: dict[str, Any] | None = None) -> Host:
    bundle: Any = SimpleNamespace(manifest=SimpleNamespace(heads=heads or {}))
    return Host(runtime, bundle, lambda: pytest.fail("no tokenizer is needed"))


def run(
    runtime: Runtime, drafter: Drafter, prompt: Sequence[int] = PROMPT, capacity: int = 512, **ask: Any
) -> tuple[list[int], Context, Stats, list[Turn]]:
    """A text of its own, as a session would begin it."""
    context = Context(list(prompt), len(prompt), runtime.new_cache(capacity), None, np.random.default_rng(7))
    stats, trace = Stats(), list[Turn]()
    drafter.reset()
    found = decode(runtime, context, Ask(**{"max_tokens": 40} | ask), drafter, None, stats, trace)
    return [int(token) for token in found], context, stats, trace


def left(context: Context) -> tuple[Any, ...]:
    """What a generation leaves behind: its tokens, its cache, its dice."""
    return context.ids, context.cache.save().tobytes(), str(context.rng.bit_generator.state)


def reading(ids: list[int]) -> Context:
    """For a drafter that reads tokens only."""
    return Context(ids, len(ids), Cache(tiny_spec(), 4, "f32"))


def paths(draft: Draft) -> list[float]:
    """How likely each token's whole path is."""
    found: list[float] = []
    for parent, p in zip(draft.parents, draft.p, strict=True):
        found.append(p * (found[parent] if parent >= 0 else 1.0))
    return found


def check(draft: Draft, nodes: int, floor: float, vocab: int | None = None) -> None:
    """At most so many tokens, a tree, no twins, honest numbers, nothing below the floor."""
    assert len(draft.tokens) == len(draft.parents) == len(draft.p) <= nodes
    for i, (token, parent, p) in enumerate(zip(draft.tokens, draft.parents, draft.p, strict=True)):
        assert -1 <= parent < i
        assert isinstance(token, int)
        assert vocab is None or 0 <= token < vocab
        assert 0 < p < 1
    assert min(paths(draft), default=1.0) >= floor - 1e-12
    assert len(set(zip(draft.parents, draft.tokens, strict=True))) == len(draft.tokens)
    for parent in set(draft.parents):
        assert sum(p for p, above in zip(draft.p, draft.parents, strict=True) if above == parent) <= 1 + 1e-9


def accepted(draft: Draft, coming: Sequence[int]) -> int:
    """How many tokens of a draft come true."""
    children = {key: i for i, key in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    at = -1
    for n, token in enumerate(coming):
        if (at := children.get((at, token), -1)) < 0:
            return n
    return len(coming)


def replay(drafter: Drafter, prompt: list[int], output: list[int], nodes: int = 15) -> float:
    """Tokens per call if the target says `output` behind `prompt`."""
    ids, calls, at = list(prompt), 0, 0
    text = reading(ids)
    while at < len(output):
        draft = drafter.propose(text, nodes, 0.0)
        check(draft, nodes, 0.0)
        n = min(accepted(draft, output[at:]) + 1, len(output) - at)
        ids += output[at : at + n]
        at, calls = at + n, calls + 1
    return len(output) / calls
