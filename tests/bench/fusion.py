"""What fusion costs: `python tests/bench/fusion.py [MODEL] --threads 2 --tokens 40 --rounds 5`, kinds in turns.

A model is a bundle, or the name of one; the ratios are medians of rounds, against plain decoding of the same round.
"""

from __future__ import annotations

import argparse
import statistics
import time

import edgedec

KINDS = {
    "plain": "",
    "cfg": "cfg:scale=1.5",
    "cfg, negative prompt": "cfg:scale=1.5,negative='A dog ran to the park.'",
    "contrast with a prompt": "contrast:prompt='A dog ran to the park.'",
    "late, a prompt": "late:prompt='A dog ran to the park.'",
    "anchor, a prompt": "anchor:prompt='A dog ran to the park.',k=0.2",
    "search, 4 candidates": "search",
}


def seconds(model: edgedec.Model, words: str, n: int) -> float:
    """Seconds of a token after the first."""
    session = model.session(speculate="off")
    tokens = session.tokens(
        model.tokenizer.encode("Once upon a time there was"), max_tokens=n, ignore_eos=True, fuse=words
    )
    next(tokens)
    began = time.perf_counter()
    count = sum(1 for _ in tokens)
    return (time.perf_counter() - began) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    model = edgedec.open(given.model, threads=given.threads)
    found: dict[str, list[float]] = {name: [] for name in KINDS}
    for _ in range(given.rounds):
        for name, words in KINDS.items():
            found[name].append(seconds(model, words, given.tokens))
    for name, times in found.items():
        ratio = statistics.median(one / plain for one, plain in zip(times, found["plain"], strict=True))
        print(f"{name:24} {statistics.median(times) * 1e3:8.2f} ms a token  {ratio:.2f} x plain")


if __name__ == "__main__":
    main()
