"""What tests of fusion share: planted laws, texts generated with a companion, and the same ones without any cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from loops import decode
from numpy.typing import NDArray

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats
from edgedec.drafters import Drafter
from edgedec.drafters.off import Off
from edgedec.fusion._companion import Companion
from edgedec.fusion._source import Source
from edgedec.runtime import Call, Outputs, Rows, forward_one
from edgedec.sampling import Probs, Sampling, draw
from edgedec.testing.fakes import FakeRuntime, Limited

PROMPT, OTHER = [3, 1, 4, 1, 5], (2, 7, 1, 8)
INF = float("inf")
Floats = NDArray[Any]


class Marked:
    """An adapter for `FakeRuntime`: other weights by another digest."""

    digest = "other weights"


def law(on: FakeRuntime, ids: Sequence[int], adapter: Any = None) -> Floats:
    """The logits after a text, read anew."""
    call = Call(Rows.chain(list(ids), 0), on.new_cache(128), outputs=Outputs(logits=True), adapter=adapter)
    found = forward_one(on, call).logits
    assert found is not None
    return found[-1]


def logp(logits: Floats, temperature: float = 1.0) -> Floats:
    x = logits.astype(np.float64) / temperature
    return x - np.log(np.exp(x - x.max()).sum()) - x.max()


def companion(source: Source) -> Companion:
    return Companion(source, "fuse test")


def run(
    on: FakeRuntime,
    processors: Any,
    drafter: Drafter | None = None,
    sampling: Sampling | None = None,
    seed: int = 7,
    stats: Stats | None = None,
    n: int = 24,
    nodes: int = 6,
    prompt: Sequence[int] = PROMPT,
    **config: Any,
) -> list[int]:
    """The tokens of a text."""
    context = Context(list(prompt), len(prompt), on.new_cache(128), None, np.random.default_rng(seed))
    made = GenerationConfig(sampling=sampling or Sampling(), processors=tuple(processors), max_tokens=n, **config)
    return [int(token) for token in decode(on, context, made, Limited(drafter or Off(), nodes), stats)]


def naive(law_after: Callable[[list[int]], Probs], greedy: bool, seed: int = 7, n: int = 24) -> list[int]:
    """The same text, drawn from a distribution by the tokens generated so far."""
    rng, new = np.random.default_rng(seed), list[int]()
    for _ in range(n):
        found = law_after(new)
        new.append(int(found.ids[np.argmax(found.p)]) if greedy else draw(found, rng))
    return new
