"""Speculation changes nothing: every drafter, tree or chain, cache format and engine, token for token."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from drafting import of_any_bundle

import edgedec
from edgedec.constraints import json_schema
from edgedec.decoding import runner
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters.off import Off
from edgedec.kernels.cpu import loader
from edgedec.runtime import Call, Rows, forward_one
from edgedec.sampling import Sampling
from edgedec.spec import KV_FORMATS
from edgedec.speculation import choose, cost_files
from edgedec.speculation.costs import Costs
from edgedec.storage.datastore import write_datastore

needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")

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
# Drafters that need a file of their own have tests of their own; of those with a draft model this is one.
SPECS = [
    *(name if name != "sparse" else "sparse:least=1" for name in of_any_bundle()),
    "model",
    "auto",
    *[
        f"{name}:fixed={n}"
        for name in ("copy", "suffix", "recycling", "trigram", "stand", "hydra", "medusa", "model")
        for n in NODES.values()
    ],
    "copy:fixed=7+recycling+suffix+trigram",
    "skip:fixed=3",
    "exit:layer=10,fixed=3",
    "copy+exit:layer=4,fixed=4",
    "exit:layer=9,fixed=4+skip+recycling",
]


class _Flat(Costs):
    """A call of 32 rows costs hardly more than one of a single row, and takes minutes: no drafter is too expensive."""

    def add(self, rows: int, seconds: float, cells: int = 0) -> bool:
        """The calls here are quicker."""
        return False


@pytest.fixture(autouse=True)
def flat_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where drafting always pays the governor drafts: on nano's own costs it hardly does."""
    monkeypatch.setattr(choose, "host_costs", lambda runtime, bundle: _Flat({1: 100.0, 32: 105.0}))
    # What exits and skips draft follows from measured seconds: on a busy machine it may be next to nothing.
    monkeypatch.setattr(runner, "perf_counter", partial(next, count(0.0, 1e-3)))


@cache
def nano(kv: str) -> edgedec.Model:
    return edgedec.open("nano", engine="native", kv=kv, threads=2)


def session(model: edgedec.Model, spec: str, **options: Any) -> edgedec.Session:
    name, _, rest = spec.partition(":")
    paths = {"model": lambda: "nano", "pearl": lambda: "nano", "hierarchy": lambda: "nano", "datastore": stored}
    spec = f"{name}:path={paths[name]()},{rest}".rstrip(",") if name in paths else spec
    return model.session(speculate=spec, **options)


@cache
def stored() -> str:
    """A datastore of texts like those to come."""
    tokenizer, path = nano("f32").tokenizer, Path(mkdtemp()) / "prompts.store"
    digest = nano("f32").bundle.manifest.files["tokenizer.json"].sha256
    texts = [tokenizer.encode(prompt) for prompt in PROMPTS] + [list(text) for text in plain("f32", Sampling())[::2]]
    write_datastore(path, digest, nano("f32").spec.vocab_size, texts)
    return str(path)


class Drafted:
    """How much was drafted and accepted in several generations."""

    def __init__(self) -> None:
        self.proposed = self.accepted = 0

    def add(self, live: edgedec.Session) -> None:
        self.proposed, self.accepted = self.proposed + live.stats.proposed, self.accepted + live.stats.accepted

    def check(self, least: int = 1) -> None:
        assert self.proposed >= least, "nothing was drafted"
        assert self.accepted >= least, "nothing was accepted"


def saved(live: edgedec.Session) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in live._context.cache.save().items()}


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
    """8 prompts of 110 tokens for each of about 35 ways to draft and 4 caches: some 120,000 tokens."""
    model, drafted = nano(kv), Drafted()
    live, off = session(model, spec), model.session(speculate="off")
    for prompt, expected in zip(PROMPTS, plain(kv, Sampling()), strict=True):
        ids = model.tokenizer.encode(prompt)
        assert tuple(live.tokens(ids, max_tokens=LENGTH, ignore_eos=True)) == expected
        drafted.add(live)
    drafted.check(least=10)
    list(off.tokens(model.tokenizer.encode(PROMPTS[-1]), max_tokens=LENGTH, ignore_eos=True))
    assert saved(live) == saved(off)


