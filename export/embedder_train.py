"""Training of text encoders on a user's own texts (`embedder_net.py`)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM
from transformers.utils import logging

from edgedec.errors import CheckpointError, UsageError
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.embedder_net import DuplexLosses, DuplexNet, term_scores
from edgedec.export.embedder_texts import LEAST, PassageReader, PassageStream, batch_of, padded
from edgedec.export.exits_data import documents, is_held
from edgedec.export.row_training import RowTrainer
from edgedec.export.safetensors import read_json
from edgedec.export.shards import INDEX, SINGLE
from edgedec.models import architecture


@dataclass(frozen=True)
class EmbedderPlan:
    """minutes and steps: whichever is over first (steps 0: the minutes alone); rate: the learning rate at its highest;
    batch: passages of at most `length` tokens in an update. cls, bag: weights of the two decodings."""

    minutes: float = 10.0
    steps: int = 0
    rate: float = 1e-4
    batch: int = 32
    length: int = 128
    seed: int = 0
    threads: int = 1
    cls: float = 1.0
    bag: float = 0.1


ENCODER_SHARE, DECODER_SHARE = 0.3, 0.5  # of the words, hidden from each
_TOGETHER = 32  # passages that are measured or embedded in a call


def files_of(folder: Path) -> list[Path]:
    """The files that a training begins with."""
    return sorted([folder / "config.json", *folder.glob("*.safetensors")])


def is_new(folder: Path) -> bool:
    """Whether a folder has a config and no weights: the training starts from random ones."""
    return not any((folder / name).exists() for name in (SINGLE, INDEX))


def open_network(folder: Path, length: int, seed: int) -> DuplexNet:
    """The encoder of a checkpoint as transformers has it, of which edgedec must have the architecture."""
    config = read_json(folder / "config.json")
    family = architecture(config)
    spec = family.spec(config)
    if spec.causal or not family.FACTS.encodes:
        raise CheckpointError(f"{folder}: {spec.architecture} generates text; train-embedder trains text encoders")
    if not LEAST + 2 <= length <= spec.context_length:
        raise UsageError(f"--length {length}: this model reads {spec.context_length} tokens, and takes {LEAST + 2}")
    torch.manual_seed(seed)
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # of a head that the checkpoint lacks
    try:
        if is_new(folder):
            lm = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
        else:
            checkpoint = Checkpoint.open(folder)
            checkpoint.weights(checkpoint.spec())
            lm = AutoModelForMaskedLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False, use_safetensors=True
            )
    except (ValueError, KeyError, OSError) as error:
        raise CheckpointError(f"{folder}: transformers cannot read it ({' '.join(str(error).split())[:200]})") from None
    return DuplexNet(lm, length)


class EmbedderTrainer(RowTrainer):
    """An encoder in training."""

    command = "train-embedder"
    plan: EmbedderPlan
    rows = PassageStream

    def __init__(self, folder: Path, files: list[Path], plan: EmbedderPlan) -> None:
        self.folder, self.new = folder, is_new(folder)
        self.net = open_network(folder, plan.length, plan.seed)
        self.reader = PassageReader.open(folder, self.net.lm.config.vocab_size)
        self.files = files
        super().__init__(files, self.reader, plan, plan.length - 1)
        self.optimize(dict(self.net.named_parameters()))

    def losses(self, rows: Sequence[list[int]], draw: random.Random, progress: float) -> Iterator[Tensor]:
        """One, of all passages of an update together."""
        torch.manual_seed(draw.getrandbits(62))
        batch = batch_of(rows, self.reader.inner, ENCODER_SHARE, DECODER_SHARE)
        net, plan = self.net.train(), self.plan
        if not (plan.cls or plan.bag):
            yield len(rows) * net.masked_loss(batch, self.reader.mask)
            return
        found = net.losses(batch, self.reader.mask)
        yield len(rows) * (found.encoder + plan.cls * found.decoder + plan.bag * found.bag)

    def measure(self) -> DuplexLosses:
        """The three losses on texts held back, whole."""
        rows = [self.passage(text) for text in self.held]
        found = []
        with torch.no_grad():
            self.net.eval()
            torch.manual_seed(self.plan.seed)
            for at in range(0, len(rows), _TOGETHER):
                batch = batch_of(rows[at : at + _TOGETHER], self.reader.inner, ENCODER_SHARE, DECODER_SHARE)
                found.append(torch.stack(self.net.losses(batch, self.reader.mask)))
        return DuplexLosses(*torch.stack(found).mean(0))

    def texts(self, most: int) -> list[str]:
        """Texts that are trained on, the first of the data."""
        found = (text for path in self.files for text in documents(path) if not is_held(text))
        return list(islice((text for text in found if len(self.reader.ids(text)) >= LEAST), most))

    def passage(self, text: str) -> list[int]:
        """A text, cut to the length that is trained."""
        return self.reader.passage(self.reader.ids(text)[: self.plan.length - 2])

    def embedded(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The state [n, hidden] of [CLS] and the scores [n, vocabulary] of terms of texts, nothing hidden."""
        rows, cls, scores = list(map(self.passage, texts)), list[Tensor](), list[Tensor]()
        with torch.no_grad():
            self.net.eval()
            for at in range(0, len(rows), _TOGETHER):
                ids, kept = padded(rows[at : at + _TOGETHER])
                states = self.net.states(ids, kept)
                cls.append(states[:, 0])
                scores.append(term_scores(self.net.logits(states), kept))
        return torch.cat(cls), torch.cat(scores)
