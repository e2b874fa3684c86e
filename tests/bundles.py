"""Bundles of any spec and any weights, without graphs: all that the native and the reference runtime read.

No export stands in the way, so sizes may be as odd as can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.integers import packed
from edgedec.bundle.manifest import FORMAT, OLDEST, VERSION, File, KVScales, Manifest, Text
from edgedec.export.weights import ROW, Kept, WeightsFile, format_of
from edgedec.spec import (
    KV_FORMATS,
    S6,
    AltUp,
    Attention,
    ChannelMix,
    Conv,
    Delta,
    Gmu,
    HeadLayer,
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

Read = Callable[[str], NDArray[np.float32]]
WEIGHTS = "weights.bin"


def write_bundle(
    folder: Path,
    spec: ModelSpec,
    read: Read,
    weights: Any = "f32",
    *,
    head: Any = None,
    embed: Any = None,
    block: int = 32,
    layout: Any = "interleave16",
    own: Mapping[str, Any] | None = None,
) -> Bundle:
    """A weights file under `folder` and the manifest that leads into it. `read(name)`: a whole weight. weights
    "int4+zeros", "int8+zeros": the matrices of blocks have zero points; "int4+offsets", "int8+offsets": offsets;
    "int8+rows": a scale for each row, head and embedding too; own: formats of single matrices."""
    weights, _, middle = weights.partition("+")
    stepped = {"zeros": offset, "offsets": above_least}.get(middle)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / WEIGHTS).open("wb") as file:
        out = WeightsFile(file, layout)
        for name, shape in spec.tensors().items():
            fmt = (own or {}).get(name) or format_of(spec, name, weights, head or weights, embed or weights)
            inner = name in spec.matrices - {"embed", "head"}
            kept = stepped(read(name), fmt, block) if stepped and inner else None
            out.tensor(name, _slices(read(name)), shape, fmt, ROW if middle == "rows" else block, kept)
        ropes = tuple(out.rope(rope, spec) for rope in spec.ropes)
        out.array(np.zeros(0, np.uint8))
    manifest = Manifest(
        format=FORMAT,
        version=VERSION if middle else OLDEST,
        producer="tests",
        name=folder.name,
        spec=spec.check(),
        weights=WEIGHTS,
        quantization={},
        tensors=out.tensors,
        ropes=ropes,
        kv_formats=KV_FORMATS,
        kv_scales=KVScales(),
        text=Text(None),
        files={WEIGHTS: File((folder / WEIGHTS).stat().st_size, "")},
    )
    return Bundle(folder, manifest, digest="")


def offset(values: NDArray[np.float32], fmt: Any, block: int) -> Kept:
    """A matrix in steps from the least to the largest weight of each block, or from zero."""
    n, k = values.shape
    filled = np.pad(values, ((0, 0), (0, -k % block))).reshape(n, -1, block)
    low, most = np.minimum(filled.min(-1), 0), 15 if fmt == "int4" else 255
    scales = (np.maximum(filled.max(-1) - low, 1e-3) / most).astype(np.float16)
    zeros = np.clip(np.rint(-low / scales), 0, most).astype(np.uint8)
    codes = np.clip(np.rint(filled / scales[..., None]) + zeros[..., None], 0, most).astype(np.uint8)
    data = codes[..., 0::2] | codes[..., 1::2] << 4 if fmt == "int4" else codes
    return Kept(fmt, block, lambda start, stop: (data[start:stop], scales[start:stop], zeros[start:stop]))


def above_least(values: NDArray[np.float32], fmt: Any, block: int) -> Kept:
    """A matrix in steps from the least weight of each block to the largest; the offset belongs to the middle code."""
    n, k = values.shape
    filled = np.pad(values, ((0, 0), (0, -k % block))).reshape(n, -1, block)
    low, (most, middle) = filled.min(-1), (15, 8) if fmt == "int4" else (255, 128)
    scales = (np.maximum(filled.max(-1) - low, 1e-3) / most).astype(np.float16)
    codes = np.clip(np.rint((filled - low[..., None]) / scales[..., None]), 0, most).astype(np.uint8)
    data, offsets = packed(codes, fmt), (low + middle * scales.astype(np.float32)).astype(np.float16)
    return Kept(fmt, block, lambda start, stop: (data[start:stop], scales[start:stop], offsets[start:stop]))


def _slices(values: NDArray[np.float32]) -> Callable[[int, int], NDArray[np.float32]]:
    return lambda start, stop: values[start:stop]


def random_weights(spec: ModelSpec, seed: int = 0) -> Read:
    """Norms near one, biases small, decays below one, matrices that keep the size of what goes through them."""
    rng, found = np.random.default_rng(seed), dict[str, NDArray[np.float32]]()
    for name, shape in spec.tensors().items():
        values = rng.standard_normal(shape, np.float32)
        if name.endswith(".a"):
            found[name] = -np.exp(values)
        elif len(shape) == 2:
            found[name] = values * np.float32((0.5 if name == "embed" else 1.5) / shape[-1] ** 0.5)
        else:
            found[name] = (0.0 if name.endswith(("bias", "lambdas")) else 1.0) + np.float32(0.2) * values
    return found.__getitem__


def _rope(pairs: int, theta: float = 1e4, scale: float = 1.0) -> Rope:
    return Rope(tuple(theta ** (-j / pairs) for j in range(pairs)), scale)


# (rope, window) of each layer's attention.
Turns = tuple[tuple[int | None, int | None], ...]


def _spec(
    turns: Turns = ((0, None), (None, 5), (1, 270)),
    attention: dict[str, Any] | None = None,
    mlp: dict[str, Any] | None = None,
    **changes: Any,
) -> ModelSpec:
    """An odd one: nothing is a multiple of anything, heads are grouped by three."""
    sizes: dict[str, Any] = {"n_heads": 6, "n_kv_heads": 2, "head_dim": 10, "scale": 0.3} | (attention or {})
    feed = Mlp(**{"inner_size": 51} | (mlp or {}))
    facts: dict[str, Any] = {
        "architecture": "odd",
        "vocab_size": 37,
        "hidden_size": 33,
        "context_length": 600,
        "layers": tuple((Attention(**sizes, rope=rope, window=window), feed) for rope, window in turns),
        "ropes": (_rope(5), _rope(3, 5e2, 1.3)),
        "norm_eps": 1e-5,
        "tied": False,
    }
    return ModelSpec(**facts | changes)


# What the zoo's architectures have no sizes for.
ODD = {
    "plain": _spec(),
    "all": _spec(
        attention={"qk_norm": "head", "qkv_bias": True, "o_bias": True, "softcap": 3.0, "post_norm": "rms"},
        mlp={"bias": True, "activation": "gelu_tanh", "post_norm": "rms"},
        tied=True,
        final_softcap=4.0,
        embed_scale=2.5,
    ),
    "after": _spec(
        ((1, 1), (0, 256)),
        {
            "n_heads": 3,
            "n_kv_heads": 3,
            "head_dim": 36,
            "scale": 0.15,
            "qk_norm": "full",
            "norm": "none",
            "post_norm": "rms",
        },
        {"inner_size": 80, "bias": True, "norm": "none", "post_norm": "rms"},
        vocab_size=130,
        hidden_size=72,
    ),
    "paired": _spec(attention={"embedding_norm": "rms"}, final_norm="none", final_softcap=4.0, embed_scale=0.7),
    # More than one strip of the vocabulary, fused activation, a group of eight query heads.
    "large": _spec(
        attention={"n_heads": 8, "n_kv_heads": 1, "head_dim": 70, "scale": 0.12},
        mlp={"inner_size": 272},
        vocab_size=1201,
        hidden_size=144,
        tied=True,
        ropes=(_rope(35), _rope(20)),
    ),
    "least": _spec(
        ((0, None),),
        {"n_heads": 1, "n_kv_heads": 1, "head_dim": 2},
        {"inner_size": 1},
        vocab_size=2,
        hidden_size=1,
        ropes=(_rope(1),),
    ),
}


def _kind(*layers: tuple[Any, ...], **changes: Any) -> ModelSpec:
    """Layers as they are given, in sizes that every runtime has."""
    facts: dict[str, Any] = {
        "architecture": "kinds",
        "vocab_size": 61,
        "hidden_size": 48,
        "context_length": 256,
        "layers": layers,
        "ropes": (_rope(8),),
        "norm_eps": 1e-5,
        "tied": False,
    }
    return ModelSpec(**facts | changes)


_ATTENTION = Attention(n_heads=4, n_kv_heads=2, head_dim=16, scale=0.25)
_MOE = Moe(n_experts=5, top_k=2, inner_size=16)
# Every option of every kind of block that the odd ones and the zoo leave out.
_DELTA = Delta(n_heads=6, head_dim=20, key_dim=12, n_groups=2, conv_size=3)
_SSM = Ssm(n_heads=6, head_dim=8, state_size=10, n_groups=2, norm_groups=2)
_RWKV7 = Rwkv7(48, 3, head_dim=20, key_dim=12, decay_rank=9, rate_rank=7, gate_rank=11)
KINDS = {
    "layer norms, plain": _kind(
        (
            Attention(4, 2, 16, 0.25, norm="layer", post_norm="layer", qkv_bias=True),
            Mlp(40, gated=False, activation="gelu", bias=True, norm="layer"),
        ),
        (_ATTENTION, Mlp(32, gated=False, activation="relu", norm="layer", post_norm="layer")),
        final_norm="layer",
    ),
    "heads by layer": _kind(
        (_ATTENTION, Mlp(32)),
        (Attention(6, 1, 32, 0.2, window=6, sinks=2), Attention(2, 2, 16, 0.3, rope=None)),
        (Mlp(24, activation="gelu"),),
    ),
    "routers": _kind(
        (_ATTENTION, Moe(5, 2, 16, router="softmax", normalize=False)),
        (_ATTENTION, Moe(6, 3, 32, router="softmax_topk", normalize=False, post_norm="rms")),
        (_ATTENTION, Moe(5, 2, 16, router="sigmoid", router_bias=True, scale=2.5, activation="gelu_tanh")),
        (_ATTENTION, Moe(4, 1, 16, shared_size=24, shared_gate=True)),
        (_ATTENTION, Moe(3, 3, 16, shared_size=16)),
    ),
    "plain experts": _kind(
        (_ATTENTION, Moe(5, 2, 16, gated=False, activation="relu2", shared_size=20)),
        (_ATTENTION, Moe(6, 3, 32, gated=False, router="sigmoid", router_bias=True, scale=2.5, post_norm="rms")),
        (_ATTENTION, Moe(5, 2, 48, gated=False, bias=True, activation="gelu_tanh")),
    ),
    "sparsemixer": _kind(
        (_ATTENTION, Moe(6, 2, 16, router="sparsemixer", normalize=False, jitter=0.2)),
        (_ATTENTION, Moe(5, 3, 24, router="sparsemixer", jitter=0.01, scale=0.7)),
    ),
    "experts by ReLU": _kind(
        (_ATTENTION, Moe(7, 7, 16, "relu", normalize=False, gated=False)),
        (_ATTENTION, Moe(20, 20, 24, "relu", normalize=False, shared_size=20, scale=0.7, logit_bias=True)),
    ),
    "selective state spaces": _kind(
        (S6(inner_size=56, state_size=10, dt_rank=5, conv_size=3, proj_bias=True, post_norm="rms"), _MOE),
        (_ATTENTION, Mlp(32)),
        (S6(inner_size=80, state_size=16, dt_rank=33, part_norm="rms", part_eps=0.01),),
    ),
    "memory units": _kind(
        (S6(inner_size=56, state_size=10, dt_rank=5, conv_size=3, norm="layer"), Mlp(32)),
        (Attention(8, 2, 20, 0.3, rope=None, window=6, differential=0.45, qkv_bias=True), Mlp(32)),
        (S6(inner_size=40, state_size=7, dt_rank=3), _MOE),
        (Attention(4, 2, 16, 0.3, rope=None, differential=0.6, o_bias=True, post_norm="rms"), Mlp(32)),
        (Gmu(4, 40, bias=True, norm="layer"), Mlp(32)),
        (SharedAttention(6, 12, 2, 16, 0.4, rope=None, differential=0.7, q_bias=True, norm="layer"), _MOE),
        (Gmu(0, 56, post_norm="rms"),),
        ropes=(),
    ),
    "streams": _kind(
        (
            AltUp("enter", 3),
            AltUp("predict", 3, 2),
            replace(_ATTENTION, branch=True, window=6),
            Laurel(5, 0.7),
            Mlp(40, sparsity=0.6),
            AltUp("correct", 3, 2),
            Lookup(12, streams=True, input_scale=True, post_norm="rms"),
        ),
        (
            AltUp("predict", 3, 2),
            SharedAttention(2, 6, 2, 16, 0.3, window=6, branch=True),
            Laurel(9),
            AltUp("correct", 3, 2),
            Lookup(20, "silu", streams=True),
            AltUp("leave", 3),
        ),
        (_ATTENTION, Mlp(32)),
    ),
    "no attention": _kind(
        (S6(inner_size=40, state_size=7, dt_rank=3, part_norm="plain"),),
        (Ssm(n_heads=3, head_dim=20, state_size=12), Mlp(32)),
        ropes=(),
    ),
    "state spaces": _kind(
        (Ssm(n_heads=6, head_dim=8, state_size=10, n_groups=2, conv_size=3, norm_groups=2, proj_bias=True), _MOE),
        (_ATTENTION, Mlp(32)),
        (Ssm(n_heads=4, head_dim=12, state_size=16, dt_min=0.1, dt_max=0.8, post_norm="rms"),),
    ),
    "state spaces beside attention": _kind(
        (Ssm(n_heads=4, head_dim=12, state_size=16, norm_groups=0, branch=True), _ATTENTION, Mlp(32)),
        (Ssm(n_heads=6, head_dim=8, state_size=10, n_groups=2, norm_groups=0, proj_bias=True),),
    ),
    "blocks that feed": _kind(
        (Attention(6, 3, 16, 0.35, with_embedding=True, feeds=True), Mlp(40, bias=True, feeds=True), _SSM),
        (_SSM, replace(_ATTENTION, window=6)),
        (
            Attention(4, 2, 24, 0.3, None, 7, with_embedding=True, qkv_bias=True, norm="layer", feeds=True),
            Mlp(32, False, "gelu", post_norm="rms", feeds=True),
            replace(_ATTENTION, norm="none"),
            _MOE,
        ),
        head_layer=HeadLayer("silu", norm="rms"),
    ),
    "a layer before the head": _kind(
        (_ATTENTION, Mlp(32)),
        head_layer=HeadLayer("gelu", bias=True),
        head_bias=True,
        final_norm="layer",
    ),
    "delta rules": _kind(
        (_DELTA, Mlp(32)),
        (replace(_ATTENTION, gate="channel", qk_norm="head", qkv_bias=True), _MOE),
        (replace(_DELTA, n_heads=2, n_groups=2, head_dim=72, beta_scale=2.0, eps=0.01, post_norm="rms"),),
        (replace(_DELTA, decay="channel", rank=8, gate="sigmoid"),),
    ),
    "time and channel mixing": _kind(
        (_RWKV7, ChannelMix(48, 40)),
        (replace(_ATTENTION, window=6), Mlp(32)),
        (replace(_RWKV7, n_heads=6, head_dim=10, values_of=0, value_rank=6, post_norm="rms"), _MOE),
        (ChannelMix(48, 72, norm="rms", post_norm="layer"),),
    ),
    "short convolutions": _kind(
        (Conv(48), Mlp(32)),
        (replace(_ATTENTION, gate="head", window=6), Mlp(32)),
        (Conv(150, 5, bias=True, post_norm="rms"),),
    ),
}