@needs_native
@pytest.mark.parametrize("spec", [spec for spec in SPECS if "fixed" in spec or spec == "auto"])
def test_a_seed_draws_the_same_tokens_with_drafts(spec: str) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.2, seed=11)
    model = nano("f32")
    live, drafted = session(model, spec), Drafted()
    for prompt, expected in zip(PROMPTS, plain("f32", sampling), strict=True):
        ids = model.tokenizer.encode(prompt)
        assert tuple(live.tokens(ids, max_tokens=LENGTH, sampling=sampling, ignore_eos=True)) == expected
        drafted.add(live)
    drafted.check()


@needs_native
@pytest.mark.parametrize("spec", ["auto", "copy:fixed=9+recycling+suffix", "recycling:fixed=8"])
def test_what_ends_a_text_ends_it_alike(spec: str) -> None:
    """Stop strings, stop tokens, end tokens, every number of tokens, a full context."""
    model, drafted = nano("int8"), Drafted()
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
        drafted.add(live)
        assert found[0] == found[1], options
    drafted.check(least=10)
    full = [model.session(speculate=how, context=48) for how in ("off", spec)]
    texts = [list(live.tokens(model.tokenizer.encode(PROMPTS[0]), ignore_eos=True)) for live in full]
    assert texts[0] == texts[1]
    assert [live.finish_reason for live in full] == ["context", "context"]
    assert full[1].stats.accepted > 0
    slid = [model.session(speculate=how, context=48, on_full="slide") for how in ("off", spec)]
    texts = [list(live.tokens(model.tokenizer.encode(PROMPTS[0]), max_tokens=150, ignore_eos=True)) for live in slid]
    assert texts[0] == texts[1]
    assert slid[1].stats.accepted > 0


@needs_native
def test_a_stopped_session_goes_on_as_if_it_had_never_drafted() -> None:
    model, drafted = nano("int4"), Drafted()
    for cut in range(1, 30, 3):
        live, off = model.session(speculate="copy:fixed=6+recycling"), model.session(speculate="off")
        for each in (live, off):
            tokens = each.tokens(model.tokenizer.encode(PROMPTS[6]), max_tokens=60, ignore_eos=True)
            for _ in range(cut):
                next(tokens)
            tokens.close()
        drafted.add(live)
        assert live.ids == off.ids
        assert saved(live) == saved(off)
        again = [list(each.fork().tokens(max_tokens=20, ignore_eos=True)) for each in (live, off)]
        assert again[0] == again[1]
    drafted.check(least=10)


@needs_native
@pytest.mark.parametrize("spec", ["off", "auto", "forced", "recycling:fixed=6"])
def test_what_a_constraint_forces_is_drafted_and_changes_nothing(spec: str) -> None:
    model, ids = nano("f32"), nano("f32").tokenizer.encode(PROMPTS[0])
    schema = {
        "type": "object",
        "properties": {
            "name of the child": {"type": "string", "maxLength": 9},
            "its age in years": {"type": "integer"},
        },
        "required": ["name of the child", "its age in years"],
        "additionalProperties": False,
    }
    texts = []
    for each in (Off(), None):
        live = session(model, spec)
        live._drafter = live._drafter if each is None else each
        texts.append(list(live.tokens(ids, max_tokens=60, constraint=json_schema(model, schema))))
    assert texts[0] == texts[1]
    assert (live.stats.accepted > 10) == (spec != "off")


@needs_native
def test_on_measured_costs_the_text_is_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On nano's own costs little is drafted: what is, changes nothing."""
    monkeypatch.undo()
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(cost_files, "_known", WeakKeyDictionary())  # as if no other test had used this runtime
    model = nano("f32")
    live = model.session(speculate="auto")
    for prompt, expected in zip(PROMPTS, plain("f32", Sampling()), strict=True):
        assert tuple(live.tokens(model.tokenizer.encode(prompt), max_tokens=LENGTH, ignore_eos=True)) == expected
    assert cost_files.host_costs(model.runtime, model.bundle).known > 0, "measured from the calls that were made"


