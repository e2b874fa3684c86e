"""A runtime's own way to draw tokens from logits: quicker than Python, and never another token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class SamplingSettings(Protocol):
    """What of `edgedec.sampling.Sampling` a sampler knows."""

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
        """The text is `ids`, of which ids[n_prompt:] were generated; nothing to do if it is so long already."""
        ...

    def accept(self, token: int) -> None:
        """One more token of the text was generated."""
        ...

    def draw(self, logits: NDArray[np.float32], path: Sequence[int], u: float) -> int:
        """The token that `edgedec.sampling` draws with the random number `u` from the logits [vocab] that follow the
        text and then `path`; -1 where that is within rounding of another one."""
        ...


MakeSampler = Callable[[SamplingSettings, int], TokenSampler]
