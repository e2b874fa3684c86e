"""The trimmed vocabulary of a draft's readout: the tokens that a model uses (VocabTrim).

A bundle may have counts of the tokens that its model generates (`token_counts.bin`, by `train-heads`). Without it the
tokens of the text are counted: the readout is the whole vocabulary until a quarter of it (counted tokens, then the
lowest ids, which tokenizers assign to frequent tokens) would have missed almost none. Small vocabularies are not
trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.manifest import TOKEN_COUNTS
from edgedec.drafters import DrafterContext, State
from edgedec.errors import BundleCorrupt, UsageError
from edgedec.runtime import Readout, Runtime

# The share of generated tokens that the readout covers by a table; the least number of its tokens.
_COVERED, SMALL = 0.998, 8192
# It is trimmed when a smaller share than _FEW of _SPAN tokens would have been missed, and whole again above _MANY.
_FEW, _MANY, _SPAN = 0.01, 0.02, 512
# A table of fewer counted tokens than this does not identify rare tokens.
_TELLING = 10_000
_tables: WeakKeyDictionary[Runtime, Readout | None] = WeakKeyDictionary()


class Usage:
    """Counts of one text's tokens; `readout`: None for the whole vocabulary. most: its largest size."""

    def __init__(self, vocab: int, most: int, table: Readout | None = None) -> None:
        self._counts, self._most, self._whole = np.zeros(vocab), most, most >= vocab
        self._tried = table or Readout(())
        self._missed = self._seen = 0
        self._known = np.zeros(vocab, bool)
        self._known[self._tried.ids] = True
        self.readout = table

    def add(self, tokens: Sequence[int]) -> None:
        """Count generated tokens."""
        if self._whole:
            return
        for token in tokens:
            self._counts[token] += 1
            self._missed += not self._known[token]
            self._seen += 1
            if self._seen % _SPAN == 0:
                self._settle()

    def _settle(self) -> None:
        """Trim or not by the recent misses; choose another set of tokens after many misses."""
        missed, self._missed = self._missed / _SPAN, 0
        if missed <= _FEW:
            self.readout = self._tried
        elif missed > _MANY or self.readout is None:
            self.readout = None
            # Tokens of the table and recent tokens first, then the lowest ids.
            order = np.argsort(-(self._counts + 0.5 * self._known), kind="stable")
            self._tried = Readout(order[: self._most])
            self._known[:] = False
            self._known[self._tried.ids] = True

    @property
    def share(self) -> float:
        """The readout's share of the vocabulary."""
        return 1.0 if self.readout is None else len(self.readout) / len(self._counts)

    def state(self) -> State:
        """The tokens counted, and how often."""
        ids = np.flatnonzero(self._counts)
        return {"said": ids, "times": self._counts[ids]} if len(ids) else {}

    def restore(self, state: State) -> None:
        """Continue from a state; UsageError if it cannot be of this vocabulary."""
        ids, times = state["said"], state["times"]
        if (
            ids.shape != times.shape
            or ids.ndim != 1
            or (len(ids) and not 0 <= ids.min() <= ids.max() < len(self._counts))
        ):
            raise UsageError("the counts of tokens kept are not of this model; delete them")
        if not np.isfinite(times).all() or (times < 0).any():
            raise UsageError("the counts of tokens kept say what cannot be; delete them")
        self._counts[ids] = times


def usage_of(host: DrafterContext, share: float) -> Usage:
    """Counts that start from the bundle's table, if it has one. share: the largest share of the vocabulary in the
    readout."""
    vocab = host.runtime.spec.vocab_size
    most = max(int(vocab * share), SMALL)
    if share == 1 or most >= vocab:
        return Usage(vocab, vocab)
    if host.runtime not in _tables:
        _tables[host.runtime] = _table(host)
    table = _tables[host.runtime]
    return Usage(vocab, most, table if table is None or len(table) <= most else None)


def _table(host: DrafterContext) -> Readout | None:
    """The tokens of the bundle's table; sessions share them, and the rows of the head for them."""
    files = getattr(host.bundle.manifest, "files", {})
    if TOKEN_COUNTS not in files:
        return None
    counts = np.fromfile(host.bundle.file(TOKEN_COUNTS), "<u4")
    if len(counts) != host.runtime.spec.vocab_size:
        raise BundleCorrupt(
            f"{host.bundle.path}: {TOKEN_COUNTS} counts {len(counts)} tokens, the vocabulary has "
            f"{host.runtime.spec.vocab_size}; make it again with `edgedec train-heads`"
        )
    return covering(counts) if counts.sum() >= _TELLING else None


def covering(counts: NDArray[np.integer], covered: float = _COVERED, least: int = SMALL) -> Readout:
    """The fewest tokens, the most frequent first and lower ids first among equals, that cover this share of the counts;
    at least `least`.

    counts 5 0 3 2, covered 0.8, least 1 -> tokens 0 2
    """
    order = np.argsort(-counts.astype(np.int64), kind="stable")
    sums = np.cumsum(counts[order], dtype=np.float64)
    return Readout(order[: max(least, int(np.searchsorted(sums, covered * sums[-1] - 1e-9)) + 1)])
