"""MC-MoE: formats by expert beside an exhaustive search, and rows that leave out an expert by calibrated borders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bench.row_costs import _shares
from edgedec.cli.inspect import _dimensions
from edgedec.errors import UsageError
from edgedec.export.passes import PassContext, PassModel, chosen, make_pass
from edgedec.export.passes._fitness import Fitness
from edgedec.export.passes._knapsack import choose_each
from edgedec.export.passes._rounded import RoundedStore
from edgedec.export.passes._routing import routed, with_blocks
from edgedec.export.passes._statistics import Statistics
from edgedec.export.passes.allocate import rounded as nearest
from edgedec.export.passes.mcmoe import importance
from edgedec.runtimes.reference.numeric import Array
from edgedec.spec import ModelSpec, Moe
from edgedec.spec.macs import row_macs
from edgedec.testing.conformance.bundles import random_weights
from edgedec.testing.conformance.models import MODELS

HEADS = MODELS["experts"].blocks[0]
SPEC = replace(
    MODELS["experts"], layers=((HEADS, Moe(6, 2, 32)), (HEADS, Moe(6, 3, 32, "softmax", normalize=False, scale=1.5)))
)
HELD = random_weights(SPEC)
for _b, _block in enumerate(SPEC.blocks):  # some experts are chosen far more often than others
    if isinstance(_block, Moe):
        HELD[f"blocks.{_b}.router"] *= np.linspace(0.3, 2.0, _block.n_experts, dtype=np.float32)[:, None]
        HELD[f"blocks.{_b}.down"].reshape(_block.n_experts, -1)[:] *= np.linspace(8, 1, 6, dtype=np.float32)[:, None]
IDS = np.random.default_rng(0).integers(0, SPEC.vocab_size, 300)
TEXTS, UNSEEN = Statistics((IDS[:100], IDS[100:200])), Statistics((IDS[200:],))
FORMATS, BITS = ("int2", "int3", "int4"), (2, 3, 4)


def read(name: str, start: int, stop: int) -> Array:
    return HELD[name][start:stop]


def run(words: str, folder: Path, spec: ModelSpec = SPEC, body: str = "int4") -> PassModel:
    parts: Any = dict.fromkeys(("body", "head", "embed"), body)
    context, model = PassContext(spec, parts, 32, RoundedStore(folder)), PassModel(spec, read)
    for choice in chosen(words):
        model = make_pass(choice, context)(model, TEXTS)
    return model


def mixtures(spec: ModelSpec) -> dict[int, Moe]:
    return {b: block for b, block in enumerate(spec.blocks) if isinstance(block, Moe)}


def best(costs: Sequence[Sequence[float]], most: float, every: bool = True) -> tuple[int, ...]:
    """By trying all choices."""
    found = [
        (sum(cost[j] for cost, j in zip(costs, choice, strict=True)), choice)
        for choice in product(range(len(costs[0])), repeat=len(costs))
        if sum(BITS[j] for j in choice) <= most and (not every or {1, 2} <= set(choice))
    ]
    return min(found)[1]


def test_the_choice_is_the_best_with_one_expert_of_each_larger_format() -> None:
    rng, differ = np.random.default_rng(1), 0
    for case in range(40):
        n = int(rng.integers(3, 6))
        costs = np.sort(rng.random((n, 3)) ** 3, axis=1)[:, ::-1].tolist()
        most = int(rng.integers(2 * n + 3, 4 * n + 1))
        found = choose_each(costs, [200, 300, 400], most * 100)
        assert tuple(found) == best(costs, most), case
        differ += tuple(found) != best(costs, most, every=False)
    assert differ > 3
    with pytest.raises(ValueError, match="one of each larger choice"):
        choose_each([[1.0, 0, 0]] * 4, [2, 3, 4], 10)
    with pytest.raises(ValueError, match="one of each larger choice"):
        choose_each([[1.0, 0, 0]], [2, 3, 4], 100)


def expected_costs(b: int, square: bool = False, power: float = 1.5) -> np.ndarray:
    """phi w^1.5 eps."""
    phi, w, eps = parts_of(b)
    return (phi / phi.sum() * (w / w.sum()) ** power)[:, None] * (eps**2 if square else eps)


@cache
def parts_of(b: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """phi [experts], w [experts] and eps [experts, formats], a row and an expert at a time."""
    block = mixtures(SPEC)[b]
    (found,) = [texts for at, _, texts in routed(TEXTS, SPEC, read) if at == b]
    phi, w, eps = np.zeros(block.n_experts), np.zeros(block.n_experts), np.zeros((block.n_experts, 3))
    both, hidden = block.up_rows, SPEC.hidden_size

    low = {(e, fmt): (first, second) for e, fmt, first, second in rounded_experts(b)}

    def through(x: Array, up: Array, down: Array) -> Array:
        gate, value = np.split(up @ x, 2)
        return down @ (gate / (1 + np.exp(-gate)) * value)

    for text in found:
        changes = np.zeros((block.n_experts, 3, len(text.x), hidden))
        for row, logits in enumerate(text.x @ HELD[f"blocks.{b}.router"].T):
            p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            top = np.argsort(-p)[: block.top_k]
            for e in top:
                phi[e], w[e] = phi[e] + 1, w[e] + p[e]
                up = HELD[f"blocks.{b}.gate_up"][e * both :][:both]
                down = HELD[f"blocks.{b}.down"][e * hidden :][:hidden]
                for j, fmt in enumerate(FORMATS):
                    change = through(text.x[row], *low[e, fmt]) - through(text.x[row], up, down)
                    weight = p[e] / p[top].sum() if block.normalize else p[e]
                    changes[e, j, row] = weight * block.scale * change
        eps += np.sqrt(np.square(changes).sum(axis=(2, 3)))
    return phi, w, eps


def rounded_experts(b: int) -> Iterator[tuple[int, str, Array, Array]]:
    """(expert, format, its first matrix, its second)."""
    block = mixtures(SPEC)[b]
    for e, fmt in product(range(block.n_experts), FORMATS):
        first = HELD[f"blocks.{b}.gate_up"][e * block.up_rows :][: block.up_rows]
        second = HELD[f"blocks.{b}.down"][e * SPEC.hidden_size :][: SPEC.hidden_size]
        yield e, fmt, nearest(first, fmt, 32), nearest(second, fmt, 32)


def test_experts_get_the_formats_that_cost_least(tmp_path: Path) -> None:
    same = dict[str, list[bool]]()
    for bits in (3.05, 3.2, 3.4, 3.7):  # of which scales are half a bit
        model = run(f"mcmoe:bits={bits}", tmp_path / str(bits))
        for b, block in mixtures(model.spec).items():
            most = int((bits - 0.5) * block.n_experts + 1e-9)
            assert block.levels == best(expected_costs(b).tolist(), most)
            for name, other in {
                "squared": expected_costs(b, square=True),
                "weights to the first power": expected_costs(b, power=1.0),
                "without weights": expected_costs(b, power=0.0),
                "errors alone": expected_costs(b) / importance(mixtures(SPEC)[b], texts_of(b))[:, None],
            }.items():
                same.setdefault(name, []).append(best(other.tolist(), most) == block.levels)
    assert not any(map(all, same.values())), same


def texts_of(b: int) -> Any:
    return next(texts for at, _, texts in routed(TEXTS, SPEC, read) if at == b)


def test_the_stacks_hold_the_experts_of_their_format(tmp_path: Path) -> None:
    model = run("mcmoe:bits=3.2", tmp_path)
    assert model.spec.check().n_blocks == SPEC.n_blocks
    for b, block in mixtures(model.spec).items():
        for name, rows in ((block.up, block.up_rows), ("down", SPEC.hidden_size)):
            for e in range(block.n_experts):
                level, at = block.place(e)
                of = f"blocks.{b}.{name}" + (f"_{level}" if level else "")
                assert model.formats[of] == FORMATS[level]
                part = HELD[f"blocks.{b}.{name}"][e * rows : (e + 1) * rows]
                np.testing.assert_array_equal(model.read(of, at * rows, (at + 1) * rows), part)
            whole = model.read(f"blocks.{b}.{name}_1", 0, len(block.members(1)) * rows)
            np.testing.assert_array_equal(model.read(f"blocks.{b}.{name}_1", 3, rows + 1), whole[3 : rows + 1])
    rounded = run("mcmoe:bits=3.2+gptq:sweeps=0", tmp_path)
    stacks = {name for name in model.formats if "_1" in name or "_2" in name}
    assert stacks
    for name in stacks:
        assert rounded.rounded[name].format == model.formats[name]


def divergence(model: PassModel, by: Any) -> float:
    """Of the model with its mixtures' experts rounded."""
    fitness = Fitness(SPEC, read, UNSEEN)
    own = {n: nearest(model.read(n, 0, model.spec.tensors()[n][0]), fmt, 32) for n, fmt in by.items()}
    return fitness(lambda n, a, b: own[n][a:b] if n in own else model.read(n, a, b), [0], model.spec)


