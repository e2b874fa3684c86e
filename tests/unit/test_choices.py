"""Several texts of one prompt, in Python, by `run` and in batch files: each as it is alone, the prompt read once."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import edgedec
from edgedec.cli import _app
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.messages import Token
from edgedec.errors import UsageError
from edgedec.prompting import several
from edgedec.sampling import Sampling
from edgedec.search.choices import MOST, Choices, likelihood, ranked

PROMPT = "Once upon a time there was a dog who lived in a red house near a big tree. One day"
DRAWN: dict[str, Any] = {"max_tokens": 12, "temperature": 0.9}


@pytest.fixture(scope="module")
def model() -> edgedec.Model:
    return edgedec.open("nano", threads=1)


@pytest.fixture
def exact(model: edgedec.Model) -> None:
    if not model.runtime.capabilities.batch_invariant:
        pytest.skip("texts that share calls need a batch-invariant engine")


def suggested(model: edgedec.Model) -> GenerationConfig:
    """What commands begin with."""
    return GenerationConfig(model.sampling)


def alone(model: edgedec.Model, **options: Any) -> str:
    return "".join(piece.text for piece in model.session().stream(PROMPT, suggested(model), **options))


# -- the rule


def test_how_many_are_written() -> None:
    assert Choices().texts == 1
    assert Choices(3).texts == 3
    assert Choices(2, 5).texts == 5
    assert Choices(MOST, MOST).texts == MOST


@pytest.mark.parametrize(
    ("n", "best_of", "said"),
    [(0, 0, "n: 0 is"), (MOST + 1, 0, "n: 129 is"), (1, -1, "best_of: -1 is"), (3, 2, "best_of: 2 is below n")],
)
def test_what_is_out_of_range_is_named(n: int, best_of: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Choices(n, best_of)


def test_the_config_of_each() -> None:
    config = GenerationConfig(Sampling(temperature=1.0, seed=(1 << 32) - 2))
    assert [Choices(4).config(config, i).sampling.seed for i in range(4)] == [(1 << 32) - 2, (1 << 32) - 1, 0, 1]
    assert Choices(4).config(config, 2, stride=5).sampling.seed == 8
    assert Choices(2).config(config, 1).logprobs is None
    assert Choices(1, 2).config(config, 0).logprobs == 0, "what ranks needs log-probabilities"
    assert Choices(1, 2).config(GenerationConfig(logprobs=3), 1).logprobs == 3


def test_a_search_without_randomness_gives_its_next_text() -> None:
    config = GenerationConfig(search="beam:width=4,rank=1")
    assert [ranked(config, i).search for i in (0, 2)] == ["beam:width=4,rank=1", "beam:width=4,rank=3"]
    drawn = GenerationConfig(search="best:n=4")
    assert ranked(drawn, 2) == drawn


def test_the_likeliest_are_given_the_best_first() -> None:
    texts = [("a", -2.0), ("b", -0.5), ("c", -1.0), ("d", -0.5)]
    assert Choices(4).best(texts, lambda one: one[1]) == texts, "all in their order"
    assert Choices(2, 4).best(texts, lambda one: one[1]) == [("b", -0.5), ("d", -0.5)]
    assert likelihood([Token(1, -1.0), Token(2, -2.0), Token(3)]) == -1.5
    assert likelihood([]) == likelihood([Token(3)]) == 0.0


def test_equal_texts_are_refused() -> None:
    greedy = GenerationConfig(Sampling(temperature=0))
    Choices(1).check(greedy)
    Choices(2).check(GenerationConfig(Sampling(temperature=0), search="beam"))
    Choices(2).check(GenerationConfig(Sampling(temperature=0.1)))
    for choices in (Choices(2), Choices(1, 2)):
        with pytest.raises(UsageError, match=r"n: 2 texts at temperature 0 are one text"):
            choices.check(greedy)


# -- in Python


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    "way", [{}, {"stop": ["."], "max_tokens": 40}, {"repetition_penalty": 1.3}, {"search": "first:n=2"}]
)
def test_each_is_the_text_of_its_seed_alone(model: edgedec.Model, way: dict[str, Any]) -> None:
    options = {**DRAWN, **way}
    session = model.session()
    found = several(session, PROMPT, 3, 0, suggested(model), seed=5, **options)
    expected = [alone(model, seed=5 + i, **options) for i in range(3)]
    assert len(set(expected)) > 1
    assert [one.text for one in found] == expected
    assert [one.seed for one in found] == [5, 6, 7]
    assert session.ids == [], "the session's own text stays"


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("speculate", ["off", "auto"])
def test_the_prompt_is_read_once(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch, speculate: str) -> None:
    """Whether or not the call that reads it verifies a draft."""
    reads, forward = list[int](), model.runtime.forward

    def noted(calls: Any) -> Any:
        reads.extend(call.rows.count for call in calls if call.cache.length == 0)
        return forward(calls)

    monkeypatch.setattr(model.runtime, "forward", noted)
    prompt = "Once upon a time there was a little dog who lived in a big house with a red door. " * 4
    session = model.session(speculate=speculate)
    found = several(session, prompt, 4, 0, suggested(model), seed=0, max_tokens=8, temperature=0.2)
    n = len(model.tokenizer.encode(prompt))
    assert [one.stats.prompt for one in found] == [n] * 4
    assert len(reads) == 1, reads
    assert reads[0] >= n


@pytest.mark.usefixtures("exact")
def test_best_of_gives_the_likeliest(model: edgedec.Model) -> None:
    texts = several(model.session(), PROMPT, 4, 0, suggested(model), seed=2, logprobs=0, **DRAWN)
    best = several(model.session(), PROMPT, 2, 4, suggested(model), seed=2, **DRAWN)
    assert [one.text for one in best] == [one.text for one in sorted(texts, key=lambda one: -one.score)[:2]]
    assert best[0].score > best[1].score
    assert [one.text for one in best] != [one.text for one in texts[:2]], "it does not give the first ones"


def test_beams_are_the_best_in_their_order(model: edgedec.Model) -> None:
    texts = model.session().search("beam:width=3", PROMPT, config=suggested(model), max_tokens=8, temperature=0).texts
    found = several(model.session(), PROMPT, 3, 0, suggested(model), search="beam:width=3", max_tokens=8, temperature=0)
    assert [one.text for one in found] == [one.text for one in texts]
    assert len({one.text for one in found}) == 3
    assert all(one.search["candidates"] > 3 for one in found)


def test_without_a_seed_the_texts_differ(model: edgedec.Model) -> None:
    found = several(model.session(), PROMPT, 6, 0, suggested(model), max_tokens=20, temperature=1.5)
    assert len({one.text for one in found}) == 6
    again = alone(model, max_tokens=20, temperature=1.5, seed=found[3].seed)
    assert again == found[3].text or not model.runtime.capabilities.batch_invariant


def test_constraints_are_one_for_each(model: edgedec.Model) -> None:
    found = several(
        model.session(), PROMPT, 3, seed=1, max_tokens=8, temperature=1.0, constraint="span:passage='a red fox'"
    )
    assert all(one.text in "a red fox" for one in found)


def test_a_context_that_runs_full_ends_its_text(model: edgedec.Model) -> None:
    n = len(model.tokenizer.encode(PROMPT))
    found = several(model.session(context=n + 6), PROMPT, 2, 0, suggested(model), temperature=1.0, ignore_eos=True)
    assert [one.finish for one in found] == ["context", "context"]


# -- on the command line


def call(*args: object) -> Result:
    return CliRunner().invoke(_app.app, ["run", "-p", PROMPT, "-t", "1", *map(str, args)])


@pytest.mark.usefixtures("exact")
def test_run_prints_them_in_their_order(model: edgedec.Model) -> None:
    result = call("-n", 12, "--temp", 0.9, "--seed", 5, "--n-cmpl", 3, "--stats")
    texts = [PROMPT + alone(model, **DRAWN, seed=5 + i) for i in range(3)]
    assert result.stdout == "\n---\n".join(texts) + "\n"
    assert "3 texts of 36 tokens in all" in result.stderr
    assert result.stderr.rstrip().endswith("finish: length, length, length, seed 5")
    bare = call("-n", 12, "--temp", 0.9, "--seed", 5, "--num-return-sequences", 2, "--no-echo")
    assert bare.stdout == "\n---\n".join(alone(model, **DRAWN, seed=5 + i) for i in range(2)) + "\n"


@pytest.mark.usefixtures("exact")
def test_run_with_json(model: edgedec.Model) -> None:
    report = json.loads(call("-n", 6, "--temp", 0.9, "--seed", 3, "--n-cmpl", 2, "--json", "--logprobs", 1).stdout)
    assert report["prompt"] == PROMPT
    assert [one["seed"] for one in report["texts"]] == [3, 4]
    assert [one["text"] for one in report["texts"]] == [
        alone(model, max_tokens=6, temperature=0.9, seed=s) for s in (3, 4)
    ]
    for one in report["texts"]:
        assert [entry["token"] for entry in one["logprobs"]] == one["tokens"]
        assert one["finish_reason"] == "length"
        assert "score" not in one
    best = json.loads(call("-n", 6, "--temp", 0.9, "--seed", 3, "--best-of", 4, "--json").stdout)
    (one,) = best["texts"]
    expected = several(model.session(), PROMPT, 1, 4, suggested(model), max_tokens=6, temperature=0.9, seed=3)[0]
    assert (one["text"], one["seed"]) == (expected.text, expected.seed)
    assert one["score"] == round(expected.score, 6) < 0
    assert best["stats"]["written"] == 4


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--n-cmpl", 2, "--temp", 0), "temperature 0"),
        (("--n-cmpl", 3, "--best-of", 2), "best_of: 2 is below n, which is 3"),
        (("--n-cmpl", 2, "--session", "text.session"), "--session: keeps one text"),
        (("--best-of", 2, "--learn"), "--learn: keeps one text"),
        (("--n-cmpl", 4, "--search", "beam:width=3", "--temp", 0), "rank=3: 3 texts are found"),
    ],
)
def test_misuse_is_one_line(args: tuple[object, ...], said: str) -> None:
    result = call("-n", 4, *args)
    assert result.exit_code != 0
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert said in result.stderr


# -- in batch files


def batched(folder: Path, source: str, *more: object, name: str = "in.jsonl") -> list[dict[str, Any]]:
    (folder / name).write_text(source, "utf-8")
    out = folder / "out.jsonl"
    args = ["batch", folder / name, "-o", out, "-n", 6, "-t", 1, "--seed", 7, *more]
    result = CliRunner().invoke(_app.app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in out.read_bytes().splitlines()]


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("slots", [1, 16])
def test_rows_with_several_texts(model: edgedec.Model, tmp_path: Path, slots: int) -> None:
    rows = [
        {"prompt": PROMPT, "n": 3, "temperature": 0.9, "id": "a"},
        {"prompt": PROMPT, "n": 2, "temperature": 0.9, "seed": 40},
        {"prompt": PROMPT, "best_of": 4, "temperature": 0.9, "seed": 3},
        {"prompt": PROMPT, "temperature": 0},
        {"prompt": PROMPT, "n": 2, "search": "beam:width=2", "temperature": 0},
    ]
    found = batched(tmp_path, lines(*rows), "-b", slots)
    assert [out["row"] for out in found] == list(range(5))
    assert found[0]["id"] == "a"
    assert found[0]["prompt_tokens"] == len(model.tokenizer.encode(PROMPT))
    assert len(found[0]["texts"]) == 3
    assert [one["seed"] for one in found[1]["texts"]] == [40, 41]
    for one in [*found[0]["texts"], *found[1]["texts"]]:
        assert one["text"] == alone(model, max_tokens=6, temperature=0.9, seed=one["seed"])
        assert one["generated_tokens"] == 6
    best = several(model.session(), PROMPT, 1, 4, suggested(model), max_tokens=6, temperature=0.9, seed=3)[0]
    assert (found[2]["text"], found[2]["seed"]) == (best.text, best.seed)
    assert set(found[3]) == {"row", "text", "finish_reason", "prompt_tokens", "generated_tokens"}
    beams = model.session().search("beam:width=2", PROMPT, config=suggested(model), max_tokens=6, temperature=0).texts
    assert [one["text"] for one in found[4]["texts"]] == [one.text for one in beams]


def test_texts_of_rows_without_a_seed_draw_apart(tmp_path: Path) -> None:
    found = batched(tmp_path, lines(*[{"prompt": PROMPT}] * 3), "--n-cmpl", 3, "--temp", 1)
    seeds = [one["seed"] for out in found for one in out["texts"]]
    assert seeds[0::3] == [7, 8, 9], "the first text of a row is that of a row with one text"
    assert len(set(seeds)) == 9


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"n": 0}, "n: 0 is out of range; allowed: 1 to 128"),
        ({"n": "two"}, "n: not JSON"),
        ({"n": 1.5}, "n: 1.5 must be a whole number"),
        ({"n": 3, "best_of": 2}, "best_of: 2 is below n, which is 3"),
        ({"n": 2, "temperature": 0}, "n: 2 texts at temperature 0 are one text"),
        ({"n": 3, "search": "beam:width=2"}, "rank=2: 2 texts are found"),
    ],
)
def test_bad_rows_stand_in_their_place(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    good = {"prompt": "One day", "n": 2, "temperature": 1}
    found = batched(tmp_path, lines(good, {"prompt": "One day", **row}, good))
    assert said in found[1]["error"]
    assert len(found[0]["texts"]) == len(found[2]["texts"]) == 2


def test_of_a_row_that_names_one_the_other_flag_does_not_hold(tmp_path: Path) -> None:
    rows = lines({"prompt": "One day", "n": 3}, {"prompt": "One day"}, {"prompt": "One day", "best_of": 3})
    found = batched(tmp_path, rows, "--n-cmpl", 2, "--best-of", 2, "--temp", 1)
    assert [len(out.get("texts", [0])) for out in found] == [3, 2, 1]


def test_a_text_that_fails_fails_its_row(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    row = {"prompt": "One day", "n": 2, "temperature": 1, "bad_words": ["x"], "regex": "x"}
    found = batched(tmp_path, lines(row, {"prompt": "One day"}))
    assert set(found[0]) == {"row", "error"}
    assert found[1]["text"]


def test_csv_and_parquet(tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["prompt", "n"], ["One day", "2"], ["One day", ""]])
    found = batched(tmp_path, table.read_text(), "--temp", 1, name="in.csv")
    assert [len(out.get("texts", [0])) for out in found] == [2, 1]
    parquet = pytest.importorskip("pyarrow.parquet")
    args = ["batch", table, "-o", tmp_path / "out.parquet", "-n", 6, "-t", 1, "--seed", 7, "--temp", 1]
    assert CliRunner().invoke(_app.app, [str(arg) for arg in args]).exit_code == 0
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [one["text"] for one in rows[0]["texts"]] == [one["text"] for one in found[0]["texts"]]
    assert rows[1]["texts"] is None
    assert rows[1]["text"] == found[1]["text"]


@pytest.mark.usefixtures("exact")
def test_openai_lines(model: edgedec.Model, tmp_path: Path) -> None:
    body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0.9, "seed": 3}

    def line(name: str, **more: Any) -> dict[str, Any]:
        return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {**body, **more}}

    found = batched(tmp_path, lines(line("a", n=2), line("b", n=1, best_of=4), line("c", n=2, temperature=0)))
    a, b, c = (out["response"]["body"] for out in found)
    assert [one["index"] for one in a["choices"]] == [0, 1]
    assert [one["text"] for one in a["choices"]] == [
        alone(model, max_tokens=6, temperature=0.9, seed=s) for s in (3, 4)
    ]
    assert a["usage"]["completion_tokens"] == 12
    best = several(model.session(), PROMPT, 1, 4, suggested(model), max_tokens=6, temperature=0.9, seed=3)[0]
    assert [one["text"] for one in b["choices"]] == [best.text]
    assert b["usage"]["completion_tokens"] == 24, "those that were not given count, as OpenAI has it"
    assert c["choices"][0]["text"] == c["choices"][1]["text"], "the server writes equal texts, too"


def test_a_journal_of_another_number_is_refused(tmp_path: Path) -> None:
    from edgedec.offline import BatchJob, Defaults

    def about(choices: Choices) -> dict[str, Any]:
        source = tmp_path / "in.jsonl"
        source.write_text(lines({"prompt": "One day"}))
        found: dict[str, Any] = BatchJob(source, tmp_path / "o.jsonl", Defaults(choices=choices), {})._header()["about"]
        return found

    assert about(Choices()) != about(Choices(2)) != about(Choices(2, 3))
    assert "n" not in about(Choices()), "journals of earlier versions go on"
