"""A bundle's weights as a GGUF file, for llama.cpp: the same numbers, so that speeds compare.

A stored block becomes one or more blocks of 32 with the same float16 scale: int4 becomes Q4_0 and int8 Q8_0,
exactly. llama.cpp rotates neighbours where a bundle rotates halves, so the rows of q and k change places.
There is no tokenizer in the file, only a name for each token: programs have to pass ids. The last 256 are named as
bytes, so that llama.cpp's programs, which accept texts only, can tokenize any text.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.interleave import unpack
from edgedec.bundle.manifest import LANES, Tensor
from edgedec.errors import RuntimeUnavailable
from edgedec.export.gguf.types import ALIGNMENT, BLOCK, WRITTEN
from edgedec.spec import Attention, Block, Mlp, ModelSpec

Bytes = NDArray[np.uint8]
Value = str | int | float | list[str]
_CHUNK = 4 << 20


@dataclass(frozen=True)
class _Part:
    """A tensor of the GGUF: rows of a bundle's tensor, in this order."""

    name: str
    source: str
    rows: NDArray[np.int64]


def write_gguf(bundle: Bundle, path: Path) -> None:
    """Write the weights of `bundle` to `path`; RuntimeUnavailable if llama.cpp's Llama would compute something else."""
    _require_llama(bundle)
    tensors = {part.name: _Table.of(bundle, part) for part in _parts(bundle.spec)}
    tensors["rope_freqs.weight"] = _Table.floats(rope_factors(bundle.spec))
    with path.open("wb") as file:
        _write_header(file, _metadata(bundle), tensors)
        for table in tensors.values():
            file.write(bytes(-file.tell() % ALIGNMENT))
            for chunk in table.chunks():
                file.write(np.ascontiguousarray(chunk).data)


def _require_llama(bundle: Bundle) -> None:
    """RuntimeUnavailable unless every layer is a Llama's."""
    spec = bundle.spec
    scaled = spec.final_softcap or spec.embed_scale != 1
    alike = len(set(spec.layers)) == 1 and spec.final_norm == "rms" and len(spec.ropes) == 1
    if not alike or scaled or not _is_llama(spec.layers[0]):
        raise RuntimeUnavailable(f"only the arithmetic of a Llama is converted to GGUF, not this {spec.architecture}")
    rope = spec.ropes[0]
    if spec.original_length or rope.scale != 1 or 2 * len(rope.inv_freq) != _attention(spec).head_dim:
        raise RuntimeUnavailable("only ropes of one set over a whole head, unscaled, are converted to GGUF")
    for name, t in bundle.manifest.tensors.items():
        if t.zeros or t.offsets:
            raise RuntimeUnavailable(f"weights with zero points or offsets are not converted to GGUF: {name}")
        if t.format in ("int4", "int8") and (t.shape[-1] % BLOCK or t.block % BLOCK):
            raise RuntimeUnavailable(f"GGUF needs blocks and widths of whole {BLOCK}s: {name} is {t.shape[-1]} wide")


def _is_llama(layer: tuple[Block, ...]) -> bool:
    """Is it an attention without window, biases or norms of q and k, then an MLP gated by silu?"""
    match layer:
        case (Attention() as a, Mlp() as m):
            plain = Attention(a.n_heads, a.n_kv_heads, a.head_dim, a.scale)
            return (a, m) == (plain, Mlp(m.inner_size))
        case _:
            return False


def _attention(spec: ModelSpec) -> Attention:
    """The attention of every layer."""
    return next(iter(spec.attention.values()))


def _inner_size(spec: ModelSpec) -> int:
    return next(block.inner_size for block in spec.blocks if isinstance(block, Mlp))


