"""A draft head with layers of its own: it reads the target's states together with the tokens that followed them.

Row i of the head's cache is the target's state at token i of the text and the embedding of token i + 1; it predicts
token i + 2. Rows of the text are committed; drafted rows use the head's own state in place of the target's and are
rolled back after the draft.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from edgedec.bundle.manifest import DraftFacts
from edgedec.decoding.messages import Completed, ForwardOn, Request
from edgedec.drafters import DrafterContext
from edgedec.drafters._calls import TokenEmbeddings, own_seconds
from edgedec.drafters._heads.opened import open_head
from edgedec.drafters._heads.states import Seen
from edgedec.drafters._networks.graphs import Network
from edgedec.errors import UsageError
from edgedec.runtime import (
    Call,
    CallResult,
    Hidden,
    Outputs,
    Rows,
)
from edgedec.runtime.checks import check_one_stream

Reading = Generator[Request, Completed, CallResult]
_NONE = Outputs()


def facts_of(host: DrafterContext, kind: str) -> DraftFacts:
    """The bundle's description of its draft of a kind; UsageError with a remedy if it has none."""
    found = host.bundle.manifest.drafts.get(kind)
    if found is None:
        path = host.bundle.path
        raise UsageError(f"{path}: the bundle has no {kind} head; add one with `edgedec add-draft PATH {path}`")
    if not host.runtime.capabilities.hidden or not host.runtime.capabilities.slices:
        raise UsageError(f"drafter {kind}: the runtime {host.runtime.name} shows no states; use another engine")
    check_one_stream(host.runtime.spec, found.features, f"drafter {kind}")
    return found