def test_the_choice_beats_the_opposite_of_it_at_the_same_bytes(tmp_path: Path) -> None:
    model = run("mcmoe:bits=3.2", tmp_path)
    chosen_ones = divergence(model, model.formats)
    counts = [block.levels for block in mixtures(model.spec).values()]
    swapped = with_blocks(
        model.spec,
        {
            b: replace(block, levels=tuple(2 - level for level in block.levels))
            for b, block in mixtures(model.spec).items()
        },
    )
    from edgedec.export.passes.mcmoe import by_level

    other = PassModel(swapped, by_level(swapped, read))
    backwards = {name: FORMATS[2 - (int(name[-1]) if name[-2] == "_" else 0)] for name in other_names(swapped)}
    assert all(len(set(found)) == 3 for found in counts)
    assert divergence(PassModel(SPEC, read), {}) == 0
    assert divergence(other, backwards) == pytest.approx(chosen_ones, rel=1e-5)  # the same choice, counted backwards
    worst = dict.fromkeys(model.formats, "int2")
    assert chosen_ones < 0.8 * divergence(model, worst)


def other_names(spec: ModelSpec) -> list[str]:
    found = []
    for b, block in mixtures(spec).items():
        for name in (block.up, "down"):
            found += [f"blocks.{b}.{name}" + (f"_{level}" if level else "") for level in range(block.n_levels)]
    return found


