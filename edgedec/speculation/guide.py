"""Retrieved drafts pruned by a draft model's probabilities (RASD).

Documents show the continuation of other texts, a draft model predicts the one of this text. Where both propose, the
model's probabilities prune the retrieval tree before the trees are merged: at a place that the model has drafted at, a
retrieved token that it also proposed stays; one that it did not propose is at most as likely as the least of the
proposed tokens, or as their remaining probability. The new probability is the geometric mean of both, and a branch
whose probability falls below `LEAST` is cut with its subtree. Outside of the model's tree the documents' probabilities
are used alone.

Worked example: the model shows a 0.7, b 0.2; the documents say a 0.5 -> c 0.6 and d 0.4 -> e 0.9
a stays, sqrt(0.5 * 0.7) = 0.59, and c with its 0.6; d gets sqrt(0.4 * 0.1) = 0.2, with LEAST = 0.25 it goes, and e
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import sqrt
from typing import Any

from edgedec.decoding.allocation import Offer
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft, Drafter
from edgedec.decoding.messages import Request
from edgedec.drafters import FAMILY
from edgedec.drafters._wrapped import Wrapped

LEAST = 0.12
_FREE = -2  # beyond the model's tree


class Guide(Wrapped):
    """A drafter whose last proposal is kept: `draft` of the text of `length` tokens."""

    draft, length = Draft(), -1

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request | Offer, Any, Draft]:
        self.length = -1
        proposal = self.drafter.propose(context, nodes, min_path_prob)
        draft = proposal if isinstance(proposal, Draft) else (yield from proposal)
        if draft.sampled is None:
            self.draft, self.length = draft, len(context.ids)
        return draft

    def reset(self) -> None:
        self.length = -1
        super().reset()


class Guided(Wrapped):
    """A drafter whose tree is pruned by the guides' proposals for the same text."""

    def __init__(self, drafter: Drafter, guides: Sequence[Guide]) -> None:
        super().__init__(drafter)
        self._guides, self._pruned = guides, 0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request | Offer, Any, Draft]:
        proposal = self.drafter.propose(context, nodes, min_path_prob)
        draft = proposal if isinstance(proposal, Draft) else (yield from proposal)
        for guide in self._guides:
            if guide.length == len(context.ids) and guide.draft.tokens and draft.tokens:
                before = len(draft.tokens)
                draft = pruned(draft, guide.draft)
                self._pruned += before - len(draft.tokens)
        return draft

    def report(self) -> dict[str, Any]:
        return {**self.drafter.report(), "pruned": self._pruned}


def pruned(draft: Draft, guide: Draft, least: float = LEAST) -> Draft:
    """The retrieved `draft` without branches that are unlikely by the guide."""
    shown, gone = _shown(guide), _FREE - 1
    # For each token of the draft: its node in the guide's tree, and its index among the kept tokens.
    nodes: list[int] = []
    places: list[int] = []
    tokens, parents, claims = list[int](), list[int](), list[float]()
    for token, parent, p in zip(draft.tokens, draft.parents, draft.p, strict=True):
        above = parent if parent < 0 else nodes[parent]
        node, claim = _seen(shown.get(above), token, p)
        nodes.append(gone if above == gone or claim < least else node)
        places.append(len(tokens))
        if nodes[-1] != gone:
            tokens.append(token)
            parents.append(parent if parent < 0 else places[parent])
            claims.append(claim)
    return Draft(tokens, parents, claims)


def _seen(children: dict[int, tuple[int, float]] | None, token: int, p: float) -> tuple[int, float]:
    """(node in the guide's tree, new probability) of a token below a node with these children in that tree."""
    if not children:
        return _FREE, p
    if token in children:
        node, chance = children[token]
        return node, sqrt(p * chance)
    chances = [chance for _, chance in children.values()]
    return _FREE, sqrt(p * min(max(1.0 - sum(chances), 0.0), *chances))


def _shown(guide: Draft) -> dict[int, dict[int, tuple[int, float]]]:
    """{node: {token: (its node, its chance)}} of a draft with claims."""
    found: dict[int, dict[int, tuple[int, float]]] = {}
    for node, (token, parent, p) in enumerate(zip(guide.tokens, guide.parents, guide.p, strict=False)):
        found.setdefault(parent, {})[token] = node, p
    return found


def guided(drafters: Sequence[tuple[str, Drafter]]) -> list[tuple[str, Drafter]]:
    """These drafters; retrieval drafters come last and are pruned by the drafters with a draft model."""
    facts = {name: FAMILY.facts(name) for name, _ in drafters}
    led = {name for name, fact in facts.items() if fact.guided}
    leading = {name for name, fact in facts.items() if fact.guides}
    if not led or not leading:
        return list(drafters)
    guides = {name: Guide(drafter) for name, drafter in drafters if name in leading}
    found: list[tuple[str, Drafter]] = [
        (name, guides.get(name, drafter)) for name, drafter in drafters if name not in led
    ]
    found += [(name, Guided(drafter, list(guides.values()))) for name, drafter in drafters if name in led]
    return found
