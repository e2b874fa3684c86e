"""A suffix automaton that grows with its text: every substring is a path, and its state counts the occurrences.

Blumer et al. 1985, online: a token costs a few dictionary steps, amortised. A state stands for all substrings
that end at the same places; its suffix link is the longest shorter one that ends at more. `follow[s]`:
token -> next state; `length[s]`: of the longest substring; `count[s]`: how often it occurred, up to `MOST`.
"""

from __future__ import annotations

# Counts grow strictly along the links, so a walk to where they are full takes MOST steps at the very most.
MOST = 64


class Automaton:
    """`last` is the state of the whole text; state 0 is the empty string."""

    __slots__ = ("count", "follow", "last", "length", "link")

    def __init__(self) -> None:
        self.follow: list[dict[int, int]] = [{}]
        self.link: list[int] = [-1]
        self.length: list[int] = [0]
        self.count: list[int] = [MOST]
        self.last = 0

    def add(self, token: int) -> None:
        """One more token of the text."""
        follow, link, length = self.follow, self.link, self.length
        state = self.last
        new = self.last = len(follow)
        follow.append({})
        length.append(length[state] + 1)
        link.append(0)
        self.count.append(1)
        while state >= 0 and token not in follow[state]:
            follow[state][token] = new
            state = link[state]
        if state < 0:
            return
        target = follow[state][token]
        if length[state] + 1 != length[target]:
            target = self._split(state, token, target)
        link[new] = target
        self._counted(target)

    def matched(self) -> tuple[int, int]:
        """The state of the longest suffix that occurred before, and how long that is: (0, 0) if none did."""
        state = max(0, self.link[self.last])
        return state, self.length[state]

    def _split(self, state: int, token: int, target: int) -> int:
        """The shorter substrings of `target` now end at one place more than the longer: they get a state."""
        follow, link = self.follow, self.link
        twin = len(follow)
        follow.append(follow[target].copy())
        self.length.append(self.length[state] + 1)
        link.append(link[target])
        self.count.append(self.count[target])
        link[target] = twin
        while state >= 0 and follow[state].get(token) == target:
            follow[state][token] = twin
            state = link[state]
        return twin

    def _counted(self, state: int) -> None:
        """One more occurrence of this and of all its suffixes."""
        count, link = self.count, self.link
        while count[state] < MOST:
            count[state] += 1
            state = link[state]
