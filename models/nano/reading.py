"""What the recipe reads: nothing of the prompts that nano is measured with, and a record of all of it.

The record is a bundle's `read_grams.bin` (`edgedec/bundle/read_grams.py`). Stories, programs, pages and prompts are
recorded whole. Of what is made of them (lessons, answers) the record has how it begins: the rest is in what it was made
of, but for names and words that were exchanged. Runs of random tokens are not recorded.
"""

import numpy as np

from edgedec.bench.prompts import read_prompts
from edgedec.bundle.folder import Bundle
from edgedec.bundle.read_grams import MODEL, ReadPart, ReadRecord, grams
from edgedec.export.read_record import put_record, recorded

KEPT_OUT = np.unique(np.concatenate([grams(turn) for prompt in read_prompts() for turn in prompt.turns]))


def clean(text):
    """Whether a text has no 13 words in a row of a prompt of `edgedec bench spec`."""
    return not np.isin(grams(text), KEPT_OUT).any()


class TrainingRecord:
    """The grams of all parts of the recipe, in its work folder."""

    def __init__(self, work):
        self.path = work / "read_grams.npy"
        self.hashes = np.load(self.path) if self.path.exists() else np.empty(0, np.uint64)

    def whole(self, texts):
        self.hashes = np.union1d(self.hashes, recorded(texts))
        return self

    def openings(self, texts):
        first = [grams(text)[:1] for text in texts]
        self.hashes = np.union1d(self.hashes, np.concatenate([np.empty(0, np.uint64), *first]))
        return self

    def save(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new.npy")
        np.save(new, self.hashes)
        new.replace(self.path)

    def put(self, bundle, of=(MODEL,)):
        """Into a bundle, instead of what it has."""
        put_record(Bundle.open(bundle), ReadRecord((ReadPart.build(of, self.hashes),)))
