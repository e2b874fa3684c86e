"""What sampling costs in a batch, and one draw of the native engine: `python tests/bench/sampled_batches.py [BUNDLE]`.

Prints microseconds a draw from random logits at two vocabularies, then tokens/s of 64 texts at 1, 16 and 64 at a time
on one thread, each setting beside greedy in turns, the best of three.
"""

from __future__ import annotations

import sys
from time import perf_counter

import numpy as np

import edgedec
from edgedec import Sampling
from edgedec.decoding.batching import Batch
from edgedec.runtimes._native_sampler import NativeSampler

WAYS = {
    "temperature 1": Sampling(temperature=1.0),
    "top-p 0.95": Sampling(temperature=0.8, top_p=0.95),
    "top-k 40": Sampling(temperature=0.8, top_k=40),
    "0.6, top-p 0.9, repetition 1.1": Sampling(temperature=0.6, top_p=0.9, repetition_penalty=1.1),
    "all": Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1),
}
NAMES = ("dog", "cat", "bird", "boy", "girl", "bear", "fox", "tree")
DRAWS, TOKENS = 50, 48


def draws(vocab: int) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.gumbel(size=(DRAWS, vocab)) * 2.2).astype(np.float32)
    for name, sampling in WAYS.items():
        sampler, best = NativeSampler(sampling, vocab), float("inf")
        sampler.read(rng.integers(0, vocab, 300).tolist(), 100)
        for _ in range(20):
            began = perf_counter()
            for i, row in enumerate(rows):
                sampler.draw(row, (), (i + 0.5) / DRAWS)
            best = min(best, (perf_counter() - began) / DRAWS)
        print(f"vocabulary {vocab:7}  {name:32} {best * 1e6:6.1f} us a draw")


def rate(model: edgedec.Model, most: int, sampling: Sampling) -> float:
    batch, prompts = Batch(model.runtime, most=most), [f"Once upon a time there was a {name}" for name in NAMES * 8]
    began = perf_counter()
    for prompt in prompts:
        session, ids = model.session(speculate="off"), model.tokenizer.encode(prompt)
        session.submit(batch, ids, lambda token: None, max_tokens=TOKENS, ignore_eos=True, sampling=sampling)
    batch.run()
    return len(prompts) * TOKENS / (perf_counter() - began)


def main(bundle: str) -> None:
    for vocab in (4096, 131072):
        draws(vocab)
    model, ways = edgedec.open(bundle, threads=1, prefix_tokens=0), {"greedy": Sampling(), **WAYS}
    for most in (1, 16, 64):
        rates = [{name: rate(model, most, sampling) for name, sampling in ways.items()} for _ in range(3)]
        best = {name: max(each[name] for each in rates) for name in ways}
        shown = ", ".join(f"{name} {value / best['greedy']:.2f}" for name, value in best.items() if name != "greedy")
        print(f"{most:2} texts at a time: greedy {best['greedy']:.0f} tokens/s; {shown}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nano")
