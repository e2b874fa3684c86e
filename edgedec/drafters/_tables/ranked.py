"""Shared by the table drafters: a bounded table of ranked next tokens, and trees grown from ranked lists.

A table remembers, under a key (the last tokens, packed into one number), the `k` likeliest next tokens that the
target itself gave there. All of a call's rows are learned with a few array operations, whatever their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heapreplace
from math import exp
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.messages import StepResult
from edgedec.drafters import Draft, State
from edgedec.drafters._tables.states import checked_table
from edgedec.runtime import CallResult

S = TypeVar("S")
# The tokens that may follow, in order of expansion: the tokens, their probabilities, their priorities.
Ranked = tuple[Sequence[int], Sequence[float], Sequence[float]]
Ids = NDArray[np.int32]
Floats = NDArray[np.float32]

_FIRST = 1024  # the initial capacity in keys; it doubles
_PRIME = (1 << 61) - 1  # keys stay int64; below it they are exact, beyond it two rarely meet


class Table:
    """Key -> the `k` likeliest next tokens. Above `cap` keys the oldest is evicted.

    ids int32 [cap, k], -1 where there is none; p float32 [cap, k], descending; visits int32 [cap].
    """

    def __init__(self, k: int, cap: int, vocab: int) -> None:
        self.k, self.cap, self.vocab = k, cap, vocab
        self.index: dict[int, int] = {}
        self._next = 0
        self._allocate(min(_FIRST, cap))

    def __len__(self) -> int:
        return len(self.index)

    def find(self, key: int) -> int:
        """The slot of a key, -1 if it is unknown."""
        return self.index.get(key, -1)

    def row(self, slot: int) -> tuple[list[int], list[float]]:
        """Tokens and probabilities of a slot, the likeliest first; unused entries at the end are -1 and 0."""
        return self.ids[slot].tolist(), self.p[slot].tolist()

    def learn(self, keys: Sequence[int], ids: Ids, p: Floats, rate: float) -> None:
        """Learn ids, p [n, k] under `keys`: the mean of the first visits; later visits have the weight `rate` (1: only
        the last visit counts).

        Worked example, rate 0.5: a 0.6, b 0.4 met again as b 0.8, c 0.2 -> b 0.6, a 0.3, c 0.1
        """
        index, new = self.index, self._new
        at = np.array([index[key] if key in index else new(key) for key in keys])
        if rate < 1:
            visits = self.visits.take(at)
            self.visits[at] = visits + 1
            if len(met := visits.nonzero()[0]):
                share = np.maximum(rate, 1 / (visits[met] + 1), dtype=np.float32)[:, None]
                ids, p = ids.copy(), p.copy()
                ids[met], p[met] = self._mixed(at[met], ids.take(met, 0), p.take(met, 0), share)
        else:
            self.visits[at] = 1
        self.ids[at], self.p[at] = ids, p

    def _mixed(self, at: NDArray[np.int64], ids: Ids, p: Floats, share: Floats) -> tuple[Ids, Floats]:
        """The old and new entries merged into one list per key. share [n, 1]: the weight of the new ones. Ids with
        weight 0 are unused."""
        n, k = ids.shape
        old_ids, old_p = self.ids.take(at, 0), self.p.take(at, 0) * (1 - share)
        same = ids[:, :, None] == old_ids[:, None, :]
        both, tokens = np.empty((n, 2 * k), np.float32), np.empty((n, 2 * k), np.int32)
        tokens[:, :k], tokens[:, k:] = ids, old_ids
        both[:, :k] = p * share + np.matmul(same, old_p[:, :, None])[:, :, 0]
        both[:, k:] = old_p * ~np.logical_or.reduce(same, axis=1)
        order = (-both).argsort(axis=1, kind="stable")[:, :k]
        order += np.arange(0, 2 * k * n, 2 * k)[:, None]
        return tokens.take(order), both.take(order)

    def _new(self, key: int) -> int:
        """A slot for a new key."""
        slot = self._next
        self._next = (slot + 1) % self.cap
        if slot >= len(self.keys):
            self._grow(min(2 * slot, self.cap))
        if self.index.get(old := int(self.keys[slot])) == slot:
            del self.index[old]
        self.keys[slot], self.visits[slot], self.p[slot] = key, 0, 0
        self.index[key] = slot
        return slot

    def _allocate(self, rows: int) -> None:
        self.keys = np.zeros(rows, np.int64)
        self.ids: Ids = np.full((rows, self.k), -1, np.int32)
        self.p: Floats = np.zeros((rows, self.k), np.float32)
        self.visits = np.zeros(rows, np.int32)

    def _grow(self, rows: int) -> None:
        n, keys, ids, p, visits = len(self.keys), self.keys, self.ids, self.p, self.visits
        self._allocate(rows)
        self.keys[:n], self.ids[:n], self.p[:n], self.visits[:n] = keys, ids, p, visits

    def state(self, prefix: str = "") -> State:
        """The table as arrays, the oldest key first. Keys are two int32 each."""
        n, turn = len(self.index), self._next if len(self.index) == self.cap else 0
        names: State = {"keys": self.keys, "ids": self.ids, "p": self.p, "visits": self.visits}
        kept = {prefix + name: np.roll(values[:n], -turn, axis=0) for name, values in names.items()}
        kept[prefix + "keys"] = kept[prefix + "keys"].view(np.int32).reshape(n, 2)
        return kept

    def restore(self, state: State, prefix: str = "") -> None:
        """Restore a table from `state`; the latest keys, if there are more than the capacity."""
        packed, ids, p, visits = checked_table(state, prefix, self.k, self.vocab, self.cap)
        n, self.index = len(packed), {}
        self._allocate(max(n, min(_FIRST, self.cap)))
        self.keys[:n], self.ids[:n], self.p[:n], self.visits[:n] = packed, ids, p, visits
        self.index = {key: slot for slot, key in enumerate(packed.tolist())}
        self._next = n % self.cap


def total_of(values: Sequence[float]) -> float:
    """The sum, added in order: `sum` rounds otherwise in newer Pythons."""
    total = 0.0
    for value in values:
        total += value
    return total


def keys_of(tokens: Sequence[int], vocab: int) -> list[int]:
    """The keys of the last token, the last two, … of `tokens`; no two of them are the same (vocab below a million)."""
    key, scale, keys = 0, 1, []
    for token in reversed(tokens):
        key += (token + 1) * scale
        scale *= vocab + 1
        keys.append(key % _PRIME)
    return keys


def best_of(output: CallResult, k: int) -> tuple[Ids, Floats] | None:
    """The k best tokens of each row and a softmax over their scores, [n, k] each; None if there are none.

    A row with a non-finite logit among them is invalid: its ids are -1."""
    if output.ids is None or output.scores is None or output.ids.shape[1] < k:
        return None
    ids, scores = output.ids[:, :k], output.scores[:, :k]
    if ids.min() < 0:
        bad = ids.min(1) < 0
        ids, scores = ids.copy(), scores.copy()
        ids[bad], scores[bad] = -1, 0
    # In float64 and summed in order, as in the compiled version, for identical numbers.
    weights = np.array([[exp(score - row[0]) for score in row] for row in scores.tolist()])
    p = (weights / np.add.accumulate(weights, axis=1)[:, -1:]).astype(np.float32)
    if ids[:, 0].min() < 0:
        p[ids[:, 0] < 0] = 0
    return ids, p


class Tail:
    """The last `n` tokens before a draft, known even where nothing was proposed."""

    tokens: tuple[int, ...]

    def __init__(self, n: int) -> None:
        self.n, self.tokens = n, ()

    def follow(self, ids: Sequence[int]) -> tuple[int, ...]:
        self.tokens = tuple(ids[-self.n :])
        return self.tokens

    def reset(self) -> None:
        self.tokens = ()

    def histories(self, step: StepResult) -> list[tuple[int, ...]]:
        """The last tokens up to and including each row of a call; fewer at a text's beginning."""
        n, root = self.n, step.root
        tokens, parents = step.rows.tokens[root:].tolist(), step.rows.parents[root:].tolist()
        before = tuple(step.rows.tokens[max(root + 1 - n, 0) : root + 1].tolist())
        if len(self.tokens) > len(before) and self.tokens[-len(before) :] == before:
            before = self.tokens
        found = [before]
        for token, parent in zip(tokens[1:], parents[1:], strict=True):
            found.append((*found[parent - root], token)[-n:])
        self.tokens = (*before, *step.picked)[-n:]
        return found


