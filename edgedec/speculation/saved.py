"""What drafters learned, in a file for later sessions of the same bundle and drafters."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any, cast

import numpy as np

from edgedec.decoding.draft import Drafter
from edgedec.errors import UsageError
from edgedec.storage.files import cache_folder, replacing


def state_path(origin: str, words: str) -> Path:
    """The file of a bundle and drafters."""
    names = hashlib.sha256(words.encode()).hexdigest()[:8]
    return cache_folder() / "learned" / f"{origin[:32]}-{names}.npz"


def save_state(path: Path, drafter: Drafter) -> None:
    """Write the drafter's state."""
    state = drafter.state()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez(file, **cast(Any, state))


def load_state(path: Path, drafter: Drafter) -> None:
    """Restore a state; a new one if there is none, or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            drafter.restore(dict(kept))
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, UsageError):
        drafter.reset()
