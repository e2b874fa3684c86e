"""The grids of the integer formats: which multiples of a block's scale a weight may be.

int8 is symmetric. int4 and int3 have one multiple more below zero than above, and scales of either sign, which put it
on the side of a block's largest weight. int2 has -3, -1, 1 and 3: of so few none is spent on zero. Of stories260K,
rounded by GPTQ, int2 as -2 to 1 is 5 to 9% further from the floats than that, and int3 as -7, -5, ... 7 by 7 to 17%
than -4 to 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedec.bundle.integers import Integers, stands_for_zero, step_of

Float64 = npt.NDArray[np.float64]
GREATEST_HALF = 65504.0
LEAST_SCALE = 2.0**-26  # the least float16 is 2**-24; a scale much below would be stored as zero


@dataclass(frozen=True)
class Grid:
    """A weight is (code * step - zero) * scale. low, high: the least and the greatest multiple; places: where the
    largest weight of a block is put before the scale is fitted to all of it."""

    step: int
    zero: int
    low: int
    high: int
    places: tuple[float, ...]

    def multiples(self, x: Float64) -> Float64:
        """The nearest multiples to x, which is in units of scales."""
        near = np.rint(x) if self.step == 1 else 2 * np.floor(x / 2) + 1
        found: Float64 = np.clip(near, self.low, self.high, out=near)
        return found

    def codes(self, multiples: Float64) -> npt.NDArray[np.uint8]:
        """How multiples are stored."""
        return ((multiples + self.zero) / self.step).astype(np.uint8)

    def scales(self, x: Float64, weights: Float64) -> Float64:
        """x [n, block], the weight of the error of each input [block] -> the scale of each row [n], as float16 holds
        it, that leaves the least of those tried: each place, refitted twice."""
        largest = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]
        least, best = np.full(len(x), np.inf), np.zeros(len(x))
        for place in self.places:
            scale = largest / place
            for _ in range(2):
                multiples = self.multiples(x * inverse(scale)[:, None])
                error = np.square(x - multiples * scale[:, None]) @ weights
                best, least = np.where(error < least, scale, best), np.minimum(error, least)
                scale = (x * multiples) @ weights / np.maximum(np.square(multiples) @ weights, 1e-30)
        return as_halves(best)


def inverse(scales: Float64) -> Float64:
    """1 / scale; 0 of a scale that is stored as zero."""
    return np.divide(1.0, scales, out=np.zeros_like(scales), where=np.abs(scales) >= LEAST_SCALE)


def as_halves(scales: Float64) -> Float64:
    """The scales as float16 holds them."""
    return np.clip(scales, -GREATEST_HALF, GREATEST_HALF).astype(np.float16).astype(np.float64)


def _grid(fmt: Integers, low: int, high: int, places: tuple[float, ...]) -> Grid:
    return Grid(step_of(fmt), stands_for_zero(fmt), low, high, places)


GRIDS: dict[Integers, Grid] = {
    "int8": _grid("int8", -127, 127, (127.0, 130.0, 124.0)),
    # Where int4's largest weight goes: see `quantize.py`.
    "int4": _grid("int4", -8, 7, (7.0, -7.2, -8.0, -8.8, -9.6, 7.6, 8.4)),
    "int3": _grid("int3", -4, 3, (3.0, -3.2, -3.6, -4.0, -4.4, -4.8, -5.4, 3.5, 4.0)),
    "int2": _grid("int2", -3, 3, (3.0, 3.45, 3.9, 2.7, 4.35, 4.8, 2.25)),
}
