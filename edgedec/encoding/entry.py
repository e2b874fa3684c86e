"""What enters the first block of an encoder: embeddings of tokens, positions and types, normed
(`spec.EncoderEntry`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.encoding.numeric import Array, convolved, normed, squashed
from edgedec.errors import UsageError
from edgedec.spec import EncoderEntry, ModelSpec


class Tensors(Protocol):
    """A bundle, or what stands for it: `rows` gives a whole tensor, `gather` the rows of a matrix that are named."""

    def rows(self, name: str) -> Array: ...

    def gather(self, name: str, rows: NDArray[np.int64]) -> Array: ...


class EntryTables:
    """The tables of a model, read once."""

    def __init__(self, spec: ModelSpec, entry: EncoderEntry, tensors: Tensors) -> None:
        self._spec, self._entry, self._tensors = spec, entry, tensors
        self._tables = {name: tensors.rows(name) for name in entry.tensors(spec.hidden_size)}

    def rows(self, ids: Sequence[int], types: Sequence[int]) -> Array:
        """The state [n, hidden_size] of a text's tokens. types: of models with several; of others they are ignored."""
        entry, tables = self._entry, self._tables
        x = self._tensors.gather("embed", np.asarray(ids, np.int64)) * np.float32(self._spec.embed_scale)
        if entry.types:
            kinds = np.asarray(types, np.int64) if entry.types > 1 else np.zeros(len(ids), np.int64)
            if kinds.min() < 0 or kinds.max() >= entry.types:
                raise UsageError(f"token type {kinds.max()}: the model has {entry.types}")
            x = x + tables["types"][kinds]
        if entry.positions:
            x = x + tables["positions"][: len(ids)]
        x = normed(x, entry.norm, tables.get("entry_norm"), tables.get("entry_norm_bias"), self._spec.norm_eps)
        return x @ tables["entry"].T + tables["entry_bias"] if entry.width else x

    def joined(self, entered: Array, x: Array) -> Array:
        """The state [n, hidden_size] after the convolution beside the first layer: of what entered, and the state x
        after that layer."""
        entry, tables = self._entry, self._tables
        y = convolved(entered, tables["conv"], tables["conv_bias"], entry.conv_groups)
        y = x + squashed(y, entry.conv_activation)
        return normed(y, "layer", tables["conv_norm"], tables["conv_norm_bias"], self._spec.norm_eps)
