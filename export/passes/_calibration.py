"""The text that passes are calibrated on: of a file, or the model's own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.storage.files import replacing

Ids = NDArray[np.int64]
OWN = "own"
LENGTH = 256
# Fewer say too little of what a matrix reads.
LEAST = 512
_MOST, _FEWEST = 16384, 4096
# Tokens times weights that two cores take through the passes in a quarter of an hour.
_WORK = 5e12


@dataclass(frozen=True)
class CalibrationText:
    """texts: rows of tokens, each read by itself; name: of the file, or "own"; sha256: of the tokens."""

    texts: tuple[Ids, ...]
    name: str

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))

    @property
    def sha256(self) -> str:
        found = hashlib.sha256()
        for ids in self.texts:
            found.update(ids.astype("<i8").tobytes())
        return found.hexdigest()


def wanted_tokens(weights: int) -> int:
    """How many tokens a model of so many weights is calibrated on."""
    return int(min(_MOST, max(_FEWEST, _WORK / max(weights, 1))))


def of_file(path: Path, encode: Callable[[str], list[int]], tokens: int, length: int, vocab: int) -> CalibrationText:
    """The first tokens of a text file, in rows of `length`; UsageError for one that cannot be used."""
    try:
        content = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--calibrate {path}: not a readable text file ({error})") from None
    ids = np.array(encode(content[: tokens * 32])[:tokens], np.int64)
    if len(ids) < LEAST:
        raise UsageError(f"--calibrate {path}: {len(ids)} tokens; passes need {LEAST} or more, or --calibrate own")
    if ids.max() >= vocab:
        raise UsageError(f"--calibrate {path}: has tokens outside the model's vocabulary of {vocab}")
    rows = tuple(ids[at : at + length] for at in range(0, len(ids), length))
    return CalibrationText(rows if len(rows[-1]) > 1 else rows[:-1], path.name)


def kept(path: Path, make: Callable[[], tuple[Ids, ...]]) -> CalibrationText:
    """The model's own text, made once for an export that may be interrupted: the file at `path`."""
    if path.is_file():
        return CalibrationText(tuple(np.load(path, allow_pickle=False)), OWN)
    texts = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.save(file, np.stack(texts))
    return CalibrationText(texts, OWN)
