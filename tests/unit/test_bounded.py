"""JSON that ends within its tokens: long numbers and strings are ended, and nothing else is changed."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgedec
from edgedec import Sampling, constraints
from edgedec.constraints import _matcher_guest, bounded, place
from edgedec.constraints.kinds.json_schema import json_schema
from edgedec.constraints.matcher import GrammarConstraint

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")

JsonPlace = place.JsonPlace
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "more": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        "weight": {"type": "number"},
    },
    "required": ["name", "age", "more", "weight"],
    "additionalProperties": False,
}
NUMBER = {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 1}


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


class _Spelt:
    """A tokenizer of pieces and bytes, with a number that no token has."""

    pieces = ("<0x31>", "12", "-", '"', '",', "a", "1a", "+1.5e3x", "<0x22>", "<0x3", None, "e", "²", "")

    def spellings(self, size: int) -> list[str]:
        return [piece or "" for piece in self.pieces] + [""] * (size - len(self.pieces))

    def id(self, token: str) -> int | None:
        return self.pieces.index(token) if token in self.pieces else None


def test_what_tokens_do_is_read_once_for_all() -> None:
    tokenizer: Any = _Spelt()
    found = place.Pieces(tokenizer, 16)
    assert found.digits.tolist() == [1, 2, 1, 0, 0, 0, 1, 3, 0, 0, 0, 1, 0, 0, 0, 0]
    assert [i for i, closes in enumerate(found.closing) if closes] == [3, 4, 8]
    assert found.ids('"2-') == [3, 2]
    assert (found[0], found[10], found[15]) == ("1", "", "")


def test_spellings_are_those_of_the_tokens(model: edgedec.Model) -> None:
    known = model.tokenizer.vocab_size
    spelt = model.tokenizer.spellings(known + 2)
    assert spelt == [*(model.tokenizer.token(token) for token in range(known)), "", ""]


def written(model: edgedec.Model, constraint: Any, most: int | None, seed: int, **more: Any) -> tuple[str, str]:
    session = model.session(context=512, **more)
    sampling = Sampling(temperature=1.0, seed=seed)
    text = "".join(session.generate("Once upon a time", max_tokens=most, constraint=constraint, sampling=sampling))
    return text, session.finish_reason


@pytest.mark.parametrize("most", [48, 64, 100])
def test_a_small_model_ends_its_answer(model: edgedec.Model, most: int) -> None:
    ended = {True: 0, False: 0}
    for on in ended:
        for seed in range(8):
            text, reason = written(model, json_schema(model, PERSON, bounded=on), most, seed)
            ended[on] += reason == "eos"
            if reason == "eos":
                jsonschema.validate(json.loads(text), PERSON)
    assert ended[True] == 8
    assert ended[False] < 8, "without bounds it would have ended as well"


def test_a_text_that_fits_is_left_as_it_is(model: edgedec.Model) -> None:
    """Far from the end of its tokens the constraint is the grammar's, mask for mask."""
    on, off = json_schema(model, PERSON), json_schema(model, PERSON, bounded=False)
    on.limit(10_000)  # type: ignore[attr-defined]
    for token in model.tokenizer.encode('{"name":"Tom and his 123456789012345678901234567890', special=False):
        assert (on.mask(()) == off.mask(())).all()
        for constraint in (on, off):
            constraint.accept(token)


@pytest.mark.parametrize("spec", ["off", "auto", "copy"])
@pytest.mark.parametrize("most", [40, 90, 300])
def test_drafts_change_nothing(model: edgedec.Model, spec: str, most: int) -> None:
    for seed in range(2):
        found = written(model, json_schema(model, PERSON), most, seed, speculate=spec)
        assert found == written(model, json_schema(model, PERSON), most, seed, speculate="off")


def test_drafted_paths_have_the_masks_of_accepted_tokens(model: edgedec.Model) -> None:
    text = '{"name":"Tom saw a big red ball in the park","age":123456789012345678901,"more":["a'
    tokens = model.tokenizer.encode(text, special=False)
    for left in (len(tokens) + 2, len(tokens) + 30, 300):
        drafted, accepted = json_schema(model, PERSON), json_schema(model, PERSON)
        for constraint in (drafted, accepted):
            constraint.limit(left)  # type: ignore[attr-defined]
        ended = 0
        for i, token in enumerate(tokens):
            mask = accepted.mask(())
            assert (drafted.mask(tokens[:i]) == mask).all(), (left, i)
            ended += not mask[token]
            if not GrammarConstraint.mask(accepted, ())[token]:
                break
            accepted.accept(token)
        assert ended > 0 or left == 300