@pytest.mark.parametrize(
    ("words", "body", "said"),
    [
        ("mcmoe:bits=2.4", "int4", "one of each larger choice"),
        ('mcmoe:bits=3,formats=["int4"]', "int4", "formats: from 2 to 4"),
        ('mcmoe:bits=3,formats=["f16","int4"]', "int4", "formats=f16"),
        ("mcmoe:bits=3", "f32", "give --weights int4"),
        ("mcmoe:bits=3+allocate:bits=3", "int4", "one pass of allocation"),
        ("drop_experts", "int4", "blocks"),
    ],
)
def test_what_is_refused(words: str, body: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        run(words, tmp_path, body=body)


@pytest.mark.parametrize("words", ["mcmoe:bits=3", "drop_experts:blocks=1"])
def test_models_without_experts_are_refused(words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no"):
        run(words, tmp_path, MODELS["plain"])


@pytest.mark.parametrize("words", ["mcmoe:bits=3", "drop_experts:blocks=1"])
def test_experts_of_which_rows_take_any_number_are_refused(words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no"):
        run(words, tmp_path, MODELS["experts by ReLU"])


def test_a_row_reads_its_share_of_every_stack() -> None:
    model = MODELS["experts in levels"]
    found = _shares(model)
    stacks = {
        name for name in model.tensors() if name.startswith("blocks.1.") and ("gate_up" in name or "down" in name)
    }
    assert len(stacks) == 6
    assert {found[name] for name in stacks} == {2 / 6}
    assert row_macs(model) == row_macs(replace(model, layers=tuple(map(_without_levels, model.layers))))


def _without_levels(layer: Any) -> Any:
    return tuple(replace(block, levels=()) if isinstance(block, Moe) else block for block in layer)


def test_inspect_says_that_rows_leave_out_experts() -> None:
    block = {"n_experts": 6, "top_k": 2, "levels": [0, 1, 0, 2, 0, 1], "drop_below": 0.7251}
    words = "experts by format 3 + 2 + 1, rows leave out their last one below 0.725 of the first (lossy)"
    assert _dimensions(block) == f"experts 6, top k 2, {words}"
    assert _dimensions({"n_experts": 6, "levels": [], "drop_below": 0.0}) == "experts 6"


# ---- rows that leave out an expert ----


def test_the_borders_are_the_median_and_the_norm_that_two_in_a_hundred_exceed(tmp_path: Path) -> None:
    model = run("drop_experts:blocks=1", tmp_path)
    for b, block in mixtures(model.spec).items():
        texts = texts_of(b)
        x = np.concatenate([text.x for text in texts])
        logits = x @ HELD[f"blocks.{b}.router"].T
        two = np.sort(np.exp(logits - logits.max(axis=1, keepdims=True)), axis=1)[:, ::-1][:, : block.top_k]
        assert block.drop_below == pytest.approx(np.median(two[:, -1] / two[:, 0]), rel=1e-4)
        sizes = np.abs(x).sum(axis=1)
        assert (sizes >= np.float32(block.protect_from)).sum() == 4  # 2% of 200
        assert replace(block, drop_below=0.0, protect_from=0.0) == mixtures(SPEC)[b]
    blocks = list(mixtures(SPEC).values())
    bare = run("drop_experts:blocks=1,protect=0", tmp_path)
    assert {block.protect_from for block in mixtures(bare.spec).values()} == {0.0}
    # Half of the rows but the protected leave out one of top_k.
    assert share_left_out(model.spec) == pytest.approx(np.mean([0.49 / block.top_k for block in blocks]), abs=0.01)
    assert share_left_out(bare.spec) == pytest.approx(np.mean([0.5 / block.top_k for block in blocks]), abs=0.01)


def share_left_out(spec: ModelSpec) -> float:
    from edgedec.runtimes.reference.moe import left_out

    found = [
        left_out(block, text.shares, text.read).mean() / block.top_k
        for b, block, texts in routed(TEXTS, spec, read)
        for text in texts
    ]
    return float(np.mean(found))


def test_the_blocks_whose_dropping_changes_least_drop(tmp_path: Path) -> None:
    every, half = run("drop_experts:blocks=1", tmp_path), run("drop_experts:blocks=0.5,tokens=200", tmp_path)
    fitness = Fitness(SPEC, read, TEXTS)
    costs = {b: fitness(read, [0, 1], with_blocks(SPEC, {b: block})) for b, block in mixtures(every.spec).items()}
    assert len(costs) == 2
    assert min(costs.values()) < 0.9 * max(costs.values())
    assert [b for b, block in mixtures(half.spec).items() if block.drop_below] == [min(costs, key=costs.__getitem__)]
    assert 0 < fitness(read, [0, 1], half.spec) < fitness(read, [0, 1], every.spec)
