"""Draft by leaving the target early: its first layers, then its head. Nothing is computed twice.

Kangaroo (S11), double early exit: token after token through the first layers only, until the exit is not sure
enough. Verification continues with the other layers: hidden states and cache of the first are what they would have
been.

DEL (S12): the exit and the length of the draft follow from how often the exits were right of late, with exponential
decay. The exit in use is judged by every call. Now and then a round drafts nothing and compares all exits instead;
their states are handed to verification too, so that this costs one call of the head.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.step import Completed, Request, StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, Proposal, State
from edgedec.drafters._calls import EdgeCalls
from edgedec.drafters._stack import (
    READING,
    TOP,
    Adapter,
    Guess,
    Limits,
    Record,
    Slice,
    block_costs,
    confidence,
    draft_chain,
    judged,
    payoff,
    require_slices,
)
from edgedec.errors import UsageError
from edgedec.runtime import Call, Outputs, Rows
from edgedec.speculation.heads import HeadInterface, open_head

HEAD = HeadInterface("exit", inputs=("hidden",), outputs=("hidden_out",))
# So many exits at most are compared; rounds that do so: the first, and later one in so many.
_EXITS, _FIRST, _EVERY = 8, 8, 24
# The choice is made anew after so many rounds.
_AGAIN = 8


def make(host: DrafterContext, layer: int = 0, gamma: int = 6, threshold: float = 0.4) -> Exit:
    """layer: leave after so many layers, 0: where it pays best; gamma: the longest draft; threshold: the least
    confidence to draft a token with."""
    require_slices("exit", host)
    n = host.runtime.spec.n_layers
    if not 0 <= layer < n:
        raise UsageError(f"drafter exit: layer={layer}: must be from 1 to {n - 1}, or 0 for the best")
    if gamma < 1 or not 0 <= threshold <= 1:
        raise UsageError(f"drafter exit: gamma={gamma}, threshold={threshold}: need 1 or more, and from 0 to 1")
    return Exit(host, layer, gamma, threshold)


class Exit(BaseDrafter):
    def __init__(self, host: DrafterContext, layer: int, gamma: int, threshold: float) -> None:
        self._gamma, self._threshold, self._edge = gamma, threshold, EdgeCalls(host.runtime)
        self._spec = spec = host.runtime.spec
        self._layers = [layer] if layer else _exits(spec.n_layers, _adapted_layer(host))
        self._adapt = {i: _adapter(host, i) for i in self._layers}
        blocks, head = block_costs(spec)
        self._costs = [sum(blocks[: spec.span(0, i).stop]) + head for i in self._layers]
        self._records = [Record() for _ in self._layers]
        self._chosen, self._length, self._fixed = 0, gamma, layer > 0
        self._rounds = 0
        self._guessed: list[Guess] = []
        self._compared: list[Guess] = []

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        self._guessed, self._compared = [], []
        pending = len(context.ids) - context.cache.length
        if nodes < 1 or pending > READING or not self._layers:
            return Draft()
        if not self._fixed and self._plan(min_path_prob):
            return self._compare(context)
        return self._draft(context, nodes, min_path_prob) if self._length else Draft()

    def _draft(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        layer = self._layers[self._chosen]
        least, trust = max(min_path_prob, self._costs[self._chosen]), self._records[self._chosen].trust
        limits = Limits(min(self._length, nodes), least, self._threshold, trust)
        part = Slice(self._spec.span(0, layer), adapt=self._adapt[layer])
        draft, self._guessed = yield from draft_chain(context, part, limits, self._edge, self._spec.n_blocks)
        return draft

    def observe(self, step: StepResult) -> None:
        for hit, sure in judged(self._guessed, step.picked):
            self._records[self._chosen].add(hit, sure)
        for record, (guess, sure) in zip(self._records, self._compared, strict=False):
            record.add(guess == step.picked[0], sure)
        self._guessed, self._compared = [], []

    def reset(self) -> None:
        self._guessed, self._compared = [], []

    def state(self) -> State:
        if not any(record.tested for record in self._records):
            return {}
        seen = [[record.right, record.tested, record.claimed] for record in self._records]
        return {"layers": np.array(self._layers, np.int64), "seen": np.array(seen)}

    def restore(self, state: State) -> None:
        if not state:
            return
        layers, seen = state.get("layers"), state.get("seen")
        if layers is None or seen is None or layers.tolist() != self._layers or seen.shape != (len(layers), 3):
            raise UsageError(f"drafter exit: the state kept is not of exits {self._layers}; delete it")
        right, tested, claimed = seen.T
        if not bool(
            np.all((right >= 0) & (right <= tested) & (claimed >= 0) & (claimed <= tested) & (tested < np.inf))
        ):
            raise UsageError("drafter exit: the state kept counts what cannot be; delete it")
        self._records = [Record(*row) for row in seen.tolist()]
        # The rates are known: no first comparisons, and the choice is made now.
        self._rounds = _FIRST

    def report(self) -> dict[str, Any]:
        rates = {str(layer): round(record.rate, 3) for layer, record in zip(self._layers, self._records, strict=True)}
        return {"layer": self._layers[self._chosen] if self._layers else 0, "length": self._length, "rates": rates}

    def _plan(self, min_path_prob: float) -> bool:
        """Choose anew if it is time for that; True if this round only compares exits."""
        self._rounds += 1
        if self._rounds <= _FIRST:
            return True
        if self._rounds % _AGAIN == _FIRST % _AGAIN + 1:
            self._choose(min_path_prob)
        return self._rounds % _EVERY == 0

    def _choose(self, min_path_prob: float) -> None:
        """The exit and length that bring the most tokens for the time of a plain call; no length if none does."""
        offers = [
            (*payoff(self._records[i].rate, cost + min_path_prob, self._gamma), i) for i, cost in enumerate(self._costs)
        ]
        value, length, self._chosen = max(offers)
        self._length = length if value > 1.0 else 0

    def _compare(self, context: Context) -> Generator[Request, Completed, Draft]:
        """All exits guess what follows the last known token; nothing is drafted."""
        ends = [self._spec.span(0, layer).stop for layer in self._layers]
        rows = Rows.chain(context.pending(), context.cache.length)
        outputs = Outputs(hidden=tuple(end - 1 for end in ends))
        call = Call(rows, context.cache, range(ends[-1]), None, outputs, context.adapter)
        found = (yield call).result.hidden
        states = []
        for layer, end in zip(self._layers, ends, strict=True):
            adapt, last = self._adapt[layer], found[end - 1][-1:]
            states.append(adapt(last) if adapt else last)
        best = yield from self._edge.best(np.concatenate(states), TOP)
        assert best.ids is not None
        assert best.scores is not None
        self._compared = [
            (int(ids[0]), confidence(scores)) for ids, scores in zip(best.ids, best.scores.tolist(), strict=True)
        ]
        return Draft(blocks=range(ends[-1], self._spec.n_blocks), hidden=found[ends[-1] - 1])


def _exits(n_layers: int, adapted: int) -> list[int]:
    """Some layers to leave after, evenly spread, and the one that has an adapter; the last quarter saves too
    little."""
    last = n_layers * 3 // 4
    some = {round(x) for x in np.linspace(1, last, min(_EXITS, last))} if last else set()
    return sorted(some | ({adapted} if 0 < adapted < n_layers else set()))


def _adapted_layer(host: DrafterContext) -> int:
    """After so many layers comes the exit that the bundle trained an adapter for; 0: it has none."""
    head = host.bundle.manifest.heads.get(HEAD.kind)
    return head.layer if head else 0


def _adapter(host: DrafterContext, layer: int) -> Adapter | None:
    """What makes hidden states after `layer` layers fit the head, if the bundle has it."""
    if not layer or layer != _adapted_layer(host):
        return None
    head = open_head(host.bundle, HEAD)
    return lambda hidden: head.run(hidden)[0]
