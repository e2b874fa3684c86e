"""Grammars over bytes: what they hold beside other readers of the same notation, and texts with gaps by brute force."""

from __future__ import annotations

import json
import random
import re
from itertools import product
from typing import Any

import pytest

from edgedec.decoding.constraint import ConstraintSource
from edgedec.diffusion.grammars import Grammar, GrammarPlace, grammar_of
from edgedec.diffusion.grammars.places import shortest
from edgedec.diffusion.grammars.rules import EMPTY, MOST, RuleBook
from edgedec.diffusion.grammars.utf8 import inverted, sequences
from edgedec.errors import UsageError


class Given:
    """A constraint that was compiled from something."""

    def __init__(self, kind: str, text: str, whitespace: str = "none") -> None:
        self.source = ConstraintSource(kind, text, whitespace)


def made(kind: str, text: Any, whitespace: str = "none") -> Grammar:
    return grammar_of(Given(kind, text if isinstance(text, str) else json.dumps(text), whitespace))  # type: ignore[arg-type]


def member(grammar: Grammar, text: str | bytes) -> bool:
    place = GrammarPlace.start(grammar).after([text.encode() if isinstance(text, str) else text])
    return place is not None and place.accepts


PATTERNS = ["(ab|a)*b", "a{2,3}b?", "[^b]+", "(a|b)(a|bc)?c*", "", "a+?b", r"[\x61-b]c|\x62", "(?:ab){2}"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_holds_what_python_matches(pattern: str) -> None:
    grammar = made("regex", pattern)
    texts = ["".join(letters) for n in range(6) for letters in product("abc", repeat=n)]
    found = {text for text in texts if member(grammar, text)}
    assert found == {text for text in texts if re.fullmatch(pattern, text)}
    assert 0 < len(found) < len(texts)


def test_characters_are_their_bytes() -> None:
    parts = [(0x41, 0x41), (0x80, 0x900), (0xD000, 0xE010), (0xFFF0, 0x10010)]
    allowed = {point for low, high in parts for point in range(low, high + 1) if not 0xD800 <= point <= 0xDFFF}
    found = set()
    for each in sequences(parts):
        for data in product(*(range(low, high + 1) for low, high in each)):
            found.add(ord(bytes(data).decode()))
    assert found == allowed
    assert inverted(inverted(parts)) == parts
    assert member(made("regex", "[^a]é."), "ßé€")
    assert not member(made("regex", "."), b"\xc3")


GRAMMARS = [
    ('start: "a" start "b" | "c"', "aacbb", "aacb"),
    ('root ::= ws item (ws item)* \nitem ::= [a-c]+\nws ::= " "?  # a space', " abc c", "  a"),
    ('start: WORD ("," WORD)~1..2\nWORD: /[a-z]{2}/', "ab,cd,ef", "ab"),
    ('root ::= "x"{2} | ("y" | \'z\'){1,}', "zyz", "x"),
    ('start: "\\u00e9" /a\\/b/?', "éa/b", "e"),
]


@pytest.mark.parametrize(("text", "inside", "outside"), GRAMMARS)
def test_both_notations(text: str, inside: str, outside: str) -> None:
    grammar = made("grammar", text)
    assert member(grammar, inside)
    assert not member(grammar, outside)


def test_gaps_by_brute_force() -> None:
    """A gap of m tokens is any text of m bytes or more: beside all texts up to a length."""
    rng, fits, texts = random.Random(4), 0, [bytes(t) for n in range(7) for t in product(b"abc", repeat=n)]
    for pattern in ("(ab|c)*a", "a{2}(b|cc){2,3}", "(a(b|c)){0,3}"):
        grammar = made("regex", pattern)
        members = [text for text in texts if re.fullmatch(pattern, text.decode())]
        for _ in range(40):
            parts = [rng.choice([1, 2, b"a", b"b", b"cc", b"ab"]) for _ in range(rng.randint(1, 3))]
            wild = b"".join(part if isinstance(part, bytes) else b".{%d,}" % part for part in parts)
            expected = any(re.fullmatch(wild, text) for text in members)
            place = GrammarPlace.start(grammar).after(parts)
            found = place is not None and place.accepts
            if expected:
                assert found
                fits += 1
            elif found:  # only longer than all that was tried
                assert len(shortest_fit(grammar, parts)) > 6
    assert fits > 25


def shortest_fit(grammar: Grammar, parts: list[Any]) -> bytes:
    """A member that fits, gaps filled in turn."""
    place, text = GrammarPlace.start(grammar), b""
    for at, part in enumerate(parts):
        data = part
        if isinstance(part, int):
            first = place.exactly(part - 1)
            assert first is not None
            data = shortest(place, lambda p, rest=parts[at + 1 :]: (e := p.after(rest)) is not None and e.accepts)  # type: ignore[misc]
        found = place.after([data])
        assert found is not None
        place, text = found, text + data
    return text


def test_the_fewest_bytes_that_are_needed() -> None:
    for kind, text, begin in (
        ("grammar", 'start: "a" start "bb" | "c"', b"aa"),
        ("regex", "x(yz|w){3}", b"xy"),
        ("json schema", {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]}, b'{"k'),
        ("json schema", {"type": "array", "items": {"enum": ["yes", "no"]}, "minItems": 2}, b'["y'),
    ):
        place = GrammarPlace.start(made(kind, text)).after([begin])
        assert place is not None
        found = shortest(place, lambda at: at.accepts)
        assert found is not None
        assert len(found) == place.need > 0
        for n in range(place.need):
            assert (after := place.exactly(n)) is not None
            assert not after.accepts


