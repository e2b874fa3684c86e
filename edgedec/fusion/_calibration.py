"""The temperature at which a model is as sure as it is right, on texts that it has not seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.runtime import ALL_LOGITS, Call, Rows, forward_one

if TYPE_CHECKING:
    from edgedec.opened import OpenedModel

LOW, HIGH = 0.1, 10.0
_HALVINGS = 40


def calibrated_temperature(model: OpenedModel, texts: Iterable[str | Sequence[int]]) -> float:
    """The temperature of a model on held-out texts, each text or tokens."""
    found = [_rows(model, text if not isinstance(text, str) else model.tokenizer.encode(text)) for text in texts]
    if not any(len(right) for _, right in found):
        raise UsageError("calibration: needs a text of two tokens or more")
    return temperature_of(
        np.concatenate([logits for logits, _ in found]), np.concatenate([right for _, right in found])
    )


def temperature_of(logits: NDArray[np.float32], right: NDArray[np.bool_]) -> float:
    """The temperature from .1 to 10 at which the mean probability of the likeliest token is the share of `right` ones.

    logits [n, vocab]: only how far each is below the largest counts; right [n]: was the likeliest token the text's?
    """
    below = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    low, high = np.log(LOW), np.log(HIGH)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        sure = float((1 / np.exp(below / np.exp(middle)).sum(axis=1)).mean())
        low, high = (middle, high) if sure > right.mean() else (low, middle)
    return float(np.exp((low + high) / 2))


def _rows(model: OpenedModel, ids: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The logits after each token of a text but the last, and whether the likeliest one follows."""
    runtime, found = model.runtime, [np.zeros((0, model.spec.vocab_size), np.float32)]
    cache = runtime.new_cache(max(len(ids), 1))
    size = runtime.capabilities.chunk(len(ids))
    for start in range(0, len(ids) - 1, size):
        rows = Rows.chain(list(ids[start : min(start + size, len(ids) - 1)]), start)
        result = forward_one(runtime, Call(rows, cache, outputs=ALL_LOGITS))
        assert result.logits is not None
        cache.commit(range(len(rows)))
        found.append(result.logits)
    logits = np.concatenate(found)
    return logits, logits.argmax(axis=1) == np.asarray(ids[1:], np.int64)[: len(logits)]
