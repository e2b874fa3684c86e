"""A matcher in a worker process, for `GrammarConstraint`.

A token that the last mask allows is sent without waiting, so the next mask is computed while the model runs. A request
that exceeds its process's limits ends that process and its text; other texts are not affected.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import count
from time import monotonic
from typing import Any
from weakref import ReferenceType, ref

from edgedec.constraints.hosts import MatcherHost
from edgedec.errors import LimitExceeded, UsageError
from edgedec.sandbox import Reply
from edgedec.sandbox.stop import used

# Seconds that all texts of a batch wait for a mask, which mostly takes a tenth of this. After that the other texts
# continue while the mask is computed.
_PATIENCE = 0.0005
# Seconds of processor time for a mask.
_STEP = 0.5
# Seconds that all texts of a batch wait for the check of a draft tree.
_CHECK = 0.002
# Seconds of wall time after which a text is slow: nothing is drafted for it any more, as the masks of drafts would
# delay the batch.
_SLOW = 0.05


class MatcherGroup:
    """The matchers of one grammar, which share a process. Replies come in the order of the requests."""

    def __init__(self, what: str, host: MatcherHost) -> None:
        self.what, self._host = what, host
        # Whose each reply is, None: nobody's. Weak: what a matcher without references waits for is not needed, and the
        # process would be kept for it.
        self._waiting: deque[ReferenceType[Matcher] | None] = deque()
        self._dead = ""
        # Numbers of matchers without references. A finalizer may run at any point, so it only appends here and sends
        # nothing.
        self.dropped: deque[int] = deque()
        self._lock = threading.RLock()
        self._numbers, self._made, self._gone = count(), 0, 0

    @property
    def dead(self) -> bool:
        """Whether its process has ended."""
        return bool(self._dead)

    @property
    def live(self) -> int:
        """The number of its matchers."""
        return self._made - self._gone - len(self.dropped)

    def size(self) -> int:
        """MiB that its process has for itself, 0 if that is not known."""
        return self._host.size()

    def number(self) -> int:
        """A number for a new matcher."""
        self._made += 1
        return next(self._numbers)

    def compiled(
        self, kind: str, text: str, options: dict[str, Any], seconds: float = 0.0, priority: int = 0
    ) -> Matcher:
        """The matcher of a grammar; UsageError names unsupported features, LimitExceeded a limit. seconds: of
        processor time, 0: the process's limit; priority: of the process from now on, 19 is the lowest."""
        matcher, limit = Matcher(self, self.number()), dict[str, Any](seconds=seconds) if seconds else {}
        self._host.lower(priority)
        with used(self._host):
            self._host.send(do="compile", id=matcher.number, kind=kind, text=text, options=options, **limit)
            reply = self._host.receive()
        wrong = reply.error or reply.values["wrong"]
        if wrong:
            raise UsageError(f"{self.what}: {reason(wrong)}")
        matcher.take(reply)
        return matcher

    def send(self, matcher: Matcher, do: str, waits: bool = True, **message: Any) -> None:
        with self._lock:
            if self._dead:
                return
            try:
                while self.dropped:
                    self._host.send(do="drop", id=self.dropped.popleft())
                    self._gone += 1
                    self._waiting.append(None)
                self._host.send(do=do, id=matcher.number, **message)
                self._waiting.append(ref(matcher) if waits else None)
            except LimitExceeded as error:
                self._dead = str(error)

    def settle(self, matcher: Matcher) -> None:
        """Wait for a matcher's replies; UsageError if its process has ended."""
        with self._lock:
            while matcher.waits and not self._dead:
                self._take_one()
            if self._dead:
                raise UsageError(f"{self.what}: too complex to follow further: {self._dead}")

    def ready(self, matcher: Matcher, seconds: float) -> bool:
        """Whether `settle` would return, or raise, within `seconds`."""
        with self._lock:
            while matcher.waits and not self._dead:
                if not self._host.ready(seconds):
                    return False
                self._take_one()
        return True

    def _take_one(self) -> None:
        try:
            reply = self._host.receive()
        except LimitExceeded as error:
            self._dead = str(error)
            return
        waiting = self._waiting.popleft()
        matcher = None if waiting is None else waiting()
        if matcher is not None:
            matcher.take(reply)