def test_what_one_branch_needs_is_not_what_another_does(model: edgedec.Model) -> None:
    string = {"type": "string"}
    few, many = ({"type": "object", "properties": dict.fromkeys(names, string)} for names in ("a", "bcdefgh"))
    closed = [{**one, "required": list(one["properties"]), "additionalProperties": False} for one in (few, many)]
    schema = {"anyOf": closed}
    head, rest = ([model.tokenizer.id(sign) for sign in signs] for signs in ('{"', '":"x'))
    a, b, letter = (model.tokenizer.id(sign) for sign in "abx")
    drafted, accepted = json_schema(model, schema), json_schema(model, schema)
    for constraint in (drafted, accepted):
        constraint.limit(40)  # type: ignore[attr-defined]
        for token in head:
            constraint.accept(token)  # type: ignore[arg-type]
    assert not drafted.mask([b, *rest])[letter]  # type: ignore[list-item]
    assert drafted.mask([a, *rest])[letter]  # type: ignore[list-item]
    for constraint in (drafted, accepted):
        constraint.accept(b)  # type: ignore[arg-type]
    assert (drafted.mask(rest) == accepted.mask(rest)).all()  # type: ignore[arg-type]


# -- numbers


@pytest.mark.parametrize("sign", ["", "-", "0."])
def test_a_number_has_twenty_digits_at_most(model: edgedec.Model, sign: str) -> None:
    constraint = json_schema(model, NUMBER)
    digits = {str(i): model.tokenizer.id(str(i)) for i in range(10)}
    begin = f"[{sign}"
    for token in model.tokenizer.encode(begin, special=False):
        if constraint.mask(())[token]:
            constraint.accept(token)
    count = sign.count("0")
    while any(constraint.mask(())[token] for token in digits.values()):
        constraint.accept(
            next(token for token in digits.values() if constraint.mask(())[token] and token != digits["0"])
        )
        count += 1
        assert count <= 20
    assert count == 20
    assert constraint.mask(())[model.tokenizer.id("]")]
    assert not any(constraint.mask(())[model.tokenizer.id(sign)] for sign in ".eE")


def test_numbers_that_the_schema_wants_longer_are(model: edgedec.Model) -> None:
    long = 12345678901234567890123456789
    text, reason = written(model, json_schema(model, {"enum": [long]}), 60, 1)
    assert (float(text), len(text), reason) == (float(long), 29, "eos")


def test_digits_in_strings_are_free(model: edgedec.Model) -> None:
    constraint = json_schema(model, {"type": "string"})
    for token in model.tokenizer.encode('"' + "1" * 40, special=False):
        if constraint.mask(())[token]:
            constraint.accept(token)
    assert constraint.mask(())[model.tokenizer.id("1")]


# -- strings


def test_a_string_ends_where_the_rest_needs_the_tokens(model: edgedec.Model) -> None:
    constraint = json_schema(model, PERSON)
    head = model.tokenizer.encode('{"name":"', special=False)
    constraint.limit(100)  # type: ignore[attr-defined]
    for token in head:
        constraint.accept(token)
    letter, count = model.tokenizer.id("a"), 0
    assert letter is not None
    while constraint.mask(())[letter]:
        constraint.accept(letter)
        count += 1
    ends = constraint.mask(())
    assert {model.tokenizer.token(int(token))[0] for token in ends.nonzero()[0]} == {'"'}
    # What is left is enough for the rest, and not for much more.
    rest = model.tokenizer.encode('","age":0,"more":[""],"weight":0}', special=False)
    assert len(rest) < 100 - len(head) - count < 3 * len(rest)


