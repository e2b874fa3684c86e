"""Generations on record: what is written down of each call, and that the page holds it and nothing else."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import NAMES, NASTY, START, Signed, generate, plain, spell_nasty, tape
from typer.testing import CliRunner, Result

import edgedec
from edgedec.bench.trace import Spelling, Tape, embed, page, record
from edgedec.cache.rows import Rows
from edgedec.cli import _app
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.messages import StepResult
from edgedec.drafters import Draft, DrafterContext
from edgedec.runtime import CallResult
from edgedec.testing.fakes import Limited, PerfectDrafter
from edgedec.text.tokenizer import Tokenizer

PROMPT = "Once upon a time"


def seen(path: list[int], picked: list[int]) -> StepResult:
    return StepResult(Rows.chain([7], 3), 0, path, picked, CallResult(), 0.5)


class _Page(HTMLParser):
    """The elements of a page, and the text of its data element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._inside, self.data = False, ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") == "data"

    def handle_data(self, data: str) -> None:
        self.data += data if self._inside else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


def read(html: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_Page(html).data)
    return found


# -- records


def test_a_turn_becomes_numbers_and_words() -> None:
    draft = Draft((7, 8, 9), (-1, 0, 0), (0.5, 0.25, math.nan), by=("copy", "copy+trigram", ""), why="pays")
    call = record(StepTrace(3, draft, seen([0, 1, 3], [7, 9, 5]), 0.75), "unsigned")
    assert call == {
        "tokens": [7, 8, 9],
        "parents": [-1, 0, 0],
        "p": [0.5, 0.25, None],
        "by": ["copy", "copy+trigram", "unsigned"],
        "why": "pays",
        "path": [0, 2],
        "picked": [7, 9, 5],
        "emitted": 0,
        "seconds": 0.75,
        "forward_s": 0.5,
    }


def test_a_bare_draft_of_numpy_numbers_is_fit_for_json() -> None:
    tokens = np.array([4, 5])
    call = record(StepTrace(3, Draft(tokens, np.array([-1, 0]), np.array([0.5, 0.5])), seen([0], [1]), 0.1))  # type: ignore[arg-type]
    assert json.loads(json.dumps(call))["tokens"] == [4, 5]
    assert call["by"] == ["draft", "draft"]
    assert record(StepTrace(3, Draft.chain([4, 5]), seen([0], [1]), 0.1))["p"] == [None, None]


@pytest.mark.parametrize("n", [1, 2, 17, 40])
def test_the_calls_add_up_to_the_text(n: int) -> None:
    made = tape(n)
    assert made.texts == [NASTY[token] for token in plain(n)]
    assert sum(call["emitted"] for call in made.calls) == n
    assert [t for call in made.calls for t in call["picked"][: call["emitted"]]] == plain(n)
    assert made.steps == []
    if n == 40:
        assert len(made.calls) < n
        assert any(0 < len(call["path"]) < len(call["tokens"]) for call in made.calls)
        assert {by for call in made.calls for by in call["by"]} == set(NAMES)


def test_accepted_nodes_carry_what_was_picked() -> None:
    for call in tape().calls:
        assert [call["tokens"][node] for node in call["path"]] == call["picked"][:-1]
        assert [call["parents"][node] for node in call["path"]] == [-1, *call["path"]][: len(call["path"])]


def test_a_token_is_credited_as_the_loop_credits_it() -> None:
    made, credited = Tape(), []
    for piece in generate(Signed(PerfectDrafter([*START, *plain(40)], 2), 9), 40, made.steps):
        made.push(piece)
        assert piece.token is not None
        call = made.calls[-1]
        at = call["emitted"] - 1
        assert piece.token.by == (call["by"][call["path"][at]] if at < len(call["path"]) else "")
        credited.append(piece.token.by)
    assert len(set(credited)) > 2


def test_what_ends_the_text_is_a_call_without_tokens(nano: Path) -> None:
    model = edgedec.open(nano, threads=1)
    ids = model.tokenizer.encode(PROMPT)
    first, second = model.session().tokens(ids, max_tokens=2)
    made = Tape()
    made.run(model.session().stream(ids, stop_tokens=[second], trace=made.steps))
    assert [call["emitted"] for call in made.calls] == [1, 0]
    assert made.calls[1]["picked"][0] == second  # what was drafted below it is nothing
    assert len(made.texts) == 1
    assert first != second


def test_held_back_text_comes_with_a_later_token_or_at_the_end(nano: Path) -> None:
    model = edgedec.open(nano, threads=1)
    text = "".join(model.session().generate(PROMPT, max_tokens=12))
    made = Tape()
    made.run(model.session().stream(PROMPT, max_tokens=12, stop=[text + "never"], trace=made.steps))
    assert made.texts == [""] * 12
    assert made.tail == text


# -- the page


def test_the_page_holds_the_generation() -> None:
    made = tape()
    data = read(page(made, {"model": "fake"}, "<b>prompt</b>", spell_nasty))
    assert data["texts"] == made.texts
    assert data["prompt"] == "<b>prompt</b>"
    assert data["about"] == {"model": "fake"}
    for row, call in zip(data["calls"], made.calls, strict=True):
        emitted, us, forward, why, picked, path, tokens, parents, p, by = row
        assert (emitted, path, parents, p) == (call["emitted"], call["path"], call["parents"], call["p"])
        assert [data["vocab"][i] for i in picked] == [NASTY[t] for t in call["picked"]]
        assert [data["vocab"][i] for i in tokens] == [NASTY[t] for t in call["tokens"]]
        assert [data["names"][i] for i in by] == call["by"]
        assert data["whys"][why] == call["why"]
        assert (us, forward) == (round(call["seconds"] * 1e6), round(call["forward_s"] * 1e6))