class Matcher:
    """The matcher of one text: consumes tokens, rolls them back, and has the mask of the next tokens."""

    def __init__(self, group: MatcherGroup, number: int) -> None:
        self._group, self.number = group, number
        self.waits = 0
        self._back, self._reset, self._moved, self._optimistic = 0, False, False, False
        self._values: dict[str, Any] = {}
        self._mask = b""
        # bare: steps compute no mask until `bits` is called; _valid: tokens that were checked singly and are allowed.
        self.bare, self._valid = False, frozenset[int]()
        self._patience, self.slow = _PATIENCE, False
        self._since: float | None = None

    def __del__(self) -> None:
        self._group.dropped.append(self.number)

    def take(self, reply: Reply) -> None:
        """Process the reply to the last request."""
        self.waits = max(self.waits - 1, 0)
        self._values, self._mask, self._valid = reply.values, reply.blob, frozenset()
        if reply.error:
            self._values = {"taken": 0, "stopped": True, "accepting": False, "wrong": reply.error, "forced": []}
        if self._optimistic and not self._values["taken"] and not self._values["wrong"]:
            self._values["wrong"] = "a token that its mask allowed was refused"
        self._optimistic = False

    def reset(self) -> None:
        # If no token was consumed, the known state is still valid.
        self._back, self._reset, self._moved = 0, self._reset or self._moved, False

    def rollback(self, n: int) -> None:
        self._back += n

    def try_consume_tokens(self, tokens: Sequence[int]) -> int:
        """Consume the allowed tokens at the beginning; returns their number. A token of the mask needs no wait; a
        forced text may be spelt with tokens that are not in the mask."""
        sure = len(tokens) == 1 and not self._back and not self._reset and self._has(tokens[0])
        self._step(tokens)
        self._optimistic = sure
        return 1 if sure else int(self._settle()["taken"])

    def hand_on(self, tokens: Sequence[int]) -> None:
        """Consume tokens that are known to be allowed, without waiting."""
        self._step(tokens)
        self._optimistic = True

    def _has(self, token: int) -> bool:
        if self._settle().get("bare"):
            return token in self._valid
        mask = self.bits()
        return token < 8 * len(mask) and bool(mask[token >> 3] >> (token & 7) & 1)

    def bits(self) -> bytes:
        """The mask, one bit per token; empty if it could not be computed."""
        if self._settle().get("bare"):
            self._step((), bare=False)
            self._settle()
        return self._mask

    def is_accepting(self) -> bool:
        return bool(self._settle()["accepting"])

    def is_stopped(self) -> bool:
        return bool(self._settle()["stopped"])

    def error(self) -> str:
        """The error that stopped the matcher; empty if there is none."""
        return str(self._settle()["wrong"])

    def compute_ff_tokens(self) -> list[int]:
        return list(self._settle()["forced"])

    def at_hand(self) -> bool:
        """Whether its mask is available without waiting."""
        return not (self._back or self._reset) and self._group.ready(self, 0.0)

    def check(self, tokens: Sequence[int], parents: Sequence[int]) -> list[bool] | None:
        """Whether each node of a tree below the consumed tokens is allowed, parents first; None if that takes too
        long."""
        self._settle()
        self.waits += 1
        self._group.send(self, "check", tokens=list(tokens), parents=list(parents), seconds=_STEP)
        if not self._group.ready(self, _CHECK):
            return None
        return list(self._settle().get("allowed", [True] * len(tokens)))

    def validate(self, tokens: Sequence[int]) -> list[bool]:
        """Whether each of these tokens may come next, without a mask."""
        self._settle()
        known = self._valid
        self.waits += 1
        self._group.send(self, "validate", tokens=list(tokens), seconds=_STEP)
        found = list(self._settle().get("valid", [False] * len(tokens)))
        self._valid = known | {token for token, valid in zip(tokens, found, strict=True) if valid}
        return found

    def shortest(self, quoted: bool, quote: Sequence[int], signs: Sequence[int], most: int) -> int:
        """The tokens of a short completion of its text, see `_matcher_guest`."""
        self._settle()
        self.waits += 1
        asked: dict[str, Any] = {"quoted": quoted, "quote": list(quote), "signs": list(signs), "most": most}
        self._group.send(self, "shortest", **asked, seconds=2 * _STEP)
        return int(self._settle().get("needs", most))

    def ready(self) -> bool:
        """Whether its mask is available after a short wait; after a timeout later waits are shorter."""
        if self._back or self._reset:
            self._step(())
        found = self._group.ready(self, self._patience)
        self._patience = min(2 * self._patience + 2e-5, _PATIENCE) if found else 0.0
        self._since = None if found else self._since or monotonic()
        self._note(self._since)
        return found

    def deep_copy(self) -> Matcher:
        self._settle()
        twin = Matcher(self._group, self._group.number())
        twin._values, twin._mask, twin._moved = self._values, self._mask, self._moved
        twin.bare, twin._valid = self.bare, self._valid
        self._group.send(self, "fork", waits=False, new=twin.number)
        return twin

    def _step(self, tokens: Sequence[int], bare: bool | None = None) -> None:
        self.waits += 1
        self._moved = self._moved or bool(tokens)
        asked: dict[str, Any] = {"tokens": list(tokens), "bare": self.bare if bare is None else bare}
        self._group.send(self, "step", reset=self._reset, back=self._back, **asked, seconds=_STEP)
        self._back, self._reset = 0, False

    def _settle(self) -> dict[str, Any]:
        if self._back or self._reset:
            self._step(())
        began = monotonic() if self.waits else None
        self._group.settle(self)
        self._note(began)
        return self._values

    def _note(self, since: float | None) -> None:
        self.slow = self.slow or (since is not None and monotonic() - since > _SLOW)


def reason(message: str) -> str:
    """The library's message on one line: its first line and that of an inner error, without source excerpts."""
    lines = [line.strip() for line in message.split("<state>")[0].splitlines() if line.strip()]
    kept = [line for i, line in enumerate(lines) if i == 0 or line.startswith("error:")]
    return " ".join(kept)[:300].rstrip(":") or "no reason given"
