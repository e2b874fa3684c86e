"""Constraints: what the next token may be. The loop asks at every node of a draft tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """A set of allowed continuations, following the generated tokens."""

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """bool [vocab]: what may follow the accepted tokens and then `path` (drafted, not accepted)."""
        ...

    def accept(self, token: int) -> None:
        """`token` was generated."""
        ...
