"""A second model that reads the same text, and its proposals: probabilities, draws, shapes of trees."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, ForwardOn, Request
from edgedec.drafters._calls import own_seconds
from edgedec.drafters._heads.foreseen import MODEL, drawn
from edgedec.runtime import Adapter, Call, CallResult, Outputs, Rows, Runtime, suit, suits
from edgedec.sampling import Probs, Sampling, draw, probs

# The number of best logits in the softmax (all of them would cost too much time); the number of branches.
_TOP, _BRANCHES = 16, 3
_NONE, BEST, ALL = Outputs(), Outputs(top=_TOP), Outputs(logits=True)

Reading = Generator[Request, Completed, CallResult]


class DraftReader:
    """A model and the text it has read: its cache holds the tokens `_ids`, the text from `_base` on. Rows of the
    latest calls are pending: the end of the text, and what was drafted after it. They are committed when the text has
    grown by them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self.vocab = runtime, runtime.spec.vocab_size
        self._chunk = runtime.capabilities.prefill_chunk
        self._cache = runtime.new_cache(runtime.spec.context_length)
        self._ids: list[int] = []
        self._base = self._sure = self.calls = 0
        self.step_seconds = 0.0
        self._adapter: Adapter | None = None  # of the target's, where the model is the target
        self._rows: Rows | None = None
        # The row of the last token of the text.
        self._root = -1

    @property
    def room(self) -> int:
        """The most tokens that may be drafted after a text of half a context."""
        return self._cache.capacity - max(self._cache.capacity // 2, 1)

    @property
    def grown(self) -> int:
        """The number of rows of the tree below the text."""
        return 0 if self._rows is None else len(self._rows) - self._root - 1

    def reset(self) -> None:
        """Prepare for another text; a prefix in common with the old one is not read again."""
        self._sure, self._rows = 0, None
        if self._base:
            self._restart(0)

    def read(self, ids: Sequence[int], outputs: Outputs, room: int, settled: int | None = None) -> Reading:
        """Read what is new of the text `ids` -> the outputs of its last token, with `room` tokens to come. A long
        text is read in chunks, one call each.

        The text only grows between resets; if `settled`, only its first so many tokens stay.
        """
        if settled is not None:
            self._sure = min(self._sure, max(settled - self._base, 0))
        if len(ids) - self._base + room > self._cache.capacity:
            # As a sliding session does it: the latest half, read again.
            self._restart(len(ids) - max(min(self._cache.capacity // 2, len(ids)), 1))
        if not suits(self._cache, len(ids) - self._base + room):
            self._restart(self._base)
            suit(self._cache, len(ids) - self._base + room)
        self._keep_common(ids)
        pending = [_known(token, self.vocab) for token in ids[self._base + len(self._ids) :]]
        while len(pending) > self._chunk:
            yield from self._run(Rows.chain(pending[: self._chunk], self._cache.length), _NONE)
            self._commit(range(self._chunk), pending[: self._chunk])
            del pending[: self._chunk]
        self._sure, self._root = len(self._ids), len(pending) - 1
        return (yield from self._run(Rows.chain(pending, self._cache.length), outputs._replace(logits_from=self._root)))

    def grow(self, tokens: Sequence[int], parents: Sequence[int], outputs: Outputs) -> Reading:
        """More rows of the tree below the text (parent -1: its last token): the outputs of these."""
        assert self._rows is not None
        above = [self._root + 1 + parent for parent in parents]
        known = [_known(token, self.vocab) for token in tokens]
        return (yield from self._run(self._rows.extend(known, above), outputs))

    def _run(self, rows: Rows, outputs: Outputs) -> Reading:
        call = self._call(rows, outputs)
        self._rows = None  # until the call is done
        done = yield ForwardOn(self._runtime, call)
        self._rows, self.calls, self.step_seconds = rows, self.calls + 1, own_seconds(done, call)
        return done.result

    def _call(self, rows: Rows, outputs: Outputs) -> Call:
        return Call(rows, self._cache, outputs=outputs, adapter=self._adapter)

    def _commit(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        self._cache.commit(rows)
        self._ids += tokens
        self._rows = None

    def _restart(self, base: int) -> None:
        self._base, self._sure, self._ids, self._rows = base, 0, [], None
        self._cache.truncate(0)

    def _keep_common(self, ids: Sequence[int]) -> None:
        """Cut the cache to the prefix in common with the text; keep those pending rows that became text."""
        own, base = self._ids, self._base
        last = len(ids) - base - 1  # run again in any case
        at = min(self._sure, last)
        while at < len(own) and at < last and own[at] == _known(ids[base + at], self.vocab):
            at += 1
        if at < len(own):
            self._cache.truncate(at)
            del own[self._cache.length :]  # a recurrent block may have been cut further back
        elif self._rows is not None:
            self._follow(self._rows, [_known(token, self.vocab) for token in ids[base + at : base + last]])
        self._rows = None

    def _follow(self, rows: Rows, tokens: Sequence[int]) -> None:
        """Commit the path of pending rows that has these tokens."""
        tree, path, row = list(zip(rows.parents.tolist(), rows.tokens.tolist(), strict=True)), list[int](), -1
        for token in tokens:
            if (row, token) not in tree:
                break
            row = tree.index((row, token))
            path.append(row)
        self._commit(path, tokens[: len(path)])


def _known(token: int, vocab: int) -> int:
    """The token, or 0 for one that this model does not have."""
    return token if token < vocab else 0


def shares(result: CallResult, sampling: Sampling, vocab: int) -> list[tuple[int, float]]:
    """The likeliest tokens of the target's vocabulary, with probabilities (among the `_TOP` best)."""
    assert result.ids is not None
    assert result.scores is not None
    ids, scores = result.ids[0].tolist(), result.scores[0].tolist()
    if ids[0] < 0:
        return []
    if 0 < sampling.top_k < len(ids) and sampling.temperature > 0:
        ids, scores = ids[: sampling.top_k], scores[: sampling.top_k]
    top, sharp = scores[0], 1.0 / max(sampling.temperature or 1.0, 1e-3)
    worth = [exp((score - top) * sharp) for score in scores]
    total = sum(worth)
    return [(token, p / total) for token, p in zip(ids, worth, strict=True) if 0 <= token < vocab][:_BRANCHES]


def foreseen(result: CallResult, sampling: Sampling, vocab: int, u: float) -> list[tuple[int, float]]:
    """The tokens that the target is likely to draw by the random number u, with probabilities."""
    assert result.logits is not None
    ids, chances = drawn(result.logits[0, :vocab], u, sampling, _BRANCHES, MODEL)
    return list(zip(ids.tolist(), chances.tolist(), strict=True))


def shape(depth: int, width: int, bushy: int, nodes: int) -> list[int]:
    """Children of each node, place by place: `width` at the first `bushy` places, then one, at most `depth` places.
    Where `nodes` tokens are too few, the draft is less deep; only a level that does not fit by itself is less wide.

    shape(4, 2, 2, 20) -> [2, 2, 1, 1]: 2 + 4 + 4 + 4 tokens; with nodes=12 [2, 2, 1]: 2 + 4 + 4
    shape(8, 3, 1, 9) -> [3, 1, 1]: three paths of three tokens
    """
    found, level, left = list[int](), 1, nodes
    for place in range(depth):
        wider = min(width, left // level) if place < bushy else 1
        if not wider or level * wider > left:
            break
        level *= wider
        left -= level
        found.append(wider)
    return found


def size(branching: Sequence[int]) -> int:
    total, level = 0, 1
    for width in branching:
        level *= width
        total += level
    return total


def children(whole: Probs, width: int, again: bool, rng: np.random.Generator) -> list[int]:
    """`width` draws from `whole`: `again`: with replacement, else without (fewer, if no tokens are left)."""
    found: list[int] = []
    left = whole
    while len(found) < width and len(left.ids):
        found.append(draw(left, rng))
        if not again:
            rest = left.ids != found[-1]
            left = Probs(left.ids[rest], left.p[rest])  # `draw` does not need a sum of 1
    return found


def drawn_from(logits: NDArray[np.float32], vocab: int, context: Context, path: Sequence[int]) -> Probs:
    """The draft model's distribution under the target's sampling settings, over the target's tokens."""
    logits = logits[:vocab]
    if len(logits) < vocab:
        logits = np.append(logits, np.full(vocab - len(logits), -np.inf, np.float32))
    ids = [*context.ids, *path] if context.sampling.adjusts else ()
    return probs(logits, context.sampling, ids, context.n_prompt)
