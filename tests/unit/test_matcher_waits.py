"""What is waited for, and how long: masks by the texts of a batch, checks of drafts by what they may save."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import edgedec
from edgedec import constraints
from edgedec.constraints import remote
from edgedec.constraints.remote import Matcher

pytest.importorskip("llguidance", reason="constraints need llguidance")


class Group:
    """Replies are there or not, as `replies` says; waited: for how long each was waited for."""

    def __init__(self, replies: list[bool]) -> None:
        self.dropped, self.replies, self.waited = deque[int](), replies, list[float]()

    def ready(self, matcher: Matcher, seconds: float) -> bool:
        self.waited.append(seconds)
        return self.replies.pop(0)

    def settle(self, matcher: Matcher) -> None:
        pass


def test_a_late_mask_is_waited_for_no_longer_and_patience_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a millisecond at first; none after a timeout; then twice as long with each mask that was there."""
    monkeypatch.setattr(remote, "monotonic", lambda: 0.0)
    group: Any = Group([True, False, False, *[True] * 7])
    matcher = Matcher(group, 0)
    assert [matcher.ready() for _ in range(10)] == [True, False, False, *[True] * 7]
    rising = [0.0, 2e-5, 6e-5, 14e-5, 30e-5, 5e-4]
    assert group.waited == pytest.approx([5e-4, 5e-4, 0.0, *rising, 5e-4])


def test_a_text_is_slow_once_a_mask_took_more_than_50_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(seconds=10.0)
    monkeypatch.setattr(remote, "monotonic", lambda: now.seconds)
    group: Any = Group([False] * 3 + [True] + [False] * 3)
    matcher, found = Matcher(group, 0), []
    for after in (0.0, 0.04, 0.049, 0.2, 0.21, 0.25, 0.27):  # the mask comes at 0.2 s; the next one does not
        now.seconds = 10.0 + after
        matcher.ready()
        found.append(matcher.slow)
    assert found == [False] * 6 + [True], "a wait begins with the first look"
    matcher._note(None)
    assert matcher.slow, "and stays so"
    settled = Matcher(group, 1)
    settled.waits = 1
    group.settle = lambda matcher: setattr(now, "seconds", now.seconds + 0.06)
    settled._settle()
    assert settled.slow, "a wait for replies counts as well"
    idle = Matcher(group, 2)
    idle._settle()
    assert not idle.slow, "nothing was waited for"


def test_drafts_are_checked_where_that_saves_more_than_it_takes(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four nodes are below others, and a tenth of the guesses is forbidden: a check of 10 ms pays from rows of
    200 ms on. The mean follows with a fifth of each check."""
    model = edgedec.open(nano, threads=1)
    rule: Any = constraints.regex(model, "[ab]*")
    a, b = model.tokenizer.id("a"), model.tokenizer.id("b")
    tokens, parents = [a, b, a, b], [-1, -1, 0, 2]
    rule.mask(())
    asked, check = list[list[int]](), rule._matcher.check

    def checked(tokens: Any, parents: Any) -> Any:
        asked.append(list(tokens))
        return check(tokens, parents) and [True, True, False, True]

    monkeypatch.setattr(rule._matcher, "check", checked)
    clock = iter([5.0, 5.06])
    monkeypatch.setattr("edgedec.constraints.matcher.perf_counter", lambda: next(clock))
    rule._check_s = 0.01
    assert rule.allowed(tokens, parents, 0.199) == [True] * 4
    assert not asked
    assert rule.allowed(tokens, parents, 0.201) == [True, True, False, False], "nothing below what is forbidden"
    assert asked == [tokens]
    assert rule._check_s == pytest.approx(0.01 + (0.06 - 0.01) / 5)
    assert rule.allowed(tokens[:2], parents[:2], 1e9) == [True, True]
    assert len(asked) == 1, "the mask has the nodes at the root"
