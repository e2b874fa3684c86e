"""The parts that constraints are made of, by hand: what is cut, kept and counted."""

from __future__ import annotations

import doctest
from collections import deque
from typing import Any

import numpy as np
import pytest

from edgedec.constraints import _matcher_guest as guest
from edgedec.constraints.automata import spans
from edgedec.constraints.automata.following import StateConstraint
from edgedec.constraints.automata.tokens import TokenNode, TokenTree
from edgedec.constraints.hosts import LocalHost
from edgedec.constraints.matcher import check_size
from edgedec.constraints.place import _digits
from edgedec.constraints.place import _read as piece_of
from edgedec.constraints.remote import Matcher, MatcherGroup, reason
from edgedec.errors import UsageError
from edgedec.sandbox import Reply


def test_examples() -> None:
    assert doctest.testmod(spans).attempted
    assert not doctest.testmod(spans).failed


# ── messages and sizes ──


def test_a_reason_has_an_end() -> None:
    assert reason("a" * 400) == "a" * 300
    assert reason("not this:\n") == "not this"
    assert reason("first\nsecond\nerror: third") == "first error: third"


def test_an_error_of_a_local_matcher_is_one_line_with_an_end() -> None:
    class Refusing:
        def handle(self, message: dict[str, Any]) -> Any:
            raise ValueError("ab\n " * 200)

    host = LocalHost(Refusing())  # type: ignore[arg-type]
    host.send(do="compile")
    assert host.ready()
    assert host.receive().error == ("ab " * 200)[:300]
    assert host.size() == 0


def test_the_largest_grammars_that_are_taken() -> None:
    check_size("regex", "a" * 524_288)
    with pytest.raises(UsageError, match="524,289 characters; at most 524,288"):
        check_size("regex", "a" * 524_289)
    check_size("json schema", '"$ref"' * 10_000)
    check_size("regex", '"$ref"' * 10_001)
    check_size("regex", "(" * 200 + ")" * 200)
    check_size("regex", "([{" * 66 + "}])" * 66 + "(" * 200)
    check_size("regex", ")" * 300 + "(" * 200)
    with pytest.raises(UsageError, match="nested 201 deep; at most 200"):
        check_size("regex", "[" * 100 + "(" * 101)
    with pytest.raises(UsageError, match="nested 201 deep; at most 200"):
        check_size("regex", "[[]" * 200 + "[")  # each adds one that stays open


# ── the guest ──


class Scripted:
    """A matcher of texts over single letters that a set of texts allows."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.taken = texts, ""

    def _fits(self, text: str) -> bool:
        return any(one.startswith(text) for one in self.texts)

    def try_consume_tokens(self, tokens: list[int]) -> int:
        longer = self.taken + "".join(map(chr, tokens))
        if not self._fits(longer):
            return 0
        self.taken = longer
        return len(tokens)

    def validate_tokens(self, tokens: list[int]) -> int:
        return int(self._fits(self.taken + "".join(map(chr, tokens))))

    def rollback(self, n: int) -> None:
        self.taken = self.taken[: len(self.taken) - n]


def test_the_nodes_of_a_tree_after_their_paths() -> None:
    """a(b(c d) x) e: of these abc, ax and e are texts."""
    matcher = Scripted("abc", "ax", "e")
    tokens, parents = [ord(sign) for sign in "aebxcdz"], [-1, -1, 0, 0, 2, 2, 1]
    assert guest._allowed(matcher, tokens, parents) == [True, True, True, True, True, False, False]
    assert matcher.taken == "", "its state is restored"


def test_an_error_of_a_matcher_has_an_end() -> None:
    class Broken:
        def is_accepting(self) -> bool:
            return False

        def is_error(self) -> bool:
            return True

        def get_error(self) -> str:
            return "abc" * 2000

        def is_stopped(self) -> bool:
            return True

    state, mask = guest.Matchers(None, {})._state(Broken(), 3)
    assert (state["wrong"], mask) == (("abc" * 2000)[:4000], b"")
    assert (state["taken"], state["forced"], state["stopped"], state["bare"]) == (3, [], True, False)


# ── a matcher in a process ──


class Host:
    """A process that answers each request by the next of these."""

    def __init__(self, *replies: Reply) -> None:
        self.asked, self._replies, self.waits = list[dict[str, Any]](), deque(replies), deque[bool]()

    def send(self, blob: bytes = b"", **message: Any) -> None:
        self.asked.append(message)

    def receive(self) -> Reply:
        return self._replies.popleft()

    def ready(self, seconds: float = 0.0) -> bool:
        return self.waits.popleft() if self.waits else True

    def size(self) -> int:
        return 7

    def lower(self, priority: int) -> None:
        pass


def reply(mask: bytes = b"", **values: Any) -> Reply:
    return Reply({"taken": 1, "stopped": False, "accepting": False, "wrong": "", "forced": [], **values}, mask)


def matcher_of(*replies: Reply) -> tuple[Matcher, Host]:
    host = Host(*replies)
    group = MatcherGroup("regex", host)
    made = Matcher(group, group.number())
    made.take(reply(b"\x02\x80", bare=False))
    return made, host


def test_a_token_of_the_mask_is_sent_without_a_wait() -> None:
    """Bits 1 and 15 of two bytes."""
    for token, sure in ((1, True), (15, True), (0, False), (7, False), (14, False), (16, False), (99, False)):
        made, host = matcher_of(reply(taken=0))
        assert made.try_consume_tokens([token]) == int(sure), token
        assert made.waits == int(sure)
        assert (host.asked[-1]["do"], host.asked[-1]["tokens"]) == ("step", [token])


def test_a_matcher_asks_for_the_time_of_a_step() -> None:
    made, host = matcher_of(reply(), reply(allowed=[True, False]), reply(valid=[False]), reply(needs=9))
    made.hand_on([1])
    assert made.check([1, 2], [-1, 0]) == [True, False]
    assert made.validate([5]) == [False]
    assert made.shortest(True, [3], [4], 256) == 9
    assert [(one["do"], one["seconds"]) for one in host.asked] == [
        ("step", 0.5),
        ("check", 0.5),
        ("validate", 0.5),
        ("shortest", 1.0),
    ]
    assert made.waits == 0


def test_patience_is_lost_at_once_and_grows_again_slowly() -> None:
    made, host = matcher_of(*[reply()] * 9)
    found = list[float]()
    for ready in (False, True, True, True, True, True, True):
        made.hand_on([1])
        host.waits.extend([ready] if not ready else [])
        assert made.ready() == ready
        found.append(made._patience)
    assert found == pytest.approx([0.0, 2e-5, 6e-5, 1.4e-4, 3e-4, 5e-4, 5e-4])


def test_matchers_without_references_are_dropped_with_the_next_request() -> None:
    made, host = matcher_of(reply(), reply(), reply())
    group = made._group
    twin = made.deep_copy()
    assert (group.live, host.asked[-1]) == (2, {"do": "fork", "id": made.number, "new": twin.number})
    del twin
    assert group.live == 1
    made.hand_on([1])
    assert [one["do"] for one in host.asked] == ["fork", "drop", "step"]
    assert group.live == 1
    assert group.size() == 7


# ── states ──


class Counting(StateConstraint[int]):
    """Texts of a's: so many, or twice as many."""

    def after(self, state: int, text: bytes) -> int | None:
        return state + len(text) if set(text) == {97} else None

    def may_follow(self, state: int, found: Any) -> None:
        found[0] = True

    def complete(self, state: int) -> bool:
        return state > 0


