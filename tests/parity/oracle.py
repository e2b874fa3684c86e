"""A second opinion on the arithmetic: a ModelSpec and its weights run in float64, one plain loop at a time.

Shares no code with the runtimes, so that a mistake would have to be made twice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgedec.spec import ModelSpec, Rope

Array = np.ndarray
Get = Callable[[str], Array]


def forward(spec: ModelSpec, get: Get, tokens: list[int]) -> Array:
    """Logits [n, vocab] of a chain of tokens; `get(name)` is a weight of the bundle."""
    x = get("embed")[tokens].astype(np.float64) * spec.embed_scale
    for i in range(spec.n_layers):
        x = block(spec, get, x, i, "attn", attention)
        x = block(spec, get, x, i, "mlp", mlp)
    logits = norm(x, get("final_norm"), spec.norm_eps) @ get("embed" if spec.tied else "head").T
    return cap(logits, spec.final_softcap)


def block(spec: ModelSpec, get: Get, x: Array, i: int, name: str, inner: Callable[..., Array]) -> Array:
    y = norm(x, get(f"layers.{i}.{name}_norm"), spec.norm_eps) if spec.norm_before else x
    y = inner(spec, lambda tensor: get(f"layers.{i}.{tensor}"), y, i)
    return x + (norm(y, get(f"layers.{i}.{name}_post_norm"), spec.norm_eps) if spec.norm_after else y)


def attention(spec: ModelSpec, get: Get, x: Array, i: int) -> Array:
    qkv = x @ get("qkv").T + (get("qkv_bias") if spec.qkv_bias else 0.0)
    q, k = qkv[:, : spec.q_dim], qkv[:, spec.q_dim : spec.q_dim + spec.kv_dim]
    v = qkv[:, spec.q_dim + spec.kv_dim :].reshape(len(x), spec.n_kv_heads, spec.head_dim)
    q, k = (prepare(spec, get, part, which, i) for part, which in ((q, "q_norm"), (k, "k_norm")))
    out = np.zeros((len(x), spec.n_heads, spec.head_dim))
    for head in range(spec.n_heads):
        shared = head * spec.n_kv_heads // spec.n_heads
        for p in range(len(x)):
            first = max(0, p - spec.layers[i].window + 1) if spec.layers[i].window else 0
            scores = cap(k[first : p + 1, shared] @ q[p, head] * spec.attn_scale, spec.attn_softcap)
            weights = np.exp(scores - scores.max())
            out[p, head] = weights @ v[first : p + 1, shared] / weights.sum()
    return out.reshape(len(x), -1) @ get("o").T + (get("o_bias") if spec.o_bias else 0.0)


def prepare(spec: ModelSpec, get: Get, x: Array, which: str, i: int) -> Array:
    """q or k [n, heads * head_dim] -> normed and rotated [n, heads, head_dim]"""
    if spec.qk_norm == "full":
        x = norm(x, get(which), spec.norm_eps)
    x = x.reshape(len(x), -1, spec.head_dim)
    if spec.qk_norm == "head":
        x = norm(x, get(which), spec.norm_eps)
    rope = spec.layers[i].rope
    return x if rope is None else rotate(x, spec.ropes[rope])


def rotate(x: Array, rope: Rope) -> Array:
    """Pair j of a head is dims j and j + half: a complex number, turned by inv_freq[j] * position."""
    half = len(rope.inv_freq)
    pairs = x[..., :half] + 1j * x[..., half : 2 * half]
    angles = np.arange(len(x))[:, None] * np.array(rope.inv_freq)
    turned = pairs * (rope.scale * np.exp(1j * angles))[:, None]
    return np.concatenate([turned.real, turned.imag, x[..., 2 * half :]], axis=-1)


def mlp(spec: ModelSpec, get: Get, x: Array, i: int) -> Array:
    both = x @ get("gate_up").T + (get("gate_up_bias") if spec.mlp_bias else 0.0)
    gate, up = both[:, : spec.intermediate_size], both[:, spec.intermediate_size :]
    if spec.activation == "silu":
        gate = gate / (1 + np.exp(-gate))
    else:
        gate = gate / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    return (gate * up) @ get("down").T + (get("down_bias") if spec.mlp_bias else 0.0)


def norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def cap(x: Array, limit: float) -> Array:
    return np.tanh(x / limit) * limit if limit else x
