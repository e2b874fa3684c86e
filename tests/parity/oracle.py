"""A second implementation of the arithmetic: a ModelSpec and its weights run in float64, one plain loop at a time.

Shares no code with the runtimes, so that a mistake would have to be made twice.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from edgedec.spec import (
    S6,
    AltUp,
    Attention,
    ChannelMix,
    Conv,
    Delta,
    Gmu,
    LatentAttention,
    Laurel,
    Lookup,
    Mlp,
    ModelSpec,
    Moe,
    Rope,
    Rwkv7,
    SharedAttention,
    Ssm,
)

Array = np.ndarray
Get = Callable[[str], Array]


def forward(spec: ModelSpec, get: Get, tokens: list[int]) -> Array:
    """Logits [n, vocab] of a chain of tokens; `get(name)` is a weight of the bundle."""
    x = entered(spec, get, get("embed")[tokens].astype(np.float64) * spec.embed_scale)
    total, beside = x, np.zeros_like(x)
    seen: dict[Any, Any] = {"embedding": x, "tokens": tokens, "table": get}
    streams: list[Array] = []
    made: Array | None = None  # by a block that feeds
    before = x
    for b, block in enumerate(spec.blocks):
        own = lambda name, b=b: get(f"blocks.{b}.{name}").astype(np.float64)  # noqa: E731
        if isinstance(block, AltUp):
            x = total = updated(spec, block, own, x, streams)
            continue
        feeds = getattr(block, "feeds", False)
        seen["before"], before = before, x
        y = added(spec, b, own, x if made is None else made if feeds else x + made, seen)
        made = y if feeds else None
        if feeds:
            continue
        if isinstance(block, Lookup) and block.streams:
            for i in range(1, len(streams)):
                streams[i] = streams[i] + y
            continue
        total, beside = total + y, beside + y
        if block.branch:
            continue
        if getattr(block, "joined", "none") != "none":
            total = x + normed(spec, block.joined, own, "joined_norm", beside)
        x = total = total * own("state_scale") if getattr(block, "state_scale", False) else total
        x = total = total * block.scale if isinstance(block, Laurel) else total
        x = total = normed(spec, block.after, own, "after_norm", x)
        beside = np.zeros_like(x)
    x, layer = normed(spec, spec.final_norm, get, "final_norm", x), spec.head_layer
    if layer is not None:
        x = act(x @ get("head_layer").T + (get("head_layer_bias") if layer.bias else 0.0), layer.activation)
        x = normed(spec, layer.norm, get, "head_layer_norm", x)
    logits = x @ get("embed" if spec.tied else "head").T
    return cap(logits + (get("head_bias") if spec.head_bias else 0.0), spec.final_softcap)


def updated(spec: ModelSpec, block: AltUp, get: Get, x: Array, streams: list[Array]) -> Array:
    """The state after an altup block, of which the streams are changed."""

    def size(values: Array) -> Array:
        return np.sqrt((values**2).mean(1, keepdims=True))

    def modes(values: Array) -> Array:
        return np.tanh(norm(values, get("router_norm"), spec.norm_eps) @ get("router").T)

    if block.step in ("enter", "leave"):
        like = x if block.step == "enter" else streams[0]
        made = [like]
        for i in range(1, block.streams):
            y = (x if block.step == "enter" else streams[i]) @ get(f"projection_{i}").T
            made.append(y * size(like) / np.maximum(size(y), math.sqrt(1e-5)))
        streams[:] = made
        return x if block.step == "enter" else sum(made) / len(made)
    old = list(streams)
    if block.step == "predict":
        coefs = (modes(old[block.active]) @ get("coefs").T).reshape(len(x), block.streams, block.streams)
        for i in range(block.streams):
            streams[i] = old[i] + sum(coefs[:, i, k, None] * old[k] for k in range(block.streams))
    else:
        coefs = modes(x) @ get("coefs").T
        for i in range(block.streams):
            streams[i] = old[i] + (x - old[block.active]) * (coefs[:, i, None] + 1)
    return streams[block.active]


def entered(spec: ModelSpec, get: Get, x: Array) -> Array:
    """What enters the first block: learned positions, a norm."""
    if spec.entry is None:
        return x
    if spec.entry.positions:
        x = x + get("positions")[: len(x)]
    return normed(spec, spec.entry.norm, get, "entry_norm", x)


def normed(spec: ModelSpec, kind: str, get: Get, name: str, x: Array) -> Array:
    """x normed over its last axis by the tensors `name`."""
    if kind == "rms":
        return norm(x, get(name), spec.norm_eps)
    if kind == "layer":
        mean = x.mean(-1, keepdims=True)
        return (x - mean) / np.sqrt(x.var(-1, keepdims=True) + spec.norm_eps) * get(name) + get(f"{name}_bias")
    return x


def added(spec: ModelSpec, b: int, get: Get, x: Array, seen: dict[Any, Any]) -> Array:
    """What block b adds to x. seen: what later blocks read of the embedding and of earlier blocks."""
    block = spec.blocks[b]
    kinds = (channel_mix, conv, delta, latent, mlp, ssm)
    x = np.concatenate([x, seen["embedding"]], axis=1) if getattr(block, "with_embedding", False) else x
    inner = x if block.kind == "pre_router" else normed(spec, block.norm, get, "norm", x)
    if isinstance(block, SharedAttention):
        y = shared_attention(spec, block, get, inner, seen)
    elif isinstance(block, Lookup):
        y = lookup(spec, b, get, inner, seen)
    elif isinstance(block, Laurel):
        y = inner + norm(inner @ get("left").T @ get("right").T, get("low_norm"), spec.norm_eps)
    elif isinstance(block, Gmu):
        gate = inner @ get("gate").T + (get("gate_bias") if block.bias else 0.0)
        y = (act(gate, "silu") * seen[block.values_of]) @ get("out").T + (get("out_bias") if block.bias else 0.0)
    elif block.kind == "s6":
        y, seen[b] = s6(spec, block, get, inner)
    elif block.kind == "rwkv7":
        y, seen[b] = rwkv7(spec, block, get, inner, seen)
    elif block.kind == "pre_router":
        y, seen[b] = np.zeros_like(x), pre_routed(spec, b, get, seen)
    elif block.kind == "attention":
        y, *seen[b] = attention(spec, block, get, inner)
    elif block.kind == "moe":
        entered = seen["before"] if block.early_router else x
        read = norm(entered, get("router_norm"), spec.norm_eps) if block.router_norm else inner
        read = entered if block.early_router and not block.router_norm else read
        y = moe(spec, block, get, inner, read, seen[block.given_by] if block.given else None)
    else:
        y = {kind.__name__: kind for kind in kinds}[block.kind](spec, block, get, inner)
    return normed(spec, block.post_norm, get, "post_norm", y)


def pre_routed(spec: ModelSpec, b: int, get: Get, seen: dict[Any, Any]) -> Array:
    """The expert of each token."""
    part = spec.lookups[b]
    e = seen["table"]("lookup")[seen["tokens"]][:, part.start : part.stop]
    e = e + attention(spec, spec.blocks[b], get, norm(e, get("norm"), spec.norm_eps))[0]
    inner = act(norm(e, get("up_norm"), spec.norm_eps) @ get("up").T + get("up_bias"), "silu")
    e = e + inner @ get("down").T + get("down_bias")
    return np.argmax(norm(e, get("out_norm"), spec.norm_eps) @ get("router").T + get("router_bias"), axis=1)


def lookup(spec: ModelSpec, b: int, get: Get, x: Array, seen: dict[Any, Any]) -> Array:
    block, part = spec.blocks[b], spec.lookups[b]
    own = seen["table"]("lookup")[seen["tokens"]][:, part.start : part.stop]
    context = norm(seen["embedding"] @ get("context").T, get("context_norm"), spec.norm_eps)
    x = x * get("input_scale") if block.input_scale else x
    return (act(x @ get("gate").T, block.activation, None) * (context + own)) @ get("out").T


def shared_attention(spec: ModelSpec, block: SharedAttention, get: Get, x: Array, seen: dict[Any, Any]) -> Array:
    q = x @ get("q").T + (get("q_bias") if block.q_bias else 0.0)
    if block.differential:
        return differ(spec, block, get, q, *seen[block.slots_of]) @ get("o").T + (
            get("o_bias") if block.o_bias else 0.0
        )
    q = prepare(spec, block.attention, get, q, "q_norm")
    mixed = mix(block.attention, get, q, *seen[block.slots_of])
    return mixed.reshape(len(x), -1) @ get("o").T + (get("o_bias") if block.o_bias else 0.0)


def attention(spec: ModelSpec, block: Attention, get: Get, x: Array) -> tuple[Array, Array, Array]:
    """What it adds, its keys and its values."""
    qkv = x @ get("qkv").T + (get("qkv_bias") if block.qkv_bias else 0.0)
    if block.clip:
        qkv = np.minimum(np.maximum(qkv, -block.clip), block.clip)
    q, k = qkv[:, : block.q_dim], qkv[:, block.q_dim : block.q_dim + block.kv_dim]
    v = k if block.k_is_v else qkv[:, block.q_dim + block.kv_dim :][:, : block.kv_dim]
    v = v.reshape(len(x), block.n_kv_heads, block.head_dim)
    v = norm(v, np.ones(block.head_dim), spec.norm_eps) if block.v_norm else v
    if block.differential:
        k = halves_turned(spec, block, k).reshape(v.shape)
        return differ(spec, block, get, q, k, v) @ get("o").T + (get("o_bias") if block.o_bias else 0.0), k, v
    q, k = (prepare(spec, block, get, part, which) for part, which in ((q, "q_norm"), (k, "k_norm")))
    out = mix(block, get, q, k, v)
    if block.gate != "none":
        gate = 1 / (1 + np.exp(-qkv[:, -block.gate_dim :]))
        out = out * (gate[:, :, None] if block.gate == "head" else gate.reshape(out.shape))
    mixed = normed(spec, block.inner_norm, get, "inner_norm", out.reshape(len(x), -1))
    return mixed @ get("o").T + (get("o_bias") if block.o_bias else 0.0), k, v


def halves_turned(spec: ModelSpec, block: Attention | SharedAttention, x: Array) -> Array:
    """x [n, heads * half], each half of a key or query turned by itself."""
    if block.rope is None:
        return x
    return rotate(x.reshape(len(x), -1, block.head_dim // 2), spec.ropes[block.rope]).reshape(x.shape)


def differ(spec: ModelSpec, block: Attention | SharedAttention, get: Get, q: Array, k: Array, v: Array) -> Array:
    """Queries [n, heads * half] over keys and values, by pairs: [n, heads * half]."""
    q = halves_turned(spec, block, q)
    half, out, l0 = block.head_dim // 2, np.zeros((len(q), block.n_heads // 2, block.head_dim)), get("lambdas")
    shares = [math.exp(l0[i * half :][:half] @ l0[(i + 1) * half :][:half]) for i in (0, 2)]
    for pair in range(block.n_heads // 2):
        kv = 2 * pair * block.n_kv_heads // block.n_heads
        for p in range(len(q)):
            seen = slice(max(0, p - block.window + 1) if block.window else 0, p + 1)
            for part, times in ((0, 1.0), (1, -(shares[0] - shares[1] + block.differential))):
                own = q[p, (2 * pair + part) * half :][:half]
                scores = cap(k[seen, kv, part * half :][:, :half] @ own * block.scale, block.softcap)
                weights = np.exp(scores - scores.max())
                out[p, pair] += times * (weights @ v[seen, kv]) / weights.sum()
    return norm(out, get("pair_norm"), spec.norm_eps).reshape(len(q), -1)


def mix(block: Attention, get: Get, q: Array, k: Array, v: Array) -> Array:
    """Queries over keys and values: [n, heads, head_dim]."""
    out = np.zeros_like(q)
    for head in range(block.n_heads):
        shared = head * block.n_kv_heads // block.n_heads
        for p in range(len(q)):
            first = max(0, p - block.window + 1) if block.window else 0
            scores = cap(k[first : p + 1, shared] @ q[p, head] * block.scale, block.softcap)
            lost = get("sink_logit")[head] if block.sink_logit else -np.inf
            most = max(scores.max(), lost)
            if block.slopes:
                scores = scores + block.slopes[head] * np.arange(first, p + 1)
            weights = np.exp(scores - most)
            out[p, head] = weights @ v[first : p + 1, shared] / (weights.sum() + np.exp(lost - most))
    return out


def latent(spec: ModelSpec, block: LatentAttention, get: Get, x: Array) -> Array:
    """Each head's own keys and values, made of the state: nothing is absorbed."""
    n, turned, out = len(x), block.rope_dim, np.zeros((len(x), block.n_heads, block.v_dim))
    low = x
    if block.q_rank:
        low = x @ get("q_a").T + (get("q_a_bias") if block.qkv_bias else 0.0)
        low = norm(low, get("q_a_norm"), block.inner_eps)
    q = (low @ get("q").T).reshape(n, block.n_heads, turned + block.nope_dim)
    kv = x @ get("kv_a").T + (get("kv_a_bias") if block.qkv_bias else 0.0)
    state = norm(kv[:, turned:], get("kv_norm"), block.inner_eps)
    key, rope = kv[:, None, :turned], None if block.rope is None else spec.ropes[block.rope]
    if rope is not None:
        q, key = np.concatenate([rotate(q[..., :turned], rope), q[..., turned:]], axis=2), rotate(key, rope)
    k_up = get("k_up").reshape(block.n_heads, block.rank, block.nope_dim)
    v_up = get("v_up").reshape(block.n_heads, block.v_dim, block.rank)
    for head in range(block.n_heads):
        keys, values = np.concatenate([key[:, 0], state @ k_up[head]], axis=1), state @ v_up[head].T
        for p in range(n):
            first = max(0, p - block.window + 1) if block.window else 0
            scores = keys[first : p + 1] @ q[p, head] * block.scale
            weights = np.exp(scores - scores.max())
            out[p, head] = weights @ values[first : p + 1] / weights.sum()
    return out.reshape(n, -1) @ get("o").T + (get("o_bias") if block.o_bias else 0.0)


