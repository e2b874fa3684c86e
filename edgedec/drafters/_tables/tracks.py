"""The tracks of `copy`: places that a text may follow, and the tree of their next tokens."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.drafters import Draft

RUN = 64  # agreement beyond this makes no difference
# The probability of a place's next token, by the number of tokens that agreed.
_EARLY = (0.05, 0.17, 0.38, 0.5, 0.6, 0.67, 0.72, 0.77, 0.81)
_CLAIM = [*_EARLY, *(min(0.975, 1 - 1.4 / run) for run in range(len(_EARLY), RUN + 1))]
CLAIMS = _CLAIM + [_CLAIM[-1]] * 256


@dataclass(slots=True)
class Track:
    """A place that the text may follow. at: the place of its next token; run: tokens that agreed; doubt: a factor on
    the claim for its first token; old, new: the replacement that it assumes (-1: none)."""

    at: int
    run: int
    doubt: float = 1.0
    old: int = -1
    new: int = -1


def strength(track: Track) -> float:
    return _CLAIM[min(track.run, RUN)] * track.doubt


class TrackTree:
    """A draft under construction. The first chain is added at once, the others branch off it."""

    def __init__(self, min_path_prob: float) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.claims: list[float] = []
        self.paths: list[float] = []
        self._floor = min_path_prob
        self._children: dict[tuple[int, int], int] = {}
        self._left: dict[int, float] = {}

    def begin(self, ahead: list[int], track: Track) -> None:
        claims = CLAIMS[min(track.run, RUN) :][: len(ahead)]
        claims[0] *= track.doubt
        path, min_path_prob, paths = 1.0, self._floor, self.paths
        for claim in claims:
            path *= claim
            if path < min_path_prob:
                break
            paths.append(path)
        n = len(paths)
        self.tokens, self.parents, self.claims = ahead[:n], list(range(-1, n - 1)), claims[:n]

    def extend(self, ahead: list[int], track: Track) -> None:
        parent, doubt = -1, track.doubt
        for token, claim in zip(ahead, CLAIMS[min(track.run, RUN) :], strict=False):
            parent = self.add(parent, token, claim * doubt)
            if parent < 0:
                return
            doubt = 1.0

    def add(self, parent: int, token: int, claim: float) -> int:
        """The node for `token` below `parent`, new or known; -1 if its path is less likely than the min_path_prob."""
        if not self._children:
            self._children = {key: i for i, key in enumerate(zip(self.parents, self.tokens, strict=True))}
            self._left = {above: 1.0 - p for above, p in zip(self.parents, self.claims, strict=True)}
        node = self._children.get((parent, token))
        if node is not None:
            return node
        left = self._left.get(parent, 1.0)
        claim *= left
        path = claim if parent < 0 else claim * self.paths[parent]
        if path < self._floor:
            return -1
        node = self._children[parent, token] = len(self.tokens)
        self._left[parent] = left - claim
        self.tokens.append(token)
        self.parents.append(parent)
        self.claims.append(claim)
        self.paths.append(path)
        return node

    def cut(self, nodes: int) -> Draft:
        """The `nodes` likeliest: a path is less likely than its parent's, so they are a tree."""
        if len(self.tokens) <= nodes:
            return Draft(self.tokens, self.parents, self.claims)
        paths = self.paths
        kept = sorted(sorted(range(len(paths)), key=paths.__getitem__, reverse=True)[:nodes])
        place = {node: i for i, node in enumerate(kept)}
        place[-1] = -1
        return Draft(
            [self.tokens[i] for i in kept], [place[self.parents[i]] for i in kept], [self.claims[i] for i in kept]
        )


def ahead_of(ids: list[int], at: int, most: int) -> list[int]:
    """The tokens from `at` on; at the end of the text they start over from `at`, as in a loop."""
    ahead = ids[at : at + most]
    loop = len(ahead)
    while ahead and len(ahead) < most:
        ahead += ahead[: min(loop, most - len(ahead))]
    return ahead
