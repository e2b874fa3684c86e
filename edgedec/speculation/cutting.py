"""From merged proposals to the draft that runs: what is forbidden goes, the rest is offered, what is granted is cut."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.decoding.allocation import CostSurface, Offer, Others, best_of_one
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft
from edgedec.speculation.costs import Costs
from edgedec.speculation.drawn import with_guesses
from edgedec.speculation.outside import Usual
from edgedec.speculation.proposals import Proposals
from edgedec.trees.merge import resume


def allowed(context: Context, found: Proposals, order: list[int], row: float) -> list[int]:
    """Those of these nodes, parents first, that the constraint of the generation does not forbid. Beside a drawn draft
    all of them: what was drawn runs as it is. row: seconds that a drafted row costs."""
    permitted = context.hooks.allowed
    if not order or found.drawn is not None or permitted is None:
        return order
    merger = found.merger
    place = {node: i for i, node in enumerate(order)}
    parents = [place.get(merger.parents[node], -1) for node in order]
    kept = permitted([merger.tokens[node] for node in order], parents, row * len(order))
    return order if kept is None else [node for node, fine in zip(order, kept, strict=True) if fine]


def offer_of(
    found: Proposals, context: Context, order: Sequence[int], costs: CostSurface, trust: float, usual: Usual
) -> Offer:
    """These nodes for the next call; trust: what a chance counts for; usual: what passes outside of calls."""
    chances = found.merger.chances
    reading, tokens, rows = len(context.ids) - context.cache.length - 1, 1.0, found.drawn_rows
    if found.drawn_by is not None:
        rate = found.drawn_by.drawn_rate
        tokens += sum(rate ** (n + 1) for n in range(rows))
    offered = [trust * chances[node] for node in order]
    outside = usual.plain, 0.0 if rows else usual.draft
    return Offer(offered, 1 + reading + rows, context.cache.length, costs, reading, tokens, *outside)


def cut(found: Proposals, context: Context, kept: Sequence[int], names: Sequence[str], why: str) -> Draft:
    """The draft of the nodes `kept`, and of what was drawn; names: the drafters' names."""
    if found.drawn is not None and found.drawn_by is not None:
        return with_guesses(found.drawn, found.merger, kept, names, found.drawn_by.name)
    draft = found.merger.cut(kept, names, why)
    return resume(draft, kept, found.started, found.started_places, len(context.ids) - context.cache.length)


def probing(draft: Draft, rows: int, context: Context, trees: bool) -> Draft:
    """A draft of so many rows, of the whole stack: rows that are missing are any tokens, most likely wrong."""
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


def promised(found: Proposals, order: Sequence[int], sequences: int, costs: Costs, usual: Usual) -> float:
    """The tokens that the guesses so far promise, as many of them as would run in a call of so many sequences."""
    chances = [found.merger.chances[node] for node in order]
    offer = Offer(chances, sequences, 0, costs, outside=usual.plain, extra=usual.draft)
    return sum(chances[: best_of_one(offer, Others(), costs.most).nodes])
