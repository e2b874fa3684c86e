"""Jacobi iterations with probabilistic acceptance keep the joint law, and wrong rules are caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from drafting import PROMPT as LONG
from drafting import run
from loops import decode

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats, StepResult
from edgedec.drafters import Draft
from edgedec.drafters.jacobi import Jacobi
from edgedec.drafters.off import Off
from edgedec.runtime import Rows, logits_of
from edgedec.sampling import Probs, Sampling, probs
from edgedec.testing.fakes import FakeRuntime, tiny_spec
from edgedec.testing.stats import chi_square

VOCAB, TOKENS, DRAWS = 4, 3, 1500
PROMPT = [2, 0, 1]
SPEC = tiny_spec(vocab_size=VOCAB, n_layers=1)
TEXTS = list(product(range(VOCAB), repeat=TOKENS))
SAMPLINGS = {
    "hot": Sampling(temperature=1.3),
    "cut": Sampling(temperature=0.8, top_p=0.9),
    "penalised": Sampling(temperature=1.0, presence_penalty=0.8),
}
Change = Callable[[Draft], Draft]


class Changed(Jacobi):
    """A drafter whose drafts are tampered with."""

    def __init__(self, change: Change) -> None:
        super().__init__(VOCAB, 4)
        self._change = change

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        draft = super().propose(context, nodes, min_path_prob)
        return self._change(draft) if draft.sampled is not None else draft


def expected(sampling: Sampling) -> list[float]:
    """The probability of every text of three tokens."""
    runtime, found = FakeRuntime(SPEC, spread=4.0), []
    for text in TEXTS:
        p = 1.0
        for i, token in enumerate(text):
            ids = [*PROMPT, *text[:i]]
            logits = logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(16))[-1]
            p *= probs(logits, sampling, ids, len(PROMPT)).of(token)
        found.append(p)
    return found


def fit(drafter: Jacobi, sampling: Sampling) -> tuple[float, float]:
    """(statistic, critical value) of texts drawn in one stream of random numbers."""
    runtime, rng = FakeRuntime(SPEC, spread=4.0), np.random.default_rng(5)
    counts, stats = Counter[tuple[int, ...]](), Stats()
    for _ in range(DRAWS):
        context = Context(list(PROMPT), len(PROMPT), runtime.new_cache(16), rng=rng)
        drafter.reset()
        tokens = decode(runtime, context, GenerationConfig(sampling, max_tokens=TOKENS + 5), drafter, stats=stats)
        counts[tuple(int(next(tokens)) for _ in range(TOKENS))] += 1
        tokens.close()
    assert stats.accepted > DRAWS / 4
    return chi_square([counts[text] for text in TEXTS], expected(sampling))


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize(("guesses", "fresh"), [(1, "random"), (4, "random"), (4, "left")])
def test_the_joint_distribution_is_kept(guesses: int, fresh: str, sampling: Sampling) -> None:
    statistic, critical = fit(Jacobi(VOCAB, guesses, fresh), sampling)
    assert statistic < critical


def sources(change: Callable[[int, Probs], Probs]) -> Change:
    """Drafts that claim other laws of their tokens."""

    def changed(draft: Draft) -> Draft:
        assert draft.sampled is not None
        laws = [change(token, q) for token, q in zip(draft.tokens, draft.sampled.probs, strict=True)]
        return replace(draft, sampled=replace(draft.sampled, probs=laws))

    return changed


def likeliest(draft: Draft) -> Draft:
    """Not drawn from the law, but its likeliest token."""
    assert draft.sampled is not None
    tokens = [int(q.ids[q.p.argmax()]) for q in draft.sampled.probs]
    return replace(draft, tokens=tokens)


MUTANTS: dict[str, Change] = {
    "is even": sources(lambda _, q: Probs(q.ids, np.full(len(q.ids), 1 / len(q.ids)))),
    "is square": sources(lambda _, q: Probs(q.ids, q.p**2 / (q.p**2).sum())),
    "the likeliest": likeliest,
}


@pytest.mark.parametrize("change", MUTANTS)
def test_unfair_drawings_are_caught(change: str) -> None:
    statistic, critical = fit(Changed(MUTANTS[change]), SAMPLINGS["hot"])
    assert statistic > critical


class Kept(Jacobi):
    """Keeps the guesses after the one that did not stand, and says that they were drawn from the newest laws."""

    def __init__(self) -> None:
        super().__init__(VOCAB, 4)
        self.tokens: list[int] = []

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        draft = super().propose(context, nodes, min_path_prob)
        kept = [*self.tokens[: len(draft.tokens)], *draft.tokens[len(self.tokens) :]]
        self.tokens = kept
        return replace(draft, tokens=kept)

    def observe(self, step: StepResult) -> None:
        super().observe(step)
        self.tokens = self.tokens[len(step.path) :]

    def reset(self) -> None:
        super().reset()
        self.tokens = []


def test_old_guesses_under_new_laws_are_caught() -> None:
    statistic, critical = fit(Kept(), SAMPLINGS["hot"])
    assert statistic > critical


def test_each_guess_is_drawn_from_what_the_call_before_said_there() -> None:
    """The place after the first guess that did not stand has the law of that guess's row."""
    runtime, drafter, sampling = FakeRuntime(spread=9.0), Jacobi(13, 5), Sampling(temperature=0.8, top_k=7)
    _, context, stats, trace = run(runtime, drafter, LONG, max_tokens=120, sampling=sampling)
    assert stats.accepted > 5
    ends, compared, fresh = len(LONG), 0, 0
    for before, after in pairwise(trace):
        ends += len(before.step.picked)
        logits, taken = before.step.result.logits, len(before.step.path) - 1
        assert logits is not None
        assert after.draft.sampled is not None or not after.draft.tokens
        for i, q in enumerate(after.draft.sampled.probs if after.draft.sampled else ()):
            if taken + 1 + i >= len(logits):
                assert q.ids.tolist() == [after.draft.tokens[i]]
                fresh += 1
                continue
            ids = [*context.ids[:ends], *after.draft.tokens[:i]]
            law = probs(logits[taken + 1 + i], sampling, ids, len(LONG))
            assert law.ids.tolist() == q.ids.tolist()
            np.testing.assert_allclose(law.p, q.p)
            compared += 1
    assert compared > 50
    assert fresh > 10


