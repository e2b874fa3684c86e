"""Reads the metadata of a GGUF file key by key, and refuses what is missing or of another type."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from edgedec.errors import CheckpointError
from edgedec.export.gguf.file import GgufFile

REQUIRED: Any = object()
MOST = 1 << 24


@dataclass(frozen=True)
class GgufFacts:
    """The metadata under the prefix of the architecture: `whole("block_count")` is that of llama.block_count."""

    file: GgufFile

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    def fail(self, key: str, why: str) -> CheckpointError:
        return CheckpointError(f"{self.file.path}: metadata {key} {why}")

    def text(self, key: str, default: str = REQUIRED) -> str:
        """A string under its full name."""
        found = self.file.metadata.get(key, default)
        if found is REQUIRED:
            raise self.fail(key, "is missing")
        if not isinstance(found, str):
            raise self.fail(key, f"must be a string, found {found!r:.40}")
        return found

    def name(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def has(self, key: str) -> bool:
        return self.name(key) in self.file.metadata

    def whole(self, key: str, default: int = REQUIRED, least: int = 0, most: int = MOST) -> int:
        """A whole number; an array of one number for every layer must have equal ones, zeros apart."""
        found = self._value(key, default)
        if isinstance(found, np.ndarray):
            values = set(found.tolist()) - {0}
            if len(values) != 1:
                raise self.fail(self.name(key), f"differs from layer to layer, which is not supported: {found}"[:200])
            found = values.pop()
        if type(found) is not int or not least <= found <= most:
            raise self.fail(self.name(key), f"must be a whole number from {least} to {most}, found {found!r:.40}")
        return found

    def number(self, key: str, default: float = REQUIRED) -> float:
        found = self._value(key, default)
        if type(found) not in (int, float) or not isfinite(found):
            raise self.fail(self.name(key), f"must be a number, found {found!r:.40}")
        return float(found)

    def flag(self, key: str, default: bool) -> bool:
        found = self._value(key, default)
        if type(found) is not bool:
            raise self.fail(self.name(key), f"must be true or false, found {found!r:.40}")
        return found

    def each(self, key: str, n: int) -> list[int]:
        """A number for each of n layers."""
        found = self._value(key, REQUIRED)
        values = found.tolist() if isinstance(found, np.ndarray) else [found] * n
        if len(values) != n or not all(type(value) in (int, bool) for value in values):
            raise self.fail(self.name(key), f"must give a whole number for each of {n} layers, found {found!r:.60}")
        return values

    def numbers(self, key: str, n: int) -> list[float]:
        """A number for each of n layers, under its full name."""
        found = self.file.metadata.get(key)
        values = np.asarray(found if isinstance(found, np.ndarray) else [], np.float64)
        if values.shape != (n,) or not np.isfinite(values).all():
            raise self.fail(key, f"must give a number for each of {n} layers, found {found!r:.60}")
        return [float(value) for value in values]

    def _value(self, key: str, default: Any) -> Any:
        found = self.file.metadata.get(self.name(key), default)
        if found is REQUIRED:
            raise self.fail(self.name(key), "is missing")
        return found
