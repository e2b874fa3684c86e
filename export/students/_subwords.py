"""The network of dynamic tokenization in torch: `edgedec.bundle.subwords` says what it computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from edgedec.bundle.subwords import EPS, HEADS, LAYER


class SubwordModel:
    """weights: by the names of the file. It begins as the mean of the parts. scale: of the embeddings."""

    def __init__(self, hidden: int, width: int, layers: int, longest: int, scale: float) -> None:
        self.scale, self.longest, self.layers = scale, longest, layers
        counts = torch.arange(1, longest + 1)
        found = {
            "down": torch.randn(width, hidden) * hidden**-0.5,
            "up": torch.zeros(hidden, width),
            "place": 0.1 * torch.randn(longest, width),
            "count": 0.1 * torch.randn(longest, width),
            "mix": torch.where(counts - 1 < counts[:, None], 1.0 / counts[:, None], 0.0),
        }
        for layer in range(layers):
            for name, (out, into) in LAYER.items():
                found[f"{layer}.{name}"] = torch.randn(out * width, into * width) * (into * width) ** -0.5
        self.weights = {name: w.requires_grad_() for name, w in found.items()}

    def made(self, parts: Sequence[Tensor]) -> Tensor:
        """One embedding [n, H] of each word's parts [k, H]."""
        get, counts = self.weights, torch.tensor([len(part) for part in parts])
        padded = [functional.pad(part, (0, 0, 0, self.longest - len(part))) for part in parts]
        x, there = torch.stack(padded) / self.scale, torch.arange(self.longest) < counts[:, None]
        h = x @ get["down"].T + get["place"] + get["count"][counts - 1][:, None]
        for layer in range(self.layers):
            h = h + self._attention(layer, _rms(h), there)
            h = h + functional.relu(_rms(h) @ get[f"{layer}.into"].T) @ get[f"{layer}.back"].T
        held = (_rms(h) * there[..., None]).sum(1) / counts[:, None]
        return ((get["mix"][counts - 1][..., None] * x).sum(1) + held @ get["up"].T) * self.scale

    def _attention(self, layer: int, h: Tensor, there: Tensor) -> Tensor:
        q, k, v = (h @ self.weights[f"{layer}.qkv"].T).view(*h.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, there[:, None, None])
        return mixed.transpose(1, 2).flatten(2) @ self.weights[f"{layer}.o"].T


def _rms(x: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], None, EPS)
