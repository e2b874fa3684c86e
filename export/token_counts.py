"""How often a model generated each token: a bundle's `token_counts.bin`, uint32 by token (VocabTrim).

`train-heads` counts the tokens of its texts; drafters that use the model's own head then draft only tokens in use
(`edgedec/drafters/_usage.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.folder import Bundle
from edgedec.bundle.manifest import TOKEN_COUNTS
from edgedec.export.amend import add_files


def put_counts(bundle: Bundle, said: NDArray[np.int64]) -> Bundle:
    """Put the counts of these tokens into a bundle. -> the bundle as it is now."""
    counts = np.bincount(said, minlength=bundle.spec.vocab_size)
    return put_table(bundle, counts)


def put_table(bundle: Bundle, counts: NDArray[np.integer]) -> Bundle:
    """Put a table [vocab_size], or the beginning of one, into a bundle."""
    table = np.zeros(bundle.spec.vocab_size, "<u4")
    table[: len(counts)] = np.minimum(counts, np.iinfo(np.uint32).max)
    return add_files(bundle, {TOKEN_COUNTS: table.tobytes()}, lambda manifest: manifest)


def table_of(bundle: Bundle) -> NDArray[np.uint32] | None:
    """The table of a bundle; None if it has none."""
    return np.fromfile(bundle.file(TOKEN_COUNTS), "<u4") if TOKEN_COUNTS in bundle.manifest.files else None
