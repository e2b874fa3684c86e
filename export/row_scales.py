"""Which matrices of a text encoder get one scale a row, after their inputs are evened out (SmoothQuant).

Xiao et al. 2022, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models": where a
row of activations has one scale, its few large inputs leave few steps for the others, and in encoders the same inputs
are large in every row. Input j is divided by s_j = max|x_j|^a / max|w_j|^(1 - a), column j of the matrix multiplied by
it: the same product, rounded less. A norm before the matrix takes the divisor into its weights; a block without one
gets factors in its place. Here the largest |x_j| are of tokens drawn from the vocabulary, so that no text is needed.

Chosen on all-MiniLM-L6-v2, by the cosine to float embeddings of 200 questions: a = 0.6 (0.9992; 0.5 and 0.7 are no
better, nothing evened 0.9977), and the matrices that read a block's state only (evening what `o` and `down` read as
well: 0.9985). A matrix whose products then still change by more than `_MOST` of their size keeps blocks of 32; none of
that model's does (at most 0.03).

With `qkv` in rows the CPU engine attends in integers too (`kernels/cpu/attention_int8.inl`), where nothing is added to
scores; `qkv` stays in blocks as well where rounded queries, keys and values would change more of what is attended to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.manifest import WeightFormat
from edgedec.encoding.entry import EntryTables
from edgedec.export.passes._all import Passed
from edgedec.export.passes._routing import with_blocks
from edgedec.export.passes._scaled import Scaled
from edgedec.export.passes._statistics import Float64, WatchedInputs
from edgedec.export.quantize import codes_of, from_codes
from edgedec.export.weights import ROW, ROW_BLOCK, rounded_rows
from edgedec.runtime import Call, Rows
from edgedec.runtimes.reference import Reference
from edgedec.runtimes.reference.attention import attend, turned_heads
from edgedec.runtimes.reference.numeric import Array, BlockWeights, Weights
from edgedec.spec import Attention, Block, Mlp, ModelSpec

_SHARE, _MOST = 0.6, 0.04
_LENGTHS = (16, 48, 64, 128)  # of the texts drawn


def fit_rows(spec: ModelSpec) -> bool:
    """Whether the inputs of its matrices are known here: a text encoder of attention and feed-forward blocks."""
    plain = spec.output is not None and not spec.causal and set(spec.kinds) <= {"attention", "mlp"}
    return plain and not (spec.paired or (spec.entry is not None and spec.entry.conv))


def row_scales(spec: ModelSpec, read: Weights, fixed: frozenset[str], embed: WeightFormat) -> Passed:
    """The encoder evened out. fixed: matrices that are stored as they are; embed: the format of the embedding, of which
    single rows are read: it stays in blocks."""
    scaled, inputs, blocks = Scaled(read), _inputs(spec, read), dict[int, Block]()
    for b, block in enumerate(spec.blocks):
        assert isinstance(block, Attention | Mlp)
        name = f"blocks.{b}.{'qkv' if isinstance(block, Attention) else block.up}"
        if name not in fixed:
            factors = _factors(inputs[name], read(name, 0, spec.shapes[name][0]))
            blocks[b] = _evened(scaled, b, block, name, factors)
            inputs[name] = (inputs[name] / factors).astype(np.float32)
    left = ["embed"] if embed == "int8" else []
    left += [name for name, x in inputs.items() if _change(spec, scaled.read, name, x) > _MOST]
    left += [name for name in _attending(spec, scaled.read, inputs) if name not in left]
    kept = {name: rounded_rows("int8", ROW_BLOCK, partial(scaled.read, name)) for name in left if name not in fixed}
    return Passed(scaled.read, kept=kept, spec=with_blocks(spec, blocks))


def _inputs(spec: ModelSpec, read: Weights) -> dict[str, Array]:
    """What each matrix multiplies [n, k] while the float model reads drawn tokens."""
    rng, watch, runtime = np.random.default_rng(0), WatchedInputs(), Reference(spec, read)
    tables = None if spec.entry is None else EntryTables(spec, spec.entry, _Tables(spec, read))
    for length in _LENGTHS:
        ids = rng.integers(0, spec.vocab_size, min(length, spec.context_length))
        rows = Rows.text(ids) if tables is None else Rows.text(None, tables.rows(ids.tolist(), [0] * len(ids)))
        runtime.forward([Call(rows, runtime.new_cache(len(ids)), adapter=watch)])
    return watch.inputs()


@dataclass(frozen=True)
class _Tables:
    """The float model's tensors as an entry reads them."""

    spec: ModelSpec
    read: Weights

    def rows(self, name: str) -> Array:
        return self.read(name, 0, self.spec.shapes[name][0])

    def gather(self, name: str, rows: NDArray[np.int64]) -> Array:
        return np.concatenate([self.read(name, row, row + 1) for row in rows.tolist()])


