"""What sampling costs in a batch, and one draw of the native engine.

    python tests/bench/sampled_batches.py nano --processor-time
    python tests/bench/sampled_batches.py smollm-135m --turn 2 --tokens 12 --texts 1 4 16
    python tests/bench/sampled_batches.py draws

Each setting has a batch of its own. Their steps take turns in one process, in random order, those with prompts among
them; a round gives each one's speed over that of two greedy batches together. Printed are the median and the range of
the rounds; "greedy" is one of those two: what the method itself is off by. "mixed" has every other text sampled, with
all settings in turn. Twice --texts texts are run, of --tokens to twice as many, so that prompts are read while others
decode. `draws`: microseconds a draw from random logits.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
from collections.abc import Mapping, Sequence
from itertools import cycle
from time import perf_counter, thread_time

import numpy as np

import edgedec
from edgedec import Sampling
from edgedec.cli.bench._flags import padded
from edgedec.decoding.scheduler.batch import Batch
from edgedec.runtimes._native_sampler import NativeSampler

WAYS = {
    "temperature 1": Sampling(temperature=1.0),
    "0.8, top-p 0.95": Sampling(temperature=0.8, top_p=0.95),
    "0.8, top-k 40": Sampling(temperature=0.8, top_k=40),
    "0.6, top-p 0.9, repetition 1.1": Sampling(temperature=0.6, top_p=0.9, repetition_penalty=1.1),
    "0.8, top-k 40, top-p 0.95, min-p 0.05": Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    "the same, repetition 1.1": Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1),
}
NAMES = ("dog", "cat", "bird", "boy", "girl", "bear", "fox", "tree")
DRAWS = 50


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
        print(f"vocabulary {vocab:7}  {name:38} {best * 1e6:6.1f} us a draw")


def batch_of(model: edgedec.Model, most: int, ways: Sequence[Sampling], tokens: int) -> tuple[Batch, list[int]]:
    """A batch of `most` texts at a time, twice as many in all; and a list that takes a 1 for each token."""
    batch, given = Batch(model.runtime, most=most), list[int]()
    for i, (way, name) in enumerate(zip(cycle(ways), NAMES * max(1, most // 4), strict=False)):
        if i == max(2, 2 * most):
            break
        session, ids = model.session(speculate="off"), model.tokenizer.encode(f"Once upon a time there was a {name}")
        n = tokens + i * 7 % 8 * tokens // 7
        session.submit(batch, ids, lambda t: given.append(t is not None), max_tokens=n, ignore_eos=True, sampling=way)
    return batch, given


def rates(
    model: edgedec.Model, most: int, ways: Mapping[str, Sequence[Sampling]], args: argparse.Namespace
) -> dict[str, float]:
    """The speed of each way over that of two greedy batches, and under "tokens/s" theirs."""
    clock = thread_time if args.processor_time else perf_counter
    batches = {name: batch_of(model, most, way, args.tokens) for name, way in ways.items()}
    seconds, left = dict.fromkeys(ways, 0.0), list(ways)
    while left:
        random.shuffle(left)
        for name in list(left):
            batch, began = batches[name][0], clock()
            if not all(batch.step() for _ in range(args.turn)):
                left.remove(name)
            seconds[name] += clock() - began
    tokens = {name: sum(given) for name, (_, given) in batches.items()}
    base = (tokens["greedy"] + tokens["greedy too"]) / (seconds["greedy"] + seconds["greedy too"])
    return {"tokens/s": base, **{name: tokens[name] / seconds[name] / base for name in ways}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="nano", help="a bundle, a geometry to pad nano to, or `draws`")
    parser.add_argument("--texts", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turn", type=int, default=8, help="steps in a row of one batch")
    parser.add_argument("--processor-time", action="store_true", help="of one thread, where other programs run too")
    args = parser.parse_args()
    if args.model == "draws":
        for vocab in (4096, 131072):
            draws(vocab)
        return
    where = padded("nano", args.model, print).path if args.model == "smollm-135m" else args.model
    model = edgedec.open(where, threads=args.threads, prefix_tokens=0)
    ways = {"greedy": [Sampling()], "greedy too": [Sampling()], **{name: [way] for name, way in WAYS.items()}}
    ways["mixed"] = [each for way in WAYS.values() for each in (Sampling(), way)]
    for most in args.texts:
        rates(model, most, ways, argparse.Namespace(**{**vars(args), "tokens": 4}))
        load = os.getloadavg()[0]
        found = [rates(model, most, ways, args) for _ in range(args.rounds)]
        speed = statistics.median(each["tokens/s"] for each in found)
        print(f"{most} at a time: greedy {speed:.0f} tokens/s; load {load:.1f} before, {os.getloadavg()[0]:.1f} after")
        for name in ways:
            if name != "greedy too":
                each = sorted(rate[name] for rate in found)
                print(f"  {name:38} {statistics.median(each):.3f} ({each[0]:.3f} to {each[-1]:.3f})", flush=True)


if __name__ == "__main__":
    main()
