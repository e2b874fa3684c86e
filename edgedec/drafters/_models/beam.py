"""Trees whose tokens are drawn from a draft model: of a fixed shape, or by stochastic beam search (Kool et al. 2019;
RSD-S of recursive speculative decoding), which draws sequences without replacement.

Each node has the log-probability phi of its path and a perturbed one, G: phi plus Gumbel noise, drawn so that the
largest among a node's children is the node's own. Of all children of a level the `width` with the largest G are kept.
These are a draw of `width` sequences without replacement, so they follow the model's probability; a tree of fixed
branching has as many children at a certain node as at an uncertain one.

For verification by recursive rejection the kept children of a node, by falling G, must be draws without replacement
from q, and their number must be independent of the next child given those before it. Both hold: the index of the
largest Gumbel variable is independent of its value, and the threshold depends on values only.

    G~ = phi + noise,  Z = max G~,  G = -log(exp(-G_parent) - exp(-Z) + exp(-G~))
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request
from edgedec.drafters._models.reader import ALL, DraftReader, children, drawn_from, size
from edgedec.sampling import Floats, Probs


@dataclass(frozen=True)
class Drawn:
    """Tokens with their parents, what each was drawn from, and its rank among its siblings."""

    tokens: list[int]
    parents: list[int]
    sources: list[Probs]
    ranks: list[int]


def beam_draft(
    reader: DraftReader, context: Context, vocab: int, width: int, depth: int
) -> Generator[Request, Completed, Drawn]:
    """The tree of `width` sequences of `depth` tokens; a level has `width` nodes, if there are so many."""
    found = Drawn([], [], [], [])
    logits = (yield from reader.read(context.ids, ALL, width * depth)).logits
    level = [_Node(-1, [], 0.0, 0.0)]
    for at in range(depth):
        if at:
            rows = [node.number for node in level]
            tokens, parents = [found.tokens[i] for i in rows], [found.parents[i] for i in rows]
            logits = (yield from reader.grow(tokens, parents, ALL)).logits
        assert logits is not None
        laws = [drawn_from(row, vocab, context, node.path) for row, node in zip(logits, level, strict=True)]
        level = _below(found, level, laws, width, context.rng)
    return found


def level_draft(
    reader: DraftReader, context: Context, vocab: int, branching: Sequence[int], again: bool
) -> Generator[Request, Completed, Drawn]:
    """A tree of fixed shape: `branching` children per node and level; again: drawn with replacement, else without."""
    found = Drawn([], [], [], [])
    logits = (yield from reader.read(context.ids, ALL, size(branching))).logits
    level: list[tuple[int, list[int]]] = [(-1, [])]
    for depth, width in enumerate(branching):
        if depth:
            rows = [i for i, _ in level]
            tokens, parents = [found.tokens[i] for i in rows], [found.parents[i] for i in rows]
            logits = (yield from reader.grow(tokens, parents, ALL)).logits
        assert logits is not None
        below: list[tuple[int, list[int]]] = []
        for row, (node, path) in zip(logits, level, strict=True):
            source = drawn_from(row, vocab, context, path)
            for rank, token in enumerate(children(source, width, again, context.rng)):
                below.append((len(found.tokens), [*path, token]))
                found.tokens.append(token)
                found.parents.append(node)
                found.sources.append(source)
                found.ranks.append(rank)
        level = below
    return found


@dataclass(frozen=True)
class _Node:
    number: int
    path: list[int]
    phi: float
    perturbed: float


def _below(
    found: Drawn, level: Sequence[_Node], laws: Sequence[Probs], width: int, rng: np.random.Generator
) -> list[_Node]:
    """Add the `width` children with the largest perturbed log-probability."""
    phis = [node.phi + np.log(law.p) for node, law in zip(level, laws, strict=True)]
    values = np.concatenate([perturbed(phi, node.perturbed, rng) for phi, node in zip(phis, level, strict=True)])
    owners = np.repeat(np.arange(len(level)), [len(phi) for phi in phis])
    starts = np.cumsum([0, *(len(phi) for phi in phis)])
    best, ranks = np.argsort(-values, kind="stable")[:width], dict[int, int]()
    kept: list[_Node] = []
    for at in best.tolist():
        owner = int(owners[at])
        node, law, place = level[owner], laws[owner], at - int(starts[owner])
        token, number = int(law.ids[place]), len(found.tokens)
        kept.append(_Node(number, [*node.path, token], float(phis[owner][place]), float(values[at])))
        ranks[owner] = ranks.get(owner, -1) + 1
        found.tokens.append(token)
        found.parents.append(node.number)
        found.sources.append(law)
        found.ranks.append(ranks[owner])
    return kept


def perturbed(phi: Floats, most: float, rng: np.random.Generator) -> Floats:
    """Log-probabilities phi plus Gumbel noise, given that the largest of them is `most`."""
    noisy = phi + rng.gumbel(size=len(phi))
    with np.errstate(divide="ignore"):  # of the largest itself the logarithm is -inf
        v = most - noisy + np.log1p(-np.exp(noisy - noisy.max()))
    found: Floats = most - np.maximum(v, 0.0) - np.log1p(np.exp(-np.abs(v)))
    return found
