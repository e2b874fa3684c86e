"""The distributions of a generation whose settings need all logits, the place in the text, or what was drawn before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.decoding.context import Context
from edgedec.sampling import Logits, Probs, Sampling
from edgedec.sampling.ordered import Candidates, Chance, apply_cuts, candidates, ordered_distribution, temperature
from edgedec.sampling.steering import Shaped, State, after, shape, start

_MASK = 2**64 - 1


class Shaping:
    """Distributions after the text and after drafted tokens. The state of the text is advanced by `accept`; that of a
    path follows from the distributions along it, which are computed first."""

    def __init__(self, sampling: Sampling, context: Context) -> None:
        self._sampling, self._context = sampling, context
        self._state = start(sampling) if sampling.steers else State(0.0)
        self._shaped = dict[tuple[int, ...], Shaped]()

    def distribution(self, scores: Logits, path: Sequence[int]) -> Probs:
        """Of the token after the text and then `path`, from scores [vocab]."""
        sampling, place = self._sampling, len(self._context.ids) + len(path)

        def chance() -> float:
            return chance_at(self._context.rng, place)

        if not sampling.steers or sampling.temperature == 0:
            return ordered_distribution(scores, sampling, chance)
        found = self._candidates(scores, chance)
        shaped = shape(found, self._state_after(tuple(path)), sampling, len(scores))
        self._shaped[tuple(path)] = shaped
        return shaped.probs

    def _candidates(self, scores: Logits, chance: Chance) -> Candidates:
        """Mirostat takes the place of the cuts."""
        if self._sampling.mirostat:
            return temperature(candidates(scores), self._sampling, chance)
        return apply_cuts(candidates(scores), self._sampling, chance)

    def _state_after(self, path: tuple[int, ...]) -> State:
        state = self._state
        for n, token in enumerate(path):
            state = after(state, self._shaped[path[:n]], token, self._sampling)
        return state

    def accept(self, token: int) -> None:
        """Note that `token` was generated and is in the text."""
        if not self._sampling.steers:
            return
        if (shaped := self._shaped.get(())) is not None:
            self._state = after(self._state, shaped, token, self._sampling)
        self._shaped = {path[1:]: seen for path, seen in self._shaped.items() if path[:1] == (token,)}


def chance_at(rng: np.random.Generator, place: int) -> float:
    """A number in [0, 1) for a place in a text: the same at any drafted or repeated computation of it, and in forks.
    It takes none of the generator's own numbers, of which each token has one."""
    state = rng.bit_generator.state["state"]
    x = (int(state.get("inc", 0)) + 0x9E3779B97F4A7C15 * (place + 1)) & _MASK if isinstance(state, dict) else place
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return ((x ^ (x >> 31)) >> 11) / 2**53