def prepare(spec: ModelSpec, block: Attention, get: Get, x: Array, which: str) -> Array:
    """q or k [n, heads * head_dim] -> normed and rotated [n, heads, head_dim]"""
    if block.qk_norm == "full":
        x = normed(spec, block.qk_norm_kind, get, which, x)
    x = x.reshape(len(x), -1, block.head_dim)
    rope = None if block.rope is None else spec.ropes[block.rope]
    if rope is not None and block.qk_norm_last:
        x = rotate(x, rope)
    if block.qk_norm == "head":
        x = normed(spec, block.qk_norm_kind, get, which, x)
    if block.qk_norm == "heads":
        by_head = lambda name: get(name).reshape(-1, block.head_dim)  # noqa: E731
        x = np.stack(
            [normed(spec, block.qk_norm_kind, lambda n, h=h: by_head(n)[h], which, x[:, h]) for h in range(x.shape[1])],
            1,
        )
    return x if rope is None or block.qk_norm_last else rotate(x, rope)


def rotate(x: Array, rope: Rope) -> Array:
    """Pair j of a head is dims j and j + half: a complex number, turned by inv_freq[j] * position."""
    half = len(rope.inv_freq)
    pairs = x[..., :half] + 1j * x[..., half : 2 * half]
    angles = np.arange(len(x))[:, None] * np.array(rope.inv_freq)
    turned = pairs * (rope.scale * np.exp(1j * angles))[:, None]
    return np.concatenate([turned.real, turned.imag, x[..., 2 * half :]], axis=-1)


