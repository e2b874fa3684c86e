"""A head that predicts whether a drafted token will be accepted (SpecDec++), trained while it is used.

It reads the draft model's last hidden state (a fixed random projection of it), the shape of its distribution and the
depth of the token, and adds to the logit of the calibrated claim; so an untrained head returns the claim. Every token
whose parent was accepted is an example. One hidden layer, Adam on batches from the latest examples, in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.runtime import CallResult

Floats = NDArray[np.float32]
_PROJECTED, _SHAPE, _DEPTHS, _WIDTH = 64, 6, 10, 32
_INPUTS = _PROJECTED + _SHAPE + _DEPTHS
_KEPT, _BATCH, _EVERY, _RATE, _DECAY = 4096, 64, 2, 1e-3, 0.1
_LEAST, _MOST = 0.01, 0.99
_NAMES = ("w1", "b1", "w2")


class AcceptanceHead:
    def __init__(self, hidden: int) -> None:
        """hidden: the size of the draft model's states."""
        rng = np.random.default_rng(0)
        self._projection = (rng.standard_normal((hidden, _PROJECTED)) / hidden**0.5).astype(np.float32)
        self._weights = {
            "w1": (rng.standard_normal((_WIDTH, _INPUTS)) / _INPUTS**0.5).astype(np.float32),
            "b1": np.zeros(_WIDTH, np.float32),
            "w2": np.zeros(_WIDTH, np.float32),
        }
        self._rng = rng
        self._inputs, self._labels = np.zeros((_KEPT, _INPUTS), np.float32), np.zeros(_KEPT, np.float32)
        self._claims = np.zeros(_KEPT, np.float32)
        self._open: dict[int, tuple[Floats, float]] = {}
        self._restart()
        self.examples = 0

    def _restart(self) -> None:
        self._moments = {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in self._weights.items()}
        self._steps = 0

    def inputs(self, result: CallResult, depth: int) -> Floats:
        """What it reads of the draft model's outputs at one row [1]: an array [_INPUTS]."""
        assert result.scores is not None
        ((_, states),) = result.hidden.items()
        state, scores = states[-1], result.scores[0].astype(np.float64)
        p = np.exp(scores - scores[0])
        p /= p.sum()
        logs = np.log(np.maximum(p, 1e-9))
        shape = (
            [p[0], p[1], logs[0], logs[0] - logs[1], -(p * logs).sum(), logs[-1] / 8] if len(p) > 1 else [0.0] * _SHAPE
        )
        found = np.zeros(_INPUTS, np.float32)
        found[:_PROJECTED] = np.einsum("i,ij->j", state, self._projection) / (
            float(np.sqrt(np.mean(state * state))) + 1e-6
        )
        found[_PROJECTED : _PROJECTED + _SHAPE] = shape
        found[_PROJECTED + _SHAPE + min(depth, _DEPTHS - 1)] = 1.0
        return found

    def chance(self, inputs: Floats, claim: float) -> float:
        """The probability that the token is accepted; `claim`: the estimate without this head."""
        w = self._weights
        score = _logit(claim) + float(w["w2"] @ np.tanh(w["w1"] @ inputs + w["b1"]))
        return min(max(1.0 / (1.0 + exp(-score)), _LEAST), _MOST)

    def hold(self, nodes: Mapping[int, tuple[Floats, float]]) -> None:
        """Store the examples of a draft until it is verified: by node, inputs and claim."""
        self._open = dict(nodes)

    def learn(self, node: int, accepted: bool) -> None:
        """Learn from a node whose parent was accepted."""
        if (example := self._open.pop(node, None)) is None:
            return
        at = self.examples % _KEPT
        self._inputs[at], self._claims[at], self._labels[at] = example[0], _logit(example[1]), accepted
        self.examples += 1
        if self.examples >= _BATCH and self.examples % _EVERY == 0:
            self._step(self._rng.integers(0, min(self.examples, _KEPT), _BATCH))

    def _step(self, some: NDArray[np.int64]) -> None:
        """One step of Adam on these examples: cross-entropy."""
        w, x = self._weights, self._inputs[some]
        hidden = np.tanh(x @ w["w1"].T + w["b1"])
        wrong = (1 / (1 + np.exp(-(self._claims[some] + hidden @ w["w2"]))) - self._labels[some]) / len(some)
        back = np.outer(wrong, w["w2"]) * (1 - hidden * hidden)
        gradients = {"w1": back.T @ x, "b1": back.sum(0), "w2": wrong @ hidden}
        self._steps += 1
        for name, gradient in gradients.items():
            first, second = self._moments[name]
            first += 0.1 * (gradient - first)
            second += 0.01 * (gradient * gradient - second)
            scale = _RATE * (1 - 0.99**self._steps) ** 0.5 / (1 - 0.9**self._steps)
            w[name] -= (scale * first / (np.sqrt(second) + 1e-8) + _RATE * _DECAY * w[name]).astype(np.float32)

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {f"accept.{name}": self._weights[name].copy() for name in _NAMES}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        for name in _NAMES:
            array = state.get(f"accept.{name}")
            if (
                array is None
                or array.shape != self._weights[name].shape
                or not np.isfinite(array.astype(np.float64)).all()
            ):
                raise UsageError(f"drafter model: state accept.{name} is not of this draft model; drop the file")
        self._weights = {name: state[f"accept.{name}"].astype(np.float32) for name in _NAMES}
        self._restart()


def _logit(p: float) -> float:
    p = min(max(p, _LEAST), _MOST)
    return log(p / (1 - p))