def _factors(inputs: Array, matrix: Array) -> Float64:
    """s [k] of inputs [n, k] and the matrix that reads them."""
    of_inputs, of_weights = (np.maximum(np.abs(values).max(axis=0), 1e-5) for values in (inputs, matrix))
    found = np.log(of_inputs) * _SHARE - np.log(of_weights) * (1 - _SHARE)
    return np.exp(found - found.mean(), dtype=np.float64)


def _evened(scaled: Scaled, b: int, block: Attention | Mlp, matrix: str, factors: Float64) -> Attention | Mlp:
    """Block b with the matrix that reads its state multiplied by the factors, and what it reads divided by them."""
    scaled.columns(matrix, factors)
    norm = f"blocks.{b}.norm"
    if block.norm == "none":
        scaled.set(norm, 1 / factors)
        return replace(block, norm="scale")
    scaled.rows(norm, 1 / factors)
    if block.norm == "layer":
        scaled.rows(f"{norm}_bias", 1 / factors)
    return block


def _change(spec: ModelSpec, read: Weights, name: str, inputs: Array) -> float:
    """What rounding with a scale a row, of the matrix and of its inputs, changes of their product, over its size."""
    n, k = spec.shapes[name]
    matrix = read(name, 0, n)
    data, scales, _ = rounded_rows("int8", ROW, partial(read, name)).rows(0, n)
    rounded = from_codes(codes_of(data, "int8", k), scales, "int8", ROW_BLOCK)
    product = inputs @ matrix.T
    return _apart(_rounded(inputs) @ rounded.T, product)


def _attending(spec: ModelSpec, read: Weights, inputs: dict[str, Array]) -> list[str]:
    """The matrices `qkv` of blocks where attention in integers would change too much."""
    cuts = np.cumsum([min(length, spec.context_length) for length in _LENGTHS])[:-1]
    found = list[str]()
    for b, block in spec.attention.items():
        name = f"blocks.{b}.qkv"
        texts = np.split(inputs[name], cuts) if attends_in_int8(block) else ()
        if max((attention_change(block, BlockWeights(spec, b, read), text) for text in texts), default=0.0) > _MOST:
            found.append(name)
    return found


def attends_in_int8(block: Attention) -> bool:
    """Whether the CPU engine may attend in integers: nothing is added to scores, and all rows see all others."""
    added = block.softcap or block.distances or block.slopes or block.relative
    return block.window is None and not added and block.head_dim % 16 == 0


def attention_change(block: Attention, w: BlockWeights, text: Array) -> float:
    """What rounding its queries, keys and values to int8, with a scale a head and row, changes of what a text's rows
    [n, read] attend to, over its size."""
    q, k, v, _ = turned_heads(block, w, text, np.arange(len(text)))
    everything = np.ones((len(text), len(text)), np.bool_)
    exact = attend(q, k, v, everything, block)[0]
    rounded = attend(_rounded(q), _rounded(k), _rounded(v), everything, block)[0]
    return _apart(rounded, exact)


def _apart(found: Array, exact: Array) -> float:
    """What differs over the size of what is exact."""
    return float(np.linalg.norm(found - exact)) / max(float(np.linalg.norm(exact)), 1e-30)


def _rounded(x: Array) -> Array:
    """Values of int8, with a scale a row."""
    step = np.maximum(np.abs(x).max(axis=-1, keepdims=True) / np.float32(127), np.float32(1e-30))
    return np.round(x / step) * step
