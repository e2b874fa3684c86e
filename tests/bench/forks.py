"""What opening a session and a fork cost, what 64 forks hold, and what a prefix of an ended sequence saves: `python
tests/bench/forks.py BUNDLE`.

Prints medians of several rounds with their spread; memory is the process's own (Linux). A bundle with a context of more
than 8,000 tokens shows how the cost of a fork grows with the text.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import tracemalloc
from collections.abc import Callable
from time import perf_counter

import numpy as np

import edgedec
from edgedec.decoding.scheduler.batch import Batch

PREFIX, FORKS, EACH, PROMPT = 4096, 64, 32, 2000
# The lengths of text at which sessions are opened and forked with and without drafters.
LENGTHS = (960, 8000)


def spread(values: list[float], unit: str, scale: float = 1.0) -> str:
    scaled = sorted(value * scale for value in values)
    return f"{statistics.median(scaled):.3f} {unit} ({scaled[0]:.3f} to {scaled[-1]:.3f})"


def resident() -> int:
    """Bytes of memory that the process has in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def cost(title: str, make: Callable[[], edgedec.Session]) -> list[edgedec.Session]:
    """Print what making a session takes and holds; returns those that were held."""
    make()
    seconds = []
    for _ in range(40):
        began = perf_counter()
        made = make()
        seconds.append(perf_counter() - began)
        del made
    gc.collect()
    trim()
    before, kept = resident(), [make() for _ in range(FORKS)]
    grown = (resident() - before) / FORKS / 1024
    tracemalloc.start()
    traced = [make() for _ in range(FORKS)]
    size = tracemalloc.get_traced_memory()[0] / FORKS / 1024
    tracemalloc.stop()
    del traced
    print(f"{title}: {spread(seconds, 'ms', 1e3)}")
    print(f"  {size:.1f} KiB of Python objects, {grown:.1f} KiB resident each")
    return kept


def opening(model: edgedec.Model, ids: list[int]) -> None:
    """What sessions and their forks cost with and without drafters."""
    for words in ("off", "auto"):
        cost(f"session with {words}", lambda words=words: model.session(speculate=words))
        for length in (n for n in LENGTHS if n + EACH < model.spec.context_length):
            session = model.session(speculate=words)
            list(session.tokens(ids[:length], max_tokens=EACH, ignore_eos=True))
            cost(f"fork of {length} tokens with {words}", session.fork)


def trim() -> None:
    """Return freed memory to the system, so that what is allocated next shows as growth."""
    if (release := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        release(0)


def forks(model: edgedec.Model, ids: list[int]) -> None:
    session = model.session(speculate="off")
    list(session.tokens(ids, max_tokens=1, ignore_eos=True))
    before, kept = resident(), [session.fork() for _ in range(FORKS)]
    for seed, twin in enumerate(kept):
        list(twin.tokens(max_tokens=EACH, sampling=edgedec.Sampling(temperature=1.0, seed=seed), ignore_eos=True))
    pages = [twin._context.cache.page_ids() for twin in kept]
    distinct, slots = len(np.unique(np.concatenate(pages))), model.runtime.capabilities.page_slots
    grown, alone = (resident() - before) / 2**20, kept[0]._context.cache.nbytes / 2**20
    print(
        f"{FORKS} forks that each added {EACH} tokens: {distinct} pages of {slots} slots, {sum(map(len, pages))} uses"
    )
    print(f"  {grown:.1f} MiB more resident; a cache of one is {alone:.1f} MiB")


def prefix(model: edgedec.Model, ids: list[int]) -> None:
    cold, warm = [], []
    for seed in range(5):
        batch = Batch(model.runtime)
        prompt = np.random.default_rng(seed).permutation(ids).tolist()
        for seconds in (cold, warm):
            began, first = perf_counter(), []
            session = model.session(speculate="off")
            session.submit(batch, prompt, lambda token, first=first: first.append(perf_counter()), max_tokens=1)
            batch.run()
            seconds.append(first[0] - began)
    ratios = [b / a for a, b in zip(cold, warm, strict=True)]
    print(f"first token of a {len(ids)}-token prompt: {spread(cold, 'ms', 1e3)}")
    print(f"  after a sequence of the same prompt has ended: {spread(warm, 'ms', 1e3)}, ratio {spread(ratios, '')}")


def sessions(model: edgedec.Model, ids: list[int]) -> None:
    ratios = []
    for seed in range(5):
        prompt, seconds = np.random.default_rng(seed).permutation(ids).tolist(), []
        for _ in range(2):
            session, began = model.session(speculate="off"), perf_counter()
            list(session.tokens(prompt, max_tokens=1, ignore_eos=True))
            seconds.append(perf_counter() - began)
        ratios.append(seconds[1] / seconds[0])
    print(f"  the same of lone sessions, ratio {spread(ratios, '')}")


def main(bundle: str) -> None:
    model = edgedec.open(bundle)
    limit, vocab = model.spec.context_length, model.spec.vocab_size
    ids = np.random.default_rng(0).integers(0, vocab, max(PREFIX, *LENGTHS)).tolist()
    print(f"{model.bundle.manifest.name} on {model.runtime.name}, {model.runtime.capabilities.threads} threads")
    opening(model, ids)
    forks(model, ids[: min(PREFIX, limit - EACH - 2)])
    prefix(model, ids[: min(PROMPT, limit - 2)])
    sessions(model, ids[: min(PROMPT, limit - 2)])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nano")
