"""Computes fewer prompt tokens at each of several depths; deferred tokens can come back (LazyLLM).

Fu et al. 2024. A prompt goes through the stack in stages. After each stage the attention that its last block pays from
the prompt's last rows ranks the tokens, and only the best go on: the share falls in a line from all of them to `keep`
in the last stage. The blocks of a stage hold no key of what never came there, so a step reads less too.

The states of what stays behind are kept (the auxiliary cache, `_left`). While a text is generated, the last `observe`
rows before every `every`th token rank the tokens again; those among the best that stayed behind a stage are brought
back: they go through its blocks from the state that was kept, each seeing what came before it, and their keys and
values are attached to the cache. So no token goes through a block twice, and none is lost for good.

From the abstract: pruning in prompts and in steps, by the importance for the next token, with tokens that come back.
Ours: the line of shares, and that tokens come back at every `every`th token instead of in each step.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.policies import Chunk, PolicyFacts, PolicyHost, PolicyState, TextSize
from edgedec.policies._admission import whole_peak
from edgedec.policies._budget import LEAST, CacheBudget, Floats, dropped, pooled
from edgedec.policies._eviction import Eviction, Looks, held, looks_of
from edgedec.policies._options import Observe, Pool, Window
from edgedec.policies._parked import Left, restored, runs
from edgedec.policies._pruned import Hidden, Ints, Stage
from edgedec.runtime import PAGE, Adapter, Call, CallResult, Outputs, Rows, View

# Its option that is a budget.
# Rows of which only keys and values are needed attend to almost nothing.
_BLIND = View(recent=0)

FACTS = PolicyFacts(
    ("attention_sums", "slices", "selections", "hidden"),
    kinds=("attention", "mlp", "moe"),
    budget="keep",
    paper="LazyLLM",
)


def make(
    host: PolicyHost,
    keep: Annotated[float, Opt("Share of a prompt's tokens that reaches the last stage.", above=0, high=1)] = 0.3,
    stages: Annotated[int, Opt("Depths at which fewer tokens go on.", 1)] = 3,
    first: Annotated[float, Opt("Share of the layers that all tokens go through.", above=0, below=1)] = 0.3,
    window: Window = 8,
    pool: Pool = 7,
    every: Annotated[int, Opt("Tokens after which tokens come back to a stage; 0: never.", 0, 1 << 20)] = 32,
    observe: Observe = 8,
    back: Annotated[int, Opt("Tokens that come back to a stage at a time.", 1, 64)] = 16,
) -> LazyLLM:
    looks = looks_of("lazyllm", Looks(window, every, observe, pool))
    if stages >= host.spec.n_layers:
        raise UsageError(f"--cache lazyllm: stages={stages}: must be from 1 to {host.spec.n_layers - 1}")
    if every and not host.capabilities.attach:
        raise UsageError(
            f"--cache lazyllm: every={every}: this engine cannot bring tokens back; use native, or every=0"
        )
    return LazyLLM(host, keep, _cuts(host, stages, first), looks, back)


def _cuts(host: PolicyHost, stages: int, first: float) -> list[int]:
    """The first block of each stage, 0 first, and the end of the stack last."""
    spec, layers = host.spec, host.spec.n_layers
    at = np.linspace(max(1, round(first * layers)), layers, stages + 1)[:-1].round().astype(int)
    cuts = sorted({min(int(layer), layers - 1) for layer in at})
    return [0, *(spec.span(0, layer)[-1] + 1 for layer in cuts), spec.n_blocks]


class LazyLLM(Eviction):
    def __init__(self, host: PolicyHost, keep: float, cuts: Sequence[int], looks: Looks, back: int) -> None:
        super().__init__(host, CacheBudget(keep), looks)
        self._keep, self._back, self._views = keep, back, host.capabilities.views
        self._spans = [range(*pair) for pair in pairwise(cuts)]
        self._shares = np.linspace(1, keep, len(self._spans))
        self._attention = [[b for b in blocks if b in self.spec.attention] for blocks in self._spans]
        # By stage: the tokens that were pruned before it.
        self._left: dict[int, Left] = {}

    # ---- a prompt ------------------------------------------------------------------------------

    def chunk(self, cache: Cache, left: int, most: int) -> Chunk:
        return Chunk(min(left, most))

    def prefill(
        self, cache: Cache, ids: Sequence[int], most: int, adapter: Adapter | None
    ) -> Generator[Call, Any, None]:
        n, spans = len(ids), self._spans
        if n * self._keep < self.window + LEAST or self._keep == 1:
            return  # too short a prompt to leave anything out
        stage = Stage(spans[0], Rows.chain(ids, cache.length), None)
        yield from stage.run(cache, most, self.window, len(spans) > 1, adapter)
        for i, blocks in enumerate(spans[1:], 1):
            scores = self._ranks(stage)
            gone = dropped(scores, int(np.ceil(self._shares[i] * n)), 1, self.window)
            self._leave(i, Left.of(stage, gone))
            stage = stage.above(blocks, np.setdiff1d(np.arange(len(scores)), gone))
            yield from stage.run(cache, most, self.window, i + 1 < len(spans), adapter)
        cache.commit(range(n))

    def _ranks(self, stage: Stage) -> Floats:
        """The attention of the last rows to each row of a stage, in its last attention block."""
        assert stage.last is not None
        return pooled(stage.last.attention[max(stage.last.attention)], self.width)[-len(stage.rows) :]

    def _leave(self, stage: int, left: Left) -> None:
        """Store the states of tokens that are pruned before a stage, if they may be restored."""
        if self.every and len(left.positions):
            self._left[stage] = self._left[stage].plus(left) if stage in self._left else left

    def end(self, cache: Cache) -> None:
        pass

    # ---- while a text is generated -------------------------------------------------------------

    def settle(self, cache: Cache) -> None:
        pass

    def _look(self, result: CallResult) -> None:
        wanted = {blocks[-1] for blocks in self._attention[:-1] if blocks}
        super()._look(replace(result, attention={b: result.attention[b] for b in wanted & result.attention.keys()}))

    def work(self, cache: Cache, adapter: Adapter | None) -> Generator[Call, Any, None]:
        """Restore pruned tokens that rank high again, if a decision is due."""
        if not self.every or cache.length % self.every or not self._scores:
            return
        for i in range(1, len(self._spans)):
            wanted = self._wanted(cache, i)
            if wanted is not None:
                yield from self._revive(cache, i, wanted, adapter)
        self.decided()

    def _wanted(self, cache: Cache, stage: int) -> Left | None:
        """The tokens pruned before a stage that are among the best now; None if there are none."""
        below, here, left = self._attention[stage - 1], self._attention[stage], self._left.get(stage)
        if left is None or not below or not here:
            return None
        watched = below[-1]
        scores, at = self.score(cache, watched), cache.positions(watched)
        best = np.argsort(-scores, kind="stable")[: int(np.ceil(self._shares[stage] * cache.length))]
        best = best[scores[best] > 0]
        there = np.isin(at[best], cache.positions(here[0]))
        best = best[~there & np.isin(at[best], left.positions)][: self._back]
        if not len(best):
            return None
        best = best[np.argsort(at[best])]
        chosen = np.concatenate(list(runs(at[best], scores[best])))
        return left.at(at[best][chosen])

    def peak(self, text: TextSize) -> int:
        # Restoring needs a fork: a page in which it continues, and one more.
        return whole_peak(text) + (2 * PAGE if self.every else 0)

    def _revive(self, cache: Cache, stage: int, back: Left, adapter: Adapter | None) -> Generator[Call, Any, None]:
        """Run the stage's blocks on restored tokens, and attach their keys and values."""
        blocks, attention = self._spans[stage], self._attention[stage]
        # The states after each block that is followed by an attention block, and after the last one.
        after = {b: np.empty_like(back.hidden) for b in (*(b - 1 for b in attention if b > blocks[0]), blocks[-1])}
        for part in runs(back.positions, np.ones(len(back.positions), np.float32)):
            # A fork that ends before the first of them, so that later tokens are not visible.
            twin = cache.fork(int(back.positions[part[0]]))
            done = yield Call(_rows(back, part), twin, blocks, back.hidden[part], Outputs(hidden=tuple(after)), adapter)
            for b, states in after.items():
                states[part] = done.result.hidden[b]
        yield from self._attach(cache, back, {b: after.get(b - 1, back.hidden) for b in attention}, adapter)
        if stage + 1 < len(self._spans):
            self._leave(stage + 1, Left(back.positions, back.tokens, after[blocks[-1]]))

    def _attach(
        self, cache: Cache, back: Left, entering: Mapping[int, Hidden], adapter: Adapter | None
    ) -> Generator[Call, Any, None]:
        """Attach their keys and values in the blocks that these states enter."""
        # A cache counts pending rows after all tokens of the text, also in a block that holds fewer: near the end of
        # the capacity they come in parts. A text that is generated leaves room for one row at least.
        most, n = max(cache.capacity - cache.length, 1), len(back.positions)
        for start in range(0, n, most):
            part = np.arange(start, min(start + most, n))
            for b, hidden in entering.items():
                views = {b: _BLIND} if self._views else None
                yield Call(_rows(back, part), cache, (b,), hidden[part], adapter=adapter, views=views)
            cache.attach(len(part))

    # ---- the life of a text --------------------------------------------------------------------

    def reset(self) -> None:
        super().reset()
        self._left = {}

    def fork(self) -> LazyLLM:
        twin = super().fork()
        assert isinstance(twin, LazyLLM)
        twin._left = dict(self._left)
        return twin

    def state(self) -> PolicyState:
        return super().state() | {key: x for i, left in self._left.items() for key, x in left.save(i).items()}

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        left = {name: found for name, found in state.items() if name.startswith("left.")}
        super().restore({name: found for name, found in state.items() if name not in left}, cache)
        self._left = restored(left, len(self._spans), self.spec.hidden_size, cache.length)

    def report(self, cache: Cache) -> dict[str, Any]:
        waiting = sum(left.hidden.nbytes for left in self._left.values())
        facts = {"policy": self.words, "lossy": True, "budget": f"{self._keep:.0%} in the last layers"}
        return {**facts, "waiting_bytes": waiting, **held(cache)}


def _rows(left: Left, chosen: Ints) -> Rows:
    """Some of them as a chain."""
    return Rows(left.tokens[chosen], left.positions[chosen], np.arange(-1, len(chosen) - 1))