def mlp(spec: ModelSpec, block: Mlp, get: Get, x: Array) -> Array:
    up = x @ get(block.up).T + (get(f"{block.up}_bias") if block.bias else 0.0)
    own = get("xielu") if block.activation == "xielu" else None
    if block.sparsity:
        gate = up[:, : block.inner_size]
        above = statistics.NormalDist().inv_cdf(block.sparsity)
        least = gate.mean(1, keepdims=True) + above * gate.std(1, keepdims=True)
        up = np.concatenate([np.maximum(gate - least, 0), up[:, block.inner_size :]], axis=1)
    inner = gated(up, block.activation) if block.gated else act(up, block.activation, own)
    inner = normed(spec, block.inner_norm, get, "inner_norm", inner)
    return inner @ get("down").T + (get("down_bias") if block.bias else 0.0)


def moe(spec: ModelSpec, block: Moe, get: Get, x: Array, routed: Array, given: Array | None) -> Array:
    """One row at a time, one expert at a time. routed: what the router reads; given: the experts of the rows."""
    hidden, out = x.shape[1], np.zeros_like(x)

    def activated(up: Array) -> Array:
        return gated(up[None], block.activation)[0] if block.gated else act(up, block.activation)

    biased = np.zeros((len(x), block.n_experts)) if block.given else routed @ get("router").T
    for row, logits in enumerate(biased + (get("router_logit_bias") if block.logit_bias else 0.0)):
        chosen, weights = rectified(spec, get, logits) if block.router == "relu" else chosen_experts(block, get, logits)
        chosen, weights = (chosen, weights) if given is None else (given[row : row + 1], np.ones(1))
        protected = block.protect_from and np.abs(routed[row]).sum() >= block.protect_from
        if block.drop_below and weights[-1] / weights[0] < block.drop_below and not protected:
            chosen, weights = chosen[:-1], weights[:-1]
            weights = weights / (weights.sum() if block.router == "softmax_topk" else 1)
        for expert, weight in zip(chosen, weights / (weights.sum() if block.normalize else 1), strict=True):
            weight = weight * get("expert_scale")[expert] if block.expert_scale else weight
            ups, downs = (slice(expert * n, (expert + 1) * n) for n in (block.up_rows, hidden))
            first, second = (of_level(block, name, expert) for name in (block.up, "down"))
            up = get(first).reshape(-1, block.up_rows, hidden)[place(block, expert)] @ x[row]
            up = up + (get(f"{block.up}_bias")[ups] if block.bias else 0.0)
            inner = cut_off(up) if block.clamped else activated(up)
            y = get(second).reshape(-1, hidden, block.inner_size)[place(block, expert)] @ inner
            y = y + (get("down_bias")[downs] if block.bias else 0.0)
            out[row] += block.scale * weight * y
    if block.shared_size:
        gate = 1 / (1 + np.exp(-x @ get("shared_gate").T)) if block.shared_gate else 1.0
        out += gate * (np.stack([activated(up) for up in x @ get(block.shared_up).T]) @ get("shared_down").T)
    return out


