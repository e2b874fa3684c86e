"""A text whose constraint still computes what may follow drafted tokens: it stands aside, and gets the same text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec import constraints
from edgedec.decoding.scheduler.batch import Batch
from edgedec.kernels.cpu import loader

pytest.importorskip("llguidance", reason="needs llguidance")
pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")

SCHEMA = {
    "type": "object",
    "properties": {
        "the name of the little girl": {"enum": ["Lily", "Tom", "Max"]},
        "what she liked to play with": {"enum": ["a ball", "a dog", "a kite"]},
        "how many years old she was": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["the name of the little girl", "what she liked to play with", "how many years old she was"],
    "additionalProperties": False,
}


class Late:
    """A constraint whose masks after drafted tokens are known at the third look. `waits`: how often they were not."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.looks, self.waits, self.awaited = inner, dict[tuple[int, ...], int](), 0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def begun(self, path: Sequence[int]) -> bool:
        key = tuple(path)
        self.looks[key] = self.looks.get(key, 0) + 1
        known = self.inner.begun(path) and self.looks[key] > 2
        self.waits += not known
        self.awaited = not known
        return bool(known)

    def ready(self) -> bool:
        awaited, self.awaited = self.awaited, False
        return not awaited and bool(self.inner.ready())

    def accept(self, token: int) -> None:
        self.looks.clear()
        self.inner.accept(token)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 5}])
def test_a_draft_is_verified_once_its_masks_are_known(nano: Path, sampling: dict[str, Any]) -> None:
    model = edgedec.open(nano, threads=1)
    ids = model.tokenizer.encode("Once upon a time the little girl went to the big park")
    asked = {"max_tokens": 90, **sampling}
    alone = model.session(speculate="forced")
    want = [int(token) for token in alone.tokens(ids, constraint=constraints.json_schema(model, SCHEMA), **asked)]
    assert alone.stats.accepted > 0

    late, batch = Late(constraints.json_schema(model, SCHEMA)), Batch(model.runtime)
    got: dict[str, list[int]] = {"held": [], "free": []}

    def into(name: str) -> Any:
        return lambda token: None if token is None else got[name].append(int(token))

    session = model.session(speculate="forced")
    held = session.submit(batch, ids, into("held"), constraint=late, **asked)
    free = model.session(speculate="off").submit(
        batch, ids, into("free"), max_tokens=200, temperature=0.0, ignore_eos=True
    )
    went_on = 0
    while not held.done:
        verifying, before = held.verifying, len(got["free"])
        assert batch.step()
        went_on += verifying and len(got["free"]) > before
    assert late.waits > 0 < went_on, "the other text never went on while masks were awaited"
    assert session.stats.accepted > 0
    assert got["held"] == want
    assert held.error is None
    batch.run()
    assert free.error is None
    assert not session._context.hooks.parks
