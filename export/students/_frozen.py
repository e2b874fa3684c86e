"""The target in torch with frozen weights: gradients flow through it to the rows that are added to a text.

Attention and feed-forward blocks, from a bundle's weights as float32: 4 bytes a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from edgedec.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.spec import Attention, ModelSpec, Norm

# Keys and values of a text in one block, [n_kv_heads, T, head_dim] each.
Past = tuple[Tensor, Tensor]


def require_frozen(spec: ModelSpec, blocks: Iterable[int] | None = None) -> None:
    """Refuse a target with blocks of kinds that are not implemented here."""
    for block in spec.blocks if blocks is None else (spec.blocks[b] for b in blocks):
        odd = isinstance(block, Attention) and (block.paired or block.sink_logit)
        if odd or block.kind not in ("attention", "mlp"):
            why = f"it is trained through the target's attention and feed-forward blocks, not {block.kind}"
            raise UsageError(f"{spec.architecture}: {why}; train eagle3 or hydra")


class FrozenStack:
    """The stack of a bundle, or some of its blocks, on rows of one text."""

    def __init__(self, bundle: Bundle, device: torch.device, blocks: Sequence[int] | None = None) -> None:
        spec = self.spec = bundle.spec
        require_frozen(spec, blocks)
        some = range(spec.n_blocks) if blocks is None else blocks
        names = [f"blocks.{b}.{name}" for b in some for name in spec.blocks[b].tensors(spec.hidden_size)]
        self._weights = {name: torch.from_numpy(np.array(bundle.rows(name))).to(device) for name in names}

    def read(self, x: Tensor) -> list[Past | None]:
        """x [T, H], the embeddings of a text -> keys and values of each block, None of those that have none."""
        found: list[Past | None] = []
        place = torch.arange(len(x), device=x.device)
        with torch.no_grad():
            for b, block in enumerate(self.spec.blocks):
                past = None
                if isinstance(block, Attention):
                    q, *past_ = self._qkv(b, block, x, place)
                    past = (past_[0], past_[1])
                    scores = self._scores(block, q, past[0]).masked_fill(~_sees(block, place, place), float("-inf"))
                    y = self._out(b, block, scores.softmax(-1) @ self._spread(block, past[1]))
                else:
                    y = self._mlp(b, block, x)
                x = x + self._norm(b, block.post_norm, y, "post_norm")
                found.append(past)
        return found

    def ahead(self, x: Tensor, past: list[Past | None], first: int = 0) -> Tensor:
        """x [n, m, H]: m rows after row t of the text, t = 0 to n-1, each sees those before it, entering block `first`
        -> their last states."""
        n, m = x.shape[:2]
        text, own = torch.arange(n, device=x.device), torch.arange(1, m + 1, device=x.device)
        place = text[:, None] + own
        x = x.flatten(0, 1)
        for b, block in enumerate(self.spec.blocks[first:], first):
            if isinstance(block, Attention):
                seen = past[b]
                assert seen is not None
                y = self._attend_ahead(b, block, x, place, (seen[0][:, :n], seen[1][:, :n]))
            else:
                y = self._mlp(b, block, x)
            x = x + self._norm(b, block.post_norm, y, "post_norm")
        return x.view(n, m, -1)

    def beside(self, b: int, x: Tensor, text: Tensor, place: Tensor, lag: int) -> Tensor:
        """x [T, H], rows in the place of the text's states [T, H] that enter attention block b -> x after the block. A
        row sees of the text what lies more than `lag` tokens before it, of x the `lag` rows before it and itself."""
        block = self.spec.blocks[b]
        assert isinstance(block, Attention)
        q, *own = self._qkv(b, block, x, place)
        with torch.no_grad():
            _, *past = self._qkv(b, block, text, place)
        rows, sees = torch.arange(len(x), device=x.device), _sees(block, place, place)
        late = sees & (rows >= rows[:, None] - lag)
        early = sees & (rows < rows[:, None] - lag)
        scores = self._scores(block, q, torch.cat([past[0], own[0]], 1))
        weights = scores.masked_fill(~torch.cat([early, late], 1), float("-inf")).softmax(-1)
        mixed = weights @ self._spread(block, torch.cat([past[1], own[1]], 1))
        return x + self._norm(b, block.post_norm, self._out(b, block, mixed), "post_norm")

    def _attend_ahead(self, b: int, block: Attention, x: Tensor, place: Tensor, past: Past) -> Tensor:
        (n, m), d = place.shape, block.head_dim
        q, k, v = self._qkv(b, block, x, place.flatten())
        text = torch.arange(n, device=x.device)
        before = self._scores(block, q, past[0]).view(-1, n, m, n)
        sees = _sees(block, place.flatten(), text).view(n, m, n) & (text <= text[:, None])[:, None]
        q, k, v = (
            q.view(-1, n, m, d),
            self._spread(block, k).view(-1, n, m, d),
            self._spread(block, v).view(-1, n, m, d),
        )
        own = self._capped(block, q @ k.mT * block.scale)
        own = own.masked_fill(~_sees(block, place[0], place[0]), float("-inf"))
        weights = torch.cat([before.masked_fill(~sees, float("-inf")), own], -1).softmax(-1)
        mixed = (weights[..., :n].flatten(1, 2) @ self._spread(block, past[1])).view(-1, n, m, d)
        return self._out(b, block, (mixed + weights[..., n:] @ v).flatten(1, 2))

    # ---- one block

    def _get(self, b: int, name: str) -> Tensor:
        return self._weights[f"blocks.{b}.{name}"]

    def _norm(self, b: int, kind: Norm, x: Tensor, name: str = "norm") -> Tensor:
        if kind == "none":
            return x
        weight, eps = self._get(b, name), self.spec.norm_eps
        if kind == "rms":
            return functional.rms_norm(x, x.shape[-1:], weight, eps)
        return functional.layer_norm(x, x.shape[-1:], weight, self._get(b, f"{name}_bias"), eps)

    def _linear(self, b: int, name: str, x: Tensor, bias: bool) -> Tensor:
        return functional.linear(x, self._get(b, name), self._get(b, f"{name}_bias") if bias else None)

    def _qkv(self, b: int, block: Attention, x: Tensor, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of rows x [n, H] at their places: [heads, n, head_dim] each."""
        y = functional.linear(
            self._norm(b, block.norm, x), self._get(b, "qkv"), self._get(b, "qkv_bias") if block.qkv_bias else None
        )
        q, k, v = y.split([block.q_dim, block.kv_dim, block.kv_dim], -1)
        if block.qk_norm == "full":
            q, k = self._norm(b, "rms", q, "q_norm"), self._norm(b, "rms", k, "k_norm")
        q, k, v = (a.view(len(x), -1, block.head_dim).transpose(0, 1) for a in (q, k, v))
        if block.qk_norm == "head":
            q, k = self._norm(b, "rms", q, "q_norm"), self._norm(b, "rms", k, "k_norm")
        return self._rotated(block, q, place), self._rotated(block, k, place), v

    def _rotated(self, block: Attention, x: Tensor, place: Tensor) -> Tensor:
        if block.rope is None:
            return x
        rope = self.spec.ropes[block.rope]
        angle = place[:, None] * torch.tensor(rope.inv_freq, device=x.device)
        cos, sin, half = rope.scale * angle.cos(), rope.scale * angle.sin(), len(rope.inv_freq)
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def _spread(self, block: Attention, x: Tensor) -> Tensor:
        """One head for each of the query heads."""
        return x.repeat_interleave(block.n_heads // block.n_kv_heads, 0)

    def _scores(self, block: Attention, q: Tensor, keys: Tensor) -> Tensor:
        return self._capped(block, q @ self._spread(block, keys).mT * block.scale)

    def _capped(self, block: Attention, x: Tensor) -> Tensor:
        return block.softcap * torch.tanh(x / block.softcap) if block.softcap else x

    def _out(self, b: int, block: Attention, mixed: Tensor) -> Tensor:
        """mixed [heads, n, head_dim] -> [n, H]"""
        return self._linear(b, "o", mixed.transpose(0, 1).flatten(1), block.o_bias)

    def _mlp(self, b: int, block: Any, x: Tensor) -> Tensor:
        y = self._linear(b, block.up, self._norm(b, block.norm, x), block.bias)
        if block.gated:
            gate, y = y.chunk(2, -1)
            y = _activation(block.activation, gate) * y
        else:
            y = _activation(block.activation, y)
        return self._linear(b, "down", y, block.bias)


def _sees(block: Attention, rows: Tensor, keys: Tensor) -> Tensor:
    """bool [rows, keys]: which places may a row attend to?"""
    sees = keys <= rows[:, None]
    if block.window is not None:
        sees &= (keys > rows[:, None] - block.window) | (keys < block.sinks)
    return sees


def _activation(kind: str, x: Tensor) -> Tensor:
    match kind:
        case "silu":
            return functional.silu(x)
        case "relu":
            return functional.relu(x)
        case _:
            return functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")
