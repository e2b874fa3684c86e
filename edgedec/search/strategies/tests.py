"""Planning by tests: Monte Carlo tree search over tokens, in which a greedily completed program is worth the share of
tests that it passes; lossy, and runs programs.

PG-TD (Zhang et al., arXiv:2303.05510), by the authors' code as others quote it: P-UCB chooses
(`edgedec.search.tree`), a leaf gets its `children` likeliest tokens, a rollout is greedy, values are maxima. Rollouts
of known texts are not run again, nor tests of known programs; cache=false changes the work, not the text. That the
first program which passes everything ends the search is our choice. Tests run in the sandbox (`edgedec.sandbox`):
limited in time and memory, without writing files; it is no protection against reading them.
"""

from __future__ import annotations

from collections.abc import Generator
from math import exp
from typing import Annotated, Any

from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.search.branch import Branch
from edgedec.search.extending import extend
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.rolling import roll
from edgedec.search.room import Room
from edgedec.search.scoring import Scorer, scored, scorer_of
from edgedec.search.testing import ByTests, read_tests
from edgedec.search.tree import Completions, TreeNode
from edgedec.search.trials import greedy

FACTS = SearchFacts(operator=("file", "command"), code=True, paper="arXiv:2303.05510", rests="authors' code, as quoted")


def make(
    host: SearchHost,
    file: Annotated[str, Opt("Tests: a statement of Python a line, as assert f(2) == 4.")] = "",
    rollouts: Annotated[int, Opt("Programs that are completed at most.", 1, 10_000)] = 32,
    children: Annotated[int, Opt("Next tokens of a node that are considered.", 1, 64)] = 3,
    whole: Annotated[bool, Opt("The program is the prompt and the text, not the text alone.")] = True,
    seconds: Annotated[float, Opt("Processor time of a program and its tests.", above=0, high=600)] = 2.0,
    cache: Annotated[bool, Opt("Keep what rollouts found.")] = True,
    command: Annotated[str, Opt("In place of a file: a program that scores texts, as of best.")] = "",
    timeout: Annotated[float, Opt("Seconds that the command may take for a text.", above=0, high=3600)] = 10.0,
) -> PlanByTests:
    scorer: Scorer
    if file:
        scorer = ByTests(read_tests(file), seconds, whole)
    else:
        scorer = scorer_of(host, "", command, timeout)
        if not scorer.asks:
            raise UsageError("--search tests: needs tests: file=…, or a scorer: command=…, scorer= in Python")
    return PlanByTests(scorer, rollouts, children, cache)


class PlanByTests:
    """completed: rollouts that ran; a known one costs nothing."""

    def __init__(self, scorer: Scorer, rollouts: int, children: int, cache: bool) -> None:
        self._scorer, self._rollouts, self._children, self._cache = scorer, rollouts, children, cache
        self.width, self.completed = rollouts + 2, 0
        self._known, self._rewards = Completions(), dict[tuple[int, ...], float]()

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        root = TreeNode((yield from room.root()))
        nodes, best = [root.branch], None
        for _ in range(self._rollouts):
            path = _selected(root)
            leaf = path[-1]
            if not leaf.branch.finish:
                yield from self._expand(room, leaf, nodes)
            program = yield from self._rollout(room, leaf)
            dead = program.finish == "dead"
            reward = 0.0 if dead else (yield from self._reward(room, program))
            for node in path:
                node.visit(reward)
            if not dead and (best is None or reward > best.value):
                best = program
                best.value = reward
            room.keep([*nodes, *([] if best is None else [best])])
            if reward >= 1:
                break
        if best is None:
            raise UsageError("--search tests: no program was found: nothing that the constraint allows may follow")
        return best

    def _expand(self, room: Room, leaf: TreeNode, nodes: list[Branch]) -> Generator[Any, Any, None]:
        """Give a leaf its likeliest next tokens as children."""
        (nexts,) = yield from extend(room, [leaf.branch], self._children)
        leaf.children = []
        if len(leaf.branch.tokens) >= room.most:
            return
        for token, logp in zip(nexts.ids, nexts.logps, strict=True):
            child = room.fork(leaf.branch)
            child.push(nexts.token(token, room.config.logprobs), logp)
            if not child.finish and len(child.tokens) >= room.most:
                child.finish = room.limit
            leaf.children.append(TreeNode(child, exp(logp)))
            nodes.append(child)

    def _rollout(self, room: Room, leaf: TreeNode) -> Generator[Any, Any, Branch]:
        """The program that greedy decoding makes of a leaf."""
        if leaf.branch.finish:
            return leaf.branch
        known = self._known.of(list(map(int, leaf.branch.tokens))) if self._cache else None
        if known is not None:
            return known
        program = room.fork(leaf.branch)
        yield from roll(room, [program], change=greedy, spare=True)
        self.completed += 1
        self._known.add(len(leaf.branch.tokens), program)
        return program

    def _reward(self, room: Room, program: Branch) -> Generator[Any, Any, float]:
        key = tuple(map(int, program.tokens))
        if not self._cache or key not in self._rewards:
            (score,) = yield from scored(room, [program], self._scorer)
            self._rewards[key] = score.value
        return self._rewards[key]


def _selected(root: TreeNode) -> list[TreeNode]:
    """The path to the leaf that is visited next."""
    path = [root]
    while path[-1].children:
        path.append(path[-1].chosen())
    return path
