"""How keys are made and values learned (`learned_labels`).

Keys: moving averages of the vectors that are nearest to them, ten times over the texts; a key to which hardly any text
is near is moved onto one. That is the authors' rule with their constants. They have 256 codebooks of 4,096 keys of 14
values; here there are fewer and longer ones, of which some thousand texts reach a good part.

Values: gradient steps on the cross-entropy with smoothed targets, as the authors'. A step of theirs adds up the
gradients of a batch; here a value moves by the mean of its own examples, so that a step of 1 is stable however many
examples hit a key, and a hundred steps are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edgedec.encoding.learned_labels import Hits, LearnedLabels
from edgedec.encoding.numeric import Array, squashed
from edgedec.errors import UsageError

CODEBOOKS, KEYS, SIZE = 64, 1024, 32
_ROUNDS, _BATCH, _DECAY, _RARE = 10, 256, 0.95, 0.1
_STEPS, _SMOOTHING = 100, 0.1


def new_labels(encoder: str, vectors: Array, seed: int = 0) -> LearnedLabels:
    """No labels yet; keys of the vectors [n, width] of texts."""
    if not len(vectors):
        raise UsageError("labels: keys are made of texts, give some")
    random = np.random.default_rng(seed)
    projections = random.standard_normal((CODEBOOKS, vectors.shape[1], SIZE)).astype(np.float32)
    projections /= np.sqrt(np.square(projections).sum(axis=1, keepdims=True))
    keys = np.stack([_keys(vectors @ matrix, random) for matrix in projections])
    values, used = np.zeros((*keys.shape[:2], 1), np.float32), np.zeros(keys.shape[:2], np.uint8)
    return LearnedLabels(encoder, (), projections, keys, values, used)


def _keys(x: Array, random: np.random.Generator) -> Array:
    """Keys [keys, size] of a codebook by the texts' short vectors x [n, size]."""
    keys = x[random.choice(len(x), min(KEYS, len(x)), replace=False)]
    usual = min(_BATCH, len(x)) / len(keys)
    count, total = np.full(len(keys), usual, np.float32), keys * np.float32(usual)
    for _ in range(_ROUNDS):
        for batch in np.array_split(random.permutation(len(x)), -(-len(x) // _BATCH)):
            near = (np.square(keys).sum(axis=1) - 2 * (x[batch] @ keys.T)).argmin(axis=1)
            sums = np.zeros_like(keys)
            np.add.at(sums, near, x[batch])
            count = _DECAY * count + (1 - _DECAY) * np.bincount(near, minlength=len(keys)).astype(np.float32)
            total = _DECAY * total + (1 - _DECAY) * sums
            keys = (total / np.maximum(count, 1e-5)[:, None]).astype(np.float32)
            rare = count < _RARE * usual
            keys[rare] = x[random.choice(batch, int(rare.sum()))]
    return keys


def learned(known: LearnedLabels, examples: Mapping[str, Array]) -> LearnedLabels:
    """`known` and what the vectors [n, width] of each label's examples add: new labels, or more of labels it has."""
    if not examples or not all(len(vectors) for vectors in examples.values()):
        raise UsageError("examples: every label needs one at least")
    labels = (*known.labels, *(label for label in examples if label not in known.labels))
    new = np.repeat(known.values[:, :, :1], len(labels) - len(known.labels), axis=2)
    values, used = np.concatenate([known.values, new], axis=2), known.used.copy()
    hits = np.stack([known.hits(vector) for vectors in examples.values() for vector in vectors])
    wanted = np.repeat([1 + labels.index(label) for label in examples], [len(v) for v in examples.values()])
    used[np.arange(hits.shape[1]), hits] = 1
    _learn(values, hits, wanted)
    return replace(known, labels=labels, values=values, used=used)


def _learn(values: Array, hits: Hits, wanted: Hits) -> None:
    """Gradient steps on the values [codebooks, keys, 1 + labels] that the examples hit [n, codebooks], in place."""
    n, codebooks = hits.shape
    groups = [_groups(hits[:, book]) for book in range(codebooks)]
    targets = np.full((n, values.shape[2]), _SMOOTHING / values.shape[2], np.float32)
    targets[np.arange(n), wanted] += 1 - _SMOOTHING
    for _ in range(_STEPS):
        logits = np.zeros_like(targets)
        for book in range(codebooks):
            logits += values[book, hits[:, book]]
        off = squashed(logits / np.float32(codebooks), "softmax") - targets
        for book, (keys, order, starts, count) in enumerate(groups):
            values[book, keys] -= np.add.reduceat(off[order], starts) / count


def _groups(hits: Hits) -> tuple[Hits, Hits, Hits, Array]:
    """The keys that are hit, the examples sorted by them, where those of each key start, and how many they are.

    >>> [part.tolist() for part in _groups(np.array([7, 2, 7]))]
    [[2, 7], [1, 0, 2], [0, 1], [[1.0], [2.0]]]
    """
    keys, count = np.unique(hits, return_counts=True)
    return keys, np.argsort(hits, kind="stable"), np.cumsum(count) - count, count[:, None].astype(np.float32)
