"""Bundles of any spec and any weights, without graphs: all that the native and the reference runtime read.

No export stands in the way, so sizes may be as odd as can be.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.folder import Bundle
from edgedec.bundle.manifest import FORMAT, VERSION, File, Graphs, KVScales, Manifest, Text
from edgedec.export.weights import WeightsFile, format_of
from edgedec.spec import KV_FORMATS, Layer, ModelSpec, Rope

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
    layout: Any = "lanes16",
) -> Bundle:
    """A weights file under `folder` and the manifest that leads into it. `read(name)`: a whole weight."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / WEIGHTS).open("wb") as file:
        out = WeightsFile(file, layout)
        for name, shape in spec.tensors().items():
            fmt = format_of(name, weights, head or weights, embed or weights)
            out.tensor(name, _slices(read(name)), shape, fmt, block)
        ropes = tuple(out.rope(rope, spec.context_length) for rope in spec.ropes)
        out.array(np.zeros(0, np.uint8))
    manifest = Manifest(
        format=FORMAT,
        version=VERSION,
        producer="tests",
        name=folder.name,
        spec=spec.check(),
        weights=WEIGHTS,
        quantization={},
        tensors=out.tensors,
        ropes=ropes,
        kv_formats=KV_FORMATS,
        kv_scales=KVScales(),
        graphs=Graphs("", "", (), {}, {}, {}, ""),
        text=Text(None),
        files={WEIGHTS: File((folder / WEIGHTS).stat().st_size, "")},
    )
    return Bundle(folder, manifest, digest="")


def _slices(values: NDArray[np.float32]) -> Callable[[int, int], NDArray[np.float32]]:
    return lambda start, stop: values[start:stop]


def random_weights(spec: ModelSpec, seed: int = 0) -> Read:
    """Norms near one, biases small, matrices that keep the size of what goes through them."""
    rng, found = np.random.default_rng(seed), dict[str, NDArray[np.float32]]()
    for name, shape in spec.tensors().items():
        values = rng.standard_normal(shape, np.float32)
        if len(shape) == 2:
            found[name] = values * np.float32((0.5 if name == "embed" else 1.5) / shape[-1] ** 0.5)
        else:
            found[name] = (0.0 if name.endswith("bias") else 1.0) + np.float32(0.2) * values
    return found.__getitem__


def _rope(pairs: int, theta: float = 1e4, scale: float = 1.0) -> Rope:
    return Rope(tuple(theta ** (-j / pairs) for j in range(pairs)), scale)


def _spec(**changes: Any) -> ModelSpec:
    """An odd one: nothing is a multiple of anything, heads are grouped by three."""
    facts: dict[str, Any] = {
        "architecture": "odd",
        "vocab_size": 37,
        "hidden_size": 33,
        "intermediate_size": 51,
        "n_heads": 6,
        "n_kv_heads": 2,
        "head_dim": 10,
        "context_length": 600,
        "layers": (Layer(0, None), Layer(None, 5), Layer(1, 270)),
        "ropes": (_rope(5), _rope(3, 5e2, 1.3)),
        "norm_eps": 1e-5,
        "attn_scale": 0.3,
        "tied": False,
    }
    return ModelSpec(**facts | changes)


# What the zoo's architectures have no sizes for.
ODD = {
    "plain": _spec(),
    "all": _spec(
        tied=True,
        norm_after=True,
        qk_norm="head",
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        activation="gelu_tanh",
        attn_softcap=3.0,
        final_softcap=4.0,
        embed_scale=2.5,
    ),
    "after": _spec(
        vocab_size=130,
        hidden_size=72,
        intermediate_size=80,
        n_heads=3,
        n_kv_heads=3,
        head_dim=36,
        norm_before=False,
        norm_after=True,
        qk_norm="full",
        mlp_bias=True,
        layers=(Layer(1, 1), Layer(0, 256)),
        attn_scale=0.15,
    ),
    # More than one strip of the vocabulary, fused activation, a group of eight query heads.
    "large": _spec(
        vocab_size=1201,
        hidden_size=144,
        intermediate_size=272,
        n_heads=8,
        n_kv_heads=1,
        head_dim=70,
        tied=True,
        ropes=(_rope(35), _rope(20)),
        attn_scale=0.12,
    ),
    "least": _spec(
        vocab_size=2,
        hidden_size=1,
        intermediate_size=1,
        n_heads=1,
        n_kv_heads=1,
        head_dim=2,
        layers=(Layer(0, None),),
        ropes=(_rope(1),),
    ),
}
