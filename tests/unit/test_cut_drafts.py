"""A draft that was begun and then cut goes on with the rows that are left: same text, same cache, nothing run twice."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
from drafting import SAMPLINGS, left, run, settled

import edgedec
from edgedec.decoding import runner
from edgedec.decoding.context import Context
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, make_drafter
from edgedec.drafters.model import ModelDrafter
from edgedec.drafters.off import Off
from edgedec.kernels.cpu import loader
from edgedec.runtime import Readout
from edgedec.trees.merge import resume

ENGINES = [
    pytest.param("native", marks=pytest.mark.skipif(loader.why_not() is not None, reason="no native engine")),
    "reference",
]


@pytest.fixture(autouse=True)
def even_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls take as long: what is drafted follows from measured seconds, and must be the same on busy machines."""
    monkeypatch.setattr(runner, "perf_counter", partial(next, count(0.0, 1e-3)))


class Cut(BaseDrafter):
    """Of another drafter's tree a random part that is a tree. `between`: calls in which a row between others was cut;
    `blocks`: that verification began with."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.rng = drafter, np.random.default_rng(3)
        self.between, self.blocks = 0, set[int]()

    @property
    def outputs(self) -> Any:
        return self.drafter.outputs

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Any, Any, Draft]:
        draft = yield from settled(self.drafter.propose(context, nodes, min_path_prob))
        kept = self._kept(draft.parents)
        place = {-1: -1} | {node: i for i, node in enumerate(kept)}
        cut = Draft(
            [draft.tokens[n] for n in kept], [place[draft.parents[n]] for n in kept], [draft.p[n] for n in kept]
        )
        pending = len(context.ids) - context.cache.length
        found = resume(cut, kept, draft, range(len(draft.tokens)), pending)
        if found.hidden is not None:
            self.blocks.add(found.blocks[0])
            self.between += kept != list(range(len(kept)))
        return found

    def _kept(self, parents: Sequence[int]) -> list[int]:
        kept = list[int]()
        for node, parent in enumerate(parents):
            if (parent < 0 or parent in kept) and self.rng.random() < 0.7:
                kept.append(node)
        return kept

    def observe(self, step: Any) -> None:
        self.drafter.observe(step)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", ["exit", "skip"])
@pytest.mark.parametrize("engine", ENGINES)
def test_text_and_cache_are_those_of_plain_decoding(engine: str, kind: str, sampling: str) -> None:
    model = edgedec.open("nano", engine=engine, threads=1, kv="f32")
    options = {"width": "4", "gamma": "4"} | ({"layer": "5"} if kind == "exit" else {"search": "off"})
    drafter = Cut(make_drafter(kind, DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer), options))
    prompt = model.tokenizer.encode("Once upon a time")
    ask = {"max_tokens": 100 if engine == "native" else 16, "sampling": SAMPLINGS[sampling]}
    expected, context, _, _ = run(model.runtime, Off(), prompt, **ask)
    found, drafted, stats, trace = run(model.runtime, drafter, prompt, **ask)
    assert found == expected
    assert left(drafted) == left(context) or engine == "reference"
    assert drafter.blocks == ({10} if kind == "exit" else {2})
    if engine == "native":
        assert drafter.between > 5
        assert stats.accepted > 10
        numbers = [turn.step.rows.numbers for turn in trace if turn.step.rows.numbers is not None]
        assert any((np.diff(n) > 1).any() for n in numbers)


def test_a_trimmed_draft_model_drafts_only_what_it_may_and_the_text_stays() -> None:
    model = edgedec.open("nano", engine=ENGINES[1], kv="f32")
    context = DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer)
    prompt, ask = model.tokenizer.encode("Once upon a time"), {"max_tokens": 16}
    expected = run(model.runtime, Off(), prompt, **ask)[0]
    known = Readout([token for token in expected if token % 2])
    drafter = make_drafter("model", context, {"path": "nano", "gamma": "3"})
    assert isinstance(drafter, ModelDrafter)
    assert drafter.usage is not None
    drafter.usage.readout = known
    found, _, stats, trace = run(model.runtime, drafter, prompt, **ask)
    assert found == expected
    drafted = {token for turn in trace for token in turn.draft.tokens}
    assert drafted
    assert drafted <= set(known.ids.tolist())
    assert stats.accepted > 0