def test_no_text_changes_the_elements_of_the_page() -> None:
    bare = _Page(page(Tape(), {}, "", spell_nasty)).tags
    assert _Page(page(tape(), {"model": NASTY[0]}, "".join(NASTY), spell_nasty)).tags == bare
    assert len(bare) > 20


texts = st.text(st.characters(exclude_categories=())) | st.sampled_from(NASTY)


@given(st.lists(texts))
def test_any_text_can_be_embedded(words: list[str]) -> None:
    written = embed(words)
    assert written.isascii()
    assert not set(written) & set("<>&\n\r")
    assert json.loads(written) == words


def test_the_page_loads_nothing() -> None:
    html = page(tape(), {}, "", spell_nasty)
    assert "default-src 'none'" in html
    for _, attributes in _Page(html).tags:
        assert all((attributes.get(name) or "data:").startswith("data:") for name in ("src", "href"))
    code = html.replace('"http://www.w3.org/2000/svg"', "")  # a name, not a place
    assert not re.search(r"https?://|@import|url\(|fetch\(|innerHTML", code)


def test_a_generation_without_tokens_has_a_page() -> None:
    assert read(page(Tape(), {}, "prompt", spell_nasty))["calls"] == []


def test_a_token_is_spelt_with_its_space(nano: Path) -> None:
    tokenizer = edgedec.open(nano, threads=1).tokenizer
    ids = tokenizer.encode(PROMPT)
    spelling = Spelling(tokenizer, ids[0])
    assert "".join(map(spelling, ids[1:])).endswith(" upon a time")


def test_part_of_a_character_is_spelt_as_the_vocabulary_does() -> None:
    raw = pytest.importorskip("tokenizers")
    inner = raw.Tokenizer(raw.models.BPE({"a": 0, "Ã": 1, "Ġb": 2}, []))
    inner.decoder = raw.decoders.ByteLevel()
    spelling = Spelling(Tokenizer(inner), 0)
    assert [spelling(token) for token in (0, 1, 2, 99)] == ["a", "Ã", " b", "#99"]


# -- the command


def call(*args: object) -> Result:
    return CliRunner().invoke(_app.app, ["trace", "-t", "1", *map(str, args)])


def test_the_command_writes_what_run_would_say(nano: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.html"
    result = call("-m", nano, "-p", PROMPT, "-n", 12, "--seed", 3, "--spec", "off", "-o", out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{out}: 12 tokens in 12 calls, 1.00 a call")
    data = read(out.read_text("utf-8"))
    model = edgedec.open(nano, threads=1)
    sampling = replace(model.sampling, seed=3)
    assert "".join(data["texts"]) + data["tail"] == "".join(
        model.session().generate(PROMPT, max_tokens=12, sampling=sampling)
    )
    about = data["about"]
    assert (about["prompt_tokens"], about["generated_tokens"], about["seed"]) == (5, 12, 3)
    assert (about["spec"], about["finish_reason"], about["engine"]) == ("off", "length", model.runtime.name)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.html"]


def test_drafts_are_on_the_page(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = edgedec.open(nano, threads=1)
    ids = model.tokenizer.encode(PROMPT)
    known = [*ids, *model.session().tokens(ids, max_tokens=20)]

    def perfect(words: str, host: DrafterContext) -> Limited:
        return Limited(PerfectDrafter(known, 1, model.spec.vocab_size), 8)

    monkeypatch.setattr("edgedec.speculation.choose.make_speculation", perfect)
    out = tmp_path / "trace.html"
    args = ("-m", nano, "-p", PROMPT, "-n", 20, "--temp", 0, "--spec", "copy:fixed=8", "-o", out, "--json")
    result = call(*args)
    assert result.exit_code == 0, result.stderr
    report, data = json.loads(result.stdout), read(out.read_text("utf-8"))
    assert report.pop("path") == str(out)
    assert data["about"].items() <= report.items()
    assert [row[0] for row in data["calls"]] == [5, 5, 5, 3, 1, 1]  # no more is drafted than can be used
    assert data["names"] == ["copy"]


def test_a_file_that_is_there_goes_only_by_force(nano: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.html"
    out.write_text("mine")
    args = ("-m", nano, "-p", PROMPT, "-n", 2, "--spec", "off", "-o", out)
    result = call(*args)
    assert result.exit_code == 1
    assert "exists already; choose another place or pass --force" in result.stderr
    assert out.read_text() == "mine"
    assert call(*args, "--force").exit_code == 0
    assert len(read(out.read_text("utf-8"))["texts"]) == 2


@pytest.mark.parametrize(
    ("place", "message"), [("", "is a folder; name a file"), ("none/trace.html", "there is no folder")]
)
def test_a_place_that_cannot_be_is_named_before_anything_runs(place: str, message: str, tmp_path: Path) -> None:
    result = call("-m", "no-such-bundle", "-p", "x", "-o", tmp_path / place)
    assert result.exit_code == 1
    assert message in result.stderr
