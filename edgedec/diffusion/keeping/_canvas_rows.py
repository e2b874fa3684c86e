"""Rows of a canvas in which every row sees every other, some of which are cached."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.seams import PassPlan
from edgedec.errors import RuntimeUnavailable
from edgedec.runtime import Rows


def canvas_plan(
    host: DiffusionHost, canvas: Canvas, run: Sequence[int], keep: NDArray[np.bool_] | None = None
) -> PassPlan:
    """A pass over the positions `run`, ascending; keep: which of them the cache keeps."""
    if len(run) > (most := host.capabilities.largest_call):
        raise RuntimeUnavailable(f"diffusion: a canvas of {len(run)} tokens is one call, and this engine takes {most}")
    positions, shift = np.array(run, np.int64), int(host.facts.shift)
    tokens = np.array([canvas.tokens[i] for i in run], np.int64)
    group = np.zeros(len(run), np.int64)
    rows = Rows(tokens, positions, np.arange(-1, len(run) - 1), groups=group)
    wanted = [i + shift if canvas.awaited(i + shift) else -1 for i in run]
    first = next((at for at, p in enumerate(wanted) if p >= 0), len(run) - 1)
    return PassPlan(rows, () if keep is None else np.flatnonzero(keep).tolist(), first, tuple(wanted[first:]))
