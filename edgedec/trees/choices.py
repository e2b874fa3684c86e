"""Fixed draft trees: paths of ranks, read from a file or learned from what was accepted.

    [[0], [0, 0], [1]]    the likeliest token, the likeliest after it, and the second likeliest beside it

Medusa chose such trees by the accuracy of its heads. STAND runs a large tree on sample texts, counts how often each
path was accepted, and keeps the most frequent ones: a path is accepted no more often than the path before it, so the
best n paths form a tree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from edgedec.decoding.draft import Draft
from edgedec.errors import UsageError

S = TypeVar("S")
Ranks = tuple[int, ...]


def read_choices(path: Path, drafter: str) -> tuple[Ranks, ...]:
    """The paths of a fixed tree in the file's order; UsageError if they are not a tree."""
    where = f"drafter {drafter}: choices={path}"
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{where}: cannot be read ({error})") from None
    if not isinstance(found, list) or not all(
        isinstance(p, list) and p and all(type(i) is int for i in p) for p in found
    ):
        raise UsageError(f"{where}: expected a list of paths such as [[0], [0, 0], [1]]")
    paths = dict.fromkeys(tuple(p) for p in found)
    if any(len(p) > 1 and p[:-1] not in paths for p in paths) or any(i < 0 for p in paths for i in p):
        raise UsageError(f"{where}: a path without the path before it")
    return tuple(dict.fromkeys(p[:n] for p in paths for n in range(1, len(p) + 1)))


def accepted_ranks(parents: Sequence[int], path: Sequence[int]) -> Iterator[Ranks]:
    """The path of ranks to each accepted node. parents: of a draft's nodes, -1 for the root's children; path: the
    accepted nodes, from the root on. A node's rank is its place among its siblings.

    parents -1 -1 1 1, path 1 3 -> (1,), (1, 1)
    """
    ranks: Ranks = ()
    for node in path:
        ranks += (sum(parent == parents[node] for parent in parents[:node]),)
        yield ranks


def best_choices(accepted: Mapping[Ranks, float], nodes: int) -> list[Ranks]:
    """The `nodes` paths that were accepted most often, the best first; of equal ones the shorter and lower first."""
    return sorted(accepted, key=lambda path: (-accepted[path], len(path), path))[:nodes]


class Followers(Protocol):
    """What may follow a node, in the order of its rank, and the claim of each."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def claims(self) -> Sequence[float]: ...


F = TypeVar("F", bound=Followers)


def chosen_nodes(
    choices: Sequence[Ranks],
    root: S,
    followers: Callable[[int, S], F | None],
    advance: Callable[[S, int], S],
    nodes: int,
) -> list[tuple[int, F, int]]:
    """The nodes of these paths as (parent, the parent's followers, rank), as far as there are tokens of such ranks.

    followers(node, state): what may follow a node, -1: the root; advance(state, token): the state after a token.
    """
    place: dict[Ranks, tuple[int, S]] = {(): (-1, root)}
    opened: dict[Ranks, F | None] = {}
    found: list[tuple[int, F, int]] = []
    for path in choices:
        above, rank = path[:-1], path[-1]
        if len(found) >= nodes:
            break
        if above not in place:
            continue
        parent, state = place[above]
        if above not in opened:
            opened[above] = followers(parent, state)
        if (among := opened[above]) is not None and rank < len(among.tokens) and among.claims[rank] > 0:
            place[path] = len(found), advance(state, among.tokens[rank])
            found.append((parent, among, rank))
    return found


def chosen_draft(found: Sequence[tuple[int, Followers, int]]) -> Draft:
    """The draft of these nodes."""
    return Draft(
        [among.tokens[rank] for _, among, rank in found],
        [parent for parent, _, _ in found],
        [among.claims[rank] for _, among, rank in found],
    )
