"""How redundant the blocks of a text are for a query, and the tokens that each block keeps (TCA-Attention).

A block is a page. The redundancy of a block is its Simpson index: the sum of the squares of the shares of the block's
attention that its tokens get. Where it gathers on one token (1) few tokens say all; where it is spread (1/64) many are
needed. A head's budget is a distribution over how many tokens blocks keep:

    p_k ~ exp(-(log2 k - mu)^2 / (2 sigma^2)),  k in 1, 2, 4, ..., 64

so many blocks of each size there are; the most concentrated blocks are the ones that keep the fewest. The sizes of
blocks, mu and sigma are not given in what we read of the method: here a page, 0 to 9 by halves (9: nearly all), and 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime import PAGE

Array = NDArray[np.float32]
Ints = NDArray[np.int64]

KEPT = 2 ** np.arange(PAGE.bit_length(), dtype=np.int64)
_MUS, _SIGMA = np.arange(19) / 2, 1.0


def _distributions() -> NDArray[np.float64]:
    """The share of blocks that keep so many tokens, for each budget [budgets, len(KEPT)]."""
    raw = np.exp(-((np.log2(KEPT) - _MUS[:, None]) ** 2) / (2 * _SIGMA**2))
    found: NDArray[np.float64] = raw / raw.sum(axis=1, keepdims=True)
    return found


DISTRIBUTIONS = _distributions()
# The share of all tokens that each budget keeps, ascending.
SHARES: NDArray[np.float64] = DISTRIBUTIONS @ KEPT / PAGE


def block_shares(query: Array, keys: Array, scale: float) -> Array:
    """What tokens get of the attention of their block [kv_heads, blocks, PAGE], the mean over the query heads of a kv
    head. query [heads, d]; keys [kv_heads, slots, d] of full blocks."""
    return _shares(_scores(query, keys, scale), (3,))


def attention_of(query: Array, keys: Array, scale: float) -> Array:
    """What tokens get of all attention to these blocks [kv_heads, blocks, PAGE], the mean as in `block_shares`."""
    return _shares(_scores(query, keys, scale), (2, 3))


def _scores(query: Array, keys: Array, scale: float) -> Array:
    """[kv_heads, group, blocks, PAGE]"""
    kv_heads, slots, d = keys.shape
    found: Array = query.reshape(kv_heads, -1, d) @ keys.transpose(0, 2, 1) * np.float32(scale)
    return found.reshape(kv_heads, -1, slots // PAGE, PAGE)


def _shares(scores: Array, axes: tuple[int, ...]) -> Array:
    weights = np.exp(scores - scores.max(axis=axes, keepdims=True))
    found: Array = (weights / weights.sum(axis=axes, keepdims=True)).mean(axis=1)
    return found


def kept_of_blocks(shares: Array, budgets: Ints) -> Ints:
    """How many tokens each block keeps [kv_heads, blocks]. shares: of `block_shares`; budgets [kv_heads]: by number.

    Four blocks, half of them to keep 1 and half 2: the two with the largest Simpson index keep 1.
    """
    simpson = np.square(shares, dtype=np.float64).sum(axis=2)
    rank = np.argsort(np.argsort(-simpson, axis=1, kind="stable"), axis=1, kind="stable")
    at = (rank + 0.5) / max(shares.shape[1], 1)
    ends = np.cumsum(DISTRIBUTIONS[budgets], axis=1)[:, None, :-1]
    found: Ints = KEPT[(at[:, :, None] > ends).sum(axis=2)]
    return found


def token_ranks(shares: Array) -> Ints:
    """The rank of each token in its block, the one with the largest share 0, lower slots first among equals."""
    order = np.argsort(-shares, axis=2, kind="stable")
    return np.argsort(order, axis=2, kind="stable").astype(np.int64)


def core_slots(shares: Array, budgets: Ints) -> list[Ints]:
    """The slots that each kv head keeps, ascending."""
    kept = token_ranks(shares) < kept_of_blocks(shares, budgets)[:, :, None]
    return [np.flatnonzero(head) for head in kept.reshape(len(kept), -1)]


def needed_budgets(shares: Array, attention: Array, mass: float) -> Ints:
    """The least budget of each kv head whose tokens get the share `mass` of its attention [kv_heads]; the largest if
    none is enough. attention: of `attention_of`."""
    ranks, heads = token_ranks(shares), len(shares)
    total = attention.sum(axis=(1, 2), dtype=np.float64)
    low, high = np.zeros(heads, np.int64), np.full(heads, len(SHARES) - 1)
    while (low < high).any():  # what a budget keeps, all larger ones keep
        middle = (low + high) // 2
        kept = ranks < kept_of_blocks(shares, middle)[:, :, None]
        enough = (attention * kept).sum(axis=(1, 2), dtype=np.float64) >= mass * total - 1e-9
        low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
    return low
