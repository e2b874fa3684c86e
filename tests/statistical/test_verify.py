"""Verifiers of drawn drafts keep the target's joint distribution, and accept as much as they are said to.

A `World` has a target and a drafter of small vocabulary, whose every distribution depends on the whole path.
`MUTANTS` are seeded bugs: each must fail the very same test.
"""

from __future__ import annotations

import inspect
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice, product
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
from loops import decode

from edgedec.cache.rows import Rows
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats
from edgedec.decoding.verify import FAMILY, Verifier, _by_node, _by_path, verifier
from edgedec.drafters import BaseDrafter, Draft, Sampled
from edgedec.runtime import logits_of
from edgedec.sampling import Probs, Sampling, probs
from edgedec.testing.fakes import FakeRuntime, SetConstraint, tiny_spec
from edgedec.testing.stats import chi_square

VOCAB = 4
TOKENS = 3
DRAWS = 5000
TEXTS = list(product(range(VOCAB), repeat=TOKENS))
Path = tuple[int, ...]
Law = Callable[[Path], Probs]
# A drawn tree: tokens, parents (-1: the root), what each was drawn from
Tree = tuple[list[int], list[int], list[Probs]]
Layout = Callable[[Law, np.random.Generator], Tree]


def sparse(p: np.ndarray) -> Probs:
    ids = np.flatnonzero(p)
    return Probs(ids, p[ids] / p[ids].sum())


class World:
    """target and drafter: path -> distribution. Every third distribution of either lacks a token."""

    def __init__(self, seed: int, likeness: float = 0.5) -> None:
        @cache
        def target(path: Path) -> Probs:
            return sparse(self._raw(0, path))

        @cache
        def drafter(path: Path) -> Probs:
            return sparse(likeness * self._raw(0, path) + (1 - likeness) * self._raw(1, path))

        self.seed, self.target, self.drafter = seed, target, drafter

    def _raw(self, which: int, path: Path) -> np.ndarray:
        rng = np.random.default_rng([self.seed, which, *path])
        p = rng.dirichlet(np.full(VOCAB, 0.8))
        if rng.random() < 1 / 3:
            p[rng.integers(VOCAB)] = 0
        return p / p.sum()

    def expected(self) -> list[float]:
        return [float(np.prod([self.target(text[:i]).of(text[i]) for i in range(TOKENS)])) for text in TEXTS]


def quick(law: Probs, rng: np.random.Generator) -> int:
    """As `draw`, of a law that stays: its sums are kept."""
    if law not in _SUMS:
        _SUMS[law] = law.ids.tolist(), np.cumsum(law.p).tolist()
    ids, sums = _SUMS[law]
    return ids[min(bisect(sums, rng.random()), len(ids) - 1)]


_SUMS: dict[Probs, tuple[list[int], list[float]]] = {}


# ---- how tokens are drawn and laid out ------------------------------------------------------------


def chain(depth: int) -> Layout:
    return independent(1, depth)


def independent(k: int, depth: int) -> Layout:
    """k independent children at every node, twins included."""

    def make(law: Law, rng: np.random.Generator) -> Tree:
        return _tree(depth, lambda path: [(quick(law(path), rng), law(path)) for _ in range(k)])

    return make


def distinct(k: int, depth: int) -> Layout:
    """Up to k children at every node, drawn without replacement."""

    @cache
    def left(q: Probs, gone: frozenset[int]) -> Probs:
        keep = ~np.isin(q.ids, list(gone))
        return Probs(q.ids[keep], q.p[keep] / q.p[keep].sum())

    def children(q: Probs, rng: np.random.Generator) -> list[tuple[int, Probs]]:
        found: dict[int, Probs] = {}
        for _ in range(min(k, len(q.ids))):
            found[quick(left(q, frozenset(found)), rng)] = q
        return list(found.items())

    return lambda law, rng: _tree(depth, lambda path: children(law(path), rng))


