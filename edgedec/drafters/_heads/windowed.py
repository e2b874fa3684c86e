"""A draft head with a state of constant size: it reads a window of tokens, and the target's own cache.

A row is a token. The head's attention sees the first tokens and the latest `window`; their keys and values depend on
embeddings alone, so that the state can be recomputed from the text at any time, which happens when its few pages are
full. The target's block then runs on the row in a temporary fork of the text's cache, which shares all pages and copies
only the last one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from edgedec.bundle.manifest import DraftFacts
from edgedec.cache import Cache
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, ForwardOn, Request
from edgedec.drafters import DrafterContext
from edgedec.drafters._calls import TokenEmbeddings
from edgedec.drafters._heads.opened import open_head
from edgedec.errors import BundleCorrupt
from edgedec.runtime import Adapter, Call, CallResult, Hidden, Outputs, Rows
from edgedec.spec.macs import block_macs, row_macs

Reading = Generator[Request, Completed, CallResult]
_USES = ("query", "merge")
_STATE = Outputs(hidden=(0,))


class WindowedReader:
    """The head's window of one text. most: rows that a draft may have."""

    def __init__(self, host: DrafterContext, facts: DraftFacts, most: int) -> None:
        head = self.head = open_head(host, facts)
        bundle, self._runtime = head.bundle, head.runtime
        self._spec, self._target, self._block = bundle.spec, host.runtime.spec, facts.features[0]
        window = bundle.spec.attention[0].window
        if window is None or bundle.spec.n_blocks != 2 or self._block not in self._target.attention:
            raise BundleCorrupt(f"{bundle.path}: not a longspec head of this model")
        self._window, self._sinks, self._most = window, bundle.spec.attention[0].sinks, most
        self._query, self._merge = (head.networks[use] for use in _USES)
        self._embeddings = TokenEmbeddings(host)
        self._cache = self._runtime.new_cache(self._sinks + 2 * window + most)
        self._end = 0  # the cache holds tokens of the text before this one
        self._fork: Cache | None = None
        self._adapter: Adapter | None = None
        self._rows: Rows | None = None
        self.calls = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the head's own state."""
        return self._cache.nbytes

    def share(self) -> float:
        """Multiply-adds of a row of the head over those of a row of the target."""
        borrowed = block_macs(self._target.blocks[self._block], self._target.hidden_size)
        return (row_macs(self._spec) + borrowed) / max(row_macs(self._target), 1)

    def reset(self) -> None:
        """Another text."""
        self.end()
        self._end = 0
        self._cache.truncate(0)

    def read(self, context: Context, outputs: Outputs) -> Reading:
        """The prediction after the last token of a text whose other tokens are cached."""
        self.end()
        yield from self._follow(context.ids)
        length = context.cache.length
        self._fork, self._adapter = context.cache.fork(length, length + self._most), context.adapter
        self._rows = Rows.tree(context.ids[-1:], [-1], length)
        return (yield from self._run(self._rows, context.ids[-1:], outputs))

    def grow(self, tokens: Sequence[int], parents: Sequence[int], outputs: Outputs) -> Reading:
        """Predictions after rows below the last token (parent -1) or below earlier drafted rows."""
        assert self._rows is not None
        self._rows = self._rows.extend(tokens, [parent + 1 for parent in parents])
        return (yield from self._run(self._rows, tokens, outputs))

    def end(self) -> None:
        """Roll back drafted rows."""
        self._cache.rollback()
        self._fork = self._rows = None

    def _follow(self, ids: Sequence[int]) -> Generator[Request, Completed, None]:
        """Read the text up to its last token, within the window."""
        last = len(ids) - 1
        if self._cache.length + last - self._end + self._most > self._cache.capacity:
            self._cache.truncate(0)
            self._end = 0
        if not self._cache.length:
            yield from self._keep(ids, 0, min(self._sinks, last))
            self._end = max(self._end, last + 1 - self._window)
        yield from self._keep(ids, self._end, last)

    def _keep(self, ids: Sequence[int], start: int, stop: int) -> Generator[Request, Completed, None]:
        """Read tokens `start` to `stop` - 1."""
        size = self._runtime.capabilities.prefill_chunk
        for at in range(start, stop, size):
            tokens = ids[at : min(at + size, stop)]
            embedded = yield from self._embeddings.of(tokens)
            yield ForwardOn(self._runtime, Call(Rows.chain(tokens, at), self._cache, range(1), embedded))
            self._cache.commit(range(len(tokens)))
            self._end = at + len(tokens)

    def _run(self, rows: Rows, tokens: Sequence[int], outputs: Outputs) -> Reading:
        """The head on the computed rows."""
        embedded = yield from self._embeddings.of(tokens)
        done = yield ForwardOn(self._runtime, Call(rows, self._cache, range(1), embedded, _STATE))
        state = done.result.hidden[0]
        crossed = yield from self._cross(rows, self._query.run(state)[0])
        given = {"hidden": state, "cross": crossed}
        merged = self._merge.run(*(given[name] for name in self._merge.inputs))[0]
        done = yield ForwardOn(self._runtime, Call(rows, self._cache, range(1, 2), merged, outputs))
        self.calls += 1
        return done.result

    def _cross(self, rows: Rows, state: Hidden) -> Generator[Request, Completed, Hidden]:
        """The target's block on the rows, over all of the text."""
        assert self._fork is not None
        block = self._block
        wanted = Outputs(hidden=(block,))
        done = yield Call(rows, self._fork, range(block, block + 1), state, wanted, self._adapter)
        return done.result.hidden[block]
