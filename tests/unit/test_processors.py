"""The family of logits processors: contrast between layers against a naive one, and words in every door."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from loops import decode
from serving import serving
from typer.testing import CliRunner

import edgedec
from edgedec.cli._app import app
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats
from edgedec.drafters import BaseDrafter, Draft, Drafter
from edgedec.drafters.off import Off
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.offline import BatchJob, Defaults
from edgedec.processors import check_processors, make_processors
from edgedec.processors.dola import LayerContrast, default_layers
from edgedec.runtime import Call, Outputs, Rows, Runtime, forward_one
from edgedec.sampling import Sampling, draw, probs
from edgedec.testing.fakes import Limited, PerfectDrafter, RandomDrafter, random_reference

PROMPT = [3, 1, 4, 1, 5]
INF = float("inf")


def run(
    on: Runtime, drafter: Drafter | None = None, seed: int = 7, stats: Stats | None = None, **config: Any
) -> list[int]:
    context = Context(list(PROMPT), len(PROMPT), on.new_cache(64), None, np.random.default_rng(seed))
    options = {"max_tokens": 20} | config
    found = decode(on, context, GenerationConfig(**options), Limited(drafter or Off(), 6), stats)
    return [int(token) for token in found]


def naive_contrast(on: Runtime, ids: list[int], early: Sequence[int], share: float) -> np.ndarray:
    """Written from the paper: candidates, the early layer farthest away, the difference."""

    def softmax(logits: np.ndarray) -> np.ndarray:
        e = np.exp(logits.astype(np.float64) - logits.max())
        return e / e.sum()

    last_block = on.spec.n_blocks - 1
    cache = on.new_cache(64)
    outputs = Outputs(hidden=(*early, last_block))
    states = forward_one(on, Call(Rows.chain(ids, 0), cache, outputs=outputs)).hidden
    p = {b: softmax(on.head(states[b][-1:])[0]) for b in (*early, last_block)}
    last = p[last_block]

    def divergence(q: np.ndarray) -> float:
        middle = (last + q) / 2
        return float((last * np.log(last / middle)).sum() / 2 + (q * np.log(q / middle)).sum() / 2)

    farthest = max(early, key=lambda b: divergence(p[b]))
    scores = np.full(len(last), -INF)
    likely = last >= share * last.max()
    scores[likely] = np.log(last[likely]) - np.log(p[farthest][likely])
    return scores.astype(np.float32)


@pytest.mark.parametrize("early", [(1,), (0, 3)])
def test_layer_contrast_is_the_naive_one(early: tuple[int, ...]) -> None:
    on, chosen = random_reference(), []
    for sampling in (Sampling(), Sampling(temperature=1.5)):
        rng, ids = np.random.default_rng(7), list(PROMPT)
        for _ in range(12):
            scores = naive_contrast(on, ids, early, 0.1)
            ids.append(draw(probs(scores, sampling, ids, len(PROMPT)), rng))
        wanted = ids[len(PROMPT) :]
        config = {"sampling": sampling, "max_tokens": 12, "processors": (LayerContrast(early),)}
        assert run(on, **config) == wanted
        for drafter in (PerfectDrafter(ids, 1), RandomDrafter(2)):
            stats = Stats()
            assert run(on, drafter, stats=stats, **config) == wanted
            assert stats.proposed
        chosen.append(wanted)
        assert wanted != run(on, sampling=sampling, max_tokens=12)
    assert chosen[0] != chosen[1]


class Resumed(BaseDrafter):
    """Runs the first block itself, as an early-exit drafter does, and gives the state that enters the second."""

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Any:
        ids, n = context.ids, min(nodes, 2)
        rows = Rows.chain([*ids[context.cache.length :], *[7, 8][:n]], context.cache.length)
        done = yield Call(rows, context.cache, (0,), outputs=Outputs(hidden=(0,)))
        blocks = range(1, context.cache.spec.n_blocks)
        return Draft((7, 8)[:n], (-1, 0)[:n], blocks=blocks, hidden=done.result.hidden[0])


def test_early_logits_of_blocks_that_a_draft_has_been_through() -> None:
    config: dict[str, Any] = {"processors": (LayerContrast((0,)),), "max_tokens": 10}
    stats = Stats()
    assert run(random_reference(), Resumed(), stats=stats, **config) == run(random_reference(), **config)
    assert stats.proposed


def test_the_worked_example() -> None:
    def logits(*p: float) -> np.ndarray:
        return np.log(np.array(p)).astype(np.float32)

    found = LayerContrast((0,), 0.3).process(logits(0.5, 0.4, 0.1), [], {0: logits(0.5, 0.1, 0.4)})
    assert found[:2].tolist() == pytest.approx([0.0, np.log(4)], abs=1e-6)
    assert found[2] == -INF


@pytest.mark.parametrize(("early", "share"), [((), 0.1), ((1,), 0.0), ((1,), 1.5)])
def test_a_contrast_without_layers_or_share_is_refused(early: tuple[int, ...], share: float) -> None:
    with pytest.raises(UsageError, match="layer contrast"):
        LayerContrast(early, share)


# --- words ---


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


def alone(model: edgedec.Model, prompt: str = "Once upon a time", n: int = 16, **options: Any) -> str:
    return "".join(model.session(context=128).generate(prompt, max_tokens=n, **options))


def test_layers_are_counted_from_one_and_named_by_their_last_block(model: edgedec.Model) -> None:
    (found,) = make_processors(model, "dola:early=[1,3],share=0.2")
    assert found.early == (model.spec.span(0, 1)[-1], model.spec.span(2, 3)[-1])
    assert found.early[0] > 0  # a layer here has two blocks
    (default,) = make_processors(model, "dola")
    assert default.early == tuple(model.spec.span(layer - 1, layer)[-1] for layer in (2, 4, 6))
    assert model.spec.n_layers == 14


@pytest.mark.parametrize(("n", "layers"), [(2, (1,)), (4, (1,)), (6, (2,)), (12, (2, 4)), (32, tuple(range(2, 16, 2)))])
def test_the_default_layers(n: int, layers: tuple[int, ...]) -> None:
    assert default_layers(n) == layers
    assert default_layers(80) == tuple(range(2, 20, 2))


def test_words_objects_and_lists_are_the_same(model: edgedec.Model) -> None:
    plain, wanted = alone(model), alone(model, processors=make_processors(model, "dola:early=[2,4]"))
    assert plain != wanted
    words: list[Any] = ["dola:early=[2,4]", {"name": "dola", "early": [2, 4]}, [{"name": "dola", "early": [2, 4]}]]
    assert [alone(model, processors=given) for given in (*words, ["dola:early=[2,4]"])] == [wanted] * 4
    drafted = model.session(context=128, speculate="copy+recycling")
    assert "".join(drafted.generate("Once upon a time", max_tokens=16, processors=words[0])) == wanted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("dolla", "did you mean dola"),
        ("dola:early=[0]", r"early=0: must be from 1 to 13"),
        ("dola:early=[14]", r"early=14: must be from 1 to 13"),
        ('dola:early=["a"]', "each item a whole number|must be a whole number"),
        ("dola:share=0", "above 0, up to 1"),
        ("dola:shares=1", "did you mean share"),
        ("dola:share=0.1,share=0.2", "given twice"),
        ("+".join(["dola"] * 17), "17; at most 16"),
        (["dola"] * 17, "17; at most 16"),
        ([5], "must be text or an object"),
    ],
)
def test_words_that_name_none(model: edgedec.Model, words: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_processors(model, words)
    assert alone(model, n=1)


def test_other_types_are_refused() -> None:
    with pytest.raises(UsageError, match="not int"):
        check_processors(5)  # type: ignore[arg-type]


def test_an_engine_without_inner_layers_says_so(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for lack in ("hidden", "slices"):
        with monkeypatch.context() as patch:
            patch.setattr(model.runtime, "capabilities", replace(model.runtime.capabilities, **{lack: False}))
            with pytest.raises(RuntimeUnavailable, match="no logits of inner layers"):
                make_processors(model, "dola")


def test_a_config_without_processors_still_takes_the_largest() -> None:
    assert GenerationConfig().takes_largest
    assert not GenerationConfig(processors=(LayerContrast((0,)),)).takes_largest


# --- the command line, the server, a batch ---


def test_the_flag(nano: Path, model: edgedec.Model) -> None:
    common = ["run", "-m", str(nano), "-p", "Once upon a time", "-n", "16", "--no-echo", "--temp", "0", "-t", "1"]
    found = CliRunner().invoke(app, [*common, "--processors", "dola:early=[2,4]"]).stdout
    assert found.rstrip("\n") == alone(model, processors="dola:early=[2,4]") != alone(model)
    failed = CliRunner().invoke(app, [*common, "--processors", "dolla"])
    assert (failed.exit_code, "did you mean dola" in failed.stderr) == (1, True)


def test_every_turn_of_a_chat_has_them(nano: Path) -> None:
    common = ["chat", "-m", str(nano), "-n", "12", "--temp", "0", "-t", "1"]
    texts = [
        CliRunner().invoke(app, [*common, *more], input="Hello\n/reset\nHello\n").stdout.splitlines()
        for more in ([], ["--processors", "dola:early=[2,4]"])
    ]
    assert texts[1][0] == texts[1][1]  # the second turn is another text with the same processor
    assert texts[0] != texts[1]


def test_requests(model: edgedec.Model) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
    wanted = alone(model, processors="dola:early=[2,4]")
    with serving(model) as (place, _):

        def post(**more: Any) -> httpx.Response:
            return httpx.post(f"{place}/v1/completions", json=body | more, timeout=60)

        for words in ("dola:early=[2,4]", {"name": "dola", "early": [2, 4]}, [{"name": "dola", "early": [2, 4]}]):
            found = post(processors=words, n=2)
            assert [choice["text"] for choice in found.json()["choices"]] == [wanted] * 2
        assert post().json()["choices"][0]["text"] == alone(model)
        for words in ("dolla", "dola:early=[99]", {"name": "dola", "early": "x"}, [5], "+".join(["dola"] * 17)):
            answer = post(processors=words)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"].startswith("processors")
        schema = httpx.get(f"{place}/openapi.json").json()["paths"]["/v1/completions"]["post"]["requestBody"]
        known = schema["content"]["application/json"]["schema"]["properties"]["processors"]["anyOf"]
        assert any(one.get("title") == "dola" and "early" in one["properties"] for one in known)


def test_rows_of_a_batch(model: edgedec.Model, tmp_path: Path) -> None:
    words = {"name": "dola", "early": [2, 4]}
    line = {"custom_id": "a", "url": "/v1/completions"}
    rows: list[dict[str, Any]] = [
        {"prompt": "Once upon a time", "processors": words},
        {"prompt": "Once upon a time", "processors": []},
        {"prompt": "Once upon a time"},
        {"prompt": "Once upon a time", "processors": "dolla"},
        {"prompt": "Once upon a time", "processors": 5},
        {**line, "body": {"prompt": "Once upon a time", "max_tokens": 16, "processors": [words]}},
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    defaults = Defaults(GenerationConfig(max_tokens=16), processors="dola:early=[3]")
    job = BatchJob(source, out, defaults, about={}, seed=1, slots=3)
    job.run(model, lambda: model.session(context=128))
    found = [json.loads(text) for text in out.read_text("utf-8").splitlines()]
    wanted = alone(model, processors=words)
    assert [row.get("text") for row in found[:3]] == [wanted, alone(model), alone(model, processors="dola:early=[3]")]
    assert len({row["text"] for row in found[:3]}) == 3
    assert "did you mean dola" in found[3]["error"]
    assert "not int" in found[4]["error"]
    assert found[5]["response"]["body"]["choices"][0]["text"] == wanted


def test_a_batch_is_continued_with_the_same_processors_only(model: edgedec.Model, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "Once"}\n' * 3, "utf-8")
    about: dict[str, Any] = {"about": {}, "seed": 1, "slots": 1}

    def stop(progress: Any) -> None:
        if progress.rows:
            raise KeyboardInterrupt

    def run(show: Any, words: Any) -> None:
        job = BatchJob(source, out, Defaults(GenerationConfig(max_tokens=4), processors=words), **about)
        job.run(model, lambda: model.session(context=128), show)

    with pytest.raises(KeyboardInterrupt):
        run(stop, "dola")
    for words in ((), "dola:early=[1]"):
        with pytest.raises(UsageError, match="was started with processors 'dola', not"):
            run(lambda progress: None, words)
    run(lambda progress: None, "dola")
    assert len(out.read_text("utf-8").splitlines()) == 3
    with pytest.raises(UsageError, match="did you mean dola"):
        BatchJob(source, tmp_path / "x.jsonl", Defaults(processors="dolla"), **about).run(model, model.session)