class HeadReader:
    """The head's cache of one text. lag: the number of later tokens that a row depends on; slots: rows of the cache
    that a token takes."""

    lag, slots = 1, 1

    def __init__(self, host: DrafterContext, facts: DraftFacts) -> None:
        head = self.head = open_head(host, facts)
        self._runtime, self._spec = head.runtime, head.bundle.spec
        self._chunk = self._runtime.capabilities.prefill_chunk
        self._cache = self._runtime.new_cache(self.slots * self._spec.context_length)
        self._fuse, self._entry = head.networks.get("features"), head.networks.get("entry")
        self._embeddings = TokenEmbeddings(host) if self._entry or self._spec.paired else None
        self.last = self._spec.n_blocks - 1
        # Row 0 of the cache is token `_base` of the text `_text`, as it stood when it was read last.
        self._base, self._text, self._sure = 0, list[int](), True
        self._rows: Rows | None = None
        self._at = -1
        self._result: CallResult | None = None
        self.calls, self.seconds = 0, 0.0  # of the last call

    @property
    def nbytes(self) -> int:
        """Bytes of the head's own cache."""
        return self._cache.nbytes

    def reset(self) -> None:
        """Prepare for another text; a prefix in common with the old one may be reused."""
        self._sure, self._result, self._at = False, None, -1

    def read(self, seen: Sequence[Seen], ids: Sequence[int], outputs: Outputs, room: int) -> Reading:
        """Read the states of the text `ids` -> the prediction after its last token, as `outputs`; all parts are None if
        states are missing. room: rows that will be drafted below it."""
        self._cache.rollback()
        self._rows = None
        self._keep_common(ids)
        for part in seen:
            yield from self._take(part, ids, outputs, room)
        self._text = list(ids)
        if self._result is None or self._at != len(ids) - 2:
            return CallResult()
        return self._result

    def grow(self, tokens: Sequence[int], parents: Sequence[int], states: Hidden, outputs: Outputs) -> Reading:
        """Predictions after rows below the text or below earlier drafted rows (parent -1: the text)."""
        if self._rows is None:
            rows = Rows.tree(tokens, parents, self._cache.length)
        else:
            rows = self._rows.extend(tokens, parents)
        found = yield from self._run(rows, states, tokens, outputs)
        self._rows = rows
        return found

    def state(self, result: CallResult) -> Hidden:
        """The states [n, hidden_size] of a result's rows, as inputs of rows below them."""
        states = result.hidden[self.last]
        return states if self.head.own_norm is None else self.head.own_norm(states)

    def end(self) -> None:
        """Roll back drafted rows."""
        self._cache.rollback()
        self._rows = None

    def inherit(self, other: HeadReader) -> None:
        """Continue from another reader's state; caches with pages share them."""
        other.end()
        self._cache, self._rows = other._cache.fork(), None
        # The text is replaced as a whole at each reading, never changed in place, so that both may hold it.
        self._base, self._text, self._sure = other._base, other._text, other._sure
        self._at, self._result = other._at, other._result

    def _keep_common(self, ids: Sequence[int]) -> None:
        """After a reset: forget rows of tokens that this text does not have."""
        if self._sure:
            return
        self._sure, common = True, 0
        for ours, theirs in zip(self._text, ids, strict=False):
            if ours != theirs:
                break
            common += 1
        keep = common - self.lag - self._base
        self._cut(max(keep, 0))
        if keep < 0:
            self._base = 0

    def _cut(self, keep: int) -> None:
        """Forget all but the first `keep` tokens."""
        if keep * self.slots < self._cache.length:
            self._cache.truncate(keep * self.slots)

    def _take(self, seen: Seen, ids: Sequence[int], outputs: Outputs, room: int) -> Generator[Request, Completed, None]:
        """Read the rows that are still those of the text."""
        after = ids[seen.start + 1 : seen.start + 1 + len(seen.follow)]
        n = 0
        while n < len(after) and after[n] == seen.follow[n]:
            n += 1
        if not n:
            return
        for at in range(self._place(seen.start, n, room), n, self._chunk):
            stop = min(at + self._chunk, n)
            last = seen.start + stop == len(ids) - 1
            yield from self._commit(seen, at, stop, outputs if last else _NONE)

    def _place(self, start: int, rows: int, room: int) -> int:
        """Make token `start` the next row: roll back to it, or start over after a gap or when the cache is full, at the
        first of the rows that leaves room for the draft -> the rows before it."""
        at, before = start - self._base, 0
        if not 0 <= at * self.slots <= self._cache.length or at + rows + room > self._most:
            before = self._skipped(rows, room)
            self._base, at = start + before, 0
        self._cut(at)
        return before

    @property
    def _most(self) -> int:
        """Tokens that the cache has room for."""
        return self._cache.capacity // self.slots

    def _skipped(self, rows: int, room: int) -> int:
        """The first of these rows that do not fit an empty cache together with a draft; the last row is always read."""
        return min(max(rows + room - self._most, 0), rows - 1)

    def _commit(self, seen: Seen, start: int, stop: int, outputs: Outputs) -> Generator[Request, Completed, None]:
        tokens = seen.follow[start:stop]
        rows = Rows.chain(tokens, self._cache.length)
        wanted = outputs._replace(logits_from=len(rows) - 1) if outputs.head else outputs
        result = yield from self._run(rows, self._of_target(seen.states[start:stop]), tokens, wanted)
        self._cache.commit(range(len(rows)))
        self._at = seen.start + stop - 1
        hidden = {block: states[-1:] for block, states in result.hidden.items()}
        self._result = replace(result, hidden=hidden)

    def _of_target(self, states: Hidden) -> Hidden:
        """The target's states [n, features, hidden_size] as the head takes them [n, hidden_size]."""
        if self.head.target_norm is not None:
            states = self.head.target_norm(states)
        if self._fuse is None:
            return states[:, 0]
        parts = [np.ascontiguousarray(states[:, i]) for i in range(states.shape[1])]
        found: Hidden = self._fuse.run(*parts)[0]
        return found

    def _run(self, rows: Rows, states: Hidden, tokens: Sequence[int], outputs: Outputs) -> Reading:
        embedded = None if self._embeddings is None else (yield from self._embeddings.of(tokens))
        entering = states if self._entry is None else _entered(self._entry, embedded, states)
        return (
            yield from self._forward(
                replace(rows, embeddings=embedded) if self._spec.paired else rows, entering, outputs
            )
        )

    def _forward(self, rows: Rows, entering: Hidden, outputs: Outputs) -> Reading:
        """The layers on the computed rows."""
        self.calls += 1
        call = Call(rows, self._cache, None, np.ascontiguousarray(entering), outputs)
        done = yield ForwardOn(self._runtime, call)
        self.seconds = own_seconds(done, call)
        return done.result


def _entered(entry: Network, embedded: Hidden | None, states: Hidden) -> Hidden:
    """The state that enters the first block."""
    given = {"embedding": embedded, "hidden": np.ascontiguousarray(states)}
    inputs = [value for name in entry.inputs if (value := given[name]) is not None]
    found: Hidden = entry.run(*inputs)[0]
    return found
