"""What the drafters' tests share: a generation and its traces, what every draft must be, what it was worth."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
from loops import decode

from edgedec.cache import Cache, HostCache
from edgedec.decoding.allocation import Offer, grant_alone
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.messages import Request, Stats
from edgedec.decoding.runner import run_requests
from edgedec.drafters import FAMILY, Draft, Drafter, DrafterContext, Proposal
from edgedec.runtime import Runtime
from edgedec.sampling import Sampling
from edgedec.testing.fakes import tiny_spec

T = TypeVar("T")
PROMPT = [3, 1, 4, 1, 5]
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, seed=5)}


def of_any_bundle() -> list[str]:
    """The drafters that need nothing but the bundle at hand: no file, no draft model, no draft of their own in it. Not
    jacobi, whose drawn drafts keep the distribution but not the tokens of a seed, nor block, which drafts with masks
    (tests/diffusion/test_block_drafter.py)."""
    found = []
    for name in FAMILY.names():
        if (
            name not in ("off", "forced", "jacobi", "block")
            and not FAMILY.facts(name).draft
            and "path" not in FAMILY.options(name)
        ):
            found.append(name)
    return found


def host(runtime: Runtime, heads: dict[str, Any] | None = None) -> DrafterContext:
    bundle: Any = SimpleNamespace(manifest=SimpleNamespace(heads=heads or {}, drafts={}))
    return DrafterContext(runtime, bundle, lambda: pytest.fail("no tokenizer is needed"))


def run(
    runtime: Runtime, drafter: Drafter, prompt: Sequence[int] = PROMPT, capacity: int = 512, **config: Any
) -> tuple[list[int], Context, Stats, list[StepTrace]]:
    """A text of its own, as a session would begin it."""
    context = Context(list(prompt), len(prompt), runtime.new_cache(capacity), None, np.random.default_rng(7))
    stats, trace = Stats(), list[StepTrace]()
    drafter.reset()
    found = decode(runtime, context, GenerationConfig(**{"max_tokens": 40} | config), drafter, stats, trace)
    return [int(token) for token in found], context, stats, trace


def draft_of(runtime: Runtime, proposal: Proposal) -> Draft:
    """The draft of a proposal, its calls run one at a time."""
    return proposal if isinstance(proposal, Draft) else finish(runtime, proposal)


def settled(proposal: Proposal) -> Generator[Request | Offer, Any, Draft]:
    """The draft of a proposal, for a drafter that wraps another."""
    return proposal if isinstance(proposal, Draft) else (yield from proposal)


def finish(runtime: Runtime, generator: Generator[Request | Offer, Any, T]) -> T:
    """What a generator of calls returns."""
    done: Any = None
    while True:
        try:
            request = next(generator) if done is None else generator.send(done)
        except StopIteration as end:
            value: T = end.value
            return value
        if isinstance(request, Offer):
            done = grant_alone(request, runtime.capabilities)
        else:
            (done,) = run_requests(runtime, [request])


def left(context: Context) -> tuple[Any, ...]:
    """What a generation leaves: its tokens, its cache, the state of its random numbers."""
    return context.ids, saved(context.cache), str(context.rng.bit_generator.state)


def saved(cache: Cache) -> dict[str, bytes]:
    """The committed content of a cache, to compare."""
    return {name: array.tobytes() for name, array in cache.save().items()}


def reading(ids: list[int]) -> Context:
    """For a drafter that reads tokens only."""
    return Context(ids, len(ids), HostCache(tiny_spec(), 4, "f32"))


def paths(draft: Draft) -> list[float]:
    """How likely each token's whole path is."""
    found: list[float] = []
    for parent, p in zip(draft.parents, draft.p, strict=True):
        found.append(p * (found[parent] if parent >= 0 else 1.0))
    return found


def check(draft: Draft, nodes: int, min_path_prob: float, vocab: int | None = None) -> None:
    """At most so many tokens, a tree, no twins, honest numbers, nothing below the min_path_prob."""
    assert len(draft.tokens) == len(draft.parents) == len(draft.p) <= nodes
    for i, (token, parent, p) in enumerate(zip(draft.tokens, draft.parents, draft.p, strict=True)):
        assert -1 <= parent < i
        assert isinstance(token, int)
        assert vocab is None or 0 <= token < vocab
        assert 0 < p < 1
    assert min(paths(draft), default=1.0) >= min_path_prob - 1e-12
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
    """Tokens per call if the target says `output` after `prompt`."""
    ids, calls, at = list(prompt), 0, 0
    text = reading(ids)
    while at < len(output):
        draft = drafter.propose(text, nodes, 0.0)
        assert isinstance(draft, Draft)
        check(draft, nodes, 0.0)
        n = min(accepted(draft, output[at:]) + 1, len(output) - at)
        ids += output[at : at + n]
        at, calls = at + n, calls + 1
    return len(output) / calls
