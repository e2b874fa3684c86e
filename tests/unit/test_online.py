"""Online learning of a draft head: acceptance rises after a shift, what makes it worse is taken back, what was
learned is kept, and no text changes."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.drafters._heads import online as module
from edgedec.drafters._heads.online import SLOTS, OnlineCorrection
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader
from edgedec.sampling import Sampling

needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")
HIDDEN = 32


class Source:
    """States and the tokens that follow them, by a law that the head does not know."""

    def __init__(self, seed: int = 0, vocab: int = 50) -> None:
        self.rng = np.random.default_rng(seed)
        self.law = self.rng.standard_normal((vocab, HIDDEN)).astype(np.float32)

    def teach(self, online: OnlineCorrection, n: int) -> int:
        """n examples, one a proposal; how often the first guess was right."""
        hits = 0
        for _ in range(n):
            state = self.rng.standard_normal((1, HIDDEN)).astype(np.float32)
            token = int(np.argmax(self.law @ state[0]))
            online.begin()
            ids, _ = online.read([()], state, np.arange(100, 108)[None], np.full((1, 8), -2.5, np.float32))
            hits += int(ids[0, 0]) == token
            online.learn([token])
        return hits


def test_it_learns_to_say_tokens_that_the_head_never_said() -> None:
    online, source = OnlineCorrection(HIDDEN), Source()
    first = source.teach(online, 300)
    source.teach(online, 1200)
    assert online.used
    assert source.teach(online, 300) > first + 40
    assert online.report()["examples"] == 1800


def test_the_guesses_of_a_path_are_learned_from_as_far_as_it_came_true() -> None:
    online = OnlineCorrection(HIDDEN)
    states = np.eye(3, HIDDEN, dtype=np.float32)
    online.begin()
    online.read([()], states[:1], np.array([[5, 6]]), np.log(np.array([[0.5, 0.3]], np.float32)))
    online.read([(5,), (6,)], states[1:], np.array([[7, 8], [9, 8]]), np.log(np.array([[0.5, 0.3]] * 2, np.float32)))
    online.learn([6, 9, 3])
    assert [(token, seen.ids.tolist()) for seen, token in online._kept] == [(6, [5, 6]), (9, [9, 8])]
    online.learn([6, 9])
    assert online.examples == 2  # the proposal is over


def test_what_makes_it_worse_is_rolled_back() -> None:
    """A law is learned, then the tokens become noise: the correction goes back, and in the end the head is alone."""
    online, source = OnlineCorrection(HIDDEN), Source()
    source.teach(online, 1000)
    assert online.gain > 0.1
    source.law = source.rng.standard_normal(source.law.shape).astype(np.float32)
    source.teach(online, 60)
    worse = online.rollbacks
    for _ in range(4):
        source.law = source.rng.standard_normal(source.law.shape).astype(np.float32)
        source.teach(online, 120)
    assert online.rollbacks > worse
    online.gain = -1.0
    online._add(next(iter(online._kept))[0], 1)
    assert not online.used
    ids, logprobs = np.arange(8)[None], np.full((1, 8), -2.0, np.float32)
    found = online.read([()], np.ones((1, HIDDEN), np.float32), ids, logprobs)
    assert found[0] is ids
    assert found[1] is logprobs


Example = tuple[Any, list[int], list[float]]  # a state of root mean square 1, the named tokens, their probabilities


class Naive:
    """p'(v) ~ p(v) exp(z_v), z = B A x + b of the tokens seen; what the named tokens leave, at least 0.02, is divided
    among the other seen tokens by their counts."""

    def __init__(self, online: OnlineCorrection) -> None:
        self.w = {name: np.array(w, np.float64) for name, w in online._weights.items()}
        self.counts = dict.fromkeys(online._slots, 0.0)

    def base(self, example: Example) -> dict[int, float]:
        _, ids, p = example
        others = {token: count for token, count in self.counts.items() if token not in ids}
        rest, total = max(1 - sum(p), 0.02), max(sum(others.values()), 1)
        return {token: rest * count / total for token, count in others.items()} | dict(zip(ids, p, strict=True))

    def law(self, example: Example) -> dict[int, float]:
        inner, found = self.w["a"] @ example[0], self.base(example)
        for slot, token in enumerate(self.counts):
            found[token] *= np.exp(np.clip(self.w["b"][slot] @ inner + self.w["bias"][slot], -8, 8))
        total = sum(found.values())
        return {token: p / total for token, p in found.items()}

    def loss(self, batch: list[tuple[Example, int]]) -> float:
        return -float(sum(np.log(self.law(example)[token]) for example, token in batch))

    def slope(self, name: str, at: tuple[int, ...], batch: list[tuple[Example, int]]) -> float:
        found, before = [], self.w[name][at]
        for moved in (1e-5, -1e-5):
            self.w[name][at] = before + moved
            found.append(self.loss(batch))
        self.w[name][at] = before
        return (found[0] - found[1]) / 2e-5


def test_guesses_gain_and_steps_are_those_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses by p'; the gain a mean of the improvement, clipped, of each token before it is counted; steps of AdaGrad
    (0.02, squares from 0.01 on) down the slope of -log p', found by differences, on 12 of the latest 40 examples."""
    monkeypatch.setattr(module, "_KEPT", 40)
    rng, hidden = np.random.default_rng(5), 6
    online = OnlineCorrection(hidden)
    naive, latest, gain = Naive(online), dict[int, tuple[Example, int]](), 0.0
    squares = {name: np.full_like(w, 0.01) for name, w in naive.w.items()}
    for i in range(60):
        state, ids = rng.standard_normal((1, hidden)).astype(np.float32) * 3, rng.choice(36, (1, 4), replace=False)
        logprobs = np.log(rng.dirichlet([1] * 5)[None, :4] + 1e-3).astype(np.float32)
        x = state[0] / (np.sqrt(np.mean(np.float64(state) ** 2)) + 1e-6)
        example: Example = x, ids[0].tolist(), np.exp(np.float64(logprobs[0])).tolist()
        online.begin()
        online.gain = 1.0  # so that guesses are corrected, whatever they are worth
        found = online.read([()], state, ids, logprobs)
        law = naive.law(example)
        best = sorted(law, key=law.__getitem__, reverse=True)[:4]
        assert sorted(found[0][0].tolist()) == sorted(best), i
        assert np.exp(found[1][0]) == pytest.approx([law[token] for token in best], rel=1e-3, abs=1e-6)
        assert [law[token] for token in found[0][0].tolist()] == pytest.approx([law[t] for t in best], rel=1e-4)
        online.gain = gain
        token = int((x[0] > 0) + 2 * (x[1] > 0) + 4 * rng.integers(0, 9))
        change = np.log(law.get(token, 0) + 1e-5) - np.log(naive.base(example).get(token, 0) + 1e-5)
        gain += (np.clip(change, -4, 4) - gain) * 0.01
        naive.counts[token] = naive.counts.get(token, 0) + 1
        latest[i % 40] = example, token
        draws, before = deepcopy(online._rng), deepcopy(online._weights)
        online.learn([token])
        assert online.gain == pytest.approx(gain, abs=1e-4), i
        if i < 11:
            assert all((before[name] == w).all() for name, w in online._weights.items())
            continue
        batch = [latest[j] for j in draws.integers(0, len(latest), 12).tolist()]
        slots = len(naive.counts)
        for name, most in (("a", (16, hidden)), ("b", (slots, 16)), ("bias", (slots,))):
            for at in {tuple(int(rng.integers(n)) for n in most) for _ in range(3)}:
                slope = naive.slope(name, at, batch)
                seen = squares[name][at] + slope**2
                moved = online._weights[name][at] - before[name][at]
                assert moved == pytest.approx(-0.02 * slope / seen**0.5, abs=2e-4), (i, name, at)
        squares = {name: np.array(w, np.float64) for name, w in online._squares.items()}
        naive.w = {name: np.array(w, np.float64) for name, w in online._weights.items()}
    assert online.rollbacks == 0
    assert len(naive.counts) > 20
    assert [token for _, token in online._kept] == [latest[j][1] for j in range(40)]


