"""Tokens that would repeat a sequence of the text: forbidden (no-repeat n-grams) or penalised (DRY)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log

import numpy as np
from numpy.typing import NDArray

from edgedec.sampling.distributions import Ids, Logits
from edgedec.sampling.settings import Sampling

# The logarithm of the largest float32: DRY's exponent is no larger.
_MOST = 88.7228391


def repeated(scores: Logits, sampling: Sampling, ids: Ids, breakers: Sequence[Sequence[int]]) -> Logits:
    """Scores [vocab] with both rules. ids [n]: the text; breakers: the tokens of `dry_sequence_breakers`, each in
    order."""
    scores = scores.copy()
    if sampling.no_repeat_ngram_size:
        scores[_known(forbidden(ids, sampling.no_repeat_ngram_size), scores)] = -np.inf
    if sampling.dry:
        n = len(ids) if sampling.dry_penalty_last_n < 0 else sampling.dry_penalty_last_n
        lengths = repeat_lengths(ids[max(len(ids) - n, 0) :], sampling.dry_allowed_length, breakers)
        for token in _known(np.array(list(lengths), np.int64), scores).tolist():
            scores[token] -= np.float32(dry_penalty(lengths[token], sampling))
    return scores


def forbidden(ids: Ids, size: int) -> Ids:
    """The tokens that would complete an n-gram of the text, as in Hugging Face's generate.

    1 2 3 1 2, size 3: 3, because 1 2 3 is in the text
    """
    if len(ids) + 1 < size:
        return ids[:0]
    if size == 1:
        return np.unique(ids)
    windows = np.lib.stride_tricks.sliding_window_view(ids, size) if len(ids) >= size else np.empty((0, size), np.int64)
    same = (windows[:, :-1] == ids[len(ids) - size + 1 :]).all(axis=1)
    return np.unique(windows[same, -1])


def repeat_lengths(ids: Ids, allowed: int, breakers: Sequence[Sequence[int]] = ()) -> dict[int, int]:
    """For each token that would extend a repeated sequence of `allowed` tokens or more, how long that sequence is:
    DRY (Don't Repeat Yourself, p-e-w 2024), as in llama.cpp.

    a b c c b c y a b c, allowed 2: {c: 3, y: 2}: `a b c` would go on with c, `b c` with y
    """
    n = len(ids)
    limit = _since_break(ids, breakers)
    if n <= allowed or limit < allowed:
        return {}
    ends = np.flatnonzero(ids[:-1] == ids[-1])  # the last tokens of sequences that repeat the end of the text
    lengths: NDArray[np.int64] = np.zeros(n, np.int64)
    length = 0
    while len(ends) and length < limit:
        length += 1
        lengths[ends] = length
        ends = ends[ends >= length]
        ends = ends[ids[ends - length] == ids[n - 1 - length]] if length < n else ends[:0]
    single = {breaker[0] for breaker in breakers if len(breaker) == 1}
    found = dict[int, int]()
    for end in np.flatnonzero(lengths[: n - 1] >= allowed).tolist():
        token = int(ids[end + 1])
        if token not in single:
            found[token] = max(found.get(token, 0), int(lengths[end]))
    return found


def dry_penalty(length: int, sampling: Sampling) -> float:
    """What is subtracted from the logit of a token that extends a repeated sequence of this length."""
    most = int(_MOST / log(sampling.dry_base)) if sampling.dry_base > 1.000001 else inf
    return float(sampling.dry_multiplier * sampling.dry_base ** min(length - sampling.dry_allowed_length, most))


def _since_break(ids: Ids, breakers: Sequence[Sequence[int]]) -> int:
    """The number of tokens after the last breaker; all, if there is none."""
    n = len(ids)
    heads: dict[int, list[Sequence[int]]] = {}
    for breaker in breakers:
        heads.setdefault(breaker[0], []).append(breaker)
    for at in np.flatnonzero(np.isin(ids, list(heads)))[::-1].tolist() if heads else ():
        after = ids[at:].tolist()
        whole = [len(b) for b in heads[int(ids[at])] if len(b) <= n - at and after[: len(b)] == list(b)]
        if whole:
            return n - at - max(whole)
    return n


def _known(tokens: Ids, scores: Logits) -> Ids:
    """Those that have a score."""
    return tokens[tokens < len(scores)]
