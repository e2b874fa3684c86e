"""Training of draft heads: run the model on texts, train a head on the results, put it into the bundle.

The training is limited by time: the learning rate rises over the first steps and falls to zero at the end of the
minutes. The data and a checkpoint are kept in the work folder, so that an interrupted run can be resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile

import numpy as np
from safetensors import SafetensorError

from edgedec.bundle.folder import Bundle
from edgedec.bundle.manifest import MANIFEST, Head
from edgedec.export import training_loop
from edgedec.export.heads import Facts, build, install
from edgedec.export.heads_data import Data, Progress, collect, key_of, windows
from edgedec.export.heads_trainer import HeadTrainer, TrainingPlan
from edgedec.export.token_counts import put_counts
from edgedec.models.heads import architecture
from edgedec.runtime import Runtime
from edgedec.storage.files import replacing_folder

__all__ = ["Trained", "TrainingPlan", "architecture", "run", "train"]

SAVE_EVERY = 30.0  # seconds


@dataclass(frozen=True)
class Trained:
    """bundle: as it is with the head in it; tokens: the number of training tokens; accuracy: on held-out texts, for
    each depth the share of first guesses that equal the model's prediction, given the right tokens before; covered: the
    share of predictions in the readout's vocabulary."""

    bundle: Bundle
    facts: Facts
    tokens: int
    steps: int
    loss: float
    accuracy: tuple[float, ...]
    covered: float

    @property
    def head(self) -> Head:
        return self.bundle.manifest.heads[self.facts.kind]


def run(
    bundle: Bundle,
    runtime: Runtime,
    texts: Sequence[Sequence[int]],
    plan: TrainingPlan,
    work: Path | None,
    show: Progress,
    out: Path | None = None,
    force: bool = False,
) -> Trained:
    """Read the texts, train a head on them, put it into a copy of the bundle at `out` (None: into the bundle itself).
    Data and checkpoint stay in `work`. `force`: `out` may exist."""
    architecture(plan.kind)
    pieces = windows(texts, runtime.spec.context_length, bundle.manifest.text.bos)
    key = key_of(bundle, runtime.name, plan.layer, pieces)
    data = _data(runtime, pieces, plan.layer, None if work is None else work / f"read-{key}.safetensors", show)
    trainer, loss = train(bundle, data, plan, work, key, show)
    arrays = trainer.arrays()
    graph = build(plan.kind, arrays, trainer.facts)
    if out is None:
        bundle = put_counts(install(bundle, graph, arrays, trainer.facts), data.labels)
    else:
        with replacing_folder(out, force=force) as staging:
            put_counts(install(copied(bundle, staging), graph, arrays, trainer.facts), data.labels)
        bundle = Bundle.open(out)
    covered = float(np.isin(data.labels[trainer.held], trainer.ids).mean())
    return Trained(bundle, trainer.facts, len(data.tokens), trainer.steps, loss, trainer.measure(), covered)


def copied(bundle: Bundle, folder: Path) -> Bundle:
    """The same bundle in another folder."""
    for name in (MANIFEST, *bundle.manifest.files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copyfile(bundle.path / name, folder / name)
    return Bundle.open(folder)


def _data(runtime: Runtime, pieces: Sequence[Sequence[int]], layer: int, kept: Path | None, show: Progress) -> Data:
    """The kept data, or new data from the texts."""
    if kept is not None and kept.exists():
        try:
            return Data.load(kept)
        except (SafetensorError, TypeError):
            show("read", 0, 1)  # damaged: again
    data = collect(runtime, pieces, layer, show)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        data.save(kept)
    return data


def train(
    bundle: Bundle, data: Data, plan: TrainingPlan, work: Path | None, key: str, show: Progress
) -> tuple[HeadTrainer, float]:
    """Train until the time or the steps are over; goes on from, and leaves, a checkpoint in `work`. -> (it, loss)"""
    trainer = HeadTrainer(bundle, data, plan)
    facts = trainer.facts
    key = f"{key} {plan.kind} {facts.depth} {facts.width} {plan.keep} {plan.labels} {plan.seed}"
    path = None if work is None else work / f"{plan.kind}.checkpoint.safetensors"
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    return trainer, training_loop.train(trainer, path, key, show, SAVE_EVERY)