def _tree(depth: int, below: Callable[[Path], list[tuple[int, Probs]]]) -> Tree:
    tokens: list[int] = []
    parents: list[int] = []
    laws: list[Probs] = []
    level: list[tuple[int, Path]] = [(-1, ())]
    for _ in range(depth):
        following: list[tuple[int, Path]] = []
        for row, path in level:
            for token, q in below(path):
                following.append((len(tokens), (*path, token)))
                tokens.append(token)
                parents.append(row)
                laws.append(q)
        level = following
    return tokens, parents, laws


def paths(k: int, depth: int, sharing: bool = True) -> Layout:
    """k independent paths, which share the rows of what they have in common, but for their last rows."""

    def make(law: Law, rng: np.random.Generator) -> Tree:
        tokens: list[int] = []
        parents: list[int] = []
        laws: list[Probs] = []
        rows: dict[Any, int] = {}
        for name in range(k):
            path: Path = ()
            row = -1
            for i in range(depth):
                q = law(path)
                path = (*path, quick(q, rng))
                key = path if sharing and i + 1 < depth else (name, path)
                if key not in rows:
                    rows[key] = len(tokens)
                    tokens.append(path[-1])
                    parents.append(row)
                    laws.append(q)
                row = rows[key]
        return tokens, parents, laws

    return make


CASES: dict[str, tuple[str, Layout]] = {
    "token": ("token", chain(2)),
    "token of a tree": ("token", independent(2, 2)),
    "spectr k=1": ("spectr", independent(1, 2)),
    "spectr k=2": ("spectr", independent(2, 2)),
    "spectr k=3": ("spectr", independent(3, 2)),
    "recursive k=2": ("recursive", distinct(2, 2)),
    "recursive k=3": ("recursive", distinct(3, 2)),
    "recursive k=4": ("recursive", distinct(4, 1)),
    "recursive, independent": ("recursive", independent(3, 2)),
    "block of 1": ("block", chain(1)),
    "block of 2": ("block", chain(2)),
    "block of 3": ("block", chain(3)),
    "multipath k=1": ("multipath", paths(1, 3)),
    "multipath k=2": ("multipath", paths(2, 2)),
    "multipath k=4": ("multipath", paths(4, 3)),
    "multipath k=3, apart": ("multipath", paths(3, 2, sharing=False)),
    "multipath k=3, one token": ("multipath", paths(3, 1)),
}


def outcomes(
    verifier: Verifier, layout: Layout, world: World, seed: int = 1, draws: int = DRAWS
) -> tuple[list[int], float]:
    """(how often each text of three tokens came, accepted tokens a draft in the mean); the root is row 1."""
    rng, counts, accepted = np.random.default_rng(seed), Counter[Path](), 0
    target = world.target
    for _ in range(draws):
        tokens, parents, laws = layout(world.drafter, rng)
        rows = Rows.tree([0, 0, *tokens], [-1, 0, *[parent + 2 for parent in parents]], 0)
        path, picked = verifier(rows, lambda row, path: target(tuple(path)), laws, rng, 1)
        accepted += len(path) - 1
        while len(picked) < TOKENS:
            picked.append(quick(target(tuple(picked)), rng))
        counts[tuple(picked[:TOKENS])] += 1
    return [counts[text] for text in TEXTS], accepted / draws


@pytest.mark.parametrize("world", [World(1), World(4, likeness=0.0)], ids=["alike", "unlike"])
@pytest.mark.parametrize("case", CASES)
def test_the_joint_distribution_is_kept(case: str, world: World) -> None:
    name, layout = CASES[case]
    statistic, critical = chi_square(outcomes(verifier(name), layout, world)[0], world.expected())
    assert statistic < critical


