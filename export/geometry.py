"""Embeds a bundle's tensors in a larger geometry that computes the same function.

- Hidden dims, heads, channels and inner dims after the source's are zero. A norm over D' dims of which D are
  used comes out right with weights times sqrt(D / D') and epsilon times D / D'.
- Query heads stay with their KV head; the pairs (i, i + pairs) of a rope move with their halves.
- Layers after the source's add nothing. They stand at the end, and a drafter that skips layers can skip them without
  any loss, so its results are not representative here.
- Token ids after the source's must never be chosen. The last hidden dim holds a constant, too small to change any
  norm, which only the final norm scales up: the head's rows of these ids have -1 there, those of real ids 0 (or,
  where the head is the embedding, that small constant, which adds the same to all of them). It has a quantization
  block of its own, so that the rounding of other weights does not change.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.export.weights import Read
from edgedec.spec import Attention, Block, Mlp, ModelSpec, Rope

Index = NDArray[np.int64]
BLOCK = 32
# The constant, and its value after the final norm if the rest of the state has a root mean square of 1.
CONSTANT, LOUD = 2.0**-13, 2.0**13


@dataclass(frozen=True)
class Geometry:
    """The sizes that determine the cost of a call."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int


GEOMETRIES = {
    "llama-1b": Geometry(128256, 2048, 8192, 16, 32, 8, 64),  # Llama 3.2 1B: 1.24 G parameters
    "smollm-135m": Geometry(49152, 576, 1536, 30, 9, 3, 64),  # SmolLM2 135M
}


def geometry_named(name: str) -> Geometry:
    if name not in GEOMETRIES:
        raise UsageError(f"no geometry {name!r}; there are: {', '.join(GEOMETRIES)}")
    return GEOMETRIES[name]


def geometry_of(spec: ModelSpec) -> Geometry:
    """The sizes of a model whose layers are all one attention and one gated MLP, of the same sizes."""
    sizes = {_sizes(layer) for layer in spec.layers}
    if len(sizes) != 1 or None in sizes or spec.final_norm == "layer":
        raise UsageError(
            f"only models of equal layers of attention and gated MLP are padded; not this {spec.architecture}"
        )
    inner, heads, kv_heads, head_dim = next(size for size in sizes if size is not None)
    return Geometry(spec.vocab_size, spec.hidden_size, inner, spec.n_layers, heads, kv_heads, head_dim)


def _sizes(layer: tuple[Block, ...]) -> tuple[int, int, int, int] | None:
    """(inner size, heads, KV heads, channels of a head) of a plain layer."""
    match layer:
        case (Attention() as a, Mlp(gated=True) as m):
            norms = {a.norm, a.post_norm, a.embedding_norm, m.norm, m.post_norm}
            plain = "layer" not in norms and a.qk_norm == "none"
            return (m.inner_size, a.n_heads, a.n_kv_heads, a.head_dim) if plain else None
        case _:
            return None


