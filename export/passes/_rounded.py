"""Matrices whose integers a pass has chosen, in a folder that outlives an interrupted export.

A matrix is two files, written under other names first, the codes last: where they are, the matrix is whole. The
folder's name is a hash of all that the integers depend on, so that an export with other options finds nothing.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.adapter import LowRank
from edgedec.export.quantize import Bytes, Float, Format, Half, from_codes, packed_codes
from edgedec.export.weights import Kept
from edgedec.storage.files import replacing

_PARTS = ("scales", "codes")


@dataclass(frozen=True)
class Rounded:
    """codes uint8 [n, k], one a weight, and scales float16 [n, blocks], in files that begin with `path`."""

    format: Format
    block: int
    path: Path

    def rows(self, start: int, stop: int) -> tuple[Bytes, Half]:
        parts = (np.load(f"{self.path}.{part}.npy", mmap_mode="r", allow_pickle=False) for part in _PARTS)
        scales, codes = (np.array(part[start:stop]) for part in parts)
        return codes, scales

    def floats(self, start: int, stop: int) -> Float:
        """The values that the bundle will have."""
        codes, scales = self.rows(start, stop)
        return from_codes(codes, scales, self.format, self.block)

    def kept(self) -> Kept:
        """For the writer of bundles."""

        def rows(start: int, stop: int) -> tuple[Bytes, Half, None]:
            codes, scales = self.rows(start, stop)
            return packed_codes(codes, self.format, self.block), scales, None

        return Kept(self.format, self.block, rows)


class RoundedStore:
    """The rounded matrices of one export."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def inside(self, name: str) -> RoundedStore:
        """Another store, which goes when this one does."""
        return RoundedStore(self._folder / name)

    def get(self, name: str, fmt: Format, block: int) -> Rounded | None:
        """A matrix that is there already."""
        path = self._folder / f"{name}.{fmt}"
        return Rounded(fmt, block, path) if Path(f"{path}.codes.npy").is_file() else None

    def put(self, name: str, fmt: Format, block: int, codes: Bytes, scales: Half) -> Rounded:
        """Keep a matrix."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}.{fmt}"
        parts: tuple[NDArray[Any], ...] = (scales, codes)
        for part, array in zip(_PARTS, parts, strict=True):
            with replacing(Path(f"{path}.{part}.npy")) as file:
                np.save(file, array)
        return Rounded(fmt, block, path)

    def pair(self, name: str) -> LowRank | None:
        """What was kept beside a matrix by `keep`."""
        path = self._folder / f"{name}.low_rank.npz"
        if not path.is_file():
            return None
        with np.load(path, allow_pickle=False) as found:
            return LowRank(found["a"], found["b"])

    def keep(self, name: str, pair: LowRank) -> None:
        """Keep what is added to a matrix, before the matrix itself."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._folder / f"{name}.low_rank.npz") as file:
            np.savez(file, a=pair.a, b=pair.b)

    def remove(self) -> None:
        """The export is complete."""
        shutil.rmtree(self._folder, ignore_errors=True)
