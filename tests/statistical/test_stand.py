"""Drafts that STAND draws by Gumbel-top-k keep the distribution of the text, and more of them stand than of the
likeliest ones.

Every text of three tokens has a probability, worked out one prefix at a time; `MUTANTS` are drawings that are not
fair, and must fail the very same test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from loops import decode

from edgedec.cache.rows import Rows
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats, StepResult
from edgedec.drafters import Draft, Sampled
from edgedec.drafters.stand import Stand
from edgedec.runtime import logits_of
from edgedec.sampling import Probs, Sampling, probs
from edgedec.testing.fakes import FakeRuntime, tiny_spec
from edgedec.testing.stats import chi_square
from edgedec.trees.choices import Ranks, accepted_ranks, best_choices

VOCAB, TOKENS, DRAWS = 4, 3, 1200
PROMPT = [2, 0, 1]
SPEC = tiny_spec(vocab_size=VOCAB, n_layers=1)
TEXTS = list(product(range(VOCAB), repeat=TOKENS))
SAMPLINGS = {"hot": Sampling(temperature=1.3), "cut": Sampling(temperature=0.8, top_p=0.9)}
Change = Callable[[Draft], Draft]


class Changed(Stand):
    """STAND whose drawn drafts are tampered with."""

    def __init__(self, change: Change) -> None:
        super().__init__(VOCAB, nodes=6, k=3, verify="recursive")
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


def fit(drafter: Stand, sampling: Sampling, draws: int = DRAWS) -> tuple[float, float]:
    """(statistic, critical value) of texts drawn in one stream of random numbers, while the tables are learning."""
    runtime, rng, counts, stats = (
        FakeRuntime(SPEC, spread=4.0),
        np.random.default_rng(5),
        Counter[tuple[int, ...]](),
        Stats(),
    )
    for _ in range(draws):
        context = Context(list(PROMPT), len(PROMPT), runtime.new_cache(16), rng=rng)
        drafter.reset()
        # More than is looked at, so that drafts are not cut short where the text ends.
        tokens = decode(runtime, context, GenerationConfig(sampling, max_tokens=TOKENS + 4), drafter, stats=stats)
        counts[tuple(int(next(tokens)) for _ in range(TOKENS))] += 1
        tokens.close()
    assert stats.accepted > draws / 4
    return chi_square([counts[text] for text in TEXTS], expected(sampling))


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("nodes", [2, 6])
def test_the_joint_distribution_is_kept(nodes: int, sampling: Sampling) -> None:
    # Three of four tokens are in the tables, so that the drafts' distribution is not the target's.
    statistic, critical = fit(Stand(VOCAB, nodes=nodes, k=3, verify="recursive"), sampling)
    assert statistic < critical


def test_a_fixed_tree_keeps_the_joint_distribution() -> None:
    choices: list[Ranks] = [(0,), (0, 0), (1,), (0, 0, 0), (0, 1), (1, 0)]
    drafter = Stand(VOCAB, nodes=len(choices), k=3, verify="recursive", choices=choices)
    statistic, critical = fit(drafter, SAMPLINGS["hot"], 700)
    assert statistic < critical


def without(draft: Draft, gone: Callable[[int], bool]) -> Draft:
    """A draft without some of its tokens and all after them."""
    kept: dict[int, int] = {-1: -1}
    for i, parent in enumerate(draft.parents):
        if parent in kept and not gone(i):
            kept[i] = len(kept) - 1
    rows = list(kept)[1:]
    assert draft.sampled is not None
    return replace(
        draft,
        tokens=[draft.tokens[i] for i in rows],
        parents=[kept[draft.parents[i]] for i in rows],
        p=[draft.p[i] for i in rows],
        sampled=Sampled("recursive", [draft.sampled.probs[i] for i in rows]),
    )


def flat(draft: Draft) -> Draft:
    assert draft.sampled is not None
    even = [Probs(q.ids, np.full(len(q.ids), 1 / len(q.ids))) for q in draft.sampled.probs]
    return replace(draft, sampled=Sampled("recursive", even))


MUTANTS: dict[str, Change] = {
    "keeps what it likes": lambda draft: without(draft, lambda i: draft.tokens[i] < 2),
    "says another q": flat,
}


@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS.keys())
def test_unfair_drawings_are_caught(change: Change) -> None:
    statistic, critical = fit(Changed(change), SAMPLINGS["hot"])
    assert statistic > critical


class Flat(FakeRuntime):
    """A first-order source whose every token has several likely followers."""

    laws = np.random.default_rng(4).normal(size=(13, 13)).astype(np.float32) * 1.5

    def head(self, hidden):  # type: ignore[no-untyped-def]
        return self.laws[hidden[:, 0].astype(int)]


class Unsteady(Flat):
    """A source whose laws also depend on all that came before: its tables know the mean only."""

    def head(self, hidden):  # type: ignore[no-untyped-def]
        return super().head(hidden) * 1.5 + FakeRuntime.head(self, hidden)  # type: ignore[no-untyped-call]


def unsteady() -> FakeRuntime:
    return Unsteady(spread=4.0)


def tokens_per_call(
    verify: str, nodes: int, choices: Sequence[Ranks] = (), source: Callable[[], FakeRuntime] = Flat, texts: int = 5
) -> float:
    runtime, drafter, stats = source(), Stand(13, nodes, 13, verify, choices=choices), Stats()
    for seed in range(texts):
        if seed == 2:
            stats = Stats()  # the first two texts fill the tables
        context = Context([seed], 1, runtime.new_cache(512), rng=np.random.default_rng(seed))
        drafter.reset()
        list(
            decode(runtime, context, GenerationConfig(Sampling(temperature=1.0), max_tokens=250), drafter, stats=stats)
        )
    return stats.generated / stats.calls


@pytest.mark.parametrize("nodes", [2, 6])
def test_drawn_drafts_stand_more_often(nodes: int) -> None:
    assert tokens_per_call("recursive", nodes) > 1.1 * tokens_per_call("match", nodes)


class Counted(Stand):
    """STAND that counts the accepted paths of ranks, as of its drawn tree."""

    found: Counter[Ranks]

    def observe(self, step: StepResult) -> None:
        first = step.root + 1
        parents = [int(parent) - first for parent in step.rows.parents[first:]]
        self.found.update(accepted_ranks(parents, [row - 1 for row in step.path[1:]]))
        super().observe(step)


def test_a_tree_learned_from_data_beats_one_that_was_not() -> None:
    """Learned as in the paper: a large tree on sample texts, of which the paths accepted most often are kept."""
    trial = [path for depth in range(1, 5) for path in product(range(2), repeat=depth)]
    drafter, runtime = Counted(13, len(trial), 13, "recursive", choices=trial), unsteady()
    drafter.found = Counter()
    for seed in range(2):
        context = Context([seed], 1, runtime.new_cache(512), rng=np.random.default_rng(seed))
        drafter.reset()
        list(decode(runtime, context, GenerationConfig(Sampling(temperature=1.0), max_tokens=100), drafter))
    learned = best_choices(drafter.found, 6)
    assert all(path[:-1] in ((), *learned) for path in learned)
    wide = [(rank,) for rank in range(6)]
    found = [tokens_per_call("recursive", 6, choices, unsteady, texts=3) for choices in (learned, wide)]
    assert found[0] > 1.3 * found[1]


def test_a_seed_means_one_text() -> None:
    found = []
    for _ in range(2):
        runtime, drafter = FakeRuntime(), Stand(13, verify="recursive")
        context = Context([3, 1], 2, runtime.new_cache(64), rng=np.random.default_rng(8))
        found.append(
            list(decode(runtime, context, GenerationConfig(Sampling(temperature=1.0), max_tokens=40), drafter))
        )
    assert found[0] == found[1]


def test_every_child_says_what_its_parent_was_drawn_from() -> None:
    runtime, drafter = Flat(), Stand(13, nodes=12, verify="recursive")
    context = Context([3, 1], 2, runtime.new_cache(512), rng=np.random.default_rng(8))
    list(decode(runtime, context, GenerationConfig(Sampling(temperature=1.0), max_tokens=100), drafter))
    draft = drafter.propose(context, 12, 0.0)
    assert draft.sampled is not None
    assert draft.sampled.verifier == "recursive"
    assert len(draft.sampled.probs) == len(draft.tokens) > 4
    shared: dict[int, Probs] = {}
    for token, parent, q in zip(draft.tokens, draft.parents, draft.sampled.probs, strict=True):
        assert shared.setdefault(parent, q) is q
        assert q.of(token) > 0
        assert q.p.sum() == pytest.approx(1)
        assert np.all(np.diff(q.ids) > 0)


def test_the_shape_does_not_depend_on_the_luck_of_a_level() -> None:
    """Claims of a node's children are the same whatever is drawn there."""
    runtime, drafter = Flat(), Stand(13, nodes=3, verify="recursive")
    context = Context([3, 1], 2, runtime.new_cache(512), rng=np.random.default_rng(8))
    list(decode(runtime, context, GenerationConfig(Sampling(temperature=1.0), max_tokens=60), drafter))
    drafts = [drafter.propose(context, 1, 0.0) for _ in range(40)]
    assert len({tuple(draft.p) for draft in drafts}) == 1
    assert len({tuple(draft.tokens) for draft in drafts}) > 2
