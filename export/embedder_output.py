"""What a trained encoder gives for a text, and the files that say so.

The paper learns the matrix that makes [CLS] smaller, and the scale of the terms, in a later training on labelled
questions. Without such, ours: both parts are centred on passages of the training. [CLS] is whitened (Su et al. 2021,
arXiv:2103.15316): the directions in which passages differ most, each divided by its deviation. The scores of terms lose
their mean, then weights are log(1 + relu) of them as SPLADE's, and the `top` largest count. Each part has length
sqrt(1/2), so a product of two embeddings is the mean of two cosines.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from edgedec.errors import UsageError
from edgedec.export.embedder_train import EmbedderTrainer
from edgedec.export.exits_model import write_model
from edgedec.export.sentence_modules import MODULES, SETTINGS
from edgedec.models import architecture

FITTED_ON = 2048  # passages
_SMALLEST = 1e-3  # of the largest deviation; directions of less are noise


@dataclass(frozen=True)
class FittedOutput:
    """matrix [n, hidden], bias [n]: of [CLS]; mean [vocabulary]: of the scores of terms; top: terms of an embedding, 0:
    it is [CLS] alone."""

    matrix: Tensor
    bias: Tensor
    mean: Tensor
    top: int

    def vectors(self, cls: Tensor, scores: Tensor) -> Tensor:
        """Of texts: [n, hidden], [n, vocabulary] -> their embeddings."""
        dense = functional.normalize(functional.linear(cls, self.matrix, self.bias), dim=-1)
        if not self.top:
            return dense
        weights = (scores - self.mean).relu().log1p()
        best, terms = weights.topk(self.top)
        sparse = functional.normalize(torch.zeros_like(weights).scatter(1, terms, best), dim=-1)
        return torch.cat([dense, sparse], 1) * 0.5**0.5


def check_terms(trainer: EmbedderTrainer, top: int) -> None:
    """UsageError if embeddings of this encoder cannot have so many terms."""
    config = trainer.net.lm.config
    if top and architecture(config.to_dict()).FACTS.terms is None:
        raise UsageError(f"--terms {top}: embeddings with terms are of BERT and DistilBERT, not of {config.model_type}")
    if top >= config.vocab_size:
        raise UsageError(f"--terms {top}: the vocabulary has {config.vocab_size} tokens")


def fit(trainer: EmbedderTrainer, rows: list[list[int]], dimensions: int, top: int) -> FittedOutput:
    """The output for the encoder as it is now. rows: passages of the training; dimensions: of [CLS], 0: all that they
    tell apart."""
    cls, scores = trainer.embedded(rows)
    mean = cls.mean(0)
    _, deviations, directions = torch.linalg.svd(cls - mean, full_matrices=False)
    deviations = deviations / len(rows) ** 0.5
    known = int((deviations > _SMALLEST * deviations[0]).sum())
    if known < max(dimensions, 1):
        raise UsageError(f"--dimensions {dimensions}: {len(rows)} passages of the data differ in {known} directions")
    n = dimensions or known
    matrix = directions[:n] / deviations[:n, None]
    return FittedOutput(matrix, -matrix @ mean, scores.mean(0), top)


def write_encoder(trainer: EmbedderTrainer, output: FittedOutput, out: Path) -> None:
    """The checkpoint with sentence-transformers' files; those of terms are edgedec's own."""
    lm = trainer.net.lm
    write_model(lm, trainer.folder, out)
    if trainer.new:
        _write(out / SETTINGS, {"max_seq_length": trainer.plan.length, "do_lower_case": False})
    matrix, bias = output.matrix.contiguous(), output.bias.contiguous()
    if output.top:
        head = lm.get_output_embeddings().bias.detach() - output.mean
        _tensors(out / "1_Duplex", {"cls.weight": matrix, "cls.bias": bias, "terms.bias": head})
        _write(out / "1_Duplex" / "config.json", {"cls": len(matrix), "top": output.top})
        _write(out / MODULES, _modules(("", "MLMTransformer"), ("1_Duplex", "Duplex")))
        return
    pooling = {"word_embedding_dimension": matrix.shape[1], "pooling_mode_cls_token": True}
    _write(out / "1_Pooling" / "config.json", {**pooling, "pooling_mode_mean_tokens": False})
    _tensors(out / "2_Dense", {"linear.weight": matrix, "linear.bias": bias})
    identity = "torch.nn.modules.linear.Identity"
    sizes = {"in_features": matrix.shape[1], "out_features": len(matrix)}
    _write(out / "2_Dense" / "config.json", {**sizes, "bias": True, "activation_function": identity})
    names = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Normalize", "Normalize"))
    _write(out / MODULES, _modules(*names))


def _modules(*names: tuple[str, str]) -> list[dict[str, Any]]:
    """Paths and classes, in the words of modules.json."""
    package = {"Duplex": "edgedec"}
    return [
        {"idx": i, "name": str(i), "path": path, "type": f"{package.get(name, 'sentence_transformers.models')}.{name}"}
        for i, (path, name) in enumerate(names)
    ]


def _tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _write(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
