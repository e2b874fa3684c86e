"""Text encoders that transformers has no class for, in numpy after their authors' formulas: the states of the rows
after the last norm, or the logits.

Jina v2: jina-bert-implementation and jina-bert-v2-qk-post-norm on the Hub; NeoBERT: arXiv:2502.19587 and its model.py;
nomic-embed-text-v2-moe: nomic-bert-2048's modeling file. Everything is in float64, and nothing of edgedec is used."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Config = dict[str, Any]


class Weights:
    """Tensors by name, with a prefix before all of them."""

    def __init__(self, tensors: dict[str, Array], prefix: str = "") -> None:
        self._tensors, self._prefix = tensors, prefix

    def at(self, prefix: str) -> Weights:
        return Weights(self._tensors, self._prefix + prefix)

    def get(self, name: str) -> Array:
        return self._tensors[self._prefix + name].astype(np.float64)

    def linear(self, name: str, x: Array) -> Array:
        bias = f"{self._prefix}{name}.bias"
        return x @ self.get(f"{name}.weight").T + self._tensors.get(bias, np.zeros(1))

    def layer_norm(self, name: str, x: Array, eps: float) -> Array:
        apart = x - x.mean(axis=-1, keepdims=True)
        scaled = apart / np.sqrt(np.square(apart).mean(axis=-1, keepdims=True) + eps)
        return scaled * self.get(f"{name}.weight") + self.get(f"{name}.bias")

    def rms_norm(self, name: str, x: Array, eps: float) -> Array:
        return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + eps) * self.get(f"{name}.weight")


def softmax(x: Array) -> Array:
    found = np.exp(x - x.max(axis=-1, keepdims=True))
    return found / found.sum(axis=-1, keepdims=True)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"gelu": gelu, "relu": relu, "silu": silu}


def attention(q: Array, k: Array, v: Array, bias: Array | float = 0.0) -> Array:
    """q, k and v [n, heads, dim], bias [heads, n, n] -> [n, heads * dim]."""
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1]) + bias
    return np.einsum("hij,jhd->ihd", softmax(scores), v).reshape(len(q), -1)


def slopes(heads: int) -> list[float]:
    """ALiBi's, by its authors' recursion."""

    def of_power(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(heads).is_integer():
        return of_power(heads)
    lower = 2 ** math.floor(math.log2(heads))
    return of_power(lower) + slopes(2 * lower)[0::2][: heads - lower]


def jina_bert(c: Config, tensors: dict[str, Array], tokens: list[int], types: list[int]) -> Array:
    prefix = "bert." if "bert.embeddings.LayerNorm.weight" in tensors else ""
    w, eps, heads = Weights(tensors, prefix), c["layer_norm_eps"], c["num_attention_heads"]
    x = w.get("embeddings.word_embeddings.weight")[tokens] + w.get("embeddings.token_type_embeddings.weight")[types]
    x = w.layer_norm("embeddings.LayerNorm", x, eps)
    places = np.arange(len(tokens))
    bias = -np.array(slopes(heads))[:, None, None] * np.abs(places[None, :] - places[:, None])
    for i in range(c["num_hidden_layers"]):
        layer = w.at(f"encoder.layer.{i}.")
        own = layer.at("attention.self.")
        q, k, v = (own.linear(name, x) for name in ("query", "key", "value"))
        normed = f"{prefix}encoder.layer.{i}.layer_norm_1.weight" in tensors
        if normed:
            q, k = own.layer_norm("layer_norm_q", q, eps), own.layer_norm("layer_norm_k", k, eps)
        y = attention(*(part.reshape(len(x), heads, -1) for part in (q, k, v)), bias)
        y = layer.layer_norm("attention.output.LayerNorm", layer.linear("attention.output.dense", y) + x, eps)
        x = _of_code(c, layer, x, y) if normed else _of_text(c, layer, y)
    if "classifier.weight" not in tensors:
        return x
    return Weights(tensors).linear("classifier", np.tanh(w.linear("pooler.dense", x[0])))


def _of_text(c: Config, layer: Weights, x: Array) -> Array:
    """The feed-forward of the first implementation."""
    eps, inner, kind = c["layer_norm_eps"], c["intermediate_size"], c.get("feed_forward_type", "original")
    if kind == "original":
        y = layer.linear("output.dense", ACTIVATIONS[c["hidden_act"]](layer.linear("intermediate.dense", x)))
        return layer.layer_norm("output.LayerNorm", y + x, eps)
    both = layer.linear("mlp.gated_layers", x)
    y = {"geglu": gelu, "reglu": relu}[kind](both[:, :inner]) * both[:, inner:]
    return layer.layer_norm("mlp.layernorm", layer.linear("mlp.wo", y) + x, eps)


def _of_code(c: Config, layer: Weights, x: Array, y: Array) -> Array:
    """The rest of a layer of the second one."""
    eps, inner = c["layer_norm_eps"], c["intermediate_size"]
    x = layer.layer_norm("layer_norm_1", x + y, eps)
    both = layer.linear("mlp.up_gated_layer", x)
    act = {"geglu": gelu, "reglu": relu}[c["feed_forward_type"]]
    y = layer.linear("mlp.down_layer", both[:, :inner] * act(both[:, inner:]))
    return layer.layer_norm("layer_norm_2", x + y, eps)


def neobert(c: Config, tensors: dict[str, Array], tokens: list[int], types: list[int]) -> Array:
    w = Weights(tensors, "model." if "model.encoder.weight" in tensors else "")
    eps, heads, dim = c["norm_eps"], c["num_attention_heads"], c["hidden_size"] // c["num_attention_heads"]
    turns = np.exp(1j * np.outer(np.arange(len(tokens)), 10000.0 ** (-np.arange(0, dim, 2) / dim)))[:, None]

    def turned(part: Array) -> Array:
        pairs = (part[..., 0::2] + 1j * part[..., 1::2]) * turns
        return np.stack([pairs.real, pairs.imag], axis=-1).reshape(part.shape)

    x = w.get("encoder.weight")[tokens]
    for i in range(c["num_hidden_layers"]):
        layer = w.at(f"transformer_encoder.{i}.")
        qkv = layer.linear("qkv", layer.rms_norm("attention_norm", x, eps)).reshape(len(x), heads, 3 * dim)
        q, k, v = np.split(qkv, 3, axis=-1)
        x = x + layer.linear("wo", attention(turned(q), turned(k), v))
        gate, up = np.split(layer.linear("ffn.w12", layer.rms_norm("ffn_norm", x, eps)), 2, axis=-1)
        x = x + layer.linear("ffn.w3", silu(gate) * up)
    x = w.rms_norm("layer_norm", x, eps)
    if "classifier.weight" not in tensors:
        return x
    head = Weights(tensors)
    return head.linear("classifier", np.tanh(head.linear("dense", x[0])))


def nomic_moe(c: Config, tensors: dict[str, Array], tokens: list[int], types: list[int]) -> Array:
    w, eps, heads = Weights(tensors), c["layer_norm_epsilon"], c["n_head"]
    dim = c["n_embd"] // heads
    angles = np.outer(np.arange(len(tokens)), c["rotary_emb_base"] ** (-np.arange(0, dim, 2) / dim))[:, None]

    def turned(part: Array) -> Array:
        a, b = np.split(part, 2, axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    x = w.get("embeddings.word_embeddings.weight")[tokens] + w.get("embeddings.token_type_embeddings.weight")[types]
    x = w.layer_norm("emb_ln", x, eps)
    for i in range(c["n_layer"]):
        layer = w.at(f"encoder.layers.{i}.")
        q, k, v = np.split(layer.linear("attn.Wqkv", x).reshape(len(x), 3 * heads, dim), 3, axis=1)
        x = layer.layer_norm("norm1", x + layer.linear("attn.out_proj", attention(turned(q), turned(k), v)), eps)
        mixed = i % c["moe_every_n_layers"] == 1
        y = _experts(c, layer, x) if mixed else layer.linear("mlp.fc2", gelu(layer.linear("mlp.fc1", x)))
        x = layer.layer_norm("norm2", x + y, eps)
    return x


def _experts(c: Config, layer: Weights, x: Array) -> Array:
    """Each row by its likeliest experts, times their chances among all; one bias for the sum."""
    shape = (c["num_experts"], c["n_inner"], c["n_embd"])
    first, second = (layer.get(f"mlp.experts.mlp.w{n}").reshape(shape) for n in (1, 2))
    chances = softmax(layer.linear("mlp.router.layer", x))
    y = np.zeros_like(x)
    for row, of in enumerate(chances):
        for e in np.argsort(-of)[: c["moe_top_k"]]:
            y[row] += of[e] * (gelu(first[e] @ x[row]) @ second[e])
    return y + layer.get("mlp.experts.bias")