# (verifier, layout, old, new, what it does)
MUTANTS: list[tuple[str, Layout, str, str, str]] = [
    ("token", chain(2), "p = residual(p, q)", "pass", "after a refusal draws from p"),
    (
        "token",
        chain(2),
        "rng.random() * q.of(token) < p.of(token):\n            return at, token\n        p =",
        "rng.random() * p.of(token) < q.of(token):\n            return at, token\n        p =",
        "accepts with q/p",
    ),
    ("token", chain(2), "p = target(accepted[-1], list(picked))", "p = target(accepted[-1], [])", "forgets the path"),
    ("recursive", distinct(3, 2), "_without(whole, gone)", "whole", "does not know what is gone"),
    ("recursive", distinct(3, 2), "q.p[keep] / q.p[keep].sum()", "q.p[keep]", "does not renormalise what is left"),
    ("spectr", independent(3, 2), "return high, beta(high)", "return 1.0, beta(1.0)", "rho is 1"),
    ("spectr", independent(3, 2), "/ beta if beta > 0", "if beta > 0", "a residual for the wrong k"),
    ("block", chain(3), "gap / (gap + 1 - weight) if weight < 1 else 1.0", "weight", "stands with its weight"),
    (
        "block",
        chain(3),
        "stands = gap / (gap + 1 - weight) if weight < 1 else 1.0",
        "stands = min(1.0, p / drew)",
        "stands token by token",
    ),
    ("block", chain(3), "left * last.p", "last.p", "forgets the weight in the residual"),
    ("block", chain(3), "weight * p / drew", "p / drew", "forgets the weight of the path"),
    ("multipath", paths(3, 2), "drawn.append((token, law))", "drawn.append((token, q))", "takes the choice for a draw"),
    ("multipath", paths(3, 2), "leaves[row] for", "1 for", "counts rows for paths"),
    ("multipath", paths(3, 2), "(ratio[i], i)", "(-ratio[i], i)", "chooses the least welcome"),
]


@pytest.mark.parametrize(("name", "layout", "old", "new"), [m[:4] for m in MUTANTS], ids=[m[4] for m in MUTANTS])
def test_seeded_bugs_are_caught(name: str, layout: Layout, old: str, new: str) -> None:
    world = World(4, likeness=0.0)
    mutant = reworded(FAMILY.file(name), old, new)
    statistic, critical = chi_square(outcomes(mutant, layout, world)[0], world.expected())
    assert statistic > critical


def reworded(file: ModuleType, old: str, new: str) -> Verifier:
    """A verifier with one piece of its source replaced, which stands in its own file or in one that it uses."""
    sources = {module: inspect.getsource(module) for module in (file, _by_node, _by_path)}
    where = [module for module, source in sources.items() if old in source]
    assert len(where) == 1, f"{file.__name__} was reworded: give this mutant new words for {old!r}"
    assert sources[where[0]].count(old) == 1, old
    mutant = executed(sources[where[0]].replace(old, new))
    if where[0] is file:
        return cast(Verifier, mutant["verify"])
    shared = {name: mutant[name] for name in mutant.keys() & executed(sources[file]).keys()}
    return cast(Verifier, executed(sources[file], shared)["verify"])


def executed(source: str, instead: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The names of a module's source; `instead`: put in their place afterwards."""
    found: dict[str, Any] = {"__name__": "mutant"}
    exec(compile(source, "mutant", "exec"), found)
    found.update({name: value for name, value in (instead or {}).items() if callable(value)})
    return found


def accepted(name: str, layout: Layout) -> float:
    """Tokens accepted a draft, in the mean over a few worlds."""
    found = [outcomes(verifier(name), layout, World(seed, 0.3), draws=1500)[1] for seed in range(10, 14)]
    return float(np.mean(found))


def test_several_drafts_are_accepted_more_often_than_one() -> None:
    one, three, without = (
        accepted("token", chain(2)),
        accepted("spectr", independent(3, 2)),
        accepted("recursive", distinct(3, 2)),
    )
    assert one + 0.2 < three
    assert three + 0.1 < without
    assert accepted("spectr", chain(2)) == pytest.approx(one)


def test_blocks_are_accepted_further_than_tokens_and_the_best_of_paths_further_still() -> None:
    tokens, blocks, best = (
        accepted("token", chain(4)),
        accepted("block", chain(4)),
        accepted("multipath", paths(3, 4)),
    )
    assert tokens + 0.03 < blocks
    assert blocks + 0.2 < best
    assert accepted("multipath", chain(4)) == pytest.approx(blocks)


# ---- through the loop -----------------------------------------------------------------------------

PROMPT = [2, 0, 1]
SAMPLING = Sampling(temperature=1.3, top_k=3, repetition_penalty=1.3)
SPEC = tiny_spec(vocab_size=VOCAB, n_layers=1)
FOLLOWERS = {-1: {0, 2, 3}, 0: {1, 2}, 1: {0, 1, 2, 3}, 2: {0, 2, 3}, 3: {0, 1, 3}}
STOP = 3
LOOPS: dict[str, tuple[str, Layout]] = {
    "token": ("token", chain(3)),
    "spectr": ("spectr", independent(2, 2)),
    "recursive": ("recursive", distinct(2, 2)),
    "block": ("block", chain(3)),
    "multipath": ("multipath", paths(3, 2)),
}


@cache
def said(text: Path, constrained: bool = False) -> Probs:
    """The target's own law after the prompt and `text`, read from an empty cache."""
    runtime, ids = FakeRuntime(SPEC, spread=9.0), [*PROMPT, *text]
    logits = logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(16))[-1]
    if constrained:
        allowed = list(FOLLOWERS[[-1, *text][-1]])
        logits = np.where(np.isin(np.arange(VOCAB), allowed), logits, -np.inf).astype(np.float32)
    return probs(logits, SAMPLING, ids, len(PROMPT))