def of_level(block: Moe, name: str, expert: int) -> str:
    level = block.levels[expert] if block.levels else 0
    return name if level == 0 else f"{name}_{level}"


def place(block: Moe, expert: int) -> int:
    """How many experts of its level come before it."""
    return sum(level == block.levels[expert] for level in block.levels[:expert]) if block.levels else expert


def cut_off(both: Array) -> Array:
    """gpt-oss's activation of gate and up, one after the other."""
    gate, up = np.split(both, 2)
    gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
    return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


def chosen_experts(block: Moe, get: Get, logits: Array) -> tuple[Array, Array]:
    """The experts of a row and their weights, not normalized yet."""
    if block.router == "softmax_topk":
        chosen = np.argsort(-logits)[: block.top_k]
        return chosen, np.exp(logits[chosen]) / np.exp(logits[chosen]).sum()
    if block.router == "sparsemixer":
        chosen = np.argsort(-logits)[: block.top_k]
        return chosen, np.array([near_share(block, logits, chosen[: j + 1]) for j in range(block.top_k)])
    scores = 1 / (1 + np.exp(-logits)) if block.router == "sigmoid" else np.exp(logits) / np.exp(logits).sum()
    ranked = scores + (get("router_bias") if block.router_bias else 0.0)
    size = block.n_experts // block.groups
    groups = range(block.groups)
    best = sorted(groups, key=lambda g: -sum(sorted(ranked[g * size : (g + 1) * size])[-2:]))[: block.top_groups]
    allowed = [e for e in range(block.n_experts) if e // size in best]
    chosen = np.array(sorted(allowed, key=lambda e: -ranked[e])[: block.top_k])
    return chosen, scores[chosen]


def rectified(spec: ModelSpec, get: Get, logits: Array) -> tuple[Array, Array]:
    """BlockFFN's experts of a row: those with logits above zero, and their shares of the norm of all."""
    chosen = np.flatnonzero(logits > 0)
    size = np.sqrt((logits[chosen] ** 2).sum() / len(logits) + spec.norm_eps)
    return chosen, logits[chosen] / size * get("score_norm")[chosen]


def near_share(block: Moe, logits: Array, chosen: Array) -> float:
    """The weight of the last chosen expert, by softmax among those near it that are not chosen before it."""
    best = logits[chosen[-1]]
    left = [s for e, s in enumerate(logits) if e not in chosen[:-1]]
    near = [s for s in left if (best - s) / max(abs(s), best) <= 2 * block.jitter]
    return float(1 / sum(np.exp(s - best) for s in near))


def ssm(spec: ModelSpec, block: Ssm, get: Get, x: Array) -> Array:
    """One row, one head at a time: S = exp(dt a) S + dt x B^T, y = S C + d x."""
    inner, wide = block.n_heads * block.head_dim, block.n_groups * block.state_size
    projected = x @ get("in_proj").T + (get("in_proj_bias") if block.proj_bias else 0.0)
    z, xbc, dt = projected[:, :inner], projected[:, inner : 2 * inner + 2 * wide], projected[:, 2 * inner + 2 * wide :]
    padded = np.concatenate([np.zeros((block.conv_size - 1, xbc.shape[1])), xbc])
    dt = np.clip(np.log1p(np.exp(dt + get("dt_bias"))), block.dt_min, block.dt_max)
    y, state = np.zeros((len(x), inner)), np.zeros((block.n_heads, block.head_dim, block.state_size))
    for row in range(len(x)):
        conv = sum(padded[row + j] * get("conv")[:, j] for j in range(block.conv_size)) + get("conv_bias")
        mixed = conv / (1 + np.exp(-conv))
        for head in range(block.n_heads):
            at = head * block.head_dim
            own, group = mixed[at : at + block.head_dim], head * block.n_groups // block.n_heads * block.state_size
            b, c = (mixed[start + group :][: block.state_size] for start in (inner, inner + wide))
            step = dt[row, head]
            state[head] = np.exp(step * get("a")[head]) * state[head] + step * np.outer(own, b)
            y[row, at : at + block.head_dim] = state[head] @ c + get("d")[head] * own
    normed = y * z / (1 + np.exp(-z))
    if block.norm_groups:
        parts = normed.reshape(len(x), block.norm_groups, -1)
        normed = norm(parts, np.ones(parts.shape[-1]), spec.norm_eps).reshape(len(x), -1) * get("gate_norm")
    return normed @ get("out_proj").T + (get("out_proj_bias") if block.proj_bias else 0.0)


def s6(spec: ModelSpec, block: S6, get: Get, x: Array) -> tuple[Array, Array]:
    """One row, one channel at a time: S = exp(dt a) S + dt x B, y = S C + d x. What it adds, and y."""
    inner, size, rank = block.inner_size, block.state_size, block.dt_rank
    projected = x @ get("in_proj").T + (get("in_proj_bias") if block.proj_bias else 0.0)
    padded = np.concatenate([np.zeros((block.conv_size - 1, inner)), projected[:, :inner]])
    y, state = np.zeros((len(x), inner)), np.zeros((inner, size))
    for row in range(len(x)):
        conv = sum(padded[row + j] * get("conv")[:, j] for j in range(block.conv_size)) + get("conv_bias")
        own = conv / (1 + np.exp(-conv))
        parts = np.split(get("x_proj") @ own, [rank, rank + size])
        if block.part_norm != "none":
            weights = [get(f"{name}_norm") if block.part_norm == "rms" else 1.0 for name in ("dt", "b", "c")]
            parts = [norm(part, weight, block.part_eps) for part, weight in zip(parts, weights, strict=True)]
        low, b, c = parts
        steps = np.log1p(np.exp(get("dt_proj") @ low + get("dt_bias")))
        for i in range(inner):
            state[i] = np.exp(steps[i] * get("a")[i]) * state[i] + steps[i] * own[i] * b
            y[row, i] = state[i] @ c + get("d")[i] * own[i]
    z = projected[:, inner:]
    return (y * z / (1 + np.exp(-z))) @ get("out_proj").T + (get("out_proj_bias") if block.proj_bias else 0.0), y


def conv(spec: ModelSpec, block: Conv, get: Get, x: Array) -> Array:
    """One row at a time: y_t = C_t * sum over j of w_j (B * x)_(t - K + 1 + j)."""
    size, n = block.inner_size, block.conv_size
    projected = x @ get("in_proj").T + (get("in_proj_bias") if block.bias else 0.0)
    gate, inputs = projected[:, size : 2 * size], projected[:, :size] * projected[:, 2 * size :]
    padded, y = np.concatenate([np.zeros((n - 1, size)), inputs]), np.zeros((len(x), size))
    for row in range(len(x)):
        y[row] = sum(padded[row + j] * get("conv")[:, j] for j in range(n)) + (get("conv_bias") if block.bias else 0.0)
    return (gate * y) @ get("out_proj").T + (get("out_proj_bias") if block.bias else 0.0)


def delta(spec: ModelSpec, block: Delta, get: Get, x: Array) -> Array:
    """One row, one head at a time: S = e^g S, then S = S + k (beta (v - S^T k))^T, y = S^T q."""
    inner, keys, n = block.n_heads * block.head_dim, block.n_groups * block.key_dim, block.conv_size
    first, z, b, g = np.split(x @ get("in_proj").T, np.cumsum(block.sections)[:3], axis=1)
    if block.rank:
        z, g = z @ get("gate_up").T, g @ get("decay_up").T
    g = np.log1p(np.exp(g + get("dt_bias"))).reshape(len(x), block.n_heads, -1)
    padded = np.concatenate([np.zeros((n - 1, first.shape[1])), first])
    y, state = (
        np.zeros((len(x), block.n_heads, block.head_dim)),
        np.zeros((block.n_heads, block.key_dim, block.head_dim)),
    )
    for row in range(len(x)):
        mixed = sum(padded[row + j] * get("conv")[:, j] for j in range(n))
        mixed = mixed / (1 + np.exp(-mixed))
        for head in range(block.n_heads):
            group = head * block.n_groups // block.n_heads * block.key_dim
            k, q = (mixed[inner + at + group :][: block.key_dim] for at in (0, keys))
            k, q = k / np.sqrt(k @ k + 1e-6), q / np.sqrt(q @ q + 1e-6) / block.key_dim**0.5
            s = state[head] * np.exp(get("a")[head] * g[row, head])[:, None]
            beta = block.beta_scale / (1 + np.exp(-b[row, head]))
            s = s + np.outer(k, beta * (mixed[head * block.head_dim :][: block.head_dim] - k @ s))
            state[head], y[row, head] = s, q @ s
    y = norm(y, get("gate_norm"), block.eps or spec.norm_eps).reshape(len(x), -1)
    return (y * (z if block.gate == "silu" else 1.0) / (1 + np.exp(-z))) @ get("out_proj").T


def rwkv7(spec: ModelSpec, block: Rwkv7, get: Get, x: Array, seen: dict[Any, Any]) -> tuple[Array, Array]:
    """One row, one head at a time: S = S (diag(w) - u (u a)^T) + v k^T, y = S r. What it adds, and its values."""
    before = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
    xr, xw, xk, xv, xa, xg = (x * (1 - mu) + before * mu for mu in get("mix"))

    def low(name: str, y: Array, between: Callable[[Array], Array] = lambda y: y) -> Array:
        return between(y @ get(f"{name}_down").T) @ get(f"{name}_up").T

    def sigmoid(y: Array) -> Array:
        return 1 / (1 + np.exp(-y))

    decay = np.exp(-math.exp(-0.5) * sigmoid(low("decay", xw, np.tanh) + get("decay_bias")))
    rate, gate = sigmoid(low("rate", xa) + get("rate_bias")), low("gate", xg, sigmoid)
    r, k, v = xr @ get("r").T, xk @ get("k").T, xv @ get("v").T
    if block.values_of is not None:
        share = sigmoid(low("value", xv) + get("value_bias"))
        v = v * (1 - share) + seen[block.values_of] * share
    sought, k = k * get("key_scale"), k + k * get("key_rate") * (rate - 1)
    y, state = np.zeros_like(v), np.zeros((block.n_heads, block.head_dim, block.key_dim))
    for row in range(len(x)):
        for head in range(block.n_heads):
            keys = slice(head * block.key_dim, (head + 1) * block.key_dim)
            own = slice(head * block.head_dim, (head + 1) * block.head_dim)
            u = sought[row, keys] / np.linalg.norm(sought[row, keys])
            change = np.diag(decay[row, keys]) - np.outer(u, u * rate[row, keys])
            state[head] = state[head] @ change + np.outer(v[row, own], k[row, keys])
            out = state[head] @ r[row, keys]
            out = (out - out.mean()) / np.sqrt(out.var() + block.eps) * get("out_norm")[own] + get("out_norm_bias")[own]
            y[row, own] = out + (r[row, keys] * k[row, keys]) @ get("bonus")[keys] * v[row, own]
    return (y * gate) @ get("o").T, v


def channel_mix(spec: ModelSpec, block: ChannelMix, get: Get, x: Array) -> Array:
    before = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
    return np.maximum((x * (1 - get("mix")) + before * get("mix")) @ get("up").T, 0) ** 2 @ get("down").T


def gated(both: Array, activation: str) -> Array:
    """[n, 2 * inner] -> activation(first half) * second half."""
    gate, up = np.split(both, 2, axis=1)
    return act(gate, activation) * up


def act(x: Array, kind: str, own: Array | None = None) -> Array:
    """The activation of each value."""
    if kind == "silu":
        return x / (1 + np.exp(-x))
    if kind.startswith("relu"):
        return np.where(x > 0, x, 0.0) ** (2 if kind == "relu2" else 1)
    if kind == "gelu":
        return x / 2 * (1 + np.vectorize(math.erf)(x / 2**0.5))
    if kind == "xielu":
        p, n, b, eps = own
        p, n = math.log1p(math.exp(p)), b + math.log1p(math.exp(n))
        return np.where(x > 0, p * x**2, n * (np.exp(np.minimum(x, eps)) - 1 - x)) + b * x
    assert kind == "gelu_tanh"
    return x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


def norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def cap(x: Array, limit: float) -> Array:
    return np.tanh(x / limit) * limit if limit else x
