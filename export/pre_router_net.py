"""The pre-router of Read-ME as a network, and the loss that it learns by (`spec.pre_router`, `export.domain_experts`).

From the authors' code (VITA-Group/READ-ME, `cluster_predictor_class` in their `modeling_llama.py` and `loss_func` in
`moe_fication/train_red.py`). The table begins with the first values of the model's embeddings, matrices as He's
initialization gives them. The loss of a layer, for the inputs u of its last matrix (with their signs) and experts of n
neurons: a neuron's weight is how many of the n, 4n/5, 3n/5, 2n/5 and n/5 largest of u it is among, over 3n; an expert's
overlap is the sum over its own neurons, shared ones apart, less the mean over tokens and experts, times 10. The router
learns the expert of the largest overlap by cross entropy (labels smoothed by 0.5, weight 0.75) and the softmax of the
overlaps by another (0.25). The losses of all layers are added up.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_SMOOTHING, _LABELS, _SHARPNESS = 0.5, 0.75, 10.0
_FIFTHS = 5


class RouterNet(nn.Module):  # type: ignore[misc]
    """Its parameters have the names of the block's tensors, and `table` the rows of tokens."""

    def __init__(self, embeddings: Tensor, size: int, heads: int, experts: int, theta: float, eps: float) -> None:
        super().__init__()
        self.heads, self.size, self.theta, self.eps = heads, size, theta, eps
        self.table = nn.Parameter(embeddings[:, :size].clone())
        for name, rows in (("qkv", 3 * size), ("o", size), ("up", size), ("down", size), ("router", experts)):
            weight = torch.empty(rows, size)
            nn.init.kaiming_uniform_(weight)
            bias = torch.empty(rows)
            nn.init.uniform_(bias, -(size**-0.5), size**-0.5)
            self.register_parameter(name, nn.Parameter(weight))
            self.register_parameter(f"{name}_bias", nn.Parameter(bias))
        for name in ("norm", "up_norm", "out_norm"):
            self.register_parameter(name, nn.Parameter(torch.ones(size)))

    def forward(self, ids: Tensor) -> Tensor:
        """ids [n], a text from its start -> logits of the experts [n, experts]."""
        x = self.table[ids]
        x = x + self._linear(self._attended(self._linear(self._normed(x, "norm"), "qkv")), "o")
        x = x + self._linear(functional.silu(self._linear(self._normed(x, "up_norm"), "up")), "down")
        return self._linear(self._normed(x, "out_norm"), "router")

    def _attended(self, qkv: Tensor) -> Tensor:
        q, k, v = (part.view(len(qkv), self.heads, -1).transpose(0, 1) for part in qkv.split(self.size, dim=1))
        scores = self._turned(q) @ self._turned(k).transpose(1, 2)
        later = torch.ones(len(qkv), len(qkv), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return (weights @ v).transpose(0, 1).reshape(len(qkv), -1)

    def _turned(self, x: Tensor) -> Tensor:
        """x [heads, n, dim] turned by its places."""
        half = x.shape[-1] // 2
        rates = self.theta ** (-torch.arange(0, 2 * half, 2, dtype=torch.float64) / (2 * half))
        angles = (torch.arange(x.shape[1])[:, None] * rates).float()
        a, b = x.split(half, dim=-1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)

    def _normed(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.get_parameter(name)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, self.get_parameter(name), self.get_parameter(f"{name}_bias"))

    def tensors(self) -> dict[str, Any]:
        """The parameters, detached."""
        return {name: w.detach().contiguous() for name, w in self.named_parameters()}


def overlaps(u: Tensor, own: Tensor) -> Tensor:
    """u [n, neurons], own [experts, neurons] of 0 and 1 -> the overlaps [n, experts]."""
    size = max(1, int(own[0].sum()))
    largest = u.sort(dim=-1, descending=True).values
    weights = torch.zeros_like(u)
    for among in (size - 1, *(size * fifth // _FIFTHS for fifth in range(_FIFTHS - 1, 0, -1))):
        weights += (u > largest[:, among, None]) / 3 / size
    found = weights @ own.T
    return (found - found.mean()) * _SHARPNESS


def router_loss(logits: Tensor, u: Tensor, own: Tensor) -> Tensor:
    """The loss of a layer. logits [n, experts]; u, own: as of `overlaps`."""
    target = overlaps(u, own)
    soft = -(target.softmax(-1) * logits.log_softmax(-1)).sum() / len(logits)
    labels = functional.cross_entropy(logits, target.argmax(-1), label_smoothing=_SMOOTHING)
    return _LABELS * labels + (1 - _LABELS) * soft
