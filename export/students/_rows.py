"""Attention of rows to the keys of other rows and to some of their own, as drafting has it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from edgedec.export.students import StudentShape
from edgedec.export.students._layers import linear, rotated

# Keys and values [heads, n, head_dim] of n rows.
Keys = tuple[Tensor, Tensor]


class RowAttention(nn.Module):
    """Grouped-query attention with rotary positions; rows need not see what lies before them."""

    def __init__(self, shape: StudentShape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = linear(shape.hidden, shape.n_heads * shape.head_dim)
        self.k_proj = linear(shape.hidden, shape.n_kv_heads * shape.head_dim)
        self.v_proj = linear(shape.hidden, shape.n_kv_heads * shape.head_dim)
        self.o_proj = linear(shape.n_heads * shape.head_dim, shape.hidden, zero=True)

    def keys(self, x: Tensor, place: Tensor) -> Keys:
        """Of rows x [n, H] at their places [n]."""
        s = self.shape
        k, v = (p(x).view(len(x), -1, s.head_dim).transpose(0, 1) for p in (self.k_proj, self.v_proj))
        k, v = (a.repeat_interleave(s.n_heads // s.n_kv_heads, 0) for a in (rotated(k, place, s.theta), v))
        return k, v

    def forward(self, x: Tensor, place: Tensor, text: Keys, sees: Tensor, own: Sequence[Keys] = ()) -> Tensor:
        """x [n, H] at their places: row i attends to the m keys of `text` that sees [n, m] names, and to key i of each
        of `own` -> [n, H]"""
        s, m = self.shape, sees.shape[1]
        q = rotated(self.q_proj(x).view(len(x), -1, s.head_dim).transpose(0, 1), place, s.theta)
        scores = [(q @ text[0].mT).masked_fill(~sees, float("-inf"))]
        scores += [(q * key).sum(-1, keepdim=True) for key, _ in own]
        weights = (torch.cat(scores, -1) * s.head_dim**-0.5).softmax(-1)
        found = weights[..., :m] @ text[1]
        for i, (_, value) in enumerate(own):
            found = found + weights[..., m + i, None] * value
        return self.o_proj(found.transpose(0, 1).reshape(len(x), -1))
