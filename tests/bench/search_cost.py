"""What searches cost beside one text: nano, one thread, processor time, in turns.

python tests/bench/search_cost.py [MODEL] [--tokens 120] [--rounds 7]
"""

from __future__ import annotations

import argparse
from time import process_time

import edgedec

WAYS = ("", "beam:width=1", "beam:width=4", "beam:width=8", "diverse:width=8,groups=4", "best:n=8", "first:n=8")


def seconds(model: edgedec.Model, words: str, tokens: int) -> float:
    """Processor time of a text of so many tokens."""
    rolled = words.startswith(("best", "first"))
    session, ids = model.session(speculate="off"), model.tokenizer.encode("Once upon a time")
    options = {"temperature": 1.0 if rolled else 0.0, "seed": 1, "repetition_penalty": 1.0, "ignore_eos": True}
    start = process_time()
    made = list(session.tokens(ids, search=words, max_tokens=tokens, **options))
    assert len(made) == tokens
    return process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=7)
    wanted = parser.parse_args()
    model = edgedec.open(wanted.model, threads=1)
    taken = {way: list[float]() for way in WAYS}
    for _ in range(wanted.rounds):
        for way, times in taken.items():
            times.append(seconds(model, way, wanted.tokens))
    plain = min(taken[""])
    for way, times in taken.items():
        step = 1000 * min(times) / wanted.tokens
        print(f"{way or 'one text':26} {step:6.3f} ms a token {min(times) / plain:5.2f}x")


if __name__ == "__main__":
    main()
