"""Trains the net of `--diffusion schedule=learned` (Learn2PD) on a model's own runs, and compares it with thresholds.

python -m edgedec.bench.fill_schedule -m nano-block -o fill.npz          # some minutes on two cores

Runs fill one position a pass; for each pass the probabilities of the block's positions are noted, and whether each best
token is the one that the text got. Compared are passes and right answers on questions that no run saw.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.bench.diffusion import compare
from edgedec.bench.list_tasks import ListTask, list_task
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats
from edgedec.decoding.runner import run_loop
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.decoding import DiffusionDecoding
from edgedec.diffusion.loop import PassCounts, diffusion_loop
from edgedec.diffusion.schedules.learned import FillNet, features, log_odds
from edgedec.diffusion.seen import SeenBlock
from edgedec.model import Model
from edgedec.model import open as open_model

Floats = NDArray[np.float64]
KINDS = "copy", "replace", "remove", "insert", "reverse"
_TRAIN, _HELD = 101, 202
_LONGEST = 40


class Noted:
    """A schedule of one position a pass that notes what it saw: the block's start, features, and best tokens."""

    def __init__(self, size: int) -> None:
        self.size, self.passes = size, list[tuple[int, Floats, dict[int, int]]]()

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        best = dict(zip(seen.positions.tolist(), seen.tokens[:, 0].tolist(), strict=True))
        self.passes.append((canvas.start, features(seen, canvas, self.size), best))
        return seen.surest()

    def examples(self, ids: Sequence[int]) -> list[tuple[Floats, Floats]]:
        """Features and labels [size] of each pass: 1 if the best token is the final one, 0 if not, NaN where nothing
        was to be filled. ids: the text with its prompt."""
        found = []
        for start, probabilities, best in self.passes:
            label = np.full(self.size, np.nan)
            for position, token in best.items():
                if position - start < self.size and position < len(ids):
                    label[position - start] = token == ids[position]
            found.append((probabilities, label))
        return found


def runs(model: Model, tasks: Sequence[ListTask]) -> tuple[Floats, Floats]:
    """Features and labels [passes, size] of a model's own texts."""
    decoding = DiffusionDecoding.of(model, "schedule=static")
    assert decoding is not None
    host, facts, found = decoding.host, decoding.facts, list[tuple[Floats, Floats]]()
    for task in tasks:
        ids = model.tokenizer.encode(task.prompt)
        context = Context(list(ids), len(ids), model.runtime.new_cache(len(ids) + _LONGEST))
        noted = Noted(facts.block)
        methods = decoding.chosen.make(host).scheduled(noted)
        config = GenerationConfig(max_tokens=_LONGEST).override({"temperature": 0.0})
        loop = diffusion_loop(
            context, config, methods, facts, Stats(), PassCounts(), host.ends, model.runtime.capabilities
        )
        for _ in run_loop(model.runtime, loop):
            pass
        found += noted.examples(context.ids)
    x, y = zip(*found, strict=True)
    return np.array(x), np.array(y)


def trained(x: Floats, y: Floats, hidden: int = 64, steps: int = 6000, seed: int = 0) -> tuple[FillNet, float]:
    """A net trained by Adam on binary cross-entropy, and its loss at the end; labels that are NaN do not count."""
    rng, size, known, x = np.random.default_rng(seed), x.shape[1], ~np.isnan(y), log_odds(x)
    arrays = [
        rng.normal(0, (2 / size) ** 0.5, (size, hidden)),
        np.zeros(hidden),
        rng.normal(0, hidden**-0.5, (hidden, size)),
        np.zeros(size),
    ]
    first, second = [np.zeros_like(a) for a in arrays], [np.zeros_like(a) for a in arrays]
    loss = 0.0
    for step in range(1, steps + 1):
        rows = rng.integers(0, len(x), 256)
        gradients, loss = _gradients(arrays, x[rows], np.where(known[rows], y[rows], 0), known[rows])
        for i, gradient in enumerate(gradients):
            first[i] += 0.1 * (gradient - first[i])
            second[i] += 0.01 * (gradient**2 - second[i])
            scale = 1 - 0.99**step
            arrays[i] -= 3e-3 * (first[i] / (1 - 0.9**step)) / (np.sqrt(second[i] / scale) + 1e-8)
    return FillNet(*arrays), loss


def _gradients(arrays: Sequence[Floats], x: Floats, y: Floats, known: NDArray[np.bool_]) -> tuple[list[Floats], float]:
    """The gradients of the mean loss over known labels, and that loss."""
    w1, b1, w2, b2 = arrays
    inner = x @ w1 + b1
    hidden = np.maximum(inner, 0)
    p = 1 / (1 + np.exp(-np.clip(hidden @ w2 + b2, -60, 60)))
    n = max(int(known.sum()), 1)
    loss = -float((known * (y * np.log(p + 1e-12) + (1 - y) * np.log(1 - p + 1e-12))).sum()) / n
    out = known * (p - y) / n
    back = (out @ w2.T) * (inner > 0)
    return [x.T @ back, back.sum(0), hidden.T @ out, out.sum(0)], loss


def tasks_of(seed: int, count: int) -> list[ListTask]:
    rng = random.Random(seed)
    return [list_task(kind, rng) for _ in range(count) for kind in KINDS]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a schedule for a diffusion model on its own runs.")
    parser.add_argument("-m", "--model", default="nano-block")
    parser.add_argument("-o", "--out", type=Path, default=Path("fill.npz"))
    parser.add_argument("--texts", type=int, default=80, help="runs of each kind of question")
    parser.add_argument("--held", type=int, default=30, help="questions of each kind to compare on; 0: none")
    given = parser.parse_args()
    model = open_model(given.model)
    x, y = runs(model, tasks_of(_TRAIN, given.texts))
    net, loss = trained(x, y)
    net.save(given.out)
    print(f"{given.out}: {len(x)} passes, {np.nanmean(y):.3f} of the best tokens final, loss {loss:.3f}")
    if given.held:
        _compare(model, given.out, given.held)


def _compare(model: Model, file: Path, count: int) -> None:
    """Print right answers and passes of thresholds and of the net."""
    fixed = [f"schedule=threshold:p={p}" for p in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)]
    learned = [f"schedule=learned:file={file},p={p}" for p in (0.5, 0.7, 0.8, 0.9, 0.96, 0.98)]
    found = compare(model, ["schedule=static", *fixed, *learned], tasks_of(_HELD, count), _LONGEST, lambda *_: None)
    for way, costs in found.items():
        right, passes = sum(c.right for c in costs.values()), sum(c.passes for c in costs.values())
        print(f"{way:48} {right:4} right, {passes:5} passes")


if __name__ == "__main__":
    main()
