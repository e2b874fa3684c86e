"""Sampling: arithmetic against Hugging Face's processors, borders, errors. Draws: tests/statistical."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.sampling import Probs, Sampling, adjust, draw, logprob, probs, residual, top_logprobs

INF = math.inf
CONTEXT = np.array([3, 9, 9, 1, 30, 9, 2, 2], np.int64)
N_PROMPT = 4


def _logits(*p: float) -> np.ndarray:
    """Logits whose softmax is p."""
    return np.log(np.array(p)).astype(np.float32)


def _table(given: Probs) -> dict[int, float]:
    return dict(zip(given.ids.tolist(), given.p.tolist()))


# --- Sampling ---


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -0.1, "[0, inf)"),
        ("temperature", INF, "[0, inf)"),
        ("temperature", math.nan, "[0, inf)"),
        ("temperature", "hot", "[0, inf)"),
        ("temperature", True, "[0, inf)"),
        ("top_k", -1, "whole numbers"),
        ("top_k", 2.5, "whole numbers"),
        ("top_p", 0.0, "(0, 1]"),
        ("top_p", 1.01, "(0, 1]"),
        ("min_p", -0.01, "[0, 1]"),
        ("min_p", 1.01, "[0, 1]"),
        ("typical_p", 0, "(0, 1]"),
        ("repetition_penalty", 0.0, "(0, inf)"),
        ("presence_penalty", 2.1, "[-2, 2]"),
        ("frequency_penalty", -2.1, "[-2, 2]"),
        ("seed", -1, "whole numbers"),
        ("logit_bias", {5: INF}, "[-inf, inf)"),
        ("logit_bias", {-5: 1.0}, "whole numbers"),
        ("logit_bias", ((5, 1.0), (5, 2.0)), "one bias"),
        ("logit_bias", 5, "mapping"),
    ],
)
def test_out_of_range_is_refused_in_one_line(name: str, value: object, allowed: str) -> None:
    with pytest.raises(UsageError) as e:
        Sampling(**{name: value})
    message = str(e.value)
    assert message.startswith(name)
    assert "out of range" in message
    assert allowed in message
    assert "\n" not in message


def test_the_ends_of_the_ranges_are_allowed() -> None:
    Sampling(
        temperature=0,
        top_k=0,
        top_p=1,
        min_p=1,
        typical_p=1,
        presence_penalty=-2,
        frequency_penalty=2,
        seed=0,
    )
    Sampling(temperature=np.float32(0.5), top_k=np.int64(3), logit_bias={7: -INF})


def test_equal_settings_are_equal_however_the_bias_is_written() -> None:
    a, b = Sampling(logit_bias={7: 1, 5: -100.0}), Sampling(logit_bias=((5, -100.0), (7, 1.0)))
    assert a == b
    assert hash(a) == hash(b)
    assert a.logit_bias == ((5, -100.0), (7, 1.0))


# --- probs ---


def test_the_worked_example() -> None:
    got = probs(_logits(0.1, 0.3, 0.2, 0.4), Sampling(temperature=1.0, top_k=3, top_p=0.7), [], 0)
    assert _table(got) == pytest.approx({1: 3 / 7, 3: 4 / 7})


def test_greedy_is_a_point_and_the_lowest_id_wins() -> None:
    logits = np.array([1, 5, 2, 5], np.float32)
    assert _table(probs(logits, Sampling(), [], 0)) == {1: 1.0}
    assert _table(probs(logits, Sampling(repetition_penalty=2.0), [1], 1)) == {3: 1.0}


FILTERS = {
    "temperature": Sampling(temperature=0.7),
    "hot": Sampling(temperature=3.0),
    "top_k": Sampling(temperature=1.0, top_k=5),
    "top_k beyond": Sampling(temperature=1.0, top_k=500),
    "top_p": Sampling(temperature=1.0, top_p=0.6),
    "small top_p": Sampling(temperature=1.0, top_p=1e-6),
    "min_p": Sampling(temperature=1.0, min_p=0.2),
    "typical": Sampling(temperature=1.0, typical_p=0.5),
    "small typical": Sampling(temperature=1.0, typical_p=0.01),
    "repetition": Sampling(temperature=1.0, repetition_penalty=1.3),
    "rewarding": Sampling(temperature=1.0, repetition_penalty=0.8),
    "all": Sampling(temperature=1.4, top_k=20, top_p=0.95, min_p=0.02, typical_p=0.9, repetition_penalty=1.2),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("masked", [False, True])
def test_the_same_as_hugging_face(name: str, masked: bool) -> None:
    """The same support and the same probabilities, with and without impossible tokens."""
    rng = np.random.default_rng(len(name))
    for spread in (0.3, 2.0, 6.0):
        logits = rng.normal(0, spread, 40).astype(np.float32)
        if masked:
            logits[rng.random(40) < 0.4] = -INF
        got, want = probs(logits, FILTERS[name], CONTEXT, N_PROMPT), _hugging_face(logits, FILTERS[name])
        assert got.ids.tolist() == np.flatnonzero(want).tolist()
        np.testing.assert_allclose(got.p, want[got.ids], rtol=1e-5)  # penalties are float32 arithmetic
        assert np.all(got.p > 0)
        assert got.p.sum() == pytest.approx(1.0, abs=1e-12)


def _hugging_face(logits: np.ndarray, s: Sampling) -> np.ndarray:
    """The distribution that `generate` would draw from, in float64. logits [vocab] -> p [vocab]."""
    torch = pytest.importorskip("torch")
    hf = pytest.importorskip("transformers.generation.logits_process")
    steps = []
    if s.repetition_penalty != 1:
        steps.append(hf.RepetitionPenaltyLogitsProcessor(s.repetition_penalty))
    steps.append(hf.TemperatureLogitsWarper(s.temperature))
    if s.top_k:
        steps.append(hf.TopKLogitsWarper(s.top_k))
    if s.top_p < 1:
        steps.append(hf.TopPLogitsWarper(s.top_p))
    if s.min_p:
        steps.append(hf.MinPLogitsWarper(s.min_p))
    if s.typical_p < 1:
        steps.append(hf.TypicalLogitsWarper(s.typical_p))
    scores = torch.from_numpy(logits.astype(np.float64))[None]
    ids = torch.from_numpy(CONTEXT)[None]
    for step in steps:
        scores = step(ids, scores)
    return scores.softmax(-1)[0].numpy()


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(
        st.one_of(st.just(-INF), st.sampled_from([0.0, 1.0, -1.0]), st.floats(-1e4, 1e4, width=32)),
        min_size=1,
        max_size=12,
    ),
    temperature=st.sampled_from([1e-300, 1e-3, 0.5, 1.0, 100.0]),
    top_k=st.integers(0, 14),
    top_p=st.floats(1e-12, 1.0),
    min_p=st.floats(0, 1),
    typical_p=st.floats(1e-12, 1.0),
)
def test_something_possible_always_survives(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, typical_p: float
) -> None:
    array = np.array(logits, np.float32)
    s = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p)
    if np.all(np.isneginf(array)):
        with pytest.raises(UsageError):
            probs(array, s, [], 0)
        return
    got = probs(array, s, [], 0)
    assert len(got.ids) >= 1
    assert np.all(np.diff(got.ids) > 0)
    assert np.all(np.isfinite(array[got.ids]))
    assert np.all(got.p > 0)
    assert got.p.sum() == pytest.approx(1.0, abs=1e-9)


def test_ties_at_a_border() -> None:
    """Top-k keeps them all, as Hugging Face does; top-p needs only some and takes the lowest ids."""
    flat = np.zeros(8, np.float32)
    assert len(probs(flat, Sampling(temperature=1.0, top_k=3), [], 0).ids) == 8
    assert probs(flat, Sampling(temperature=1.0, top_p=0.3), [], 0).ids.tolist() == [0, 1, 2]
    assert len(probs(flat, Sampling(temperature=1.0, min_p=1.0), [], 0).ids) == 8


@pytest.mark.parametrize("bad", [[-INF, -INF], [0.0, math.nan], [0.0, INF]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_without_a_distribution_are_refused(bad: list[float], temperature: float) -> None:
    with pytest.raises(UsageError, match=r"^logits: .*"):
        probs(np.array(bad, np.float32), Sampling(temperature=temperature), [], 0)
    with pytest.raises(UsageError, match=r"^logits: .*"):
        top_logprobs(np.array(bad, np.float32), 1)


# --- adjust ---


def test_adjust_returns_its_input_or_a_copy_never_a_changed_input() -> None:
    logits = np.arange(40, dtype=np.float32)
    logits.setflags(write=False)
    assert adjust(logits, Sampling(temperature=2.0, top_k=3), CONTEXT, N_PROMPT) is logits
    everything = Sampling(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={0: 1.0})
    assert adjust(logits, everything, CONTEXT, N_PROMPT).dtype == np.float32


def test_openai_penalties_count_output_only() -> None:
    s = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    got = adjust(np.zeros(40, np.float32), s, CONTEXT.tolist(), N_PROMPT)
    want = np.zeros(40)
    want[[30, 9]] = -0.75
    want[2] = -1.0
    np.testing.assert_array_equal(got, want)


def test_bias_comes_before_penalties_and_may_forbid() -> None:
    s = Sampling(repetition_penalty=2.0, logit_bias={3: 4.0, 5: -INF})
    got = adjust(np.zeros(40, np.float32), s, CONTEXT, N_PROMPT)
    assert got[3] == 2.0
    assert got[5] == -INF
    with pytest.raises(UsageError, match=r"^logit_bias: token 40 is outside the vocabulary of 40$"):
        adjust(np.zeros(40, np.float32), Sampling(logit_bias={40: 1.0}), [], 0)


def test_context_ids_beyond_the_logits_do_no_harm() -> None:
    s = Sampling(repetition_penalty=2.0, presence_penalty=1.0)
    np.testing.assert_array_equal(adjust(np.ones(3, np.float32), s, [0, 99, 2, 77], 2), [0.5, 1.0, -0.5])


# --- draw, residual, log-probabilities ---


class _Fixed:
    """A generator that returns one number, and counts."""

    def __init__(self, u: float) -> None:
        self.u, self.calls = u, 0

    def random(self) -> float:
        self.calls += 1
        return self.u


@pytest.mark.parametrize(("u", "token"), [(0.0, 2), (0.2499, 2), (0.25, 5), (0.7499, 5), (0.75, 9), (1 - 2**-53, 9)])
def test_draw_is_the_inverse_cdf(u: float, token: int) -> None:
    rng = _Fixed(u)
    assert draw(Probs(np.array([2, 5, 9]), np.array([0.25, 0.5, 0.25])), rng) == token
    assert rng.calls == 1
    assert draw(Probs(np.array([4]), np.array([1.0])), rng) == 4
    assert rng.calls == 2


def test_residual() -> None:
    p, q = Probs(np.arange(3), np.array([0.5, 0.3, 0.2])), Probs(np.arange(3), np.array([0.2, 0.6, 0.2]))
    assert _table(residual(p, q)) == {0: 1.0}
    assert _table(residual(q, p)) == pytest.approx({1: 1.0})
    assert residual(p, p) is p
    sparse = Probs(np.array([1, 7]), np.array([0.1, 0.9]))
    assert _table(residual(p, sparse)) == pytest.approx({0: 5 / 9, 1: 2 / 9, 2: 2 / 9})
    assert _table(residual(sparse, p)) == pytest.approx({7: 1.0})


def test_of() -> None:
    p = Probs(np.array([2, 5]), np.array([0.25, 0.75]))
    assert [p.of(t) for t in (0, 2, 3, 5, 6)] == [0.0, 0.25, 0.0, 0.75, 0.0]


def test_log_probabilities() -> None:
    logits = _logits(0.1, 0.4, 0.1, 0.3, 0.1)
    assert logprob(logits, 3) == pytest.approx(math.log(0.3))
    top = top_logprobs(logits, 4)
    assert [t for t, _ in top] == [1, 3, 0, 2]
    assert [x for _, x in top] == pytest.approx([math.log(p) for p in (0.4, 0.3, 0.1, 0.1)])
    assert len(top_logprobs(logits, 99)) == 5
    assert top_logprobs(logits, 0) == []
    assert logprob(np.array([1e4, 0], np.float32), 1) == -1e4
    with pytest.raises(UsageError):
        logprob(logits, 5)
