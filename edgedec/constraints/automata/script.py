"""Texts of parts that follow each other, where what a part was decides what may come next: names of a graph, spans.

A script has plans: what was chosen so far. A plan has a part, an automaton over bytes whose ends are choices, and each
choice leads to the next plan; a plan without a part is the end of the text. As one part's text may be the beginning of
another's, a state is the set of all threads (plan, place in its part) that the text so far can be.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from edgedec.constraints.automata.following import Mask, StateConstraint
from edgedec.constraints.automata.tokens import TokenTree

Plan = Hashable
Place = Hashable


class ScriptPart(Protocol):
    """An automaton over bytes. Its places are hashable; `first` is its beginning."""

    first: Any

    def edges(self, place: Any) -> Mapping[int, Any]:
        """The next places, by byte."""
        ...

    def ends(self, place: Any) -> Iterable[Hashable]:
        """The choices that the text of the place is, none if it must go on."""
        ...


class OneOf:
    """One of several texts, each a choice: a tree of bytes."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._edges: list[dict[int, int]] = [{}]
        self._ends: dict[int, tuple[str, ...]] = {}
        self.first = 0
        for text in texts:
            place = 0
            for byte in text.encode():
                if byte not in self._edges[place]:
                    self._edges[place][byte] = len(self._edges)
                    self._edges.append({})
                place = self._edges[place][byte]
            self._ends[place] = (text,)

    def edges(self, place: int) -> Mapping[int, int]:
        return self._edges[place]

    def ends(self, place: int) -> tuple[str, ...]:
        return self._ends.get(place, ())


class Script(Protocol):
    """What may come, by plan."""

    first: Any

    def part(self, plan: Any) -> ScriptPart | None:
        """What comes at a plan; None: the end."""
        ...

    def then(self, plan: Any, choice: Any) -> Iterable[Plan]:
        """The plans after a choice."""
        ...


class Thread(NamedTuple):
    plan: Plan
    place: Place


State = frozenset[Thread]


class ScriptConstraint(StateConstraint[State]):
    """A `Constraint` by a script."""

    def __init__(self, what: str, script: Script, tokens: TokenTree) -> None:
        self._script = script
        self._edges = lru_cache(1 << 16)(self._find_edges)
        super().__init__(what, tokens, self._closed(self._begun(script.first)))
        self.mask(())  # found before the text begins: the first is the widest

    def after(self, state: State, text: bytes) -> State | None:
        for byte in text:
            following = self._edges(state).get(byte)
            if following is None:
                return None
            state = following
        return state

    def may_follow(self, state: State, found: Mask) -> None:
        """Walks the tokens' tree and the automaton together, along those bytes that both have."""
        order, left = self._tokens.order, [(self._tokens.root, state)]
        while left:
            node, state = left.pop()
            if node.own:
                found[order[node.low : node.low + node.own]] = True
            children, edges = node.children(), self._edges(state)
            few, many = (edges, children) if len(edges) < len(children) else (children, edges)
            left += [(children[byte], edges[byte]) for byte in few if byte in many]

    def complete(self, state: State) -> bool:
        return any(self._script.part(thread.plan) is None for thread in state)

    def _begun(self, plan: Plan) -> Thread:
        part = self._script.part(plan)
        return Thread(plan, None if part is None else part.first)

    def _closed(self, *threads: Thread) -> State:
        """The threads, and those that begin where they end."""
        found, left = set[Thread](), list(threads)
        while left:
            thread = left.pop()
            if thread not in found:
                found.add(thread)
                part = self._script.part(thread.plan)
                ends = () if part is None else part.ends(thread.place)
                left += [self._begun(plan) for choice in ends for plan in self._script.then(thread.plan, choice)]
        return frozenset(found)

    def _find_edges(self, state: State) -> Mapping[int, State]:
        by_byte: dict[int, list[Thread]] = {}
        for plan, place in state:
            part = self._script.part(plan)
            if part is not None:
                for byte, following in part.edges(place).items():
                    by_byte.setdefault(byte, []).append(Thread(plan, following))
        return {byte: self._closed(*threads) for byte, threads in by_byte.items()}
