"""Labels of a few examples: means, means moved towards the texts, and learned labels, by accuracy.

    python tests/bench/few_examples.py BUNDLE TRAIN TEST [TEXTS]

TRAIN, TEST: lines of a label, a tab, a text. Examples are drawn from TRAIN, three times; the keys of learned labels are
made of TEXTS (2,000) other texts of it, whose labels are not read. Columns: cosines to the means; these moved by
`measured` and by `even`; the same three for a part of TEST in which labels are unequally frequent (1/rank); labels
learned at once, and a seventh of them at a time, with the first seventh's right after it and at the end; a linear
softmax trained a seventh at a time by as many steps, and its first seventh likewise.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import edgedec
from edgedec.encoding.label_learning import learned, new_labels
from edgedec.encoding.numeric import squashed, unit
from edgedec.encoding.transport import aligned

SHOTS, DRAWS, PARTS = (1, 3, 5, 10), 3, 7


class Probe:
    """A linear softmax, trained on the given examples only."""

    def __init__(self, labels: Sequence[str], width: int) -> None:
        self.labels, self.matrix = np.array(labels), np.zeros((width, len(labels)), np.float32)

    def learn(self, examples: dict[str, np.ndarray]) -> None:
        x = np.concatenate([*examples.values()])
        wanted = np.concatenate([np.tile(self.labels == label, (len(v), 1)) for label, v in examples.items()])
        for _ in range(100):
            self.matrix -= 10 * x.T @ (squashed(x @ self.matrix, "softmax") - wanted) / np.float32(len(x))

    def label(self, x: np.ndarray) -> np.ndarray:
        return self.labels[(x @ self.matrix).argmax(axis=1)]


def main(bundle: str, train: Path, test: Path, texts: int) -> None:
    model, random = edgedec.open(bundle), np.random.default_rng(0)
    named, given = read(train)
    order = random.permutation(len(given))
    keys, rest = order[:texts], order[texts:]
    drawn = {label: rest[named[rest] == label][: DRAWS * max(SHOTS)] for label in np.unique(named)}
    pool = {label: model.embed([given[i] for i in found], truncate=True) for label, found in drawn.items()}
    empty = new_labels("", model.embed([given[i] for i in keys], truncate=True))
    wanted, asked = read(test)
    vectors = unit(model.embed(asked, truncate=True))
    labels = list(random.permutation(np.unique(wanted)))
    rank = np.array([labels.index(label) + 1 for label in wanted])
    skewed = random.random(len(wanted)) < 1 / rank
    print(
        f"{len(labels)} labels, {len(wanted)} texts, {skewed.sum()} in the part; {empty.keys.shape[1]} keys a codebook"
    )
    for shots in SHOTS:
        rows = []
        for draw in range(DRAWS):
            few = {label: pool[label][draw::DRAWS][:shots] for label in labels}
            rows.append([*by_means(few, vectors, wanted, skewed), *by_learning(empty, few, vectors, wanted)])
        print(f"{shots:3}", *(f"{100 * value:5.1f}" for value in np.mean(rows, axis=0)), flush=True)


def read(file: Path) -> tuple[np.ndarray, list[str]]:
    pairs = [line.split("\t", 1) for line in file.read_text("utf-8").splitlines()]
    return np.array([label for label, _ in pairs]), [text for _, text in pairs]


def by_means(few: dict[str, np.ndarray], vectors: np.ndarray, wanted: np.ndarray, part: np.ndarray) -> list[float]:
    labels, means = np.array(list(few)), unit(np.stack([unit(x).mean(axis=0) for x in few.values()]))
    counts, found = np.array([len(x) for x in few.values()]), []
    for x, y in ((vectors, wanted), (vectors[part], wanted[part])):
        for moved in (means, aligned(means, counts, x, "measured"), aligned(means, counts, x, "even")):
            found.append(float((labels[(x @ moved.T).argmax(axis=1)] == y).mean()))
    return found


def by_learning(empty, few: dict[str, np.ndarray], vectors: np.ndarray, wanted: np.ndarray) -> list[float]:
    parts = [dict(list(few.items())[i::PARTS]) for i in range(PARTS)]
    first = np.isin(wanted, list(parts[0]))

    def right(known) -> np.ndarray:
        return np.array([next(iter(known.scores(x))) == y for x, y in zip(vectors, wanted, strict=True)])

    at_once, known, probe = right(learned(empty, few)), empty, Probe(list(few), vectors.shape[1])
    for i, part in enumerate(parts):
        known = learned(known, part)
        probe.learn(part)
        if i == 0:
            began = [np.mean([next(iter(known.scores(x))) == y for x, y in zip(vectors[first], wanted[first])])]
            began.append((probe.label(vectors[first]) == wanted[first]).mean())
    ended, probed = right(known), probe.label(vectors) == wanted
    return [at_once.mean(), ended.mean(), began[0], ended[first].mean(), probed.mean(), began[1], probed[first].mean()]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 2000)
