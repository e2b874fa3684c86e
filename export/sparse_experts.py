"""What makes experts chosen by ReLU few, and the same for neighbours: the training objectives of BlockFFN
(arXiv:2507.08771), as its authors' code has them.

A router's scores are r = W x; a row passes the experts with r > 0. Two losses are means over layers:

    locality   BCE(sigmoid(100 r_t), sigmoid(100 r_t+1)): the experts of a token are those of the next one
    chunks     1 - mean exp(sum over 64 tokens of log(1 - p)), p = relu(r) / its sum: the share of experts that a chunk
               of tokens uses, if each used its experts by chance p

The first has a fixed factor; that of the second follows the loss (`Factor`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# The factor of the first loss, and the slope at which its sigmoids tell chosen from not chosen.
LOCALITY, STEEP = 2e-3, 100.0
CHUNK = 64
_SMALL = 1e-5


def locality(scores: Tensor, within: Tensor) -> Tensor:
    """scores [texts, tokens, experts]; within [texts, tokens]: 1 for a token of the text of the one before, else 0."""
    before, after = scores[:, :-1] * STEEP, scores[:, 1:] * STEEP
    found = functional.binary_cross_entropy_with_logits(before, torch.sigmoid(after), reduction="none").mean(-1)
    kept = within[:, 1:]
    return (found * kept).sum() / kept.sum().clamp(min=1)


def chunks(scores: Tensor, size: int = CHUNK) -> Tensor:
    """scores [texts, tokens, experts], tokens a multiple of `size`.

    One expert, size 2, always used alone: p = 1 -> 1 - exp(2 log 1e-5), almost 1; never used: p = 0 -> 0
    """
    positive = torch.relu(scores)
    p = positive / (positive.sum(-1, keepdim=True) + _SMALL)
    unused = torch.log(1 - p + _SMALL).unflatten(1, (-1, size)).sum(2)
    return 1 - torch.exp(unused).mean()


def used_shares(scores: Tensor, size: int) -> tuple[float, float]:
    """The share of experts that a token uses, and the share that any of `size` tokens in a row uses."""
    used = scores.detach() > 0
    return float(used.float().mean()), float(used.unflatten(1, (-1, size)).any(2).float().mean())


class Factor:
    """The factor of `chunks`: `start` for `steady` steps; then, every so many steps, it goes in a line to its value
    times the ratio of the mean loss of the last steps to that of those before. A loss that grows counts as growing by
    `least` or more; the factor stays below `most` times the start."""

    def __init__(
        self, start: float = 5e-2, steady: int = 1000, every: int = 100, most: float = 4.0, least: float = 1.025
    ) -> None:
        self.value, self.steps = start, 0
        self._top, self._least, self._steady, self._every = start * most, least, steady, every
        self._begin = self._end = start
        self._losses, self._before = list[float](), 0.0

    def step(self, loss: float) -> float:
        """Count a step of this loss; its factor."""
        used = self.value
        self.steps += 1
        self._losses.append(loss)
        if self.steps % self._every == 0:
            mean = sum(self._losses) / len(self._losses)
            if self.steps >= self._steady and self._before > 0:
                self._begin, self._end = used, used * min(self._ratio(mean / self._before), self._top / used)
            self._losses, self._before = [], mean
        done = (self.steps % self._every + 1) / self._every
        self.value = self._begin + (self._end - self._begin) * done
        return used

    def _ratio(self, ratio: float) -> float:
        return max(self._least, ratio) if ratio > 1 else ratio
