"""A format by a hidden Markov model: its probability against enumeration, texts that all have it, training, files."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusing import PROMPT, law, logp, naive, run

import edgedec
from edgedec.errors import UsageError
from edgedec.fusion import make_fusion, train_hmm
from edgedec.fusion._hmm import HMM, likelihood, train
from edgedec.fusion._pivots import DEAD, Pivots
from edgedec.fusion.format import Formatted
from edgedec.sampling import Sampling, distribution
from edgedec.testing.fakes import FakeRuntime, PerfectDrafter, RandomDrafter

PATTERNS: dict[str, Any] = {
    "two parts": ([(1, 1, 2), (0,)], False, False),
    "begins": ([(2, 1), (1,)], True, False),
    "ends": ([(1, 2)], False, True),
    "both": ([(2,), (2, 0)], True, True),
}
ENDS = frozenset({3})


def planted(states: int = 3, vocab: int = 4, seed: int = 0) -> HMM:
    rng = np.random.default_rng(seed)
    return HMM(
        rng.dirichlet(np.ones(states)),
        rng.dirichlet(np.ones(states), states),
        rng.dirichlet(np.ones(vocab), states),
    )


def complete(tokens: list[int], parts: Any, start: bool, end: bool, ends: frozenset[int] = ENDS) -> bool:
    """Whether a text has the parts in order; with `end` it stops right after, but for end tokens."""
    at = 0
    for i, part in enumerate(parts):
        places = [j for j in range(at, len(tokens) - len(part) + 1) if tuple(tokens[j : j + len(part)]) == part]
        if i == 0 and start:
            places = [j for j in places if j == 0]
        if not places or ends & set(tokens[at : places[0]]):
            return False
        at = places[0] + len(part)
    return True


def first_time(tokens: list[int], pattern: Any) -> int | None:
    """After how many tokens the text has it."""
    return next((n for n in range(len(tokens) + 1) if complete(tokens[:n], *pattern)), None)


@pytest.mark.parametrize("name", PATTERNS)
def test_states_are_what_is_there(name: str) -> None:
    parts, start, end = PATTERNS[name]
    pivots = Pivots(parts, start, end, ENDS)
    for text in product(range(4), repeat=6):
        state = 0
        for n, token in enumerate(text):
            before = state
            state = pivots.after(state, token)
            reached = first_time(list(text[: n + 1]), PATTERNS[name])
            if before == pivots.done:
                assert state == (DEAD if end and token not in ENDS else pivots.done)
            elif before != DEAD:
                assert (state == pivots.done) == (reached is not None)


def slow_chance(hmm: HMM, hidden: Any, prefix: list[int], token: int, left: int, pattern: Any) -> float:
    """By enumeration: the probability that the parts are there within so many tokens, the first of them `token`."""
    total = 0.0
    for rest in product(range(4), repeat=left - 1):
        text = [token, *rest]
        if first_time([*prefix, *text], pattern) is not None:
            p, state = 1.0, hidden
            for i, one in enumerate(text):
                chance = float((hmm.coming(state) * hmm.emits[:, one]).sum())
                p *= chance if i else 1.0
                state = hmm.after(state, one)
            total += p
    return total


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("left", [1, 2, 4])
def test_chances_are_those_of_enumeration(name: str, left: int) -> None:
    hmm, pattern = planted(), PATTERNS[name]
    parts, start, end = pattern
    made = Formatted(hmm, Pivots(parts, start, end, ENDS), 4)
    for prefix in ([], [1], [2, 1], [1, 1], [2]):
        hidden, state = None, 0
        for token in prefix:
            hidden, state = hmm.after(hidden, token), made._pivots.after(state, token)
        if state in (DEAD, made._pivots.done):
            continue
        found = made.chances(hidden, state, left)
        for token in range(4):
            expected = slow_chance(hmm, hidden, prefix, token, left, pattern)
            assert found[token] == pytest.approx(expected, abs=1e-12), (prefix, token)


def wide(seed: int = 1) -> HMM:
    return planted(4, 13, seed)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("parts", [[(7, 7, 2), (12,)], [(4, 9)]])
def test_texts_are_those_of_the_product_and_all_have_the_format(parts: Any, sampling: Sampling) -> None:
    on, hmm, n = FakeRuntime(), wide(), 10

    def after(new: list[int]) -> Any:
        made = Formatted(hmm, Pivots(parts, False, False, frozenset()), n)
        hidden: Any = None
        for token in [*PROMPT, *new]:
            hidden = hmm.after(hidden, token)
        state = 0
        for token in new:
            state = made._pivots.after(state, token)
        row = logp(law(on, [*PROMPT, *new]))
        if state != made._pivots.done:
            with np.errstate(divide="ignore"):
                row = row + np.log(made.chances(hidden, state, n - len(new)))
        return distribution(row.astype(np.float32), sampling)

    def text(seed: int, drafter: Any = None) -> list[int]:
        made = Formatted(hmm, Pivots(parts, False, False, frozenset()), n)
        return run(on, [made], drafter, sampling, seed=seed, n=16)

    for seed in range(4):
        wanted = naive(after, sampling.temperature == 0, seed, n=n)
        found = text(seed)
        assert found[:n] == wanted
        assert first_time(wanted, (parts, False, False, frozenset())) is not None
        assert text(seed, PerfectDrafter([*PROMPT, *found], decoys=2)) == found
        assert text(seed, RandomDrafter(seed)) == found
    assert first_time(run(on, (), sampling=sampling, n=n), (parts, False, False, frozenset())) is None


def test_a_format_that_ends_the_text() -> None:
    on, hmm = FakeRuntime(), wide()
    for seed in range(4):
        made = Formatted(hmm, Pivots([(4, 9)], True, True, frozenset({5})), 8)
        assert run(on, [made], sampling=Sampling(temperature=1.0), seed=seed, n=3) == [4, 9, 5]


def test_forks_and_another_text() -> None:
    on, hmm = FakeRuntime(), wide()
    made = Formatted(hmm, Pivots([(7, 7, 2)], False, False, frozenset()), 8)
    first = run(on, [made])
    state = made._state, made._made
    twin = made.fork()
    twin.accept(3)
    assert (made._state, made._made) == state
    made.reset()
    assert run(on, [made]) == first


def test_fewer_hidden_states_change_the_chance_by_no_more_than_what_they_held() -> None:
    hmm = planted(8, 6, 3)
    whole = Formatted(hmm, Pivots([(1, 2)], False, False, frozenset()), 6)
    hidden = hmm.after(hmm.after(None, 1), 4)
    joint = hmm.coming(hidden) @ hmm.emits
    exact = float((whole.chances(hidden, 0, 6) * joint).sum())
    kinds = set()
    for mass in (0.3, 0.7, 0.978, 1.0):
        made = Formatted(hmm, Pivots([(1, 2)], False, False, frozenset()), 6, mass)
        coming = made._pruned(hmm.coming(hidden))
        kinds.add(int((coming > 0).sum()))
        held = float(hmm.coming(hidden)[coming > 0].sum())
        assert held >= mass - 1e-12
        assert np.abs(np.sort(coming)[::-1] - np.sort(coming)).sum() > 0 or mass == 1
        found = float((made.chances(hidden, 0, 6) * (coming @ hmm.emits)).sum())
        assert abs(found - exact) <= 1 - held + 1e-12
    assert len(kinds) > 2


def test_training_finds_what_was_planted() -> None:
    """Two states that always alternate, each with tokens of its own."""
    rng = np.random.default_rng(0)
    texts = [[int(rng.integers(0, 3)) + 3 * (i % 2) for i in range(40)] for _ in range(20)]
    made = [train(texts, 6, 2, rounds, seed=1) for rounds in (0, 1, 3, 40)]
    values = [likelihood(one, texts) for one in made]
    assert values == sorted(values)
    assert values[-1] > -np.log(3) - 0.05 > values[0]
    assert made[-1].moves.max(axis=1).min() > 0.98
    for part in (made[-1].first, made[-1].moves, made[-1].emits):
        assert np.allclose(part.sum(axis=-1), 1)
        assert part.min() > 0
    with pytest.raises(UsageError, match="needs texts"):
        train([[]], 6)


def test_files(tmp_path: Path) -> None:
    hmm = planted()
    hmm.save(tmp_path / "a.hmm")
    again = HMM.load(tmp_path / "a.hmm", 4)
    assert all(np.array_equal(getattr(hmm, name), getattr(again, name)) for name in ("first", "moves", "emits"))
    with pytest.raises(UsageError, match="a model of 4 tokens, not of 5"):
        HMM.load(tmp_path / "a.hmm", 5)
    HMM(hmm.first, hmm.moves, hmm.emits * np.nan).save(tmp_path / "b.hmm")
    (tmp_path / "c.hmm").write_bytes(b"PK\x03\x04 nothing")
    (tmp_path / "d.hmm").write_bytes(b"")
    for name, message in (
        ("b", "no probabilities"),
        ("c", "not a hidden"),
        ("d", "not a hidden"),
        ("e", "not a hidden"),
    ):
        with pytest.raises(UsageError, match=message):
            HMM.load(tmp_path / f"{name}.hmm", 4)


def test_nano_writes_the_format(nano: Path, tmp_path: Path) -> None:
    model = edgedec.open(nano, threads=1)
    file = tmp_path / "nano.hmm"
    prompts = ["Once upon a time", "The dog", "Lily said"]
    assert -9 < train_hmm(model, file, prompts, texts=12, tokens=24, states=6, rounds=4) < -3
    words = f"format:hmm='{file}',pattern='*The end.',within=24"
    for speculate in ("off", "copy+recycling"):
        found = "".join(model.session(speculate=speculate).generate("Once upon a time", max_tokens=40, fuse=words))
        assert found.endswith("The end.")
        assert len(model.tokenizer.encode(found)) <= 26
    for wrong, message in (
        (f"format:hmm='{file}',pattern='*'", "has no fixed text"),
        (f"format:hmm='{file}',pattern='The end.',within=1", "the fixed texts alone have"),
        ("format:hmm=/no/where,pattern=x", "not a hidden Markov model"),
        ("format:pattern=x", "needs hmm="),
    ):
        with pytest.raises(UsageError, match=message):
            make_fusion(model, wrong)
