"""A* over steps of a text: the partial solution of the least estimated cost is continued next; lossy.

Chatziveroglou (A*-decoding, arXiv:2505.13672). A node is a text cut after a step (a line). A scorer gives r in
[0, 1]; h = 1 - r, and

    g = the sum, over the steps so far, of max(0, r(before) - r(after))          f = g + h

The node of the least f is popped, the earlier of equals; if it has ended it is the answer, else k steps are sampled
after it and pushed. Pops, the order and h rest on the text of the paper; g follows a survey of it; k, the budget and
that the frontier is bounded are our choice. When the budget is used up, the ended node of the least f wins, else the
best node is written to its end.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.search.branch import Branch
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.options import Command, Temperature, Timeout, TopP
from edgedec.search.rolling import roll
from edgedec.search.room import Room
from edgedec.search.scoring import Scorer, needed, scored
from edgedec.search.trials import Change, at_line, sampled

FACTS = SearchFacts(operator=("command",), paper="arXiv:2505.13672", rests="text; g from a survey")


def make(
    host: SearchHost,
    k: Annotated[int, Opt("Steps that are sampled after a node.", 1, 64)] = 3,
    budget: Annotated[int, Opt("Nodes that are continued at most.", 1, 100_000)] = 16,
    frontier: Annotated[int, Opt("Nodes that wait at most; the worst are dropped.", 1, 256)] = 32,
    step: Annotated[int, Opt("Tokens of a step at most; it ends with its line.", 1, 4096)] = 64,
    temperature: Temperature = 0.8,
    top_p: TopP = 1.0,
    command: Command = "",
    timeout: Timeout = 10.0,
) -> AStar:
    scorer = needed(host, "astar", command, timeout)
    return AStar(host, scorer, k, budget, frontier, step, sampled(temperature, top_p))


@dataclass(frozen=True)
class Node:
    """g: the cost so far; h: what is estimated to come; number: in the order of their making."""

    branch: Branch
    g: float
    h: float
    number: int

    @property
    def order(self) -> tuple[float, int]:
        return self.g + self.h, self.number

    def after(self, branch: Branch, reward: float, number: int) -> Node:
        """The node of a step after this one.

        >>> Node(None, 0.1, 0.4, 0).after(None, 0.5, 1).g, Node(None, 0.1, 0.4, 0).after(None, 0.9, 1).g
        (0.2, 0.1)
        """
        return Node(branch, round(self.g + max(0.0, (1 - self.h) - reward), 12), 1 - reward, number)


class AStar:
    """popped: the texts that were continued, in order, by their lengths in tokens and f."""

    def __init__(
        self, host: SearchHost, scorer: Scorer, k: int, budget: int, frontier: int, step: int, change: Change
    ) -> None:
        self._scorer, self._k, self._budget, self._frontier, self._step = scorer, k, budget, frontier, step
        self._until, self._change, self.width = at_line(host.tokenizer), change, frontier + k
        self.popped = list[tuple[int, float]]()
        self._made = 0

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        # The empty text loses nothing: whatever its first step is worth, no reward was lost by it.
        open_nodes = [Node((yield from room.root()), 0.0, 1.0, 0)]
        for _ in range(self._budget):
            node = min(open_nodes, key=lambda one: one.order)
            self.popped.append((len(node.branch.tokens), node.order[0]))
            if node.branch.finish:
                return node.branch
            open_nodes.remove(node)
            open_nodes += yield from self._expanded(room, node, open_nodes)
            open_nodes = sorted(open_nodes, key=lambda one: one.order)[: self._frontier]
            room.keep(one.branch for one in open_nodes)
        return (yield from self._completed(room, open_nodes))

    def _expanded(self, room: Room, node: Node, others: Sequence[Node]) -> Generator[Any, Any, list[Node]]:
        """The k nodes after one, without dead ends. others: those that are open beside it."""
        steps = room.spread(node.branch, self._k)
        room.keep([*steps, *(one.branch for one in others)])
        yield from roll(room, steps, most=self._step, until=self._until, change=self._change, spare=bool(others))
        alive = [branch for branch in steps if branch.finish != "dead"]
        scores = yield from scored(room, alive, self._scorer)
        found = list[Node]()
        for branch, score in zip(alive, scores, strict=True):
            if not 0 <= score.value <= 1:
                raise UsageError(f"--search astar: the scorer gave {score.value:g}; must be from 0 to 1")
            self._made += 1
            found.append(node.after(branch, score.value, self._made))
        return found

    def _completed(self, room: Room, nodes: list[Node]) -> Generator[Any, Any, Branch]:
        ended = [one for one in nodes if one.branch.finish]
        best = min(ended or nodes, key=lambda one: one.order)
        if not ended:
            yield from roll(room, [best.branch], change=self._change)
        return best.branch
