"""A second model that reads the text along, and what it says of the next tokens: shares, draws, shapes of trees."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.context import Context
from edgedec.runtime import CallResult, Runtime, Outputs, compute
from edgedec.runtime.rows import Rows
from edgedec.sampling import Probs, Sampling, draw, probs

_CHUNK = 128
# Of so many logits a share is worked out (a softmax over all would cost more than it tells); that many branches.
_TOP, _BRANCHES = 16, 3
_NOTHING, BEST, ALL = Outputs(), Outputs(logits=False, top=_TOP), Outputs(logits=True)


class Reader:
    """A model and the text it has read: at any time its cache holds the tokens `_ids`, the text from `_base` on."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self.vocab = runtime, runtime.spec.vocab_size
        self._cache = runtime.new_cache(runtime.spec.context_length)
        self._ids: list[int] = []
        self._base = self._sure = self.calls = 0
        self._rows: Rows | None = None

    @property
    def room(self) -> int:
        """How many tokens may be drafted at all: behind half a context of text."""
        return self._cache.capacity - max(self._cache.capacity // 2, 1)

    def reset(self) -> None:
        """Another text; what it shares with the old one is not read again."""
        self._sure, self._rows = 0, None
        if self._base:
            self._begin(0)

    def read(self, ids: Sequence[int], want: Outputs, room: int, settled: int | None = None) -> CallResult:
        """Catch up with the text `ids` -> what is wanted of its last token, with `room` tokens to come.

        The text only grows between resets; if `settled`, only its first so many tokens stay.
        """
        if settled is not None:
            self._sure = min(self._sure, max(settled - self._base, 0))
        if len(ids) - self._base + room > self._cache.capacity:
            # As a sliding session does it: the latest half, read again.
            self._begin(len(ids) - max(min(self._cache.capacity // 2, len(ids)), 1))
        self._agree(ids)
        pending = [_known(token, self.vocab) for token in ids[self._base + len(self._ids) :]]
        while len(pending) > _CHUNK:
            self._run(pending[:_CHUNK], _NOTHING)
            del pending[:_CHUNK]
        output = self._run(pending, want)
        self._sure = len(self._ids)
        return output

    def step(self, token: int, want: Outputs) -> CallResult:
        """One token further, which may turn out wrong."""
        return self._run([token], want)

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> CallResult:
        """More rows of the tree below the text: all logits of these."""
        if self._rows is None:
            rows = Rows.tree(tokens, parents, self._cache.length)
        else:
            rows = self._rows.grown(tokens, parents)
        self._rows, self.calls = rows, self.calls + 1
        return compute(self._runtime, rows, self._cache, 0, ALL)

    def _run(self, tokens: list[int], want: Outputs) -> CallResult:
        rows = Rows.chain(tokens, self._cache.length)
        output = compute(self._runtime, rows, self._cache, len(tokens) - 1, want)
        self._cache.keep(range(len(tokens)))
        self._ids += tokens
        self.calls += 1
        return output

    def _begin(self, base: int) -> None:
        self._base, self._sure, self._ids, self._rows = base, 0, [], None
        self._cache.truncate(0)

    def _agree(self, ids: Sequence[int]) -> None:
        """Forget what was read and is not the text; of a tree that hangs below it keep what came true."""
        own, base = self._ids, self._base
        last = len(ids) - base - 1  # run again in any case
        at = min(self._sure, last)
        while at < len(own) and at < last and own[at] == _known(ids[base + at], self.vocab):
            at += 1
        if at < len(own):
            del own[at:]
            self._cache.truncate(at)
        elif self._rows is not None:
            self._follow(self._rows, ids[base + at : base + last])
        self._rows = None

    def _follow(self, rows: Rows, tokens: Sequence[int]) -> None:
        tree, path, row = list(zip(rows.parents.tolist(), rows.tokens.tolist(), strict=True)), list[int](), -1
        for token in tokens:
            if (row, token) not in tree:
                break
            row = tree.index((row, token))
            path.append(row)
        self._cache.keep(path)
        self._ids += tokens[: len(path)]


def _known(token: int, vocab: int) -> int:
    """What stands for a token that this model does not have."""
    return token if token < vocab else 0


def shares(output: CallResult, sampling: Sampling, vocab: int) -> list[tuple[int, float]]:
    """The likeliest tokens that the target has, with their share of the likelihood (of the `_TOP` best)."""
    assert output.ids is not None
    assert output.scores is not None
    ids, scores = output.ids[0].tolist(), output.scores[0].tolist()
    if ids[0] < 0:
        return []
    if 0 < sampling.top_k < len(ids) and sampling.temperature > 0:
        ids, scores = ids[: sampling.top_k], scores[: sampling.top_k]
    top, sharp = scores[0], 1.0 / max(sampling.temperature or 1.0, 1e-3)
    worth = [exp((score - top) * sharp) for score in scores]
    total = sum(worth)
    return [(token, p / total) for token, p in zip(ids, worth, strict=True) if 0 <= token < vocab][:_BRANCHES]


def shape(depth: int, width: int, bushy: int, nodes: int) -> list[int]:
    """Children of each node, place by place: `width` at the first `bushy` places, as far as `nodes` tokens go.

    shape(4, 2, 2, 20) -> [2, 2, 1, 1]: 2 + 4 + 4 + 4 tokens; with nodes=12 [2, 1, 1, 1]: 2 + 2 + 2 + 2
    """
    found = [1] * depth
    for place in range(min(bushy, depth)):
        wider = max(w for w in range(1, width + 1) if w == 1 or size([*found[:place], w, *found[place + 1 :]]) <= nodes)
        found[place] = wider
    return found


def size(branching: Sequence[int]) -> int:
    total, level = 0, 1
    for width in branching:
        level *= width
        total += level
    return total


def children(whole: Probs, width: int, again: bool, rng: np.random.Generator) -> list[int]:
    """`width` draws: `again` and again from the whole, or each from what the others left of it (fewer, if none is)."""
    found: list[int] = []
    left = whole
    while len(found) < width and len(left.ids):
        found.append(draw(left, rng))
        if not again:
            rest = left.ids != found[-1]
            left = Probs(left.ids[rest], left.p[rest])  # `draw` does not need a sum of 1
    return found


def drawn_from(logits: NDArray[np.float32], vocab: int, context: Context, path: Sequence[int]) -> Probs:
    """What the draft model would draw from under the target's settings, among the target's tokens."""
    logits = logits[:vocab]
    if len(logits) < vocab:
        logits = np.append(logits, np.full(vocab - len(logits), -np.inf, np.float32))
    ids = [*context.ids, *path] if context.sampling.adjusts else ()
    return probs(logits, context.sampling, ids, context.n_prompt)
