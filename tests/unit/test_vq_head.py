"""A head of few codes: the clusters, what ties, and that screening by them finds the largest logits exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ODD, random_weights

from edgedec.errors import UsageError
from edgedec.export.passes import PassContext, PassModel, chosen, make_pass
from edgedec.export.passes._rounded import RoundedStore
from edgedec.export.passes._statistics import Statistics
from edgedec.export.passes.vq import clustered
from edgedec.runtimes.reference.numeric import Array


def heads(near: float) -> Array:
    """200 rows around 8 centres."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((8, 24))
    return (centres[rng.integers(0, 8, 200)] + near * rng.standard_normal((200, 24))).astype(np.float32)


def test_codes_are_the_means_of_their_rows_and_rows_have_the_nearest() -> None:
    head = heads(0.5)
    found = clustered(head, 12)
    for code in np.unique(found.of):
        np.testing.assert_allclose(found.rows[code], head[found.of == code].mean(axis=0), atol=1e-5)
    distances = np.linalg.norm(head[:, None] - found.rows, axis=2)
    np.testing.assert_array_equal(found.of, distances.argmin(axis=1))
    np.testing.assert_allclose(found.far, distances.min(axis=1), atol=1e-5)
    first = np.linalg.norm(head[:, None] - clustered(head, 1).rows, axis=2)
    assert np.square(found.far).sum() < 0.7 * np.square(first).sum()
    assert len(clustered(head[:3], 12).rows) == 3


@pytest.mark.parametrize("near", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("count", [1, 5, 300])
def test_screening_finds_the_largest_logits(near: float, count: int) -> None:
    """Whatever the clusters are worth; where they are tight it reads few rows."""
    head, rng, every = heads(near), np.random.default_rng(1), 0
    codes = clustered(head, 12)
    for _ in range(50):
        h = rng.standard_normal(24).astype(np.float32)
        places, read = codes.most(head, h, count)
        np.testing.assert_array_equal(places, np.argsort(-(head @ h), kind="stable")[:count])
        assert min(count, 200) <= read <= 200
        every += read
    if near == 0.05 and count == 1:
        assert every < 0.5 * 50 * 200
    if count == 300:
        assert every == 50 * 200


def test_the_radius_is_that_of_the_farthest_row() -> None:
    """A code's mean distance would lose the row that lies far from the others."""
    head = np.zeros((10, 2), np.float32)
    head[:9, 0], head[9], codes = 1.0, (0.0, 3.0), clustered(np.ones((1, 2), np.float32), 1)
    codes = type(codes)(
        np.array([[1, 0], [0.9, 0.3]], np.float32), np.array([0] * 5 + [1] * 5), np.zeros(10, np.float32)
    )
    far = np.linalg.norm(head - codes.rows[codes.of], axis=1).astype(np.float32)
    places, read = type(codes)(codes.rows, codes.of, far).most(head, np.array([0.1, 1.0], np.float32), 1)
    assert places.tolist() == [9]
    assert read == 5


def run(words: str, name: str, folder: Path) -> tuple[Any, PassModel]:
    spec = ODD[name]
    held = {tensor: random_weights(spec, 0)(tensor) for tensor in spec.tensors()}
    parts: Any = dict.fromkeys(("body", "head", "embed"), "f32")
    context = PassContext(spec, parts, 32, RoundedStore(folder))
    model = PassModel(spec, lambda tensor, start, stop: held[tensor][start:stop])
    return held, make_pass(chosen(words)[0], context)(model, Statistics(()))


def test_the_pass_gives_tokens_of_a_code_one_row(tmp_path: Path) -> None:
    held, model = run("vq:codes=5", "plain", tmp_path)
    rows = model.read("head", 0, ODD["plain"].vocab_size)
    assert len(np.unique(rows, axis=0)) == 5
    np.testing.assert_array_equal(model.read("head", 3, 6), rows[3:6])
    codes = clustered(held["head"], 5)
    np.testing.assert_array_equal(rows, codes.rows[codes.of])
    np.testing.assert_array_equal(model.read("embed", 0, 4), held["embed"][:4])
    with pytest.raises(UsageError, match="head and embedding are one matrix"):
        run("vq", "all", tmp_path)
