"""The frozen target on rows after a cache, with or without low-rank weights, and its coprocessor."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.bundle import Bundle
from edgedec.export.students._frozen import FrozenStack, _sees
from edgedec.spec import Attention

# Keys and values [n_kv_heads, T, head_dim] by attention block, and the place of each [T].
Held = tuple[dict[int, tuple[Tensor, Tensor]], Tensor]
Deltas = Mapping[str, tuple[Tensor, Tensor]]


class AugmentedStack(FrozenStack):
    """The stack on rows after a cache; the rows need not be tokens."""

    def __init__(self, bundle: Bundle, device: torch.device) -> None:
        super().__init__(bundle, device)
        self._deltas: Deltas = {}

    def matrices(self) -> dict[str, tuple[int, int]]:
        """The shapes (out, in) of the matrices that low-rank weights may change."""
        found = {}
        for b, block in enumerate(self.spec.blocks):
            for name, shape in block.matrices(self.spec.hidden_size).items():
                found[f"blocks.{b}.{name}"] = (shape[0], shape[1])
        return found

    def after(self, x: Tensor, place: Tensor, past: Held | None, deltas: Deltas | None = None) -> tuple[Tensor, Held]:
        """x [n, H] at their places, in order, after `past` (None: nothing) -> their last states, and the cache with
        them. deltas: b and a of low-rank weights."""
        self._deltas, held = deltas or {}, dict[int, tuple[Tensor, Tensor]]()
        before = place[:0] if past is None else past[1]
        places = torch.cat([before, place])
        rows = torch.arange(len(places))
        order = rows <= rows[len(before) :, None]
        for b, block in enumerate(self.spec.blocks):
            if isinstance(block, Attention):
                q, *own = self._qkv(b, block, x, place)
                k, v = own if past is None else (torch.cat(pair, 1) for pair in zip(past[0][b], own, strict=True))
                held[b] = k, v
                scores = self._scores(block, q, k).masked_fill(~(order & _near(block, place, places)), float("-inf"))
                y = self._out(b, block, scores.softmax(-1) @ self._spread(block, v))
            else:
                y = self._mlp(b, block, x)
            x = x + self._norm(b, block.post_norm, y, "post_norm")
        self._deltas = {}
        return x, (held, places)

    def _get(self, b: int, name: str) -> Tensor:
        weight, delta = super()._get(b, name), self._deltas.get(f"blocks.{b}.{name}")
        return weight if delta is None else weight + delta[0] @ delta[1]


class CoprocessorModel(nn.Module):
    """Soft rows, low-rank weights, and the matrix that makes rows of states."""

    def __init__(self, stack: AugmentedStack, entries: int, rank: int, embeddings: Tensor) -> None:
        super().__init__()
        hidden, self.size = embeddings.shape[-1], float(embeddings.std()) + 1e-6
        self.soft = nn.Parameter(embeddings.mean(0) / self.size + 0.5 * torch.randn(entries, hidden))
        self.out = nn.Parameter(torch.eye(hidden))
        shapes = stack.matrices()
        self.names = {name.replace(".", "-"): name for name in shapes}
        self.a = nn.ParameterDict(
            {key: torch.randn(rank, shapes[name][1]) * shapes[name][1] ** -0.5 for key, name in self.names.items()}
        )
        self.b = nn.ParameterDict({key: torch.zeros(shapes[name][0], rank) for key, name in self.names.items()})

    def deltas(self) -> dict[str, tuple[Tensor, Tensor]]:
        """b and a of each matrix by its name."""
        return {name: (self.b[key], self.a[key]) for key, name in self.names.items()}

    def rows(self, states: Tensor) -> Tensor:
        """The rows to cache of the last states [n, H]."""
        return functional.rms_norm(states, states.shape[-1:], None, 1e-6) @ (self.size * self.out).T


def _near(block: Attention, place: Tensor, places: Tensor) -> Tensor:
    """bool [rows, keys]: what a window leaves in view."""
    if block.window is None:
        return torch.ones(len(place), len(places), dtype=torch.bool)
    return _sees(block, place, places)
