"""Training of a cache coprocessor (Deliberation in Latent Space): soft rows read a frozen model's cache and add entries
to it.

A text is cut at a random place. Soft rows read the text before it through the model with low-rank weights; their last
states become rows that go through the frozen model. The text after the place is read with these rows in the cache, and
its cross entropy is the loss. The number of soft rows is drawn from `COUNTS`, so that one training serves all of these.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from edgedec.bundle.adapter import LowRank
from edgedec.bundle.coprocessor import save_coprocessor
from edgedec.bundle.folder import Bundle
from edgedec.errors import UsageError
from edgedec.export.exits_data import Encode
from edgedec.export.heads_features import target_of
from edgedec.export.row_training import RowTrainer
from edgedec.export.students._augmented import AugmentedStack, CoprocessorModel

COUNTS = (1, 2, 4, 8)
_LEAST = 16


@dataclass(frozen=True)
class CoprocessorPlan:
    """entries: the most that it makes; rank: of its weights; ahead: tokens after the place that are learned from;
    minutes and steps: whichever is over first (steps 0: the minutes alone); rate: the highest; batch: texts of
    `length` tokens in an update."""

    entries: int = 8
    rank: int = 16
    ahead: int = 64
    minutes: float = 10.0
    steps: int = 0
    rate: float = 2e-3
    batch: int = 2
    length: int = 256
    seed: int = 0
    threads: int = 1

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of entries that are trained and measured."""
        return (*(n for n in COUNTS if n < self.entries), self.entries)


class CoprocessorTrainer(RowTrainer):
    """A coprocessor in training, with its frozen model."""

    command = "train-cache"
    plan: CoprocessorPlan

    def __init__(self, bundle: Bundle, files: list[Path], encode: Encode, plan: CoprocessorPlan) -> None:
        self.bundle = bundle
        length = min(plan.length, bundle.spec.context_length - 1)
        if length < _LEAST + plan.ahead:
            raise UsageError(f"--length {length}: needs {_LEAST} tokens before and {plan.ahead} after the entries")
        super().__init__(files, encode, plan, length, _LEAST + plan.ahead)
        torch.manual_seed(plan.seed)
        self.stack = AugmentedStack(bundle, torch.device("cpu"))
        self.target = target_of(bundle, np.arange(bundle.spec.vocab_size), torch.device("cpu"))
        self.model = CoprocessorModel(self.stack, plan.entries, plan.rank, self._embedded(self.held[0]))
        self.optimize(dict(self.model.named_parameters()))

    def row_loss(self, row: list[int], draw: random.Random, progress: float) -> Tensor:
        """Of a text cut at a random place, with a random number of entries."""
        at = draw.randint(_LEAST, len(row) - self.plan.ahead - 1)
        return self.loss(row[: at + self.plan.ahead + 1], at, draw.choice(self.plan.counts))

    def loss(self, row: list[int], at: int, n: int, other: list[int] | None = None) -> Tensor:
        """Nats a token of row[at + 1 :] after row[: at + 1], with n entries after row[: at]; n 0: with none. other: the
        text that is read for the entries instead of this one."""
        x, place = self._embedded(row[:-1]), torch.arange(len(row) - 1)
        _, past = self.stack.after(x[:at], place[:at], None)
        if n:
            past = self.entries(past, at, n, past if other is None else self._past(other[:at]))
        states, _ = self.stack.after(x[at:], place[at:], past)
        normed = functional.rms_norm(states, states.shape[-1:], self.target.norm, self.bundle.spec.norm_eps)
        logits = functional.linear(normed, self.target.readout)
        if cap := self.bundle.spec.final_softcap:
            logits = cap * torch.tanh(logits / cap)
        return functional.cross_entropy(logits, torch.tensor(row[at + 1 :]))

    def entries(self, past: Any, at: int, n: int, read: Any) -> Any:
        """The cache with n entries that are made of the cache `read`."""
        place, last = torch.full((n,), at - 1), read[1][-1:].expand(n)
        states, _ = self.stack.after(self.model.size * self.model.soft[:n], last, read, self.model.deltas())
        _, more = self.stack.after(self.model.rows(states), place, past)
        return more

    def _past(self, row: list[int]) -> Any:
        """The cache of a text."""
        return self.stack.after(self._embedded(row), torch.arange(len(row)), None)[1]

    def measure(self, others: bool = False) -> dict[int, float]:
        """The perplexity of what follows, on texts held back, by the number of entries (0: none). others: with entries
        made from another text's cache, to see how much of the gain does not come from this text."""
        found = {}
        with torch.no_grad():
            for n in (0, *self.plan.counts):
                losses = [self._held_loss(i, n, others) for i in range(len(self.held))]
                found[n] = float(np.exp(np.mean(losses)))
        return found

    def _held_loss(self, i: int, n: int, others: bool) -> float:
        row, other = self.held[i], self.held[(i + 1) % len(self.held)]
        return float(self.loss(row, len(row) - self.plan.ahead - 1, n, other if others else None))

    def _embedded(self, row: list[int]) -> Tensor:
        scale = np.float32(self.bundle.spec.embed_scale)
        return torch.from_numpy(self.bundle.gather("embed", np.asarray(row, np.int64)) * scale)

    # ---- files

    def write(self, path: Path) -> None:
        """The coprocessor's file."""
        held = {name: tuple(t.detach().numpy() for t in pair) for name, pair in self.model.deltas().items()}
        low = {name: LowRank(np.ascontiguousarray(a), np.ascontiguousarray(b)) for name, (b, a) in held.items()}
        soft, out = (self.model.size * w.detach().numpy() for w in (self.model.soft, self.model.out))
        save_coprocessor(path, self.bundle.spec, soft.astype(np.float32), out.astype(np.float32), low)


def key_of(bundle: Bundle, files: list[Path], plan: CoprocessorPlan) -> str:
    """The key of a training: model, texts and options without its duration and number of threads."""
    weights = bundle.manifest.files[bundle.manifest.weights].sha256
    said = sha256(json.dumps([weights, asdict(plan) | {"minutes": 0, "threads": 0}]).encode())
    for path in files:
        with path.open("rb") as file:
            said.update(f"{path.stat().st_size} ".encode() + file.read(1 << 20))
    return said.hexdigest()
