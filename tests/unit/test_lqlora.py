"""Low rank beside few bits: the decomposition beside a plain one, what the pass stores, the adapter of an export."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ODD, random_weights
from checkpoints import write_llama

import edgedec
from edgedec.bundle.adapter import open_adapter
from edgedec.export.exporter import LOW_RANK, ExportOptions, export
from edgedec.export.passes import PassContext, PassModel, chosen, lqlora, make_pass
from edgedec.export.passes._rounded import RoundedStore
from edgedec.export.passes._statistics import Statistics
from edgedec.export.passes.allocate import rounded as nearest
from edgedec.export.passes.lqlora import decomposed

SPEC = ODD["plain"]
IDS = np.random.default_rng(0).integers(0, SPEC.vocab_size, 90)
HELD = {name: random_weights(SPEC, 1)(name) for name in SPEC.tensors()}


def case() -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    return rng.standard_normal((40, 64)).astype(np.float32), np.exp(rng.standard_normal(64))


def error(weights: Any, low: Any, columns: Any) -> float:
    return float(np.square((weights - low - nearest((weights - low).astype(np.float32), "int3", 32)) * columns).sum())


def by_turns(weights: Any, columns: Any, rank: int, turns: int) -> list[float]:
    """The errors of all turns, plainly: no turn is left out."""
    low, found = np.zeros_like(weights), []
    for _ in range(turns):
        u, s, v = np.linalg.svd((weights - nearest(weights - low, "int3", 32)) * columns, full_matrices=False)
        low = ((u[:, :rank] * s[:rank]) @ v[:rank] / columns).astype(np.float32)
        found.append(error(weights, low, columns))
    return found


def test_it_is_the_best_turn_before_the_error_grows() -> None:
    weights, columns = case()
    errors = by_turns(weights, columns, 6, 20)
    stop = next(i for i, (a, b) in enumerate(pairwise(errors)) if b >= a)
    assert 0 < stop < 18  # it turns more than once and does not go on to the end
    pair = decomposed(weights, columns, "int3", 32, 6, 20)
    assert (pair.a.shape, pair.b.shape) == ((6, 64), (40, 6))
    assert error(weights, pair.b @ pair.a, columns) == pytest.approx(errors[stop], rel=1e-3)
    once = decomposed(weights, columns, "int3", 32, 6, 1)
    assert error(weights, once.b @ once.a, columns) == pytest.approx(errors[0], rel=1e-3)
    np.testing.assert_allclose(
        np.linalg.norm(pair.b, axis=0), np.linalg.norm(pair.a * columns, axis=1), rtol=1e-4
    )  # roots of the singular values in both


def test_the_weights_of_inputs_count() -> None:
    weights, columns = case()
    even = decomposed(weights, np.ones(64), "int3", 32, 6, 20)
    weighed = decomposed(weights, columns, "int3", 32, 6, 20)
    assert error(weights, weighed.b @ weighed.a, columns) < 0.95 * error(weights, even.b @ even.a, columns)


def test_the_random_sketch_is_near_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((60, 20)) * 0.7 ** np.arange(20)) @ rng.standard_normal((20, 50))
    exact = lqlora._top(x.astype(np.float32), 5)
    monkeypatch.setattr(lqlora, "_EXACT", 8)
    found = lqlora._top(x.astype(np.float32), 5)
    np.testing.assert_allclose(found.b @ found.a, exact.b @ exact.a, atol=1e-2)


def run(folder: Path, words: str = "lqlora:rank=4") -> PassModel:
    parts: Any = dict.fromkeys(("body", "head", "embed"), "int3")
    context = PassContext(SPEC, parts, 32, RoundedStore(folder))
    model = PassModel(SPEC, lambda name, start, stop: HELD[name][start:stop])
    return make_pass(chosen(words)[0], context)(model, Statistics((IDS[:50], IDS[50:])))


def test_the_pass_reads_what_bundle_and_adapter_give_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = run(tmp_path)
    assert set(model.low_rank) == set(model.rounded) == {n for n in SPEC.matrices if n.startswith("blocks.")}
    for name, pair in model.low_rank.items():
        n = SPEC.tensors()[name][0]
        together = model.rounded[name].floats(0, n) + pair.b @ pair.a
        np.testing.assert_allclose(model.read(name, 1, n), together[1:], atol=1e-6)
        plain = np.square(nearest(HELD[name], "int3", 32) - HELD[name]).sum()
        assert np.square(together - HELD[name]).sum() < 0.95 * plain
    monkeypatch.setattr(lqlora, "decomposed", None)  # what is there is not made again
    again = run(tmp_path)
    for name in model.low_rank:
        np.testing.assert_array_equal(again.read(name, 0, 4), model.read(name, 0, 4))


def test_an_export_has_the_adapter_in_its_folder(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"head_dim": 16, "hidden_size": 64, "num_hidden_layers": 1, "max_position_embeddings": 64}
    checkpoint = write_llama(tmp_path / "c", **shape)
    (tmp_path / "notes.txt").write_text("the thing and the other thing " * 60, "utf-8")
    options = ExportOptions("int3", passes="lqlora:rank=3", calibrate=tmp_path / "notes.txt", check=False, runtimes=())
    bundle = export(str(checkpoint), tmp_path / "b", options)
    assert LOW_RANK in bundle.manifest.files
    assert bundle.manifest.source["passes"] == "lqlora:rank=3"
    adapter = open_adapter(bundle.path / LOW_RANK, bundle.spec)
    assert {len(pair.a) for pair in adapter.matrices.values()} == {3}
    floats = export(str(checkpoint), tmp_path / "f", ExportOptions("f32", check=False, runtimes=()))

    def distance(name: str, added: Any) -> float:
        return float(np.square(bundle.rows(name) + added - floats.rows(name)).sum())

    for name, pair in adapter.matrices.items():
        assert distance(name, pair.b @ pair.a) < 0.97 * distance(name, 0) or distance(name, pair.b @ pair.a) < 1e-9
    model = edgedec.open(bundle.path)
    session = model.session(adapter=model.adapter(bundle.path / LOW_RANK))
    assert "".join(session.generate("the thing", max_tokens=4, ignore_eos=True))
