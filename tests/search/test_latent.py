"""Latent steps: when they are taken, what they read, and that nobody else reads what they left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from search.laws import PROMPT, beside, fresh, search_of, searched

import edgedec
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.runner import run_loop
from edgedec.drafters.off import Off
from edgedec.errors import RuntimeUnavailable
from edgedec.runtime import Call, Outputs, Rows, Runtime
from edgedec.search.strategies.latent import Switches
from edgedec.testing.fakes import FakeRuntime, random_reference

CONFIG = GenerationConfig(max_tokens=12)


def mixed_by_hand(runtime: Runtime, n: int, top: int, wait: int, most: int) -> tuple[list[int], int]:
    """The text with every row read anew at each step, and how many rows were mixtures."""

    def embedded(tokens: list[int]) -> np.ndarray:
        call = Call(Rows.chain(tokens, 0), runtime.new_cache(len(tokens)), (), outputs=Outputs(hidden=(-1,)))
        return runtime.forward([call])[0].hidden[-1]

    rows, text, latent = embedded(PROMPT), list[int](), 0
    reference, since, on, passages = None, 0, False, 0
    for _ in range(n):
        call = Call(Rows.embedded(rows, 0), runtime.new_cache(64), outputs=Outputs(logits=True))
        logits = runtime.forward([call])[0].logits[-1].astype(np.float64)
        p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        h = -(p * np.log(p)).sum()
        best = np.argsort(-p, kind="stable")[:top]
        text.append(int(best[0]))
        if reference is None:
            reference, since = h, 0
        elif on and h < reference:
            reference, since, on = h, 0, False
        elif not on and h > reference and since >= wait and passages < most:
            reference, since, on, passages = h, 0, True, passages + 1
        since, latent = since + 1, latent + on
        share = p[best] / p[best].sum()
        rows = np.concatenate([rows, share[None] @ embedded(best.tolist()) if on else embedded([text[-1]])])
        rows = rows.astype(np.float32)
    return text, latent


@pytest.mark.parametrize(("top", "wait", "most"), [(13, 0, 99), (3, 0, 1), (13, 3, 99), (13, 0, 0)])
def test_the_text_of_the_oracle(top: int, wait: int, most: int) -> None:
    runtime = random_reference(seed=3)
    text, latent = mixed_by_hand(runtime, 12, top, wait, most)
    words = f"latent:top={top},wait={wait},switches={most}"
    search = search_of(runtime, words, CONFIG)
    assert list(run_loop(runtime, search.loop)) == text
    assert search.room.counts.latents in (latent, latent - 1)
    assert (latent > 0) == (most > 0)


def test_one_token_is_greedy_decoding() -> None:
    for runtime in (FakeRuntime(), random_reference(seed=3)):
        plain = list(run_loop(runtime, decode_loop(fresh(runtime), CONFIG, Off())))
        assert searched(runtime, "latent:top=1,wait=0", CONFIG) == plain
        assert beside(runtime, "latent:top=1,wait=0", CONFIG) == plain


def test_when_steps_are_latent() -> None:
    def told(wait: int, most: int, *entropies: float) -> list[bool]:
        rule = Switches(wait, most)
        return [rule.after(h) for h in entropies]

    assert told(0, 9, 1, 2, 1.5, 3, 2) == [False, True, False, True, False]
    assert told(0, 9, 1, 2, 2, 2.5) == [False, True, True, True]  # only below the reference
    assert told(0, 1, 1, 2, 1.5, 3, 2) == [False, True, False, False, False]
    assert told(2, 9, 1, 2, 3, 0.5, 9) == [False, False, True, False, False]
    assert told(0, 9, 1, 1, 0.5) == [False] * 3


def test_the_next_generation_reads_the_text_itself(nano: Any) -> None:
    """No cached row of a mixture is found by this session, or by another one with the same text."""
    model = edgedec.open(nano, threads=1)
    session, ids = model.session(), model.tokenizer.encode("Once upon a time there was a big red dog")
    given: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0, "repetition_penalty": 1.0}
    found = list(session.tokens(ids, search="latent:wait=0,switches=50", **given))
    assert found != list(model.session().tokens(ids, **given))
    more = list(session.tokens(None, **given))
    clean = edgedec.open(nano, threads=1, prefix_tokens=0)
    assert more == list(clean.session().tokens([*ids, *found], **given))
    assert model.session().extend([*ids, *found]).score(" He") == clean.session().extend([*ids, *found]).score(" He")


def test_an_engine_without_embeddings_is_named() -> None:
    with pytest.raises(RuntimeUnavailable, match="runs no rows of embeddings"):
        searched(FakeRuntime(embeddings=False), "latent", CONFIG)
