"""A runtime's sampler: quicker than Python, with the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class SamplingSettings(Protocol):
    """The settings of `edgedec.sampling.Sampling` that a sampler supports."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def bias(self) -> tuple[tuple[int, float], ...]: ...


class TokenSampler(Protocol):
    """Draws the tokens of one text."""

    def read(self, ids: Sequence[int], n_prompt: int) -> None:
        """Set the text to `ids`, of which ids[n_prompt:] were generated; does nothing if its length is unchanged."""
        ...

    def accept(self, token: int) -> None:
        """Add a generated token to the text."""
        ...

    def draw(self, logits: NDArray[np.float32], path: Sequence[int], u: float) -> int:
        """The token that `edgedec.sampling` draws with the random number `u` from the logits [vocab] that follow the
        text and then `path`; -1 where that is within rounding of another one."""
        ...

    def row(self) -> NDArray[np.float32]:
        """The logits [1, vocab] of the last row that a call drew from and that was not decided."""
        ...


class Drawing:
    """A draw that a call makes after its last row, before its logits leave the engine (`Outputs.draw`). `rng` None: the
    largest is taken. Its one random number is drawn when the call runs, for the first time if it is run again."""

    __slots__ = ("_number", "_rng", "sampler")

    def __init__(self, sampler: TokenSampler, rng: np.random.Generator | None) -> None:
        self.sampler, self._rng, self._number = sampler, rng, -1.0

    @staticmethod
    def possible(rng: np.random.Generator) -> bool:
        """Whether a number of this generator can be put back."""
        return isinstance(rng.bit_generator, np.random.PCG64)

    def number(self) -> float:
        """In [0, 1)."""
        if self._number < 0:
            self._number = 0.0 if self._rng is None else self._rng.random()
        return self._number

    def take_back(self) -> None:
        """Restore `rng` to its state before the draw, after a failed call."""
        if self._rng is not None and self._number >= 0:
            self._rng.bit_generator.advance(-1)  # type: ignore[attr-defined]
        self._number = -1.0


MakeSampler = Callable[[SamplingSettings, int], TokenSampler]
