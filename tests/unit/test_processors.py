"""The family of logits processors: contrast between layers against a naive one, and words in every door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode
from edgedec.decoding.messages import Stats
from edgedec.drafters import BaseDrafter, Draft, Drafter
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.processors.dola import LayerContrast
from edgedec.runtime import Call, Outputs, Rows, Runtime, forward_one
from edgedec.sampling import Sampling, draw, probs
from edgedec.testing.fakes import Limited, PerfectDrafter, RandomDrafter, random_reference

PROMPT = [3, 1, 4, 1, 5]
INF = float("inf")


def run(
    on: Runtime, drafter: Drafter | None = None, seed: int = 7, stats: Stats | None = None, **config: Any
) -> list[int]:
    context = Context(list(PROMPT), len(PROMPT), on.new_cache(64), None, np.random.default_rng(seed))
    options = {"max_tokens": 20} | config
    found = decode(on, context, GenerationConfig(**options), Limited(drafter or Off(), 6), stats)
    return [int(token) for token in found]


def naive_contrast(on: Runtime, ids: list[int], early: Sequence[int], share: float) -> np.ndarray:
    """Written from the paper: candidates, the early layer farthest away, the difference."""

    def softmax(logits: np.ndarray) -> np.ndarray:
        e = np.exp(logits.astype(np.float64) - logits.max())
        return e / e.sum()

    last_block = on.spec.n_blocks - 1
    cache = on.new_cache(64)
    outputs = Outputs(hidden=(*early, last_block))
    states = forward_one(on, Call(Rows.chain(ids, 0), cache, outputs=outputs)).hidden
    p = {b: softmax(on.head(states[b][-1:])[0]) for b in (*early, last_block)}
    last = p[last_block]

    def divergence(q: np.ndarray) -> float:
        middle = (last + q) / 2
        return float((last * np.log(last / middle)).sum() / 2 + (q * np.log(q / middle)).sum() / 2)

    farthest = max(early, key=lambda b: divergence(p[b]))
    scores = np.full(len(last), -INF)
    likely = last >= share * last.max()
    scores[likely] = np.log(last[likely]) - np.log(p[farthest][likely])
    return scores.astype(np.float32)


@pytest.mark.parametrize("early", [(1,), (0, 3)])
def test_layer_contrast_is_the_naive_one(early: tuple[int, ...]) -> None:
    on, chosen = random_reference(), []
    for sampling in (Sampling(), Sampling(temperature=1.5)):
        rng, ids = np.random.default_rng(7), list(PROMPT)
        for _ in range(12):
            scores = naive_contrast(on, ids, early, 0.1)
            ids.append(draw(probs(scores, sampling, ids, len(PROMPT)), rng))
        wanted = ids[len(PROMPT) :]
        config = {"sampling": sampling, "max_tokens": 12, "processors": (LayerContrast(early),)}
        assert run(on, **config) == wanted
        for drafter in (PerfectDrafter(ids, 1), RandomDrafter(2)):
            stats = Stats()
            assert run(on, drafter, stats=stats, **config) == wanted
            assert stats.proposed
        chosen.append(wanted)
        assert wanted != run(on, sampling=sampling, max_tokens=12)
    assert chosen[0] != chosen[1]


class Resumed(BaseDrafter):
    """Runs the first block itself, as an early-exit drafter does, and gives the state that enters the second."""

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Any:
        ids, n = context.ids, min(nodes, 2)
        rows = Rows.chain([*ids[context.cache.length :], *[7, 8][:n]], context.cache.length)
        done = yield Call(rows, context.cache, (0,), outputs=Outputs(hidden=(0,)))
        blocks = range(1, context.cache.spec.n_blocks)
        return Draft((7, 8)[:n], (-1, 0)[:n], blocks=blocks, hidden=done.result.hidden[0])


def test_early_logits_of_blocks_that_a_draft_has_been_through() -> None:
    config: dict[str, Any] = {"processors": (LayerContrast((0,)),), "max_tokens": 10}
    stats = Stats()
    assert run(random_reference(), Resumed(), stats=stats, **config) == run(random_reference(), **config)
    assert stats.proposed


def test_the_worked_example() -> None:
    def logits(*p: float) -> np.ndarray:
        return np.log(np.array(p)).astype(np.float32)

    found = LayerContrast((0,), 0.3).process(logits(0.5, 0.4, 0.1), [], {0: logits(0.5, 0.1, 0.4)})
    assert found[:2].tolist() == pytest.approx([0.0, np.log(4)], abs=1e-6)
    assert found[2] == -INF


@pytest.mark.parametrize(("early", "share"), [((), 0.1), ((1,), 0.0), ((1,), 1.5)])
def test_a_contrast_without_layers_or_share_is_refused(early: tuple[int, ...], share: float) -> None:
    with pytest.raises(UsageError, match="layer contrast"):
        LayerContrast(early, share)
