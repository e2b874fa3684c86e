"""Sampling in the loop from the k best: the same texts as from all logits, and which outputs that takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import decode

import edgedec
from edgedec.decoding.chain import make_chain
from edgedec.decoding.chooser import ALL, LARGEST, Chooser, Verified, best_needed, finite_token
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.logits import BaseProcessor
from edgedec.decoding.messages import Stats, Token
from edgedec.drafters import BaseDrafter, Draft, Drafter, Sampled
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.runtime import Call, CallResult, Capabilities, Outputs, Rows, forward_one
from edgedec.sampling import Probs, Sampling, adjust, distribution, draw_at, logprob, top_logprobs
from edgedec.testing.fakes import FakeRuntime, Limited, RandomDrafter, SetConstraint, tiny_spec

VOCAB, PROMPT = 97, [3, 1, 4, 1, 5]
SPEC = tiny_spec(vocab_size=VOCAB, context_length=128)
SAMPLINGS = {
    "top-k": Sampling(temperature=0.9, top_k=5),
    "top-p": Sampling(temperature=1.0, top_p=0.4),
    "colder": Sampling(temperature=0.7, top_p=0.5),
    "min-p": Sampling(temperature=1.0, min_p=0.3),
    "all cuts": Sampling(temperature=1.2, top_k=7, top_p=0.8, min_p=0.1, typical_p=0.9),
    "penalties": Sampling(temperature=0.8, min_p=0.3, presence_penalty=1.0, repetition_penalty=1.2),
    "raising": Sampling(temperature=0.8, min_p=0.3, repetition_penalty=0.9, frequency_penalty=-0.2),
    "bias": Sampling(temperature=0.8, min_p=0.2, logit_bias={5: 4.0, 9: -np.inf}),
    "greedy": Sampling(repetition_penalty=1.3),
}


@dataclass
class Run:
    tokens: list[Token]
    stats: Stats
    rng: dict[str, Any]


class Watched(FakeRuntime):
    """Counts the rows of logits that are returned."""

    returned = 0

    def forward(self, calls: Any) -> list[CallResult]:
        results = super().forward(calls)
        self.returned += sum(len(r.logits) for r in results if r.logits is not None)
        return results


def runtime(best_k: int, spread: float = 16.0, **more: Any) -> Watched:
    return Watched(SPEC, spread=spread, best_k=best_k, **more)


def run(on: FakeRuntime, drafter: Drafter | None = None, seed: int = 7, n: int = 30, **config: Any) -> Run:
    rng = np.random.default_rng(seed)
    context, stats = Context(list(PROMPT), len(PROMPT), on.new_cache(100), None, rng), Stats()
    options = {"max_tokens": n} | config
    tokens = list(decode(on, context, GenerationConfig(**options), Limited(drafter or Off(), 6), stats))
    return Run(tokens, stats, dict(rng.bit_generator.state))


class DrawnDrafter(BaseDrafter):
    """Chains drawn from one distribution, for a verifier."""

    def __init__(self, verifier: str) -> None:
        self._verifier, self._rng = verifier, np.random.default_rng(2)
        self._law = Probs(np.arange(VOCAB), np.full(VOCAB, 1 / VOCAB))

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        n = min(nodes, 4)
        tokens = tuple(self._rng.integers(0, VOCAB, n).tolist())
        return Draft(tokens, tuple(range(-1, n - 1)), sampled=Sampled(self._verifier, [self._law] * n))


@pytest.mark.parametrize("drafting", [False, True], ids=["plain", "drafting"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_same_tokens_for_every_seed(name: str, drafting: bool) -> None:
    enough = 0
    for seed in range(12):
        runs = []
        for best_k in (0, 40 if name in ("raising", "bias") else 12):
            drafter = RandomDrafter(seed, VOCAB) if drafting else None
            runs.append(run(runtime(best_k), drafter, seed, sampling=SAMPLINGS[name]))
        whole, best = runs
        assert best.tokens == whole.tokens
        assert best.rng == whole.rng
        assert whole.stats.sufficed == whole.stats.fallbacks == 0
        enough += best.stats.sufficed
    assert enough > 100


@pytest.mark.parametrize("verifier", ["token", "spectr", "recursive", "block", "multipath"])
def test_every_verifier_draws_the_same(verifier: str) -> None:
    config = {"sampling": Sampling(temperature=1.0, top_p=0.6), "n": 40}
    whole = run(runtime(0, 12.0), DrawnDrafter(verifier), **config)
    best = run(runtime(9, 12.0), DrawnDrafter(verifier), **config)
    assert best.tokens == whole.tokens
    assert best.rng == whole.rng
    assert best.stats.sufficed
    assert best.stats.fallbacks
    assert best.stats.proposed


def test_no_logits_are_returned_where_the_k_best_are_enough() -> None:
    on = runtime(40)
    best = run(on, sampling=SAMPLINGS["top-k"])
    assert (best.stats.sufficed, best.stats.fallbacks, on.returned) == (30, 0, 0)


def test_a_fallback_runs_the_head_alone_and_after_many_all_logits_are_taken() -> None:
    config = {"sampling": Sampling(temperature=1.0, top_p=0.9), "n": 60}
    on, whole = runtime(4, 3.0), runtime(0, 3.0)
    best = run(on, **config)
    assert best.tokens == run(whole, **config).tokens
    assert 2 <= best.stats.fallbacks < 12
    assert best.stats.fallbacks + best.stats.sufficed < 30
    assert on.calls == whole.calls + best.stats.fallbacks
    assert on.returned == 60 - best.stats.sufficed


@pytest.mark.parametrize("greedy", [False, True])
def test_a_constraint_and_min_tokens(greedy: bool) -> None:
    sampling = Sampling() if greedy else Sampling(temperature=1.0, top_k=4)
    for drafter in (None, RandomDrafter(3, VOCAB)):
        runs = []
        for best_k in (0, 40):
            constraint = SetConstraint(lambda last: {t for t in range(VOCAB) if (t + last) % 3 or t == 7}, VOCAB)
            config = {"sampling": sampling, "constraint": constraint, "min_tokens": 9, "stop_tokens": frozenset({7, 8})}
            runs.append(run(runtime(best_k), drafter and RandomDrafter(3, VOCAB), **config))
            assert constraint.accepted == [int(token) for token in runs[-1].tokens]
        whole, best = runs
        assert best.tokens == whole.tokens
        assert len(best.tokens) >= 9
        assert best.stats.sufficed > 5


def test_log_probabilities() -> None:
    for sampling in (Sampling(), SAMPLINGS["top-p"], SAMPLINGS["penalties"]):
        whole = run(runtime(0), sampling=sampling, logprobs=3)
        best = run(runtime(40), sampling=sampling, logprobs=3)
        assert best.tokens == whole.tokens
        assert best.stats.sufficed > 20
        for a, b in zip(best.tokens, whole.tokens, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-6)
            assert [t for t, _ in a.top] == [t for t, _ in b.top]
            assert [x for _, x in a.top] == pytest.approx([x for _, x in b.top], abs=1e-6)


def outputs(config: GenerationConfig, **capabilities: Any) -> Any:
    can = Capabilities((), (), **{"best_k": 64, "temperatures": True} | capabilities)
    context = Context(list(PROMPT), len(PROMPT), FakeRuntime(SPEC).new_cache(8))
    return Chooser(config, context, frozenset(), can).outputs


def test_what_is_asked_for() -> None:
    """The least that can decide a token."""
    sampled = GenerationConfig(Sampling(temperature=0.8, top_p=0.9))
    last = (SPEC.n_blocks - 1,)
    assert outputs(GenerationConfig()) == LARGEST
    assert outputs(sampled) == (False, 64, True, last, False, 0, 0.8, None, (), None, False)
    assert outputs(GenerationConfig(Sampling(temperature=0.8, top_k=10, top_p=0.9))) == (
        *(False, 64, False, last, False, 0, 1.0, None, (), None, False),
    )
    assert outputs(replace(sampled, sampling=Sampling(temperature=1.0, top_p=0.9)), temperatures=False).top == 64
    for config, more in (
        (sampled, {"best_k": 0}),
        (sampled, {"temperatures": False}),
        (sampled, {"logsum": False}),
        (sampled, {"slices": False}),
        (replace(sampled, logprobs=2), {}),
        (GenerationConfig(Sampling(temperature=0.8)), {}),
        (GenerationConfig(Sampling(temperature=0.8, typical_p=0.9)), {}),
        (GenerationConfig(Sampling(temperature=0.8, top_k=80)), {}),
        (GenerationConfig(logprobs=80), {}),
    ):
        assert outputs(config, **more) == ALL


def test_the_engine_gives_the_same_texts(nano: Path) -> None:
    model = edgedec.open(nano, engine="native", threads=1)
    can = model.runtime.capabilities
    ids = model.tokenizer.encode("Once upon a time")
    for sampling in (Sampling(temperature=0.8, top_p=0.95, seed=1), Sampling(temperature=1.0, min_p=0.05, seed=2)):
        texts, sufficed = [], []
        for best_k in (0, 128):
            model.runtime.capabilities = replace(can, best_k=best_k, draws=False)
            session = model.session(speculate="off")
            texts.append(list(session.tokens(ids, max_tokens=120, sampling=sampling)))
            sufficed.append(session.stats.sufficed)
        assert texts[0] == texts[1]
        assert sufficed[0] == 0
        assert sufficed[1] > 0.95 * len(texts[1])


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("temperature", [0.05, 0.8, 1.0, 3.0])
def test_the_log_sum_at_any_temperature(nano: Path, engine: str, temperature: float) -> None:
    runtime = edgedec.open(nano, engine=engine).runtime
    wanted = Outputs(logits=True, logsum=True, temperature=temperature)
    found = forward_one(runtime, Call(Rows.chain([5, 9, 70, 4], 0), runtime.new_cache(8), outputs=wanted))
    assert found.logits is not None
    heated = found.logits.astype(np.float64) / temperature
    top = heated.max(axis=1)
    expected = top + np.log(np.exp(heated - top[:, None]).sum(axis=1))
    # Within what `Best` allows for.
    np.testing.assert_allclose(found.logsum, expected, rtol=0, atol=2e-6)


def test_a_temperature_that_is_not_declared_is_refused() -> None:
    on = FakeRuntime(SPEC, temperatures=False)
    call = Call(Rows.chain([1], 0), on.new_cache(4), outputs=Outputs(logsum=True, temperature=0.5))
    with pytest.raises(UsageError, match="declares no temperatures"):
        on.forward([call])


# ── how many of the best, and when none ──


def needed(sampling: Sampling, vocab: int = 4000, best_k: int = 500, logprobs: int | None = None, **can: Any) -> int:
    config, context = GenerationConfig(sampling, logprobs=logprobs), Context([1], 1, FakeRuntime(SPEC).new_cache(8))
    capabilities = Capabilities((), (), best_k=best_k, **{"temperatures": True} | can)
    return best_needed(config, make_chain(config, context, frozenset()), capabilities, vocab)


def test_how_many_of_the_best_decide() -> None:
    nucleus, top_k = Sampling(temperature=0.8, top_p=0.9), Sampling(temperature=1.0, top_k=10)
    assert needed(nucleus) == 128
    assert needed(top_k) == needed(Sampling(temperature=1.0, min_p=0.1)) == 64
    assert needed(replace(top_k, top_k=100)) == 101 + 16
    assert needed(replace(top_k, top_k=100, top_p=0.5)) == 101 + 16, "of the k best, not of all"
    assert needed(replace(top_k, top_k=60, presence_penalty=1.0)) == 2 * (61 + 16)
    assert needed(replace(nucleus, presence_penalty=1.0)) == 2 * 128
    assert needed(Sampling(repetition_penalty=1.3, top_k=200)) == 2 * 64, "greedy needs one"
    assert needed(Sampling(), logprobs=90) == 90 + 16
    assert needed(Sampling(), logprobs=0) == 64
    # No more than there are, and none where those cannot decide.
    assert needed(top_k, best_k=20) == 20
    assert needed(top_k, best_k=11) == 11
    assert needed(top_k, best_k=10) == 0
    assert needed(Sampling(repetition_penalty=1.3), best_k=1) == 1
    assert needed(top_k, vocab=12) == 11
    assert needed(top_k, vocab=11) == 0
    assert needed(Sampling(temperature=1.0)) == 0


def test_where_the_log_sum_serves() -> None:
    nucleus = Sampling(temperature=0.8, top_p=0.9)
    for temperature, k in ((0.04, 0), (0.05, 128), (20.0, 128), (21.0, 0)):
        assert needed(replace(nucleus, temperature=temperature)) == k
    assert needed(nucleus, logprobs=1) == 0, "one log-sum is of one temperature"
    assert needed(replace(nucleus, temperature=1.0), logprobs=1) == 128
    assert needed(replace(nucleus, temperature=1.0), temperatures=False) == 128
    assert needed(Sampling(temperature=0.8, top_k=5), temperatures=False) == 64
    assert needed(Sampling(temperature=0.8, top_k=5), logsum=False) == 64
    assert needed(Sampling(), logprobs=1, logsum=False) == 0


def chooser(sampling: Sampling, ids: Any = PROMPT, **more: Any) -> Chooser:
    can = Capabilities(
        (), (), best_k=64, temperatures=True, **{k: more.pop(k) for k in ("sampler", "draws") if k in more}
    )
    rng = np.random.default_rng(7)
    context = Context(list(ids), len(PROMPT), FakeRuntime(SPEC).new_cache(8), rng=rng)
    return Chooser(GenerationConfig(sampling, **more), context, frozenset({3}), can)


def test_after_many_fallbacks_all_logits_are_taken_for_a_while() -> None:
    """A running mean of a tenth above a quarter; then half of that again."""
    found = chooser(SAMPLINGS["top-k"])
    best = found.outputs
    assert best.top == 64
    for fell_back in (True, False, False, True):
        found.note(fell_back)
        assert (found.outputs, found.may_fall_back) == (best, True)
    found.note(True)  # 0.256
    assert (found.fallbacks, found.sufficed) == (3, 2)
    for _ in range(32):
        assert (found.outputs, found.may_fall_back) == (ALL, False)
        found.note(False)
    assert (found.outputs, found.may_fall_back) == (best, True)
    assert (found.fallbacks, found.sufficed) == (3, 2), "nothing was decided by the best"
    found.note(True)  # 0.2125
    assert found.outputs == best
    found.note(True)  # 0.29
    assert found.outputs == ALL
    rare = chooser(SAMPLINGS["top-k"])
    for fell_back in (True, False, False, False, True, True):
        rare.note(fell_back)
    assert rare.outputs == best, "0.249: each call that the best decided takes from the mean"
    whole = chooser(Sampling(temperature=1.0))
    whole.note(False)
    assert (whole.outputs, whole.may_fall_back, whole.sufficed) == (ALL, False, 0)


# ── a runtime's sampler ──


class Sampler:
    """Says `says`, and keeps what it is given."""

    def __init__(self, sampling: Any, vocab: int) -> None:
        self.sampling, self.vocab, self.says = sampling, vocab, 5
        self.read_, self.accepted, self.drawn = list[Any](), list[int](), list[Any]()

    def read(self, ids: Any, n_prompt: int) -> None:
        self.read_.append((list(ids), n_prompt))

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def draw(self, logits: Any, path: Any, u: float) -> int:
        self.drawn.append((logits.tolist(), list(path), u))
        return self.says

    def row(self) -> Any:
        return LOGITS[1:2]


LOGITS = np.random.default_rng(4).normal(0, 3, (2, VOCAB)).astype(np.float32)
WARM = Sampling(temperature=0.8)
PENALTY = replace(WARM, presence_penalty=1.0, repetition_penalty=1.5, frequency_penalty=0.5, logit_bias={5: 4.0})


class Doubling(BaseProcessor):
    def process(self, logits: np.ndarray, path: Any, early: Any) -> np.ndarray:
        doubled: np.ndarray = logits * np.float32(2)
        return doubled


def sampler_of(found: Chooser) -> Sampler:
    assert isinstance(found._sampler, Sampler)
    return found._sampler


@pytest.mark.parametrize("sampling", [WARM, PENALTY], ids=["plain", "penalties"])
def test_a_sampler_draws_from_the_logits_as_they_are(sampling: Sampling) -> None:
    found = chooser(sampling, sampler=Sampler, draws=True, ids=[*PROMPT, 7])
    sampler = sampler_of(found)
    assert (sampler.sampling, sampler.vocab, found.outputs) == (sampling, VOCAB, ALL)
    assert found.draw(Verified(CallResult(logits=LOGITS), {}), 1, [8]) == 5
    assert sampler.read_ == [([*PROMPT, 7], len(PROMPT))]
    assert sampler.drawn == [(LOGITS[1].tolist(), [8], np.random.default_rng(7).random())]
    found.accept(9)
    assert sampler.accepted == [9]
    drawing = found.drawing()
    assert drawing is not None
    assert len(sampler.read_) == 2, "it has the text"
    settings = found.step_settings(frozenset({3}))
    assert settings is not None
    assert (settings.sampler, settings.ends) == (sampler, frozenset({3}))
    assert settings.rng is found._context.rng


def test_a_sampler_behind_a_processor_gets_what_the_chain_gives() -> None:
    found = chooser(PENALTY, sampler=Sampler, draws=True, processors=(Doubling(),))
    sampler = sampler_of(found)
    assert sampler.sampling == WARM, "the chain applies the penalties"
    found.draw(Verified(CallResult(logits=LOGITS), {}), 1, [8])
    expected = adjust(2 * LOGITS[1], PENALTY, [*PROMPT, 8], len(PROMPT))
    assert sampler.drawn[0][0] == expected.tolist()
    assert found.drawing() is None
    assert found.step_settings(frozenset()) is None


def test_what_a_sampler_does_not_serve() -> None:
    assert chooser(replace(WARM, typical_p=0.9), sampler=Sampler, draws=True)._sampler is None
    assert chooser(replace(WARM, logit_bias={VOCAB: 1.0}), sampler=Sampler, draws=True)._sampler is None
    assert chooser(replace(WARM, logit_bias={VOCAB - 1: 1.0}), sampler=Sampler, draws=True)._sampler is not None
    assert chooser(Sampling(), sampler=Sampler, draws=True)._sampler is None, "the largest is enough"
    for found in (
        chooser(WARM, sampler=Sampler, draws=False),
        chooser(WARM, sampler=Sampler, draws=True, logprobs=1),
        chooser(WARM),
    ):
        assert found.drawing() is None
        assert found.step_settings(frozenset()) is None
    other = chooser(WARM, sampler=Sampler, draws=True)
    other._context.rng = np.random.Generator(np.random.MT19937(1))
    assert other.drawing() is None
    assert other.step_settings(frozenset()) is None
    greedy = chooser(replace(PENALTY, temperature=0.0), sampler=Sampler, draws=True)
    drawing, settings = greedy.drawing(), greedy.step_settings(frozenset())
    assert drawing is not None
    assert drawing.number() == 0.0
    assert settings is not None
    assert settings.rng is None
    largest = chooser(Sampling(), sampler=Sampler).step_settings(frozenset())
    assert largest is not None
    assert (largest.sampler, largest.rng) == (None, None)


def test_what_a_sampler_leaves_open_python_draws() -> None:
    found, verified = chooser(WARM, sampler=Sampler, draws=True), Verified(CallResult(logits=LOGITS), {})
    u = np.random.default_rng(7).random()
    expected = draw_at(distribution(LOGITS[1], WARM), u)
    sampler_of(found).says = -1
    assert found.draw(verified, 1, []) == expected
    assert sampler_of(found).drawn
    sampler_of(found).says = 0
    assert found.draw(verified, 1, []) == 0
    drawing = chooser(WARM, sampler=Sampler, draws=True).drawing()
    assert drawing is not None
    assert found.drawn(CallResult(drawn=0), drawing) == 0
    assert found.drawn(CallResult(drawn=-1), drawing) == expected
    with pytest.raises(UsageError, match="the largest is not finite"):
        chooser(Sampling()).decide((), 0.0)
    # Rows that it cannot take.
    for odd in (LOGITS.astype(np.float64), np.asfortranarray(LOGITS), LOGITS[:, :-1].copy()):
        drawn = len(sampler_of(found).drawn)
        found.draw(Verified(CallResult(logits=odd), {}), 1, [])
        assert len(sampler_of(found).drawn) == drawn
    greedy = chooser(replace(WARM, temperature=0.0, logit_bias={1: 1.0}), sampler=Sampler)
    state = str(greedy._context.rng.bit_generator.state)
    greedy.draw(verified, 0, [])
    assert sampler_of(greedy).drawn[0][2] == 0.0
    assert str(greedy._context.rng.bit_generator.state) == state, "greedy needs no number"


def test_log_probabilities_of_a_row() -> None:
    found, token = chooser(WARM, logprobs=3), 7
    value, top = found.logprobs(CallResult(logits=LOGITS), 1, token)
    assert value == logprob(LOGITS[1], token)
    assert list(top) == top_logprobs(LOGITS[1], 3)
    ids = np.argsort(-LOGITS, axis=1)[:, :8].astype(np.int32)
    logsum = np.log(np.exp(LOGITS.astype(np.float64)).sum(axis=1))
    best = CallResult(ids=ids, scores=np.take_along_axis(LOGITS, ids, 1), logsum=logsum)
    value, top = found.logprobs(best, 1, int(ids[1, 4]))
    assert value == pytest.approx(logprob(LOGITS[1], int(ids[1, 4])))
    assert [t for t, _ in top] == ids[1, :3].tolist()
    assert chooser(WARM).logprobs(CallResult(logits=LOGITS), 1, token) == (None, ())
    assert finite_token(0) == 0
