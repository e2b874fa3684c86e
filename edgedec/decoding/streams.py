"""Random generators of the forks of one text, by the path of fork numbers.

`Context.fork` copies the random state, so that a copy continues as the original would; sampled forks of a search would
then all write the same text. Here a fork's generator follows from the state that the text had, and from its path: fork
2 of fork 1 is (1, 2). The text itself, path (), goes on with its own generator: the first of several texts is the one
that plain decoding gives.
"""

from __future__ import annotations

import numpy as np


class RandomStreams:
    """The generators of the forks of a text with the generator `rng`, which is not advanced."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._entropy: list[int] = copied(rng).integers(0, 1 << 32, 4).tolist()

    def of(self, path: tuple[int, ...]) -> np.random.Generator:
        """The generator of the fork with this path."""
        return np.random.default_rng(np.random.SeedSequence(self._entropy, spawn_key=path))


def copied(rng: np.random.Generator) -> np.random.Generator:
    """Another generator in the same state."""
    twin = np.random.default_rng()
    twin.bit_generator.state = rng.bit_generator.state
    return twin
