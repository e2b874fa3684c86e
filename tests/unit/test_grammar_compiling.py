"""Which grammars are compiled, when again, and how much time each attempt gets: with groups that compile nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from edgedec.constraints import compiling
from edgedec.constraints._matcher_guest import _shortest
from edgedec.constraints.compiling import Grammars, ManyGrammars
from edgedec.errors import LimitExceeded, UsageError
from edgedec.sandbox.worker import LOWEST


class Copied:
    """A matcher; `of`: the one that it is a copy of."""

    def __init__(self, text: str, of: Copied | None = None) -> None:
        self.text, self.of = text, of

    def deep_copy(self) -> Copied:
        return Copied(self.text, self)


class Group:
    """Compiles what `made` notes: (text, seconds, priority); fails as often as `failures` says. large: MiB."""

    made: list[tuple[str, float, int]]
    failures: list[Exception]

    def __init__(self, large: int = 1) -> None:
        self.dead, self.live, self._large = False, 1, large

    def size(self) -> int:
        return self._large

    def compiled(self, kind: str, text: str, options: Any, seconds: float = 0.0, priority: int = 0) -> Copied:
        self.made.append((text, seconds, priority))
        if self.failures:
            raise self.failures.pop(0)
        return Copied(text)


class World:
    """The grammars of a vocabulary, and the groups that were started for them."""

    def __init__(self) -> None:
        self.groups, self.large = list[Any](), 1
        Group.made, Group.failures = [], []
        self.grammars = Grammars(self._new)

    def _new(self, what: str) -> Any:
        self.groups.append(Group(self.large))
        return self.groups[-1]

    def matcher(self, text: str, **options: Any) -> Any:
        return self.grammars.matcher("regex", text, options)

    @property
    def texts(self) -> str:
        """Those that were compiled, in order."""
        return "".join(text for text, _, _ in Group.made)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(compiling, "enabled", lambda: True)
    return World()


def test_equal_grammars_are_compiled_once(world: World) -> None:
    one, other = world.matcher("a"), world.matcher("a")
    assert one is not other
    assert one.of is other.of, "each text has a matcher of its own"
    world.matcher("a", flexible=True)
    assert world.texts == "aa", "with other options it is another one"


def test_the_last_eight_are_kept(world: World) -> None:
    for text in "abcdefgh":
        world.matcher(text)
    world.matcher("a")
    world.matcher("i")  # the ninth: b was used longest ago
    assert world.texts == "abcdefghi"
    for text in "acdefghi":
        world.matcher(text)
    assert world.texts == "abcdefghi"
    world.matcher("b")
    assert world.texts == "abcdefghib"


def test_large_ones_and_those_of_many_texts_are_not_shared(world: World) -> None:
    world.large = 33
    assert world.matcher("a").of is None
    world.matcher("a")
    assert world.texts == "aa"
    world.large = 32
    world.matcher("b")
    world.matcher("b")
    assert world.texts == "aab"
    world.groups[-1].live = 16
    world.matcher("b")
    assert world.texts == "aab"
    world.groups[-1].live = 17
    world.matcher("b")
    assert world.texts == "aabb"
    world.groups[-1].dead = True
    world.matcher("b")
    assert world.texts == "aabbb"


def test_what_takes_long_is_tried_again_with_more_time_and_a_lower_priority(world: World) -> None:
    Group.failures = [LimitExceeded("more than 0.01 s"), LimitExceeded("more than 0.05 s")]
    world.matcher("a")
    assert Group.made == [("a", 0.01, 0), ("a", 0.05, 10), ("a", 0.0, LOWEST)]
    assert len(world.groups) == 3, "each in a process of its own"
    Group.failures = [LimitExceeded("1"), LimitExceeded("2"), LimitExceeded("took 2 s")]
    with pytest.raises(UsageError, match="regex: took 2 s"):
        world.matcher("b")
    Group.made.clear()
    world.matcher("b")
    assert Group.made == [("b", 0.01, 0)], "what failed is compiled again"


def test_one_that_waited_for_its_turn_has_a_low_priority(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def late(places: threading.Semaphore) -> Iterator[bool]:
        yield True

    monkeypatch.setattr(compiling.stop, "turn", late)
    world.matcher("a")
    assert Group.made == [("a", 0.01, 10)]
    monkeypatch.setattr(compiling, "enabled", lambda: False)
    world.matcher("b")
    assert Group.made[1:] == [("b", 0.01, 0)], "in this process nothing takes turns"


def test_too_many_that_take_long_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_large", threading.BoundedSemaphore(1))
    assert compiling._MOST == 32
    with compiling._large:
        Group.failures = [LimitExceeded("1"), LimitExceeded("2")]
        with pytest.raises(ManyGrammars, match="regex: too many grammars that take long"):
            world.matcher("a")
    Group.failures = [LimitExceeded("1"), LimitExceeded("2")]
    assert world.matcher("a").text == "a"


# ── the shortest way to the end of a text ──


class Walk:
    """A matcher of the bytes of a graph: state -> {byte: next state}; a state with one byte forces it. State "" is the
    end."""

    def __init__(self, ways: dict[str, dict[str, str]], at: str = "0") -> None:
        self.ways, self.at = ways, at

    def is_stopped(self) -> bool:
        return False

    def is_accepting(self) -> bool:
        return self.at == ""

    def compute_ff_tokens(self) -> list[int]:
        found, at = list[int](), self.at
        while at and len(self.ways[at]) == 1:
            ((byte, at),) = self.ways[at].items()
            found.append(ord(byte))
        return found

    def validate_tokens(self, tokens: list[int]) -> int:
        return int(chr(tokens[0]) in self.ways[self.at])

    def try_consume_tokens(self, tokens: list[int]) -> int:
        for n, token in enumerate(tokens):
            if chr(token) not in self.ways[self.at]:
                return n
            self.at = self.ways[self.at][chr(token)]
        return len(tokens)

    def compute_bitmask(self) -> bytes:
        bits = bytearray(16)
        for byte in self.ways[self.at]:
            bits[ord(byte) >> 3] |= 1 << (ord(byte) & 7)
        return bytes(bits)


def shortest(ways: dict[str, dict[str, str]], quoted: bool, most: int = 50) -> int:
    class Tokenizer:
        def decode_bytes(self, tokens: list[int]) -> bytes:
            return bytes(tokens)

    message = {"quoted": quoted, "quote": [ord('"')], "signs": list(map(ord, '}]"')), "most": most}
    return _shortest(Walk(ways), Tokenizer(), message)


def forced(text: str, then: dict[str, str]) -> dict[str, dict[str, str]]:
    """This text, and then a choice; '}' needs three bytes more."""
    ways = {str(n): {byte: str(n + 1)} for n, byte in enumerate(text)}
    return {**ways, str(len(text)): then, "x": {"1": "y"}, "y": {"2": "z"}, "z": {"3": ""}}


@pytest.mark.parametrize(
    ("text", "quoted", "inside"),
    [
        ("ab", True, True), ("ab", False, False), ('a"', True, False), ('a"', False, True), ('"a"', False, False),
        ('a\\"', True, True), ('a\\\\"', True, False), ('a\\\\\\"', True, True), ('\\a"', True, False),
        ('\\"', False, True), ("", True, True), ("", False, False),
    ],
)  # fmt: skip
def test_a_string_is_ended_by_its_quote_and_nothing_else_is(text: str, quoted: bool, inside: bool) -> None:
    """In a string the quote is tried first, elsewhere a bracket: one byte more, or four."""
    found = shortest(forced(text, {'"': "", "}": "x"}), quoted)
    assert found == len(text) + (1 if inside else 4)


def test_without_any_sign_the_first_token_is_taken_and_no_way_is_the_longest() -> None:
    assert shortest(forced("ab", {"q": "", "r": "x"}), True) == 3
    assert shortest(forced("ab", {}), True) == 50, "a dead end"
    loop = {"0": {"a": "1", "b": ""}, "1": {"a": "0", "b": ""}}
    assert shortest(loop, True, most=7) == 7