def _parts(spec: ModelSpec) -> Iterator[_Part]:
    """llama.cpp's name of each tensor, and its place in a bundle."""
    yield _Part("token_embd.weight", "embed", np.arange(spec.vocab_size))
    a, m, shapes = _attention(spec), _inner_size(spec), spec.tensors()
    q, kv = a.q_dim, a.kv_dim
    for i in range(spec.n_layers):
        attention, mlp = (f"blocks.{b}" for b in spec.span(i, i + 1))
        theirs = f"blk.{i}"
        yield _Part(f"{theirs}.attn_q.weight", f"{attention}.qkv", interleaved(a.n_heads, a.head_dim))
        yield _Part(f"{theirs}.attn_k.weight", f"{attention}.qkv", q + interleaved(a.n_kv_heads, a.head_dim))
        yield _Part(f"{theirs}.attn_v.weight", f"{attention}.qkv", np.arange(q + kv, q + 2 * kv))
        yield _Part(f"{theirs}.ffn_gate.weight", f"{mlp}.gate_up", np.arange(m))
        yield _Part(f"{theirs}.ffn_up.weight", f"{mlp}.gate_up", np.arange(m, 2 * m))
        whole = {"attn_output": f"{attention}.o", "ffn_down": f"{mlp}.down"}
        whole |= {"attn_norm": f"{attention}.norm", "ffn_norm": f"{mlp}.norm"}
        for name, source in whole.items():
            yield _Part(f"{theirs}.{name}.weight", source, np.arange(shapes[source][0]))
    yield _Part("output_norm.weight", "final_norm", np.arange(spec.hidden_size))
    if not spec.tied:
        yield _Part("output.weight", "head", np.arange(spec.vocab_size))