def test_so_many_masks_are_kept_and_the_oldest_go() -> None:
    made = Counting("test", TokenTree([b"a", b"b", None], 3, frozenset({2})), 0)
    for n in range(1100):
        assert made.mask([0] * n).tolist() == [True, False, n > 0]
    assert list(made._masks) == list(range(1100 - 1024, 1100))


def test_the_tree_of_tokens_by_their_bytes() -> None:
    spelt = [b"a", b"\xff", b"ab", b"\xff\xff", b"a", None, b"b", b"\xfe\xff", b""]
    tree = TokenTree([*spelt, b"zz"], 9, frozenset({6}))

    def below(node: TokenNode, text: bytes) -> dict[bytes, tuple[set[int], set[int]]]:
        order = tree.order.tolist()
        found = {text: (set(order[node.low : node.high]), set(order[node.low : node.low + node.own]))}
        for byte, child in node.children().items():
            found |= below(child, text + bytes([byte]))
        return found

    known = {token: text for token, text in enumerate(spelt) if text and token != 6}
    beginnings = {text[:n] for text in known.values() for n in range(len(text) + 1)}
    assert below(tree.root, b"") == {
        one: ({t for t, text in known.items() if text.startswith(one)}, {t for t, text in known.items() if text == one})
        for one in beginnings
    }
    assert [tree.spelt(token) for token in (0, 5, 6, 8, 9, 10)] == [b"a", None, None, b"", b"zz", None]


@pytest.mark.parametrize(
    ("piece", "digits"), [("12.5x", 3), (".", 1), ("-", 1), ("a1", 0), ("", 0), ("7", 1), ("e10", 2), ("12", 2)]
)
def test_the_digits_of_a_piece(piece: str, digits: int) -> None:
    assert _digits(piece) == digits


def test_pieces_of_single_bytes() -> None:
    assert [piece_of(one) for one in ("<0x22>", "<0x0A>", "<0x2>", "a<0x22>", "x")] == [
        '"',
        "\n",
        "<0x2>",
        "a<0x22>",
        "x",
    ]


def test_spans_begin_and_end_with_whole_characters() -> None:
    """Each span of the passage, and no other bytes, leads to an end; the choice is a place where it stands."""
    for passage in ("aé€é", "ababa", "€\U00010348x€"):
        span, text = spans.Span(passage, "b"), passage.encode()
        wanted = {passage[i:j].encode() for i in range(len(passage)) for j in range(i + 1, len(passage) + 1)}
        wanted = {one for one in wanted if b"b" not in one}
        found, left = set[bytes](), [(b"", span.first)]
        while left:
            read, place = left.pop()
            for (at,) in [span.ends(place)] if span.ends(place) else []:
                found.add(read)
                assert text[:at].endswith(read)
            left += [(read + bytes([byte]), after) for byte, after in span.edges(place).items()]
        assert found == wanted, passage


def test_a_mask_of_a_matcher_is_read_as_bits() -> None:
    mask = np.unpackbits(np.frombuffer(b"\x02\x80", np.uint8), bitorder="little")
    made, _ = matcher_of()
    assert [made._has(token) for token in range(16)] == mask.astype(bool).tolist()
    assert not made._has(16)
    assert made.bits() == b"\x02\x80"
