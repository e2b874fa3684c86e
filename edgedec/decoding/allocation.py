"""Which drafted rows run: one decision for all sequences of a call.

Every sequence offers the nodes of its draft tree, each with the chance that its whole path is accepted. The nodes with
the largest chances of all sequences run, as many as maximise the expected tokens per second of the call:

    maximise over n:  (tokens + c_1 + … + c_n) / seconds(rows + n),     c_1 ≥ c_2 ≥ … of all sequences merged

tokens, rows: of the call without drafts; seconds: of the call, plus the time between calls, verification of the drafts
included. A node's chance is never above its parent's, so the first n nodes form a tree in every sequence; no other n
nodes have a larger sum, so this choice of n nodes is optimal. Where seconds(rows) is convex the ratio has one peak;
measured curves have steps, so every n is tried.

Rows of a prompt that is being read produce no token yet. They are credited with the tokens that the decoding sequences
would have generated in the same time, so that a call without drafts has the same rate with and without prompt rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime import Capabilities

_SMALL = 48
# Small gains are mostly noise: drafted rows must promise 20% more tokens than plain decoding would give in their time.
MARGIN = 1.2
# The share of a single row's attention time that is spent on reading keys and values; further rows of its sequence
# share this reading. On the CPU engine 8 rows take 3.2 times as long as one at 3 million weights, 2.1 times at 135
# million; this value models 2.75 times.
READING = 3 / 4


Divide = Callable[[int, Sequence[int]], list[int]]
"""The nodes of each sequence, of a number of them, by those that it wants."""


class CostSurface(Protocol):
    """The cost of a forward. `seconds[k]`: of k rows after a short text, k from 1 to len - 1; `per_cell`: the seconds
    that each cached token adds to the call of a single row (`text_cells`: of several rows)."""

    seconds: list[float]
    per_cell: float


def text_cells(rows: int, context: int) -> int:
    """The attention cost of `rows` rows over `context` cached tokens, in cached tokens read by a single row.

    3 rows after 100 tokens: 75 to read, 25 for each row -> 150
    """
    return round(context * (READING + (1 - READING) * rows))


class Offer(NamedTuple):
    """A draft before it is cut: the probability that each node's whole path is accepted, descending. The answer is a
    `Grant`: how many of the first nodes may run. rows, tokens: of the sequence's call without the draft; reading: how
    many of these rows belong to a prompt and produce no token; context: cached tokens; between: seconds between
    calls per sequence; extra: the seconds that a draft of any size adds to that."""

    chances: Sequence[float]
    rows: int
    context: int
    costs: CostSurface
    reading: int = 0
    tokens: float = 1.0
    between: float = 0.0
    extra: float = 0.0


class Grant(NamedTuple):
    """The number of nodes that may run. drafted: the granted nodes of all sequences in the call; speed: the expected
    tokens per second of the call, relative to the call without drafts."""

    nodes: int
    drafted: int
    speed: float


_NOTHING = Grant(0, 0, 1.0)


class Others(NamedTuple):
    """The rows of a call that belong to sequences without an offer. cells: their `text_cells`; decoding: how many of
    them are not prompt rows; tokens: how many tokens they produce."""

    rows: int = 0
    cells: int = 0
    decoding: int = 0
    tokens: int = 0


def grant_alone(offer: Offer, capabilities: Capabilities) -> Grant:
    """The grant of a sequence that has the call to itself."""
    return best_of_one(offer, Others(), capabilities.largest_call, capabilities.row_buckets)


def allocate(
    offers: Sequence[Offer], others: Others, largest: int, buckets: Sequence[int] = (), divide: Divide | None = None
) -> list[Grant]:
    """The grants of the sequences of one call of at most `largest` rows. divide: how many nodes each sequence may run
    where more would pay than there is room for, without it the most probable ones.

    Worked example: offers (0.9, 0.2) and (0.5,), one row each, seconds 1.0, 1.1, 1.2, 1.3, 2.0 for 1 to 5 rows.
    2 / 1.1 = 1.82 without drafts; 2.9 / 1.2 = 2.42 with one node, 3.4 / 1.3 = 2.62 with two, 3.6 / 2.0 with all:
    each sequence runs its first node.
    """
    if len(offers) == 1 and len(offers[0].chances) <= _SMALL:
        return [best_of_one(offers[0], others, largest, buckets)]
    costs = offers[0].costs
    owner = np.repeat(np.arange(len(offers)), [len(offer.chances) for offer in offers])
    chances = np.concatenate([np.asarray(offer.chances, np.float64) for offer in offers])
    context = np.array([offer.context for offer in offers])
    rows = others.rows + sum(offer.rows for offer in offers)
    cells = others.cells + sum(text_cells(offer.rows, offer.context) for offer in offers)
    order = np.argsort(-chances, kind="stable")[: max(_limit(costs, largest, buckets) - rows, 0)]
    plain, tokens = _plain(costs, offers, others, rows, cells, buckets)
    with_rows = _seconds(costs, rows + 1 + np.arange(len(order)), buckets)
    with_rows += costs.per_cell * (cells + (1 - READING) * np.cumsum(context[owner[order]]))
    with_rows += sum(offer.between for offer in offers) + _extra(offers, owner[order])
    speeds = (tokens + np.cumsum(chances[order])) / with_rows / plain
    best = int(np.argmax(speeds)) if len(order) else -1
    if best < 0 or not _worth(float(speeds[best]), tokens + float(chances[order[: best + 1]].sum()), tokens):
        return [_NOTHING] * len(offers)
    counts = np.bincount(owner[order[: best + 1]], minlength=len(offers)).tolist()
    if divide is not None and best + 1 == len(order) < len(chances):
        row = (with_rows[-1] - with_rows[0]) / max(best, 1)
        pay = chances > float(speeds[best]) * plain * row
        pay[order[: best + 1]] = True
        counts = divide(best + 1, np.bincount(owner[pay], minlength=len(offers)).tolist())
    return [Grant(count, best + 1, float(speeds[best])) for count in counts]


def best_of_one(offer: Offer, others: Others, largest: int, buckets: Sequence[int] = ()) -> Grant:
    """`allocate` for one offer: the same in a plain loop, which is quicker for a few nodes."""
    costs = offer.costs
    rows, cells = others.rows + offer.rows, others.cells + text_cells(offer.rows, offer.context)
    room = _limit(costs, largest, buckets) - rows
    if room < 1 or not len(offer.chances):
        return _NOTHING
    plain, tokens = _plain(costs, (offer,), others, rows, cells, buckets)
    seconds, each = costs.seconds, (1 - READING) * costs.per_cell * offer.context
    extra = costs.per_cell * cells + offer.between + offer.extra
    best, nodes, found, without = plain, 0, tokens, tokens
    for n, chance in enumerate(offer.chances[:room], 1):
        tokens += chance
        extra += each
        took = seconds[_bucket(rows + n, buckets)] if buckets else seconds[rows + n]
        rate = tokens / (took + extra)
        if rate > best:
            best, nodes, found = rate, n, tokens
    return Grant(nodes, nodes, best / plain) if _worth(best / plain, found, without) else _NOTHING


def _worth(speed: float, tokens: float, without: float) -> bool:
    """Whether a draft pays with a margin: `tokens` instead of `without`, at `speed` times the rate.

    tokens / speed is the number of tokens that plain decoding gives in the time of the call: 3.0 tokens in the time of
    2.0 -> 2.0.
    """
    return speed > 1.0 and tokens - without >= MARGIN * (tokens / speed - without)


def _plain(
    costs: CostSurface, offers: Sequence[Offer], others: Others, rows: int, cells: int, buckets: Sequence[int]
) -> tuple[float, float]:
    """Tokens per second of the call without drafts, and its tokens; prompt rows count as in the module's docstring."""
    tokens = sum(offer.tokens for offer in offers) + others.tokens
    decoding = sum(offer.rows - offer.reading for offer in offers) + others.decoding
    between = sum(offer.between for offer in offers)
    whole = _at(costs, rows, buckets) + costs.per_cell * cells + between
    if decoding == rows:
        return tokens / whole, tokens
    alone = _at(costs, decoding, buckets) + costs.per_cell * cells * decoding / rows + between
    return tokens / alone, tokens * whole / alone