@cache
def guessed(text: Path) -> Probs:
    """Wrong in part: half the target's law, half no idea."""
    p = np.full(VOCAB, 0.5 / VOCAB)
    p[said(text).ids] += 0.5 * said(text).p
    return Probs(np.arange(VOCAB), p)


class Guesser(BaseDrafter):
    """Draws from `guessed`, and says so; a liar says the opposite."""

    def __init__(self, name: str, layout: Layout, lies: bool = False) -> None:
        self._name, self._layout, self._lies, self._rng = name, layout, lies, np.random.default_rng(8)

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        known = tuple(map(int, context.ids[len(PROMPT) :]))
        tokens, parents, laws = self._layout(lambda path: guessed((*known, *path)), self._rng)
        if self._lies:
            laws = [Probs(q.ids, (1 - q.p) / (VOCAB - 1)) for q in laws]
        return Draft(tokens, parents, sampled=Sampled(self._name, laws))


def told(guesser: Guesser, stops: frozenset[int], constrained: bool, pauses: bool) -> tuple[list[int], list[float]]:
    """(tally, law) of the texts of up to three tokens; `pauses`: closed in the middle, and gone on."""
    law = Counter[Path]()
    for text in TEXTS:
        end = next((i for i, token in enumerate(text) if token in stops), TOKENS)
        law[text[:end]] += float(np.prod([said(text[:i], constrained).of(text[i]) for i in range(TOKENS)]))
    runtime, rng, counts = FakeRuntime(SPEC, spread=9.0), np.random.default_rng(6), Counter[Path]()
    accepted = 0
    for _ in range(1000):
        context = Context(list(PROMPT), len(PROMPT), runtime.new_cache(32), rng=rng)
        constraint = SetConstraint(FOLLOWERS, VOCAB) if constrained else None
        while len(context.ids) < len(PROMPT) + TOKENS:
            stats = Stats()
            config = GenerationConfig(SAMPLING, stop_tokens=stops, constraint=constraint)
            tokens = decode(runtime, context, config, guesser, stats)
            for _ in islice(tokens, 1 if pauses else TOKENS):
                pass
            tokens.close()
            accepted += stats.accepted
            if stats.finish == "eos":
                break
        counts[tuple(map(int, context.ids[len(PROMPT) :]))] += 1
    assert accepted > 300, "nothing was drafted that counts"
    texts = sorted(law.keys() | counts.keys())
    return [counts[text] for text in texts], [law[text] for text in texts]


WAYS = {
    "free": (frozenset[int](), False, False),
    "stopped": (frozenset({STOP}), False, False),
    "constrained": (frozenset[int](), True, False),
    "pausing": (frozenset[int](), False, True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("loop", LOOPS)
def test_the_loop_keeps_the_joint_distribution(loop: str, way: str) -> None:
    statistic, critical = chi_square(*told(Guesser(*LOOPS[loop]), *WAYS[way]))
    assert statistic < critical


@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_liar_drafts_shows(loop: str) -> None:
    """The statistics above could fail."""
    statistic, critical = chi_square(*told(Guesser(*LOOPS[loop], lies=True), *WAYS["free"]))
    assert statistic > critical
