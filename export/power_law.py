"""PLDR-LLM checkpoints as bundles: their energy-curvature tensors are inferred once, from one text.

Gokden 2025 (arXiv:2502.13502): a network computes a tensor G per head from a layer's queries. In a trained model G
hardly depends on the text; inferred once, it replaces the network and is cached with keys and values. With Q the
turned queries of a text [T, d] of a head, A = LN(Q^T Q) goes through residual units, A = LN(glu(...glu(A)) + A), and

    G = a (iswiglu(W A + b) + 1e-9)^pw + ba     element by element but for the products; iswiglu(x) = x silu(x)

The equations and names were read off the author's program (burcgokden/PLDR-LLM-with-KVG-cache, v510), which computes A
from a whole prompt, including rows after a row. Here G belongs to the model, not to a text: a row then does not depend
on later rows or on other rows of its call, so that drafts, batches and shared prefixes stay exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import Text, WeightFormat
from edgedec.errors import BadTensor, CheckpointError, UsageError
from edgedec.export.drafts.files import open_draft
from edgedec.export.writer import Add, BundleWriter, Contents, Scales
from edgedec.spec import ModelSpec, PowerLaw, Rope
from edgedec.storage.files import replacing_folder

Floats = NDArray[np.float64]
_EPS, _LEAST, _THETA = 1e-6, 1e-9, 10000.0
_MLP, _PARTS = ("gluw1", "gluw2"), ("wq", "wk", "wv")


def export_power_law(
    checkpoint: str | Path, out: Path, ids: Sequence[int], weights: WeightFormat = "int8", force: bool = False
) -> Bundle:
    """Export the checkpoint in a folder (the author's tensors as safetensors; config.json with `max_seq_len`) to the
    bundle folder `out`. ids: the text that its G-cache is inferred from."""
    source = open_draft(checkpoint)
    context = source.config.get("max_seq_len")
    if type(context) is not int or not 1 <= len(ids) <= context:
        raise CheckpointError(f"{source.folder}/config.json: max_seq_len {context} for a text of {len(ids)} tokens")
    model = PowerLawModel({name: source.whole(name).astype(np.float64) for name in source.tensors}, context)
    if min(ids) < 0 or max(ids) >= model.vocab:
        raise UsageError(f"token {min(ids) if min(ids) < 0 else max(ids)}: outside the vocabulary of {model.vocab}")
    tensors = model.exported(model.curvatures(ids))
    formats: Mapping[str, WeightFormat] = dict.fromkeys(("body", "head", "embed"), weights)
    contents = Contents(out.name, model.spec(), Text(None), formats, 32, ("f32",), runtimes=())

    def fill(add: Add) -> Scales:
        for name in contents.spec.tensors():
            add(name, lambda start, stop, name=name: tensors[name][start:stop])  # type: ignore[misc]
        return {}

    with replacing_folder(out, force=force) as folder:
        BundleWriter(folder, contents).write(fill)
    return Bundle.open(out)


@dataclass(frozen=True)
class PowerLawModel:
    """A checkpoint's tensors by the author's names, and the longest text."""

    tensors: Mapping[str, Floats]
    context: int

    @property
    def layers(self) -> int:
        return len({name.split(".")[2] for name in self.tensors if name.startswith("decoder.dec_layers.")})

    @property
    def vocab(self) -> int:
        return len(self.get("decoder.embedding.weight"))

    def get(self, name: str) -> Floats:
        if name not in self.tensors:
            raise BadTensor(f"{name}: missing from the checkpoint of a PLDR-LLM")
        return self.tensors[name]

    def spec(self) -> ModelSpec:
        """The model as blocks."""
        heads, dim, _ = self.get("decoder.dec_layers.0.mha1.plgatt_layer.Wlst").shape
        inner, hidden = self.get("decoder.dec_layers.0.ffn.gluw1.weight").shape
        layers = tuple(
            (PowerLaw(heads, heads, dim, dim**-0.5, norm="none", inner_size=inner, entry=i == 0),)
            for i in range(self.layers)
        )
        rope = Rope(tuple((_THETA ** (-np.arange(0, dim, 2) / dim)).tolist()))
        sizes = self.vocab, hidden, self.context
        spec = ModelSpec("pldr", *sizes, layers, _EPS, False, (rope,), "none", embed_scale=hidden**0.5)
        return spec.check("config.json")

    # ---- inferring G

    def curvatures(self, ids: Sequence[int]) -> list[Floats]:
        """G [heads, d, d] of each layer, from one text."""
        return self._inferred(ids)[0]

    def hidden_states(self, ids: Sequence[int]) -> Floats:
        """The last layer's output [T, H] of a text, the network of each layer run on all of it."""
        return self._inferred(ids)[1]

    def _inferred(self, ids: Sequence[int]) -> tuple[list[Floats], Floats]:
        x = self.get("decoder.embedding.weight")[list(ids)]
        x, found = self._norm(x * x.shape[1] ** 0.5, "decoder.layernorm1"), []
        for i in range(self.layers):
            p = f"decoder.dec_layers.{i}."
            q, k, v = (self._heads(self._linear(x, f"{p}mha1.{part}")) for part in _PARTS)
            q, k = turned(q), turned(k)
            found.append(self._curvature(q, f"{p}mha1."))
            scores = q @ found[-1] @ k.mT / q.shape[-1] ** 0.5
            scores[:, ~np.tri(len(x), dtype=bool)] = -np.inf
            paid = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (paid / paid.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(x.shape)
            x = self._norm(self._linear(mixed, f"{p}mha1.dense") + x, f"{p}layernorm1")
            x = self._norm(self._glu(x, f"{p}ffn") + x, f"{p}layernorm2")
        return found, x

    def _curvature(self, q: Floats, p: str) -> Floats:
        """q [heads, T, d] -> G [heads, d, d]"""
        a, g = self._norm(q.mT @ q, f"{p}layernorm1"), f"{p}plgatt_layer."
        for unit in self._units(f"{p}reslayerAs."):
            y = a
            for dense in self._units(f"{unit}denseAs."):
                y = self._glu(y, dense[:-1])
            a = self._norm(y + a, f"{unit}layernormA")
        x = self.get(f"{g}Wlst") @ a + self.get(f"{g}blst")
        return self.get(f"{g}alst") @ (x * _silu(x) + _LEAST) ** self.get(f"{g}pwlst") + self.get(f"{g}balst")

    def _units(self, p: str) -> list[str]:
        """The prefixes of numbered parts below a prefix."""
        numbers = {int(name[len(p) :].split(".")[0]) for name in self.tensors if name.startswith(p)}
        return [f"{p}{number}." for number in sorted(numbers)]

    def _linear(self, x: Floats, name: str) -> Floats:
        found: Floats = x @ self.get(f"{name}.weight").T + self.get(f"{name}.bias")
        return found

    def _glu(self, x: Floats, name: str) -> Floats:
        gate, up = (self._linear(x, f"{name}.{part}") for part in _MLP)
        return self._linear(_silu(gate) * up, f"{name}.gluw3")

    def _norm(self, x: Floats, name: str) -> Floats:
        x = x - x.mean(-1, keepdims=True)
        scaled = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + _EPS)
        return scaled * self.get(f"{name}.weight") + self.get(f"{name}.bias")

    def _heads(self, x: Floats) -> Floats:
        """x [T, H] -> [heads, T, d]"""
        heads = len(self.get("decoder.dec_layers.0.mha1.plgatt_layer.Wlst"))
        return x.reshape(len(x), heads, -1).transpose(1, 0, 2)

    # ---- writing

    def exported(self, curvatures: Sequence[Floats]) -> dict[str, NDArray[np.float32]]:
        """Every tensor as the bundle has it."""
        found = {"embed": self.get("decoder.embedding.weight")}
        for i, g in enumerate(curvatures):
            found |= {f"blocks.{i}.{name}": tensor for name, tensor in self._layer(i, g).items()}
        found |= {f"blocks.0.entry_norm{end}": self.get(f"decoder.layernorm1.{part}") for end, part in _AFFINE}
        last = f"blocks.{len(curvatures) - 1}.output_norm"
        folded = with_bias(
            self.get("final_layer.weight"), self.get("final_layer.bias"), found[last], found[f"{last}_bias"]
        )
        found |= {"head": folded[0], f"{last}_bias": folded[1]}
        return {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in found.items()}

    def _layer(self, i: int, g: Floats) -> dict[str, Floats]:
        p = f"decoder.dec_layers.{i}."
        order = _halves(g.shape[-1])
        rows = np.concatenate([head * g.shape[-1] + order for head in range(len(g))])
        found = {"curvature": g[:, order][:, :, order].reshape(-1, g.shape[-1])}
        for end, part in (("", "weight"), ("_bias", "bias")):
            q, k, v = (self.get(f"{p}mha1.{name}.{part}") for name in _PARTS)
            found |= {f"qkv{end}": np.concatenate([q[rows], k[rows], v]), f"o{end}": self.get(f"{p}mha1.dense.{part}")}
            found[f"gate_up{end}"] = np.concatenate([self.get(f"{p}ffn.{name}.{part}") for name in _MLP])
            found[f"down{end}"] = self.get(f"{p}ffn.gluw3.{part}")
        for name, norm in (("attention_norm", "layernorm1"), ("output_norm", "layernorm2")):
            found |= {f"{name}{end}": self.get(f"{p}{norm}.{part}") for end, part in _AFFINE}
        return found


_AFFINE = (("", "weight"), ("_bias", "bias"))


def _silu(x: Floats) -> Floats:
    found: Floats = x / (1 + np.exp(-np.clip(x, -500, None)))
    return found


def turned(x: Floats) -> Floats:
    """x [heads, T, d] turned by positions 0 .. T-1, each even channel with the one after it."""
    d = x.shape[-1]
    angles = np.arange(x.shape[1])[:, None] * _THETA ** (-np.arange(0, d, 2) / d)
    cos, sin, a, b = np.cos(angles), np.sin(angles), x[..., ::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


def _halves(d: int) -> NDArray[np.int64]:
    """The order that puts each even channel into the first half and the one after it into the second."""
    return np.concatenate([np.arange(0, d, 2), np.arange(1, d, 2)])


def with_bias(head: Floats, bias: Floats, weight: Floats, shift: Floats) -> tuple[Floats, Floats]:
    """A head without a bias, and a bias of the last norm, equivalent to `head` and `bias` after the norm `weight`,
    `shift`. The normed state has mean 0, so its product with 1 / weight is a constant, which can carry the bias.

    head' x' = head x + bias for x = weight * n + shift, mean(n) = 0, and x' = x + c u, u = 1 / weight
    """
    u = 1 / weight
    c = (np.linalg.norm(shift) + np.linalg.norm(weight)) / np.linalg.norm(u)
    c = c if u @ shift >= 0 else -c
    moved = shift + c * u
    return head + np.outer(bias - c * (head @ u), u) / (u @ moved), moved