SCHEMAS: list[tuple[Any, list[Any], list[Any]]] = [
    (True, [1, {"a": [None, -1.5e3, "ü\n"]}, "x", []], []),
    ({"type": "integer"}, [0, -12], [1.5, "1", None]),
    ({"type": ["string", "null"]}, ["", None], [1]),
    ({"enum": [1, "b", None]}, [1, "b", None], [2, "c"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "é€c"], ["a", "abcd"]),
    ({"type": "string", "pattern": "^[0-9]{2}-[a-c]+$"}, ["12-ab"], ["1-a", "12-d"]),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}, [[True], [True, False]], [[], [1]]),
    ({"type": "array", "maxItems": 0}, [[]], [[1]]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"a": 1, "b": 2}], [{"a": "1"}]),
    ({"anyOf": [{"const": "x"}, {"type": "integer"}]}, ["x", 3], ["y"]),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "null"}},
            "required": ["b"],
            "additionalProperties": False,
        },
        [{"b": "x"}, {"a": 1, "b": "x"}, {"b": "x", "c": None}, {"a": 1, "b": "", "c": None}],
        [{"a": 1}, {"b": 1}, {}],
    ),
    (
        {
            "$ref": "#/$defs/tree",
            "$defs": {
                "tree": {"type": "object", "properties": {"t": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
            },
        },
        [{}, {"t": [{}, {"t": []}]}],
        [{"t": [1]}],
    ),
]


@pytest.mark.parametrize(("schema", "inside", "outside"), SCHEMAS)
def test_schemas(schema: Any, inside: list[Any], outside: list[Any]) -> None:
    tight, spaced = made("json schema", schema), made("json schema", schema, "space")
    for value in inside:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        assert member(tight, text), text
        assert member(spaced, json.dumps(value, ensure_ascii=False)), text
        assert not member(spaced, text + "  ")
    for value in outside:
        assert not member(tight, json.dumps(value, separators=(",", ":"))), value
    assert not member(tight, " [ ]")


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("regex", "(?=a)b", "assert"),
        ("regex", r"(a)\1", "groupref"),
        ("regex", "a^b", "at"),
        ("regex", "(", "missing"),
        ("regex", "(?i)a", "flags are not supported"),
        ("regex", "(?i:a)b", "subpattern"),
        ("regex", "a{30000}", "too large"),
        ("grammar", "start: a", "no rule a"),
        ("grammar", 'begin: "a"', "no rule start"),
        ("grammar", 'start: start "a"', "no text follows"),
        ("grammar", 'start: "a"i', "without case"),
        ("grammar", "%ignore /a/", "'%ignore' is not supported"),
        ("grammar", 'start: ("a"', "closing parenthesis"),
        ("grammar", 'start: "a"\nstart: "b"', "defined twice"),
        ("grammar", '"a"', "where a rule should begin"),
        ("json schema", {"type": "integer", "minimum": 3}, "minimum is not supported"),
        ("json schema", {"oneOf": [{}]}, "oneOf is not supported"),
        ("json schema", {"type": "string", "format": "date"}, "format is not supported"),
        ("json schema", {"type": "string", "pattern": "a"}, "must be"),
        ("json schema", {"type": "string", "pattern": "^.$"}, "JSON escapes"),
        ("json schema", {"type": "string", "pattern": "^a$|^b$"}, "without |"),
        ("json schema", {"type": "object", "required": ["a"]}, "does not name"),
        ("json schema", {"$ref": "#/$defs/x"}, "no such part"),
        ("json schema", {"type": "text"}, "no type 'text'"),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(kind: str, text: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        made(kind, text)
    assert "\n" not in str(error.value)


def test_a_constraint_without_a_grammar_is_refused() -> None:
    with pytest.raises(UsageError, match="grammar of their own"):
        grammar_of(object())  # type: ignore[arg-type]


def test_texts_that_a_vocabulary_cannot_write_are_left_out() -> None:
    letters = sum(1 << ord(sign) for sign in "ab")
    grammar = grammar_of(Given("regex", "(a|c)x?|b+|d"), letters)  # type: ignore[arg-type]
    assert member(grammar, "a")
    assert member(grammar, "bb")
    assert not any(member(grammar, text) for text in ("c", "ax", "d"))
    with pytest.raises(UsageError, match="no text follows"):
        grammar_of(Given("regex", "ax"), letters)  # type: ignore[arg-type]


def test_a_string_holds_the_characters_that_json_has() -> None:
    grammar = made("json schema", {"type": "string"})
    for point in [*range(0x80), 0xE9, 0x20AC, 0x1F600]:
        text = f'"{chr(point)}"'
        try:
            valid = json.loads(text) == chr(point)
        except ValueError:
            valid = False
        assert member(grammar, text) == valid, hex(point)


@pytest.mark.parametrize(("low", "high"), [(0, 2), (1, 1), (2, 4), (3, None), (0, 0)])
def test_an_array_has_as_many_items_as_its_schema_says(low: int, high: int | None) -> None:
    limits = {"minItems": low} | ({} if high is None else {"maxItems": high})
    grammar = made("json schema", {"type": "array", "items": {"type": "boolean"}, **limits})
    for count in range(8):
        text = json.dumps([True] * count, separators=(",", ":"))
        assert member(grammar, text) == (low <= count <= (8 if high is None else high)), count


def test_a_grammar_has_so_many_symbols_and_no_more() -> None:
    """An alternative counts its symbols and its end."""
    book = RuleBook("g")
    byte = book.bytes_of([65])
    book.define(book.name(), [byte * (MOST - 3), byte])
    with pytest.raises(UsageError, match="has more than 20,000 symbols"):
        book.define(book.name(), [EMPTY])
    assert len(RuleBook("g").repeat(byte, MOST, MOST)) == MOST
    with pytest.raises(UsageError, match="20001 times, which is too large"):
        RuleBook("g").repeat(byte, MOST + 1, MOST + 1)
    RuleBook("g").repeat(byte, 0, 10)
    with pytest.raises(UsageError, match="10001 times, which is too large"):
        RuleBook("g").repeat(byte, 0, MOST // 2 + 1)


def test_the_first_keyword_that_is_not_supported_is_named() -> None:
    with pytest.raises(UsageError, match="exclusiveMinimum is not supported here"):
        made("json schema", {"type": "integer", "multipleOf": 2, "exclusiveMinimum": 3})


@pytest.mark.parametrize("pattern", [r"\s", r"\S", r"\d", r"\D", r"\w", r"\W", ".", r"[\d_]", r"[^\s\w]"])
def test_classes_of_characters_are_those_of_python(pattern: str) -> None:
    """In ASCII, where readers of patterns agree."""
    grammar = made("regex", pattern)
    for point in range(0x80):
        expected = re.fullmatch(pattern, chr(point), re.ASCII) is not None
        assert member(grammar, chr(point)) == expected, hex(point)
