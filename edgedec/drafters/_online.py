"""Online learning of a draft head (Online Speculative Decoding, S29): a low-rank correction trained on verified tokens.

The head stays as it is. Of each of its states x (scaled to root mean square 1) a correction scores the tokens that were
seen here, z = B A x + b, of rank `RANK`, and tilts what the head says:

    p'(v)  ~  p(v) exp(z_v)

where p(v) is the head's for the tokens it names; what it leaves over is shared by the other tokens that were seen here,
as often as they were. So tokens that the head never learned to say can be drafted after a change of domain.

Every verified token is an example: cross-entropy, steps of AdaGrad on batches of the latest. Before it is learned from,
it is a test: the correction is used while its predictions of late were better than the head's own. When they have
become worse, it goes back to the last copy that was better, and if there is none, to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError

Floats = NDArray[np.float32]
RANK, SLOTS = 16, 2048
_KEPT, _BATCH, _RATE = 1024, 12, 0.01
_SMOOTH, _WORSE, _SNAPSHOT = 0.01, -0.05, 128
_FLOOR = 1e-5
_NAMES = ("a", "b", "bias")


@dataclass
class _Seen:
    """A state that the head was read at: the state, and the tokens that it named with their probabilities."""

    x: Floats
    ids: NDArray[np.int64]
    p: Floats


class OnlineCorrection:
    """Numbers: `gain`, by how much the log-likelihood of verified tokens was better of late with the correction."""

    def __init__(self, hidden: int, seed: int = 0) -> None:
        self._hidden, self._rng = hidden, np.random.default_rng(seed)
        self._first = (self._rng.standard_normal((RANK, hidden)) / hidden**0.5).astype(np.float32)
        self._slots: dict[int, int] = {}
        self._tokens, self._counts = np.full(SLOTS, -1, np.int64), np.zeros(SLOTS, np.float32)
        self._clear()
        self._open: dict[tuple[int, ...], _Seen] = {}
        self._kept: list[tuple[_Seen, int]] = []
        self.examples = self.rollbacks = 0

    def _clear(self) -> None:
        """No correction at all."""
        self._weights = {
            "a": self._first.copy(),
            "b": np.zeros((SLOTS, RANK), np.float32),
            "bias": np.zeros(SLOTS, np.float32),
        }
        self._squares = {name: np.full_like(w, 1e-2) for name, w in self._weights.items()}
        self._good: dict[str, Floats] | None = None
        self.gain = 0.0

    @property
    def used(self) -> bool:
        return self.gain > 0.0

    def report(self) -> dict[str, float]:
        return {"examples": self.examples, "gain": round(self.gain, 3), "rollbacks": self.rollbacks}

    def begin(self) -> None:
        """Another proposal."""
        self._open = {}

    def read(
        self, paths: Sequence[tuple[int, ...]], states: Floats, ids: NDArray[np.int64], logprobs: Floats
    ) -> tuple[NDArray[np.int64], Floats]:
        """The head's guesses after these states [n, hidden], ids and logprobs [n, top]: corrected, if that has paid.
        paths: the drafted tokens that lead to each state."""
        found_ids, found = ids, logprobs
        if self.used:
            found_ids, found = np.empty_like(ids), np.empty_like(logprobs)
        for row, path in enumerate(paths):
            x = states[row] / np.float32(float(np.sqrt(np.mean(states[row] ** 2))) + 1e-6)
            seen = self._open[path] = _Seen(x, ids[row].astype(np.int64), np.exp(logprobs[row]).astype(np.float32))
            if self.used:
                tokens, p = self._corrected(seen)
                best = np.argsort(-p)[: ids.shape[1]]
                found_ids[row], found[row] = tokens[best], np.log(p[best] + 1e-9)
        return found_ids, found

    def learn(self, picked: Sequence[int]) -> None:
        """The tokens that followed, one after another."""
        for n, token in enumerate(picked):
            if (seen := self._open.get(tuple(picked[:n]))) is None:
                break
            self._add(seen, token)
        if len(self._kept) >= _BATCH:
            for at in self._rng.integers(0, len(self._kept), _BATCH).tolist():
                self._step(*self._kept[at])
        self.begin()

    def _add(self, seen: _Seen, token: int) -> None:
        """Test the correction by this example, and keep it."""
        tokens, p = self._corrected(seen)
        at = np.flatnonzero(tokens == token)
        mine = float(p[at[0]]) if len(at) else 0.0
        base_ids, base = self._base(seen)
        its = float(base[np.flatnonzero(base_ids == token)[0]]) if len(at) else 0.0
        change = log(mine + _FLOOR) - log(its + _FLOOR)
        self.gain += (min(max(change, -4.0), 4.0) - self.gain) * _SMOOTH
        self.examples += 1
        self._note(token)
        if len(self._kept) < _KEPT:
            self._kept.append((seen, token))
        else:
            self._kept[self.examples % _KEPT] = seen, token
        if self.gain < _WORSE:
            self._roll_back()
        elif self.examples % _SNAPSHOT == 0 and self.used:
            self._good = {name: w.copy() for name, w in self._weights.items()}

    def _roll_back(self) -> None:
        """To the last copy that was better than the head alone; once: if that is worse too, to nothing."""
        good, self._good = self._good, None
        if good is None:
            self._clear()
        else:
            self._weights = good
        self.gain, self.rollbacks = 0.0, self.rollbacks + 1

    def _note(self, token: int) -> None:
        """A token that was seen here has a slot; the rarest goes when all are taken."""
        slot = self._slots.get(token)
        if slot is None:
            slot = len(self._slots)
            if slot == SLOTS:
                slot = int(np.argmin(self._counts))
                del self._slots[int(self._tokens[slot])]
                self._weights["b"][slot], self._weights["bias"][slot], self._counts[slot] = 0.0, 0.0, 0.0
            self._slots[token], self._tokens[slot] = slot, token
        self._counts[slot] += 1.0
        if self._counts[slot] > 500:
            self._counts *= 0.5

    def _base(self, seen: _Seen) -> tuple[NDArray[np.int64], Floats]:
        """The tokens that may follow and how likely each is without a correction: those with a slot come first."""
        n = len(self._slots)
        counts = self._counts[:n].copy()
        named = [self._slots.get(token, -1) for token in seen.ids.tolist()]
        inside = [(slot, p) for slot, p in zip(named, seen.p.tolist(), strict=True) if slot >= 0]
        outside = [i for i, slot in enumerate(named) if slot < 0]
        places = [slot for slot, _ in inside]
        counts[places] = 0.0
        left = max(1.0 - float(seen.p.sum()), 0.02)
        found = counts * np.float32(left / max(float(counts.sum()), 1.0))
        found[places] = [p for _, p in inside]
        return np.concatenate([self._tokens[:n], seen.ids[outside]]), np.concatenate([found, seen.p[outside]])

    def _corrected(self, seen: _Seen) -> tuple[NDArray[np.int64], Floats]:
        tokens, base = self._base(seen)
        n, w = len(self._slots), self._weights
        z = _times(w["b"][:n], _times(w["a"], seen.x)) + w["bias"][:n]
        p = base.copy()
        p[:n] *= np.exp(np.clip(z, -8.0, 8.0))
        found: Floats = p / max(float(p.sum()), 1e-9)
        return tokens, found

    def _step(self, seen: _Seen, token: int) -> None:
        """One step of AdaGrad on one example."""
        w, slot = self._weights, self._slots.get(token)
        if slot is None:
            return
        wrong = self._corrected(seen)[1][: len(self._slots)]
        wrong[slot] -= 1.0
        rows = np.flatnonzero(np.abs(wrong) > 1e-3)
        inner, part = _times(w["a"], seen.x), wrong[rows]
        down = np.outer(_times(w["b"][rows].T, part), seen.x)
        self._descend("b", rows, np.outer(part, inner))
        self._descend("bias", rows, part)
        self._descend("a", slice(None), down)

    def _descend(self, name: str, rows: NDArray[np.int64] | slice, gradient: Floats) -> None:
        squares = self._squares[name]
        squares[rows] += gradient * gradient
        self._weights[name][rows] -= _RATE * gradient / np.sqrt(squares[rows])

    def state(self) -> dict[str, NDArray[np.generic]]:
        kept: dict[str, NDArray[np.generic]] = {f"online.{name}": self._weights[name].copy() for name in _NAMES}
        return kept | {
            "online.tokens": self._tokens.copy(),
            "online.counts": self._counts.copy(),
            "online.gain": np.array([self.gain], np.float32),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        shapes = {
            "a": (RANK, self._hidden),
            "b": (SLOTS, RANK),
            "bias": (SLOTS,),
            "tokens": (SLOTS,),
            "counts": (SLOTS,),
        }
        found = {name: state.get(f"online.{name}") for name in (*shapes, "gain")}
        for name, array in found.items():
            if (
                array is None
                or array.shape != shapes.get(name, (1,))
                or not np.isfinite(array.astype(np.float64)).all()
            ):
                raise UsageError(f"state online.{name} is not of this draft head; drop the file and learn again")
        tokens = state["online.tokens"].astype(np.int64)
        taken = int((tokens >= 0).sum())
        if (tokens[:taken] < 0).any() or len(set(tokens[:taken].tolist())) != taken:
            raise UsageError("state online.tokens is not of this draft head; drop the file and learn again")
        self._clear()
        self._weights = {name: state[f"online.{name}"].astype(np.float32) for name in _NAMES}
        self._tokens, self._counts = tokens, state["online.counts"].astype(np.float32)
        self._slots = {token: slot for slot, token in enumerate(tokens[:taken].tolist())}
        self.gain = float(state["online.gain"].astype(np.float64)[0])
        self._kept = []


def _times(matrix: Floats, x: Floats) -> Floats:
    """A product that is too small for the threads that `@` would start."""
    found: Floats = np.einsum("ij,j->i", matrix, x)
    return found
