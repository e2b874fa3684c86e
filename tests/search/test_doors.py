"""A search by flag, in Python, on the server and in a batch file: one text everywhere, and bad input in one line."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import edgedec
from edgedec.cli import _app
from edgedec.decoding.config import parse_options
from edgedec.decoding.scheduler.batch import Batch
from edgedec.errors import UsageError
from edgedec.families import family
from edgedec.search import FAMILY, check_search
from edgedec.server import api

PROMPT = "Once upon a time"
GREEDY: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0}
SCORER = "import sys, json\nfor line in sys.stdin: print(json.loads(line)['text'].count('e'), flush=True)\n"


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


@pytest.fixture
def command(tmp_path: Path) -> str:
    """A program that scores texts."""
    file = tmp_path / "score.py"
    file.write_text(SCORER)
    return f"{sys.executable} {file}"


def cli(*words: object) -> Any:
    return CliRunner().invoke(_app.app, [str(word) for word in words])


# ── Python ──


def test_a_session_searches(model: edgedec.Model) -> None:
    session = model.session()
    found = session.search("beam:width=4", PROMPT, max_tokens=16, **GREEDY)
    assert "".join(model.session().generate(PROMPT, search="beam:width=4", max_tokens=16, **GREEDY)) == found.text
    assert found.texts[0].text == found.text
    assert len(found.texts) == 4
    assert found.finish == "length"
    assert found.report["forwards"] == session.stats.calls == 17
    assert session.search_report() == found.report
    assert found.text != "".join(model.session().generate(PROMPT, max_tokens=16, **GREEDY))
    again = model.session().search(json.dumps({"name": "beam", "width": 4}), PROMPT, max_tokens=16, **GREEDY)
    assert again.tokens == found.tokens


def test_native_and_reference_find_the_same(model: edgedec.Model, nano: Path) -> None:
    slow = edgedec.open(nano, engine="reference", kv=model.runtime.new_cache(8).kv)
    drawn: dict[str, Any] = {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.0}
    for words, options in (("beam:width=3", GREEDY), ("diverse:width=4", GREEDY), ("best:n=3", drawn)):
        texts = [one.session().search(words, PROMPT, max_tokens=8, **options).tokens for one in (model, slow)]
        assert texts[0] == texts[1], words


def test_a_session_goes_on_after_a_search(model: edgedec.Model) -> None:
    """The text, the cache and the seed: a second generation continues what was found."""
    session = model.session()
    found = session.search("best:n=3", PROMPT, max_tokens=8, temperature=1.0, seed=1)
    ids = session.ids
    assert ids == [*model.tokenizer.encode(PROMPT), *found.tokens]
    more = "".join(session.generate(max_tokens=8, **GREEDY))
    assert more == "".join(model.session().generate(ids, max_tokens=8, **GREEDY))
    assert session.search_report() == {}


def test_a_scorer_of_python(model: edgedec.Model) -> None:
    found = model.session().search(
        "best:n=6", PROMPT, max_tokens=12, temperature=1.0, seed=3, scorer=lambda prompt, text: text.count("e")
    )
    assert found.report["scorer_calls"] == 6
    assert found.text.count("e") == max(one.text.count("e") for one in found.texts)
    assert found.value == found.text.count("e")


def test_seeds_repeat_a_search(model: edgedec.Model) -> None:
    def text(seed: int) -> str:
        return model.session().search("best:n=4", PROMPT, max_tokens=12, temperature=1.0, seed=seed).text

    assert text(4) == text(4)
    assert len({text(seed) for seed in range(5)}) > 1


def test_no_search_beside_a_sliding_context(model: edgedec.Model) -> None:
    with pytest.raises(UsageError, match=r"a sliding context .--on-full slide. has no branches"):
        list(model.session(on_full="slide").generate(PROMPT, search="beam", max_tokens=4))


def test_a_context_that_ends_early_ends_the_text(model: edgedec.Model) -> None:
    found = model.session(context=24).search("beam:width=2", PROMPT, **GREEDY)
    assert found.finish == "context"
    assert len(found.tokens) == 24 - len(model.tokenizer.encode(PROMPT))


# ── families, options ──


def test_searches_are_a_family() -> None:
    assert family("searches") is FAMILY
    for name in FAMILY.names():
        assert FAMILY.facts(name).lossy
        assert "lossy" in FAMILY.summary(name), name
        assert FAMILY.facts(name).paper, name
        assert FAMILY.facts(name).rests, name
    assert parse_options({"search": {"name": "beam", "width": 2}}) == {"search": '{"name": "beam", "width": 2}'}
    with pytest.raises(UsageError, match="search: must be text or an object, not int"):
        parse_options({"search": 3})
    with pytest.raises(UsageError, match=r"no option 'wdth' .did you mean width"):
        check_search("beam:wdth=3")


# ── command line ──


def test_the_flag(model: edgedec.Model, nano: Path) -> None:
    wanted = model.session().search("beam:width=4", PROMPT, max_tokens=12, **GREEDY)
    out = cli("run", "-m", nano, "-p", PROMPT, "-n", 12, "--temp", 0, "--search", "beam:width=4", "--json", "-t", 1)
    assert out.exit_code == 0, out.output
    said = json.loads(out.stdout)
    assert said["text"] == wanted.text
    assert said["stats"]["search"] == wanted.report
    shown = cli("run", "-m", nano, "-p", PROMPT, "-n", 4, "--temp", 0, "--search", "beam:width=4", "--stats", "-t", 1)
    assert "lossy: search beam:width=4: " in shown.stderr


def test_a_command_scores(nano: Path, command: str) -> None:
    words = f"best:n=5,command='{command}'"
    more = ("-n", 12, "--temp", 1, "--seed", 3, "--json", "-t", 1)
    out = cli("run", "-m", nano, "-p", PROMPT, *more, "--search", words)
    assert out.exit_code == 0, out.output
    said = json.loads(out.stdout)
    assert said["stats"]["search"]["scorer_calls"] == 5
    plain = json.loads(cli("run", "-m", nano, "-p", PROMPT, *more).stdout)
    assert said["text"].count("e") >= plain["text"].count("e")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit(3)", "ended with status 3 before it answered"),
        ("1/0", "ended with status 1 before it answered (ZeroDivisionError: division by zero)"),
        ("import time; time.sleep(60)", "no answer within 0.3 s"),
        ("input(); print('good')", "answered 'good'; must be a line of JSON"),
        ("input(); print('NaN')", "gave nan as a score; must be a finite number"),
        ("input(); print('[1]')", "gave [1] as a score"),
        ("input(); print('{}')", "gave None as a score"),
    ],
)
def test_a_bad_command_is_one_line(model: edgedec.Model, program: str, said: str) -> None:
    words = json.dumps({"name": "best", "n": 2, "timeout": 0.3, "command": f'{sys.executable} -c "{program}"'})
    if "sleep" not in said and "no answer" not in said:
        words = words.replace("0.3", "30")
    session, before = model.session(), threading.active_count()
    with pytest.raises(UsageError) as caught:
        session.search(words, PROMPT, max_tokens=3, temperature=1.0)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert session.ids == model.tokenizer.encode(PROMPT)
    assert threading.active_count() <= before + 2


def test_a_command_that_is_none() -> None:
    from edgedec.search.command import CommandScorer

    with pytest.raises(UsageError, match="cannot be started"):
        CommandScorer("/there/is/no/such/program", 1).ask({})
    with pytest.raises(UsageError, match="No closing quotation"):
        CommandScorer("'a", 1)
    with pytest.raises(UsageError, match="is empty"):
        CommandScorer(" ", 1)
    closed = CommandScorer("cat", 1)
    closed.close()
    with pytest.raises(UsageError, match="the search has ended"):
        closed.ask({})


# ── a batch ──


def test_a_search_beside_other_texts(model: edgedec.Model) -> None:
    """Alone and among sixteen texts, which stay what they are; its branches count as places."""
    ids, options = model.tokenizer.encode(PROMPT), {"max_tokens": 12, **GREEDY}
    alone = model.session().search("beam:width=4", PROMPT, **options).tokens
    plain = [list(model.session().tokens([*ids, i + 5], max_tokens=12, **GREEDY)) for i in range(16)]
    batch, got = Batch(model.runtime, most=12), [list[Any]() for _ in range(17)]
    sessions = [model.session() for _ in range(17)]
    for i in range(8):
        sessions[i].submit(batch, [*ids, i + 5], got[i].append, **options)
    job = sessions[16].submit(batch, ids, got[16].append, search="beam:width=4", **options)
    for i in range(8, 16):
        sessions[i].submit(batch, [*ids, i + 5], got[i].append, **options)
    assert job.width == 4
    assert job.need == len(ids) + 4 * 12
    widest = 0
    while batch.step():
        widest = max(widest, sum(one.width for one in batch.jobs))
    assert widest <= 12
    assert tuple(got[16][:-1]) == alone
    assert [one[:-1] for one in got[:16]] == plain
    batch.prefixes.evict(lambda: False)
    assert batch.held() == 0


def test_a_search_wider_than_the_batch_still_runs(model: edgedec.Model) -> None:
    batch, got = Batch(model.runtime, most=2), list[Any]()
    model.session().submit(batch, model.tokenizer.encode(PROMPT), got.append, search="beam:width=4", max_tokens=3)
    batch.run()
    assert len(got) == 4


def test_a_cancelled_search_frees_its_pages(model: edgedec.Model) -> None:
    batch, got = Batch(model.runtime), list[Any]()
    session = model.session()
    ids = model.tokenizer.encode(PROMPT)
    job = session.submit(batch, ids, got.append, search="beam:width=4", max_tokens=40, **GREEDY)
    for _ in range(6):
        batch.step()
    assert len(job.caches) == 5
    batch.cancel(job)
    batch.run()
    batch.prefixes.evict(lambda: False)
    assert batch.held() == 0
    assert got == [None]
    assert job.forks == []
    assert session.ids == ids


def test_rows_of_a_batch_file(model: edgedec.Model, nano: Path, tmp_path: Path, command: str) -> None:
    rows = [
        {"prompt": PROMPT, "search": "beam:width=4"},
        {"prompt": PROMPT, "search": {"name": "beam", "width": 2}},
        {"prompt": PROMPT},
        {"prompt": PROMPT, "search": "bean"},
        {"prompt": PROMPT, "search": f"best:n=2,command='{command}'"},
    ]
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = cli("batch", file, "-o", out, "-m", nano, "-n", 8, "--temp", 0, "-t", 1)
    assert done.exit_code == 0, done.output
    found = sorted(map(json.loads, out.read_text().splitlines()), key=lambda one: one["row"])
    for row, words in zip(found, ("beam:width=4", "beam:width=2"), strict=False):
        assert row["text"] == model.session().search(words, PROMPT, max_tokens=8, **GREEDY).text
    assert found[2]["text"] == "".join(model.session().generate(PROMPT, max_tokens=8, **GREEDY))
    assert "no search 'bean'" in found[3]["error"]
    assert "best: command runs a program or opens a file: name it by --search, not in a row" in found[4]["error"]
    wrong = cli("batch", file, "-o", tmp_path / "no.jsonl", "-m", nano, "--search", "bean", "-t", 1)
    assert wrong.exit_code
    assert "no search 'bean'" in wrong.output


# ── the server ──


@pytest.fixture(scope="module")
def served(model: edgedec.Model) -> Iterator[str]:
    for package in ("starlette", "uvicorn", "httpx"):
        pytest.importorskip(package, reason=f"the server's tests need {package}")
    from serving import serving

    with serving(model, slots=8) as (place, _):
        yield place


def ask(place: str, **body: Any) -> Any:
    import httpx

    given = {"model": "nano", "prompt": PROMPT, "max_tokens": 8, **GREEDY, **body}
    answer = httpx.post(f"{place}/v1/completions", json=given, timeout=60)
    return answer.json() if answer.status_code == 200 else (answer.status_code, answer.json()["error"]["message"])


def test_the_servers_field(model: edgedec.Model, served: str) -> None:
    wanted = model.session().search("beam:width=3", PROMPT, max_tokens=8, **GREEDY)
    said = ask(served, search="beam:width=3")
    assert said["choices"][0]["text"] == wanted.text
    assert said["usage"]["completion_tokens"] == 8
    several = ask(served, search={"name": "beam", "width": 3}, n=3)
    assert [one["text"] for one in several["choices"]] == [one.text for one in wanted.texts]


def test_vllms_names(model: edgedec.Model, served: str) -> None:
    wanted = model.session().search("beam:width=3,length_penalty=2.0", PROMPT, max_tokens=8, **GREEDY)
    said = ask(served, use_beam_search=True, n=3, length_penalty=2.0)
    assert [one["text"] for one in said["choices"]] == [one.text for one in wanted.texts]
    of_four = model.session().search("beam:width=4", PROMPT, max_tokens=8, **GREEDY)
    said = ask(served, use_beam_search=True, n=2, best_of=4)
    assert [one["text"] for one in said["choices"]] == [one.text for one in of_four.texts[:2]]
    assert ask(served, use_beam_search=False)["choices"][0]["text"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"search": "bean"}, "no search 'bean'"),
        ({"search": "beam:width=0"}, "width=0: must be from 1 to 256"),
        ({"search": "beam", "stream": True}, "beam has its text at the end: leave stream out"),
        ({"search": "beam:width=2", "n": 3}, "rank=2: 2 texts are found"),
        ({"search": "best:n=2,command='rm -rf /'"}, "this server runs no scorers of requests (--allow-scorers)"),
        ({"search": "best:n=4"}, "at temperature 0 are one text"),
        ({"search": "beam:width=200", "max_tokens": 400}, "and this server has"),
        # Found out by the engine's thread, not by the request's reader.
        ({"search": "beam:width=2", "awrs": True, "regex": "a+", "top_k": 0, "top_p": 1}, "does not go with awrs"),
        ({"length_penalty": 2.0}, "length_penalty: needs use_beam_search: true"),
        ({"search": "beam", "use_beam_search": True}, "use_beam_search: cannot be combined with search"),
        ({"search": 3}, "search"),
    ],
)
def test_bad_requests(served: str, body: dict[str, Any], said: str) -> None:
    status, message = ask(served, **body)
    assert status == 400
    assert said in message


def test_scorers_where_the_operator_allows_them(model: edgedec.Model, command: str) -> None:
    pytest.importorskip("starlette", reason="the server's tests need starlette")
    pytest.importorskip("uvicorn", reason="the server's tests need uvicorn")
    pytest.importorskip("httpx", reason="the server's tests need httpx")
    from serving import serving

    with serving(model, slots=4, scorers=True) as (place, _):
        options = {"temperature": 1.0, "seed": 3}
        words = f"best:n=4,command='{command}'"
        said = ask(place, search=words, **options)
        assert said["choices"][0]["text"] == model.session().search(words, PROMPT, max_tokens=8, **options).text
        dead = f"best:n=2,timeout=20,command='{sys.executable} -c \"raise SystemExit(3)\"'"
        status, message = ask(place, search=dead, **options)
        assert status == 400
        assert "ended with status 3" in message
        assert ask(place, search=words, **options)["choices"][0]["text"] == said["choices"][0]["text"]


def test_parts_are_streamed(model: edgedec.Model, served: str) -> None:
    """A search that commits its text part by part streams it, and takes nothing back."""
    import httpx

    options = {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.0}
    wanted = model.session().search("cautious:n=4", PROMPT, max_tokens=24, **options).text
    body = {"model": "nano", "prompt": PROMPT, "max_tokens": 24, "search": "cautious:n=4", "stream": True, **options}
    pieces = list[str]()
    with httpx.stream("POST", f"{served}/v1/completions", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                pieces += [one["text"] for one in json.loads(line[6:])["choices"]]
    assert "".join(pieces) == wanted
    assert len([piece for piece in pieces if piece]) > 3


def test_a_searched_prompt_is_found_by_other_texts(model: edgedec.Model) -> None:
    """It is indexed once, although a search stays at its prompt to its end."""
    batch, got = Batch(model.runtime), list[Any]()
    ids = model.tokenizer.encode(PROMPT) * 40
    session = model.session()
    job = session.submit(batch, ids, got.append, search="beam:width=2", max_tokens=9, **GREEDY)
    kept, keep = list[int](), batch.prefixes.keep

    def counted(context: Any, n: int) -> bool:
        kept.append(n)
        return keep(context, n)

    batch.prefixes.keep = counted  # type: ignore[method-assign]
    while not job.indexed and len(kept) < 5:
        batch.step()
    assert job.indexed
    other = model.session()
    other.submit(batch, [*ids, 7], got.append, max_tokens=2, **GREEDY)
    batch.run()
    assert other.stats.cached > 0
    assert len([n for n in kept if n <= len(ids)]) < 5


def test_a_bundle_ranks(model: edgedec.Model, nano: Path) -> None:
    words = json.dumps({"name": "rank", "n": 3, "beams": 1, "length": 4, "bundle": str(nano)})
    found = model.session().search(words, PROMPT, max_tokens=8, seed=1, temperature=1.0)
    assert found.report["scorer_calls"] == 6
    again = model.session().search(words, PROMPT, max_tokens=8, seed=1, temperature=1.0)
    assert again.tokens == found.tokens
    with pytest.raises(UsageError, match="bundle=/no/such"):
        model.session().search("rank:bundle=/no/such", PROMPT, max_tokens=8)


def test_selection_in_a_program(model: edgedec.Model) -> None:
    """Fork, extend, select and score are a session's methods; a program is Python."""
    session = model.session()
    session.append(model.tokenizer.encode(PROMPT))
    twin = session.fork()
    found = twin.search({"name": "select", "choices": [" there", " cat", ","], "by": "sum"}, max_tokens=8)
    scores = {one: sum(session.score(model.tokenizer.encode(one, around=False))) for one in (" there", " cat", ",")}
    assert found.text == max(scores, key=lambda one: scores[one])
    assert session.ids == model.tokenizer.encode(PROMPT)
    assert twin.ids == [*session.ids, *found.tokens]


def test_best_of_counts_texts_or_beams() -> None:
    """With vLLM's `use_beam_search` it is the width; else so many texts are written for each prompt."""
    body = {"prompt": "Once", "n": 2, "best_of": 5}
    texts = api.completion(json.dumps(body).encode())
    beams = api.completion(json.dumps(body | {"use_beam_search": True}).encode())
    assert (texts.best_of, texts.options.get("search", "")) == (5, "")
    assert beams.best_of == 0
    assert beams.options["search"].startswith("beam:width=5,")
