"""ParallelBench: what writing several tokens a pass costs in right answers.

Its tasks over lists of names and its two puzzles, without downloads; its five tasks of text writing need a grammar
checker and data sets, and are left out. Each is decoded one token a pass, by falling thresholds, and in one pass a
block: right answers against tokens a pass.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgedec.bench.diffusion import SEED, AnsweredTask, DecodingCost, compare
from edgedec.bench.list_tasks import OPERATIONS, WAITING_LINE, list_task
from edgedec.bench.puzzles import latin_task, sudoku_task
from edgedec.errors import UsageError
from edgedec.model import Model

THRESHOLDS = (0.97, 0.9, 0.8, 0.6, 0.4)
PUZZLES: dict[str, Callable[[random.Random], AnsweredTask]] = {
    "latin_square_n4": latin_task,
    "sudoku_n4_12": sudoku_task,
}
TASKS = (*WAITING_LINE, *PUZZLES)
KNOWN = (*OPERATIONS, *PUZZLES)


def tasks_named(kinds: Sequence[str], count: int) -> list[AnsweredTask]:
    """`count` questions of each kind, always the same."""
    for kind in kinds:
        if kind not in KNOWN:
            raise UsageError(f"--tasks {kind}: no such task; there are {', '.join(KNOWN)}")
    rng = random.Random(SEED)
    return [PUZZLES[kind](rng) if kind in PUZZLES else list_task(kind, rng) for kind in kinds for _ in range(count)]


def ways(thresholds: Sequence[float]) -> dict[str, str]:
    """Names of ways to decode, and their words: one token a pass, falling thresholds, a pass a block."""
    for p in thresholds:
        if not 0 <= p <= 1:
            raise UsageError(f"--thresholds {p}: must be from 0 to 1")
    found = {f"p={p:g}": f"schedule=threshold:p={p:g}" for p in sorted(thresholds, reverse=True)}
    return {"static": "schedule=static", **found, "one pass": "steps=1"}


def sweep(
    model: Model,
    thresholds: Sequence[float],
    tasks: Sequence[AnsweredTask],
    longest: int,
    progress: Callable[[int, int], None],
) -> dict[str, dict[str, DecodingCost]]:
    """{way: {task: cost}}, the most careful way first."""
    named = ways(thresholds)
    found = compare(model, list(named.values()), tasks, longest, progress)
    return {name: found[words] for name, words in named.items()}


def summary(costs: Mapping[str, DecodingCost]) -> dict[str, Any]:
    """Of one way: tokens a pass over all tasks, the share of right answers of each task, and the mean of these."""
    right = {kind: cost.right / cost.texts for kind, cost in costs.items()}
    tokens, passes = sum(c.tokens for c in costs.values()), sum(c.passes for c in costs.values())
    return {
        "tokens_per_pass": round(tokens / max(1, passes), 3),
        "right": {kind: round(share, 3) for kind, share in right.items()},
        "mean": round(sum(right.values()) / len(right), 3),
        "by_task": {kind: cost.to_json() for kind, cost in costs.items()},
    }
