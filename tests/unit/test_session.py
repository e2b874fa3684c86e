"""Sessions on a random little model: what is read again, copied, saved, cut and cancelled."""

from __future__ import annotations

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.cache.snapshot import MAGIC
from edgedec.decoding.context import Context
from edgedec.errors import ContextFull, EdgedecError, SessionError, UsageError
from edgedec.kernels.cpu.loader import why_not
from edgedec.model import Model
from edgedec.runtime import Rows, logits_of
from edgedec.sampling import Sampling
from edgedec.session import Session
from edgedec.spec import KV_FORMATS

ENGINES = ["ort", "native", "reference"]
PROMPT = "the ring and one"
WARM = Sampling(temperature=0.9, seed=5)


@pytest.fixture(scope="module", params=ENGINES)
def model(request: pytest.FixtureRequest, tiny: Path) -> Model:
    _here(request.param)
    return edgedec.open(tiny, engine=request.param, threads=1)


@pytest.fixture(scope="module")
def ort(tiny: Path) -> Model:
    return edgedec.open(tiny, engine="ort", threads=1)


def _here(engine: str) -> None:
    if engine == "native" and (reason := why_not()):
        pytest.skip(f"native engine: {reason}")


def take(session: Session, n: int, ids: list[int] | None = None, **options: Any) -> list[int]:
    return list(map(int, session.tokens(ids, max_tokens=n, ignore_eos=True, **options)))


def prompt(model: Model, text: str = PROMPT) -> list[int]:
    return model.tokenizer.encode(text)


def test_text_is_the_text_of_the_tokens(model: Model) -> None:
    ids, session = prompt(model), model.session()
    text = "".join(session.generate(PROMPT, max_tokens=40, ignore_eos=True))
    assert session.finish_reason == "length"
    assert session.ids == ids + take(model.session(), 40, ids)
    assert PROMPT + text == model.tokenizer.decode(session.ids)
    assert "\ufffd" in text, "a random model breaks characters; this one did not, so little was shown"


def test_a_stream_carries_the_tokens(model: Model) -> None:
    session = model.session()
    pieces = list(session.stream(PROMPT, max_tokens=30, ignore_eos=True, logprobs=2))
    tokens = [piece.token for piece in pieces if piece.token is not None]
    assert prompt(model) + tokens == session.ids
    assert all(token.logprob is not None and len(token.top) == 2 for token in tokens)
    assert all(piece.text for piece in pieces if piece.token is None)
    assert "".join(p.text for p in pieces) == "".join(model.session().generate(PROMPT, max_tokens=30, ignore_eos=True))


def test_what_a_prompt_shares_with_the_text_is_not_read_again(model: Model) -> None:
    session, ids = model.session(), prompt(model)
    first = take(session, 6, ids)
    assert (session.stats.prompt, session.stats.cached) == (len(ids), 0)
    known = len(ids) + 5  # the last token was told, but not read yet
    for follow, shared in (
        (ids + first + [7, 8], known),
        (ids + first[:3] + [9], len(ids) + 3),
        ([*ids[:4], 1, 2], 4),
        ([*ids[:4], 1, 2], 4 + 2),
        ([11, 12], 0),
    ):
        got = take(session, 4, follow)
        assert session.stats.prompt == len(follow)
        assert session.stats.cached == shared
        assert session.stats.generated == session.stats.calls == 4
        assert got == take(model.session(), 4, follow)
        assert session.ids == follow + got


def test_none_goes_on(model: Model) -> None:
    session, whole = model.session(), take(model.session(), 12, prompt(model))
    got = take(session, 5, prompt(model)) + take(session, 4) + take(session, 3)
    assert got == whole
    text = "".join(model.session().generate(PROMPT, max_tokens=12, ignore_eos=True))
    session = model.session()
    parts = [*session.generate(PROMPT, max_tokens=5, ignore_eos=True)]
    parts += session.generate(max_tokens=7, ignore_eos=True)
    assert session.ids == prompt(model) + whole
    assert "".join(parts).replace("\ufffd", "") == text.replace("\ufffd", "")


