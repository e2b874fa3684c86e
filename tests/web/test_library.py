"""edgedec.js in node: the engine's bytes, and token for token what Python generates."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from weblibrary import Driver, Failed, for_js, needs_web, options_of, write_adapter

import edgedec
from edgedec.errors import ContextFull
from edgedec.spec import KV_FORMATS

pytestmark = needs_web
GOLDEN = Path(__file__).parents[1] / "golden" / "nano_native.json"
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def js() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_the_engines_bytes(js: Driver, nano: Path, kv: str) -> None:
    found = js("golden", model={"bundle": str(nano), "kv": kv, "isa": "wasm"}, prompt=PROMPT, n=30)
    assert found == json.loads(GOLDEN.read_text("utf-8"))[kv]


@pytest.mark.parametrize("spec", ["off", "copy+recycling"])
@pytest.mark.parametrize("kv", KV_FORMATS)
def test_random_requests(js: Driver, nano: Path, kv: str, spec: str) -> None:
    """Python runs without drafts: with them nothing may change."""
    python = edgedec.open(nano, engine="native", kv=kv)
    reasons, drafted = set(), 0
    for seed in range(25):
        r = random.Random(f"{kv} {spec} {seed}")
        vocab = python.spec.vocab_size
        prompt = [r.randrange(vocab) for _ in range(r.choice([1, 2, 20, 39]))]
        options, context = options_of(r, vocab), r.choice([None, 40, 64])
        session = python.session(context=context, speculate="off")
        asked = {"context": context or 0, "speculate": spec, "draft": 0 if spec == "off" else 6}
        given = {"model": {"bundle": str(nano), "kv": kv}, "session": asked, "prompt": prompt}
        try:
            want = [int(token) for token in session.tokens(prompt, **options)]
        except ContextFull:
            with pytest.raises(Failed) as caught:
                js("generate", **given, options=for_js(options))
            assert caught.value.code == "full"
            reasons.add("full")
            continue
        got = js("generate", **given, options=for_js(options))
        assert (got["ids"], got["finish"], got["cached"]) == (
            want,
            session.finish_reason,
            session._context.cache.length,
        )
        reasons.add(got["finish"])
        drafted += got["drafted"]
    assert len(reasons) > 1
    assert (drafted > 0) == (spec != "off")


def test_sessions_are_pythons(js: Driver, nano: Path, tmp_path: Path) -> None:
    model, options = {"bundle": str(nano)}, {"temperature": 0.9, "max_tokens": 20, "seed": 3}
    saved = js("saved", model=model, session={"speculate": "off"}, prompt=PROMPT, options=for_js(options))
    path = tmp_path / "s.session"
    path.write_bytes(base64.b64decode(saved))
    python = edgedec.open(nano, engine="native").session(speculate="off")
    python.load(path)
    follows = {"temperature": 0.9, "max_tokens": 20}
    first, fork = js("loaded", model=model, session={"speculate": "off"}, saved=saved, options=for_js(follows))
    want = [int(token) for token in python.tokens(**follows)]
    assert first["ids"] == fork["ids"] == want
    python.save(path)
    again = base64.b64encode(path.read_bytes()).decode()
    assert js("loaded", model=model, session={}, saved=again, options={"maxTokens": 5})[0]["ids"]


def test_together_is_each_alone(js: Driver, nano: Path) -> None:
    model = {"bundle": str(nano)}
    requests = [
        {"prompt": text, "options": {"maxTokens": 12 + 9 * i, "temperature": 0.7 * (i % 2), "seed": str(i)}}
        for i, text in enumerate([PROMPT, "One day, a dog", "The", "Lily and Tom went"])
    ]
    alone = [js("generate", model=model, session={"speculate": "off"}, **request) for request in requests]
    found = js("together", model=model, session={"speculate": "off"}, requests=requests)
    assert [each["text"] for each in found] == [each["text"] for each in alone]
    assert all(each["text"] for each in found)


def test_leaving_the_loop_leaves_the_text_there(js: Driver, nano: Path) -> None:
    """Also where a forward call had given more tokens than were taken."""
    given = {"model": {"bundle": str(nano)}, "prompt": "cat dog cat dog cat dog", "options": {"maxTokens": 60}}
    whole = js("generate", session={"speculate": "copy+recycling", "draft": 6}, **given)
    assert whole["drafted"]
    for take in (1, 7, 20):
        part = js("generate", session={"speculate": "copy+recycling", "draft": 6}, take=take, **given)
        assert part["ids"] == whole["ids"][:take]
        assert part["all"] == whole["all"][: len(part["all"])]
        assert len(part["all"]) - part["result"]["prompt"] == take == part["result"]["generated"]


def test_stop_strings_and_logprobs(js: Driver, nano: Path) -> None:
    session = edgedec.open(nano, engine="native").session(speculate="off")
    want = "".join(session.generate(PROMPT, max_tokens=60, stop=["Lily."]))
    given = {"model": {"bundle": str(nano)}, "session": {}, "prompt": PROMPT}
    got = js("generate", **given, options={"maxTokens": 60, "stop": "Lily."})
    assert (got["text"], got["finish"]) == (want, "stop")
    ids = session.model.tokenizer.encode(" a dog")
    session = session.model.session(speculate="off")
    session.append(session.model.tokenizer.encode(PROMPT))
    scores = js("score", model=given["model"], prompt=PROMPT, ids=ids)
    assert np.allclose(scores, session.score(ids), rtol=0, atol=1e-9)


def test_an_abort_ends_it(js: Driver, nano: Path) -> None:
    found = js("aborted", model={"bundle": str(nano)}, prompt=PROMPT)
    assert found["code"] == "cancelled"
    assert 0 < found["n"] < 900


def test_a_running_session_is_busy(js: Driver, nano: Path) -> None:
    assert js("busy", model={"bundle": str(nano)}, prompt=PROMPT) == ["busy", "busy", "busy", "usage"]


def test_text_is_the_tokenizers(js: Driver, nano: Path) -> None:
    texts = ["Hello world", "", "a\n\nb", "日本語 👩‍👩‍👧", "zero \0 in it", "<|user|>\nHi<|end|>"]
    tokenizer = edgedec.open(nano).tokenizer
    for text, (ids, _) in zip(texts, js("text", model={"bundle": str(nano)}, texts=texts), strict=True):
        assert ids == tokenizer.encode(text)


def test_errors_have_names(js: Driver, nano: Path, tmp_path: Path) -> None:
    model = {"bundle": str(nano)}
    generate = {"model": model, "session": {}, "prompt": PROMPT}
    for code, act, given in [
        ("usage", "generate", generate | {"options": {"maxToken": 3}}),
        ("usage", "generate", generate | {"options": {"temperature": -1}}),
        ("usage", "generate", generate | {"options": {"temperature": "warm"}}),
        ("usage", "generate", generate | {"options": {"seed": "-1"}}),
        ("usage", "generate", generate | {"prompt": [1 << 20], "options": {}}),
        ("usage", "generate", generate | {"session": {"speculate": "magic"}, "options": {}}),
        ("usage", "about", {"model": model | {"kv": "int2"}}),
        ("not_found", "about", {"model": {"bundle": str(tmp_path / "none")}}),
        ("not_found", "about", {"model": {"bundle": str(tmp_path)}}),
    ]:
        with pytest.raises(Failed) as caught:
            js(act, **given)
        assert caught.value.code == code, caught.value
    assert js("generate", **generate, options={"maxTokens": 3})["ids"]  # nothing was left broken


def test_tampering_is_found(js: Driver, nano: Path, tmp_path: Path) -> None:
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.packed import pack

    whole = tmp_path / "nano.edb"
    pack(Bundle.open(nano), whole)
    assert js("about", model={"bundle": str(whole)})["strings"][0] == "nano"
    bytes_ = bytearray(whole.read_bytes())
    for name, change in {"flipped": len(bytes_) // 2, "cut": None}.items():
        path = tmp_path / f"{name}.edb"
        raw = bytearray(bytes_)
        if change is None:
            del raw[-9:]
        else:
            raw[change] ^= 1
        path.write_bytes(raw)
        with pytest.raises(Failed) as caught:
            js("about", model={"bundle": str(path)})
        assert caught.value.code == "corrupt"


def test_adapters_are_pythons(js: Driver, nano: Path, tmp_path: Path) -> None:
    python = edgedec.open(nano, engine="native")
    write_adapter(tmp_path / "a.lora", python)
    given = {"model": {"bundle": str(nano)}, "prompt": PROMPT, "options": {"maxTokens": 40}}
    plain = js("generate", session={"speculate": "off"}, **given)["ids"]
    session = python.session(speculate="off", adapter=python.adapter(tmp_path / "a.lora"))
    want = [int(token) for token in session.tokens(python.tokenizer.encode(PROMPT), max_tokens=40)]
    assert want != plain
    for spec in ("off", "copy+recycling"):
        got = js("adapted", session={"speculate": spec}, adapter=str(tmp_path / "a.lora"), **given)
        assert got["ids"] == want
    (tmp_path / "broken.lora").write_bytes((tmp_path / "a.lora").read_bytes()[:-7])
    for name, code in {"broken.lora": "usage", "none.lora": "not_found"}.items():
        with pytest.raises(Failed) as caught:
            js("adapted", session={}, adapter=str(tmp_path / name), **given)
        assert caught.value.code == code
