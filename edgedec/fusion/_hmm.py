"""Hidden Markov models of texts: their training by expectation maximisation, and their files."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError

Floats = NDArray[np.float64]
# Added to the count of each token in each state, so that no token is impossible.
_SMOOTH = 1e-3


@dataclass(frozen=True, eq=False)
class HMM:
    """first [states]: of the first token; moves [states, states]: from one token to the next; emits [states, vocab].
    Rows sum to 1, and all entries are positive."""

    first: Floats
    moves: Floats
    emits: Floats

    def after(self, state: Floats | None, token: int) -> Floats:
        """The distribution of the state of `token` after a text: state [states] of its last token, None for no text."""
        found = self.coming(state) * self.emits[:, token]
        total = float(found.sum())
        return found / total if total > 0 else self.coming(state)

    def coming(self, state: Floats | None) -> Floats:
        """The distribution of the next token's state."""
        return self.first if state is None else state @ self.moves

    def save(self, path: str | os.PathLike[str]) -> None:
        with open(path, "wb") as file:
            np.savez(file, first=self.first, moves=self.moves, emits=self.emits)

    @classmethod
    def load(cls, path: str | os.PathLike[str], vocab: int) -> HMM:
        """The model in a file; UsageError if there is none, or it is for another vocabulary."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                found = cls(*(np.asarray(arrays[name], np.float64) for name in ("first", "moves", "emits")))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(f"{path}: not a hidden Markov model ({' '.join(str(error).split()):.80})") from None
        n = len(found.first)
        if found.moves.shape != (n, n) or found.emits.shape != (n, vocab):
            raise UsageError(f"{path}: a model of {found.emits.shape[-1]} tokens, not of {vocab}; train it again")
        if not all(np.isfinite(a).all() and (a >= 0).all() for a in (found.first, found.moves, found.emits)):
            raise UsageError(f"{path}: has numbers that are no probabilities; train it again")
        return found


def train(texts: Sequence[Sequence[int]], vocab: int, states: int = 32, rounds: int = 20, seed: int = 0) -> HMM:
    """The model that expectation maximisation (Baum and Welch) finds for texts of tokens, from a random start."""
    known = [np.asarray(text, np.int64) for text in texts if len(text)]
    if not known:
        raise UsageError("hidden Markov model: needs texts")
    rng = np.random.default_rng(seed)
    moves, first = rng.dirichlet(np.ones(states), states), rng.dirichlet(np.ones(states))
    emits = rng.dirichlet(np.ones(states), vocab).T + 1e-9
    model = HMM(first, moves, emits / emits.sum(axis=1, keepdims=True))
    for _ in range(rounds):
        model = _round(model, known)
    return model


def _round(model: HMM, texts: Sequence[NDArray[np.int64]]) -> HMM:
    """One round of expectation and maximisation."""
    first, moves, emits = (np.full_like(part, _SMOOTH) for part in (model.first, model.moves, model.emits))
    for ids in texts:
        seen, pairs = _expected(model, ids)
        first += seen[0]
        moves += pairs
        np.add.at(emits.T, ids, seen)
    rows = (part / part.sum(axis=-1, keepdims=True) for part in (first, moves, emits))
    return HMM(*rows)


def _expected(model: HMM, ids: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Of a text: the probability of each state at each token [n, states], and the expected moves [states, states]."""
    n, states = len(ids), len(model.first)
    ahead, back, scale = np.empty((n, states)), np.ones((n, states)), np.empty(n)
    for i, token in enumerate(ids.tolist()):
        found = (model.first if i == 0 else ahead[i - 1] @ model.moves) * model.emits[:, token]
        scale[i] = found.sum()
        ahead[i] = found / scale[i]
    pairs = np.zeros((states, states))
    for i in range(n - 2, -1, -1):
        later = model.emits[:, ids[i + 1]] * back[i + 1] / scale[i + 1]
        back[i] = model.moves @ later
        pairs += ahead[i][:, None] * model.moves * later
    return ahead * back, pairs


def likelihood(model: HMM, texts: Sequence[Sequence[int]]) -> float:
    """The mean log-probability of a token."""
    total, count = 0.0, 0
    for text in texts:
        state: Floats | None = None
        for token in text:
            total += float(np.log((model.coming(state) * model.emits[:, token]).sum()))
            state = model.after(state, token)
            count += 1
    return total / max(count, 1)
