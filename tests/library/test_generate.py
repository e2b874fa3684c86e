"""libedgedec generates what Python generates, token for token: every sampling option, cache format, kind of block."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clibrary import c, library, library_runs, opened

import edgedec
from edgedec.errors import EdgedecError
from edgedec.spec import KV_FORMATS
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

PROMPT = [12, 375, 278, 259]
# What Python raises, and what the library calls it.
NAMES = {"ContextFull": "full", "UsageError": "usage"}


def python_model(path: Path, **options: Any) -> edgedec.Model:
    return edgedec.open(path, engine="native", **options)


def sampling_of(r: random.Random, vocab: int) -> dict[str, Any]:
    """Any settings, extreme ones too."""
    found: dict[str, Any] = {
        "temperature": r.choice([0.0, 0.5, 0.8, 1.0, 1.5, 30.0, 1e-3]),
        "top_k": r.choice([0, 0, 1, 5, 40, vocab, 5 * vocab]),
        "top_p": r.choice([1.0, 0.95, 0.5, 0.01]),
        "min_p": r.choice([0.0, 0.0, 0.05, 0.5, 1.0]),
        "typical_p": r.choice([1.0, 1.0, 0.9, 0.3]),
        "repetition_penalty": r.choice([1.0, 1.1, 0.8, 3.0]),
        "presence_penalty": r.choice([0.0, 0.5, -2.0]),
        "frequency_penalty": r.choice([0.0, 0.3, -0.4]),
        "seed": r.randrange(1 << 63),
    }
    if r.random() < 0.3:
        found["logit_bias"] = {r.randrange(vocab): r.choice([-5.0, 3.0, float("-inf")]) for _ in range(5)}
    return found


def request_of(r: random.Random, vocab: int) -> tuple[list[int], dict[str, Any]]:
    """A prompt and options, as Python takes them."""
    prompt = [r.randrange(vocab) for _ in range(r.choice([1, 2, 20, 39]))] if r.random() < 0.5 else PROMPT
    options = sampling_of(r, vocab) | {
        "max_tokens": r.choice([None, 0, 1, 24]),
        "min_tokens": r.choice([0, 0, 20]),
        "ignore_eos": r.random() < 0.2,
        "stop_tokens": frozenset(r.randrange(vocab) for _ in range(r.choice([0, 0, vocab // 8]))),
    }
    return prompt, options


def for_c(options: dict[str, Any]) -> dict[str, Any]:
    most = options["max_tokens"]
    return options | {"max_tokens": -1 if most is None else most, "ignore_eos": int(options["ignore_eos"])}


def both(model: Any, python: edgedec.Model, r: random.Random) -> tuple[Any, Any]:
    """(tokens, why it ended, what is cached) by the library and by Python."""
    prompt, options = request_of(r, python.spec.vocab_size)
    context, slides = r.choice([None, 40, 64]), r.random() < 0.3
    session = python.session(context=context, speculate="off", on_full="slide" if slides else "error", sinks=4)
    if slides and options["max_tokens"] is None:
        options["max_tokens"] = 90
    try:
        want: Any = (
            list(map(int, session.tokens(prompt, **options))),
            session.finish_reason,
            session._context.cache.length,
        )
    except EdgedecError as error:
        want = NAMES[type(error).__name__]
    own = model.session(context=context or 0, sinks=4 if slides else -1)
    try:
        got: Any = own.generate(prompt, **for_c(options)), own.finish, own.cached
    except c.EdgedecFailure as failure:
        got = failure.status
    return got, want


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_random_requests(nano: Path, kv: str) -> None:
    model, python = opened(nano, kv=kv.encode()), python_model(nano, kv=kv)
    reasons = set()
    for seed in range(50 if kv == "f32" else 20):
        got, want = both(model, python, random.Random(f"{kv} {seed}"))
        assert got == want, seed
        reasons.add(want if isinstance(want, str) else want[1])
    assert {"length", "eos"} <= reasons
    assert {"context", "full"} & reasons


@pytest.mark.parametrize("name", [name for name in MODELS if library_runs(MODELS[name])])
@pytest.mark.parametrize("fmt", ["f32", "int8", "int4"])
def test_block_kinds(name: str, fmt: Any, tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", MODELS[name], random_weights(MODELS[name]), fmt)
    model, python = opened(tmp_path / "b", threads=2), python_model(tmp_path / "b", threads=2)
    for seed in range(3):
        got, want = both(model, python, random.Random(seed))
        assert got == want, seed
    prompt = list(range(2, 40))
    session, twin = model.session(), python.session(speculate="off")
    session.prefill(prompt)
    probs = twin.next_probs() if not twin.append(prompt) else None
    logits = np.array(session.logits())
    shown = np.exp(logits - logits.max())
    assert np.allclose(shown / shown.sum(), probs, rtol=1e-12, atol=0)


def test_step_by_step_is_generate(nano: Path) -> None:
    model = opened(nano)
    sampling = {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2}
    want = model.session().generate(PROMPT, max_tokens=30, seed=5, **sampling)
    session, tokens = model.session(), list[int]()
    library().check("session_seed", session.handle, 5)
    session.prefill(PROMPT)
    for _ in range(30):
        tokens.append(session.sample(**sampling))
        session.step(tokens[-1])
    assert tokens == want
    assert session.ids == PROMPT + tokens
    assert session.cached == len(session.ids)


def test_many_at_once_are_each_alone(nano: Path) -> None:
    """Their own settings, ends and errors; each is as if it ran by itself."""
    model = opened(nano)
    requests = [request_of(random.Random(seed), 4096) for seed in range(12)]
    alone = [model.session(context=100).generate(prompt, **for_c(options)) for prompt, options in requests]
    found: list[list[int]] = [[] for _ in requests]
    kept, made = [], (c.GenerateRequest * (len(requests) + 1))()
    for i, (prompt, options) in enumerate(requests):

        def each(user: Any, token: Any, i: int = i) -> int:
            found[i].append(token.contents.id)
            return 0

        callback, session, ids = c.OnToken(each), model.session(context=100), c.tokens_of(prompt)
        given, keep = c.generate_options(library(), callback, for_c(options))
        kept.append((callback, session, ids, given, keep))
        made[i] = c.GenerateRequest(
            c.sizeof(c.GenerateRequest), session.handle, ids, len(prompt), 0, c.ctypes.pointer(given)
        )
    wrong, long = model.session(context=2), c.tokens_of([1] * 20)
    made[len(requests)] = c.GenerateRequest(c.sizeof(c.GenerateRequest), wrong.handle, long, 20)
    library().check("generate_many", made, len(made))
    assert [request.status for request in made] == [0] * len(requests) + [c.STATUS.index("full")]
    assert found == alone


def test_log_probabilities(nano: Path) -> None:
    model, python = opened(nano), python_model(nano)
    seen = []
    session = model.session()
    session.generate(
        PROMPT,
        lambda t: seen.append((t.id, t.logprob, t.top_tokens[: t.n_top], t.top_logprobs[: t.n_top])),
        max_tokens=9,
        logprobs=4,
    )
    want = list(python.session(speculate="off").tokens(PROMPT, max_tokens=9, logprobs=4))
    for (token, logprob, top, top_logprobs), python_token in zip(seen, want, strict=True):
        assert (token, top) == (int(python_token), [t for t, _ in python_token.top])
        assert np.allclose(
            [logprob, *top_logprobs], [python_token.logprob, *(p for _, p in python_token.top)], atol=1e-9
        )
    scores = model.session()
    scores.prefill(PROMPT)
    twin = python.session()
    twin.append(PROMPT)
    assert np.allclose(scores.score([t for t, *_ in seen]), twin.score([t for t, *_ in seen]), atol=1e-9)
    assert scores.ids == PROMPT
    assert scores.cached == len(PROMPT)


def test_a_callback_ends_it_as_if_so_many_were_asked_for(nano: Path) -> None:
    model = opened(nano)
    options = {"temperature": 1.0, "seed": 3}
    stopped, whole = model.session(), model.session()
    count = iter(range(100))
    assert len(stopped.generate(PROMPT, lambda t: next(count) == 6, **options)) == 7
    assert stopped.finish == "stopped"
    first = whole.generate(PROMPT, max_tokens=7, **options)
    assert stopped.ids == whole.ids == PROMPT + first
    assert stopped.cached == whole.cached
    assert stopped.generate(None, max_tokens=9, temperature=1.0) == whole.generate(None, max_tokens=9, temperature=1.0)


def test_logits_of_the_program(nano: Path) -> None:
    """on_logits sees the text, and what it forbids does not come."""
    model, texts = opened(nano), []

    def only_even(user: Any, ids: Any, n: int, logits: Any) -> int:
        texts.append(ids[:n])
        for token in range(1, 4096, 2):
            logits[token] = float("-inf")
        return 0

    hook = c.OnLogits(only_even)
    tokens = model.session().generate(PROMPT, on_logits=hook, max_tokens=12)
    assert len(tokens) == 12
    assert all(token % 2 == 0 for token in tokens)
    assert texts == [PROMPT + tokens[:i] for i in range(12)]


def test_cancelled_from_another_thread(nano: Path) -> None:
    session = opened(nano).session()
    begun, tokens = threading.Event(), list[int]()

    def on_token(token: Any) -> None:
        tokens.append(token.id)
        begun.set()
        cancelled.wait(5)

    cancelled = threading.Event()

    def cancel() -> None:
        begun.wait(5)
        session.cancel()
        cancelled.set()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(c.EdgedecFailure) as caught:
        session.generate(PROMPT, on_token)
    thread.join()
    assert caught.value.status == "cancelled"
    assert 1 <= len(tokens) <= 2
    assert session.ids == PROMPT + tokens
    # The next one runs, and from there.
    fresh = opened(nano).session()
    fresh.generate(PROMPT, max_tokens=len(tokens))
    assert session.generate(None, max_tokens=5) == fresh.generate(None, max_tokens=5)


def test_one_thread_at_a_time(nano: Path) -> None:
    session = opened(nano).session()
    statuses = []

    def inside(token: Any) -> bool:
        statuses.append(library()("session_truncate", session.handle, 0))
        return True

    session.generate(PROMPT, inside)
    assert [c.STATUS[status] for status in statuses] == ["busy"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"typical_p": 2.0}, "typical_p"),
        ({"top_k": -1}, "top_k"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": 3.0}, "presence_penalty"),
        ({"logit_bias": {9999: 1.0}}, "outside the vocabulary"),
        ({"logit_bias": {1: float("inf")}}, "bias"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"logprobs": 101}, "logprobs"),
        ({"seed": 1 << 63}, "seed"),
    ],
)
def test_settings_out_of_range(nano: Path, options: dict[str, Any], words: str) -> None:
    session = opened(nano).session()
    with pytest.raises(c.EdgedecFailure, match=words) as caught:
        session.generate(PROMPT, **options)
    assert caught.value.status == "usage"
    assert session.ids == []
