"""Nodes that a constraint forbids are cut before the call, and the text is the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from loops import decode

import edgedec
from edgedec.constraints import regex
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import StepTrace
from edgedec.drafters import Draft
from edgedec.drafters.off import Off
from edgedec.kernels.cpu import loader
from edgedec.speculation.costs import Costs
from edgedec.speculation.governor import Governor
from edgedec.testing.fakes import FakeRuntime, RandomDrafter, SetConstraint, tiny_spec

pytestmark = pytest.mark.usefixtures("ticking")

FOLLOWERS = {-1: {1, 2, 3, 4}, **{i: {(i * 5) % 13, (i + 1) % 13, (i + 4) % 13} for i in range(13)}}
needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")


class Pruning(SetConstraint):
    """Says which nodes are allowed; `told`: the trees that it was given."""

    def __init__(self) -> None:
        super().__init__(FOLLOWERS)
        self.told: list[tuple[list[int], list[int], float]] = []

    def allowed(self, tokens: Sequence[int], parents: Sequence[int], seconds: float) -> list[bool]:
        self.told.append((list(tokens), list(parents), seconds))
        found: list[bool] = []
        for token, parent in zip(tokens, parents, strict=True):
            last = [-1, *self.accepted][-1] if parent < 0 else tokens[parent]
            found.append((parent < 0 or found[parent]) and token in FOLLOWERS[last])
        return found


def generated(constraint: SetConstraint, drafting: bool) -> tuple[list[int], list[StepTrace]]:
    runtime = FakeRuntime(tiny_spec(context_length=512))
    context = Context([1, 2, 3], 3, runtime.new_cache(400))
    drafter = Governor([("random", RandomDrafter(4))], lambda: Costs({1: 1.0, 64: 1.5}), fixed=24)
    trace: list[StepTrace] = []
    config = GenerationConfig(max_tokens=60, constraint=constraint)
    tokens = decode(runtime, context, config, drafter if drafting else Off(), trace=trace)
    return list(map(int, tokens)), trace


def test_no_forbidden_node_is_run() -> None:
    plain, _ = generated(SetConstraint(FOLLOWERS), drafting=False)
    text, unpruned = generated(SetConstraint(FOLLOWERS), drafting=True)
    constraint = Pruning()
    pruned_text, pruned = generated(constraint, drafting=True)
    assert plain == text == pruned_text
    drafted = [step.draft for step in pruned if step.draft.tokens]
    assert drafted, "something was drafted"
    assert all(_allowed_below_the_root(draft) for draft in drafted)
    assert sum(len(step.draft.tokens) for step in pruned) < 0.6 * sum(len(step.draft.tokens) for step in unpruned)
    assert any(seconds > 0 for _, _, seconds in constraint.told)


def _allowed_below_the_root(draft: Draft) -> bool:
    pairs = zip(draft.tokens, draft.parents, strict=True)
    return all(token in FOLLOWERS[draft.tokens[parent]] for token, parent in pairs if parent >= 0)


@needs_native
@pytest.mark.parametrize("sandbox", ["on", "off"])
def test_a_grammar_says_which_nodes_it_allows(sandbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its masks say, whatever the tree; and where it stands it stays."""
    monkeypatch.setenv("EDGEDEC_SANDBOX", sandbox)
    monkeypatch.setattr("edgedec.constraints.remote._CHECK", 60.0)  # however slow the machine is
    model = edgedec.open("nano", threads=1)
    constraint = regex(model, constraint_pattern())
    encode = model.tokenizer.encode
    chain = [token for word in (" red", " fox", " sat") for token in encode(word, around=False)]
    wrong = encode(" blue", around=False)[0]
    tokens = [*chain, wrong, wrong, chain[1]]
    parents = [*range(-1, len(chain) - 1), -1, 0, -1]
    constraint.mask(())
    found = constraint.allowed(tokens, parents, 1000.0)
    expected: list[bool] = []
    for node, parent in enumerate(parents):
        path: list[int] = []
        above = parent
        while above >= 0:
            path.insert(0, tokens[above])
            above = parents[above]
        expected.append(bool(regex(model, constraint_pattern()).mask(path)[tokens[node]]))
    assert found == expected
    assert found[: len(chain)] == [True] * len(chain)
    assert set(found) == {True, False}
    assert constraint.mask(())[chain[0]]
    # Where rows cost next to nothing only what is at hand is used: the mask of the root.
    constraint._check_s = 1.0
    cheap = constraint.allowed(tokens, parents, 1e-9)
    assert cheap is not None
    assert cheap[len(chain)] is False
    assert cheap[len(chain) + 1] is True


def constraint_pattern() -> str:
    return " (red|green) (fox|frog) (ran|sat)\\."


@needs_native
def test_a_constrained_text_runs_fewer_rows_and_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = edgedec.open("nano", threads=2)
    ids = model.tokenizer.encode("Once upon a time, there was a")
    texts, proposed = [], []
    for pruning in (None, True):
        session = model.session(speculate="recycling:fixed=12+trigram")
        found: list[int] = []
        for i in range(4):
            constraint = regex(
                model, " (brave|happy|little) (bear|bird|dog|fox) who (found|loved) a (big|red) (ball|kite)\\."
            )
            if not pruning:
                monkeypatch.setattr(type(constraint), "allowed", lambda *_: None)
            found += map(int, session.tokens([*ids, *ids[:i]], max_tokens=30, constraint=constraint))
            monkeypatch.undo()
            proposed.append(session.stats.proposed)
        texts.append(found)
    assert texts[0] == texts[1]
    assert 0 < sum(proposed[4:]) < sum(proposed[:4])
