"""The rows of a text that are images', by their positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import SessionError, UsageError

_STATE = "images"
Marks = tuple[tuple[int, int], ...]


def marked(name: str, marks: Marks, start: int, stop: int) -> Marks:
    """The marks, and the rows at positions from `start` to before `stop`; name: of the policy."""
    if not 0 <= start < stop:
        raise UsageError(f"--cache {name}: image rows {start} to {stop}: needs at least one row")
    return (*marks, (start, stop))


def of_images(marks: Marks, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the row at each of these positions is an image's."""
    found = np.zeros(len(positions), bool)
    for start, stop in marks:
        found |= (positions >= start) & (positions < stop)
    return found


def marks_state(marks: Marks) -> dict[str, NDArray[Any]]:
    """The marks as a policy's state."""
    return {_STATE: np.array(marks, np.int64).reshape(-1, 2)} if marks else {}


def restored_marks(name: str, state: Mapping[str, NDArray[Any]]) -> tuple[Marks, dict[str, NDArray[Any]]]:
    """The marks of a state, and the rest of the state; SessionError if they are not of policy `name`."""
    found = state.get(_STATE, np.zeros((0, 2), np.int64))
    good = found.ndim == 2 and found.shape[1] == 2 and found.dtype == np.int64
    if not good or not ((found[:, 0] >= 0) & (found[:, 0] < found[:, 1])).all():
        raise SessionError(f"{_STATE}: the saved state is not of cache policy {name}")
    return tuple((int(start), int(stop)) for start, stop in found), {k: v for k, v in state.items() if k != _STATE}


def check_images(name: str, images: bool) -> None:
    """UsageError if texts of the model have no rows of images."""
    if not images:
        raise UsageError(
            f"--cache {name}: this model reads no images, so a text has no rows of them; for text use another policy, "
            "such as snapkv"
        )
