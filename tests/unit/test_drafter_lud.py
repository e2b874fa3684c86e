"""Lexical unit decoding: the text is that of a naive loop of pads, however calls are cut, and it is named lossy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drafting import PROMPT, host, run
from loops import decode

from edgedec import Sampling, UsageError
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats
from edgedec.drafters._lossy import Replaced, of_vocabulary, probability
from edgedec.drafters.lud import Lud, make
from edgedec.runtime import Call, Outputs, Rows
from edgedec.sampling import draw_at, probs
from edgedec.testing.fakes import FakeRuntime, tiny_spec

SPEC = tiny_spec(context_length=256)
PADS = np.zeros((3, SPEC.hidden_size), np.float32)
PADS[:, 0] = (50, 60, 70)
HOWS = {
    "greedy": Sampling(),
    "drawn": Sampling(temperature=0.7, top_k=6),
    "penalised": Sampling(temperature=0.6, presence_penalty=0.5),
}


def fake() -> FakeRuntime:
    return FakeRuntime(SPEC, spread=28.0)


def naive(n: int, beta: float, sampling: Sampling, pads: int = 3) -> tuple[list[int], list[int]]:
    """The method as its paper has it: all predictions of text and pads, their longest likely prefix, at least one."""
    runtime, rng, ids, units = fake(), np.random.default_rng(7), list(PROMPT), list[int]()
    while len(ids) < len(PROMPT) + n:
        given = np.zeros((len(ids) + pads, SPEC.hidden_size), np.float32)
        given[: len(ids), 0], given[len(ids) :] = ids, PADS[:pads]
        rows = replace(Rows.chain([0] * len(given), 0), embeddings=given)
        (result,) = runtime.forward([Call(rows, runtime.new_cache(256), outputs=Outputs(logits=True))])
        assert result.logits is not None
        laws, unit = result.logits[len(ids) - 1 :], list[int]()
        for i, law in enumerate(laws):
            before = rng.bit_generator.state
            text = [*ids, *unit]
            token = draw_at(probs(law, sampling, text, len(PROMPT)), rng.random() if sampling.temperature else 0.0)
            p = np.exp(law - law.max()).astype(np.float64)
            sure = p[token] / p.sum() >= beta
            if i and not sure:
                rng.bit_generator.state = before
                break
            unit.append(token)
            if not sure:
                break
        ids += unit
        units.append(len(unit))
    return ids[len(PROMPT) :][:n], units


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("beta", [0.4, 0.8])
@pytest.mark.parametrize("pads", [1, 3])
def test_the_text_is_that_of_a_naive_loop(how: str, beta: float, pads: int) -> None:
    expected, units = naive(90, beta, HOWS[how], pads)
    assert 1 in units
    assert max(units) == pads + 1
    runtime = fake()
    drafter = Lud(host(runtime), PADS[:pads], beta)
    tokens, _, stats, _ = run(runtime, drafter, max_tokens=90, capacity=256, sampling=HOWS[how])
    assert tokens == expected
    assert stats.accepted == stats.proposed > 5
    assert abs(stats.calls - len(units)) <= 1
    assert f"{stats.accepted} tokens were not verified" in drafter.report()["lossy"]


def test_at_a_beta_of_one_it_is_plain_decoding() -> None:
    runtime = fake()
    tokens, _, stats, _ = run(runtime, Lud(host(runtime), PADS, 1.0), max_tokens=40, capacity=256)
    assert stats.proposed == 0
    assert tokens == naive(40, 1.0, Sampling())[0]


@pytest.mark.parametrize("how", HOWS)
def test_where_a_text_is_cut_changes_nothing(how: str) -> None:
    """By max_tokens, by closing between the tokens of a unit, by calls with room for one drafted row."""
    expected, _ = naive(60, 0.4, HOWS[how])
    for first in range(5, 13):
        for closes in (True, False):
            runtime = fake()
            drafter = Lud(host(runtime), PADS, 0.4)
            context = Context(list(PROMPT), 5, runtime.new_cache(256), rng=np.random.default_rng(7))
            found, config = list[int](), GenerationConfig(HOWS[how], max_tokens=60 if closes else first)
            running = decode(runtime, context, config, drafter, Stats())
            for token in running:
                found.append(int(token))
                if closes and len(found) == first:
                    break
            running.close()
            rest = GenerationConfig(HOWS[how], max_tokens=60 - first)
            found += map(int, decode(runtime, context, rest, drafter, Stats()))
            assert found == expected, (first, closes)


def test_a_fork_goes_on_in_the_middle_of_a_unit() -> None:
    expected, _ = naive(40, 0.4, Sampling())
    runtime = fake()
    drafter, twin = (Lud(host(runtime), PADS, 0.4) for _ in range(2))
    context = Context(list(PROMPT), 5, runtime.new_cache(256), rng=np.random.default_rng(7))
    for n, _ in enumerate(decode(runtime, context, GenerationConfig(max_tokens=40), drafter, Stats()), 1):
        if n == 40:
            break
        other = context.fork()
        twin.reset()
        twin.inherit(drafter)
        rest = [int(t) for t in decode(runtime, other, GenerationConfig(max_tokens=40 - n), twin, Stats())]
        assert rest == expected[n:], n


def test_laws_are_replaced_by_path() -> None:
    replaced, logits, law = Replaced(), np.zeros(3, np.float32), np.ones(3, np.float32)
    replaced.laws = {(4,): law}
    assert replaced.process(logits, [4], {}) is law
    assert replaced.process(logits, [], {}) is logits
    assert list(replaced.own) == [()]
    replaced.clear()
    assert replaced.process(logits, [4], {}) is logits
    assert probability(np.log(np.array([0.2, 0.8], np.float32)), 1) == pytest.approx(0.8)
    assert of_vocabulary(law, 2).tolist() == [1, 1]
    assert of_vocabulary(law, 4).tolist() == [1, 1, 1, -np.inf]


def test_refusals() -> None:
    runtime = fake()
    with pytest.raises(UsageError, match="has no lud head"):
        make(replace(host(runtime), bundle=_bundle({})))
    with pytest.raises(UsageError, match="runs no rows of embeddings"):
        make(replace(host(FakeRuntime(SPEC, trees=False)), bundle=_bundle({"prompt": 2})))
    with pytest.raises(UsageError, match="length=3: the bundle has 2 pads"):
        make(replace(host(runtime), bundle=_bundle({"prompt": 2})), length=3)


def _bundle(depths: dict[str, int]):  # type: ignore[no-untyped-def]
    from types import SimpleNamespace

    drafts = {name: SimpleNamespace(depth=depth, embeddings="", features=()) for name, depth in depths.items()}
    return SimpleNamespace(path="x", manifest=SimpleNamespace(heads={}, drafts=drafts))
