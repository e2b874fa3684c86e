"""The oracle: the model in numpy float32, written to be read. Every other runtime is held against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.folder import Bundle
from edgedec.cache.host import Cache
from edgedec.runtime.core import Begun, Call, RuntimeOptions, Want, choose_kv
from edgedec.runtime.rows import Rows
from edgedec.spec import ModelSpec

Array = NDArray[np.float32]
# Rows start..stop of the named weight, as float32.
Weights = Callable[[str, int, int], Array]
_VOCAB_CHUNK = 8192


def open(bundle: Bundle, options: RuntimeOptions) -> Reference:  # noqa: A001
    kv = choose_kv(bundle, options.kv)
    return Reference(bundle.spec, _Kept(bundle), kv, kv_scales(bundle, kv))


class _Kept:
    """A bundle's weights, widened to float32 once."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle, self._stored = bundle, dict[str, Array]()

    def __call__(self, name: str, start: int, stop: int) -> Array:
        if name not in self._stored:
            self._stored[name] = self._bundle.rows(name)
        return self._stored[name][start:stop]


def kv_scales(bundle: Bundle, kv: str) -> Array | None:
    """Static cache scales [n_layers, 2, n_kv_heads, 1, head_dim], None for float caches."""
    if kv not in ("int8", "int4"):
        return None
    spec = bundle.spec
    offset = getattr(bundle.manifest.kv_scales, kv)
    return bundle.array(offset, np.float32, (spec.n_layers, 2, spec.n_kv_heads, 1, spec.head_dim))


