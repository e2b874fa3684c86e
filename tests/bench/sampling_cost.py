"""What choosing a token costs on the host: from all logits, and from the k best with the log-sum.

    python tests/bench/sampling_cost.py [--vocab 131072] [--rows 200]

Logits like a language model's: falling with the logarithm of the rank by 1.2 to 2.6, with noise, in random order. Each
line: median microseconds a row (10th to 90th percentile) of `distribution` (everything in float64), of
`quick_distribution` (all logits, the few that count in float64), of `decided` (64 to 256 of the best and the log-sum,
as a runtime returns them), of the draw; and how many of the rows the k best decided.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime import Outputs, head_outputs
from edgedec.sampling import Probs, Sampling, adjust, distribution, draw
from edgedec.sampling.best import Best, adjust_best, decided, quick_distribution

SETTINGS = {
    "temperature 0.8, top-p 0.95": Sampling(temperature=0.8, top_p=0.95),
    "temperature 1.0, top-p 0.9": Sampling(temperature=1.0, top_p=0.9),
    "temperature 0.6, top-p 0.95, top-k 20": Sampling(temperature=0.6, top_p=0.95, top_k=20),
    "temperature 1.0, min-p 0.05": Sampling(temperature=1.0, min_p=0.05),
    "temperature 0.8, top-p 0.95, repetition 1.1": Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.1),
    "temperature 0.8, top-p 0.9, typical 0.9": Sampling(temperature=0.8, top_p=0.9, typical_p=0.9),
    "temperature 0.8": Sampling(temperature=0.8),
}
CONTEXT = 512


def realistic(vocab: int, rows: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Logits [rows, vocab]."""
    slopes = np.linspace(1.2, 2.6, rows)[:, None]
    logits = -slopes * np.log(np.arange(1, vocab + 1)) + rng.normal(0, 0.5, (rows, vocab)) + 20
    return rng.permuted(logits, axis=1).astype(np.float32)


def timed(choose: Callable[[int], object], rows: int) -> str:
    """Microseconds: median (10th to 90th percentile)."""
    seconds = []
    for row in range(rows):
        began = perf_counter()
        choose(row)
        seconds.append(perf_counter() - began)
    low, middle, high = np.percentile(np.array(seconds) * 1e6, [10, 50, 90])
    return f"{middle:.0f} ({low:.0f}-{high:.0f})"


def line(name: str, sampling: Sampling, logits: NDArray[np.float32], rng: np.random.Generator) -> str:
    rows, vocab = logits.shape
    context = rng.integers(0, vocab, CONTEXT).tolist()
    k = (64 if sampling.top_k or sampling.top_p == 1 else 128) * (2 if sampling.adjusts else 1)
    wanted = Outputs(top=k, logsum=True, temperature=sampling.temperature)
    results = [head_outputs(row[None], wanted) for row in logits]

    def of_best(row: int) -> Probs | None:
        ids, scores, logsum = results[row].ids, results[row].scores, results[row].logsum
        assert ids is not None
        assert scores is not None
        assert logsum is not None
        best = Best.of(ids[0], scores[0], vocab, float(logsum[0]), sampling.temperature)
        return decided(adjust_best(best, sampling, context, 0, vocab), sampling)

    def of_all(choose: Callable[[NDArray[np.float32], Sampling], Probs]) -> Callable[[int], Probs]:
        return lambda row: choose(adjust(logits[row], sampling, context, 0), sampling)

    enough = sum(of_best(row) is not None for row in range(rows))
    some = quick_distribution(logits[0], sampling)
    costs = [timed(of_all(distribution), rows), timed(of_all(quick_distribution), rows), timed(of_best, rows)]
    return f"| {name} | {' | '.join(costs)} | {timed(lambda row: draw(some, rng), rows)} | {enough / rows:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vocab", type=int, default=131072)
    parser.add_argument("--rows", type=int, default=200)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    logits = realistic(args.vocab, args.rows, rng)
    print("| settings | all, float64 | all, quick | k best | draw | decided by the k best |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, sampling in SETTINGS.items():
        print(line(name, sampling, logits, rng), flush=True)


if __name__ == "__main__":
    main()
