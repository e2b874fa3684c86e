"""Drafters that are opened late, of texts that a model writes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.scheduler.batch import Batch
from edgedec.kernels.cpu.loader import why_not
from edgedec.speculation.deferred import Deferred

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"native engine: {why_not()}")


def test_short_texts_of_a_small_model_share_few_openings(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are opened, some are not, how many follows from the machine; the texts are those without drafters."""
    model, opened, made = edgedec.open(nano, engine="native", threads=1), Counter[bool](), list[Deferred]()
    create = Deferred.__init__
    monkeypatch.setattr(Deferred, "__init__", lambda self, *a: made.append(self) or create(self, *a))
    prompts = [model.tokenizer.encode(f"{word} upon a time there was a") for word in ("Once", "One", "Then", "A")] * 8
    config = GenerationConfig(max_tokens=24)
    texts = dict[str, list[list[int | None]]]()
    for speculate in ("off", "auto"):
        batch, texts[speculate], tables = Batch(model.runtime), [[] for _ in prompts], dict[Any, Any]()
        for ids, text in zip(prompts, texts[speculate], strict=True):
            session = model.session(context=128, speculate=speculate, tables=tables)
            session.submit(batch, list(ids), text.append, config=config)
            batch.run()
    opened.update(text.opened for text in made)
    assert len(made) == len(prompts)
    assert opened[True] >= 2
    assert opened[False] >= 2
    assert texts["auto"] == texts["off"]


@pytest.mark.parametrize("tokens", [100, 20])
def test_short_first_texts_do_not_keep_later_ones_from_drafters(
    nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    """They end before calls of more rows are measured; but what a call takes at least is known, so savings are."""
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))  # no costs of earlier runs
    model, tables = edgedec.open(nano, engine="native", threads=1), dict[Any, Any]()
    ids = model.tokenizer.encode("Once upon a time")
    for _ in range(2):
        list(model.session(context=128, speculate="auto", tables=tables).tokens(ids, max_tokens=5))
    bank = tables["speculation"].bank()
    assert bank.opened
    assert bank.call > 0
    tables["speculation"].openings._created._means.seconds = 2 * bank.call
    bank.left = 0.0
    text = model.session(context=128, speculate="auto", tables=tables)
    list(text.tokens(ids, max_tokens=tokens))
    assert bank.left > 0, "its calls saved for one"


@pytest.mark.parametrize("speculate", ["copy", "auto+copy"])
def test_named_drafters_are_opened_with_their_text(nano: Path, speculate: str) -> None:
    model, tables = edgedec.open(nano, engine="native", threads=1), dict[Any, Any]()
    for _ in range(4):
        session = model.session(context=64, speculate=speculate, tables=tables)
        assert not isinstance(session._drafter.drafter, Deferred)  # type: ignore[attr-defined]


def test_without_drafters_all_calls_after_the_prompt_are_the_runtime_s_own(
    nano: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = edgedec.open(nano, engine="native", threads=1)
    session, rows = model.session(context=64, speculate="off"), list[int]()
    forward = model.runtime.forward
    monkeypatch.setattr(model.runtime, "forward", lambda calls: rows.append(len(calls[0].rows)) or forward(calls))
    first = list(session.tokens(model.tokenizer.encode("Once upon a time"), max_tokens=4))
    assert len(rows) <= 1
    again = list(session.tokens(None, max_tokens=8))
    assert len(rows) <= 1
    assert session.stats.calls == 8
    assert len(first + again) == 12
