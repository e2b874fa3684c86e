"""Training on rows of a text with AdamW: what trainings of exits, routes and coprocessors share."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from edgedec.errors import UsageError
from edgedec.export.adam8 import Adam8
from edgedec.export.checkpointing import Checkpointed
from edgedec.export.exits_data import Place, TokenStream
from edgedec.export.training_loop import TrainingLimits

WARMUP = 20  # updates


class RowPlan(TrainingLimits, Protocol):
    """rate: the learning rate at its highest; batch: rows of `length` tokens in an update."""

    @property
    def rate(self) -> float: ...
    @property
    def batch(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def threads(self) -> int: ...


class RowTrainer(Checkpointed):
    """held: rows that are never trained on, of more than `least` tokens. `optimize` says which weights are trained,
    `row_loss` what a row costs, or `losses` what all rows of an update do. rows: what reads the
    texts, encoded by `encode` as it takes them."""

    plan: RowPlan
    rows: type[TokenStream] = TokenStream

    def __init__(self, files: list[Path], encode: Any, plan: RowPlan, length: int = 0, least: int = 0) -> None:
        torch.set_num_threads(plan.threads)
        self.plan, self.steps, self.spent = plan, 0, 0.0
        self.stream = self.rows(files, encode, length or plan.length, plan.seed, Place())
        self.held: list[Any] = [row for row in self.stream.held() if len(row) > least]
        if not self.held:
            raise UsageError("the data hold too few texts to keep some back for measuring; give more")

    def optimize(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights
        rate = self.plan.rate
        self.optimizer = Adam8(weights.values(), lr=rate, betas=(0.9, 0.95))
        self.optimizers = (self.optimizer,)

    @property
    def place(self) -> Place:
        return self.stream.place

    def share(self, progress: float) -> float:
        """What the learning rate of the next update is of its highest."""
        return min(1.0, (self.steps + 1) / WARMUP) * max(0.0, 1.0 - progress)

    def step(self, progress: float) -> float:
        """One update -> its mean loss a token."""
        draw = random.Random(f"{self.plan.seed} {self.steps}")
        rows = [next(self.stream) for _ in range(self.plan.batch)]
        total = self.update(self.losses(rows, draw, progress), len(rows), progress)
        self.steps += 1
        return total

    def update(self, losses: Iterable[Tensor], n: int, progress: float) -> float:
        """An update of all weights by n losses -> their mean."""
        total = 0.0
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate * self.share(progress)
        self.optimizer.zero_grad()
        for loss in losses:
            (loss / n).backward()
            total += float(loss.detach()) / n
        for w in self.weights.values():
            if w.grad is None:  # of what no row of this update ran; its moments go on, as a checkpoint has it
                w.grad = torch.zeros_like(w)
        if not isfinite(total):
            raise UsageError(f"{self.command}: the loss of update {self.steps + 1} is {total}; take a lower --rate")
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        self.optimizer.step()
        return total

    def losses(self, rows: Sequence[list[int]], draw: random.Random, progress: float) -> Iterator[Tensor]:
        """The losses of the rows of an update, each computed when the one before it is backpropagated."""
        return (self.row_loss(row, draw, progress) for row in rows)

    def row_loss(self, row: list[int], draw: random.Random, progress: float) -> Tensor:
        """The loss of a row of tokens; `draw`: the numbers of this update."""
        raise NotImplementedError


def key_of(model: Iterable[Path], files: Iterable[Path], plan: Any) -> str:
    """The key of a training: the model's files, texts and options (a dataclass) without its duration and number of
    threads."""
    said = sha256(json.dumps(asdict(plan) | {"minutes": 0, "threads": 0}).encode())
    content_of([*model, *files], said)
    return said.hexdigest()


def content_of(files: Iterable[Path], said: Any) -> None:
    """Add files to a hash: their names, sizes and first bytes."""
    for path in files:
        try:
            said.update(f"{path.name} {path.stat().st_size} ".encode())
            with path.open("rb") as file:
                said.update(file.read(1 << 20))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