class Padded:
    """The places of a bundle's tensors in the larger one."""

    def __init__(self, bundle: Bundle, geometry: Geometry, context: int = 0) -> None:
        """context: how many positions it has, if more than the source's."""
        self.bundle, self.source, self.geometry = bundle, bundle.spec, geometry
        self.sizes = geometry_of(self.source)
        _require_fit(self.source, self.sizes, geometry)
        longer = max(context, self.source.context_length)
        self.spec = replace(_padded_spec(self.source, self.sizes, geometry), context_length=longer).check("geometry")
        self.hidden: Index = np.arange(self.source.hidden_size)
        self.factor = np.sqrt(self.source.hidden_size / geometry.hidden_size)
        self.mutes = geometry.vocab_size > self.source.vocab_size

    def read(self, name: str) -> Read:
        """Rows of the padded weight `name`, float32; the source's weight is held as long as the result is."""
        shape, found = self.spec.tensors()[name], None
        if name in self.source.tensors():
            rows, columns = self._places(name)
            found = (rows, columns, self._values(name))

        def read(start: int, stop: int) -> NDArray[np.float32]:
            values = np.zeros((stop - start, *shape[1:]), np.float32)
            if found is not None:
                rows, columns, source = found
                here = np.flatnonzero((rows >= start) & (rows < stop))
                values[np.ix_(rows[here] - start, columns) if columns is not None else rows[here] - start] = source[
                    here
                ]
            self._mute(name, values, start)
            return values

        return read

    def _places(self, name: str) -> tuple[Index, Index | None]:
        """The target's rows and columns of the source's; None: it is a vector."""
        vocabulary: Index = np.arange(self.source.vocab_size)
        if name in ("embed", "head"):
            return vocabulary, self.hidden
        part = name.rpartition(".")[2]
        inner: Index = np.arange(self.sizes.intermediate_size)
        if part in ("qkv", "qkv_bias"):
            rows: Index = self._qkv(int(name.split(".")[1]))
        elif part in ("gate_up", "gate_up_bias"):
            rows = np.concatenate([inner, self.geometry.intermediate_size + inner])
        else:
            rows = self.hidden
        read = self._read_by(int(name.split(".")[1])) if part == "qkv" else self.hidden
        columns = {"qkv": read, "o": self._queries(None), "gate_up": self.hidden, "down": inner}
        return rows, columns.get(part)

    def _read_by(self, b: int) -> Index:
        """The columns of qkv: of the state, or of the embedding and then the state."""
        paired = self.source.attention[b].paired
        return np.concatenate([self.hidden, self.geometry.hidden_size + self.hidden]) if paired else self.hidden

    def _values(self, name: str) -> NDArray[np.float32]:
        values = self.bundle.rows(name)
        return values * np.float32(self.factor) if name.endswith("norm") else values

    def _mute(self, name: str, values: NDArray[np.float32], start: int) -> None:
        """The constant in the last hidden dim, which gives padding ids a very low logit."""
        if not self.mutes or name not in ("embed", "head", "final_norm"):
            return
        if name == "final_norm":
            values[-1] = LOUD / CONSTANT * self.factor
            return
        real = max(0, self.source.vocab_size - start)
        values[:real, -1] = CONSTANT if name == "embed" else 0
        values[real:, -1] = -1

    def _qkv(self, b: int) -> Index:
        pairs, g = self._turned(b), self.geometry
        q, kv = g.n_heads * g.head_dim, g.n_kv_heads * g.head_dim
        return np.concatenate([self._queries(pairs), q + self._keys(pairs), q + kv + self._keys(None)])

    def _turned(self, b: int) -> int | None:
        """The pairs of channels that attention block b rotates; None: it rotates none."""
        rope = self.source.attention[b].rope
        return None if rope is None else len(self.source.ropes[rope].inv_freq)

    def _queries(self, pairs: int | None) -> Index:
        """Where the channels of the query heads stand: each head in the group of its KV head."""
        s, g = self.sizes, self.geometry
        kv, member = np.divmod(np.arange(s.n_heads), s.n_heads // s.n_kv_heads)
        return self._channels(kv * (g.n_heads // g.n_kv_heads) + member, pairs)

    def _keys(self, pairs: int | None) -> Index:
        return self._channels(np.arange(self.sizes.n_kv_heads), pairs)

    def _channels(self, heads: Index, pairs: int | None) -> Index:
        """All channels of `heads`; `pairs` of them rotate: the first halves stay in front."""
        at: Index = np.arange(self.sizes.head_dim)
        if pairs is not None:
            more = _pairs(pairs, self.sizes, self.geometry) - pairs
            at = at + np.where(at < pairs, 0, np.where(at < 2 * pairs, more, 2 * more))
        return (heads[:, None] * self.geometry.head_dim + at).reshape(-1)

    def kv_scales(self, offset: int) -> list[NDArray[np.float32]]:
        """The source's cache scales [2, KV heads * channels] of each attention block in their places, and ones."""
        s, kv = self.sizes, self.geometry.n_kv_heads * self.geometry.head_dim
        found = self.bundle.array(offset, np.float32, (s.n_layers, 2, s.n_kv_heads * s.head_dim))
        scales = [np.ones((2, kv), np.float32) for _ in self.spec.attention]
        for own, padded, b in zip(found, scales, self.source.attention, strict=False):
            padded[0, self._keys(self._turned(b))] = own[0]
            padded[1, self._keys(None)] = own[1]
        return scales


def _require_fit(spec: ModelSpec, s: Geometry, g: Geometry) -> None:
    for field, least in asdict(g).items():
        if getattr(s, field) > least:
            raise UsageError(f"a model with {field} {getattr(s, field)} cannot be padded to {least}")
    if s.n_heads // s.n_kv_heads > g.n_heads // g.n_kv_heads:
        raise UsageError(
            f"{s.n_heads // s.n_kv_heads} query heads share a kv head, and only "
            f"{g.n_heads // g.n_kv_heads} could: choose another geometry"
        )
    if (g.head_dim - s.head_dim) % 2:
        raise UsageError(f"heads are padded by whole pairs, not from {s.head_dim} channels to {g.head_dim}")
    if g.vocab_size > s.vocab_size and (g.hidden_size - 1) // BLOCK * BLOCK < s.hidden_size:
        raise UsageError(
            f"hidden_size {s.hidden_size} of {g.hidden_size} leaves no block of {BLOCK} to spare, "
            "which a larger vocabulary needs: choose another geometry"
        )


def _padded_spec(spec: ModelSpec, s: Geometry, g: Geometry) -> ModelSpec:
    layers = tuple(tuple(_padded_block(block, g) for block in layer) for layer in spec.layers)
    return replace(
        spec,
        vocab_size=g.vocab_size,
        hidden_size=g.hidden_size,
        layers=layers + layers[-1:] * (g.n_layers - s.n_layers),
        ropes=tuple(_padded_rope(rope, s, g) for rope in spec.ropes),
        norm_eps=spec.norm_eps * s.hidden_size / g.hidden_size,
    )


def _padded_block(block: Block, g: Geometry) -> Block:
    if isinstance(block, Attention):
        return replace(block, n_heads=g.n_heads, n_kv_heads=g.n_kv_heads, head_dim=g.head_dim)
    assert isinstance(block, Mlp)
    return replace(block, inner_size=g.intermediate_size)


def _padded_rope(rope: Rope, s: Geometry, g: Geometry) -> Rope:
    """The source's frequencies; what the new pairs hold is zero however it is turned."""
    more = _pairs(len(rope.inv_freq), s, g) - len(rope.inv_freq)
    long = rope.long_inv_freq + rope.long_inv_freq[-1:] * more
    return replace(rope, inv_freq=rope.inv_freq + rope.inv_freq[-1:] * more, long_inv_freq=long)


def _pairs(pairs: int, s: Geometry, g: Geometry) -> int:
    return pairs + (g.head_dim - s.head_dim) // 2