def test_a_fork_goes_its_own_way(model: Model) -> None:
    session = model.session()
    tokens = session.tokens(prompt(model), max_tokens=12, sampling=WARM, ignore_eos=True)
    taken = list(islice(tokens, 4))
    twin = session.fork()
    assert twin.ids == session.ids == prompt(model) + taken
    rest = list(tokens)
    assert take(twin, 8, sampling=Sampling(temperature=0.9)) == rest
    assert twin.ids == session.ids
    take(twin, 3, [5, 6, 7])
    assert take(session, 3) == take(model.session(), 3, prompt(model) + taken + rest)
    assert twin.ids[:3] == [5, 6, 7]


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("engine", ENGINES)
def test_saved_in_the_midst_and_taken_up_elsewhere(tiny: Path, tmp_path: Path, engine: str, kv: str) -> None:
    _here(engine)
    model = edgedec.open(tiny, engine=engine, kv=kv, threads=1)
    session = model.session()
    tokens = session.tokens(prompt(model), max_tokens=20, sampling=WARM, ignore_eos=True)
    taken = list(islice(tokens, 7))
    session.save(tmp_path / "saved")
    rest = list(tokens)
    other = edgedec.open(tiny, engine=engine, kv=kv, threads=1).session()
    take(other, 5, [3, 4, 5])
    other.load(tmp_path / "saved")
    assert other.ids == prompt(model) + taken
    assert take(other, 13, sampling=Sampling(temperature=0.9)) == rest
    session.load(tmp_path / "saved")
    assert take(session, 13, sampling=Sampling(temperature=0.9)) == rest


def test_a_new_session_may_be_saved(model: Model, tmp_path: Path) -> None:
    model.session().save(tmp_path / "saved")
    session = model.session()
    take(session, 3, [1, 2])
    session.load(tmp_path / "saved")
    assert session.ids == []
    with pytest.raises(UsageError, match="nothing to continue"):
        take(session, 1)


def test_a_saved_session_of_another_kind_is_refused(tiny: Path, ort: Model, tmp_path: Path) -> None:
    session = ort.session()
    take(session, 4, prompt(ort))
    session.save(tmp_path / "saved")
    shutil.copytree(tiny, tmp_path / "other")
    manifest = json.loads((tmp_path / "other" / "edgedec.json").read_text())
    (tmp_path / "other" / "edgedec.json").write_text(json.dumps(manifest | {"name": "other"}))
    for target, says in (
        (edgedec.open(tmp_path / "other", engine="ort").session(), "saved from another model"),
        (
            edgedec.open(tiny, engine="ort", kv="int8").session(),
            "saved with a f32 cache, this session has int8; open the model with the cache format and engine it was",
        ),
        (ort.session(context=8), "tokens do not fit this session's context of 8"),
    ):
        take(target, 2, [4, 5])
        before = fingerprint(target)
        with pytest.raises(SessionError, match=says):
            target.load(tmp_path / "saved")
        assert fingerprint(target) == before
    for path, says in ((tmp_path, "irectory"), (tmp_path / "none", "No such file")):
        with pytest.raises(SessionError, match=says):
            session.load(path)
    with pytest.raises(SessionError, match="cannot be written: No such file"):
        session.save(tmp_path / "no" / "folder")


def test_one_token_more_than_fits_may_be_saved_but_not_cached(ort: Model, tmp_path: Path) -> None:
    wide, narrow = ort.session(context=16), ort.session(context=8)
    take(narrow, 4, [1, 2, 3, 4, 5])
    narrow.save(tmp_path / "saved")
    wide.load(tmp_path / "saved")
    ort.session(context=8).load(tmp_path / "saved")
    take(wide, 2)
    take(wide, 0, wide.ids[:9])
    assert (len(wide.ids), wide.stats.cached) == (9, 9)
    wide.save(tmp_path / "saved")
    with pytest.raises(SessionError, match="9 tokens do not fit this session's context of 8"):
        narrow.load(tmp_path / "saved")