def grow_ranked(
    root: S,
    ranked: Callable[[S], Ranked | None],
    advance: Callable[[S, int], S],
    nodes: int,
    min_path_prob: float = 0.0,
) -> Draft:
    """`tree.grow` for followers that come ranked: of siblings only the next one waits in the heap, so that a tree
    costs two heap steps a token however many may follow each.

    `advance(state, token)`: the state with that token at its end. Tokens whose path is less likely than
    `min_path_prob`, or has probability 0, are left out.
    """
    heap: list[tuple[float, int, int, float, float, int, Ranked, S]] = []
    tokens: list[int] = []
    parents: list[int] = []
    claims: list[float] = []
    count, parent, haste, worth, state = 0, -1, 1.0, 1.0, root
    while len(tokens) < nodes:
        if (found := ranked(state)) is not None and found[0]:
            heappush(heap, (-haste * found[2][0], count, parent, haste, worth, 0, found, state))
            count += 1
        while heap:
            negative, _, parent, haste, worth, i, found, state = heap[0]
            if i + 1 < len(found[0]):
                heapreplace(heap, (-haste * found[2][i + 1], count, parent, haste, worth, i + 1, found, state))
                count += 1
            else:
                heappop(heap)
            p = found[1][i]
            if p > 0 and worth * p >= min_path_prob:
                break
        else:
            break
        token = found[0][i]
        tokens.append(token)
        parents.append(parent)
        claims.append(p)
        parent, haste, worth, state = len(tokens) - 1, -negative, worth * p, advance(state, token)
    return Draft(tokens, parents, claims)
