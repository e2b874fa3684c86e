"""What the tests of training share: a small language, and no progress."""

from __future__ import annotations

import random
from pathlib import Path

from edgedec.export.exits_data import END

WORDS = ("the", "cat", "in", "a", "hat", "sat", "on", "and", "then", "an", "inn", "ran", "to", "the", "den")


def quiet(stage: str, done: int, total: int) -> None:
    pass


def write_sentences(file: Path, texts: int, words: int) -> Path:
    """Texts of a small grammar: each word is mostly followed by the next one of the list."""
    rng, made = random.Random(0), []
    for _ in range(texts):
        at, said = rng.randrange(len(WORDS)), []
        for _ in range(words):
            said.append(WORDS[at])
            at = (at + 1) % len(WORDS) if rng.random() < 0.9 else rng.randrange(len(WORDS))
        made.append(" ".join(said))
    file.write_text(END.join(made))
    return file
