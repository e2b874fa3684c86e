"""Rules of a text's places under a search: counted from the text's beginning, however often a loop goes on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import edgedec

OPENING, LAST = "Once upon a time", 77
RULES: dict[str, Any] = {
    "temperature": 0.0,
    "max_tokens": 14,
    "forced_tokens": (300, 301, 302),
    "forced_eos_token_id": LAST,
    "begin_suppress_tokens": frozenset({303}),
    "exponential_decay_length_penalty": (4, 1.5),
    "min_tokens": 9,
}


def ids(session: Any, **options: Any) -> list[int]:
    return [int(token) for token in session.tokens(session.model.tokenizer.encode(OPENING), **options)]


# The wish to end reads the size of a score: a search by tokens gives it log-probabilities, as transformers' beams.
SIZES, FORCED = "exponential_decay_length_penalty", "forced_tokens"


@pytest.mark.parametrize(
    ("search", "left_out"),
    [
        *(("best:n=1", name) for name in ("", FORCED, SIZES)),
        *((name, SIZES) for name in ("beam:width=1", "lookahead:threshold=99", "lookahead:threshold=0,top=1")),
    ],
)
def test_a_search_of_one_text_is_plain_decoding(nano: Path, search: str, left_out: str) -> None:
    model = edgedec.open(nano)
    options = {name: value for name, value in RULES.items() if name != left_out}
    plain = ids(model.session(), **options)
    assert (plain[:3] == [300, 301, 302]) is (left_out != FORCED)
    assert plain != ids(model.session(), temperature=0.0, max_tokens=14)
    assert ids(model.session(), search=search, **options) == plain


@pytest.mark.parametrize("search", ["beam:width=4", "lookahead:threshold=0", "diverse:width=4", "cautious:n=3"])
def test_every_text_begins_and_ends_as_it_must(nano: Path, search: str) -> None:
    model = edgedec.open(nano)
    options = {name: value for name, value in RULES.items() if name != SIZES}
    options |= {"ignore_eos": True, "temperature": 0.8 if search.startswith("cautious") else 0.0}
    found = ids(model.session(), search=search, **options)
    assert len(found) == 14
    assert found[:3] == [300, 301, 302]
    assert not {300, 301, 302} >= set(found[3:6])
    assert found[-1] == LAST
    assert LAST not in found[:-1]
