"""Writes down in a bundle what it was trained with: its `read_grams.bin` (`edgedec/bundle/read_grams.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edgedec.bundle.folder import Bundle
from edgedec.bundle.manifest import READ_GRAMS
from edgedec.bundle.read_grams import EVERY, Hashes, ReadPart, ReadRecord, grams
from edgedec.export.amend import add_files


def put_record(bundle: Bundle, record: ReadRecord) -> Bundle:
    """Put a record into a bundle, instead of the one it has. -> the bundle as it is now."""
    return add_files(bundle, {READ_GRAMS: record.to_bytes()}, lambda manifest: manifest)


def add_read(bundle: Bundle, of: Sequence[str], texts: Iterable[str]) -> Bundle:
    """Add to a bundle's record that `of` read these texts. -> the bundle as it is now."""
    return put_record(bundle, ReadRecord.of(bundle).with_part(ReadPart.build(of, recorded(texts))))


def recorded(texts: Iterable[str]) -> Hashes:
    """The grams of training texts that a record holds."""
    return np.concatenate([np.empty(0, np.uint64), *(grams(text, EVERY) for text in texts)])
