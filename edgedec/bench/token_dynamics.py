"""Where Mamba's layers drive tokens to: apart, or to one point (Vo, Pham, Tong and Nguyen, "Demystifying the Token
Dynamics of Deep Selective State Space Models", arXiv:2410.03292).

A layer's rows follow dx/dt ~ (S_C^T S_B) x in the limit of many layers, where B = S_B x and C = S_C x are made of the
convolved input: eigenvalues above zero drive tokens apart, which the authors find to be good, those below zero drive
them to zero. Of a matrix of rank at most `state_size` the other eigenvalues are zero, and those left are the ones of
S_B S_C^T [state_size, state_size]. From the authors' code: the signs as the test, layer by layer. Our own choice: of
complex eigenvalues the real part; nothing above or below a millionth of the largest counts as zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.spec import S6

_ZERO = 1e-6


class Dynamics(NamedTuple):
    """Of one layer: the directions that drive tokens apart, and those that drive them together."""

    apart: int
    together: int

    @property
    def regime(self) -> str:
        if not self.together:
            return "divergent"
        return "mixed" if self.apart else "convergent"


def dynamics(s_b: NDArray[Any], s_c: NDArray[Any]) -> Dynamics:
    """Signs of the eigenvalues of S_C^T S_B; both [state_size, inner].

    >>> dynamics(np.array([[2.0, 0.0]]), np.array([[3.0, 5.0]]))
    Dynamics(apart=1, together=0)
    """
    found = np.linalg.eigvals(s_b.astype(np.float64) @ s_c.T.astype(np.float64))
    real, least = found.real, _ZERO * max(float(np.abs(found).max()), 1e-300)
    return Dynamics(int((real > least).sum()), int((real < -least).sum()))


def of_bundle(bundle: Bundle) -> dict[int, Dynamics]:
    """Of every Mamba-1 block by its number; none if the model has no such blocks."""
    found = dict[int, Dynamics]()
    for b, block in enumerate(bundle.spec.blocks):
        if isinstance(block, S6):
            rank, size = block.dt_rank, block.state_size
            parts = bundle.rows(f"blocks.{b}.x_proj", rank, block.parts)
            found[b] = dynamics(parts[:size], parts[size:])
    return found
