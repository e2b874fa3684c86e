"""Allocations: the levels that are searched over, EvoPress's switches and stages, and that both beat uniform bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ODD, random_weights

from edgedec.errors import UsageError
from edgedec.export.grids import GRIDS
from edgedec.export.passes import PassContext, PassModel, chosen, make_pass
from edgedec.export.passes._fitness import Fitness
from edgedec.export.passes._levels import DAMP, SWEEPS, RoundedLevels
from edgedec.export.passes._rounded import RoundedStore
from edgedec.export.passes._solve import solve
from edgedec.export.passes._statistics import Statistics
from edgedec.export.passes.allocate import rounded as nearest
from edgedec.export.passes.allocate import stored_bytes
from edgedec.export.passes.evopress import mutated, offspring, select
from edgedec.export.quantize import from_codes
from edgedec.runtimes.reference.numeric import Array

SPEC = ODD["plain"]
FORMATS = ("int2", "int3", "int4")
HELD = {name: random_weights(SPEC, 1)(name) for name in SPEC.tensors()}
NAMES = sorted(name for name in SPEC.matrices if name.startswith("blocks."))
CALIBRATION, UNSEEN = (
    Statistics(tuple(np.random.default_rng(seed).integers(0, SPEC.vocab_size, (3, 40)))) for seed in (0, 1)
)


def read(name: str, start: int, stop: int) -> Array:
    return HELD[name][start:stop]


def run(words: str, folder: Path) -> PassModel:
    parts: Any = dict.fromkeys(("body", "head", "embed"), "int4")
    context, model = PassContext(SPEC, parts, 32, RoundedStore(folder)), PassModel(SPEC, read)
    for choice in chosen(words):
        model = make_pass(choice, context)(model, CALIBRATION)
    return model


def in_bytes(formats: Any) -> int:
    return sum(stored_bytes(SPEC.tensors()[name], fmt, 32) for name, fmt in formats.items())


def divergence(formats: Any, statistics: Statistics) -> float:
    """Of the model with its matrices rounded to nearest in these formats."""
    own = {name: nearest(HELD[name], fmt, 32) for name, fmt in formats.items()}
    fitness = Fitness(SPEC, read, statistics)
    return fitness(lambda n, a, b: own[n][a:b] if n in own else read(n, a, b), range(len(statistics.texts)))


# ---- levels and fitness ----


def test_levels_are_the_matrices_rounded_by_themselves(tmp_path: Path) -> None:
    parts: Any = dict.fromkeys(("body", "head", "embed"), "int4")
    context, model = PassContext(SPEC, parts, 32, RoundedStore(tmp_path)), PassModel(SPEC, read)
    plain = RoundedLevels(context, model, FORMATS, "nearest").make(NAMES, CALIBRATION)
    clever = RoundedLevels(context, model, FORMATS, "gptq").make(NAMES, CALIBRATION)
    name = NAMES[-1]
    moments = next(found for b, found in CALIBRATION.blocks(SPEC, read) if name in found)[name]
    for fmt in ("int3", "int2"):
        np.testing.assert_array_equal(plain.get(name, fmt), nearest(HELD[name], fmt, 32))
        wide = HELD[name].astype(np.float64)
        codes, scales = solve(wide, moments.diagonal, GRIDS[fmt], 32, DAMP, True, SWEEPS)  # type: ignore[index]
        np.testing.assert_array_equal(clever.get(name, fmt), from_codes(codes, scales, fmt, 32))  # type: ignore[arg-type]
    assert RoundedStore(tmp_path).get(name, "int3", 32) is None  # GPTQ afterwards does not take them for its own
    RoundedStore(tmp_path).remove()
    assert not tmp_path.exists()


def test_fitness_is_the_divergence_of_the_texts_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgedec.export.passes import _fitness

    own = {name: nearest(HELD[name], "int2", 32) for name in NAMES}

    def low(name: str, start: int, stop: int) -> Array:
        return own[name][start:stop] if name in own else read(name, start, stop)

    def probabilities(source: Any) -> Any:
        return np.concatenate([_fitness.log_probabilities(x) for x in _fitness._logits(SPEC, source, CALIBRATION)])

    p, q = probabilities(read), probabilities(low)
    fitness, each = Fitness(SPEC, read, CALIBRATION), (np.exp(p) * (p - q)).sum(axis=1)
    assert fitness(low, [0, 2]) == pytest.approx(each[np.r_[0:40, 80:120]].mean(), rel=1e-4)
    assert fitness(read, [1]) == 0
    monkeypatch.setattr(_fitness, "_LIKELIEST", 3)
    order = np.argsort(-p, axis=1)[:, :3]
    few = (np.exp(p) * (p - q))[np.arange(len(p))[:, None], order].sum(axis=1)
    assert Fitness(SPEC, read, CALIBRATION)(low, [0, 1, 2]) == pytest.approx(few.mean(), rel=1e-4)
    rng = np.random.default_rng(0)
    assert sorted({len(fitness.picked(41, rng)) for _ in range(9)}) == [2]
    assert len({tuple(fitness.picked(41, rng)) for _ in range(30)}) == 3  # any two of the texts
    assert fitness.picked(10**6, rng) == [0, 1, 2]


# ---- the search ----


def test_switches_move_a_level_between_matrices_of_one_size() -> None:
    sizes = [[2, 3, 4], [2, 3, 4], [2, 3, 4], [20, 30, 40], [20, 30, 40], [7, 8, 9]]
    parent, rng, moved = (1, 1, 1, 1, 1, 1), np.random.default_rng(0), set[int]()
    total = sum(size[1] for size in sizes)
    for _ in range(300):
        child = mutated(parent, sizes, rng)
        assert sum(size[j] for size, j in zip(sizes, child, strict=True)) == total
        assert child[5] == 1  # nothing else has its size
        moved.add(sum(abs(a - b) for a, b in zip(child, parent, strict=True)))
    assert moved >= {0, 2, 4}  # some undo each other; the last matrix alone makes none
    many = [40 - mutated((1,) * 40, [[2, 3, 4]] * 40, rng).count(1) for _ in range(600)]
    assert max(many) == 6  # three switches
    assert 0.45 < many.count(2) / 600 < 0.66  # the lesser of two draws of 1 to 3 is 1 in five of nine


def test_children_differ_and_keep_within_the_budget() -> None:
    sizes = [[2, 3, 4, 8]] * 5  # a step to eight bits takes more than it gives
    parent, rng = (2, 2, 1, 1, 1), np.random.default_rng(1)
    budget = sum(size[j] for size, j in zip(sizes, parent, strict=True))
    born = offspring(parent, sizes, budget, 12, rng)
    assert len(born) == len(set(born)) == 12
    assert parent not in born
    assert all(sum(s[j] for s, j in zip(sizes, child, strict=True)) <= budget for child in born)
    assert offspring((0, 0), [[1], [1]], 9, 4, rng) == []


def test_stages_leave_the_best_and_the_parent_joins_the_last() -> None:
    costs = {(0,): 5.0, (1,): 3.0, (2,): 1.0, (3,): 2.0, (4,): 4.0}
    asked = list[tuple[int, int]]()

    def measured(choice: Any, texts: Any) -> float:
        asked.append((choice[0], len(texts)))
        # On little text 2 looks bad, on much text it is the best.
        return 9.0 if choice == (2,) and len(texts) == 1 else costs[choice]

    born = [(1,), (2,), (3,), (4,)]
    assert select((0,), born, ((2, 1), (1, 5)), lambda n: range(n), measured) == (3,)
    assert asked == [(1, 1), (2, 1), (3, 1), (4, 1), (0, 5), (3, 5), (1, 5)]
    assert select((2,), born[2:], ((1, 1), (1, 5)), lambda n: range(n), measured) == (2,)
    assert select((0,), [(5,)], ((1, 3),), lambda n: range(n), lambda choice, _: 1.0) == (0,)


def test_the_search_goes_on_from_the_sum_of_single_costs_and_is_never_worse(tmp_path: Path) -> None:
    total = sum(HELD[name].size for name in NAMES)
    bits = 8 * in_bytes(dict.fromkeys(NAMES, "int3")) / total
    words = f'bits={bits},formats=["int2","int3","int4"],by=nearest'
    start = run(f"allocate:{words},tokens=120", tmp_path / "a").formats
    options = f"{words},children=4,survivors=[1],stages=[120]"
    none = run(f"evopress:{options},generations=0", tmp_path / "b").formats
    assert none == start
    found = run(f"evopress:{options},generations=4", tmp_path / "c").formats
    assert in_bytes(found) <= in_bytes(start) <= bits / 8 * total
    assert divergence(found, CALIBRATION) < divergence(start, CALIBRATION)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bits=3,survivors=[4,2]", "survivors 1 at last"),
        ("bits=3,survivors=[1],stages=[9,9]", "one number for each stage"),
        ("bits=3,survivors=[1,1]", "must become fewer"),
        ('bits=3,formats=["f16"]', "evopress: formats=f16"),
    ],
)
def test_options_that_are_refused(words: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        run(f"evopress:{words}", tmp_path)


# ---- against uniform bits ----


def test_allocation_beats_uniform_bits_on_text_it_has_not_seen(tmp_path: Path) -> None:
    """At the bytes of int3 everywhere."""
    uniform = dict.fromkeys(NAMES, "int3")
    bits = 8 * in_bytes(uniform) / sum(HELD[name].size for name in NAMES)
    found = run(f"allocate:bits={bits},tokens=120", tmp_path).formats
    assert in_bytes(found) <= in_bytes(uniform)
    assert len(set(found.values())) > 1
    assert divergence(found, UNSEEN) < 0.9 * divergence(uniform, UNSEEN)
