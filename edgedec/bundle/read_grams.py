"""What a model and its draft heads have read: Bloom filters of word 13-grams, and whether a prompt was among it.

A prompt counts as seen if one run of 13 words of it is in the record: the rule of GPT-3 (Brown et al. 2020, appendix C)
and of lm-evaluation-harness. Words are runs of letters, digits and underscores, in lower case; a text of fewer words is
one gram as a whole. To keep the file small a training text gives only every `EVERY`-th of its grams, from the first on,
while of a prompt all are looked up: any run of 13 + EVERY - 1 common words is certain to be found, a shorter one by
chance. A gram that was not read is found with a chance of about 1e-5 (24 bits a gram, 17 hashes). A record names what
it is of, "model" and kinds of heads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.folder import Bundle
from edgedec.bundle.manifest import READ_GRAMS
from edgedec.errors import BundleCorrupt

Seen = Literal["seen", "unseen", "unknown"]
Hashes = NDArray[np.uint64]
WORDS, EVERY, BITS, HASHES = 13, 8, 24, 17
MODEL = "model"
FORMAT, VERSION = "edgedec-read", 1
RULE = (
    f"Bloom filters of {WORDS}-grams of words (\\w+, lower case; a shorter text is one gram); of a training text every "
    f"{EVERY}th gram, of a prompt all: seen if one is found; by chance 1e-5 of them ({BITS} bits, {HASHES} hashes)"
)
_FACTS = {"format": FORMAT, "version": VERSION, "words": WORDS, "every": EVERY, "hashes": HASHES}
_HEADER_LIMIT = 1 << 16


def grams(text: str, every: int = 1) -> Hashes:
    """Hashes of the grams of a text that begin at word 0, `every`, 2 * `every`, …; of a text without words none."""
    words = re.findall(r"\w+", text.lower())
    n = min(WORDS, len(words))
    if not n:
        return np.empty(0, np.uint64)
    each = np.fromiter(map(_word, words), np.uint64, len(words))
    starts = np.arange(0, len(words) - n + 1, every)
    found = np.full(len(starts), n, np.uint64)
    for i in range(n):
        found = found * np.uint64(0x9E3779B97F4A7C15) + each[starts + i]
    return _mixed(found)


@dataclass(frozen=True)
class ReadPart:
    """The grams of the training texts of `of`: the model, kinds of heads."""

    of: tuple[str, ...]
    grams: int
    filter: NDArray[np.uint8]

    @classmethod
    def build(cls, of: Sequence[str], hashes: Hashes) -> ReadPart:
        distinct = np.unique(hashes)
        bits = np.zeros(max(1, len(distinct) * BITS // 8) * 8, bool)
        bits[_places(distinct, len(bits))] = True
        return cls(tuple(of), len(distinct), np.packbits(bits, bitorder="little"))

    def holds(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Which of these grams [n] are in it, or seem to be."""
        places = _places(hashes, 8 * len(self.filter))
        bits: NDArray[np.bool_] = (self.filter[places >> 3] >> (places & 7).astype(np.uint8) & 1).astype(bool)
        return np.asarray(bits.all(axis=0))


@dataclass(frozen=True)
class ReadRecord:
    """The record of a bundle: parts in the order in which they were trained."""

    parts: tuple[ReadPart, ...] = ()

    @classmethod
    def parse(cls, data: bytes, where: str) -> ReadRecord:
        """BundleCorrupt for other bytes than `to_bytes` writes."""
        try:
            line, _, body = data.partition(b"\n")
            facts = json.loads(line[:_HEADER_LIMIT])
            parts = [(tuple(map(str, p["of"])), int(p["grams"]), int(p["bytes"])) for p in facts["parts"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BundleCorrupt(f"{where}: not a record of read texts; export or download the bundle again") from None
        if any(facts.get(name) != value for name, value in _FACTS.items()):
            raise BundleCorrupt(f"{where}: a record of read texts by another rule than {RULE!r}; upgrade edgedec")
        if any(size < 1 for *_, size in parts) or sum(size for *_, size in parts) != len(body):
            raise BundleCorrupt(f"{where}: a record of read texts of a wrong size; export or download the bundle again")
        filters, found, at = np.frombuffer(body, np.uint8), [], 0
        for of, n, size in parts:
            found.append(ReadPart(of, n, filters[at : at + size]))
            at += size
        return cls(tuple(found))

    def to_bytes(self) -> bytes:
        """One line of JSON, then the filters."""
        parts = [{"of": part.of, "grams": part.grams, "bytes": len(part.filter)} for part in self.parts]
        header: dict[str, Any] = {**_FACTS, "rule": RULE, "parts": parts}
        return b"\n".join((json.dumps(header).encode(), b"".join(part.filter.tobytes() for part in self.parts)))

    @classmethod
    def of(cls, bundle: Bundle) -> ReadRecord:
        """The record of a bundle; one without parts if it has none."""
        if READ_GRAMS not in bundle.manifest.files:
            return cls()
        path = bundle.file(READ_GRAMS)
        return cls.parse(path.read_bytes(), str(path))

    def with_part(self, part: ReadPart) -> ReadRecord:
        """With a part more; the same texts read again are no part of their own."""
        known = any(old.of == part.of and np.array_equal(old.filter, part.filter) for old in self.parts)
        return self if known else ReadRecord((*self.parts, part))

    def seen(self, texts: Iterable[str], of: Iterable[str]) -> Seen:
        """Whether one of a prompt's texts shares a gram with what was read. "unknown" if none does, but the record does
        not cover all of `of`."""
        found = [grams(text) for text in texts]
        if any(part.holds(hashes).any() for part in self.parts for hashes in found):
            return "seen"
        covered = {name for part in self.parts for name in part.of}
        return "unseen" if covered.issuperset(of) else "unknown"


def readers_of(bundle: Bundle) -> list[str]:
    """What in a bundle has been trained: the model and its heads."""
    return [MODEL, *bundle.manifest.heads, *bundle.manifest.drafts]


def _places(hashes: Hashes, bits: int) -> NDArray[np.int64]:
    """The bits of each gram [HASHES, n], by double hashing."""
    step = _mixed(hashes ^ np.uint64(0xD6E8FEB86659FD93)) | np.uint64(1)
    turns = np.arange(HASHES, dtype=np.uint64)[:, None]
    return ((hashes + turns * step) % np.uint64(bits)).astype(np.int64)


def _mixed(hashes: Hashes) -> Hashes:
    """The finalizer of splitmix64: all bits depend on all."""
    hashes = (hashes ^ hashes >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ hashes >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return hashes ^ hashes >> np.uint64(31)


@lru_cache(1 << 17)
def _word(word: str) -> int:
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
