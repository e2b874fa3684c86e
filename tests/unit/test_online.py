"""Online learning of a draft head: acceptance rises after a shift, what makes it worse is taken back, what was
learned is kept, and no text changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edgedec
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
    for name, array in [("a", np.zeros((2, 2))), ("bias", np.full(SLOTS, np.inf)), ("tokens", twice), ("gain", None)]:
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
