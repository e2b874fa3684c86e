"""Speculation changes nothing: every drafter, tree or chain, cache format and engine, token for token."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import edgedec
from edgedec.drafters import drafter_names
from edgedec.errors import UsageError
from edgedec.runtimes import native
from edgedec.sampling import Sampling
from edgedec.spec import KV_FORMATS

needs_native = pytest.mark.skipif(native.why_not() is not None, reason=f"no native engine: {native.why_not()}")

PROMPTS = [
    "Once upon a time",
    "Tom and his robot wanted to bake a cake. They",
    "Say it again.\n\nThe red fox ran to the old barn and sat down.\n\nAgain:\n\nThe red fox",
    "def add(a, b):\n    return a + b\n\ndef add(a, b):\n    return",
    "the the the the cat cat the the",
    "\n\n\n",
    "One day, Lily found a magic key in the garden. Lily found a magic key in the garden. Lily found",
    'Zq7 !! "x" \u00e9\u4e2d 100 200 300 400',
]
LENGTH = 110
NODES = {"chain": 4, "tree": 12}
SPECS = [
    *[name for name in drafter_names() if name != "off"],
    "auto",
    *[f"{name}:fixed={n}" for name in ("copy", "suffix", "recycling", "trigram", "stand") for n in NODES.values()],
    "copy:fixed=7+recycling+suffix+trigram",
    "skip:fixed=3",
    "exit:fixed=3",
    "copy+exit:layer=4,fixed=4",
    "exit:layer=9,fixed=4+skip+recycling",
]


@cache
def nano(kv: str) -> edgedec.Model:
    return edgedec.open("nano", engine="native", kv=kv, threads=2)


def session(model: edgedec.Model, spec: str) -> edgedec.Session:
    if spec == "model" or spec.startswith("model:"):
        spec = "model:path=nano"
    try:
        return model.session(speculate=spec)
    except UsageError as error:
        if "train-heads" in str(error):
            pytest.skip(f"the bundle has no such head: {error}")
        raise


@cache
def plain(kv: str, sampling: Sampling) -> list[tuple[int, ...]]:
    """Decoding without drafts, the oracle."""
    model, texts = nano(kv), []
    for prompt in PROMPTS:
        live = model.session(speculate="off")
        ids = model.tokenizer.encode(prompt)
        texts.append(tuple(live.tokens(ids, max_tokens=LENGTH, sampling=sampling, ignore_eos=True)))
    return texts


@needs_native
@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("spec", SPECS)
def test_greedy_text_and_cache_are_those_of_plain_decoding(spec: str, kv: str) -> None:
    """8 prompts of 110 tokens for each of about 25 ways to draft and 4 caches: some 90,000 tokens."""
    model = nano(kv)
    live, off = session(model, spec), model.session(speculate="off")
    for prompt, expected in zip(PROMPTS, plain(kv, Sampling()), strict=True):
        ids = model.tokenizer.encode(prompt)
        assert tuple(live.tokens(ids, max_tokens=LENGTH, ignore_eos=True)) == expected
    list(off.tokens(model.tokenizer.encode(PROMPTS[-1]), max_tokens=LENGTH, ignore_eos=True))
    np.testing.assert_array_equal(live._context.cache.save(), off._context.cache.save())


@needs_native
@pytest.mark.parametrize("spec", [spec for spec in SPECS if "fixed" in spec or spec == "auto"])
def test_a_seed_draws_the_same_tokens_with_drafts(spec: str) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.2, seed=11)
    model = nano("f32")
    live = session(model, spec)
    for prompt, expected in zip(PROMPTS, plain("f32", sampling), strict=True):
        ids = model.tokenizer.encode(prompt)
        assert tuple(live.tokens(ids, max_tokens=LENGTH, sampling=sampling, ignore_eos=True)) == expected


@needs_native
@pytest.mark.parametrize("spec", ["auto", "copy:fixed=9+recycling+suffix", "recycling:fixed=8"])
def test_what_ends_a_text_ends_it_alike(spec: str) -> None:
    """Stop strings, stop tokens, end tokens, every number of tokens, a full context."""
    model = nano("int8")
    text = "".join(model.session(speculate="off").generate(PROMPTS[0], max_tokens=60))
    stops = [text[10:13], text[25:31], text[40:44], "never there"]
    for options in [
        *[{"max_tokens": n} for n in range(12)],
        *[{"max_tokens": 60, "stop": stop} for stop in stops],
        {"max_tokens": 300},
        {"max_tokens": 60, "stop_tokens": [model.tokenizer.encode(" She")[-1]]},
    ]:
        found = []
        for how in ("off", spec):
            live = model.session(speculate=how, context=200)
            found.append(("".join(live.generate(PROMPTS[0], **options)), live.finish_reason, live.ids))  # type: ignore[arg-type]
        assert found[0] == found[1], options
    full = [model.session(speculate=how, context=48) for how in ("off", spec)]
    texts = [list(live.tokens(model.tokenizer.encode(PROMPTS[0]), ignore_eos=True)) for live in full]
    assert texts[0] == texts[1]
    assert [live.finish_reason for live in full] == ["context", "context"]
    slid = [model.session(speculate=how, context=48, on_full="slide") for how in ("off", spec)]
    texts = [list(live.tokens(model.tokenizer.encode(PROMPTS[0]), max_tokens=150, ignore_eos=True)) for live in slid]
    assert texts[0] == texts[1]


@needs_native
def test_a_stopped_session_goes_on_as_if_it_had_never_drafted() -> None:
    model = nano("int4")
    for cut in range(1, 30, 3):
        live, off = model.session(speculate="copy:fixed=6+recycling"), model.session(speculate="off")
        for each in (live, off):
            tokens = each.tokens(model.tokenizer.encode(PROMPTS[6]), max_tokens=60, ignore_eos=True)
            for _ in range(cut):
                next(tokens)
            tokens.close()
        assert live.ids == off.ids
        np.testing.assert_array_equal(live._context.cache.save(), off._context.cache.save())
        again = [list(each.fork().tokens(max_tokens=20, ignore_eos=True)) for each in (live, off)]
        assert again[0] == again[1]


@needs_native
@pytest.mark.parametrize("kv", KV_FORMATS)
def test_a_thousand_random_rounds_leave_the_cache_of_a_straight_reading(kv: str) -> None:
    """Propose, accept a random path, reject the rest: the bytes are those of a cache built straight."""
    from edgedec.runtime import Outputs, compute
    from edgedec.runtime.rows import Rows

    rng, runtime = np.random.default_rng(7), nano(kv).runtime
    cache, ids = runtime.new_cache(1024), [3]
    quiet = Outputs(logits=False)
    compute(runtime, Rows.chain(ids, 0), cache, 0, quiet)
    cache.keep([0])
    for round_ in range(1000):
        n = int(rng.integers(1, 9))
        parents = [int(rng.integers(-1, i)) for i in range(n)]
        tokens = rng.integers(0, runtime.spec.vocab_size, n).tolist()
        rows = Rows.tree(tokens, parents, cache.length)
        compute(runtime, rows, cache, 0, quiet)
        path: list[int] = []
        while rng.random() < 0.8 and len(children := rows.children(path[-1] if path else -1)):
            path.append(int(rng.choice(children)))
        cache.keep(path)
        ids += [tokens[row] for row in path]
        if len(ids) > 1000:
            ids = ids[: int(rng.integers(1, 900))]
            cache.truncate(len(ids))
        if round_ % 100 == 99:
            straight = runtime.new_cache(1024)
            for at in range(0, len(ids), 100):
                chunk = Rows.chain(ids[at : at + 100], at)
                compute(runtime, chunk, straight, 0, quiet)
                straight.keep(range(len(chunk)))
            np.testing.assert_array_equal(cache.save(), straight.save())


@pytest.mark.parametrize("engine", ["ort", "reference"])
@pytest.mark.parametrize("spec", ["copy:fixed=6", "recycling:fixed=8", "copy:fixed=5+suffix+trigram", "skip", "exit"])
def test_the_portable_runtimes_agree_in_float(tiny: Path, engine: str, spec: str) -> None:
    """Float weights and caches: how many rows share a call changes logits by rounding only."""
    model = edgedec.open(tiny, engine=engine, threads=1)
    live = model.session(speculate=spec)
    for start in range(1, 6):
        off = model.session(speculate="off")
        ids = [start, start + 3, start, start + 3]
        n = model.spec.context_length - 8
        assert list(live.tokens(ids, max_tokens=n, ignore_eos=True)) == list(
            off.tokens(ids, max_tokens=n, ignore_eos=True)
        )