def fingerprint(session: Session) -> tuple[Any, ...]:
    context: Context = session._context
    return (
        tuple(context.ids),
        context.n_prompt,
        context.cache.length,
        *(array.tobytes() for array in context.cache.save().values()),
        str(context.rng.bit_generator.state),
    )


@pytest.fixture(scope="module")
def saved(ort: Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, tuple[Any, ...]]:
    path, session = tmp_path_factory.mktemp("saved") / "saved", ort.session()
    take(session, 5, prompt(ort)[:4], sampling=WARM)
    session.save(path)
    return path.read_bytes(), fingerprint(session)


def load_or_refuse(session: Session, path: Path, raw: bytes) -> bool:
    """Whether it was loaded; any error but a SessionError fails the test."""
    path.write_bytes(raw)
    before = fingerprint(session)
    try:
        session.load(path)
    except SessionError:
        assert fingerprint(session) == before
        return False
    return True


def test_a_damaged_file_is_never_another_session(ort: Model, saved: tuple[bytes, Any], tmp_path: Path) -> None:
    raw, whole = saved
    rng, session = np.random.default_rng(0), ort.session()
    header = 48 + int.from_bytes(raw[40:48], "little")
    places = {*range(56), *rng.integers(0, header, 150).tolist(), *rng.integers(header, len(raw), 50).tolist()}
    damaged = [raw[:i] + bytes([raw[i] ^ int(rng.integers(1, 256))]) + raw[i + 1 :] for i in sorted(places)]
    damaged += [raw[:n] for n in (*range(60), *rng.integers(0, len(raw), 60).tolist())]
    damaged += [raw + b"\0", raw + b" ", raw + raw, b"", MAGIC, raw[8:], raw[::-1]]
    for content in damaged:
        assert not load_or_refuse(session, tmp_path / "damaged", content)
    assert load_or_refuse(session, tmp_path / "whole", raw)
    assert fingerprint(session) == whole


NASTY = [None, True, -1, 1.5, 10**30, "", "PCG64", "MT19937", [], [[]], {}, {"state": 1}, "\ud800", float("nan")]
PLACES: list[tuple[str, ...]] = [
    *(("header", key) for key in ("bundle", "ids", "n_prompt", "kv", "rng", "length", "adapter", "new")),
    *(("header", "rng", key) for key in ("bit_generator", "state", "has_uint32", "uinteger", "new")),
    *(("header", "rng", "state", key) for key in ("state", "inc", "new")),
    *((key,) for key in ("header", "arrays", "new")),
    *(("arrays", key) for key in ("0", "1", "2")),
    *(("arrays", at, key) for at in ("0", "1", "2") for key in ("name", "dtype", "shape", "new")),
    *(("arrays", "1", "shape", at) for at in ("0", "2")),
]


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_a_forged_header_is_refused_or_harmless(
    ort: Model, saved: tuple[bytes, Any], tmp_path: Path, place: tuple[str, ...]
) -> None:
    """Somebody who can compute a hash still cannot make loading do anything but load or raise SessionError."""
    raw, _ = saved
    end = 48 + int.from_bytes(raw[40:48], "little")
    values = [*NASTY, [-1], [10**9], [1] * 8, [1] * 300, [0, 10**30], [0, 1 << 32, 1 << 32], 0, 4, 8, 9, 257, _MISSING]
    for value in values:
        header = json.loads(raw[48:end])
        at: Any = header
        *before, last = (int(key) if key.isdigit() else key for key in place)
        for key in before:
            at = at[key]
        at[last] = value
        if value is _MISSING:
            del at[last]
        text = json.dumps(header).encode()
        body = len(text).to_bytes(8, "little") + text + raw[end:]
        session = ort.session()
        if load_or_refuse(session, tmp_path / "forged", MAGIC + hashlib.sha256(body).digest() + body):
            assert session._context.cache.length <= len(session.ids) <= session.capacity + 1
            try:
                take(session, 2, sampling=Sampling(temperature=1.0))
            except UsageError:
                assert session.ids == []


