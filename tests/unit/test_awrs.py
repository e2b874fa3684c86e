"""Weighted draws under a constraint: unbiased for a planted law, few checks, and the same text with speculation."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import exp, isfinite, log
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import pytest
from serving import serving
from typer.testing import CliRunner

import edgedec
from edgedec import constraints
from edgedec.cli._app import app
from edgedec.errors import UsageError
from edgedec.model import Model
from edgedec.sampling import Probs
from edgedec.sampling.awrs import GEOMETRIC, Checks, Weighed, _Left, weighed_draw
from edgedec.sampling.smc import shares_of, smc, systematic

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
LAWS = {
    "flat": [0.2, 0.15, 0.15, 0.1, 0.1, 0.1, 0.1, 0.1],
    "tilted": [0.45, 0.25, 0.1, 0.08, 0.05, 0.04, 0.02, 0.01],
    "peaked": [0.7, 0.1, 0.06, 0.05, 0.04, 0.03, 0.01, 0.01],
}
ALLOWED = {"most": [0, 1, 2, 3, 4, 6], "few": [2, 5], "one": [3], "all": list(range(8)), "top": [0]}


@pytest.fixture(scope="module")
def model(nano: Path) -> Model:
    return edgedec.open(nano, threads=1)


def law(p: Sequence[float]) -> Probs:
    return Probs(np.arange(len(p)) * 3, np.array(p))


def checks(allowed: Sequence[int], most: int, size: int = 24) -> Checks:
    kept = {3 * token for token in allowed}
    return Checks(lambda tokens: [t in kept for t in tokens], lambda: np.isin(np.arange(size), sorted(kept)), most)


def drawn(name: str, which: str, most: int, n: int) -> list[Weighed]:
    rng = np.random.default_rng(11)
    return [weighed_draw(law(LAWS[name]), checks(ALLOWED[which], most), rng) for _ in range(n)]


# --- the rule ---


@pytest.mark.parametrize("most", [4, 1000])
@pytest.mark.parametrize("which", list(ALLOWED))
@pytest.mark.parametrize("name", list(LAWS))
def test_weights_are_unbiased_and_tokens_of_the_masked_law(name: str, which: str, most: int) -> None:
    """E[w 1{x}] = p(x) for each allowed x, within four standard errors; without weights it is p(x) / Z."""
    n = 3000
    found, p, allowed = drawn(name, which, most, n), LAWS[name], ALLOWED[which]
    mass = sum(p[token] for token in allowed)
    counts = Counter(one.token // 3 for one in found)
    assert set(counts) <= set(allowed)
    for token in allowed:
        values = np.array([exp(one.log_weight) if one.token == 3 * token else 0.0 for one in found])
        error = max(values.std() / n**0.5, 1e-9)
        assert abs(values.mean() - p[token]) < 4 * error + 1e-9, (token, values.mean(), p[token])
        share = p[token] / mass
        assert abs(counts[token] / n - share) < 4 * (share * (1 - share) / n) ** 0.5 + 1e-9
    weights = [exp(one.log_weight) for one in found]
    assert all(0 < weight <= 1 + 1e-9 for weight in weights)
    if which != "all":
        assert np.mean(weights) < 1 - (1 - mass) / 2  # masking would say 1


def enumerated(p: Sequence[float], allowed: set[int]) -> dict[int, float]:
    """E[w 1{x}] of the draws without replacement, over all orders, by the formula in the plan."""
    total = dict.fromkeys(range(len(p)), 0.0)
    for order in itertools.permutations(range(len(p))):
        chance, left, weight = 1.0, 1.0, 1.0
        shares = []
        for token in order:
            shares.append(p[token] / left if left > 1e-15 else 1.0)
            chance, left = chance * shares[-1], left - p[token]
        t = next(i for i, token in enumerate(order) if token in allowed)
        for i in range(t):
            weight *= 1 - shares[i]
        after = t + 1 < len(order) and order[t + 1] in allowed
        total[order[t]] += chance * weight * (1 if after else shares[t])
    return total


def test_the_formula_itself_is_unbiased() -> None:
    p, allowed = [0.4, 0.3, 0.2, 0.1], {1, 3}
    found = enumerated(p, allowed)
    assert [found[token] for token in range(4)] == pytest.approx([0, 0.3, 0, 0.1])


def test_the_worked_example() -> None:
    rng = np.random.default_rng(1)
    found = {weighed_draw(law([0.5, 0.5]), checks([1], 100), rng) for _ in range(50)}
    assert {(one.token, round(one.log_weight, 9)) for one in found} == {(3, round(log(0.5), 9))}


class Scripted:
    """Random numbers in this order."""

    def __init__(self, *values: float) -> None:
        self._values = list(values)

    def random(self) -> float:
        return self._values.pop(0)

    def geometric(self, p: float) -> int:
        return int(self._values.pop(0))


def scripted(p: Sequence[float], allowed: Sequence[int], *values: float, most: int = 100) -> tuple[int, float, int]:
    counted = checks(allowed, most)
    found = weighed_draw(law(p), counted, Scripted(*values))  # type: ignore[arg-type]
    return found.token // 3, round(exp(found.log_weight), 9), counted.count


def test_draws_without_replacement_one_by_one() -> None:
    p = [0.5, 0.3, 0.2]
    assert scripted(p, [0, 1], 0.1, 0.1) == (0, 1.0, 2)  # both allowed
    assert scripted(p, [0], 0.1, 0.1) == (0, 0.5, 2)  # the next one is not: q
    assert scripted(p, [1, 2], 0.1, 0.1, 0.1) == (1, 0.5, 3)  # 1 - q of the rejected one, and the next is allowed
    assert scripted(p, [1], 0.1, 0.1, 0.1) == (1, round(0.5 * 0.6, 9), 3)
    assert scripted(p, [2], 0.1, 0.1, 0.1) == (2, 0.2, 3)  # none is left for the next draw: q is 1


def test_what_is_left_of_little_is_added_up() -> None:
    """Not the difference of nearly equal numbers."""
    left = _Left(law([1.0, 2e-17, 1e-17]), np.random.default_rng(1))
    assert left.take(0) == pytest.approx(1)
    assert left.mass == pytest.approx(3e-17)
    assert left.take(1) == pytest.approx(2 / 3)
    assert left.draw() == 2


def test_draws_with_replacement_are_counted() -> None:
    p = [0.7, 0.2, 0.1]
    assert p[0] >= GEOMETRIC
    assert scripted(p, [0], 0.1, 0.1) == (0, 1.0, 1)  # twice the same: one check
    assert scripted(p, [0], 0.75, 1, 0.1, 1, 0.1) == (0, 0.5, 2)  # one rejection
    assert scripted(p, [0], 0.75, 4, 0.1, 3, 0.1) == (0, round(1 / 7, 9), 2)  # and five drawn ones
    assert scripted(p, [1, 2], 0.1, 2, 0.1, 1, 0.9) == (1, round(1 / 3, 9), 3)


def test_the_rest_is_drawn_from_the_mask() -> None:
    p = [0.3, 0.3, 0.2, 0.2]
    assert scripted(p, [2, 3], 0.1, 0.1, 0.9, most=2) == (3, 0.4, 2)  # two rejected: the mass of what is allowed
    assert scripted([0.7, 0.2, 0.1], [2], 0.1, 1, 0.1, 0.5, 3, 1, most=1)[1:] == (round(1 / 4, 9), 1)


def test_nothing_is_allowed() -> None:
    rng = np.random.default_rng(1)
    for most in (4, 1000):
        for p in LAWS.values():
            assert weighed_draw(law(p), checks([], most), rng) == Weighed(-1, -np.inf)


def test_checks_are_few() -> None:
    size, rng = 4096, np.random.default_rng(2)
    p = rng.dirichlet(np.full(size, 0.05))
    kept = rng.random(size) < 0.4
    counts = []
    for _ in range(100):
        counted = Checks(lambda tokens: [bool(kept[t]) for t in tokens], lambda: kept)
        weighed_draw(Probs(np.arange(size), p), counted, rng)
        counts.append(counted.count)
    assert max(counts) <= 5
    peaked = np.full(size, 0.05 / (size - 1))
    peaked[7] = 0.95
    kept[7] = True
    counted = Checks(lambda tokens: [bool(kept[t]) for t in tokens], lambda: kept, 10**6)
    for _ in range(50):
        weighed_draw(Probs(np.arange(size), peaked), counted, rng)
    assert counted.count < 1.5 * 50


# --- in a generation ---


def weighed(model: Model, spec: str, seed: int = 1, **more: Any) -> tuple[str, Any]:
    session = model.session(speculate=spec)
    rule = constraints.json_schema(model, SCHEMA)
    given = {"max_tokens": 40, "temperature": 1.0, "seed": seed, "awrs": True, "constraint": rule, **more}
    return "".join(session.generate("A person as JSON: ", **given)), session.stats


@pytest.fixture(scope="module", autouse=True)
def _needs() -> None:
    pytest.importorskip("llguidance", reason="constraints need llguidance")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_changes_neither_text_nor_weight(model: Model, temperature: float) -> None:
    plain, stats = weighed(model, "off", temperature=temperature)
    for spec in ("auto", "forced"):
        text, drafted = weighed(model, spec, temperature=temperature)
        assert text == plain
        assert drafted.accepted > 0
        assert drafted.log_weight == pytest.approx(stats.log_weight)
    assert plain.startswith("{")
    assert stats.log_weight < -1 if temperature else stats.log_weight == 0


def test_checks_on_json(model: Model) -> None:
    total, tokens = 0, 0
    for seed in range(4):
        text, stats = weighed(model, "off", seed)
        assert text.startswith("{")
        total, tokens = total + stats.checks, tokens + stats.generated
        assert isfinite(stats.log_weight)
        assert 0 < stats.masks < stats.generated
    assert tokens <= total <= 5 * tokens


def test_greedy_takes_the_largest_that_is_allowed(model: Model) -> None:
    text, _ = weighed(model, "off", temperature=0.0)
    masked, _ = weighed(model, "off", temperature=0.0, awrs=False)
    assert text == masked


def test_the_weight_is_the_mass_of_what_is_allowed(model: Model) -> None:
    """One token: the mean weight is the mass that the mask keeps."""
    rule = constraints.regex(model, " ?[a-m][a-z]*")
    session = model.session()
    ids = model.tokenizer.encode("One day she saw a")
    weights = []
    for seed in range(300):
        list(session.tokens(ids, max_tokens=1, temperature=1.0, seed=seed, awrs=True, constraint=rule))
        weights.append(exp(session.stats.log_weight))
    p = np.exp(edgedec_logprobs(model, ids))
    rule.reset()
    mass = float(p[rule.mask(())].sum() / p.sum())
    assert 0.02 < mass < 0.98
    assert abs(np.mean(weights) - mass) < 4 * np.std(weights) / 300**0.5


def edgedec_logprobs(model: Model, ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """The log-probabilities of the next token."""
    from edgedec.runtime import Call, Outputs, Rows

    cache = model.runtime.new_cache(len(ids) + 1)
    call = Call(Rows.chain(ids, 0), cache, outputs=Outputs(logits=True))
    logits = model.runtime.forward([call])[0].logits
    assert logits is not None
    scores = logits[-1].astype(np.float64)
    return scores - scores.max() - log(np.exp(scores - scores.max()).sum())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"top_k": 5}, "awrs: weighs the whole law: leave out top_k"),
        ({"top_p": 0.9}, "leave out"),
        ({"min_p": 0.1}, "leave out"),
        ({"constraint": None}, "awrs: needs a constraint"),
    ],
)
def test_what_cannot_be_weighed(model: Model, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        weighed(model, "off", **options)


def test_doors(model: Model, nano: Path) -> None:
    flags = ["run", "-m", str(nano), "-p", "Once", "--no-echo", "-t", "1", "--temp", "1", "--seed", "3"]
    flags += ["--awrs", "--top-k", "0", "--top-p", "1", "--min-p", "0"]
    result = CliRunner().invoke(app, [*flags, "--regex", "(cat|dog)s?"])
    assert result.stdout.strip() in ("cat", "dog", "cats", "dogs")
    with serving(model) as (place, _):
        body = {"prompt": "Once", "max_tokens": 9, "temperature": 1, "awrs": True, "regex": "(cat|dog)s?"}
        body |= {"top_p": 1, "top_k": 0, "min_p": 0}
        answer = httpx.post(f"{place}/v1/completions", json=body, timeout=60)
        assert answer.json()["choices"][0]["text"] in ("cat", "dog", "cats", "dogs")
        assert answer.json()["edgedec"]["log_weights"][0] < 0
        wrong = httpx.post(f"{place}/v1/completions", json={**body, "top_k": 3}, timeout=60)
        assert wrong.status_code == 400
        assert "awrs" in json.dumps(wrong.json())


# --- particles ---


class Text:
    """A text of a planted law: two tokens, each 0 or 1; the second's law depends on the first. Allowed: not (0, 0)."""

    def __init__(self, rng: np.random.Generator, tokens: tuple[int, ...] = ()) -> None:
        self._rng, self.tokens = rng, tokens

    def law(self) -> list[float]:
        return [0.5, 0.5] if not self.tokens else [0.95, 0.05] if self.tokens[0] == 0 else [0.5, 0.5]

    def extend(self) -> float | None:
        if len(self.tokens) == 2:
            return None
        fine = [1] if self.tokens == (0,) else [0, 1]
        found = weighed_draw(law(self.law()), checks(fine, 4), self._rng)
        self.tokens += (found.token // 3,)
        return found.log_weight

    def fork(self) -> Self:
        return type(self)(self._rng, self.tokens)


def test_particles_are_of_the_posterior_where_masking_is_not() -> None:
    posterior = {(0, 1): 0.025, (1, 0): 0.25, (1, 1): 0.25}
    mass, rng = sum(posterior.values()), np.random.default_rng(3)
    shares, masked = defaultdict[tuple[int, ...], float](float), defaultdict[tuple[int, ...], float](float)
    means, resampled, rounds = [], 0, 60
    for _ in range(rounds):
        texts = [Text(rng) for _ in range(64)]
        found = smc(texts, Text.extend, rng, threshold=0.7)
        means.append(exp(found.log_mean))
        resampled += found.resampled
        for text, share in zip(texts, found.shares, strict=True):
            shares[text.tokens] += share / rounds
        alone = [Text(rng) for _ in range(64)]
        smc(alone, Text.extend, rng, threshold=0.0)
        for text in alone:
            masked[text.tokens] += 1 / 64 / rounds
    assert sum(shares.values()) == pytest.approx(1)
    for tokens, p in posterior.items():
        assert shares[tokens] == pytest.approx(p / mass, abs=0.03)
    assert np.mean(means) == pytest.approx(mass, abs=0.02)  # unbiased
    assert resampled > 0
    assert masked[0, 1] > 0.3  # each token from the masked law: far from 0.05


class Lone:
    """A particle with given weights."""

    def __init__(self, weights: list[float | None]) -> None:
        self.weights, self.forks = list(weights), 0

    def extend(self) -> float | None:
        return self.weights.pop(0)

    def fork(self) -> Lone:
        self.forks += 1
        return Lone(self.weights)


def test_particles_are_resampled_when_few_count() -> None:
    heavy, others = Lone([0.0, 0.0, None]), [Lone([-20.0, 0.0, None]) for _ in range(3)]
    particles = [*others, heavy]
    found = smc(particles, Lone.extend, np.random.default_rng(1))
    assert found.resampled == 1
    assert heavy.forks == 3
    assert sum(one is heavy for one in particles) == 1
    assert found.shares == pytest.approx([0.25] * 4)
    assert found.log_mean == pytest.approx(log(0.25), abs=1e-6)
    equal = [Lone([-1.0, None]) for _ in range(4)]
    found = smc(equal, Lone.extend, np.random.default_rng(1))
    assert found.resampled == 0
    assert found.log_mean == pytest.approx(-1.0)
    dead = [Lone([-np.inf]), Lone([-np.inf])]
    assert smc(dead, Lone.extend, np.random.default_rng(1)).log_mean == -np.inf
    one_dead = [Lone([-np.inf]), Lone([0.0, None])]
    assert smc(one_dead, Lone.extend, np.random.default_rng(1)).shares.tolist() == [0, 1]


def test_systematic_draws_are_close_to_their_shares() -> None:
    shares = np.array([0.41, 0.0, 0.34, 0.25])
    for u in (0.0, 0.3, 0.999999):
        counts = Counter(systematic(shares, u))
        assert counts[1] == 0
        assert all(abs(counts[k] - 4 * share) < 1 for k, share in enumerate(shares))


def test_shares_are_weights_over_their_sum_and_their_mean_is_kept() -> None:
    shares, mean = shares_of([-1000.0, -1000.0 + log(3), -np.inf, -np.inf])
    assert shares == pytest.approx([0.25, 0.75, 0, 0])
    assert mean == pytest.approx(-1000.0), "(1 + 3 + 0 + 0) / 4"
    shares, mean = shares_of([-np.inf, -np.inf])
    assert (shares.tolist(), mean) == ([0, 0], -np.inf)
