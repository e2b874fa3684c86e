"""The texts of new plug-ins and of their tests, by family."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Skeleton:
    """kind: what one is called; folder: of the family's package; file, test: templates with $name and $kind."""

    kind: str
    folder: str
    file: str
    test: str

    def places(self, name: str) -> tuple[str, str]:
        """Where file and test go in a checkout."""
        return f"{self.folder}/{name}.py", f"tests/unit/test_{self.kind}_{name}.py"


_DRAFTER = '''"""Drafts SAY WHAT, in one sentence.

Name the paper, and explain the mechanism in a few lines.
"""

from __future__ import annotations

from typing import Annotated

from edgedec.decoding.context import Context
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, DrafterFacts
from edgedec.plugins import Opt

FACTS = DrafterFacts(paper="")


def make(host: DrafterContext, length: Annotated[int, Opt("Longest draft, in tokens.", 1, 64)] = 8) -> $kind:
    return $kind(length)


class $kind(BaseDrafter):
    def __init__(self, length: int) -> None:
        self._length = length

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        # The tokens that may follow context.ids, `nodes` at most: Draft.chain([...]), or a tree.
        return Draft()
'''
_DRAFTER_TEST = '''"""The drafter $name: it drafts, and the text is that of plain decoding."""

from __future__ import annotations

import pytest

import edgedec

PROMPT = "Once upon a time, there was a little dog named Tim. Tim had a red ball. Once upon a time, there was a little"


@pytest.fixture(scope="module")
def model() -> edgedec.Model:
    return edgedec.open("nano", threads=1)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_that_of_plain_decoding(model: edgedec.Model, temperature: float) -> None:
    options = {"max_tokens": 40, "temperature": temperature, "seed": 7}
    plain, drafted = model.session(speculate="off"), model.session(speculate="$name:fixed=4")
    assert "".join(drafted.generate(PROMPT, **options)) == "".join(plain.generate(PROMPT, **options))
    assert drafted.stats.proposed > 0, "nothing was drafted"


def test_some_of_it_is_accepted(model: edgedec.Model) -> None:
    session = model.session(speculate="$name:fixed=4")
    list(session.generate(PROMPT, max_tokens=40, temperature=0.0))
    assert session.stats.accepted > 0


def test_no_more_is_drafted_than_there_is_room_for(model: edgedec.Model) -> None:
    session = model.session(speculate="$name:fixed=4", context=40)
    ids = model.tokenizer.encode(PROMPT)[:30]
    assert len(list(session.tokens(ids, max_tokens=10, ignore_eos=True))) == 10
'''
_POLICY = '''"""Keeps or reads SAY WHAT of a cache, in one sentence.

Name the paper, and explain the mechanism in a few lines.
"""

from __future__ import annotations

from edgedec.cache import Cache
from edgedec.policies import PolicyFacts, PolicyHost
from edgedec.policies._budget import CacheBudget, Floats
from edgedec.policies._eviction import Eviction, Looks
from edgedec.policies._options import Budget, EveryOften

FACTS = PolicyFacts(needs=("drop",), paper="")


def make(host: PolicyHost, budget: Budget = 0.5, every: EveryOften = 32) -> $kind:
    return $kind(host, CacheBudget(budget), Looks(every=every))


class $kind(Eviction):
    def decide(self, cache: Cache) -> None:
        # Eviction.decide drops the slots with the lowest scores: remove this method once `score` is written.
        pass

    def score(self, cache: Cache, block: int) -> Floats:
        # One number for each slot of the block: the slots with the lowest ones are dropped.
        raise NotImplementedError
'''
_POLICY_TEST = '''"""The policy $name: the cache holds less than the text, whoever drafts."""

from __future__ import annotations

import pytest

import edgedec

PROMPT = "Once upon a time, there was a little dog named Tim. Tim had a red ball and liked to play. " * 12


@pytest.fixture(scope="module")
def model() -> edgedec.Model:
    return edgedec.open("nano", threads=1)


def text(model: edgedec.Model, speculate: str) -> tuple[list[int], edgedec.Session]:
    session = model.session(speculate=speculate, cache="$name:budget=0.5")
    ids = model.tokenizer.encode(PROMPT)
    return [int(token) for token in session.tokens(ids, max_tokens=60, ignore_eos=True)], session


def test_the_cache_holds_less_than_the_text(model: edgedec.Model) -> None:
    report = text(model, "off")[1].cache_report()
    assert report["lossy"] is True
    assert report["slots"] < 0.8 * report["of"], "nothing was dropped"


def test_drafts_change_nothing(model: edgedec.Model) -> None:
    found, session = text(model, "copy:fixed=4")
    assert session.stats.proposed > 0
    assert found == text(model, "off")[0]
'''
_PROCESSOR = '''"""Changes the logits SAY HOW, in one sentence.

Name the paper, and explain the mechanism in a few lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from edgedec.decoding.logits import BaseProcessor, Early
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt
from edgedec.processors import ProcessorFacts
from edgedec.sampling import Logits

FACTS = ProcessorFacts(paper="")


def make(host: OpenedModel, strength: Annotated[float, Opt("How much is changed.", 0)] = 1.0) -> $kind:
    return $kind(strength)


class $kind(BaseProcessor):
    def __init__(self, strength: float) -> None:
        self._strength = strength

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        # A new array [vocab]; `path` are drafted tokens that the text does not hold yet.
        return logits
'''
_PROCESSOR_TEST = '''"""The processor $name: it changes the text, and drafts do not."""

from __future__ import annotations

import pytest

import edgedec

PROMPT = "Once upon a time, there was a little dog named Tim. Tim had a red ball. Once upon a time, there was a little"


@pytest.fixture(scope="module")
def model() -> edgedec.Model:
    return edgedec.open("nano", threads=1)


def text(model: edgedec.Model, speculate: str, processors: str = "$name") -> str:
    session = model.session(speculate=speculate)
    found = "".join(session.generate(PROMPT, max_tokens=60, temperature=0.0, processors=processors))
    assert speculate == "off" or session.stats.proposed > 0
    return found


def test_it_changes_the_text(model: edgedec.Model) -> None:
    plain = "".join(model.session(speculate="off").generate(PROMPT, max_tokens=60, temperature=0.0))
    assert text(model, "off") != plain, "nothing was changed"


def test_drafts_change_nothing(model: edgedec.Model) -> None:
    assert text(model, "copy:fixed=4") == text(model, "off")
'''
SKELETONS = {
    skeleton.kind: skeleton
    for skeleton in (
        Skeleton("drafter", "edgedec/drafters", _DRAFTER, _DRAFTER_TEST),
        Skeleton("policy", "edgedec/policies", _POLICY, _POLICY_TEST),
        Skeleton("processor", "edgedec/processors", _PROCESSOR, _PROCESSOR_TEST),
    )
}
