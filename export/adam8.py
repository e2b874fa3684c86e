"""Adam whose two moments take a byte a weight instead of four each.

Dettmers et al., "8-bit Optimizers via Block-wise Quantization"; the code from memory of the authors' release
(bitsandbytes, `create_dynamic_map`). Moments are kept in blocks of 2048, divided by the block's largest magnitude, as
the nearest of 256 values whose exponents and fractions share the bits ("dynamic tree"): small values keep a relative
precision, which a linear code would round to zero, and a second moment of zero would make a step of any size. So a
second moment is never rounded to zero (our own: theirs may be). Each step widens them to float32, updates, moves the
weights by the exact result and rounds again. Tensors of less than 4096 weights keep float32, as theirs do. Their stable
embedding layer is a change of the model and no part of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

BLOCK, LEAST = 2048, 4096
# Parts of a weight's state, in the order of the two moments.
MOMENTS = ("exp_avg", "exp_avg_sq")
SCALES = ("exp_avg_scales", "exp_avg_sq_scales")


class Adam8(torch.optim.Optimizer):  # type: ignore[misc]
    """As torch's AdamW: weight_decay is decoupled, and zero makes it Adam."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def step(self, closure: None = None) -> None:
        """One update of every weight that has a gradient."""
        with torch.no_grad():
            for group in self.param_groups:
                for w in group["params"]:
                    if w.grad is not None:
                        self._update(w, group)

    def _update(self, w: Tensor, group: dict[str, Any]) -> None:
        state, (one, two) = self.state[w], group["betas"]
        if not state:
            self._begin(w, state)
        state["step"] += 1
        first = _moment(state, 0, w).lerp_(w.grad, 1 - one)
        second = _moment(state, 1, w).mul_(two).addcmul_(w.grad, w.grad, value=1 - two)
        _keep(state, 0, first)
        _keep(state, 1, second)
        t = float(state["step"])
        w.mul_(1 - group["lr"] * group["weight_decay"])
        wide = second.sqrt().div_((1 - two**t) ** 0.5).add_(group["eps"])
        w.addcdiv_(first, wide, value=-group["lr"] / (1 - one**t))

    def _begin(self, w: Tensor, state: dict[str, Tensor]) -> None:
        state["step"] = torch.tensor(0.0)
        for i, name in enumerate(MOMENTS):
            state[name] = torch.zeros_like(w, memory_format=torch.preserve_format)
            if w.numel() >= LEAST:
                state[name], state[SCALES[i]] = packed(state[name], signed=i == 0)


def _moment(state: dict[str, Tensor], i: int, w: Tensor) -> Tensor:
    """The first or second moment of a weight, in float32."""
    if SCALES[i] not in state:
        return state[MOMENTS[i]]
    return unpacked(state[MOMENTS[i]], state[SCALES[i]], signed=i == 0).view_as(w)


def _keep(state: dict[str, Tensor], i: int, moment: Tensor) -> None:
    if SCALES[i] in state:
        state[MOMENTS[i]], state[SCALES[i]] = packed(moment, signed=i == 0)


def packed(x: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """float32 of any shape -> codes uint8 [n], scales float32 [blocks]."""
    flat, values = x.reshape(-1), codes(signed).to(x.device)
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1)
    middles = (values[1:] + values[:-1]) / 2
    found = torch.bucketize(blocks / scales.clamp_min(1e-38)[:, None], middles)
    if not signed:
        found = found.where((found > 0) | (blocks == 0), 1)
    return found.view(-1)[: len(flat)].to(torch.uint8), scales


def unpacked(stored: Tensor, scales: Tensor, signed: bool) -> Tensor:
    """codes [n], scales [blocks] -> float32 [n]."""
    found = codes(signed).to(stored.device)[stored.int()]
    return found * scales.repeat_interleave(BLOCK)[: len(found)]


@cache
def codes(signed: bool) -> Tensor:
    """The 256 values, in order. With i of seven exponents 10^(i - 6), there are 2^i fractions of either sign, or twice
    as many of one; 0 and 1 are values too."""
    found = [0.0, 1.0]
    for i in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (i if signed else i + 1) + 1, dtype=torch.float64)
        means = ((edges[1:] + edges[:-1]) / 2 * 10.0 ** (i - 6)).tolist()
        found += means + ([-mean for mean in means] if signed else [])
    return torch.tensor(sorted(found), dtype=torch.float32)
