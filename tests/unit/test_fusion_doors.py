"""Fusion by words: in Python, on the command line, in requests and batches; what is refused, and what it leaves."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from serving import serving
from typer.testing import CliRunner

import edgedec
from edgedec.cli._app import app
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.scheduler.batch import Batch
from edgedec.errors import EdgedecError, UsageError
from edgedec.fusion import FAMILY, calibrated_temperature, check_fusion, make_fusion
from edgedec.fusion._calibration import temperature_of
from edgedec.fusion.anchor import Anchored
from edgedec.fusion.late import Late
from edgedec.offline import BatchJob, Defaults

PROMPT, WORDS = "Once upon a time", "cfg:scale=2.5,negative='A dog ran to the park.'"


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


def alone(model: edgedec.Model, n: Any = 16, speculate: Any = "off", **options: Any) -> str:
    return "".join(model.session(context=256, speculate=speculate).generate(PROMPT, max_tokens=n, **options))


def every(nano: Path) -> list[str]:
    """One of each kind."""
    return [
        WORDS,
        "cfg",
        "contrast:prompt='A dog',weight=1",
        f"contrast:bundle='{nano}',alpha=0.2",
        "late:prompt='The dragon said',own=4,other=0.3,weight=3",
        f"anchor:bundle='{nano}',k=0.01",
        "anchor:prompt='The dragon',k=0.2",
        "search:alpha=0.8,top_k=5",
        f"{WORDS}+late:prompt='A dog',own=5,weight=4",
    ]


def test_all_of_them_with_and_without_drafts(model: edgedec.Model, nano: Path) -> None:
    texts = []
    for words in every(nano):
        for options in ({}, {"temperature": 0.9, "seed": 3, "top_p": 0.95}):
            plain = alone(model, fuse=words, **options)
            assert alone(model, fuse=words, speculate="copy+recycling", **options) == plain, words
            texts.append(plain)
    assert len(set(texts)) > 10
    # The safe model is the model itself: nothing is spent, and nothing changes.
    assert alone(model, fuse=f"anchor:bundle='{nano}',k=0.01") == alone(model)


def test_without_a_budget_the_text_is_the_safe_one(model: edgedec.Model) -> None:
    """Also where the engine draws by itself: drawn with the seed, it is what the safe prompt alone would give."""
    for options in ({}, {"temperature": 0.9, "seed": 3, "top_p": 0.95}):
        safe = "".join(model.session(context=256).generate("The dragon", max_tokens=16, **options))
        assert alone(model, fuse="anchor:prompt='The dragon',k=0", **options) == safe != alone(model, **options)


def test_neutral_words_are_plain(model: edgedec.Model, nano: Path) -> None:
    plain = alone(model)
    idle = ["cfg:scale=1", "contrast:prompt=A,weight=0,alpha=0", "late:prompt=A,weight=0", "search:alpha=0"]
    for words in (*idle, "", ()):
        assert alone(model, fuse=words) == plain


def test_words_objects_and_lists_are_the_same(model: edgedec.Model) -> None:
    one = {"name": "cfg", "scale": 2.5, "negative": "A dog ran to the park."}
    found = {alone(model, fuse=words) for words in (WORDS, one, [one], [WORDS])}
    assert len(found) == 1
    assert found != {alone(model)}
    assert alone(model, fuse=WORDS, processors="dola:early=[2,4]") not in {*found, alone(model, processors="dola")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("cgf", "fuse: no fusion 'cgf'.*did you mean cfg"),
        ("cfg:scale=-1", "fuse cfg: scale=-1: must be 0 or more"),
        ("cfg:scales=2", "fuse cfg: no option 'scales'.*did you mean scale"),
        ("contrast", "fuse contrast: needs bundle=, adapter= or prompt="),
        ("late:own=1", "fuse late: needs bundle="),
        ("anchor:prompt=x", "fuse anchor: needs k="),
        ("anchor:k=1", "fuse anchor: needs bundle="),
        ("anchor:k=1,prompt=x,debt=3", "fuse anchor: debt: not with prompt="),
        ("contrast:prompt=x,adapter=none", "fuse contrast: adapter and prompt: one of them only"),
        ("contrast:bundle=/no/where", "fuse contrast: bundle=/no/where: "),
        ("contrast:adapter=/no/where", "/no/where"),
        ("late:prompt=x,own=0.05", "from 0.1 to 10"),
        ("value", "fuse value: needs command="),
        ('value:command="\'x"', "command='x: No closing quotation"),
        ("anchor:prompt=x,k=1+anchor:prompt=y,k=1", "two that fuse whole distributions"),
        ("+".join(["cfg"] * 5), "fuse: 5; at most 4 are allowed"),
        (5, "fuse: must be text, an object or a list, not int"),
    ],
)
def test_words_that_name_none(model: edgedec.Model, words: Any, message: str) -> None:
    with pytest.raises(EdgedecError, match=message):
        make_fusion(model, words)


def test_a_bundle_with_other_tokens_is_refused(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(bundle: Any) -> bool:
        monkeypatch.setattr("edgedec.fusion._source.find", lambda path: path)
        monkeypatch.setattr("edgedec.fusion._source.Bundle.open", lambda path: bundle)
        try:
            make_fusion(model, "contrast:bundle=x")
        except UsageError as error:
            return "contrast: bundle=x: its tokens are not those of this model" in str(error)
        return False

    own, text = model.bundle, model.bundle.manifest.text
    assert not refused(own)
    without = replace(own.manifest, text=replace(text, tokenizer=None))
    assert refused(replace(own, manifest=without))
    larger = replace(own.manifest, spec=replace(own.spec, vocab_size=own.spec.vocab_size + 1))
    assert refused(replace(own, manifest=larger))
    monkeypatch.setattr("edgedec.fusion._source.translator_of", lambda host, bundle: object())
    assert refused(own)


def test_an_engine_without_trees_and_a_diffusion_model_are_refused(
    model: edgedec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.runtime, "capabilities", replace(model.runtime.capabilities, trees=False))
    with pytest.raises(UsageError, match="runs one row at a time"):
        make_fusion(model, WORDS)


def test_every_file_says_that_it_is_lossy_and_what_it_rests_on() -> None:
    assert set(FAMILY.names()) >= {"anchor", "cfg", "contrast", "format", "late", "search", "value"}
    for name in FAMILY.names():
        facts = FAMILY.facts(name)
        assert "(lossy)" in FAMILY.summary(name)
        assert facts.lossy
        assert facts.rests
        assert facts.paper


# --- the command line, the server, a batch ---


def test_the_flag(model: edgedec.Model, nano: Path) -> None:
    common = ["run", "-m", str(nano), "-p", PROMPT, "-n", "16", "--no-echo", "--temp", "0", "-t", "1"]
    found = CliRunner().invoke(app, [*common, "--fuse", WORDS]).stdout
    assert found.rstrip("\n") == alone(model, fuse=WORDS)
    failed = CliRunner().invoke(app, [*common, "--fuse", "cgf"])
    assert (failed.exit_code, "did you mean cfg" in failed.stderr) == (1, True)
    turns = ["chat", "-m", str(nano), "-n", "12", "--temp", "0", "-t", "1", "--fuse", WORDS]
    lines = CliRunner().invoke(app, turns, input="Hello\n/reset\nHello\n").stdout.splitlines()
    half = len(lines) // 2
    assert lines[:half] == lines[half : 2 * half]
    assert any(lines)


def test_requests(model: edgedec.Model, nano: Path) -> None:
    body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0}
    wanted = alone(model, fuse=WORDS)
    with serving(model) as (place, _):

        def post(**more: Any) -> httpx.Response:
            return httpx.post(f"{place}/v1/completions", json=body | more, timeout=60)

        assert [c["text"] for c in post(fuse=WORDS, n=2).json()["choices"]] == [wanted] * 2
        assert post(fuse=None).json()["choices"][0]["text"] == alone(model)
        for words, said in (
            ("cgf", "did you mean cfg"),
            (f"contrast:bundle={nano}", "not in a request; start the server with --fuse"),
            ("contrast:adapter=none", "not in a request"),
            ("value:command=true", "not in a request"),
            ("format:hmm=/etc/passwd,pattern=x", "not in a request"),
            ({"name": "cfg", "scale": "x"}, "scale"),
        ):
            answer = post(fuse=words)
            assert answer.status_code == 400, words
            assert said in answer.json()["error"]["message"]
            assert answer.json()["error"]["param"].startswith("fuse")
        listed = httpx.get(f"{place}/v1/plugins/fusion", timeout=60).json()["data"]
        assert {one["name"] for one in listed} == set(FAMILY.names())
        model.fuse = WORDS
        try:
            assert post().json()["choices"][0]["text"] == wanted
            assert post(fuse=[]).json()["choices"][0]["text"] == alone(model)
        finally:
            model.fuse = ""


def test_a_server_that_fuses_says_at_its_start_what_is_wrong(nano: Path) -> None:
    failed = CliRunner().invoke(app, ["serve", "-m", str(nano), "--port", "0", "--fuse", "cgf"])
    assert (failed.exit_code, "did you mean cfg" in failed.stderr) == (1, True)


def test_rows_of_a_batch(model: edgedec.Model, nano: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": PROMPT, "fuse": WORDS},
        {"prompt": PROMPT, "fuse": []},
        {"prompt": PROMPT},
        {"prompt": PROMPT, "fuse": {"name": "contrast", "bundle": str(nano), "alpha": 0.2}},
        {"prompt": PROMPT, "fuse": "value:command=true"},
        {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": PROMPT, "max_tokens": 16, "fuse": WORDS}},
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    defaults = Defaults(GenerationConfig(max_tokens=16), fuse="cfg:scale=4")
    BatchJob(source, out, defaults, about={}, seed=1, slots=6).run(model, lambda: model.session(context=128))
    found = [json.loads(text) for text in out.read_text("utf-8").splitlines()]
    wanted = [alone(model, fuse=words) for words in (WORDS, (), "cfg:scale=4", f"contrast:bundle={nano},alpha=0.2")]
    assert [row.get("text") for row in found[:4]] == wanted
    assert "not in a row; give it with --fuse instead" in found[4]["error"]
    assert found[5]["response"]["body"]["choices"][0]["text"] == wanted[0]


def test_a_batch_is_continued_with_the_same_fusion_only(model: edgedec.Model, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "Once"}\n' * 3, "utf-8")

    def stop(progress: Any) -> None:
        if progress.rows:
            raise KeyboardInterrupt

    def run(show: Any, words: Any) -> None:
        job = BatchJob(source, out, Defaults(GenerationConfig(max_tokens=4), fuse=words), about={}, seed=1, slots=1)
        job.run(model, lambda: model.session(context=128), show)

    with pytest.raises(KeyboardInterrupt):
        run(stop, "cfg")
    for words in ((), "cfg:scale=2"):
        with pytest.raises(UsageError, match="was started with fuse 'cfg', not"):
            run(lambda progress: None, words)
    run(lambda progress: None, "cfg")
    assert len(out.read_text("utf-8").splitlines()) == 3
    wrong = BatchJob(source, tmp_path / "x.jsonl", Defaults(fuse="cgf"), about={}, seed=1, slots=1)
    with pytest.raises(UsageError, match="did you mean cfg"):
        wrong.run(model, model.session)


# --- what it leaves, and what it takes ---


def test_pages_are_as_before_after_an_end_a_cancel_and_an_error(model: edgedec.Model) -> None:
    batch = Batch(model.runtime)
    ids = model.tokenizer.encode(PROMPT)

    def held() -> int:
        gc.collect()
        return len({int(p) for cache in live() for p in cache.page_ids()})

    def live() -> list[Any]:
        from edgedec.runtimes._native_cache import NativeCache

        return [one for one in gc.get_objects() if type(one) is NativeCache]

    before = held()
    jobs = [
        model.session(context=128).submit(batch, ids, lambda token: None, fuse=words, max_tokens=40)
        for words in (WORDS, "contrast:prompt='A dog'", "search")
    ]
    assert jobs[0].need > 2 * (len(ids) + 40)
    for _ in range(5):
        batch.step()
    assert held() > before
    batch.cancel(jobs[0])
    batch.run()
    del jobs, batch
    assert held() <= before + 1  # the session's own page


def test_what_a_text_takes_with_its_companions(model: edgedec.Model) -> None:
    batch, ids = Batch(model.runtime), model.tokenizer.encode(PROMPT)

    def need(fuse: str) -> int:
        return model.session(context=256).submit(batch, ids, lambda token: None, fuse=fuse, max_tokens=20).need

    plain = need("")
    assert plain == len(ids) + 20
    assert need("cfg:scale=1") == plain
    assert need("cfg:scale=2") == 2 * plain
    assert need("cfg:negative='A dog'") == 2 * plain + len(model.tokenizer.encode("A dog"))
    batch.run()


# --- calibration ---


def test_the_temperature_is_where_a_model_is_as_sure_as_it_is_right() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (400, 20)).astype(np.float32)
    right = rng.random(400) < 0.4
    found = temperature_of(logits, right)
    p = np.exp(logits / found)
    assert (p.max(axis=1) / p.sum(axis=1)).mean() == pytest.approx(right.mean(), abs=1e-3)
    assert temperature_of(logits, np.ones(400, bool)) == pytest.approx(0.1, rel=1e-3)
    assert temperature_of(logits / np.float32(100), np.zeros(400, bool)) == pytest.approx(10, rel=1e-3)


def test_calibration_of_a_model(model: edgedec.Model) -> None:
    texts = ["Once upon a time, there was a little girl named Lily.", "The dog ran to the park and saw a big ball."]
    found = calibrated_temperature(model, [texts[0], model.tokenizer.encode(texts[1])])
    assert 0.1 < found < 10
    sure, right = [], []
    for text in texts:
        ids = model.tokenizer.encode(text)
        for n in range(1, len(ids)):
            session = model.session(context=64)
            session.append(ids[:n])
            p = session.next_probs() ** (1 / found)
            sure.append(p.max() / p.sum())
            right.append(int(p.argmax()) == ids[n])
    assert np.mean(sure) == pytest.approx(np.mean(right), abs=1e-3)
    with pytest.raises(UsageError, match="needs a text of two tokens or more"):
        calibrated_temperature(model, [[5], []])


def test_the_makers_give_what_words_say(model: edgedec.Model) -> None:
    (late,) = make_fusion(model, "late:prompt=x,own=2")
    (anchor,) = make_fusion(model, "anchor:adapter=none,k=0.5,debt=3")
    assert isinstance(late, Late)
    assert isinstance(anchor, Anchored)
    assert anchor.debt is None
    assert not anchor.companion.source.follows_adapter
    check_fusion("cfg")
    with pytest.raises(UsageError, match="fuse contrast: bundle: not here"):
        check_fusion("contrast:bundle=x", {"bundle"}, "here")
