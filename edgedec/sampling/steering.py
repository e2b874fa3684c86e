"""Sampling that depends on what was drawn before: mirostat and adaptive-p, as pure functions of a state.

    shape(candidates, state) ──> Probs, and what each token would tell      after(state, …, token) ──> state

So every node of a draft tree has the state of its own path."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import NamedTuple

import numpy as np

from edgedec.sampling.distributions import Floats, Probs
from edgedec.sampling.ordered import Candidates
from edgedec.sampling.settings import Sampling

# Mirostat 1 estimates the exponent of Zipf's law from so many of the likeliest tokens.
_ZIPF = 100
# Adaptive-p: the width of the preference, the logit of a token at the target, and how fast others fall.
_WIDTH, _PEAK, _SHARPNESS = 0.3, 5.0, 10.0


class State(NamedTuple):
    """mirostat: the largest surprise in bits (`first`). adaptive-p: the weighted sum of the chosen tokens'
    probabilities, and that of the weights."""

    first: float
    second: float = 0.0


@dataclass(frozen=True, eq=False)
class Shaped:
    """A distribution, and of each of its tokens the probability that counts for the next state."""

    probs: Probs
    counted: Floats

    def of(self, token: int) -> float:
        """The probability that counts; 0 outside the support."""
        i = int(np.searchsorted(self.probs.ids, token))
        return float(self.counted[i]) if i < len(self.probs.ids) and self.probs.ids[i] == token else 0.0


def start(sampling: Sampling) -> State:
    """The state at the beginning of a text."""
    if sampling.mirostat:
        return State(2 * sampling.mirostat_tau)
    left = 1 - sampling.adaptive_decay
    return State(sampling.adaptive_target / left, 1 / left)


def shape(found: Candidates, state: State, sampling: Sampling, vocab: int) -> Shaped:
    """The distribution of the next token of these candidates."""
    if sampling.mirostat:
        found = _zipf(found, state.first, vocab) if sampling.mirostat == 1 else _surprising(found, state.first)
        return Shaped(found.probs, found.probs.p)
    p = found.p
    target = min(max(2 * sampling.adaptive_target - state.first / state.second, 0.0), 1.0)
    far = np.abs(p - target) / _WIDTH
    shaped = Candidates(found.ids, _PEAK - _SHARPNESS * far**2 / (1 + far)).probs
    return Shaped(shaped, p[np.isin(found.ids, shaped.ids)])


def after(state: State, shaped: Shaped, token: int, sampling: Sampling) -> State:
    """The state once `token` is drawn."""
    p = shaped.of(token)
    if sampling.mirostat:
        return State(state.first - sampling.mirostat_eta * (-log2(p) - sampling.mirostat_tau)) if p > 0 else state
    decay = sampling.adaptive_decay
    return State(p + decay * state.first, 1 + decay * state.second)


def _surprising(found: Candidates, most: float) -> Candidates:
    """Mirostat 2 (Basu et al. 2021, arXiv:2007.14966): without tokens of more surprise; the likeliest stays."""
    p = found.p
    keep = p >= 2.0**-most
    keep[int(np.argmax(p))] = True
    return found.keep(keep)


def _zipf(found: Candidates, most: float, vocab: int) -> Candidates:
    """Mirostat 1: the k likeliest tokens, k from the surprise and the exponent of Zipf's law that fits the likeliest
    ones."""
    order = np.argsort(-found.logits, kind="stable")
    p = found.p[order[:_ZIPF]]
    p = p[p > 0]
    if len(p) < 2:
        return found.keep(np.isin(np.arange(len(found.ids)), order[:1]))
    ranks = np.arange(1, len(p))
    t, b = np.log((ranks + 1) / ranks), np.log(p[:-1] / p[1:])
    s = float((t * b).sum() / (t * t).sum())
    with np.errstate(all="ignore"):
        e = np.float64(s - 1)
        k = ((e * 2.0**most) / (1 - float(vocab) ** -e)) ** np.float64(1 / s if s else np.inf)
    n = min(max(int(k), 1), len(order)) if np.isfinite(k) else len(order)
    keep = np.zeros(len(order), bool)
    keep[order[:n]] = True
    return found.keep(keep)
