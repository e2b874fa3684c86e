"""PTQ1.61: which inputs keep 4 bits, what a matrix becomes, what is learned of it, and what its format would store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bundles import random_weights  # noqa: E402

from edgedec.bundle import Bundle  # noqa: E402
from edgedec.cli.bench.formats import _peer_bits  # noqa: E402
from edgedec.errors import UsageError  # noqa: E402
from edgedec.export.passes import PassContext, PassModel, _binary, chosen, make_pass  # noqa: E402
from edgedec.export.passes._binary import Layers, Signs, distance  # noqa: E402
from edgedec.export.passes._fitness import Fitness  # noqa: E402
from edgedec.export.passes._rounded import RoundedStore  # noqa: E402
from edgedec.export.passes._salient import four_bits, row_parts, salient  # noqa: E402
from edgedec.export.passes._statistics import Statistics  # noqa: E402
from edgedec.export.passes.ptq161 import largest_inputs, stored_bits  # noqa: E402
from edgedec.export.recovery import TorchModel  # noqa: E402
from edgedec.spec import Attention, Mlp, ModelSpec, Rope  # noqa: E402

torch.set_num_threads(1)
ROPE = Rope(tuple(1e4 ** (-j / 8) for j in range(8)))
LAYER = (Attention(4, 2, 16, 0.25, 0), Mlp(96))
SPEC = ModelSpec("llama", 67, 48, 128, (LAYER, LAYER), 1e-5, False, (ROPE,))
HELD = random_weights(SPEC)
TEXTS = Statistics(tuple(np.random.default_rng(0).integers(0, 67, (4, 40))))
UNSEEN = Statistics(tuple(np.random.default_rng(1).integers(0, 67, (2, 60))))
RNG = np.random.default_rng(2)


def read(name: str, start: int, stop: int) -> Any:
    return HELD(name)[start:stop]


def run(words: str, folder: Path, body: str = "f32") -> PassModel:
    parts: Any = {"body": body, "head": "int8", "embed": "int8"}
    context = PassContext(SPEC, parts, 32, RoundedStore(folder))
    return make_pass(chosen(words)[0], context)(PassModel(SPEC, read), TEXTS)


# ---- one matrix ----


def test_a_fifth_of_the_inputs_is_salient_by_its_largest_value() -> None:
    most = RNG.permutation(50).astype(np.float32)
    assert set(np.flatnonzero(salient(most))) == {i for i in range(50) if most[i] >= 39}
    found, x = largest_inputs(PassModel(SPEC, read), TEXTS), dict[str, list[Any]]()
    floats = TorchModel(SPEC, read)
    for ids in TEXTS.texts:
        state = floats.embedded(torch.from_numpy(ids))
        for b in range(SPEC.n_blocks):
            name = f"blocks.{b}.qkv" if b % 2 == 0 else f"blocks.{b}.gate_up"
            x.setdefault(name, []).append(floats._normed(state, f"blocks.{b}.norm").numpy())
            state = floats.through(state, [b])
    assert set(found) == {
        f"blocks.{b}.{name}" for b, names in enumerate([("qkv", "o"), ("gate_up", "down")] * 2) for name in names
    }
    for name, parts in x.items():
        every = np.abs(np.concatenate(parts))
        np.testing.assert_allclose(found[name], every.max(axis=0), rtol=1e-4)
        assert (salient(found[name]) != salient(every.mean(axis=0))).any()  # not by the mean


def test_four_bits_are_of_the_whole_row() -> None:
    weights = np.array([[-3.0, 0.4, 12.0, 0.6], [1.0, 2.0, 3.0, 7.5], [0.0, 0.0, 0.0, 0.0]], np.float32)
    np.testing.assert_allclose(four_bits(weights), [[-3, 0, 12, 1], [1, 2, 3, 7.5], [0, 0, 0, 0]], atol=1e-6)
    wide = RNG.standard_normal((9, 40)).astype(np.float32)
    for row, found in zip(wide, four_bits(wide), strict=True):
        low, high = min(row.min(), 0), max(row.max(), 0)
        step = (high - low) / 15
        zero = round(float(-low / step))
        expected = [(min(max(round(float(w / step)) + zero, 0), 15) - zero) * step for w in row]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert len(set(found.tolist())) <= 16


def oracle(w: np.ndarray, kept: np.ndarray, scale: Any, rows: Any, columns: Any, parts: tuple[int, ...]) -> np.ndarray:
    """One weight at a time."""
    found, high = np.empty_like(w), four_bits(w)
    part = np.repeat(np.arange(len(parts)), parts)
    for i, row in enumerate(w):
        mean = row[~kept].mean()
        for j, value in enumerate(row):
            low = (1 if value >= mean else -1) * scale[i] + mean
            found[i, j] = high[i, j] if kept[j] else rows[i] * columns[part[i]][j] * low
    return found


def test_a_matrix_is_signs_with_factors_beside_four_bits() -> None:
    w = (RNG.standard_normal((12, 30)) + 0.3).astype(np.float32)
    kept = salient(RNG.random(30).astype(np.float32))
    one = Signs(w, kept, (8, 4))
    begin = np.abs(w[:, ~kept]).mean(axis=1)
    np.testing.assert_allclose(one.scale.detach()[:, 0], begin, rtol=1e-5)
    ones = np.ones(12), np.ones((2, 30))
    np.testing.assert_allclose(one.values().detach(), oracle(w, kept, begin, *ones, (8, 4)), atol=1e-5)
    rows, columns, scale = RNG.random((12, 1)) + 0.5, RNG.random((2, 30)) + 0.5, RNG.random((12, 1))
    for own, values in ((one.rows, rows), (one.columns, columns), (one.scale, scale)):
        own.data = torch.tensor(values, dtype=torch.float32)
    expected = oracle(w, kept, scale[:, 0], rows[:, 0], columns, (8, 4))
    np.testing.assert_allclose(one.values().detach(), expected, atol=1e-5)
    np.testing.assert_allclose(one.stored(), expected, rtol=3e-3, atol=1e-4)
    low = one.stored()[:, ~kept] / columns[np.repeat([0, 1], [8, 4])][:, ~kept]
    assert all(len({round(float(v), 2) for v in row}) <= 4 for row in low)  # two values, rounded here
    swapped = oracle(w, kept, scale[:, 0], rows[:, 0], columns[::-1], (8, 4))
    whole = oracle(w, np.zeros(30, bool), scale[:, 0], rows[:, 0], columns, (8, 4))
    for wrong in (swapped, whole, oracle(w, kept, scale[:, 0], rows[:, 0], np.ones((2, 30)), (8, 4))):
        assert np.abs(wrong - expected).max() > 0.05
    assert not one.mean.requires_grad
    assert row_parts(SPEC, "blocks.0.qkv") == (64, 32, 32)
    assert row_parts(SPEC, "blocks.1.gate_up") == (96, 96)
    assert row_parts(SPEC, "blocks.1.down") == (48,)


def test_the_loss_is_of_both_targets() -> None:
    own, first, second = (torch.from_numpy(RNG.standard_normal((7, 5))) for _ in range(3))

    def one(a: Any, b: Any) -> float:
        cosines = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
        return float(((a - b) ** 2).mean() - cosines.mean().abs().log())

    assert float(distance(own, (first, second))) == pytest.approx(one(own, first) + one(own, second), rel=1e-5)


# ---- the pass ----


def test_what_is_learned_is_nearer_to_the_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned = list[Layers]()

    class Kept(Layers):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            learned.append(self)

    monkeypatch.setattr(_binary, "Layers", Kept)
    begun, model = run("ptq161:epochs=0", tmp_path), run("ptq161:epochs=6", tmp_path)
    most = largest_inputs(PassModel(SPEC, read), TEXTS)
    for name in ("blocks.0.qkv", "blocks.3.down"):
        n, w = SPEC.tensors()[name][0], HELD(name)
        one = Signs(w, salient(most[name]), row_parts(SPEC, name))
        np.testing.assert_array_equal(begun.read(name, 0, n), one.stored())
        kept = salient(most[name])
        np.testing.assert_array_equal(model.read(name, 0, n)[:, kept], four_bits(w)[:, kept])
        assert (model.read(name, 0, n)[:, ~kept] != one.stored()[:, ~kept]).any()
    assert len(learned[1].losses) == 2
    assert all(last < 0.95 * first for first, last in learned[1].losses)
    np.testing.assert_array_equal(model.read("head", 0, 9), HELD("head")[:9])
    fitness = Fitness(SPEC, read, UNSEEN)
    assert fitness(model.read, [0, 1]) < fitness(begun.read, [0, 1])


def test_the_second_layer_is_learned_on_what_the_first_makes(tmp_path: Path) -> None:
    options: Any = make_pass(
        chosen("ptq161:epochs=0")[0], PassContext(SPEC, {"body": "f32"}, 32, RoundedStore(tmp_path))
    )
    model = PassModel(SPEC, read)
    layers = Layers(model, TEXTS, options, largest_inputs(model, TEXTS))
    found = layers.learn(SPEC.span(0, 1))
    own = TorchModel(SPEC, lambda n, a, b: found[n][a:b] if n in found else read(n, a, b))
    floats, ids = TorchModel(SPEC, read), torch.from_numpy(TEXTS.texts[1])
    theirs, rounded = layers._before[1]
    np.testing.assert_allclose(theirs, floats.through(floats.embedded(ids), SPEC.span(0, 1)), atol=1e-5)
    np.testing.assert_allclose(rounded, own.through(own.embedded(ids), SPEC.span(0, 1)), atol=1e-5)
    assert (theirs - rounded).abs().max() > 0.1
    seen = list[Any]()
    layers._train = lambda blocks, inside, targets: seen.append(targets)  # type: ignore[method-assign]
    layers.learn(SPEC.span(1, 2))
    on_floats, on_rounded = seen[0][1]
    np.testing.assert_allclose(on_floats, floats.through(theirs, SPEC.span(1, 2)), atol=1e-5)
    np.testing.assert_allclose(on_rounded, floats.through(rounded, SPEC.span(1, 2)), atol=1e-5)


def test_what_the_format_would_store() -> None:
    wide = ModelSpec("llama", 1, 4096, 128, ((Attention(32, 32, 128, 0.1, 0), Mlp(11008)),), 1e-5, True, (ROPE,))
    assert stored_bits(wide, 32.0) == pytest.approx(1.61, abs=0.015)
    size = 0
    for name, (n, k) in {"qkv": (128, 48), "o": (48, 64), "gate_up": (192, 48), "down": (48, 96)}.items():
        kept, parts = {48: 10, 64: 13, 96: 20}[k], {"qkv": 3, "gate_up": 2}.get(name, 1)
        size += n * (4 * kept + (k - kept) + 16 + 4 + 16 + 16) + 16 * parts * (k - kept) + k
    norms, outer = 5 * 48, 2 * 67 * 48
    count = 2 * (128 * 48 + 48 * 64 + 192 * 48 + 48 * 96) + norms + outer
    assert stored_bits(SPEC, 8.5) == pytest.approx((2 * size + 32 * norms + 8.5 * outer) / count, abs=1e-3)


@pytest.mark.parametrize(
    ("words", "body", "said"),
    [("ptq161", "int4", "give --weights f32"), ("ptq161+gptq", "f32", "one pass of rounding")],
)
def test_what_is_refused(words: str, body: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        run(words, tmp_path, body)


@pytest.mark.parametrize(
    ("head", "bits"), [(None, 32.0), ("f32", 32.0), ("f16", 16.0), ("int8", 8.5), ("int4", 4.5), ("int3", 3.5)]
)
def test_head_and_embedding_count_with_their_own_bits(head: str | None, bits: float, nano: Path) -> None:
    floats = Bundle.open(nano)
    assert _peer_bits(floats, "f32=ptq161", head) == stored_bits(floats.spec, bits)
    assert _peer_bits(floats, "int4=gptq", head) is None