class Reference:
    """A runtime over any source of float weights: a bundle's, or a checkpoint's at export."""

    name = "reference"
    invariant = False

    def __init__(self, spec: ModelSpec, weights: Weights, kv: str = "f32", scales: Array | None = None) -> None:
        self.spec, self._weights, self.kv, self._scales = spec, weights, kv, scales
        self._shapes = spec.tensors()

    def load(self) -> None:
        """Nothing to open."""

    def release(self) -> None:
        """Nothing to give back."""

    def call(self, rows: Rows, cache: Cache, skip: int, want: Want, begun: Begun | None = None) -> None:
        """Nothing quicker than embed, run and head."""

    def call_all(self, calls: Sequence[Call]) -> None:
        """Nothing quicker than one after the other."""

    def new_cache(self, capacity: int) -> Cache:
        return Cache(self.spec, capacity, self.kv)

    def embed(self, tokens: NDArray[np.int64]) -> Array:
        rows = [self._weights("embed", int(t), int(t) + 1) for t in tokens]
        return np.concatenate(rows) * np.float32(self.spec.embed_scale)

    def run(self, hidden: Array, rows: Rows, cache: Cache, blocks: Sequence[int]) -> Array:
        cache.reserve(len(rows))
        for block in blocks:
            layer, is_mlp = divmod(block, 2)
            hidden = self._mlp(layer, hidden) if is_mlp else self._attention(layer, hidden, rows, cache)
        return hidden

    def head(self, hidden: Array) -> Array:
        x = rms_norm(hidden, self._get("final_norm"), self.spec.norm_eps)
        name = "embed" if self.spec.tied else "head"
        vocab = self.spec.vocab_size
        logits = np.empty((len(hidden), vocab), np.float32)
        for at in range(0, vocab, _VOCAB_CHUNK):
            stop = min(at + _VOCAB_CHUNK, vocab)
            logits[:, at:stop] = x @ self._weights(name, at, stop).T
        cap = np.float32(self.spec.final_softcap)
        return np.tanh(logits / cap) * cap if cap else logits

    def _attention(self, i: int, x: Array, rows: Rows, cache: Cache) -> Array:
        spec, p = self.spec, f"layers.{i}"
        q, k, v = self._qkv(i, self._norm(x, f"{p}.attn_norm") if spec.norm_before else x)
        positions = rows.positions[rows.first :]
        q, k = self._rotate(i, q, positions), self._rotate(i, k, positions)
        slots = slice(cache.length + rows.first, cache.length + len(rows))
        cache.keys(i)[:, slots], cache.values(i)[:, slots] = self._store(i, 0, k), self._store(i, 1, v)
        keys = self._load(i, 0, cache.keys(i)[:, : slots.stop])
        values = self._load(i, 1, cache.values(i)[:, : slots.stop])
        y = attend(q, keys, values, rows.mask(cache.length, spec.layers[i].window), spec)
        y = self._linear(y, f"{p}.o", spec.o_bias)
        return x + (self._norm(y, f"{p}.attn_post_norm") if spec.norm_after else y)

    def _mlp(self, i: int, x: Array) -> Array:
        spec, p = self.spec, f"layers.{i}"
        y = self._norm(x, f"{p}.mlp_norm") if spec.norm_before else x
        gate, up = np.split(self._linear(y, f"{p}.gate_up", spec.mlp_bias), 2, axis=1)
        y = self._linear(activation(gate, spec.activation) * up, f"{p}.down", spec.mlp_bias)
        return x + (self._norm(y, f"{p}.mlp_post_norm") if spec.norm_after else y)

    def _qkv(self, i: int, x: Array) -> tuple[Array, Array, Array]:
        """x [n, hidden] -> q [n_heads, n, head_dim], k and v [n_kv_heads, n, head_dim]."""
        spec, p = self.spec, f"layers.{i}"
        qkv = self._linear(x, f"{p}.qkv", spec.qkv_bias)
        q, k, v = np.split(qkv, [spec.q_dim, spec.q_dim + spec.kv_dim], axis=1)
        if spec.qk_norm == "full":
            q, k = self._norm(q, f"{p}.q_norm"), self._norm(k, f"{p}.k_norm")
        q, k, v = (a.reshape(len(x), -1, spec.head_dim).transpose(1, 0, 2) for a in (q, k, v))
        if spec.qk_norm == "head":
            q, k = self._norm(q, f"{p}.q_norm"), self._norm(k, f"{p}.k_norm")
        return q, k, v

    def _rotate(self, i: int, x: Array, positions: NDArray[np.int64]) -> Array:
        """x [heads, n, head_dim] turned by its positions."""
        which = self.spec.layers[i].rope
        if which is None:
            return x
        rope = self.spec.ropes[which]
        angles = positions[:, None] * np.array(rope.inv_freq)
        cos, sin = (np.float32(rope.scale) * f(angles).astype(np.float32) for f in (np.cos, np.sin))
        half = len(rope.inv_freq)
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)

    def _store(self, i: int, part: int, x: Array) -> NDArray[Any]:
        """x [n_kv_heads, n, head_dim] in the cache's format."""
        if self._scales is None:
            return x.astype(np.float16 if self.kv == "f16" else np.float32)
        q = np.rint(x / self._scales[i, part])
        if self.kv == "int8":
            return np.clip(q, -128, 127).astype(np.int8)
        stored = (np.clip(q, -8, 7) + 8).astype(np.uint8)
        return stored[..., 0::2] | stored[..., 1::2] << 4

    def _load(self, i: int, part: int, stored: NDArray[Any]) -> Array:
        """The inverse of `_store`."""
        if self._scales is None:
            return stored.astype(np.float32)
        if self.kv == "int4":
            pairs = np.stack([stored & 15, stored >> 4], axis=-1)
            stored = pairs.reshape(*stored.shape[:2], -1).astype(np.int8) - 8
        return stored * self._scales[i, part]

    def _get(self, name: str) -> Array:
        return self._weights(name, 0, self._shapes[name][0])

    def _norm(self, x: Array, name: str) -> Array:
        return rms_norm(x, self._get(name), self.spec.norm_eps)

    def _linear(self, x: Array, name: str, bias: bool) -> Array:
        y = x @ self._get(name).T
        return y + self._get(f"{name}_bias") if bias else y


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x [..., n] over its root mean square, times weight [n]."""
    scale = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
    return x / scale * weight


def activation(x: Array, kind: str) -> Array:
    if kind == "silu":
        return x / (1 + np.exp(-np.clip(x, -80, None)))
    return 0.5 * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)))


def attend(q: Array, keys: Array, values: Array, mask: NDArray[np.bool_], spec: ModelSpec) -> Array:
    """q [heads, n, d], keys and values [kv_heads, total, d], mask [n, total] -> [n, heads * d]."""
    group = spec.n_heads // spec.n_kv_heads
    n = q.shape[1]
    q = q.reshape(spec.n_kv_heads, group * n, spec.head_dim)
    scores = (q @ keys.transpose(0, 2, 1)).reshape(spec.n_kv_heads, group, n, -1) * np.float32(spec.attn_scale)
    if spec.attn_softcap:
        scores = np.tanh(scores / np.float32(spec.attn_softcap)) * np.float32(spec.attn_softcap)
    scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = weights.reshape(spec.n_kv_heads, group * n, -1) @ values
    return mixed.reshape(spec.n_heads, n, spec.head_dim).transpose(1, 0, 2).reshape(n, -1)