def _extra(offers: Sequence[Offer], owners: NDArray[np.int64]) -> NDArray[np.float64]:
    """The seconds that drafts add between calls: once per sequence with a drafted row. owners: by node, in
    order."""
    found, first = np.zeros(len(owners)), np.unique(owners, return_index=True)
    for owner, at in zip(*first, strict=True):
        found[at] = offers[owner].extra
    return np.cumsum(found)


def _at(costs: CostSurface, rows: int, buckets: Sequence[int]) -> float:
    """The seconds of `rows` rows after an empty text; above the largest measured count, the seconds of that count."""
    return costs.seconds[min(_bucket(rows, buckets), len(costs.seconds) - 1)]


def _limit(costs: CostSurface, largest: int, buckets: Sequence[int]) -> int:
    """The largest number of rows of a call that the runtime accepts and that has a known cost."""
    known = min(largest, len(costs.seconds) - 1)
    return max((bucket for bucket in buckets if bucket <= known), default=known)


def _bucket(rows: int, buckets: Sequence[int]) -> int:
    """The rows that are computed for `rows` rows: the next larger static shape, if the runtime has static shapes."""
    return min((bucket for bucket in buckets if bucket >= rows), default=rows)


def _seconds(costs: CostSurface, rows: NDArray[np.int64], buckets: Sequence[int]) -> NDArray[np.float64]:
    """The seconds of calls with these numbers of rows, after an empty text."""
    curve = np.asarray(costs.seconds)
    if not buckets:
        return curve[rows]
    sizes = np.array(sorted(buckets))
    return curve[sizes[np.minimum(np.searchsorted(sizes, rows), len(sizes) - 1)]]
