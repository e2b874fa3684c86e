"""Speculation changes nothing at any load: every drafter is made to draft, in batches of 1, 4 and 16 texts that mix
greedy and seeded sampling, a constraint and a LoRA adapter; tokens and the bytes of the caches are plain decoding's.

By default each drafter has one size, one cache format and batches of 16; all combinations with EDGEDEC_SLOW_TESTS.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from drafting import of_any_bundle

import edgedec
from edgedec.bundle.adapter import LoraAdapter, LowRank
from edgedec.constraints import regex
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters import Tables
from edgedec.kernels.cpu import loader
from edgedec.sampling import Sampling
from edgedec.spec import KV_FORMATS

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")

SLOW = bool(os.environ.get("EDGEDEC_SLOW_TESTS"))
PROMPTS = [
    "Once upon a time",
    "Say it again.\n\nThe red fox ran to the old barn and sat down.\n\nAgain:\n\nThe red fox",
    "the the the the cat cat the the",
    "One day, Lily found a magic key in the garden. Lily found a magic key in the garden. Lily found",
]
PATTERN = " [a-z ,.]+"
LENGTH = 24
# Drafters that need a file of their own have tests of their own; of those with a draft model this is one.
NAMES = [*of_any_bundle(), "model"]
CHAIN, TREE = 4, 10
OPTIONS = {"model": "path=nano,", "exit": "layer=10,threshold=0,", "sparse": "least=1,"}
SPECS = [
    *[f"{name}:{OPTIONS.get(name, '')}fixed={n}" for name in NAMES for n in (CHAIN, TREE)],
    f"copy:fixed={TREE}+recycling+suffix+trigram",
    "copy:fixed=5+exit:layer=4,threshold=0",
]
CASES = (
    list(product(SPECS, KV_FORMATS, (1, 4, 16)))
    if SLOW
    else [(spec, KV_FORMATS[i % len(KV_FORMATS)], (16, 16, 4, 1)[i % 4]) for i, spec in enumerate(SPECS)]
)


class Case(NamedTuple):
    """One text of a batch."""

    prompt: str
    sampling: Sampling
    constrained: bool
    adapted: bool


def case(i: int) -> Case:
    """Greedy and seeded by turns; of four texts one follows a pattern, and one has an adapter."""
    sampling = Sampling() if i % 2 == 0 else Sampling(temperature=0.8, top_p=0.95, seed=i, repetition_penalty=1.1)
    return Case(PROMPTS[i % len(PROMPTS)], sampling, i % 4 == 2, i % 4 == 3)


@cache
def model(kv: str) -> edgedec.Model:
    return edgedec.open("nano", engine="native", kv=kv, threads=2)


@cache
def adapter(kv: str) -> LoraAdapter:
    """Random, and large enough to change the text."""
    rng, found, spec = np.random.default_rng(4), {}, model(kv).spec
    for name in sorted(name for name in spec.matrices if name.startswith("blocks."))[::3]:
        n, k = spec.tensors()[name]
        a, b = (rng.standard_normal(shape).astype(np.float32) * 0.1 for shape in ((4, k), (n, 4)))
        found[name] = LowRank(a, b)
    return LoraAdapter("random", "random", found)


def together(kv: str, spec: str, numbers: Sequence[int]) -> tuple[list[tuple[list[int], dict[str, bytes]]], list[Any]]:
    """(tokens, bytes of the cache) of each text, and the sessions."""
    opened, batch, tables = model(kv), Batch(model(kv).runtime), Tables()
    sessions, texts = [], []
    for i in numbers:
        it, text = case(i), list[int]()
        live = opened.session(speculate=spec, context=192, tables=tables, adapter=adapter(kv) if it.adapted else None)
        constraint = regex(opened, PATTERN) if it.constrained else None
        config = GenerationConfig(it.sampling, max_tokens=LENGTH, ignore_eos=True, constraint=constraint)
        ids = opened.tokenizer.encode(it.prompt)
        live.submit(batch, ids, lambda t, text=text: t is not None and text.append(int(t)), config)  # type: ignore[misc]
        sessions.append(live)
        texts.append(text)
    batch.run()
    caches = [{name: a.tobytes() for name, a in live._context.cache.save().items()} for live in sessions]
    return list(zip(texts, caches, strict=True)), sessions


@cache
def plain(kv: str, i: int) -> tuple[list[int], dict[str, bytes]]:
    """A text alone, without drafts: the oracle."""
    return together(kv, "off", [i])[0][0]


@pytest.mark.parametrize(("spec", "kv", "n"), CASES)
def test_tokens_and_caches_are_those_of_plain_decoding(spec: str, kv: str, n: int) -> None:
    numbers = range(n) if n > 1 else [0]
    found, sessions = together(kv, spec, numbers)
    proposed = [live.stats.proposed for live in sessions]
    assert sum(proposed) >= (n * LENGTH / 8 if n > 1 else 1), "too little was drafted"
    assert n == 1 or sum(live.stats.accepted for live in sessions) > 0, "nothing was accepted"
    for i, (text, cache_bytes) in zip(numbers, found, strict=True):
        expected, expected_cache = plain(kv, i)
        assert text == expected, case(i)
        assert cache_bytes == expected_cache, case(i)


def test_the_cases_are_what_they_say() -> None:
    """Chains and trees, all samplings, constraints and adapters: and an adapter changes its text."""
    assert {case(i).constrained for i in range(16)} == {case(i).adapted for i in range(16)} == {True, False}
    kv = KV_FORMATS[0]
    with_adapter = plain(kv, 3)[0]
    live = model(kv).session(speculate="off", context=192)
    without = list(
        live.tokens(model(kv).tokenizer.encode(case(3).prompt), max_tokens=LENGTH, sampling=case(3).sampling)
    )
    assert with_adapter != without
    trees = together(kv, f"recycling:fixed={TREE}", range(4))[1]
    assert all(live.stats.proposed > 0 for live in trees)
