"""Products of constraints, and checks of single tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import edgedec
from edgedec import constraints
from edgedec.constraints.kinds.product import ProductConstraint, product
from edgedec.constraints.matcher import GrammarConstraint
from edgedec.decoding.constraint import validated
from edgedec.errors import UsageError
from edgedec.model import Model
from edgedec.server.thinking import AfterThought
from edgedec.testing.fakes import SetConstraint

pytest.importorskip("llguidance", reason="constraints need llguidance")

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def model(nano: Path) -> Model:
    return edgedec.open(nano, threads=1)


def spell(model: Model, text: str) -> list[int]:
    return model.tokenizer.encode(text, special=False, around=False)


def some(model: Model) -> list[int]:
    """Tokens of all sorts: with and without meaning, the end."""
    signs = [token for text in '{} "a:1,-x' for token in spell(model, text)]
    return [*range(0, model.spec.vocab_size, 37), *signs, *model.eos, model.spec.vocab_size - 1]


# --- single tokens ---


@pytest.mark.parametrize("kind", ["regex", "json", "bounded", "product"])
def test_a_check_says_what_the_mask_says(model: Model, kind: str) -> None:
    made: dict[str, Any] = {
        "regex": lambda: constraints.regex(model, r"[a-z]+( [a-z]+)*"),
        "json": lambda: constraints.json_schema(model, SCHEMA, bounded=False),
        "bounded": lambda: constraints.json_schema(model, SCHEMA),
        "product": lambda: product("ab", [constraints.regex(model, "[a-z ]*"), constraints.regex(model, r"[^y]*")]),
    }
    checked, masked = made[kind](), made[kind]()
    every = list(range(model.spec.vocab_size))
    text = '{"a": 1234567890123456' if kind in ("json", "bounded") else "a little fox"
    tokens = some(model)
    for token in [*spell(model, text), None]:
        assert checked.validate(tokens) == masked.mask(())[tokens].tolist()
        assert checked.validate(every) == masked.mask(()).tolist()  # forced texts have one spelling
        if token is not None:
            assert checked.validate([token]) == [True]
            checked.accept(token)
            masked.accept(token)
        assert any(checked.validate(tokens))
        assert not all(checked.validate(tokens))


def test_a_forced_text_has_one_spelling(model: Model) -> None:
    """After `{"n` the rest of a name could be spelt in many ways, of which the mask holds one."""
    schema = {
        **SCHEMA,
        "properties": {"name": {"type": "integer"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    checked, masked = (constraints.json_schema(model, schema, bounded=False) for _ in range(2))
    every, single = list(range(model.spec.vocab_size)), 0
    for _ in range(7):
        mask = masked.mask(())
        assert checked.validate(every) == mask.tolist()
        single += mask.sum() == 1
        token = int(np.flatnonzero(mask)[0])
        checked.accept(token)
        masked.accept(token)
    assert single > 2


def test_a_check_below_a_path(model: Model) -> None:
    found, word = constraints.regex(model, "[a-z]{3}"), spell(model, "cat")
    assert found.validate(spell(model, "b"), word) == [False] * len(spell(model, "b"))
    assert found.validate([*model.eos], word) == [True] * len(model.eos)
    assert found.validate([*model.eos], ()) == [False] * len(model.eos)
    assert found.validate(spell(model, "{"), ()) == [False]
    assert found.validate(word[:1], spell(model, "{")) == [False]  # nothing follows a path that is not allowed
    found.accept(word[0])  # as if nothing had been asked
    assert found.mask(()).any()


def test_checks_compute_no_masks(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    found = constraints.regex(model, "[a-z]{12}")
    asked: list[tuple[str, bool]] = []
    send = type(found._matcher._group).send

    def noted(self: Any, matcher: Any, do: str, waits: bool = True, **message: Any) -> None:
        asked.append((do, bool(message.get("bare"))))
        send(self, matcher, do, waits, **message)

    monkeypatch.setattr(type(found._matcher._group), "send", noted)
    for token in spell(model, "abcdef"):
        assert found.validate([token]) == [True]
        found.accept(token)
    assert {do for do, _ in asked} == {"validate", "step"}
    assert all(bare for do, bare in asked if do == "step")
    before = len(asked)
    assert found.mask(()).any()  # a mask is computed when it is asked for
    assert asked[before:] == [("step", False)]
    found.reset()
    found.accept(spell(model, "a")[0])
    found.mask(())
    assert asked[-1] == ("step", False)  # a new text begins with masks


def test_a_fork_checks_by_itself(model: Model) -> None:
    one = constraints.choices(model, ["cat", "cow"])
    assert one.validate(spell(model, "c")) == [True]
    one.accept(spell(model, "c")[0])
    two = one.fork()
    at, ow = spell(model, "xat")[1:], spell(model, "xow")[1:]
    for token in at:
        assert one.validate([token]) == [True]
        one.accept(token)
    for token in ow:
        assert two.validate([token]) == [True]
        two.accept(token)
    assert one.done
    assert two.done


def test_any_constraint_can_be_checked() -> None:
    table = SetConstraint({-1: [1, 2], 1: [3]})
    assert validated(table, [1, 3, 2]) == [True, False, True]
    assert validated(table, [3, 1], [1]) == [True, False]
    after = AfterThought(table, close=9, size=13)
    assert after.validate([5, 6]) == [True, True]
    assert after.validate([1, 5], [4, 9]) == [True, False]
    after.accept(9)
    assert after.validate([1, 5]) == [True, False]


# --- products ---


def test_a_product_allows_what_all_allow(model: Model) -> None:
    parts: list[GrammarConstraint] = [constraints.regex(model, "[a-c]+"), constraints.regex(model, "[b-d]{2,4}")]
    both = product(["one", "two"], [part.fork() for part in parts])
    for token in spell(model, "bc"):
        assert (both.mask(()) == parts[0].mask(()) & parts[1].mask(())).all()
        assert both.mask(()).any()
        both.accept(token)
        for part in parts:
            part.accept(token)
    assert both.mask(())[list(model.eos)].all()
    assert both.may_end()
    assert not both.done


def test_products_at_the_end(model: Model) -> None:
    both = product(["one", "two"], [constraints.regex(model, "ab"), constraints.regex(model, "a.*")])
    for token in spell(model, "ab"):
        assert not both.done
        both.accept(token)
    assert both.done
    assert np.flatnonzero(both.mask(())).tolist() == sorted(model.eos)
    early = product(["one", "two"], [constraints.regex(model, "ab"), constraints.regex(model, "abc|xy")])
    word = spell(model, "ab")
    for token in word:
        early.accept(token)
    with pytest.raises(UsageError, match=rf"one and two: a dead end: .* by all of them after {len(word)} token"):
        _ = early.done


def test_a_dead_end_is_named_where_the_text_gets_there() -> None:
    both = product(
        ["red", "blue"],
        [SetConstraint({-1: [1, 2], 1: [3], 2: [4], 3: []}), SetConstraint({-1: [1, 2], 1: [5], 2: [4], 3: []})],
    )
    assert both.mask([2]).any()
    assert not both.mask([3]).any()  # not allowed, so no dead end
    with pytest.raises(UsageError, match=r"red and blue: a dead end: nothing is allowed by all of them after 1 token$"):
        both.mask([1])
    both.accept(1)
    with pytest.raises(UsageError, match=r"after 1 token$"):
        both.mask(())
    both.reset()
    assert np.flatnonzero(both.mask(())).tolist() == [1, 2]
    with pytest.raises(UsageError, match="as the first token"):
        product(["red", "blue"], [SetConstraint({-1: [1]}), SetConstraint({-1: [2]})]).mask(())


class Watched(SetConstraint):
    """Records what it is told."""

    def __init__(self, is_ready: bool = True, fine: list[bool] | None = None) -> None:
        super().__init__({-1: [1, 2]})
        self.left: list[int | None] = []
        self._ready, self._fine, self.begins = is_ready, fine, 0

    def limit(self, tokens: int | None) -> None:
        self.left.append(tokens)

    def ready(self) -> bool:
        return self._ready

    def begun(self, path: Any) -> bool:
        self.begins += 1
        return self._ready

    def allowed(self, tokens: Any, parents: Any, seconds: float) -> list[bool] | None:
        return self._fine

    def forced(self) -> list[int]:
        return [1]

    def fork(self) -> Self:
        return self


class Slow(Watched):
    slow = True


def test_a_product_tells_all_its_parts() -> None:
    late, fine = Watched(False, [True, False]), Watched(True, [True, True])
    both: ProductConstraint = product("ab", [late, fine, SetConstraint({-1: [1]})])
    both.limit(7)
    assert late.left == fine.left == [7]
    assert not both.ready()
    assert not both.begun([1])
    assert (late.begins, fine.begins) == (1, 1)
    assert both.allowed([1, 2], [-1, -1], 1.0) == [True, False]
    assert product("a", [Watched(fine=None)]).allowed([1], [-1], 1.0) is None
    assert both.forced() == [1]
    assert not both.slow
    assert product("a", [Slow()]).slow
    assert product("a", [fine]).ready()


def test_a_fork_of_a_product_is_a_product_of_forks(model: Model) -> None:
    both = product("ab", [constraints.choices(model, ["cat", "cow"]), constraints.regex(model, "c.+")])
    both.accept(spell(model, "c")[0])
    twin = both.fork()
    for token in spell(model, "xat")[1:]:
        both.accept(token)
    assert both.done
    assert not twin.done
    assert twin.validate(spell(model, "xow")[1:2]) == [True]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_changes_nothing_under_a_product(model: Model, temperature: float) -> None:
    words = r"regex:pattern='[a-z]+( [a-z]+)*\.'+grammar:text='start: /[^x]{10,40}/'"
    texts = {
        spec: "".join(
            model.session(speculate=spec).generate(
                "Once upon a time", max_tokens=40, constraint=words, temperature=temperature, seed=3
            )
        )
        for spec in ("off", "auto")
    }
    assert texts["off"] == texts["auto"]
    assert texts["off"]
