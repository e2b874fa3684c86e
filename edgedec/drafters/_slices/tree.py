"""A tree drafted level by level with a slice of the stack: one call per level.

    root ── 5 ── 8 ── 2        the likeliest token of each place, and where the slice is unsure the next ones
       └─── 7 ── 1             a level's tokens share a call; what no path needs further is not continued

With a width of 1 it is a chain. The last level runs through the shared blocks only: no guess follows it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request
from edgedec.drafters import Draft
from edgedec.drafters._slices.stack import Guesses, Record, Slice, SliceCalls, longer
from edgedec.runtime import Hidden, Rows
from edgedec.trees.calibration import Calibration, kind_of

_CAUTION = 0.9
_AS_CLAIMED = tuple(Calibration().estimates.tolist())


@dataclass(frozen=True)
class Limits:
    """length: levels; nodes: the most tokens; width: tokens of a level. A token is drafted if its path has at least the
    probability `leaf` and the first guess of its row at least `threshold`; another level is drafted if the paths of the
    last one have at least the total probability `least`. first, side: the acceptance rates of first and other guesses,
    by kind of claim."""

    length: int
    nodes: int
    least: float
    leaf: float
    width: int = 1
    threshold: float = 0.0
    first: Sequence[float] = _AS_CLAIMED
    side: Sequence[float] = _AS_CLAIMED


@dataclass
class Tree:
    """Tokens with parents (-1: the root), the claim and the path probability of each; `guessed`: the guesses after each
    node (-1: the root), drafted or not."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    paths: list[float] = field(default_factory=list)
    guessed: dict[int, Guesses] = field(default_factory=dict)

    def grow(self, nodes: Sequence[int], limits: Limits) -> list[int]:
        """The next level, below these nodes: the likeliest of their guesses; -> the new nodes' parents."""
        found: list[tuple[float, int, int, float]] = []
        for node in nodes:
            above = self.paths[node] if node >= 0 else 1.0
            guesses = self.guessed[node]
            if guesses[0][1] < limits.threshold:
                continue
            for place, (token, sure) in enumerate(guesses[: limits.width]):
                path = above * (limits.side if place else limits.first)[kind_of(sure)]
                if token >= 0 and path >= limits.leaf:
                    found.append((path, node, token, sure))
        found = sorted(found, key=lambda guess: -guess[0])[: max(0, min(limits.width, limits.nodes - len(self.tokens)))]
        for path, node, token, sure in found:
            self.tokens.append(token)
            self.parents.append(node)
            self.claims.append(sure)
            self.paths.append(path)
        return [guess[1] for guess in found]

    def walk(self, picked: Sequence[int]) -> Generator[tuple[int, int]]:
        """The nodes on the accepted path, the root (-1) first, each with the token that followed it."""
        below = {key: node for node, key in enumerate(zip(self.parents, self.tokens, strict=True))}
        node = -1
        for token in picked:
            yield node, token
            node = below.get((node, token), -2)
            if node < -1:
                return


def draft_tree(
    context: Context, calls: SliceCalls, part: Slice, limits: Limits, n_blocks: int, done: float = 0.0
) -> Generator[Request, Completed, tuple[Draft, Tree]]:
    """The draft, ready to be continued after the shared blocks, and the tree with all guesses. done: the share of a
    call that the shared blocks are."""
    rows, tree = Rows.chain(context.pending(), context.cache.length), Tree()
    root, states, level = len(rows) - 1, list[Hidden](), [-1]
    for depth in range(limits.length + 1):
        if depth == limits.length or (depth and sum(tree.paths[node] for node in level) < limits.least):
            states.append((yield from calls.shared(rows)))
            break
        hidden, found = yield from calls.guess(rows, len(level))
        states.append(hidden)
        tree.guessed |= dict(zip(level, found, strict=True))
        done = len(tree.tokens)
        parents = tree.grow(level, limits)
        if not parents:
            break
        rows = _longer(rows, tree.tokens[done:], [root + 1 + parent for parent in parents])
        level = list(range(done, len(tree.tokens)))
    draft = Draft(
        tuple(tree.tokens),
        tuple(tree.parents),
        tuple(tree.claims),
        range(len(part.shared), n_blocks),
        np.concatenate(states),
        done=done,
    )
    return draft, tree


def _longer(rows: Rows, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
    """The rows with a level more; a chain stays one."""
    if len(tokens) == 1 and rows.is_chain and parents[0] == len(rows) - 1:
        return longer(rows, tokens[0])
    return rows.extend(tokens, parents)


def least_path(level: float, pace: float, rate: float) -> float:
    """The least total probability of a level's paths for another level: it must give as many tokens for its time as
    drafts do on average, and more at low acceptance, since its rows make the next calls longer.

    level: its cost in plain calls; pace: tokens of drafts in the time of a plain call; rate: the acceptance rate. level
    0.2, pace 1.5, rate 0.6 -> 0.68"""
    return level * pace * (1.0 + _CAUTION * (1.0 - rate)) / rate


class Trusts:
    """The acceptance rates of first and other guesses, by their claims; `record`: of any guess of a place; `deeper`: of
    places after the first."""

    def __init__(self) -> None:
        self.first, self.side, self.record, self.deeper = Calibration(), Calibration(), Record(), Record()

    def observe(self, tree: Tree, picked: Sequence[int], width: int) -> None:
        """Add every guess whose parent was accepted."""
        for node, token in tree.walk(picked):
            guesses = tree.guessed.get(node, ())[:width]
            for place, (guess, sure) in enumerate(guesses):
                (self.side if place else self.first).add(kind_of(sure), guess == token)
            for record in (self.record, self.deeper)[: 1 + (node >= 0)] if guesses else ():
                record.add(token in [guess for guess, _ in guesses], min(1.0, sum(sure for _, sure in guesses)))