_MISSING = object()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"[" * 100_000, b"1" * 5000, b"\xff\xfe", b'{"a": 1}'])
def test_a_header_that_is_no_header(ort: Model, tmp_path: Path, text: bytes) -> None:
    body = len(text).to_bytes(8, "little") + text
    assert not load_or_refuse(ort.session(), tmp_path / "forged", MAGIC + hashlib.sha256(body).digest() + body)


def test_stop_strings_cut_across_tokens(model: Model) -> None:
    whole = "".join(model.session().generate(PROMPT, max_tokens=30, ignore_eos=True))
    for start in range(0, len(whole) - 4, 3):
        for size in (1, 2, 4):
            stop, session = whole[start : start + size], model.session()
            text = "".join(session.generate(PROMPT, max_tokens=30, stop=stop, ignore_eos=True))
            assert text == whole[: whole.find(stop)]
            assert session.finish_reason == "stop"
    session = model.session()
    assert "".join(session.generate(PROMPT, max_tokens=30, stop=["no such text"], ignore_eos=True)) == whole
    assert session.finish_reason == "length"


def test_a_stop_string_found_only_at_the_end_is_one(model: Model) -> None:
    """A longer one began before it, so it waited; then the text ended."""
    whole = "".join(model.session().generate(PROMPT, max_tokens=30, ignore_eos=True))
    session = model.session()
    stops = [whole[-4:] + "and more", whole[-3:-1]]
    text = "".join(session.generate(PROMPT, max_tokens=30, stop=stops, ignore_eos=True))
    assert text == whole[: min(i for i in map(whole.find, stops) if i >= 0)]
    assert session.finish_reason == "stop"


def test_tokens_that_stop(model: Model) -> None:
    whole, session = take(model.session(), 12, prompt(model)), model.session()
    stop = whole[5]
    assert take(session, 12, prompt(model), stop_tokens=[stop]) == whole[: whole.index(stop)]
    assert session.finish_reason == "eos"
    eos = next(iter(model.eos))
    wants = Sampling(logit_bias={eos: 1e4})
    assert list(session.tokens(prompt(model), sampling=wants)) == []
    assert session.finish_reason == "eos"
    assert take(session, 2, prompt(model), sampling=wants) == [eos, eos]


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_cancelled_and_asked_again(model: Model, taken: int) -> None:
    whole = "".join(model.session().generate(PROMPT, max_tokens=20, ignore_eos=True))
    session = model.session()
    pieces = session.generate(PROMPT, max_tokens=20, ignore_eos=True)
    assert len(list(islice(pieces, taken))) == taken
    pieces.close()  # type: ignore[attr-defined]
    assert session.finish_reason == ""
    assert "".join(session.generate(PROMPT, max_tokens=20, ignore_eos=True)) == whole
    assert session.stats.cached == (len(prompt(model)) if taken else 0)


def test_a_new_generation_ends_the_one_before(model: Model) -> None:
    session = model.session()
    old = session.generate(PROMPT, max_tokens=20, ignore_eos=True, stop="\0")
    next(old)
    new = session.generate("another", max_tokens=6, ignore_eos=True)
    first = next(new)
    list(old)
    assert first + "".join(new) == "".join(model.session().generate("another", max_tokens=6, ignore_eos=True))
    assert session.finish_reason == "length"


def test_loading_ends_a_generation(model: Model, tmp_path: Path) -> None:
    session = model.session()
    tokens = session.tokens(prompt(model), ignore_eos=True)
    next(tokens)
    session.save(tmp_path / "saved")
    session.load(tmp_path / "saved")
    assert list(tokens) == []
    assert len(session.ids) == len(prompt(model)) + 1


