"""Rounding learned over windows: where it begins, what may change, which windows there are, and that it gains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bundles import ODD, random_weights  # noqa: E402

from edgedec.bundle import Bundle  # noqa: E402
from edgedec.bundle.locate import find  # noqa: E402
from edgedec.errors import UsageError  # noqa: E402
from edgedec.export import exporter  # noqa: E402
from edgedec.export.grids import GRIDS  # noqa: E402
from edgedec.export.passes import PassContext, PassModel, _windows, chosen, make_pass  # noqa: E402
from edgedec.export.passes._rounded import RoundedStore  # noqa: E402
from edgedec.export.passes._soft import Soft  # noqa: E402
from edgedec.export.passes._solve import damped  # noqa: E402
from edgedec.export.passes._statistics import Moments, Statistics  # noqa: E402
from edgedec.export.passes.cbq import spans, wanted  # noqa: E402
from edgedec.export.recovery import TorchModel  # noqa: E402
from edgedec.text.tokenizer import Tokenizer  # noqa: E402


def case(fmt: Any = "int3") -> tuple[Any, Any, Any]:
    """Multiples, scales and values near them."""
    rng, grid = np.random.default_rng(0), GRIDS[fmt]
    multiples = grid.multiples(rng.standard_normal((5, 40)) * grid.high)
    scales = (rng.standard_normal((5, 2)) * 0.1).astype(np.float16).astype(float)
    values = multiples * np.repeat(scales, 32, axis=1)[:, :40] + 0.05 * rng.standard_normal((5, 40))
    return multiples, scales, values


def soft(fmt: Any, rank: int = 0) -> tuple[Soft, Any, Any, Any]:
    multiples, scales, values = case(fmt)
    tensors = [torch.tensor(a, dtype=torch.float32) for a in (multiples, values, scales)]
    return Soft(*tensors, GRIDS[fmt], 32, rank, 0), multiples, scales, values


@pytest.mark.parametrize("fmt", ["int4", "int3", "int2"])
def test_it_begins_where_it_was_rounded_and_moves_to_neighbours_only(fmt: Any) -> None:
    one, multiples, scales, values = soft(fmt)
    hard, steps = one.hard()
    np.testing.assert_array_equal(hard, multiples)
    np.testing.assert_array_equal(steps, scales.astype(np.float32))
    # A weight begins at its wanted value where that rounds to the multiple (and the grid has both neighbours).
    grid, wide = GRIDS[fmt], np.repeat(scales, 32, axis=1)[:, :40]
    units = values / wide
    inner = (np.abs(units - multiples) < 0.44 * grid.step) & (np.abs(multiples) <= grid.high - grid.step)
    np.testing.assert_allclose(one.values().detach().numpy(), multiples * wide, rtol=1e-5, atol=1e-6)
    begin = one._at(one.up()).detach().numpy()
    assert inner.sum() > 9
    np.testing.assert_allclose(begin[inner], values[inner], atol=0.02 * np.abs(wide).max() * grid.step)
    one.parts[0].data.fill_(50.0)
    up, _ = one.hard()
    one.parts[0].data.fill_(-50.0)
    down, _ = one.hard()
    assert set(np.unique(up - down)) <= {0, grid.step}  # 0 at the ends of the grid
    assert ((up == hard) | (down == hard)).all()
    assert grid.low <= down.min() <= up.max() <= grid.high
    assert (torch.remainder(up, grid.step) == grid.high % grid.step).all() or grid.step == 1  # of int2 odd numbers


def test_the_penalty_is_zero_where_every_weight_has_decided() -> None:
    one, *_ = soft("int3")
    share = one.up().detach().numpy()
    expected = (1 - np.abs(2 * share - 1) ** 6).mean()
    assert float(one.penalty(6.0).detach()) == pytest.approx(float(expected), rel=1e-5)
    one.parts[0].data.fill_(50.0)
    assert float(one.penalty(6.0).detach()) == 0


def test_low_rank_learns_rows_and_columns_together() -> None:
    one, *_ = soft("int3", 2)
    assert [tuple(part.shape) for part in one.parts] == [(5, 2), (2, 40)]
    one.values().sum().backward()
    assert all(part.grad is not None for part in one.parts)
    assert one.parts[0].grad.abs().sum() > 0  # type: ignore[union-attr]


def test_what_is_wanted_is_best_given_all_others() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((200, 40)) @ rng.standard_normal((40, 40)), rng.standard_normal((5, 40))
    multiples, scales, _ = case()
    known = Moments.of(40)
    known.add(x.astype(np.float32))
    found, h = wanted(w, multiples, scales, known, 32), damped(known.diagonal[0], 0.01)
    stored = multiples * np.repeat(scales, 32, axis=1)[:, :40]
    for row, i in ((0, 3), (4, 39)):
        trial = stored[row].copy()

        def loss(value: float, trial: Any = trial, row: int = row, i: int = i) -> float:
            trial[i] = value
            return float((w[row] - trial) @ h @ (w[row] - trial))

        best = found[row, i]
        assert loss(best) < min(loss(best - 1e-3), loss(best + 1e-3))


def test_the_loss_is_the_error_and_the_divergence_of_softmaxes() -> None:
    own, theirs = torch.randn(6, 8), torch.randn(6, 8)
    p, q = (np.exp(a.double().numpy()) for a in (theirs, own))
    p, q = (a / a.sum(axis=1, keepdims=True) for a in (p, q))
    error = float((own - theirs).square().sum() / theirs.square().sum())
    expected = error + float((p * np.log(p / q)).sum(axis=1).mean())
    assert float(_windows.distance(own, theirs)) == pytest.approx(expected, rel=1e-4)


@pytest.fixture(scope="module")
def model() -> PassModel:
    """nano's first layers, which are trained: in a random model errors mean nothing."""
    bundle = Bundle.open(find("nano"))
    spec = replace(bundle.spec, layers=bundle.spec.layers[:3])
    held = {name: bundle.rows(name) for name in spec.tensors()}
    return PassModel(spec, lambda name, a, z: held[name][a:z])


