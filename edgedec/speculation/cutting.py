"""From merged proposals to the draft that runs: forbidden nodes are removed, the rest is offered, granted nodes run."""

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
    found: Proposals, context: Context, order: Sequence[int], costs: CostSurface, trust: float, usual: Usual
) -> Offer:
    """The offer of these nodes for the next call; trust: the factor on chances; usual: the time outside of calls."""
    chances = found.merger.chances
    reading, tokens, rows = len(context.ids) - context.cache.length - 1, 1.0, found.drawn_rows
    if found.drawn_by is not None:
        rate = found.drawn_by.drawn_rate
        tokens += sum(rate ** (n + 1) for n in range(rows))
    offered = [trust * chances[node] for node in order]
    outside = usual.plain, 0.0 if rows else usual.draft
    return Offer(offered, 1 + reading + rows, context.cache.length, costs, reading, tokens, *outside)


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


def promised(found: Proposals, order: Sequence[int], sequences: int, costs: Costs, usual: Usual) -> float:
    """The expected accepted tokens of the guesses so far, counting those that would run in a call of `sequences`
    sequences."""
    chances = [found.merger.chances[node] for node in order]
    offer = Offer(chances, sequences, 0, costs, outside=usual.plain, extra=usual.draft)
    return sum(chances[: best_of_one(offer, Others(), costs.most).nodes])