@needs_native
@pytest.mark.parametrize("spec", ["model:fixed=5", "exit:layer=10,fixed=3", "skip:fixed=3", "auto"])
def test_a_batch_drafts_together_and_changes_nothing(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sampling = nano("f32"), Sampling()
    runtime, sizes = model.runtime, list[int]()
    monkeypatch.setattr(runtime, "capabilities", replace(runtime.capabilities, steps=None))  # every call is a forward
    forward = runtime.forward
    monkeypatch.setattr(runtime, "forward", lambda calls: (sizes.append(len(calls)), forward(calls))[1])
    batch, drafted = Batch(runtime), Drafted()
    sessions = [session(model, spec) for _ in PROMPTS]
    texts: list[list[int]] = [[] for _ in PROMPTS]
    for live, prompt, text in zip(sessions, PROMPTS, texts, strict=True):
        ids = model.tokenizer.encode(prompt)
        live.submit(
            batch,
            ids,
            lambda t, text=text: text.append(t) if t is not None else None,
            max_tokens=LENGTH,
            ignore_eos=True,
        )
    batch.run()
    assert list(map(tuple, texts)) == plain("f32", sampling)
    for live in sessions:
        drafted.add(live)
    drafted.check(least=20)
    # How many share one depends on what is drafted: it is no constant of a model.
    assert max(sizes) >= 4
    assert sum(sizes) > len(sizes)


@needs_native
@pytest.mark.parametrize("kv", KV_FORMATS)
def test_a_thousand_random_rounds_leave_the_cache_of_a_straight_reading(kv: str) -> None:
    """Propose, accept a random path, reject the rest: the bytes are those of a cache built straight."""
    rng, runtime = np.random.default_rng(7), nano(kv).runtime
    cache, ids = runtime.new_cache(1024), [3]
    forward_one(runtime, Call(Rows.chain(ids, 0), cache))
    cache.commit([0])
    for round_ in range(1000):
        n = int(rng.integers(1, 9))
        parents = [int(rng.integers(-1, i)) for i in range(n)]
        tokens = rng.integers(0, runtime.spec.vocab_size, n).tolist()
        rows = Rows.tree(tokens, parents, cache.length)
        forward_one(runtime, Call(rows, cache))
        path: list[int] = []
        while rng.random() < 0.8 and len(children := rows.children(path[-1] if path else -1)):
            path.append(int(rng.choice(children)))
        cache.commit(path)
        ids += [tokens[row] for row in path]
        if len(ids) > 1000:
            ids = ids[: int(rng.integers(1, 900))]
            cache.truncate(len(ids))
        if round_ % 100 == 99:
            straight = runtime.new_cache(1024)
            for at in range(0, len(ids), 100):
                chunk = Rows.chain(ids[at : at + 100], at)
                forward_one(runtime, Call(chunk, straight))
                straight.commit(range(len(chunk)))
            found, expected = cache.save(), straight.save()
            assert found.keys() == expected.keys()
            assert all(np.array_equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("engine", ["ort", "reference"])
@pytest.mark.parametrize(
    "spec",
    [
        "copy:fixed=6",
        "recycling:fixed=8",
        "copy:fixed=5+suffix+trigram",
        "skip:skip=0.4,fixed=3",
        "exit:layer=1,threshold=0,fixed=3",
    ],
)
def test_the_portable_runtimes_agree_in_float(tiny: Path, engine: str, spec: str) -> None:
    """Float weights and caches: how many rows share a call changes logits by rounding only."""
    model = edgedec.open(tiny, engine=engine, threads=1)
    live, drafted, trace = model.session(speculate=spec), Drafted(), list[StepTrace]()
    for start in range(1, 6):
        off = model.session(speculate="off")
        ids = [start, start + 3, start, start + 3]
        n = model.spec.context_length - 8
        found = list(live.tokens(ids, max_tokens=n, ignore_eos=True, trace=trace))
        assert found == list(off.tokens(ids, max_tokens=n, ignore_eos=True))
        drafted.add(live)
    if "fixed=3" in spec:  # few guesses of a random model are likely enough; but every call continues a draft's
        assert sum(step.draft.hidden is not None for step in trace) > len(trace) / 2
    else:
        drafted.check()
