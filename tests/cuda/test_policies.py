"""Cache policies on the GPU engines: the tokens and the cache bytes of the native engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pruning import EVICTING, equal, generate, repeating

import edgedec
from edgedec.kernels.cpu import loader
from edgedec.kernels.cuda import emulated

REASON = emulated.why_not() or loader.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"engines: {REASON}")
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="minutes; set EDGEDEC_SLOW_TESTS")
VIEWING = [
    "quest:budget=128,recent=64,dense=1",
    "lserve:budget=128,recent=64,sinks=4",
    "tca:budget=0.4,recent=64,every=32,mass=0.8",
    "anchor:theta=1,recent=64,sinks=4",
    "actqkv:budget=256,recent=64,every=32,window=4",
    "sentencekv:budget=256,recent=64,every=32,window=4",
    "deltallm:budget=0.4,recent=64,sinks=4",
]
SHORT = ("h2o:budget=0.2,every=8,observe=5", "d2o:budget=0.2,every=8,observe=5", VIEWING[0])
OTHERS = sorted({*EVICTING, *VIEWING} - set(SHORT))


@pytest.mark.parametrize("words", [*SHORT, *(pytest.param(words, marks=slow) for words in OTHERS)])
def test_a_policy_keeps_what_it_keeps_on_the_native_engine(nano: Path, words: str) -> None:
    models = [edgedec.open(nano, engine="native", threads=1), edgedec.open(nano, device="cuda:emulated")]
    n, ids = (12, 150) if words in SHORT else (40, 300)
    told = [generate(model, repeating(model, ids), words, n) for model in models]
    whole = generate(models[0], repeating(models[0], ids), "full", n)[1]
    assert told[0][0] == told[1][0]
    caches = [session._context.cache for _, session in told]
    assert equal([cache.save() for cache in caches])
    report = told[1][1].cache_report()
    assert report["slots"] < report["of"] or words in VIEWING
    assert not equal([caches[1].save(), whole._context.cache.save()]) or words in VIEWING