def test_chat_is_the_template(model: Model) -> None:
    messages = [{"role": "user", "content": "hi"}]
    ids = model.chat_ids(messages)
    assert model.tokenizer.decode(ids, special=True) == "<s><|user|>hi</s><|bot|>"
    session = model.session()
    answer = "".join(session.chat(messages, max_tokens=8, ignore_eos=True))
    assert session.ids == ids + take(model.session(), 8, ids)
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "more"}]
    list(session.chat(messages, max_tokens=2))
    assert session.stats.cached >= len(ids)


def test_seeds(model: Model) -> None:
    ids = prompt(model)
    runs = [take(model.session(), 15, ids, sampling=Sampling(temperature=1.0, seed=seed)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    session = model.session()
    assert take(session, 15, ids, sampling=Sampling(temperature=1.0, seed=1)) == runs[0]
    assert take(session, 15, ids, sampling=Sampling(temperature=1.0)) != runs[0]
    assert take(session, 15, ids, sampling=Sampling(temperature=1.0, seed=1)) == runs[0]


@pytest.mark.parametrize("engine", ["ort", "native"])
def test_threads_are_honoured_and_change_nothing(tiny: Path, engine: str) -> None:
    _here(engine)
    models = {n: edgedec.open(tiny, engine=engine, threads=n) for n in (1, 2)}
    for n, model in models.items():
        if engine == "native":
            assert model.runtime.threads == n  # type: ignore[attr-defined]
        else:
            (session,) = model.runtime._sessions._open.values()  # type: ignore[attr-defined]
            assert session.get_session_options().intra_op_num_threads == n
    one, two = (take(model.session(), 30, prompt(model)) for model in models.values())
    assert one == two
    with pytest.raises(UsageError, match="threads -1"):
        edgedec.open(tiny, threads=-1)


def test_two_sessions_take_turns(model: Model) -> None:
    texts = ["the ring", "and one", "other"]
    alone = [take(model.session(), 10, prompt(model, text)) for text in texts]
    together = [model.session().tokens(prompt(model, text), max_tokens=10, ignore_eos=True) for text in texts]
    assert [list(column) for column in zip(*zip(*together, strict=True), strict=True)] == alone


def test_sessions_in_threads(model: Model) -> None:
    texts = ["the ring", "and one"]
    alone = [take(model.session(), 25, prompt(model, text)) for text in texts]

    def work(text: str) -> list[list[int]]:
        return [take(model.session(), 25, prompt(model, text)) for _ in range(3)]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, texts)) == [[tokens] * 3 for tokens in alone]


