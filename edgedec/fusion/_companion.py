"""A second text beside the generated one: another prompt, adapter or bundle, and the same tokens after it.

It follows the text: rows of a step's tree run after its own prompt too, those that are accepted are committed, and a
fork has a cache of its own. What the text forgets (a sliding context, another prompt) is forgotten here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Self

from edgedec.cache import Cache
from edgedec.cache.prefixes import common
from edgedec.decoding.context import Context
from edgedec.decoding.gathering import Gathering, GatheringStep
from edgedec.decoding.messages import Completed, ForwardOn, Request
from edgedec.errors import ContextFull, UsageError
from edgedec.fusion._source import Source
from edgedec.runtime import ALL_LOGITS, Call, CallResult, Logits, Outputs, Rows, suit, suits

Seen = Callable[[int, CallResult], None]
Reading = Generator[Sequence[Request], Sequence[Completed], CallResult]


class Companion:
    """The logits of a second text at the rows of a step. where: what its messages begin with."""

    def __init__(self, source: Source, where: str) -> None:
        self.source, self._where = source, where
        self._cache: Cache | None = None
        self._ids: list[int] = []
        # Of the text when it was last read: how many tokens, and of them the prompt's; None: it may be any text now.
        self._seen: tuple[int, int] | None = None
        self._drop()

    def _drop(self) -> None:
        """Forget the rows of the last call."""
        self._rows: Rows | None = None
        self._logits: Logits | None = None
        self._last = self._node = -1
        self._paths: dict[tuple[int, ...], int] = {}

    def gather(self, step: GatheringStep) -> Gathering:
        """Run the step's rows after this text."""
        yield from self.read(step, ALL_LOGITS)

    def read(self, step: GatheringStep, outputs: Outputs, seen: Seen | None = None) -> Reading:
        """As `gather`; returns the outputs of the last token and of drafted ones. seen: gets the place in the text and
        the result of each call."""
        cache = self._follow(step.context)
        first = self._ids[cache.length :]
        size = self.source.runtime.capabilities.chunk(cache.length)
        while len(first) > size:
            rows = Rows.chain(first[:size], cache.length)
            part = yield from self._run(rows, outputs._replace(logits=False), step.context)
            if seen is not None:
                seen(cache.length, part)
            cache.commit(range(size))
            first, size = self._ids[cache.length :], self.source.runtime.capabilities.chunk(cache.length)
        last = len(first) - 1
        drafted, parents = step.rows.tokens[step.root + 1 :].tolist(), step.rows.parents[step.root + 1 :].tolist()
        below = [last + parent - step.root for parent in parents]
        rows = Rows.tree([*first, *drafted], [*range(-1, last), *below], cache.length)
        result = yield from self._run(rows, outputs._replace(logits_from=last), step.context)
        if seen is not None:
            seen(cache.length, result)
        self._rows, self._logits, self._last, self._node = rows, result.logits, last, last
        self._paths = paths_of(drafted, [parent - step.root - 1 for parent in parents])
        return result

    def grow(self, tokens: Sequence[int], parents: Sequence[int], outputs: Outputs, context: Context) -> Reading:
        """Run more rows below the last token (parent -1), drafted ones and each other, which are never accepted;
        returns the outputs of these."""
        assert self._rows is not None
        rows = self._rows.extend(tokens, [self._last + 1 + parent for parent in parents])
        result = yield from self._run(rows, outputs, context)
        self._rows = rows
        return result

    def _run(self, rows: Rows, outputs: Outputs, context: Context) -> Reading:
        assert self._cache is not None
        source = self.source
        call = Call(rows, self._cache, outputs=outputs, adapter=source.adapter_of(context))
        (done,) = yield [call if source.own else ForwardOn(source.runtime, call)]
        return done.result

    def logits(self, path: Sequence[int]) -> Logits:
        """The logits [vocab] after the text and then drafted tokens."""
        at = self._paths.get(tuple(path))
        if self._logits is None or at is None:
            raise UsageError(f"{self._where}: the second text has not read {list(path)} after this one")
        found: Logits = self._logits[at]
        return found

    def accept(self, token: int) -> None:
        """Note that `token` was generated. Its row is committed with the next token, as the text's own is."""
        if self._seen is None or self._cache is None:
            return
        self._seen = self._seen[0] + 1, self._seen[1]
        self._ids.append(token)
        if self._rows is not None and self._node >= 0:
            self._cache.commit(range(self._last + 1) if self._node == self._last else (self._node,))
            self._node = self._child(self._rows, token)

    def _child(self, rows: Rows, token: int) -> int:
        """The row of a token below the last accepted row; -1 if it was not drafted."""
        tokens, parents = rows.tokens, rows.parents
        found = (i for i in range(self._last + 1, len(tokens)) if parents[i] == self._node and tokens[i] == token)
        return next(found, -1)

    def reset(self) -> None:
        """Prepare for another text; what it has in common with this one is not read again."""
        self._seen = None
        self._drop()

    def fork(self) -> Self:
        """An independent copy in the same state."""
        twin = type(self)(self.source, self._where)
        twin._seen, twin._ids = self._seen, list(self._ids)
        twin._cache = None if self._cache is None else self._cache.fork()
        return twin

    def room(self, context: Context) -> int:
        """The most drafted rows that fit below this text."""
        return max(self.left(context), 0)

    def left(self, context: Context) -> int:
        """The tokens that the second text may still grow by."""
        return self.source.capacity(context) - self.source.length(context)

    def held(self, tokens: int) -> int:
        """The tokens that its cache holds of the text's own runtime."""
        return tokens + len(self.source.prompt or ()) if self.source.own else 0

    def _follow(self, context: Context) -> Cache:
        """The cache, with no more than the present text but its last token."""
        self._drop()
        if (n := self.source.length(context)) > (most := self.source.capacity(context)):
            raise ContextFull(f"{self._where}: {n} tokens do not fit its context of {most}; shorten the prompts")
        if self._cache is None:
            self._cache = self.source.runtime.new_cache(most + self.source.extra)
        cache = self._cache
        cache.rollback()
        keep = cache.length
        if self._seen != (len(context.ids), context.n_prompt):
            ids = self.source.text(context)
            keep, self._ids = common(ids, self._ids), ids
            self._seen = len(context.ids), context.n_prompt
        keep = min(keep, n - 1)
        if not suits(cache, n):
            cache.truncate(keep := 0)
            suit(cache, n)
        if keep < cache.length:
            cache.truncate(keep)
        return cache


def paths_of(tokens: Sequence[int], parents: Sequence[int]) -> dict[tuple[int, ...], int]:
    """The lines of logits by the tokens of the path to them; parents: -1 for the last token of the text, which is line
    0.

    >>> paths_of([8, 9, 5], [-1, -1, 1])
    {(): 0, (8,): 1, (9,): 2, (9, 5): 3}
    """
    found: dict[tuple[int, ...], int] = {(): 0}
    own = list[tuple[int, ...]]()
    for i, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        own.append((*(own[parent] if parent >= 0 else ()), token))
        found.setdefault(own[-1], i + 1)
    return found