def interleaved(heads: int, dim: int) -> NDArray[np.int64]:
    """Row numbers that bring the two halves of each head together.

    >>> interleaved(1, 6).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    return np.arange(heads * dim).reshape(heads, 2, dim // 2).swapaxes(1, 2).reshape(-1)


@dataclass(frozen=True)
class _Table:
    """A tensor to write: `chunks` makes its bytes a few rows at a time."""

    shape: tuple[int, ...]
    kind: int
    size: int
    chunks: Callable[[], Iterator[NDArray[Any]]]

    @classmethod
    def of(cls, bundle: Bundle, part: _Part) -> _Table:
        t = bundle.manifest.tensors[part.source]
        shape = (len(part.rows), *t.shape[1:])
        kind = WRITTEN[t.format]
        return cls(shape, kind.number, prod(shape) * kind.size // kind.block, lambda: _chunks(bundle, t, part))

    @classmethod
    def floats(cls, values: NDArray[np.float32]) -> _Table:
        return cls(values.shape, 0, values.nbytes, lambda: iter([values]))


def _chunks(bundle: Bundle, t: Tensor, part: _Part) -> Iterator[NDArray[Any]]:
    step = max(1, _CHUNK // prod(t.shape[1:]))
    for at in range(0, len(part.rows), step):
        rows = part.rows[at : at + step]
        # A head's rows stay within the head: what is read is little more than what is written.
        first, last = int(rows.min()), int(rows.max()) + 1
        yield _converted(bundle, t, first, last)[rows - first]


def _converted(bundle: Bundle, t: Tensor, start: int, stop: int) -> NDArray[Any]:
    """Rows start..stop of a tensor as GGUF stores them: floats, or bytes [n, blocks, bytes of a block]."""
    if t.format == "f32" or t.format == "f16":
        return bundle.array(t.data, np.float32 if t.format == "f32" else np.float16, t.shape)[start:stop]
    n, times = stop - start, t.block // BLOCK
    data = _stored(bundle, t, t.data, np.uint32, t.blocks * t.block_bytes // 4, start, stop).view(np.uint8)
    scales = np.repeat(_stored(bundle, t, t.scales, np.float16, t.blocks, start, stop), times, axis=1)
    blocks = data.reshape(n, t.blocks * times, -1)[:, : t.shape[1] // BLOCK]
    quants = nibbles(blocks) if t.format == "int4" else blocks ^ np.uint8(128)
    scale_bytes = np.ascontiguousarray(scales[:, : quants.shape[1]]).view(np.uint8).reshape(n, -1, 2)
    return np.concatenate([scale_bytes, quants], axis=2)


def _stored(bundle: Bundle, t: Tensor, offset: int, dtype: Any, width: int, start: int, stop: int) -> NDArray[Any]:
    """Rows start..stop [n, width] of a matrix of words, whichever its layout."""
    if t.layout == "rows":
        return bundle.array(offset, dtype, (t.shape[0], width))[start:stop]
    return unpack(bundle.array(offset, dtype, (t.groups, width, LANES)), start, stop)


def nibbles(blocks: Bytes) -> Bytes:
    """Blocks [..., 16] of neighbouring values in a byte, as blocks with value j and value j + 16 in byte j.

    Of values 0 1 2 … 31 the first byte holds 0 and 1 before, 0 and 16 after. The value stays q + 8.
    """
    low, high = blocks & 15, blocks >> 4
    values = np.stack([low, high], axis=-1).reshape(*blocks.shape[:-1], BLOCK)
    return values[..., : BLOCK // 2] | values[..., BLOCK // 2 :] << 4


def _metadata(bundle: Bundle) -> dict[str, Value]:
    spec, attention = bundle.spec, _attention(bundle.spec)
    # Granite is a Llama with an attention scale; its logit scale is 1, because it is in the weights already.
    own = not np.isclose(attention.scale**2 * attention.head_dim, 1)
    of = "granite" if own else "llama"
    scales: dict[str, Value] = (
        {"granite.attention.scale": float(attention.scale), "granite.logit_scale": 1.0} if own else {}
    )
    return {
        "general.architecture": of,
        "general.name": bundle.manifest.name,
        "general.alignment": ALIGNMENT,
        f"{of}.vocab_size": spec.vocab_size,
        f"{of}.context_length": spec.context_length,
        f"{of}.embedding_length": spec.hidden_size,
        f"{of}.block_count": spec.n_layers,
        f"{of}.feed_forward_length": _inner_size(spec),
        f"{of}.attention.head_count": attention.n_heads,
        f"{of}.attention.head_count_kv": attention.n_kv_heads,
        f"{of}.attention.key_length": attention.head_dim,
        f"{of}.attention.value_length": attention.head_dim,
        f"{of}.attention.layer_norm_rms_epsilon": spec.norm_eps,
        f"{of}.rope.dimension_count": attention.head_dim,
        f"{of}.rope.freq_base": rope_base(spec),
        **scales,
        # llama.cpp's server writes texts and fails on tokens without a text.
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": _token_names(spec.vocab_size),
    }


def _token_names(vocab: int) -> list[str]:
    """<0>, <1>, …, <0x00>, …, <0xFF>; without bytes in a vocabulary that is hardly larger."""
    names = [f"<{token}>" for token in range(vocab)]
    return names if vocab < 300 else [*names[:-256], *(f"<0x{byte:02X}>" for byte in range(256))]


def rope_base(spec: ModelSpec) -> float:
    """The base whose powers are closest to the rope's frequencies near 1; `rope_factors` makes up for the rest."""
    frequencies = spec.ropes[0].inv_freq
    return round(frequencies[1] ** -(_attention(spec).head_dim / 2), 1) if len(frequencies) > 1 else 10000.0


def rope_factors(spec: ModelSpec) -> NDArray[np.float32]:
    """The divisors [head_dim / 2] that turn llama.cpp's frequencies into the bundle's."""
    exponents = np.arange(0, _attention(spec).head_dim, 2) / _attention(spec).head_dim
    return (rope_base(spec) ** -exponents / np.array(spec.ropes[0].inv_freq)).astype(np.float32)


def _write_header(file: BinaryIO, metadata: dict[str, Value], tensors: dict[str, _Table]) -> None:
    """Magic, version, counts; the metadata; and of each tensor its name, shape, type and offset in the data."""
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        file.write(_string(key) + _value(value))
    offset = 0
    for name, table in tensors.items():
        shape = struct.pack(f"<I{len(table.shape)}Q", len(table.shape), *reversed(table.shape))
        file.write(_string(name) + shape + struct.pack("<IQ", table.kind, offset))
        offset += table.size + -table.size % ALIGNMENT


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Value) -> bytes:
    """A metadata value after its type: strings 9 of 8, string 8, float32 6, uint32 4."""
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)
