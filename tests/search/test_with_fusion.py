"""Searches of texts whose law is fused with that of a second text."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgedec
from edgedec.errors import UsageError

OPENING, FUSED = "Once upon a time", "cfg:scale=3,negative='The dog was'"


def test_branches_that_roll_take_their_companion_along(nano: Path) -> None:
    model = edgedec.open(nano)
    options = {"max_tokens": 24, "seed": 5, "temperature": 0.8, "fuse": FUSED}
    best = model.session().search("best:n=3", OPENING, **options)
    assert len({text.tokens for text in best.texts}) == 3
    plain = model.session().search("best:n=3", OPENING, **(options | {"fuse": ()}))
    assert {text.text for text in best.texts}.isdisjoint(text.text for text in plain.texts)
    greedy = {"max_tokens": 24, "temperature": 0.0, "fuse": FUSED}
    alone = "".join(model.session().generate(OPENING, **greedy))
    found = model.session().search("best:n=1", OPENING, **greedy)
    assert [text.text for text in found.texts] == [alone]
    assert alone != "".join(model.session().generate(OPENING, max_tokens=24, temperature=0.0))


def test_token_by_token_it_is_refused(nano: Path) -> None:
    model = edgedec.open(nano)
    session = model.session()
    with pytest.raises(UsageError, match="--fuse works with searches that roll only"):
        session.search("beam:width=3", OPENING, max_tokens=8, fuse=FUSED)
    assert "".join(session.generate(OPENING, max_tokens=8)) == "".join(model.session().generate(OPENING, max_tokens=8))


def test_weighed_draws_are_refused(nano: Path) -> None:
    """Their weights are of texts that are drawn, not chosen."""
    session = edgedec.open(nano).session()
    sampled = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 6, "awrs": True}
    for search in ("best:n=2", "beam:width=2"):
        with pytest.raises(UsageError, match="does not go with awrs"):
            session.search(search, OPENING, constraint="regex:pattern='[a-z ]+'", **sampled)
