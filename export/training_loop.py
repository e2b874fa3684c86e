"""The training loop: limited by time or steps, with checkpoints for resuming."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from time import monotonic
from typing import Protocol

from edgedec.export.heads_data import Progress

SAVE_EVERY = 60.0  # seconds


class TrainingLimits(Protocol):
    """How long to train: minutes and steps, whichever is over first (steps 0: the minutes alone)."""

    @property
    def minutes(self) -> float: ...
    @property
    def steps(self) -> int: ...


class Trainable(Protocol):
    """A training. steps, spent: updates made and seconds taken so far, those before an interruption too."""

    steps: int
    spent: float

    @property
    def plan(self) -> TrainingLimits: ...

    def step(self, progress: float) -> float:
        """One update -> its mean loss. progress: the share of the training that is over."""

    def save(self, path: Path, key: str) -> None:
        """Write a checkpoint of the training that `key` names."""

    def load(self, path: Path, key: str) -> None:
        """Go on from a checkpoint; nothing happens if there is none."""


def train(trainer: Trainable, path: Path | None, key: str, show: Progress, every: float = SAVE_EVERY) -> float:
    """Train until the time or the steps are over -> the mean loss of the last steps. Goes on from, and leaves, a
    checkpoint at `path`, written again every so many seconds."""
    if path is not None:
        trainer.load(path, key)
    saved, loss = monotonic(), float("nan")
    began = saved - trainer.spent
    try:
        while (progress := _progress(trainer, began)) < 1.0:
            show("train", int(1000 * progress), 1000)
            new = trainer.step(progress)
            loss = new if isnan(loss) else 0.98 * loss + 0.02 * new
            if path is not None and monotonic() - saved > every:
                trainer.save(path, key)
                saved = monotonic()
        show("train", 1000, 1000)
        return loss
    finally:
        if path is not None:
            trainer.save(path, key)


def _progress(trainer: Trainable, began: float) -> float:
    """The share of the training that is over; at 1 it ends."""
    trainer.spent = monotonic() - began
    done = trainer.steps / trainer.plan.steps if trainer.plan.steps else 0.0
    return max(done, trainer.spent / max(60 * trainer.plan.minutes, 1e-9))
