"""Sets of adapters: what a token takes is what the authors' code takes, and neighbours of that rule are not it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ODD, random_weights, write_bundle
from gated import gated, parts_of

from edgedec.bundle.adapter import Gates, LoraAdapter, open_adapter, save_adapter
from edgedec.bundle.routed import open_adapters, routed
from edgedec.errors import UsageError
from edgedec.runtime import ALL_LOGITS, Call, Rows, forward_one
from edgedec.runtimes._device.adapters import DeviceAdapters
from edgedec.runtimes.reference import Reference

SPEC = ODD["all"]
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
Array = Any

FOUR = [gated(seed) for seed in range(4)]


# ---- the oracle: one row, one part of a matrix at a time, by the words of the paper


def layer_normed(u: Array) -> Array:
    return (u - u.mean()) / np.sqrt(u.var() + 1e-5)


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max())
    return e / e.sum()


def shares(scores: Array) -> dict[int, float]:
    """{adapter: weight}: a softmax over all, the best two, over their sum."""
    p = softmax(scores)
    best = sorted(range(len(p)), key=lambda i: -p[i])[:2]
    return {i: p[i] / (sum(p[j] for j in best) + 1e-6) for i in best}


def scores(u: Array, gates: list[Array]) -> Array:
    return np.array([layer_normed(u) @ layer_normed(v) / np.sqrt(len(u)) for v in gates])


def oracle(
    name: str,
    x: Array,
    y: Array,
    adapters: list[LoraAdapter] = FOUR,
    scores: Callable[[Array, list[Array]], Array] = scores,
    shares: Callable[[Array], dict[int, float]] = shares,
    gates_of: Callable[[LoraAdapter, str, int], Array] | None = None,
) -> Array:
    y = y.astype(np.float64)
    for p, (first, count) in enumerate(parts_of(SPEC, name)):
        for r, u in enumerate(x.astype(np.float64)):
            gates = [gates_of(a, name, p) if gates_of else a.matrices[name].gates.vectors[p] for a in adapters]  # type: ignore[union-attr]
            for i, weight in shares(scores(u, [gate.astype(np.float64) for gate in gates])).items():
                low = adapters[i].matrices[name]
                rank = len(low.a) // len(parts_of(SPEC, name))
                own = slice(p * rank, (p + 1) * rank)
                y[r, first : first + count] += weight * (low.b[first : first + count, own] @ (low.a[own] @ u))
    return y


# ---- neighbours of the rule


def plain_scores(u: Array, gates: list[Array]) -> Array:
    return np.array([u @ v / np.sqrt(len(u)) for v in gates])


def gates_as_they_are(u: Array, gates: list[Array]) -> Array:
    return np.array([layer_normed(u) @ v / np.sqrt(len(u)) for v in gates])


def unscaled(u: Array, gates: list[Array]) -> Array:
    return scores(u, gates) * np.sqrt(len(u))


def top_one(z: Array) -> dict[int, float]:
    return {int(z.argmax()): 1.0}


def all_of_them(z: Array) -> dict[int, float]:
    return dict(enumerate(softmax(z)))


def not_renormalized(z: Array) -> dict[int, float]:
    return {i: float(softmax(z)[i]) for i in shares(z)}


def sigmoids(z: Array) -> dict[int, float]:
    return {i: float(1 / (1 + np.exp(-z[i]))) for i in shares(z)}


def over_two(z: Array) -> dict[int, float]:
    best = list(shares(z))
    return dict(zip(best, softmax(z[best]), strict=True))


def next_matrix(adapter: LoraAdapter, name: str, part: int) -> Array:
    """The gate of the matrix of the same width in the next layer."""
    at = int(name.split(".")[1])
    gates = adapter.matrices[name.replace(f".{at}.", f".{(at + 2) % len(SPEC.blocks)}.")].gates
    assert gates is not None
    return gates.vectors[part]


def first_part(adapter: LoraAdapter, name: str, part: int) -> Array:
    gates = adapter.matrices[name].gates
    assert gates is not None
    return gates.vectors[0]


WRONG: dict[str, dict[str, Any]] = {
    "not standardized": {"scores": plain_scores},
    "gates not standardized": {"scores": gates_as_they_are},
    "not over sqrt(d)": {"scores": unscaled},
    "top 1": {"shares": top_one},
    "all adapters": {"shares": all_of_them},
    "not renormalized": {"shares": not_renormalized},
    "sigmoids": {"shares": sigmoids},
    "gates of another layer": {"gates_of": next_matrix},
    "one gate of a stacked matrix": {"gates_of": first_part},
}
NAMES = ["blocks.0.qkv", "blocks.0.o", "blocks.1.gate_up", "blocks.1.down"]


def rows(name: str) -> tuple[Array, Array]:
    n, k = SPEC.tensors()[name]
    rng = np.random.default_rng(7)
    return rng.normal(0.5, 2, (9, k)).astype(np.float32), rng.normal(size=(9, n)).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_each_row_takes_the_two_that_fit_it_best(name: str) -> None:
    x, y = rows(name)
    found, kept = routed(FOUR).apply(name, x, y), y.copy()
    np.testing.assert_allclose(found, oracle(name, x, y), atol=2e-4)
    np.testing.assert_array_equal(y, kept)
    chosen = {tuple(sorted(shares(scores(u, [a.matrices[name].gates.vectors[0] for a in FOUR])))) for u in x}  # type: ignore[union-attr]
    assert len(chosen) > 2, "rows differ in what they take"


@pytest.mark.parametrize("wrong", WRONG)
def test_neighbours_of_the_rule_are_told_apart(wrong: str) -> None:
    name = "blocks.0.qkv"
    x, y = rows(name)
    found = routed(FOUR).apply(name, x, y)
    assert np.abs(found - oracle(name, x, y, **WRONG[wrong])).max() > 0.02


def test_a_softmax_over_the_best_two_is_the_same() -> None:
    name = "blocks.0.qkv"
    x, y = rows(name)
    np.testing.assert_allclose(routed(FOUR).apply(name, x, y), oracle(name, x, y, shares=over_two), atol=2e-4)


def test_the_reference_runtime_routes_in_every_matrix(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "b", SPEC, random_weights(SPEC))
    runtime = Reference(SPEC, lambda name, a, b: bundle.rows(name, a, b), "f32")

    class Oracle:
        def apply(self, name: str, x: Array, y: Array) -> Array:
            return oracle(name, x, y).astype(np.float32)

    found, expected, one = (
        forward_one(runtime, Call(Rows.chain(TEXT, 0), runtime.new_cache(32), outputs=ALL_LOGITS, adapter=a)).logits
        for a in (routed(FOUR), Oracle(), FOUR[0])  # type: ignore[arg-type]
    )
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert found is not None
    assert one is not None
    assert np.abs(found - one).max() > 0.05


# ---- sets


def test_the_order_of_a_set_does_not_matter() -> None:
    x, y = rows("blocks.0.qkv")
    one, other = routed(FOUR), routed(FOUR[::-1])
    assert one.digest == other.digest
    assert one.apply("blocks.0.qkv", x, y).tobytes() == other.apply("blocks.0.qkv", x, y).tobytes()
    assert len({one.digest, routed(FOUR[:3]).digest, routed(FOUR[1:]).digest, FOUR[0].digest}) == 4


def test_adapters_that_are_no_set() -> None:
    low = dict(FOUR[0].matrices)
    none = LoraAdapter("none", "n", {**low, "blocks.0.o": low["blocks.0.o"]._replace(gates=None)})
    fewer = LoraAdapter("fewer", "f", {name: low[name] for name in list(low)[1:]})
    gates = low["blocks.0.qkv"].gates
    assert gates is not None
    moved = Gates(gates.vectors[:2], np.array([(3, 0, 8), (6, 8, 8)], np.int32))
    others = LoraAdapter("others", "o", {**low, "blocks.0.qkv": low["blocks.0.qkv"]._replace(gates=moved)})
    for second, says in (
        (none, r"'none' has no gates of blocks\.0\.o.*train-lora"),
        (fewer, "change different parts of the model .*target_modules"),
        (others, r"different parts of the model \(of blocks\.0\.qkv\)"),
        (FOUR[1], "'a1' and 'a1' are the same"),
    ):
        with pytest.raises(UsageError, match=says) as refused:
            routed([FOUR[1], second])
        assert "\n" not in str(refused.value)


def test_engines_of_gpus_refuse_a_set() -> None:
    with pytest.raises(UsageError, match="engines of GPUs use one adapter for a text, not a set; use --engine native"):
        DeviceAdapters(None, SPEC).of(routed(FOUR))  # type: ignore[arg-type]


def test_gates_come_back_from_a_file_as_they_were(tmp_path: Path) -> None:
    for adapter in FOUR[:2]:
        save_adapter(tmp_path / adapter.name, adapter.name, SPEC, adapter.matrices)
    found, one = (open_adapters([tmp_path / name for name in names], SPEC) for names in (["a0", "a1"], ["a1"]))
    x, y = rows("blocks.1.down")
    expected = oracle(
        "blocks.1.down", x, y, sorted((open_adapter(tmp_path / n, SPEC) for n in ("a0", "a1")), key=lambda a: a.digest)
    )
    np.testing.assert_allclose(found.apply("blocks.1.down", x, y), expected, atol=2e-4)
    assert isinstance(one, LoraAdapter)
    assert found.name == "a0+a1"


def changed(gates: Gates, **fields: Any) -> Gates:
    return gates._replace(**fields)


BROKEN = {
    "narrow": (lambda g: changed(g, vectors=g.vectors[:, 1:]), "do not fit"),
    "too few": (lambda g: changed(g, vectors=g.vectors[:2]), "do not fit"),
    "ranks": (lambda g: changed(g, parts=g.parts + np.array([1, 0, 0], np.int32)), "do not fit"),
    "no outputs": (lambda g: changed(g, parts=g.parts * np.array([1, 1, 0], np.int32)), "do not fit"),
    "beyond": (lambda g: changed(g, parts=g.parts + np.array([0, 9999, 0], np.int32)), "do not fit"),
    "twice": (lambda g: changed(g, parts=g.parts * np.array([1, 0, 1], np.int32)), "do not fit"),
    "negative": (lambda g: changed(g, parts=g.parts - np.array([0, 1, 0], np.int32)), "do not fit"),
    "wide numbers": (lambda g: changed(g, parts=g.parts.astype(np.int64)), "do not fit"),
    "nan": (lambda g: changed(g, vectors=g.vectors * np.float32("nan")), "not finite"),
    "halves": (lambda g: changed(g, vectors=g.vectors.astype(np.float16)), "not finite float32"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_gates_that_do_not_fit_are_refused(kind: str, tmp_path: Path) -> None:
    name, (change, says) = "blocks.0.qkv", BROKEN[kind]
    low = FOUR[1].matrices[name]
    assert low.gates is not None
    save_adapter(tmp_path / "a.lora", "a", SPEC, {name: low._replace(gates=change(low.gates))})
    with pytest.raises(UsageError, match=f"a.lora: the gates of {name}.*{says}") as refused:
        open_adapter(tmp_path / "a.lora", SPEC)
    assert "\n" not in str(refused.value)
