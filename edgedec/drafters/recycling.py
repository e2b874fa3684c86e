"""Drafts a tree of the tokens that the target lately ranked high after each token (Token Recycling).

One table: token -> the `k` best next tokens of the last row that carried it, accepted or not. A draft is the tree
that following the table from the last token gives, the likeliest paths first. Nothing is trained; some hundred
bytes for each token that was met.
"""

from __future__ import annotations

from math import exp, isfinite
from typing import Any

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, DrafterFacts, State
from edgedec.drafters._options import Followers, PromptRowsRead, TableNodes
from edgedec.drafters._tables.compiled import CompiledRecycling, compiled
from edgedec.drafters._tables.ranked import Ranked, grow_ranked, total_of
from edgedec.drafters._tables.states import checked_recycled
from edgedec.runtime import Outputs, TableSettings

_CAP = 1 << 14
_TRUST = 0.7  # the predictions are from another place, so they are less certain here

FACTS = DrafterFacts(auto=3, table="tokens", paper="Token Recycling")


def make(host: DrafterContext, nodes: TableNodes = 16, k: Followers = 8, prompt: PromptRowsRead = 0) -> Drafter:
    vocab = host.bundle.spec.vocab_size
    if found := compiled(host, TableSettings("recycling", vocab, nodes, min(k, vocab)), CompiledRecycling):
        found.prompt_rows = prompt
        return found
    drafter = Recycling(vocab, nodes, k, prompt)
    drafter._shown, drafter._ranked = host.table(("recycling", drafter.k), lambda: (drafter._shown, drafter._ranked))
    return drafter


class Recycling(BaseDrafter):
    def __init__(self, vocab: int, nodes: int = 16, k: int = 8, prompt: int = 0) -> None:
        self.prompt_rows = prompt
        self.nodes, self.k, self._vocab = nodes, min(k, vocab), vocab
        self.outputs = Outputs(top=self.k)
        # As the target showed them, with logits; and, once needed, with probabilities.
        self._shown: dict[int, tuple[list[int], list[float]]] = {}
        self._ranked: dict[int, Ranked] = {}

    def __len__(self) -> int:
        return len(self._shown)

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        return grow_ranked(context.ids[-1], self._followers, _advance, min(nodes, self.nodes), min_path_prob)

    def observe(self, step: StepResult) -> None:
        for part in step.prompt if self.prompt_rows else ():
            self._learn(part)
        self._learn(step)

    def _learn(self, step: StepResult) -> None:
        ids, scores = step.result.ids, step.result.scores
        if ids is None or scores is None or ids.shape[1] < self.k:
            return
        shown, ranked = self._shown, self._ranked
        ids, scores = ids[:, : self.k], scores[:, : self.k]  # other drafters may need more of them
        for token, best, logits in zip(step.tokens(), ids.tolist(), scores.tolist(), strict=True):
            shown.pop(token, None)  # so that it becomes the latest
            shown[token] = best, logits
            ranked.pop(token, None)
        if len(shown) > _CAP:
            self._drop()

    def _drop(self) -> None:
        """Forget the half of the tokens that were shown the longest time ago."""
        for token in list(self._shown)[: _CAP // 2]:
            del self._shown[token]
            self._ranked.pop(token, None)

    def _followers(self, token: int) -> Ranked | None:
        found = self._ranked.get(token)
        if found is None and token in self._shown:
            found = self._ranked[token] = _softened(*self._shown[token], self.k)
        return found

    def state(self) -> State:
        tokens = [token for token in self._shown if self._followers(token) is not None]
        rows = [self._ranked[token] for token in tokens]
        return {
            "tokens": np.array(tokens, np.int32),
            "ids": np.array([_filled(row[0], self.k, -1) for row in rows], np.int32).reshape(-1, self.k),
            "p": np.array([_filled(row[1], self.k, 0) for row in rows], np.float32).reshape(-1, self.k),
        }

    def restore(self, state: State) -> None:
        tokens, ids, p = checked_recycled(state, self.k, self._vocab)
        rows = {token: _known(*row) for token, *row in zip(tokens.tolist(), ids.tolist(), p.tolist(), strict=True)}
        self._shown = {token: (list(row[0]), [0.0] * len(row[0])) for token, row in rows.items()}
        self._ranked = dict(rows)

    def report(self) -> dict[str, Any]:
        return {"tokens": len(self)}


def _advance(before: int, token: int) -> int:
    return token


def _softened(ids: list[int], logits: list[float], k: int) -> Ranked:
    """The best tokens and how likely each follows; where a logit is not finite the list ends."""
    n = next((i for i in range(k) if ids[i] < 0 or not isfinite(logits[i])), k)
    weights = [exp(logit - logits[0]) for logit in logits[:n]]
    total = total_of(weights) / _TRUST
    p = [weight / total for weight in weights]
    return ids[:n], p, p


def _known(ids: list[int], p: list[float]) -> Ranked:
    """One token's row of a state, without what stands after the last."""
    n = sum(token >= 0 for token in ids)
    return ids[:n], p[:n], p[:n]


def _filled(values: Any, k: int, with_what: float) -> list[float]:
    return [*values, *[with_what] * (k - len(values))]
