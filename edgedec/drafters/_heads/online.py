"""Online learning of a draft head (Online Speculative Decoding): a low-rank correction trained on verified tokens.

The head's weights do not change. For each of its states x (scaled to root mean square 1) a correction of rank `RANK`
scores the tokens seen in this session, z = B A x + b, and reweights the head's distribution:

    p'(v)  ~  p(v) exp(z_v)

where p(v) is the head's probability for the tokens that it names; the remaining mass is divided among the other tokens
seen in this session, by their frequency. So tokens outside of the head's training can be drafted after a change of
domain.

Every verified token is an example: cross-entropy, steps of AdaGrad on batches of the latest. Each example is first a
test: the correction is used while its recent predictions were better than the head's own. When they become worse, it is
reset to the last copy that was better, or to zero if there is none.
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
_KEPT, _BATCH, _RATE = 1024, 12, 0.02
_SMOOTH, _WORSE, _SNAPSHOT = 0.01, -0.05, 128
_FLOOR = 1e-5
_SMALL = 1 << 17  # multiplications
_NAMES = ("a", "b", "bias")


@dataclass
class _Seen:
    """An example: a state, and the tokens that the head named for it with their probabilities."""

    x: Floats
    ids: NDArray[np.int64]
    p: Floats


class OnlineCorrection:
    """The correction and its statistics. `gain`: the recent improvement in log-likelihood of verified tokens."""

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
        """Remove the correction."""
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
        """Begin a proposal."""
        self._open = {}

    def read(
        self, paths: Sequence[tuple[int, ...]], states: Floats, ids: NDArray[np.int64], logprobs: Floats
    ) -> tuple[NDArray[np.int64], Floats]:
        """The head's guesses after these states [n, hidden], ids and logprobs [n, top]: corrected, if that has paid.
        paths: the drafted tokens that lead to each state."""
        scale = np.sqrt(np.mean(states * states, axis=1, keepdims=True)) + np.float32(1e-6)
        x, p, named = states / scale, np.exp(logprobs).astype(np.float32), ids.astype(np.int64)
        seen = [_Seen(x[row], named[row], p[row]) for row in range(len(paths))]
        self._open.update(zip(paths, seen, strict=True))
        if not self.used:
            return ids, logprobs
        found = self._corrected(seen)
        n, top, lines = len(self._slots), ids.shape[1], np.arange(len(seen))[:, None]
        best = np.argpartition(-found, top - 1, axis=1)[:, :top]
        best = best[lines, np.argsort(-found[lines, best], axis=1, kind="stable")]
        tokens = np.where(best < n, self._tokens[np.minimum(best, SLOTS - 1)], named[lines, np.maximum(best - n, 0)])
        return tokens.astype(ids.dtype), np.log(found[lines, best] + np.float32(1e-9))

    def learn(self, picked: Sequence[int]) -> None:
        """Learn from the tokens that followed, one after another."""
        for n, token in enumerate(picked):
            if (seen := self._open.get(tuple(picked[:n]))) is None:
                break
            self._add(seen, token)
        if len(self._kept) >= _BATCH:
            self._step([self._kept[at] for at in self._rng.integers(0, len(self._kept), _BATCH).tolist()])
        self.begin()

    def _add(self, seen: _Seen, token: int) -> None:
        """Test the correction on this example, and store the example."""
        mine, its = self._chance(seen, token)
        change = log(mine + _FLOOR) - log(its + _FLOOR)
        self.gain += (min(max(change, -4.0), 4.0) - self.gain) * _SMOOTH
        self.examples += 1
        self._note(token)
        if len(self._kept) < _KEPT:
            self._kept.append((seen, token))
        else:
            self._kept[(self.examples - 1) % _KEPT] = seen, token
        if self.gain < _WORSE:
            self._roll_back()
        elif self.examples % _SNAPSHOT == 0 and self.used:
            self._good = {name: w.copy() for name, w in self._weights.items()}

    def _roll_back(self) -> None:
        """Reset to the last copy that was better than the head alone, once; if that is worse too, remove the
        correction."""
        good, self._good = self._good, None
        if good is None:
            self._clear()
        else:
            self._weights = good
        self.gain, self.rollbacks = 0.0, self.rollbacks + 1

    def _note(self, token: int) -> None:
        """Assign a slot to a seen token; when all are used, the rarest token loses its slot."""
        slot = self._slots.get(token)
        if slot is None:
            slot = len(self._slots)
            if slot == SLOTS:
                slot = int(np.argmin(self._counts))
                del self._slots[int(self._tokens[slot])]
                self._counts[slot] = 0.0
                for weights in filter(None, (self._weights, self._good)):  # of the copy too
                    weights["b"][slot], weights["bias"][slot] = 0.0, 0.0
            self._slots[token], self._tokens[slot] = slot, token
        self._counts[slot] += 1.0
        if self._counts[slot] > 500:
            self._counts *= 0.5

    def _chance(self, seen: _Seen, token: int) -> tuple[float, float]:
        """The probability of a token after a state, with and without the correction."""
        slot, at = self._slots.get(token), np.flatnonzero(seen.ids == token)
        if slot is None and not len(at):
            return 0.0, 0.0
        place = slot if slot is not None else len(self._slots) + int(at[0])
        return float(self._corrected([seen])[0, place]), float(self._base([seen])[0, place])

    def _base(self, seen: Sequence[_Seen]) -> Floats:
        """The tokens' probabilities after these states without the correction [states, slots + named]: first the tokens
        with a slot, then named tokens without one (0 for the others)."""
        n = len(self._slots)
        found = np.zeros((len(seen), n + len(seen[0].ids)), np.float32)
        found[:, :n] = self._counts[:n]
        for line, each in zip(found, seen, strict=True):
            slots = [self._slots.get(token, -1) for token in each.ids.tolist()]
            inside = [slot for slot in slots if slot >= 0]
            line[inside] = 0.0
            line[:n] *= np.float32(max(1.0 - float(each.p.sum()), 0.02) / max(float(line.sum()), 1.0))
            line[[slot if slot >= 0 else n + i for i, slot in enumerate(slots)]] = each.p
        return found

    def _corrected(self, seen: Sequence[_Seen]) -> Floats:
        """The tokens' probabilities with the correction."""
        w, n, p = self._weights, len(self._slots), self._base(seen)
        inner = _product(np.stack([each.x for each in seen]), w["a"].T)
        z = _product(inner, w["b"][:n].T) + w["bias"][:n]
        p[:, :n] *= np.exp(np.clip(z, -8.0, 8.0))
        p /= np.maximum(p.sum(axis=1, keepdims=True), 1e-9)
        return p

    def _step(self, examples: Sequence[tuple[_Seen, int]]) -> None:
        """One step of AdaGrad on these examples, without those whose token lost its slot."""
        known = [(seen, self._slots[token]) for seen, token in examples if token in self._slots]
        if not known:
            return
        w, x, n = self._weights, np.stack([seen.x for seen, _ in known]), len(self._slots)
        inner = _product(x, w["a"].T)
        wrong = self._corrected([seen for seen, _ in known])[:, :n]
        wrong[np.arange(len(known)), [slot for _, slot in known]] -= 1.0
        rows = np.flatnonzero(np.abs(wrong).max(axis=0) > 1e-3)
        part = np.ascontiguousarray(wrong[:, rows])
        down = _product(_product(part, w["b"][rows]).T, x)
        self._descend("b", rows, _product(inner.T, part).T)
        self._descend("bias", rows, part.sum(axis=0))
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


def _product(one: Floats, other: Floats) -> Floats:
    """one @ other, in parts small enough that `@` starts no threads."""
    width = max(_SMALL // (one.shape[0] * one.shape[1]), 1)
    if other.shape[1] <= width:
        return one @ other
    parts = [one @ other[:, at : at + width] for at in range(0, other.shape[1], width)]
    return np.concatenate(parts, axis=1)
