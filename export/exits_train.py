"""LayerSkip's training: early exits and layer dropout.

Layer l of L is left out of a row with probability `drop` times 2^(l / (L - 1)) - 1: never the first, the last most
often. All exits share the model's own last norm and head. An update trains one exit in `rotate` (the rotational
curriculum); exit e weighs `early` times 0 + … + (e - 1), the whole model L - 1 + `early` times 0 + … + (L - 2),
normalized. An exit learns the text, and by the share `soft` the current prediction of the whole model, because a draft
token is accepted if the model predicts it.

Two other methods train the exits as models of their own (`drafters/nested.py`), on the text alone and without dropout:
`s2d`, the mean loss of all exits and the whole model in each update (Kavehzadeh et al. 2024; read: parsareal/SD2,
`train_soft.py`, by notes); `sortednet`, one of them drawn at random for each row, rows of an update accumulated
(Valipour et al. 2023; read: the abstract).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from edgedec.export import row_training
from edgedec.export.exits_data import Encode
from edgedec.export.exits_model import Early
from edgedec.export.row_training import RowTrainer

SAVE_EVERY = 300.0  # seconds


@dataclass(frozen=True)
class ExitPlan:
    """exits: after how many layers a draft may leave; method: see above, `drop`, `early`, `rotate` and `soft` are
    layerskip's; minutes and steps: whichever is over first (steps 0: the
    minutes alone); rate: the learning rate at its highest; batch: rows of `length` tokens in an update."""

    exits: tuple[int, ...]
    method: Literal["layerskip", "s2d", "sortednet"] = "layerskip"
    drop: float = 0.1
    early: float = 1.0
    rotate: int = 4
    soft: float = 0.5
    minutes: float = 60.0
    steps: int = 0
    rate: float = 5e-5
    batch: int = 8
    length: int = 512
    seed: int = 0
    threads: int = 1


@dataclass(frozen=True)
class ExitQuality:
    """loss: nats a token on text held back; agreement: how often each exit predicts what the whole model does."""

    loss: float
    agreement: dict[int, float]


def default_exits(n_layers: int) -> tuple[int, ...]:
    """From a sixth to two thirds of the layers: what leaves later saves too little."""
    return tuple(range(max(1, n_layers // 6), max(1, n_layers * 2 // 3) + 1)) if n_layers > 1 else ()


def drop_rates(n_layers: int, most: float) -> list[float]:
    """The probability that each layer is left out. Of 3 layers and 0.2: [0, 0.083, 0.2]."""
    return [most * (2 ** (i / max(1, n_layers - 1)) - 1) for i in range(n_layers)]


def shares(exits: list[int], n_layers: int, early: float) -> dict[int, float]:
    """The shares of the loss of each exit and of the whole model. Exit 3 of 4 layers, early 1: {3: 3/9, 4: 6/9}."""
    weights = {e: early * (e - 1) * e / 2 for e in exits}
    weights[n_layers] = n_layers - 1 + early * (n_layers - 2) * (n_layers - 1) / 2 or 1.0
    total = sum(weights.values())
    return {e: weight / total for e, weight in weights.items()}


class ExitTrainer(RowTrainer):
    """A model in training, with all its weights."""

    command = "train-exits"
    plan: ExitPlan

    def __init__(self, early: Early, files: list[Path], encode: Encode, plan: ExitPlan) -> None:
        super().__init__(files, encode, plan)
        self.early = early
        self.optimize(dict(early.model.named_parameters()))

    def row_loss(self, row: list[int], draw: random.Random, progress: float) -> Tensor:
        return self.loss(torch.tensor(row), draw)

    def loss(self, row: Tensor, draw: random.Random) -> Tensor:
        """row [T + 1] -> the weighted mean loss of the whole model and of this update's exits."""
        plan, n = self.plan, len(self.early)
        if plan.method != "layerskip":
            return self._nested(row, draw)
        exits = [e for e in plan.exits if e % plan.rotate == self.steps % plan.rotate]
        skipped = [i for i, rate in enumerate(drop_rates(n, plan.drop)) if draw.random() < rate]
        states, share = self.early.states(row[None, :-1], exits, skipped), shares(exits, n, plan.early)
        logits = self.early.readout(states[n])
        total = functional.cross_entropy(logits, row[1:]) * share[n]
        said = functional.softmax(logits.detach(), -1)
        for e in exits:
            found = self.early.readout(states[e])
            text, model = functional.cross_entropy(found, row[1:]), functional.cross_entropy(found, said)
            total = total + share[e] * ((1 - plan.soft) * text + plan.soft * model)
        return total

    def _nested(self, row: Tensor, draw: random.Random) -> Tensor:
        """The mean loss of the sub-models that this row trains: of all, or of a drawn one."""
        chosen = [*self.plan.exits, len(self.early)]
        if self.plan.method == "sortednet":
            chosen = [draw.choice(chosen)]
        states = self.early.states(row[None, :-1], chosen)
        return torch.stack([functional.cross_entropy(self.early.readout(states[e]), row[1:]) for e in chosen]).mean()

    def measure(self) -> ExitQuality:
        right, loss, tokens = dict.fromkeys(self.plan.exits, 0), 0.0, 0
        with torch.no_grad():
            for ids in self.held:
                row = torch.tensor(ids)
                states = self.early.states(row[None, :-1], self.plan.exits)
                logits = self.early.readout(states[len(self.early)])
                loss += float(functional.cross_entropy(logits, row[1:], reduction="sum"))
                tokens += len(ids) - 1
                for e in right:
                    right[e] += int((self.early.readout(states[e]).argmax(-1) == logits.argmax(-1)).sum())
        return ExitQuality(loss / tokens, {e: found / tokens for e, found in right.items()})


def key_of(folder: Path, files: list[Path], plan: ExitPlan) -> str:
    """The key of a training: checkpoint, texts and options without its duration and number of threads."""
    return row_training.key_of(sorted(folder.glob("*.safetensors")), files, plan)
