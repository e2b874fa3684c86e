"""From merged proposals to the draft that runs: forbidden nodes are removed, the rest is offered, granted nodes run.

A drawn draft and the guesses of other drafters are one tree. All drawn tokens run: leaving some out by their value
would change their distribution. Guesses are further rows without a distribution. The verifier of the drawn draft runs
first, on the drawn rows alone; from its last token on, verification follows the target's own draws through all rows.
This is recursive rejection over the whole tree: accepting a deterministic guess x with its probability under the
residual of p, and otherwise removing it from p, is equivalent to drawing from that residual and comparing the draw with
x.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from edgedec.decoding.allocation import CostSurface, Offer
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft
from edgedec.decoding.host_time import BetweenCalls
from edgedec.runtime import WatchPrices
from edgedec.speculation.prices import Prices
from edgedec.speculation.proposals import Proposals
from edgedec.speculation.reasons import BANK, CONSTRAINT, NO_GUESS, REFUSED
from edgedec.speculation.record import DrafterRecord
from edgedec.trees.merge import MergedTree, resume


def allowed(context: Context, found: Proposals, order: list[int], row: float) -> list[int]:
    """The nodes, parents first, that the generation's constraint does not forbid. With a drawn draft all of them,
    because drawn tokens run unchanged. row: the seconds of a drafted row."""
    permitted = context.hooks.allowed
    if not order or found.drawn is not None or permitted is None:
        return order
    merger = found.merger
    place = {node: i for i, node in enumerate(order)}
    parents = [place.get(merger.parents[node], -1) for node in order]
    kept = permitted([merger.tokens[node] for node in order], parents, row * len(order))
    return order if kept is None else [node for node, fine in zip(order, kept, strict=True) if fine]


def offer_of(
    found: Proposals, context: Context, order: Sequence[int], costs: CostSurface, trust: float, between: BetweenCalls
) -> Offer:
    """The offer of these nodes for the next call; trust: the factor on chances; between: the time between calls."""
    chances = found.merger.chances
    reading, tokens, rows = len(context.ids) - context.cache.length - 1, 1.0, found.drawn_rows
    if found.drawn_by is not None:
        rate = found.drawn_by.drawn_rate
        tokens += sum(rate ** (n + 1) for n in range(rows))
    offered = [trust * chances[node] for node in order]
    extra = 0.0 if rows else between.draft
    return Offer(offered, 1 + reading + rows, context.cache.length, costs, reading, tokens, between.plain, extra)


def cut(found: Proposals, context: Context, kept: Sequence[int], names: Sequence[str], why: str) -> Draft:
    """The draft of the nodes `kept` and of the drawn tokens; names: the drafters' names."""
    if found.drawn is not None and found.drawn_by is not None:
        return with_guesses(found.drawn, found.merger, kept, names, found.drawn_by.name)
    draft = found.merger.cut(kept, names, why)
    return resume(draft, kept, found.started, found.started_places, len(context.ids) - context.cache.length)


def probing(draft: Draft, rows: int, context: Context, trees: bool) -> Draft:
    """A draft of `rows` rows of the whole stack for measuring; missing rows are filled with arbitrary tokens."""
    missing, n = rows - len(draft.tokens), len(draft.tokens)
    vocab = context.cache.spec.vocab_size
    above = [-1] * missing if trees else range(n - 1, rows - 1)
    return Draft(
        [*draft.tokens, *((7 * i + 3) % vocab for i in range(missing))],
        [*draft.parents, *above],
        [*draft.p, *[0.0] * missing],
        by=[*draft.by, *[""] * missing],
        why=f"measuring a call of {rows} rows more",
    )


def watched(prices: Prices, rows: int, trust: float) -> WatchPrices:
    """The prices by which the runtime's tables choose the nodes that would pay if no other sequence drafted."""
    costs = [prices.token + prices.draft + seconds for seconds in prices.added[1 : rows + 1]]
    return WatchPrices([0.0, prices.token, *costs], 0.0, 0.0, trust, 0.0)


