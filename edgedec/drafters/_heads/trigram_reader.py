"""A head that attends to the target's states and to the trigrams of the tokens: two rows of its cache for each token.

    text a b c d: states are known up to c       rows  a  ab  b  abc  c  bcd
                                              at place  0  1   1  2    2  3

A row sees those before it: the trigram that ends in token i sees the states before token i, and the trigrams up to its
own. Below the text the layer's output at a trigram takes the place of the state that the target has not computed yet;
all guesses after a token share that row.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from edgedec.bundle.manifest import DraftFacts
from edgedec.decoding.messages import Completed, Request
from edgedec.drafters import DrafterContext
from edgedec.drafters._calls import TokenEmbeddings
from edgedec.drafters._heads.reader import HeadReader, Reading
from edgedec.drafters._heads.states import Seen
from edgedec.runtime import Hidden, Outputs, Rows

Gram = tuple[int, int, int]


class TrigramReader(HeadReader):
    """`last_state`: the target's state [1, hidden_size] before the text's last token."""

    slots = 2

    def __init__(self, host: DrafterContext, facts: DraftFacts) -> None:
        super().__init__(host, facts)
        self._known, self._merge = TokenEmbeddings(host), self.head.networks["trigram"]
        self._ids: Sequence[int] = ()
        self.last_state = np.zeros((1, self._spec.hidden_size), np.float32)

    def read(self, seen: Sequence[Seen], ids: Sequence[int], outputs: Outputs, room: int) -> Reading:
        self._ids = ids
        return (yield from super().read(seen, ids, outputs, room))

    def below(
        self, grams: Sequence[Gram], parents: Sequence[int], states: Hidden, outputs: Outputs
    ) -> Generator[Request, Completed, tuple[Hidden, list[int]]]:
        """The layer's outputs at guesses, and the row of each. grams: a guess and the two tokens before it; parents:
        the row of the token before (-1: the text's last), states: the layer's output there."""
        merged = yield from self._merged(grams)
        first = 0 if self._rows is None else len(self._rows)
        above = list(dict.fromkeys(parents))
        rows = self._grown(first, above, [first + above.index(parent) for parent in parents])
        stood = states[[parents.index(parent) for parent in above]]
        result = yield from self._forward(rows, np.concatenate([stood, merged]), outputs)
        self._rows = rows
        own = range(first + len(above), len(rows))
        return result.hidden[self.last][len(above) :], list(own)

    def _grown(self, first: int, above: Sequence[int], parents: Sequence[int]) -> Rows:
        """The tree with rows of the states after the rows `above`, and rows of trigrams below these."""
        known = None if self._rows is None else self._rows
        places = [] if known is None else known.positions.tolist()
        start = self._cache.length // 2
        at = [start if row < 0 else places[row] for row in above]
        places += [*at, *(at[parent - first] + 1 for parent in parents)]
        every = ([] if known is None else known.parents.tolist()) + [*above, *parents]
        return Rows(np.zeros(len(every), np.int64), np.array(places, np.int64), np.array(every, np.int64), first)

    def _commit(self, seen: Seen, start: int, stop: int, outputs: Outputs) -> Generator[Request, Completed, None]:
        states = self._of_target(seen.states[start:stop])
        at = seen.start + start
        merged = yield from self._merged([_gram(self._ids, i) for i in range(at + 1, at + len(states) + 1)])
        n, place = len(states), self._cache.length // 2
        entering = np.stack([states, merged], axis=1).reshape(2 * n, -1)
        places = np.arange(place, place + n).repeat(2) + np.tile([0, 1], n)
        rows = Rows(np.zeros(2 * n, np.int64), places, np.arange(-1, 2 * n - 1))
        self._result = yield from self._forward(rows, entering, outputs)
        self._cache.commit(range(2 * n))
        self._at, self.last_state = seen.start + stop - 1, states[-1:]

    def _merged(self, grams: Sequence[Gram]) -> Generator[Request, Completed, Hidden]:
        """One row for each trigram."""
        embedded = yield from self._known.of([token for gram in grams for token in gram])
        parts = np.ascontiguousarray(embedded.reshape(len(grams), 3, -1).transpose(1, 0, 2))
        found: Hidden = self._merge.run(*parts)[0]
        return found


def _gram(ids: Sequence[int], i: int) -> Gram:
    """The trigram that ends in token i; of the second token, as the authors have it, that token twice.

    ids 5 6 7: i = 1 -> 5 6 6, i = 2 -> 5 6 7
    """
    return (ids[0], ids[1], ids[1]) if i == 1 else (ids[i - 2], ids[i - 1], ids[i])