def test_when_the_context_is_full(model: Model) -> None:
    ids = prompt(model)
    whole = take(model.session(), 8, ids)
    session = model.session(context=len(ids) + 3)
    assert session.capacity == len(ids) + 3
    assert list(session.tokens(ids, ignore_eos=True)) == whole[:4]
    assert session.finish_reason == "context"
    with pytest.raises(ContextFull, match="do not fit a context of"):
        next(session.tokens())
    sliding = model.session(context=16, on_full="slide", sinks=2)
    assert len(take(sliding, 40, ids)) == 40
    assert len(sliding.ids) <= 17
    assert take(sliding, 3, ids) == whole[:3]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"context": 1000}, "context 1000: must be from 1 to 256"),
        ({"context": -1}, "context -1"),
        ({"on_full": "cry"}, "on_full 'cry'"),
        ({"on_full": "slide", "sinks": 100}, "sinks 100: must be from 0 to 64"),
        ({"speculate": "no"}, "no drafter 'no'; there are: "),
    ],
)
def test_sessions_that_cannot_be(ort: Model, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ort.session(**options)


def test_generations_that_cannot_be(ort: Model) -> None:
    session = ort.session()
    take(session, 2, prompt(ort))
    before = fingerprint(session)
    for options in ({"stop": [""]}, {"stop": ["a", 1]}, {"max_tokens": -1}, {"logprobs": 1000}):
        with pytest.raises(UsageError):
            session.generate("other", **options)  # type: ignore[arg-type]
    for ids in ([268], [-1], [1, 2, 10**9]):
        with pytest.raises(EdgedecError, match="outside the vocabulary of 268"):
            session.tokens(ids)
    assert fingerprint(session) == before


def naive_scores(model: Model, ids: list[int], more: list[int]) -> np.ndarray:
    """Log-probabilities of `more` after `ids`, from all logits of one call."""
    runtime = model.runtime
    logits = logits_of(runtime, Rows.chain([*ids, *more], 0), runtime.new_cache(len(ids) + len(more)))
    logits = logits[len(ids) - 1 : -1].astype(np.float64)
    return (logits - np.logaddexp.reduce(logits, axis=1)[:, None])[np.arange(len(more)), more]


@pytest.mark.parametrize("n", [1, 2, 128, 129, 130])
def test_scores_and_probabilities_are_those_of_one_call(model: Model, n: int) -> None:
    """Whether the text ends with a chunk of prefill or not; and the text goes on as if nobody had looked."""
    ids, more = ([5, 9, 70, 31] * 40)[:n], [7, 8, 200, 3]
    session, expected = model.session(), take(model.session(), 5, ids)
    session.append(ids)
    assert session.ids == ids
    np.testing.assert_allclose(session.score(more), naive_scores(model, ids, more), atol=2e-4)
    probs = session.next_probs()
    assert probs.sum() == pytest.approx(1)
    every = list(range(model.spec.vocab_size))[::37]
    found = [np.log(probs[token]) for token in every]
    assert found == pytest.approx([naive_scores(model, ids, [token])[0] for token in every], abs=2e-4)
    assert session.ids == ids
    assert take(session, 5) == expected
    assert session.stats.cached == n - 1
    assert session.score([]) == []


def test_appended_tokens_are_text(model: Model) -> None:
    session, ids = model.session(), prompt(model)
    first = take(session, 3, ids)
    session.append([11, 12])
    assert take(session, 4) == take(model.session(), 4, [*ids, *first, 11, 12])
    assert session.stats.cached == len(ids) + 2
    for wrong in (session.append, session.score):
        with pytest.raises(UsageError, match="outside the vocabulary"):
            wrong([10**6])
    with pytest.raises(UsageError, match="nothing to continue"):
        model.session().next_probs()
    with pytest.raises(UsageError, match="nothing to continue"):
        model.session().score([1])


def test_a_refused_session_leaves_what_the_drafters_learned(ort: Model, tmp_path: Path) -> None:
    session = ort.session(speculate="recycling:fixed=2")
    take(session, 20, prompt(ort))
    session.save(tmp_path / "saved")
    raw = (tmp_path / "saved").read_bytes()
    end = 48 + int.from_bytes(raw[40:48], "little")
    header = json.loads(raw[48:end])
    cut = next(at for at, array in enumerate(header["arrays"]) if array["name"].startswith("cache.kv"))
    header["arrays"][cut]["shape"] = [int(np.prod(header["arrays"][cut]["shape"]))]
    text = json.dumps(header).encode()
    body = len(text).to_bytes(8, "little") + text + raw[end:]
    target = ort.session(speculate="recycling:fixed=2")
    take(target, 9, [4, 5, 6])
    learned = target._drafter.state()
    assert learned
    assert not load_or_refuse(target, tmp_path / "forged", MAGIC + hashlib.sha256(body).digest() + body)
    now = target._drafter.state()
    assert all(np.array_equal(now[name], array) for name, array in learned.items())


def test_text_where_ids_belong_is_named(model: Model) -> None:
    session = model.session()
    for call in (session.tokens, session.append, session.rewrite):
        with pytest.raises(UsageError, match="text where token ids belong"):
            call("Once")  # type: ignore[operator]
