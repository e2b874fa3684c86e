"""Drafting in a batch against one by one: tokens/s of several sequences whose drafters make calls.

    python tests/bench/batch_drafts.py -m nano [-d BUNDLE] [-n 8] [--tokens 96] [--rounds 5]

For each way to draft the texts are generated in one batch (draft forwards of all sequences in one) and one after
another, in turns; the medians of tokens/s and their ratio are printed. The texts must be the same.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median
from time import perf_counter

import edgedec
from edgedec.decoding.scheduler.batch import Batch
from edgedec.model import Model
from edgedec.session import Session

PROMPTS = [
    "Once upon a time",
    "Tom and his robot wanted to bake a cake. They",
    "One day, Lily found a magic key in the garden.",
    "The dog ran to the",
    "Sam had a big red ball. He",
    "def add(a, b):\n    return",
    "It was raining, and the little bird",
    "Mia asked her mother for",
]
Texts = list[list[int]]


def sessions(model: Model, speculate: str, n: int) -> list[Session]:
    return [model.session(speculate=speculate) for _ in range(n)]


def together(model: Model, speculate: str, prompts: list[list[int]], tokens: int) -> Texts:
    """All texts in one batch."""
    batch, texts = Batch(model.runtime), [list[int]() for _ in prompts]

    def add(text: list[int], token: int | None) -> None:
        if token is not None:
            text.append(token)

    for live, ids, text in zip(sessions(model, speculate, len(prompts)), prompts, texts, strict=True):
        live.submit(batch, ids, partial(add, text), max_tokens=tokens, ignore_eos=True)
    batch.run()
    return texts


def apart(model: Model, speculate: str, prompts: list[list[int]], tokens: int) -> Texts:
    """One text after another."""
    return [
        list(live.tokens(ids, max_tokens=tokens, ignore_eos=True))
        for live, ids in zip(sessions(model, speculate, len(prompts)), prompts, strict=True)
    ]


def measure(model: Model, speculate: str, prompts: list[list[int]], tokens: int, rounds: int) -> tuple[float, float]:
    """Tokens/s in a batch and one by one."""
    rates: dict[str, list[float]] = {"together": [], "apart": []}
    for round_ in range(rounds + 1):
        texts = []
        for how, run in (("together", together), ("apart", apart)):
            began = perf_counter()
            texts.append([list(map(int, text)) for text in run(model, speculate, prompts, tokens)])
            if round_:  # the first warms up
                rates[how].append(len(prompts) * tokens / (perf_counter() - began))
        assert texts[0] == texts[1], f"{speculate}: a batch wrote another text"
    return median(rates["together"]), median(rates["apart"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="nano")
    parser.add_argument("-d", "--draft", default="", help="bundle of the draft model; the model itself by default")
    parser.add_argument("-n", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    model = edgedec.open(options.model, threads=options.threads, prefix_tokens=0)
    prompts = [model.tokenizer.encode(PROMPTS[i % len(PROMPTS)]) for i in range(options.n)]
    layer = max(1, model.spec.n_layers * 2 // 3)
    ways = ["off", f"model:path={options.draft or options.model},gamma=4,fixed=4", f"exit:layer={layer},fixed=3"]
    print(f"{options.n} sequences of {options.tokens} tokens, {model.runtime.name}: tokens/s")
    for speculate in ways:
        batch, single = measure(model, speculate, prompts, options.tokens, options.rounds)
        print(f"{speculate:40} batch {batch:8.1f}   one by one {single:8.1f}   ratio {batch / single:.2f}")


if __name__ == "__main__":
    main()