def unrun(guesses: int, affordable: bool, limit: int, permitted: int) -> str:
    """Why none of so many guesses runs. affordable: whether the balance can pay for one; limit: the most that may run;
    permitted: those that the constraint allows of these."""
    if not guesses:
        return NO_GUESS
    if not affordable:
        return BANK
    return CONSTRAINT if limit and not permitted else REFUSED


def expected_of(prices: Prices | None, chances: Iterable[float], trust: float) -> float | None:
    """What the best of these guesses would bring, relative to what their rows cost, if no other sequence drafted. They
    run from `allocation.MARGIN` on. None if costs are unknown.

    Worked example: 1 ms a token, 0.5 ms a row; chances 0.7 and 0.1: one row, 0.7 tokens for 0.5 ms -> 1.4
    """
    if prices is None or len(prices.added) < 2:
        return None
    best, found, tokens = 0.0, 0.0, 0.0
    for chance, added in zip(sorted(chances, reverse=True), prices.added[1:], strict=False):
        tokens += trust * chance
        cost = max(added + prices.draft, 1e-3 * prices.token)
        rate = (1.0 + tokens) / (prices.token + cost)
        if rate > best:
            best, found = rate, tokens * prices.token / cost
    return found


def note_runs(
    found: Proposals,
    kept: Sequence[int],
    members: Sequence[DrafterRecord],
    numbers: Iterable[int],
    why: str,
    prices: Prices | None,
    trust: float,
) -> None:
    """Note for the drafters of these numbers whether they had guesses, and whether any of them ran."""
    chances: dict[int, list[float]] = {}
    ran = {members.index(found.drawn_by)} if found.drawn_by is not None else set[int]()
    for by, chance in zip(found.merger.guesses, found.merger.chances, strict=True):
        for number, _ in by:
            chances.setdefault(number, []).append(chance)
    for node in kept:
        ran.update(number for number, _ in found.merger.guesses[node])
    for number in numbers:
        own = chances.get(number, [])
        expected = None if number in ran else expected_of(prices, own, trust)
        members[number].runs.add(bool(own) or number in ran, number in ran, why, expected)


def beyond(drawn: Draft, merger: MergedTree, order: Sequence[int]) -> list[int]:
    """The nodes, parents first, that are not in the drawn draft."""
    rows = _rows(drawn, merger, order)
    return [node for node in order if rows[node] < 0]


def with_guesses(drawn: Draft, merger: MergedTree, nodes: Sequence[int], by: Sequence[str], name: str) -> Draft:
    """The drawn draft of the drafter `name`, and `nodes` after it; by: the drafters' names."""
    kept = sorted(nodes)
    rows = _rows(drawn, merger, range(len(merger)))
    for row, node in enumerate(kept, len(drawn.tokens)):
        rows[node] = row
    above = [merger.parents[node] for node in kept]
    guessed = ["+".join([by[number] for number, _ in merger.guesses[node]]) for node in kept]
    return replace(
        drawn,
        tokens=[*drawn.tokens, *(merger.tokens[node] for node in kept)],
        parents=[*drawn.parents, *(rows[parent] if parent >= 0 else -1 for parent in above)],
        p=[*drawn.p, *(merger.chances[node] for node in kept)] if drawn.p else (),
        by=[*[name] * len(drawn.tokens), *guessed],
        why=f"{len(drawn.tokens)} drawn, {len(kept)} guesses",
    )


def _rows(drawn: Draft, merger: MergedTree, order: Sequence[int]) -> dict[int, int]:
    """The drawn row of each node; -1 if there is none."""
    below: dict[tuple[int, int], int] = {}
    for row, key in enumerate(zip(drawn.parents, drawn.tokens, strict=True)):
        below.setdefault(key, row)
    rows = {-1: -1}
    for node in order:
        parent = merger.parents[node]
        known = parent < 0 or rows[parent] >= 0
        rows[node] = below.get((rows[parent], merger.tokens[node]), -1) if known else -1
    return rows
