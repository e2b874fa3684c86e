"""A drafter that reads retrieved passages: it reads few tokens, its drafts come true, the text is as without."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgedec
from edgedec import UsageError
from edgedec.drafters.rapid import retrieved
from edgedec.kernels.cpu import loader

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")

HOW = "rapid:least=200,budget=128,chunk=24,fixed=4,refresh=40"


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


def test_same_text_from_few_tokens(model: edgedec.Model) -> None:
    text = "Once upon a time there was a girl. " + "Lily saw a big red ball in the park. She ran and kicked it. " * 25
    ids, found = model.tokenizer.encode(text)[:330], {}
    for how in ("off", HOW):
        session = model.session(speculate=how)
        found[how] = [int(t) for t in session.tokens(ids, max_tokens=80, ignore_eos=True)]
    assert found[HOW] == found["off"]
    assert session.stats.accepted > 20
    assert session.report()["drafters"]["rapid"]["reads"] < 200 < len(ids)


def test_a_smaller_model_reads(model: edgedec.Model, nano: Path) -> None:
    session = model.session(speculate=f"{HOW},path={nano}")
    ids = model.tokenizer.encode("One day a dog saw a cat. The cat ran up a tree. " * 20)
    plain = model.session(speculate="off")
    texts = [[int(t) for t in s.tokens(ids, max_tokens=40, ignore_eos=True)] for s in (session, plain)]
    assert session.stats.proposed > 0
    assert texts[0] == texts[1]


def test_passages() -> None:
    assert retrieved([1, 2, 9, 9, 5, 6, 7, 7], [6, 5], 2, 1) == [4]
    assert retrieved([1, 2, 9, 9, 5, 6, 7, 7], [7, 1], 2, 2) == [0, 6]
    assert retrieved([1, 2, 3], [1], 4, 1) == []
    assert retrieved([4] * 20, [4], 4, 2, 3) == [3, 7], "of equals the first"


@pytest.mark.parametrize("how", ["rapid:chunk=4", "rapid:budget=100", "rapid:budget=600", "rapid:path=./nowhere"])
def test_refusals(model: edgedec.Model, how: str) -> None:
    with pytest.raises(UsageError, match=r"drafter rapid|draft model"):
        model.session(speculate=how)
