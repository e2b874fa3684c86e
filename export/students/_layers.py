"""Parts of draft models, named as transformers' Llama names them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.export.students import StudentShape


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)


def linear(inputs: int, outputs: int, *, zero: bool = False, bias: bool = False) -> nn.Linear:
    """A matrix initialized to keep the size of its input, or to zeros."""
    made = nn.Linear(inputs, outputs, bias=bias)
    if zero:
        nn.init.zeros_(made.weight)
    else:
        nn.init.normal_(made.weight, std=inputs**-0.5)
    if bias:
        nn.init.zeros_(made.bias)
    return made


class Unrolled:
    """Keys and values of the steps of an unrolled draft: at step k row t sees rows up to t of step 0, and of the
    later steps itself, as in drafting, where these stand for tokens t + 1 to t + k."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []


class UnrolledAttention(nn.Module):
    """Grouped-query attention with rotary positions over the steps of an unrolled draft."""

    def __init__(self, shape: StudentShape, inputs: int) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = linear(inputs, shape.n_heads * shape.head_dim)
        self.k_proj = linear(inputs, shape.n_kv_heads * shape.head_dim)
        self.v_proj = linear(inputs, shape.n_kv_heads * shape.head_dim)
        self.o_proj = linear(shape.n_heads * shape.head_dim, shape.hidden, zero=True)

    def forward(self, x: Tensor, past: Unrolled) -> Tensor:
        """x [n, inputs], the next step of `past` -> [n, H]"""
        n, step, s = len(x), len(past.keys), self.shape
        q, k, v = (p(x).view(n, -1, s.head_dim).transpose(0, 1) for p in (self.q_proj, self.k_proj, self.v_proj))
        place = torch.arange(step, step + n, device=x.device)
        q, k = rotated(q, place, s.theta), rotated(k, place, s.theta)
        k, v = (a.repeat_interleave(s.n_heads // s.n_kv_heads, 0) for a in (k, v))
        past.keys.append(k)
        past.values.append(v)
        first = q @ past.keys[0].mT
        hidden_later = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        scores = [first.masked_fill(hidden_later, float("-inf"))]
        scores += [(q * key).sum(-1, keepdim=True) for key in past.keys[1:]]
        weights = (torch.cat(scores, -1) * s.head_dim**-0.5).softmax(-1)
        found = weights[..., :n] @ past.values[0]
        for i, value in enumerate(past.values[1:]):
            found = found + weights[..., n + i, None] * value
        return self.o_proj(found.transpose(0, 1).reshape(n, -1))


def rotated(x: Tensor, place: Tensor, theta: float) -> Tensor:
    """x [heads, n, d] turned by its places [n], first half of a head with the second."""
    half = x.shape[-1] // 2
    angle = place[:, None] * theta ** (-torch.arange(half, device=x.device) / half)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class GatedMlp(nn.Module):
    def __init__(self, shape: StudentShape) -> None:
        super().__init__()
        self.gate_proj = linear(shape.hidden, shape.inner)
        self.up_proj = linear(shape.hidden, shape.inner)
        self.down_proj = linear(shape.inner, shape.hidden, zero=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


def parameters(student: nn.Module) -> dict[str, Tensor]:
    """Its tensors, as its modules name them."""
    return {name: tensor.detach() for name, tensor in student.state_dict().items()}


def llama_config(shape: StudentShape, architecture: str) -> dict[str, Any]:
    """The config.json of a checkpoint of one Llama layer."""
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "max_position_embeddings": shape.context,
        "vocab_size": shape.vocab,
        "torch_dtype": "float32",
    }


def capped(logits: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(logits / cap) if cap else logits
