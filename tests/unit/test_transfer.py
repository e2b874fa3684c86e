"""RAPID's transfer mode: the text follows the bent law, whatever is drafted; it is lossy and says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edgedec
from edgedec import Sampling, UsageError
from edgedec.drafters._models.transfer import Shift, shares
from edgedec.drafters.rapid import retrieved
from edgedec.kernels.cpu import loader
from edgedec.runtime import Rows, Runtime, logits_of
from edgedec.testing.stats import chi_square

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")

LEAST, BUDGET, CHUNK, REFRESH, ETA = 60, 128, 24, 17, 6.0
HOW = f"rapid:least={LEAST},budget={BUDGET},chunk={CHUNK},refresh={REFRESH},transfer={ETA:g}"
TEXT = "Once upon a time there was a girl. " + "Lily saw a big red ball in the park. She ran and kicked it. " * 12


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


@pytest.fixture(scope="module")
def prompt(model: edgedec.Model) -> list[int]:
    return model.tokenizer.encode(TEXT)[:180]


def after(runtime: Runtime, ids: list[int]) -> np.ndarray:
    """The logits after a text, read at once."""
    cache, found = runtime.new_cache(len(ids)), None
    for at in range(0, len(ids), 64):
        rows = Rows.chain(ids[at : at + 64], at)
        found = logits_of(runtime, rows, cache, len(rows) - 1)[-1]
        cache.commit(range(len(rows)))
    assert found is not None
    return found.astype(np.float64)


def bent(runtime: Runtime, ids: list[int], n_prompt: int, temperature: float = 1.0) -> np.ndarray:
    """The law of the next token's logits, from the definition: no draft, no cache that is kept."""
    place = n_prompt + (len(ids) - n_prompt) // REFRESH * REFRESH
    tail, many = place - 2 * CHUNK, (BUDGET - 32) // CHUNK - 2
    passages = retrieved(ids[:tail], ids[place - CHUNK : place], CHUNK, many, 32)
    short = [*ids[:32], *(token for at in passages for token in ids[at : at + CHUNK]), *ids[tail:]]
    z, other = after(runtime, ids) / temperature, after(runtime, short) / temperature
    p, q = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (z, other))
    return z * temperature + ETA * temperature * (q - p)


def test_shares_by_hand() -> None:
    logits = np.log(np.array([1, 3], np.float32))
    assert shares(logits, 1).tolist() == pytest.approx([1 / 4, 3 / 4])
    assert shares(logits, 0.5).tolist() == pytest.approx([1 / 10, 9 / 10])
    assert shares(np.array([0, 90], np.float32), 0.01).tolist() == pytest.approx([0, 1]), "nothing overflows"


def test_a_greedy_text_follows_the_bent_law(model: edgedec.Model, prompt: list[int]) -> None:
    session = model.session(speculate=HOW)
    found = [int(t) for t in session.tokens(prompt, max_tokens=40, ignore_eos=True)]
    assert session.stats.accepted > 10
    text = list(prompt)
    for token in found:
        logits = bent(model.runtime, text, len(prompt))
        assert logits[token] > logits.max() - 1e-3
        text.append(token)
    plain = model.session(speculate="off")
    assert found != [int(t) for t in plain.tokens(prompt, max_tokens=40, ignore_eos=True)], "nothing was bent"
    assert "lossy" in session.report()


@pytest.mark.parametrize("seed", range(3))
def test_how_much_is_drafted_changes_nothing(model: edgedec.Model, prompt: list[int], seed: int) -> None:
    texts = []
    for gamma in (1, 3, 8):
        session = model.session(speculate=f"{HOW},gamma={gamma}")
        how = Sampling(temperature=0.8, top_p=0.9, seed=seed)
        texts.append([int(t) for t in session.tokens(prompt, max_tokens=40, sampling=how, ignore_eos=True)])
        assert session.stats.accepted > 5
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("verify", ["match", "token"])
def test_two_tokens_have_the_bent_law(model: edgedec.Model, prompt: list[int], verify: str) -> None:
    """Of three tokens each, so that there are nine texts."""
    temperature, top, n = 1.3, 3, 400

    def law(text: list[int]) -> dict[int, float]:
        logits = bent(model.runtime, text, len(prompt), temperature) / temperature
        best = np.argsort(-logits)[:top]
        p = np.exp(logits[best] - logits.max())
        return dict(zip(best.tolist(), (p / p.sum()).tolist(), strict=True))

    first = law(prompt)
    expected = {(a, b): p * q for a, p in first.items() for b, q in law([*prompt, a]).items()}
    session, counts, accepted = model.session(speculate=f"{HOW},gamma=2,verify={verify}"), dict.fromkeys(expected, 0), 0
    for seed in range(n):
        how = Sampling(temperature=temperature, top_k=top, seed=seed)
        a, b = (int(t) for t in session.tokens(prompt, max_tokens=2, sampling=how, ignore_eos=True))
        counts[(a, b)] += 1
        accepted += session.stats.accepted
    assert accepted > n / 10
    found, limit = chi_square([counts[k] for k in expected], [expected[k] for k in expected])
    assert found < limit


def test_the_shift() -> None:
    shift = Shift(2.0)
    z = np.zeros(2, np.float32)
    assert shift.process(z, [], {}) is z, "no guide, no shift"
    shift.guide = {(): np.log(np.array([0.75, 0.25], np.float32))}
    np.testing.assert_allclose(shift.process(z, [], {}), [0.5, -0.5], atol=1e-6)
    with pytest.raises(UsageError, match="has not read"):
        shift.process(z, [1], {})


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (f"{HOW}+copy", "takes no others beside it"),
        ("rapid:transfer=-1", "transfer=-1: must be 0 or more"),
        ("rapid:verify=token", "is of transfer"),
        (f"{HOW},verify=block", "verify=block: must be one of match, token"),
        (f"{HOW},length=0", "length=0: must be from 1 to 64"),
        (HOW.replace(f"refresh={REFRESH}", "refresh=2000"), "together below the context"),
    ],
)
def test_refusals(model: edgedec.Model, how: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        model.session(speculate=how)
