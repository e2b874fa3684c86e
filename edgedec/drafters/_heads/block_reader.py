"""A semi-autoregressive head: the rows of a block see each other, and guess the tokens of the next block together.

Row i takes the target's state at token i and the embedding of token i + 1; a recurrent network (LSTM) over the rows
makes what enters the head's layers, whose output is the state at token i + k. Only the outputs of the last k rows are
needed, so these rows are run anew at each draft, in one group, and all before them are committed.

    k = 2, text "a b c d": states are known up to c, rows (a, b) (b, c) (c, d)
    committed              (a, b)
    one group              (b, c) (c, d)  -> the states at d and after d, read as the next token and the one after it
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from edgedec.bundle.manifest import DraftFacts
from edgedec.decoding.messages import Completed, Request
from edgedec.drafters import DrafterContext
from edgedec.drafters._calls import TokenEmbeddings
from edgedec.drafters._heads.reader import HeadReader, Reading
from edgedec.drafters._heads.states import Seen
from edgedec.errors import UsageError
from edgedec.runtime import CallResult, Hidden, Outputs, Rows

# The LSTM's two states of each sequence [layers, n, hidden_size].
Memory = tuple[Hidden, Hidden]
_LAYERS = 2


class BlockReader(HeadReader):
    """`size`: tokens of a block (k)."""

    def __init__(self, host: DrafterContext, facts: DraftFacts) -> None:
        super().__init__(host, facts)
        can = host.runtime.capabilities
        if not can.groups or not can.trees:
            raise UsageError(f"drafter falcon: the runtime {host.runtime.name} runs no rows that see each other")
        self.size, self._recurrent = facts.block, self.head.networks["recurrent"]
        self._known = TokenEmbeddings(host)
        self._forget()

    def _forget(self) -> None:
        """Nothing of the text is read."""
        self._cache.truncate(0)
        # The last `size` rows, as they enter the layers, and the token of each.
        self._open, self._tokens = np.zeros((0, self._spec.hidden_size), np.float32), list[int]()
        self._memory = self._blank(1)

    def _blank(self, n: int) -> Memory:
        h = np.zeros((_LAYERS, n, self._spec.hidden_size), np.float32)
        return h, h.copy()

    @property
    def _count(self) -> int:
        """Rows of the text that were read."""
        return self._cache.length + len(self._open)

    def read(self, seen: Sequence[Seen], ids: Sequence[int], outputs: Outputs, room: int) -> Reading:
        """Read the text -> the outputs of the last block's rows; all parts are None if states are missing."""
        self._result = CallResult()
        yield from super().read(seen, ids, Outputs(), room + self.size)
        self._result = CallResult()
        if self._at != len(ids) - 2 or len(self._open) < self.size or outputs == Outputs():
            return CallResult()
        rows = Rows.chain(self._tokens, self._cache.length)
        self._rows = replace(rows, groups=np.zeros(self.size, np.int64))
        return (yield from self._forward(self._rows, self._open, outputs))

    def grow_blocks(
        self, tokens: Sequence[Sequence[int]], parents: Sequence[int], states: Hidden, memory: Memory, outputs: Outputs
    ) -> Generator[Request, Completed, tuple[CallResult, Memory]]:
        """Blocks of `size` tokens below earlier ones -> the outputs of all their rows, and what the LSTM then knows.
        parents: the last row of the block above each; states [n, size, hidden_size]: what the block above gave;
        memory: the LSTM's after that block."""
        assert self._rows is not None
        flat, n = [token for block in tokens for token in block], len(tokens)
        embedded = yield from self._known.of(flat)
        hidden = self._spec.hidden_size
        x, memory = self._through(embedded.reshape(n, self.size, hidden), states, memory)
        rows = self._below(flat, parents)
        result = yield from self._forward(rows, x.reshape(-1, hidden), outputs)
        self._rows = rows
        return result, memory

    @property
    def memory(self) -> Memory:
        """The LSTM's states after the text."""
        return self._memory

    def _below(self, flat: Sequence[int], parents: Sequence[int]) -> Rows:
        """The tree with more blocks, each a group of its own."""
        rows, size = self._rows, self.size
        assert rows is not None
        assert rows.groups is not None
        n, own = len(rows), list[int]()
        for i, parent in enumerate(parents):
            start = n + i * size
            own += [parent, *range(start, start + size - 1)]
        grown = replace(rows, groups=None).extend(flat, own)
        more = int(rows.groups.max()) + 1 + np.repeat(np.arange(len(parents)), size)
        return replace(grown, groups=np.concatenate([rows.groups, more]))

    def _through(self, embedded: Hidden, states: Hidden, memory: Memory) -> tuple[Hidden, Memory]:
        """The LSTM over the rows of n sequences [n, rows, hidden_size] -> its outputs, and its states after them."""
        e, s = (np.ascontiguousarray(x.transpose(1, 0, 2)) for x in (embedded, states))
        given = {"embedding": e, "hidden": s, "h": memory[0], "c": memory[1]}
        x, h, c = self._recurrent.run(*(given[name] for name in self._recurrent.inputs))
        return np.ascontiguousarray(x.transpose(1, 0, 2)), (h, c)

    def _commit(self, seen: Seen, start: int, stop: int, outputs: Outputs) -> Generator[Request, Completed, None]:
        tokens = seen.follow[start:stop]
        embedded = yield from self._known.of(tokens)
        x, self._memory = self._through(embedded[None], self._of_target(seen.states[start:stop])[None], self._memory)
        entering, tokens = np.concatenate([self._open, x[0]]), [*self._tokens, *tokens]
        ready = max(len(entering) - self.size, 0)
        if ready:
            yield from self._forward(Rows.chain(tokens[:ready], self._cache.length), entering[:ready], Outputs())
            self._cache.commit(range(ready))
        self._open, self._tokens = entering[ready:].copy(), tokens[ready:]
        self._at = seen.start + stop - 1

    def _place(self, start: int, rows: int, room: int) -> int:
        # An LSTM cannot go back: where the text does, the head starts over.
        if start - self._base == self._count and self._count + rows + room <= self._most:
            return 0
        self._forget()
        before = self._skipped(rows, room)
        self._base = start + before
        return before

    def _cut(self, keep: int) -> None:
        if keep < self._count:
            self._forget()

    def inherit(self, other: HeadReader) -> None:
        super().inherit(other)
        if isinstance(other, BlockReader):
            self._open, self._tokens, self._memory = other._open, list(other._tokens), other._memory