def test_a_copy_that_was_better_is_taken_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of the 128th example; a token whose slot went to another one meanwhile has left nothing in it."""
    monkeypatch.setattr(module, "SLOTS", 6)
    online, rng = OnlineCorrection(4), np.random.default_rng(1)
    ids, logprobs = np.arange(6)[None], np.full((1, 6), -2.0, np.float32)

    def example(token: int) -> None:
        online.begin()
        online.read([()], rng.standard_normal((1, 4)).astype(np.float32), ids, logprobs)
        online.learn([token])

    for i in range(128):
        online.gain = 0.5
        example(i % 6 if i else 3)
    assert online._good is not None
    kept, rarest = deepcopy(online._good), int(np.argmin(online._counts))
    assert np.abs(kept["b"]).sum(axis=1).min() > 0
    online.gain = 0.5
    example(77)
    assert online._tokens[rarest] == 77
    online.gain = -0.2
    example(3)
    assert (online.rollbacks, online.gain) == (1, 0.0)
    kept["b"][rarest], kept["bias"][rarest] = 0, 0
    for name in ("a", "b", "bias"):  # and one step from there
        assert np.abs(online._weights[name] - kept[name]).max() < 0.021
    assert np.abs(online._weights["a"] - online._first).max() > 0.03
    online.gain = -0.2
    example(3)
    assert online.rollbacks == 2
    assert np.abs(online._weights["a"] - online._first).max() < 0.021
    online.gain = -0.04
    example(3)
    assert online.rollbacks == 2


def test_slots_are_bounded_and_the_rarest_goes() -> None:
    online = OnlineCorrection(HIDDEN)
    for token in range(SLOTS + 50):
        online._note(token)
        online._note(7)
    assert len(online._slots) == SLOTS
    assert 7 in online._slots
    assert sorted(online._slots.values()) == list(range(SLOTS))
    assert all(online._tokens[slot] == token for token, slot in online._slots.items())


def test_what_it_learned_is_kept_and_that_of_another_head_refused() -> None:
    online, source = OnlineCorrection(HIDDEN), Source()
    source.teach(online, 700)
    twin = OnlineCorrection(HIDDEN)
    twin.restore(online.state())
    state, ids, logprobs = np.ones((1, HIDDEN), np.float32), np.arange(8)[None], np.full((1, 8), -2.5, np.float32)
    assert twin.used
    for one, other in zip(online.read([()], state, ids, logprobs), twin.read([()], state, ids, logprobs), strict=True):
        np.testing.assert_array_equal(one, other)
    whole = online.state()
    twice = whole["online.tokens"].copy()
    twice[1] = twice[0]
    one = np.where(np.arange(SLOTS) == 5, np.inf, 0.0)
    for name, array in [("a", np.zeros((2, 2))), ("bias", one), ("tokens", twice), ("gain", None)]:
        broken = {key: value for key, value in whole.items() if key != f"online.{name}"}
        with pytest.raises(UsageError, match=f"online.{name}"):
            OnlineCorrection(HIDDEN).restore(broken if array is None else {**broken, f"online.{name}": array})


STARTS, WHO = (
    ("Once upon a time", "One day,", "A long time ago", "In a big house"),
    ("a dog", "a cat", "a bird", "a bear"),
)
SUBJECTS = [f"{a} {b} {c}" for a in STARTS for b in WHO for c in ("found a", "went to", "saw")]
UNWANTED = (" Lily", " Tom", " girl", " boy", " she", " he", " She", " He", " was", " very", " happy", " play", " the")


@needs_native
def test_acceptance_rises_after_a_shift(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head was trained for the model's own texts; a bias against common words makes them others. The texts are
    those of plain decoding, and a later session begins with what was learned."""
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    model = edgedec.open("nano", engine="native", threads=1)
    bias = tuple((model.tokenizer.encode(word, special=False)[-1], -6.0) for word in UNWANTED)

    def tokens_a_call(spec: str, learn: bool = False) -> tuple[list[float], list[list[int]], edgedec.Session]:
        live, found, texts = model.session(speculate=spec, learn=learn), [], []
        for part in (SUBJECTS[:16], SUBJECTS[16:32], SUBJECTS[32:]):
            calls = 0
            for prompt in part:
                ids = model.tokenizer.encode(prompt)
                texts.append(list(live.tokens(ids, max_tokens=60, ignore_eos=True, sampling=Sampling(logit_bias=bias))))
                calls += live.stats.calls
            found.append(16 * 60 / calls)
        return found, texts, live

    plain = tokens_a_call("off")[1]
    still, texts, _ = tokens_a_call("hydra:fixed=7")
    learning, own, live = tokens_a_call("hydra:fixed=7,online=1")
    assert texts == own == plain
    report = live.report()["drafters"]["hydra"]
    assert report["examples"] > 500
    assert report["gain"] > 0.05
    assert learning[2] > 1.05 * still[2]
    live.save_drafters()
    later = tokens_a_call("hydra:fixed=7,online=1", learn=True)[0]
    assert later[0] > max(1.05 * still[0], learning[0])
