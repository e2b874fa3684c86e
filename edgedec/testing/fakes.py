"""Fakes for tests: a runtime, drafters that are right or random, a constraint from a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import BaseDrafter, Draft, Drafter, Proposal
from edgedec.testing.fake_runtime import FakeRuntime, random_reference, tiny_layer, tiny_spec

__all__ = [
    "FakeRuntime",
    "Limited",
    "PerfectDrafter",
    "RandomDrafter",
    "SetConstraint",
    "random_reference",
    "tiny_layer",
    "tiny_spec",
]


class PerfectDrafter(BaseDrafter):
    """Holds the whole text, prompt included, and drafts the next tokens of it.

    With `decoys`, every right token comes after that many wrong siblings, so that accepted rows are not neighbours
    and have to be moved in the cache.
    """

    def __init__(self, tokens: Sequence[int], decoys: int = 0, vocab: int = 13) -> None:
        self.tokens, self.decoys, self.vocab = list(tokens), decoys, vocab
        self.observed: list[int] = []
        self.resets = 0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        ids = context.ids
        coming = self.tokens[len(ids) :] if list(ids) == self.tokens[: len(ids)] else []
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in coming[: nodes // (self.decoys + 1)]:
            tokens += [(token + 1 + i) % self.vocab for i in range(self.decoys)] + [token]
            parents += [parent] * (self.decoys + 1)
            parent = len(tokens) - 1
        return Draft(tuple(tokens), tuple(parents))

    def observe(self, step: StepResult) -> None:
        self.observed.append(len(step.path) - 1)

    def reset(self) -> None:
        self.resets += 1


class RandomDrafter(BaseDrafter):
    """Random trees of up to `nodes` tokens, twin siblings included."""

    def __init__(self, seed: int, vocab: int = 13) -> None:
        self._rng, self.vocab = np.random.default_rng(seed), vocab

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        n = int(self._rng.integers(0, nodes + 1))
        tokens = self._rng.integers(0, self.vocab, n).tolist()
        return Draft(tuple(tokens), tuple(int(self._rng.integers(-1, i)) for i in range(n)))


Followers = Callable[[int], Collection[int]] | Mapping[int, Collection[int]]


class SetConstraint:
    """Which tokens may follow which: a function or table last token -> allowed; -1 is the beginning.

    `accepted` holds what was generated, `asked` the paths that `mask` was called with.
    """

    done = False

    def __init__(self, followers: Followers, vocab: int = 13) -> None:
        self._followers = followers.__getitem__ if isinstance(followers, Mapping) else followers
        self._vocab = vocab
        self.accepted: list[int] = []
        self.asked: list[list[int]] = []

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        self.asked.append(list(path))
        last = [-1, *self.accepted, *path][-1]
        allowed = np.zeros(self._vocab, bool)
        allowed[list(self._followers(last))] = True
        return allowed

    def accept(self, token: int) -> None:
        self.accepted.append(int(token))

    def forced(self) -> Sequence[int]:
        return ()

    def reset(self) -> None:
        self.accepted.clear()

    def fork(self) -> SetConstraint:
        twin = SetConstraint(self._followers, self._vocab)
        twin.accepted = list(self.accepted)
        return twin


class Limited(BaseDrafter):
    """Another drafter, at most so many tokens of it."""

    def __init__(self, drafter: Drafter, nodes: int) -> None:
        self.drafter, self.nodes, self.outputs = drafter, nodes, drafter.outputs

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        return self.drafter.propose(context, min(nodes, self.nodes), min_path_prob)

    def observe(self, step: StepResult) -> None:
        self.drafter.observe(step)

    def reset(self) -> None:
        self.drafter.reset()
