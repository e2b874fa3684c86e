"""Fewer tokens at each of several depths (LazyLLM, K02): what the latest row does not look at goes no further.

Fu et al. 2024. A prompt goes through the stack in stages. After each stage the attention that its last block pays from
the prompt's last rows ranks the tokens, and only the best go on: the share falls in a line from all of them to `keep`
in the last stage. The blocks of a stage hold no key of what never came there, so a step reads less too.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from edgedec.cache import Cache
from edgedec.errors import UsageError
from edgedec.policies import Chunk, PolicyHost
from edgedec.policies._budget import LEAST, Floats, dropped, pooled
from edgedec.policies._eviction import BasePolicy, Looks, checked, held, looks_of
from edgedec.policies._pruned import Stage
from edgedec.runtime import Adapter, Call, Rows

NEEDS = ("attention_sums", "slices", "selections", "hidden")
KINDS = ("attention", "mlp", "moe")
# Its option that is a budget.
BUDGET = "keep"


def make(
    host: PolicyHost, keep: float = 0.3, stages: int = 3, first: float = 0.3, window: int = 8, pool: int = 7
) -> LazyLLM:
    """keep: the share of a prompt's tokens that reaches the last stage; stages: how many times fewer go on; first: the
    share of the layers that see all of them; window, pool: as of snapkv."""
    looks = looks_of("lazyllm", Looks(window=window, pool=pool), Looks(window=1))
    checked("lazyllm", {"stages": (stages, 1, host.spec.n_layers - 1)})
    if not 0 < keep <= 1 or not 0 < first < 1:
        raise UsageError(
            f"--cache lazyllm: keep={keep:g}, first={first:g}: must be above 0, keep up to 1, first below 1"
        )
    return LazyLLM(host, keep, _cuts(host, stages, first), looks)


def _cuts(host: PolicyHost, stages: int, first: float) -> list[int]:
    """Where each stage begins: block numbers, 0 first, the end of the stack last."""
    spec, layers = host.spec, host.spec.n_layers
    at = np.linspace(max(1, round(first * layers)), layers, stages + 1)[:-1].round().astype(int)
    cuts = sorted({min(int(layer), layers - 1) for layer in at})
    return [0, *(spec.span(0, layer)[-1] + 1 for layer in cuts), spec.n_blocks]


class LazyLLM(BasePolicy):
    def __init__(self, host: PolicyHost, keep: float, cuts: Sequence[int], looks: Looks) -> None:
        self.spec, self._keep, self._cuts, self._looks = host.spec, keep, cuts, looks

    def chunk(self, cache: Cache, left: int, most: int) -> Chunk:
        return Chunk(min(left, most))

    def prefill(
        self, cache: Cache, ids: Sequence[int], most: int, adapter: Adapter | None
    ) -> Generator[Call, Any, None]:
        n, spans = len(ids), [range(*pair) for pair in pairwise(self._cuts)]
        shares = np.linspace(1, self._keep, len(spans))
        if n * self._keep < self._looks.window + LEAST or self._keep == 1:
            return  # too short a prompt to leave anything out
        stage = Stage(spans[0], Rows.chain(ids, cache.length), None)
        yield from stage.run(cache, most, self._looks.window, len(spans) > 1, adapter)
        for i, blocks in enumerate(spans[1:], 1):
            scores = self._ranks(stage)
            gone = dropped(scores, int(np.ceil(shares[i] * n)), 1, self._looks.window)
            stage = stage.above(blocks, np.setdiff1d(np.arange(len(scores)), gone))
            yield from stage.run(cache, most, self._looks.window, i + 1 < len(spans), adapter)
        cache.commit(range(n))

    def _ranks(self, stage: Stage) -> Floats:
        """How much the last rows paid to each row of a stage, in its last attention block."""
        assert stage.last is not None
        return pooled(stage.last.attention[max(stage.last.attention)], self._looks.pool)[-len(stage.rows) :]

    def report(self, cache: Cache) -> dict[str, Any]:
        return {"policy": self.words, "lossy": True, "budget": f"{self._keep:.0%} in the last layers", **held(cache)}
