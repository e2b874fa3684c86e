"""Monitors: after a trigger such as a point, a name may only be one that an analysis of the text knows.

Monitor-guided decoding (Agrawal et al., 2023; text and code): an analysis is asked at the trigger, tokens that are
the beginning of a suggestion, or a whole one and a character that ends a name, are allowed, then the monitor waits
for the next trigger. A token with a trigger and the beginning of a name after it cannot be asked about in time: it is
not allowed, and the text is spelt with other tokens (our own choice).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from edgedec.constraints.automata.following import Mask, StateConstraint
from edgedec.constraints.automata.tokens import TokenTree
from edgedec.errors import EdgedecError, UsageError
from edgedec.text.tokenizer import one_line

# The names that may follow the text; None or none: nothing is known of it, and any may.
Analysis = Callable[[str], Sequence[str] | None]
_NAME, _START = re.compile(rb"[A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*"), rb"[A-Za-z_\x80-\xff]"
_IN_NAME = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") | frozenset(range(0x80, 0x100))


class Watch(NamedTuple):
    """text: all so far; typed: how many of its last bytes are of the name after a trigger, None after no trigger."""

    text: bytes
    typed: int | None = None


class MonitorConstraint(StateConstraint[Watch]):
    """A `Constraint` by an analysis. before: the text that stands before the generated one."""

    def __init__(self, analysis: Analysis, trigger: str, tokens: TokenTree, before: str = "") -> None:
        self._trigger = trigger.encode()
        self._crosses = re.compile(re.escape(self._trigger) + _START)
        self._known = lru_cache(1024)(lambda text: _known(analysis, text))
        self._free = lru_cache(64)(self._find_free)
        text = before.encode()
        super().__init__("monitor", tokens, Watch(text, 0 if text.endswith(self._trigger) else None))

    def after(self, state: Watch, text: bytes) -> Watch | None:
        rest, known = text, self._names(state)
        if known is not None:
            typed = state.text[len(state.text) - (state.typed or 0) :]
            word = typed + _leading(text, bool(typed))
            rest = text[len(word) - len(typed) :]
            if not rest:
                fine = any(name.startswith(word) for name in known)
                return Watch(state.text + text, len(word)) if fine else None
            if word and word not in known:
                return None
        tail = b"" if rest is not text else self._tail(state)
        if self._crosses.search(tail + rest):
            return None
        whole = state.text + text
        return Watch(whole, 0 if whole.endswith(self._trigger) else None)

    def may_follow(self, state: Watch, found: Mask) -> None:
        known = self._names(state)
        if known is None:
            found |= self._free(self._tail(state))
            return
        typed = state.text[len(state.text) - (state.typed or 0) :]
        free, order, left = self._free(b""), self._tokens.order, [(self._tokens.root, typed)]
        while left:
            node, word = left.pop()
            if node.own and node is not self._tokens.root:
                found[order[node.low : node.low + node.own]] = True
            whole = not word or word in known
            for byte, child in node.children().items():
                longer = word + bytes([byte])
                if (byte in _IN_NAME) if word else bool(_NAME.match(longer)):
                    if any(name.startswith(longer) for name in known):
                        left.append((child, longer))
                elif whole:
                    # The rest begins with what ends the name: it is as any text.
                    depth = len(word) - len(typed)
                    below = order[child.low : child.high]
                    found[below] = free[below] if depth == 0 else [self._fine(token, depth) for token in below.tolist()]

    def complete(self, state: Watch) -> bool:
        known = self._names(state)
        return known is None or not state.typed or state.text[-state.typed :] in known

    def key(self, state: Watch) -> tuple[bytes, frozenset[bytes] | None]:
        known = self._names(state)
        return (self._tail(state) if known is None else state.text[len(state.text) - (state.typed or 0) :]), known

    def _names(self, state: Watch) -> frozenset[bytes] | None:
        """The names that may stand after the trigger; None where any text may."""
        if state.typed is None:
            return None
        found: frozenset[bytes] | None = self._known(state.text[: len(state.text) - state.typed])
        return found

    def _tail(self, state: Watch) -> bytes:
        """The end of the text that may be the beginning of a trigger."""
        most = len(self._trigger) - 1
        return state.text[-most:] if most and state.typed is None else b""

    def _find_free(self, tail: bytes) -> Mask:
        """bool [vocab]: the tokens that have no trigger with a name after it."""
        found = np.zeros(self._tokens.size, bool)
        spelt = self._tokens.bytes
        order = self._tokens.order.tolist()
        found[[token for token in order if not self._crosses.search(tail + (spelt[token] or b""))]] = True
        return found

    def _fine(self, token: int, depth: int) -> bool:
        return not self._crosses.search((self._tokens.bytes[token] or b"")[depth:])


def _leading(text: bytes, inside: bool) -> bytes:
    """The bytes of a name at the beginning of a text, or of the rest of one."""
    if inside:
        end = next((i for i, byte in enumerate(text) if byte not in _IN_NAME), len(text))
        return text[:end]
    found = _NAME.match(text)
    return found[0] if found else b""


def _known(analysis: Analysis, text: bytes) -> frozenset[bytes] | None:
    try:
        found = analysis(text.decode("utf-8", "replace"))
        names = [] if found is None else [name.encode() for name in found]
    except EdgedecError:
        raise
    except Exception as error:  # the user's own code
        raise UsageError(f"monitor: the analysis failed: {type(error).__name__}: {one_line(error)}") from None
    return frozenset(name for name in names if _NAME.fullmatch(name)) or None
