"""Training a causal language model to fill masks, by a recipe."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.errors import UsageError
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.diffusion_start import filling_model, lesson_encoder
from edgedec.export.lessons import CanvasStream, LessonEncoder, LessonStream, unpacked
from edgedec.export.recipes import FAMILY, made
from edgedec.export.recipes._following import next_nats
from edgedec.export.recipes._net import FillingNet, cross_entropy
from edgedec.export.recipes._rows import Draws, TextRow, blocks, fillable, noisy
from edgedec.export.row_training import RowTrainer, key_of

SAVE_EVERY = 120.0  # seconds


@dataclass(frozen=True)
class FillingPlan:
    """recipe: as `--recipe` takes it; facts: of the model to be; minutes and steps: whichever is over first (steps 0:
    the minutes alone); rate: the learning rate at its highest; batch: rows of `length` tokens in an update."""

    recipe: str
    facts: DiffusionFacts
    minutes: float = 60.0
    steps: int = 0
    rate: float = 2e-4
    batch: int = 4
    length: int = 256
    seed: int = 0
    threads: int = 1


@dataclass(frozen=True)
class FillingQuality:
    """Of texts held back. masks: nats a masked token, half of each block being masked, and how often the best token is
    the right one; following: nats a next token, None for a model that has none."""

    masks: float
    right: float
    following: float | None


class FillingTrainer(RowTrainer):
    """A model in training, with all its weights."""

    command = "train-diffusion"
    plan: FillingPlan

    def __init__(self, net: FillingNet, files: list[Path], encode: LessonEncoder, plan: FillingPlan) -> None:
        self.rows = CanvasStream if plan.facts.context == "full" else LessonStream
        super().__init__(files, encode, plan, least=1)
        self.net, self.recipe = net, made(plan.recipe, plan.facts)[1]
        self.optimize({name: w for name, w in net.model.named_parameters() if w.requires_grad})

    def row_loss(self, row: list[int], draw: random.Random, progress: float) -> Tensor:
        return self.recipe.loss(self.net, self.text(row), Draws(draw), progress)

    def text(self, row: list[int]) -> TextRow:
        ids, parts = unpacked(row)
        if self.plan.facts.mask in ids:
            raise UsageError(f"--text: a text has token {self.plan.facts.mask}, which is the mask; choose another")
        return TextRow(torch.tensor(ids), torch.tensor(parts))

    def measure(self) -> FillingQuality:
        nats, right, filled, following, followed = 0.0, 0, 0, 0.0, 0
        with torch.no_grad():
            for number, held in enumerate(self.held):
                row, draws = self.text(held), Draws(random.Random(f"{self.plan.seed} held {number}"))
                found = self._filled(row, draws)
                nats, right, filled = nats + found[0], right + int(found[1]), filled + int(found[2])
                more, count = next_nats(self.net, row)
                following, followed = following + more, followed + count
        told = following / followed if followed else None
        return FillingQuality(nats / max(1, filled), right / max(1, filled), told)

    def _filled(self, row: TextRow, draws: Draws) -> tuple[float, float, float]:
        """The sum of nats, the tokens that are right, and all of them, of a row of which half is masked."""
        facts, t = self.net.facts, len(row.tokens)
        block = blocks(t, t if facts.context == "full" else facts.block, 0)
        masked = fillable(row, block, facts.shift) & (draws.uniform(t) < 0.5)
        if not masked.any():
            return 0.0, 0.0, 0.0
        reading = self.net.read(row, noisy(row, masked, block, facts, draws), block)
        logits, target = self.net.logits(self.net.filling(reading, masked)), row.tokens[masked]
        right = (logits.argmax(-1) == target).sum()
        return float(cross_entropy(logits, target).sum()), float(right), float(masked.sum())


def check_recipe(plan: FillingPlan, fills: bool) -> None:
    """UsageError for what the recipe cannot train. fills: whether the checkpoint fills masks already."""
    name, _ = made(plan.recipe, plan.facts)
    if FAMILY.facts(name).goes_on and not fills:
        raise UsageError(
            f"--recipe {name}: makes a model that fills masks faster, and this one fills none yet; train it by nbdiff "
            "or sdar_vl first"
        )
    if plan.facts.context != "full" and plan.facts.block > plan.length:
        raise UsageError(f"--block {plan.facts.block}: must be at most --length {plan.length}")


def opened(folder: Path, plan: FillingPlan, files: list[Path]) -> tuple[FillingTrainer, str]:
    """The training of a checkpoint, and its key."""
    context = Checkpoint.open(folder).spec().context_length
    if plan.length + 1 > context:
        raise UsageError(f"--length {plan.length}: must be less than the {context} tokens that the model reads")
    key = key_of(sorted(folder.glob("*.safetensors")), files, plan)
    name, recipe = made(plan.recipe, plan.facts)
    encode = lesson_encoder(folder)
    model = filling_model(folder, plan.facts, plan.length)
    net = FillingNet(model, plan.facts, str(folder), FAMILY.facts(name).teacher or recipe.keep > 0)
    return FillingTrainer(net, files, encode, plan), key
