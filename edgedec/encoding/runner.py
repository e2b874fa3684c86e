"""Texts of different lengths through the blocks, many in a call and none padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from edgedec.bundle import Bundle
from edgedec.encoding.entry import EntryTables
from edgedec.encoding.numeric import Array
from edgedec.encoding.texts import EncodedText
from edgedec.runtime import Call, Outputs, Rows, Runtime

# Rows of a forward: the values of more do not fit the second cache, and keys and values of all are in memory.
_ROWS = 256


class TextRunner:
    """Runs the blocks of an encoder, of a decoder that embeds, or of a model with modes, whose entry the runtime
    computes."""

    def __init__(self, bundle: Bundle, runtime: Runtime) -> None:
        self._runtime, self._spec = runtime, bundle.spec
        modes = bundle.manifest.modes is not None
        self._bundle, self._entry = bundle, None if modes else self._spec.entry
        self._enters = runtime.capabilities.enters
        self._grouped = modes or not self._spec.causal
        self._last = self._spec.n_blocks - 1
        self._rows = min(_ROWS, runtime.capabilities.largest_call)

    @cached_property
    def _tables(self) -> EntryTables:
        assert self._entry is not None
        return EntryTables(self._spec, self._entry, self._bundle)

    def hidden(self, texts: Sequence[EncodedText]) -> Iterator[Array]:
        """The state [n, hidden_size] after the last block of each text."""
        for batch in batches([len(text.ids) for text in texts], self._rows):
            yield from (self._whole if self._grouped else self._causal)([texts[i] for i in batch])

    def _whole(self, texts: Sequence[EncodedText]) -> list[Array]:
        rows = [self._text(text) for text in texts]
        if self._entry is None or not self._entry.conv:
            return self._run(rows, range(self._spec.n_blocks))
        first = len(self._spec.layers[0])
        entered = [one.embeddings for one in rows if one.embeddings is not None]
        joined = map(self._tables.joined, entered, self._run(rows, range(first)))
        if first == self._spec.n_blocks:
            return list(joined)
        return self._run([Rows.text(None, state) for state in joined], range(first, self._spec.n_blocks))

    def _run(self, rows: Sequence[Rows], blocks: range) -> list[Array]:
        """The state of each text's rows after the last of these blocks."""
        outputs = Outputs(hidden=(blocks[-1],))
        calls = [Call(one, self._runtime.new_cache(len(one)), blocks, one.embeddings, outputs) for one in rows]
        return [result.hidden[blocks[-1]] for result in self._runtime.forward(calls)]

    def _text(self, text: EncodedText) -> Rows:
        entry = self._entry
        if entry is not None and not (self._enters and entry.by_token):
            return Rows.text(None, self._tables.rows(text.ids, text.types))
        typed = entry is not None and entry.types > 1 and any(text.types)
        return Rows.text(np.asarray(text.ids, np.int64), types=np.asarray(text.types, np.int64) if typed else None)

    def _causal(self, texts: Sequence[EncodedText]) -> list[Array]:
        """Of rows that see earlier ones only: a chunk of each text in a forward."""
        caches = [self._runtime.new_cache(len(text.ids)) for text in texts]
        found: list[list[Array]] = [[] for _ in texts]
        chunk = max(1, self._rows // len(texts))
        for at in range(0, max(len(text.ids) for text in texts), chunk):
            going = [i for i, text in enumerate(texts) if len(text.ids) > at]
            calls = [
                Call(Rows.chain(texts[i].ids[at : at + chunk], at), caches[i], outputs=Outputs(hidden=(self._last,)))
                for i in going
            ]
            for i, call, result in zip(going, calls, self._runtime.forward(calls), strict=True):
                caches[i].commit(range(len(call.rows)))
                found[i].append(result.hidden[self._last])
        return [np.concatenate(parts) for parts in found]


def batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Texts one after another, as many as have at most `most` rows together; a longer one alone.

    >>> list(batches([3, 4, 9, 1], 8))
    [[0, 1], [2], [3]]
    """
    batch, rows = list[int](), 0
    for i, length in enumerate(lengths):
        if batch and rows + length > most:
            yield batch
            batch, rows = [], 0
        batch.append(i)
        rows += length
    if batch:
        yield batch