def test_the_tokens_that_are_left_to_complete_a_text(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest of 11 tokens in the shortest way: 11, half of that, and 8. It is not looked at with more than 256 left."""
    rule: Any = json_schema(model, PERSON)
    paths = list[tuple[int, ...]]()
    monkeypatch.setattr(rule, "_shortest", lambda path: paths.append(path) or 11)
    string = JsonPlace("string", 0, 0)
    for left, path, ends in ((257, 0, False), (258, 1, False), (257, 1, False), (25, 0, False), (24, 0, True)):
        rule._needs.clear()
        rule.limit(left)
        assert rule._must_end(string, (5,) * path) == ends, (left, path)
    rule.limit(26)
    assert [rule._must_end(string, (5,) * n) for n in (1, 2, 3)] == [False, True, True]
    assert paths, "it was counted"
    rule.limit(None)
    assert not rule._must_end(string, ())


def test_a_string_that_must_not_end_goes_on(model: edgedec.Model) -> None:
    schema = {"type": "string", "minLength": 30}
    text, _ = written(model, json_schema(model, schema), 60, 1)
    assert len(json.loads(text)) >= 30
    text, reason = written(model, json_schema(model, schema), 8, 1)
    assert reason == "length"
    assert len(text) > 5


def test_it_can_be_turned_off(model: edgedec.Model) -> None:
    off = [
        json_schema(model, PERSON, bounded=False),
        json_schema(model, {**PERSON, "x-bounded": False}),
        constraints.FAMILY.make("json_object", model, {"bounded": False}),
    ]
    assert {type(constraint) for constraint in off} == {GrammarConstraint}
    assert type(json_schema(model, PERSON)) is bounded.BoundedConstraint


def test_forks_and_new_prompts_have_a_count_of_their_own(model: edgedec.Model) -> None:
    constraint = json_schema(model, {"type": "string"})
    tokens = model.tokenizer.encode('"a cat', special=False)
    letter = model.tokenizer.id("a")
    assert letter is not None
    constraint.limit(len(tokens) + 2)  # type: ignore[attr-defined]
    for token in tokens[:2]:
        constraint.accept(token)
    twin = constraint.fork()
    assert not constraint.mask(())[letter]
    assert (twin.mask(()) == constraint.mask(())).all()
    twin.limit(1000)  # type: ignore[attr-defined]
    assert twin.mask(())[letter]
    constraint.reset()
    for token in tokens[:2]:
        constraint.accept(token)
    assert constraint.mask(())[letter]


# -- tools, thoughts, contexts


def test_text_that_calls_nothing_is_not_bounded(model: edgedec.Model) -> None:
    from edgedec.server import tools

    known = tools.Tools(({},), {"f": {"type": "object", "properties": {"n": {"type": "integer"}}}}, "auto", True)
    free = tools.constraint(model, known)
    for token in model.tokenizer.encode("Call " + "1" * 40, special=False):
        free.accept(token)
    assert free.mask(())[model.tokenizer.id("1")]
    call = tools.constraint(model, known)
    for token in model.tokenizer.encode('{"name": "f", "arguments": {"n": ' + "1" * 20, special=False):
        call.accept(token)
    assert not call.mask(())[model.tokenizer.id("1")]
    off = {"f": {"type": "object", "x-bounded": False}}
    assert type(tools.constraint(model, tools.Tools(({},), off, "auto", True))) is GrammarConstraint


def test_a_thought_counts(model: edgedec.Model) -> None:
    from edgedec.server.thinking import AfterThought

    close = model.tokenizer.id("a")
    assert close is not None
    quote, other = model.tokenizer.encode('"', special=False)[-1], model.tokenizer.id("b")
    assert other is not None
    masks = []
    for thoughts in (3, *range(36, 46)):
        after = AfterThought(json_schema(model, {"type": "string"}), close, model.spec.vocab_size)
        after.limit(52)
        for _ in range(thoughts):
            after.accept(other)
        drafted = after.mask([close, quote])
        for token in (close, quote):
            after.accept(token)
        assert (after.mask(()) == drafted).all()
        masks.append(bool(drafted[other]))
    assert (masks[0], masks[-1]) == (True, False)


def test_the_end_of_the_context_is_an_end_too(model: edgedec.Model) -> None:
    for seed in range(4):
        session = model.session(context=64)
        sampling = Sampling(temperature=1.0, seed=seed)
        text = "".join(session.generate("Once", constraint=json_schema(model, PERSON), sampling=sampling))
        assert session.finish_reason == "eos"
        jsonschema.validate(json.loads(text), PERSON)


# -- places


def test_worked_examples() -> None:
    assert doctest.testmod(place).failed == 0


@given(st.recursive(st.one_of(st.integers(-(10**9), 10**9), st.text(max_size=5), st.booleans()), st.lists), st.data())
def test_a_place_is_found_however_a_text_is_cut(value: Any, data: st.DataObject) -> None:
    text = json.dumps([value, "end"])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = JsonPlace()
    for at, part in enumerate(parts):
        found = found.after(part, at)
        read = "".join(parts[: at + 1])
        expected = JsonPlace()
        for i, sign in enumerate(read):
            expected = expected.after(sign, i)
        assert found[:2] == expected[:2]
    assert found == JsonPlace()


@pytest.mark.parametrize(("mask", "first"), [(b"\x00\x00\x0c\xff", [18]), (b"\x01", [0]), (b"\x00\x00", [])])
def test_the_first_token_that_a_mask_allows(mask: bytes, first: list[int]) -> None:
    class Masked:
        def compute_bitmask(self) -> bytes:
            return mask

    assert _matcher_guest._any(Masked()) == first
