"""Whether `rapid` drafts better with passages chosen by an encoder than by tokens in common: tokens a call, by counts.

    python tests/bench/retrieved_passages.py BUNDLE ENCODER TEXT [TOKENS [BUDGET [CHUNK]]]

TEXT: a file of stories, blank lines or <|endoftext|> between them. Of TOKENS of them (3,000) three kinds of texts are
made: one goes on; one begins a story again that stands in it; one asks for a number that stands in it. The ways of
choosing take turns, greedy, with six drafted tokens a call. "last": the last passages whatever they say.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

import edgedec
from edgedec.drafters import rapid

FIXED, TEXTS = 6, 24
THINGS = ["boat", "bear", "kite", "hat", "ball", "cake", "drum", "bird", "tree", "cup", "door", "bell", "cart", "frog"]
COLOURS = ["red", "blue", "green", "yellow", "black", "white", "pink", "brown"]


def main(path: str, encoder: str, text: str, tokens: int = 3000, budget: int = 512, chunk: int = 64) -> None:
    model, rng = edgedec.open(path, threads=1), np.random.default_rng(5)
    stories = [part.strip() for part in re.split(r"<\|endoftext\|>|\n\s*\n", Path(text).read_text("utf-8"))]
    stories = [story for story in stories if len(story) > 300]
    words = f"rapid:least=0,fixed={FIXED},budget={budget},chunk={chunk}"
    ways = {"tokens": words, "encoder": f"{words},encoder='{encoder}'", "last": words}
    for kind, made in (("goes on", going), ("again", again), ("asked", asked)):
        counts = {way: [0, 0, 0, 0] for way in ways}
        for _ in range(TEXTS):
            ids, more = made(model, stories, tokens, rng)
            for way, how in ways.items():
                counts[way] = [a + b for a, b in zip(counts[way], counted(model, how, ids, more, way), strict=True)]
        for way, (generated, calls, proposed, accepted) in counts.items():
            print(
                f"{kind:8} {way:8} {generated / calls:.3f} tokens a call, {accepted} of {proposed} accepted, "
                f"{calls} calls for {generated} tokens",
                flush=True,
            )


def counted(model: edgedec.Model, how: str, ids: list[int], more: int, way: str) -> list[int]:
    """Tokens, calls after the prompt's, drafted and accepted tokens."""
    own = rapid.shared_tokens
    rapid.shared_tokens = latest if way == "last" else own
    try:
        session = model.session(speculate=how)
        for _ in session.tokens(ids, max_tokens=more, ignore_eos=True):
            pass
    finally:
        rapid.shared_tokens = own
    stats = session.stats
    return [stats.generated - 1, stats.calls - 1, stats.proposed, stats.accepted]


def latest(passages: Any, query: Any) -> Any:
    return np.arange(len(passages))


def going(model: edgedec.Model, stories: list[str], tokens: int, rng: np.random.Generator) -> tuple[list[int], int]:
    return filled(model, stories, tokens, rng)[0], 96


def again(model: edgedec.Model, stories: list[str], tokens: int, rng: np.random.Generator) -> tuple[list[int], int]:
    ids, told = filled(model, stories, tokens, rng)
    begun = told[rng.integers(len(told) // 2)]
    return [*ids, *begun[:48]], min(96, len(begun) - 48)


def asked(model: edgedec.Model, stories: list[str], tokens: int, rng: np.random.Generator) -> tuple[list[int], int]:
    _, told = filled(model, stories, int(0.85 * tokens), rng)
    names = [f"{colour} {thing}" for colour in COLOURS for thing in THINGS]
    keys, ids = rng.choice(names, len(told) - 1, replace=False), list[int]()
    for key, story in zip(keys, told, strict=False):
        ids += story + model.tokenizer.encode(f" The secret number of the {key} is {rng.integers(1000, 10000)}.")
    return ids + told[-1] + model.tokenizer.encode(
        f" The secret number of the {rng.choice(keys[: len(keys) // 2])} is"
    ), 8


def filled(
    model: edgedec.Model, stories: list[str], tokens: int, rng: np.random.Generator
) -> tuple[list[int], list[list[int]]]:
    """Stories one after another, and each of them."""
    told, ids = list[list[int]](), list[int]()
    while len(ids) < tokens:
        told.append(model.tokenizer.encode(" " + stories[rng.integers(len(stories))]))
        ids += told[-1]
    return ids[:tokens], told


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
