"""A matrix of a checkpoint in fewer bits than floats: its values, and its integers where it has some."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from edgedec.bundle.integers import Integers
from edgedec.export.safetensors import Array
from edgedec.models import Part

Codes = npt.NDArray[np.uint8]
Half = npt.NDArray[np.float16]
# Rows whose scales are checked at a time.
_ROWS = 4096


@dataclass(frozen=True)
class QuantizedMatrix(ABC):
    """name: of its first tensor in the checkpoint; shape: (out, in), of stacked experts (experts, in, out); dtype: what
    to call it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    @abstractmethod
    def suggested(self) -> Literal["int4", "int8"]:
        """The bundle's format that loses nothing, or little."""

    @abstractmethod
    def floats(self, start: int, stop: int) -> Array:
        """The values of rows start to stop-1."""

    def require_readable(self, name: str) -> None:
        """Nothing to refuse: the reader checked it."""
        return None

    def values(self, name: str, first: int, shape: tuple[int, ...]) -> Array:
        """Rows from `first` on: float32 of `shape`. Scales may make a value overflow; the callers check for that."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.floats(first, first + shape[0]).reshape(shape)


@dataclass(frozen=True, eq=False)
class OwnMatrix(QuantizedMatrix):
    """A matrix whose codes and scales a bundle holds in `own`: a format, a size of blocks, or offsets that no weights
    are rounded to."""

    @property
    @abstractmethod
    def own(self) -> Integers:
        """The format."""

    @property
    def block(self) -> int:
        return 32

    @property
    def offsets(self) -> bool:
        """Whether a block has something that is added to its values."""
        return False

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether the bundle has every value as it is."""

    @abstractmethod
    def holds(self, part: Part) -> bool:
        """Whether the rows of a part are rows of codes that a bundle can hold."""

    @abstractmethod
    def stored(self, part: Part, fmt: Integers, start: int, stop: int) -> tuple[Codes, Half, Half]:
        """Rows start to stop-1 of such a part: data [n, blocks, bytes of a block], scales and offsets [n, blocks],
        these 0 if there are none. fmt: `own`, or int8 for a matrix of int4."""


@dataclass(frozen=True)
class IntegerMatrix(QuantizedMatrix):
    """Values (code - zero) * scale, with a scale and a zero point for each `group` inputs of an output, the last group
    perhaps short."""

    bits: int
    group: int

    @abstractmethod
    def codes(self, start: int, stop: int) -> Codes:
        """uint8 [stop - start, in]."""

    @abstractmethod
    def scales(self, start: int, stop: int) -> Array:
        """float32 [stop - start, groups]."""

    @abstractmethod
    def zeros(self, start: int, stop: int) -> Codes:
        """uint8 [stop - start, groups]."""

    @property
    def order(self) -> npt.NDArray[np.int64] | None:
        """The group of each input [in], if neighbours are of different ones, as GPTQ's `desc_act` makes them."""
        return None

    @property
    def suggested(self) -> Literal["int4", "int8"]:
        return "int4" if self.bits <= 4 and self.holds else "int8"

    def floats(self, start: int, stop: int) -> Array:
        groups = np.arange(self.shape[1]) // self.group if self.order is None else self.order
        values = self.codes(start, stop).astype(np.float32)
        values -= self.zeros(start, stop).astype(np.float32)[:, groups]
        values *= self.scales(start, stop)[:, groups]
        return values

    @property
    def block(self) -> int:
        """The largest block size whose blocks do not cross a group's end; 0 if there is none."""
        if self.group >= self.shape[1]:
            return 128
        return next((block for block in (128, 64, 32) if self.group % block == 0), 0)

    @cached_property
    def exact(self) -> bool:
        """Whether float16 holds every scale as it is."""
        return self._scale_error == 0

    @cached_property
    def holds(self) -> bool:
        """Whether a bundle can hold the integers, and the scales but for their rounding to float16."""
        return self.order is None and self.block > 0 and self._scale_error <= 2.0**-11

    @cached_property
    def _scale_error(self) -> float:
        """The largest relative error of a scale in float16; infinity if one is none."""
        worst = 0.0
        for start in range(0, self.shape[0], _ROWS):
            scales = self.scales(start, min(start + _ROWS, self.shape[0]))
            with np.errstate(over="ignore", invalid="ignore"):
                off = np.abs(scales.astype(np.float16).astype(np.float32) - scales) / np.where(scales, abs(scales), 1)
            worst = max(worst, float(off.max(initial=0))) if np.isfinite(off).all() else np.inf
        return worst
