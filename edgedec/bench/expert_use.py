"""Which experts a text uses: the share of a block's that a token uses, and that any of a chunk of tokens uses.

The second is what a call of so many rows reads; what is left of both is the token-level and the chunk-level sparsity of
BlockFFN (arXiv:2507.08771). Chunks lie side by side; tokens after the last whole one of a window are in none.

    experts of four tokens of 4: {0} {0 1} {2} {2}, chunks of 2 -> a token uses 5/16 of them, a chunk {0 1} and {2}: 3/8
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bench.experts import chosen_experts, expert_bytes, given_experts, moe_blocks
from edgedec.bundle.folder import Bundle
from edgedec.errors import UsageError
from edgedec.runtime import Call, Hidden, Outputs, Rows, Runtime, forward_one
from edgedec.spec import ModelSpec
from edgedec.spec.branches import routed_from


@dataclass(frozen=True)
class BlockUse:
    """Of a block with so many `experts`, which are stored in `bytes`, the shares that a token and a chunk use."""

    experts: int
    token: float
    chunk: float
    bytes: int = 0


@dataclass(frozen=True)
class ExpertUse:
    """Of `tokens` tokens in chunks of `size`, by block."""

    tokens: int
    size: int
    blocks: Mapping[int, BlockUse]

    @property
    def token(self) -> float:
        """The mean share over blocks that a token uses."""
        return sum(use.token for use in self.blocks.values()) / len(self.blocks)

    @property
    def chunk_share(self) -> float:
        """The mean share over blocks that a chunk uses."""
        return sum(use.chunk for use in self.blocks.values()) / len(self.blocks)

    @property
    def token_bytes(self) -> float:
        """The stored bytes of experts that a token reads."""
        return sum(use.token * use.bytes for use in self.blocks.values())

    @property
    def chunk_bytes(self) -> float:
        """The stored bytes of experts that a chunk reads."""
        return sum(use.chunk * use.bytes for use in self.blocks.values())

    def to_json(self) -> dict[str, Any]:
        blocks = {str(block): asdict(use) for block, use in self.blocks.items()}
        shares = {"token": self.token, "chunk": self.chunk_share}
        read = {"token": self.token_bytes, "chunk": self.chunk_bytes}
        return {"tokens": self.tokens, "chunk_size": self.size, "shares": shares, "bytes": read, "blocks": blocks}


def expert_use(
    runtime: Runtime,
    bundle: Bundle,
    ids: Sequence[int],
    window: int,
    size: int,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ExpertUse:
    """The experts that `ids` use, read in windows of so many tokens."""
    blocks = moe_blocks(bundle)
    if not blocks:
        raise UsageError(f"{bundle.manifest.name}: no block of it has experts")
    if not size <= min(window, len(ids)) or window > bundle.spec.context_length:
        raise UsageError(f"{len(ids)} tokens in windows of {window}: at least a chunk of {size}, at most the context")
    before = {b: _entered_after(bundle.spec, b) for b in blocks}
    tokens, chunks = ({b: list[NDArray[np.float64]]() for b in blocks} for _ in range(2))
    for at in range(0, len(ids), window):
        states = _states(runtime, ids[at : at + window], tuple(sorted(set(before.values()))))
        given = given_experts(bundle, ids[at : at + window])
        for b, facts in blocks.items():
            chosen = given[facts.given_by] if facts.given else chosen_experts(bundle, b, states[before[b]])
            used = used_by(chosen, facts.n_experts)
            whole = len(used) // size * size
            tokens[b].append(used.mean(axis=1))
            chunks[b].append(used[:whole].reshape(-1, size, facts.n_experts).any(axis=1).mean(axis=1))
        progress(min(at + window, len(ids)), len(ids))
    uses = {
        b: BlockUse(facts.n_experts, _mean(tokens[b]), _mean(chunks[b]), expert_bytes(bundle, b))
        for b, facts in blocks.items()
    }
    return ExpertUse(len(ids), size, uses)


def _mean(parts: Sequence[NDArray[np.float64]]) -> float:
    return float(np.concatenate(parts).mean())


def used_by(experts: NDArray[np.int64], n: int) -> NDArray[np.bool_]:
    """experts [rows, k] of n, -1: none -> [rows, n], whether a row uses each."""
    used = np.zeros((len(experts), n + 1), bool)
    np.put_along_axis(used, experts, True, axis=1)  # -1 is the last column
    return used[:, :n]


def _entered_after(spec: ModelSpec, block: int) -> int:
    """The block after which the state is that the router of `block` reads; -1: the embedding."""
    return routed_from(spec, block) - 1


def _states(runtime: Runtime, ids: Sequence[int], blocks: tuple[int, ...]) -> dict[int, Hidden]:
    """The states of a text after these blocks [len(ids), hidden_size]."""
    cache, found, step = runtime.new_cache(len(ids)), dict[int, list[Hidden]](), runtime.capabilities.largest_call
    for at in range(0, len(ids), step):
        rows = Rows.chain(list(ids[at : at + step]), at)
        result = forward_one(runtime, Call(rows, cache, outputs=Outputs(hidden=blocks)))
        cache.commit(range(rows.count))
        for b in blocks:
            found.setdefault(b, []).append(result.hidden[b])
    return {b: np.concatenate(parts) for b, parts in found.items()}
