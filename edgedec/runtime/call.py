"""A call: any blocks on any rows of one sequence; and its results. A runtime runs any mix of calls in one forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.rows import Rows
from edgedec.runtime.best import best
from edgedec.runtime.capabilities import Capabilities
from edgedec.runtime.readout import Readout
from edgedec.runtime.sampler import Drawing
from edgedec.runtime.view import View
from edgedec.spec import ModelSpec

if TYPE_CHECKING:
    from edgedec.cache import Cache

Hidden = NDArray[np.float32]
Logits = NDArray[np.float32]


class Outputs(NamedTuple):
    """Which outputs a call returns.

    logits, and the `top` best tokens, of the computed rows from `logits_from` on; `logsum`: log of the sum of
    exp(logit / `temperature`) over all logits of these rows (a temperature other than 1: only if the runtime's
    capabilities have `temperatures`); `entropy`: of the distribution of these rows at temperature 1, in nats (only if
    they have `entropy`); hidden: blocks after which the state of all computed rows is returned (-1: the
    embedding); attention: the rows' attention to each slot, in every attention block of the call; readout: `top` is of
    these tokens only, and there are no logits and no logsum; queries: attention blocks whose queries are returned, as
    they score keys; draw: a token is drawn after the last row, and its logits stay in the engine (only if the runtime's
    capabilities have `draws`).
    """

    logits: bool = False
    top: int = 0
    logsum: bool = False
    hidden: tuple[int, ...] = ()
    attention: bool = False
    logits_from: int = 0
    temperature: float = 1.0
    readout: Readout | None = None
    queries: tuple[int, ...] = ()
    draw: Drawing | None = None
    entropy: bool = False

    def __or__(self, other: Outputs) -> Outputs:
        """The union of both; logits start at the lower of the two rows."""
        if self == other:
            return self
        return Outputs(
            self.logits or other.logits,
            max(self.top, other.top),
            self.logsum or other.logsum,
            tuple(sorted({*self.hidden, *other.hidden})),
            self.attention or other.attention,
            min(self.logits_from, other.logits_from),
            self.temperature if self.logsum else other.temperature,
            _joined(self, other),
            tuple(sorted({*self.queries, *other.queries})),
            self.draw or other.draw,
            self.entropy or other.entropy,
        )

    @property
    def head(self) -> bool:
        """Whether the head runs."""
        return self.logits or self.top > 0 or self.logsum or self.entropy or self.draw is not None


def _joined(one: Outputs, other: Outputs) -> Readout | None:
    """The readout for both; None, the whole vocabulary, unless all outputs of the head share one readout."""
    readouts = {outputs.readout for outputs in (one, other) if outputs.head}
    return readouts.pop() if len(readouts) == 1 else None


@dataclass(slots=True)
class CallResult:
    """The outputs of a call, one line for each row; None for outputs that were not requested.

    logits [m, vocab_size]; ids int32 [m, top]: the best tokens, the best first, the lowest id of equals first, -1
    where a logit is not finite; scores [m, top]: their logits; logsum, entropy float64 [m]; hidden: [count,
    hidden_size] by block; attention: [n_kv_heads, slots] by block, summed over rows and the query heads of a kv
    head; queries: [count, n_heads, head_dim] by block. drawn: the token that was drawn; -1: the logits do not decide
    it (`TokenSampler.row`). Inside a model's streams rows of hidden are `ModelSpec.width(block)` values.
    """

    logits: Logits | None = None
    ids: NDArray[np.int32] | None = None
    scores: NDArray[np.float32] | None = None
    logsum: NDArray[np.float64] | None = None
    entropy: NDArray[np.float64] | None = None
    hidden: dict[int, Hidden] = field(default_factory=dict)
    attention: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    queries: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    drawn: int | None = None


class Adapter(Protocol):
    """Low-rank weights that a runtime adds to matrices of a bundle, for the calls that name it
    (`edgedec.bundle.adapter`)."""

    @property
    def digest(self) -> str: ...


class Call(NamedTuple):
    """`blocks` (ascending; None: the whole stack) on `rows`. `hidden` [count, hidden_size]: the state that enters the
    first block, for rows that have been through the blocks before it, as a result has it (`ModelSpec.width` values);
    None: the rows are embedded first. views: what
    the rows see of what attention blocks hold, by block number (a block without one: everything)."""

    rows: Rows
    cache: Cache
    blocks: Sequence[int] | None = None
    hidden: Hidden | None = None
    outputs: Outputs = Outputs()
    adapter: Adapter | None = None
    views: Mapping[int, View] | None = None


class Runtime(Protocol):
    """Runs any blocks of a bundle's stack on any rows of any number of sequences.

    Rows are written to their cache as pending rows; the caller commits those it keeps (`Cache.commit`). Safe to share
    between sessions and threads.
    """

    name: str
    spec: ModelSpec
    capabilities: Capabilities

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        """The results of calls of any sequences, each with a cache of its own; they run together where that is
        quicker."""
        ...

    def new_cache(self, capacity: int) -> Cache:
        """An empty cache for at most `capacity` tokens."""
        ...

    def load(self) -> None:
        """Load the files of the whole stack now, not at first use."""
        ...

    def release(self) -> None:
        """Release resources that can be loaded again."""
        ...


ALL_LOGITS = Outputs(logits=True)


def forward_one(runtime: Runtime, call: Call) -> CallResult:
    """The result of one call."""
    return runtime.forward([call])[0]


def logits_of(runtime: Runtime, rows: Rows, cache: Cache, logits_from: int = 0) -> Logits:
    """The whole stack on `rows`: logits of the computed rows from `logits_from` on [count - logits_from,
    vocab_size]."""
    logits = forward_one(runtime, Call(rows, cache, outputs=ALL_LOGITS._replace(logits_from=logits_from))).logits
    assert logits is not None
    return logits


def head_outputs(logits: Logits, outputs: Outputs) -> CallResult:
    """The result of a runtime that computes all logits [m, vocab] anyway."""
    if outputs.readout is not None:
        rows, some = best(logits[:, outputs.readout.ids], outputs.top)
        return CallResult(ids=outputs.readout.tokens(rows), scores=some)
    ids, scores = best(logits, outputs.top) if outputs.top else (None, None)
    logsum = _logsum(logits, outputs.temperature) if outputs.logsum else None
    entropy = entropy_of(logits) if outputs.entropy else None
    return CallResult(logits if outputs.logits else None, ids, scores, logsum, entropy)


def entropy_of(logits: Logits) -> NDArray[np.float64]:
    """The entropy of the distribution of each row of logits [m, vocab] in nats.

    two equal logits and one of minus infinity -> log 2
    """
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    weights = np.exp(wide)
    whole = weights.sum(axis=1)
    found: NDArray[np.float64] = np.log(whole) - (weights * np.where(weights > 0, wide, 0)).sum(axis=1) / whole
    return found


def _logsum(logits: Logits, temperature: float) -> NDArray[np.float64]:
    """The log of the sum of exp of each row over the temperature."""
    heated = logits.astype(np.float64) / temperature
    top = heated.max(axis=1, keepdims=True)
    heated -= top
    total: NDArray[np.float64] = top[:, 0] + np.log(np.exp(heated, out=heated).sum(axis=1))
    return total