def naive(n: int, guesses: int) -> tuple[list[int], int]:
    """Jacobi decoding as it is defined: likeliest tokens, all places at once, until a prefix is fixed."""
    runtime, text, window, calls = FakeRuntime(spread=9.0), list(LONG), [LONG[-1]] * guesses, 0
    while len(text) < len(LONG) + n:
        window = window[: max(len(LONG) + n - len(text) - 1, 0)]
        ids = [*text, *window]
        said = logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(256)).argmax(1)[len(text) - 1 :].tolist()
        taken = next((i for i, guess in enumerate(window) if guess != said[i]), len(window))
        text, calls = [*text, *said[: taken + 1]], calls + 1
        window = said[taken + 1 :]
        window += [window[-1] if window else text[-1]] * (guesses - len(window))
    return text[len(LONG) :], calls


@pytest.mark.parametrize("guesses", [1, 3, 8])
def test_greedily_it_is_jacobi_decoding(guesses: int) -> None:
    tokens, _, stats, _ = run(FakeRuntime(spread=9.0), Jacobi(13, guesses), LONG, max_tokens=100)
    assert (tokens, stats.calls) == naive(100, guesses)
    assert tokens == run(FakeRuntime(spread=9.0), Off(), LONG, max_tokens=100)[0]
    assert stats.accepted > 0


def test_a_stopped_text_begins_with_fresh_guesses() -> None:
    """The laws are of the places after the text: of another length they are not used."""
    drafter, runtime, warm = Jacobi(13, 4), FakeRuntime(), Sampling(temperature=1.0)
    rng = np.random.default_rng(5)
    context = Context(list(LONG), len(LONG), runtime.new_cache(64), rng=rng, sampling=warm)
    running = decode(runtime, context, GenerationConfig(warm, max_tokens=40), drafter)
    while not drafter._laws:
        next(running)
    running.close()
    assert drafter._laws
    own = drafter.propose(context, 4, 0.0).sampled
    assert own is None or len(own.probs) == 4
    drafter._length, context.ids = len(context.ids), context.ids[:-1]
    draft = drafter.propose(context, 4, 0.0)
    assert draft.sampled is not None
    assert all(len(q.ids) == 1 for q in draft.sampled.probs)
