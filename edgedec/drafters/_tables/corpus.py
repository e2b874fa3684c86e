"""Initial tables from a corpus: the successors of tokens in a text, as a state of `trigram`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.drafters import DrafterContext, State
from edgedec.errors import UsageError

# The most bytes of a corpus that are read; the most visits that its counts are worth, so that the model's predictions
# soon outweigh them.
_BYTES, _VISITS = 8 << 20, 4
_TRUST = 0.9


def corpus_state(host: DrafterContext, path: str, k: int, caps: tuple[int, int]) -> State:
    """The state of a trigram from the text file at `path`: the most frequent pairs and single tokens, at most
    `caps`."""
    return dict(host.table(("corpus", path, k), lambda: _read(host, Path(path), k, caps)))


def _read(host: DrafterContext, path: Path, k: int, caps: tuple[int, int]) -> State:
    try:
        with path.open("rb") as file:
            text = file.read(_BYTES).decode("utf-8", "ignore")
    except OSError as error:
        raise UsageError(f"drafter trigram: corpus {path}: {error.strerror or error}") from None
    return tables_of(host.tokenizer().encode(text, around=False), host.bundle.spec.vocab_size, k, caps)


def tables_of(ids: Sequence[int], vocab: int, k: int, caps: tuple[int, int]) -> State:
    """The state of a trigram that has seen these tokens."""
    tokens = np.asarray(ids, np.int64)
    if len(tokens) < 3:
        raise UsageError("drafter trigram: corpus: fewer than three tokens")
    pairs = tokens[:-2] * vocab + tokens[1:-1]
    return _rows("pairs.", pairs, tokens[2:], vocab, k, caps[0]) | _rows(
        "singles.", tokens[:-1], tokens[1:], vocab, k, caps[1]
    )


def _rows(prefix: str, keys: NDArray[Any], follow: NDArray[Any], vocab: int, k: int, cap: int) -> State:
    """Of each key its k most frequent followers; the rarest keys first, as the oldest."""
    both, counts = np.unique(np.stack([keys, follow], axis=1), axis=0, return_counts=True)
    order = np.lexsort((-counts, both[:, 0]))
    both, counts = both[order], counts[order]
    found, first, sizes = np.unique(both[:, 0], return_index=True, return_counts=True)
    totals, rank = np.add.reduceat(counts, first), np.arange(len(both)) - np.repeat(first, sizes)
    row, kept = np.repeat(np.arange(len(found)), sizes), rank < k
    next_ids, p = np.full((len(found), k), -1, np.int32), np.zeros((len(found), k), np.float32)
    next_ids[row[kept], rank[kept]] = both[kept, 1]
    p[row[kept], rank[kept]] = _TRUST * counts[kept] / totals[row[kept]]
    latest = np.argsort(totals, kind="stable")[-cap:]
    return {
        prefix + "keys": np.ascontiguousarray(found[latest]).view(np.int32).reshape(-1, 2),
        prefix + "ids": next_ids[latest],
        prefix + "p": p[latest],
        prefix + "visits": np.minimum(totals[latest], _VISITS).astype(np.int32),
    }