def texts(name: str) -> Statistics:
    bundle, path = Bundle.open(find("nano")), Path(exporter.__file__).with_name(name)
    ids = np.array(Tokenizer.load(bundle.file(str(bundle.manifest.text.tokenizer))).encode(path.read_text("utf-8")))
    return Statistics(tuple(ids[at : at + 64] for at in range(0, min(len(ids), 320) - 63, 64)))


def run(model: PassModel, words: str, folder: Path) -> PassModel:
    parts: Any = {"body": "int3", "head": "f32", "embed": "f32"}
    context = PassContext(model.spec, parts, 32, RoundedStore(folder))
    return make_pass(chosen(words)[0], context)(model, texts("calibration.txt"))


def apart(model: PassModel, other: PassModel, statistics: Statistics) -> float:
    """How far the states after all layers are from the float model's, in the windows' own measure."""
    floats, own = (TorchModel(model.spec, one.read) for one in (model, other))
    found, every = 0.0, range(model.spec.n_blocks)
    for ids in statistics.texts:
        states = [one.through(one.embedded(torch.from_numpy(ids)), every) for one in (own, floats)]
        found += float(_windows.distance(*states))
    return found


def test_windows_overlap_and_the_model_is_nearer_than_gptqs(
    model: PassModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned, made = list[tuple[list[int], int]](), list[Any]()
    train, begin = _windows.Windows._train, _windows.Windows.__init__

    def watched(self: Any, blocks: Any, inside: Any) -> None:
        learned.append((list(blocks), len(inside)))
        train(self, blocks, inside)

    def kept(self: Any, *rest: Any) -> None:
        made.append(self)
        begin(self, *rest)

    monkeypatch.setattr(_windows.Windows, "_train", watched)
    monkeypatch.setattr(_windows.Windows, "__init__", kept)
    found = run(model, "cbq:steps=12,batch=3,rate=0.005", tmp_path / "a")
    assert learned == [([0, 1, 2, 3], 8), ([2, 3, 4, 5], 8)]
    assert all(late < early for early, late in made[0].losses)
    assert set(found.rounded) == {name for name in model.spec.matrices if name.startswith("blocks.")}
    plain = run(model, "gptq", tmp_path / "a" / "gptq")  # where it began
    one = found.rounded["blocks.0.qkv"]
    assert (one.floats(0, 8) != plain.rounded["blocks.0.qkv"].floats(0, 8)).any()
    text = texts("calibration.txt")
    assert apart(model, found, text) < 0.95 * apart(model, plain, text)
    assert [list(span) for span in spans(1, 2)] == [[0]]


def test_other_blocks_are_refused(tmp_path: Path) -> None:
    spec = ODD["all"]
    held = {name: random_weights(spec, 0)(name) for name in spec.tensors()}
    with pytest.raises(UsageError, match="--passes cbq: block 0 of odd is not like Llama's"):
        run(PassModel(spec, lambda name, a, z: held[name][a:z]), "cbq", tmp_path)
