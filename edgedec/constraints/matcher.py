"""Grammar constraints: a matcher that is moved to the node of a draft tree for which a mask is computed.

The matcher consumes tokens and rolls them back, so the cost of a path is its difference to the path before: one step
for each node, in the order of verification.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgedec.constraints.remote import Matcher, reason
from edgedec.constraints.vocabulary import Vocabulary
from edgedec.decoding.constraint import ConstraintSource
from edgedec.errors import UsageError

Mask = NDArray[np.bool_]
# Limits of a schema, a pattern or a grammar: characters, nesting depth, references.
LARGEST_TEXT, DEEPEST, MOST_REFERENCES = 1 << 19, 200, 10_000
# The assumed share of guesses that a constraint forbids, and the rate of the mean time of a check.
_SAVED, _PACE = 0.1, 0.2
_BRACKETS, _ESCAPES = re.compile(r"[(\[{)\]}]"), re.compile(r"\\.")


class GrammarConstraint:
    """A `Constraint`. `what`: the user's name of it, for messages; `source`: what it was compiled from.

    The matcher has taken the accepted tokens and `_ahead`, drafted ones; it is not given end tokens, so
    `_over` is set when one was accepted. `_masks`: those computed, by path.
    """

    def __init__(self, what: str, matcher: Matcher, vocabulary: Vocabulary) -> None:
        self.what, self.vocabulary = what, vocabulary
        self.source: ConstraintSource | None = None
        self._matcher = matcher
        self._ahead: list[int] = []
        self._over = False
        self._masks: dict[tuple[int, ...], Mask] = {}
        self._check_s = 0.0

    @classmethod
    def compile(
        cls, kind: str, text: str, vocabulary: Vocabulary, options: dict[str, Any] | None = None
    ) -> GrammarConstraint:
        """Compile a JSON schema, regex, grammar or choices in a worker process; UsageError names unsupported
        features."""
        check_size(kind, text)
        found = cls(kind, vocabulary.grammars.matcher(kind, text, options or {}), vocabulary)
        found.source = ConstraintSource(kind, text, _whitespace(options or {}))
        return found

    def mask(self, path: Sequence[int]) -> Mask:
        """bool [vocab]; nothing is allowed after a path that is not allowed itself."""
        key = tuple(path)
        found = self._masks.get(key)
        if found is None:
            found = self._masks[key] = self._computed(key)
        return found

    def validate(self, tokens: Sequence[int], path: Sequence[int] = ()) -> list[bool]:
        """Whether each of these tokens may follow `path`, checked singly; the masks of paths that were not asked for
        are no longer computed then."""
        key, mask = tuple(path), self._masks.get(tuple(path))
        known, eos = self.vocabulary.known, self.vocabulary.eos
        self._matcher.bare = True
        if mask is None and (self._over or not eos.isdisjoint(key) or not self._follow(key)):
            mask = self.mask(key)
        if mask is not None:
            return [bool(mask[token]) for token in tokens]
        found = self._matcher.validate([token for token in tokens if token < known and token not in eos])
        self._check()
        end = bool(self._matcher.is_accepting()) if not eos.isdisjoint(tokens) else False
        rest = iter(found)
        return [end if token in eos else token < known and next(rest) for token in tokens]

    def begun(self, path: Sequence[int]) -> bool:
        """Whether the mask after drafted tokens is available, or nearly; if not, its computation is started. Requires
        the masks of its prefixes first."""
        key, ahead = tuple(path), self._ahead
        if key in self._masks or not self._sure(key):
            return True
        shared = _common(ahead, key)
        if shared < len(ahead):
            self._matcher.rollback(len(ahead) - shared)
            del ahead[shared:]
        if shared < len(key):
            self._matcher.hand_on(key[shared:])
            ahead += key[shared:]
        return self._matcher.ready()

    def _sure(self, path: tuple[int, ...]) -> bool:
        """Whether this path is known to be allowed, and not to end the text."""
        eos, known = self.vocabulary.eos, self.vocabulary.known
        if self._over or max(path) >= known or not eos.isdisjoint(path):
            return False
        masks = (self._masks.get(path[:i]) for i in range(len(path)))
        return all(mask is not None and mask[token] for mask, token in zip(masks, path, strict=True))

    def accept(self, token: int) -> None:
        ahead, masks = self._ahead, self._masks
        # Keep the masks of paths that begin with the accepted token, mostly only one; drop the others.
        self._masks = {path[1:]: masks[path] for path in masks if path and path[0] == token}
        if ahead and ahead[0] == token:
            del ahead[0]
        elif self._over or (token in self.vocabulary.eos and self.may_end(())):
            self._over = True
        elif self._follow((int(token),)):
            ahead.clear()
        else:
            raise UsageError(f"{self.what}: token {token} is not allowed here: take one that `mask` allows")

    @property
    def done(self) -> bool:
        if self._over:
            return True
        if self._ahead or not self._matcher.is_stopped():
            return False
        self._check()
        return True

    def forced(self) -> Sequence[int]:
        """The forced text in the tokenizer's own tokens; the model may spell the same text with other tokens."""
        self._follow(())
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def allowed(self, tokens: Sequence[int], parents: Sequence[int], seconds: float) -> list[bool] | None:
        """Whether each node of a draft tree is allowed; `seconds`: the cost of their rows. Nodes below the root are
        checked by the mask if it is available; the others by one request, if that costs less than it is expected to
        save."""
        root = self._masks.get(())
        if root is None:
            if self._matcher.bare or self._over or self._ahead or not self._matcher.at_hand():
                return None
            root = self.mask(())
        eos, known = self.vocabulary.eos, self.vocabulary.known
        found = [parent >= 0 or bool(root[token]) for token, parent in zip(tokens, parents, strict=True)]
        deep = [i for i, parent in enumerate(parents) if parent >= 0]
        fine = eos.isdisjoint(tokens) and max(tokens) < known
        if deep and fine and not self._over and seconds * len(deep) / len(tokens) * _SAVED > self._check_s:
            began = perf_counter()
            if self._follow(()):
                found = self._matcher.check(tokens, parents) or found
            self._check_s += (perf_counter() - began - self._check_s) * _PACE
        for i in deep:
            found[i] = found[i] and found[parents[i]]
        return found

    def ready(self) -> bool:
        """Whether the mask after the accepted tokens is available, or nearly; if not, other texts continue
        meanwhile."""
        return self._over or self._matcher.ready()

    @property
    def slow(self) -> bool:
        """Whether a mask has delayed other texts."""
        return self._matcher.slow

    def reset(self) -> None:
        self._matcher.reset()
        self._matcher.bare = self._over = False
        self._ahead.clear()
        self._masks.clear()

    def fork(self) -> Self:
        twin = type(self)(self.what, self._matcher.deep_copy(), self.vocabulary)
        twin.source = self.source
        twin._ahead, twin._over, twin._masks = list(self._ahead), self._over, dict(self._masks)
        return twin

    def _follow(self, path: tuple[int, ...]) -> bool:
        """Move the matcher to the end of `path`, or as far as it is allowed; returns whether it got to the end."""
        ahead, matcher = self._ahead, self._matcher
        shared = _common(ahead, path)
        if shared < len(ahead):
            matcher.rollback(len(ahead) - shared)
            del ahead[shared:]
        if shared < len(path):
            rest = list(path[shared:])
            if max(rest) >= self.vocabulary.known or not self.vocabulary.eos.isdisjoint(rest):
                return False
            ahead += rest[: matcher.try_consume_tokens(rest)]
        return len(ahead) == len(path)

    def may_end(self, path: tuple[int, ...] = ()) -> bool:
        """Whether the text may end after `path`."""
        return self._follow(path) and bool(self._matcher.is_accepting())

    def _computed(self, path: tuple[int, ...]) -> Mask:
        """bool [vocab]: the tokens that may follow `path`."""
        known, size, eos = self.vocabulary.known, self.vocabulary.size, self.vocabulary.eos
        if not self._follow(path):
            end = next((i for i, token in enumerate(path) if token in eos), None)
            return np.full(size, end is not None and self.may_end(path[:end]))
        if self._over or (not eos and self._matcher.is_stopped()):
            self._check()
            return np.ones(size, bool)
        bits = np.frombuffer(self._matcher.bits(), np.uint8)
        self._check()
        allowed = np.unpackbits(bits, count=known, bitorder="little").view(bool)
        return allowed if known == size else np.concatenate((allowed, np.zeros(size - known, bool)))

    def _check(self) -> None:
        """Raise an error if the grammar has exceeded the matcher's limits in the middle of a text."""
        if wrong := self._matcher.error():
            raise UsageError(f"{self.what}: too complex to follow further: {reason(wrong)}")


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common prefix of two paths."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _whitespace(options: dict[str, Any]) -> str:
    """The name of a schema's whitespace."""
    if not options.get("whitespace_flexible", True):
        return "none"
    return "space" if "whitespace_pattern" in options else "any"


def check_size(kind: str, text: str) -> None:
    """UsageError for a text that is larger or more deeply nested than the limits."""
    if len(text) > LARGEST_TEXT:
        raise UsageError(f"{kind}: {len(text):,} characters; at most {LARGEST_TEXT:,} are allowed")
    if kind == "json schema" and (refs := text.count('"$ref"')) > MOST_REFERENCES:
        raise UsageError(f"{kind}: {refs:,} times $ref; at most {MOST_REFERENCES:,} are allowed")
    depth = deepest = 0
    for sign in _BRACKETS.findall(_ESCAPES.sub("", text)):
        depth = depth + 1 if sign in "([{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        raise UsageError(f"{kind}: brackets are nested {deepest:,} deep; at most {DEEPEST} are allowed")
