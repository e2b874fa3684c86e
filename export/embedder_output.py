"""What a trained encoder gives for a text, and the files that say so.

The paper puts a smaller [CLS] and the weightiest terms beside each other; it learns the matrix for the first, and the
scale of the second, in a later training on labelled questions (from memory; the code has no such embedding). Without
questions, ours: both parts are centred on texts of the training. [CLS] is whitened (Su et al. 2021, arXiv:2103.15316):
the directions in which texts differ most, each divided by its deviation. The scores of terms lose their mean, then
weights are log(1 + relu) of them as SPLADE's, and the `top` largest count. Each part has length 1 and then a share of
the product of two embeddings: that by which sentences of texts of the training find their texts best.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from edgedec.errors import UsageError
from edgedec.export.embedder_retrieval import Retrieval, questions, retrieval
from edgedec.export.embedder_train import EmbedderTrainer
from edgedec.export.exits_model import write_model
from edgedec.export.sentence_modules import MODULES, SETTINGS
from edgedec.models import architecture

FITTED_ON, _ASKED = 2048, 512  # texts
_SHARES = tuple(i / 10 for i in range(11))
_SMALLEST = 1e-2  # of the largest deviation; directions of less are noise


@dataclass(frozen=True)
class FittedOutput:
    """matrix [n, hidden], bias [n]: of [CLS]; mean [vocabulary]: of the scores of terms; top: terms of an embedding, 0:
    it is [CLS] alone; share: of the terms in a product of two."""

    matrix: Tensor
    bias: Tensor
    mean: Tensor
    top: int
    share: float = 0.0

    def vectors(self, cls: Tensor, scores: Tensor) -> Tensor:
        """Of texts: [n, hidden], [n, vocabulary] -> their embeddings."""
        dense = functional.normalize(functional.linear(cls, self.matrix, self.bias), dim=-1)
        if not self.top:
            return dense
        weights = (scores - self.mean).relu().log1p()
        best, terms = weights.topk(self.top)
        sparse = functional.normalize(torch.zeros_like(weights).scatter(1, terms, best), dim=-1)
        return torch.cat([dense * (1 - self.share) ** 0.5, sparse * self.share**0.5], 1)

    @property
    def width(self) -> int:
        return len(self.matrix) + (len(self.mean) if self.top else 0)


def check_sizes(trainer: EmbedderTrainer, dimensions: int, top: int) -> None:
    """UsageError if embeddings of this encoder cannot have so many values of [CLS] and terms."""
    config = trainer.net.lm.config
    if dimensions > config.hidden_size:
        raise UsageError(f"--dimensions {dimensions}: [CLS] of this encoder has {config.hidden_size} values")
    if top and architecture(config.to_dict()).FACTS.terms is None:
        raise UsageError(f"--terms {top}: embeddings with terms are of BERT and DistilBERT, not of {config.model_type}")
    if top >= config.vocab_size:
        raise UsageError(f"--terms {top}: the vocabulary has {config.vocab_size} tokens")


def fit(trainer: EmbedderTrainer, texts: Sequence[str], dimensions: int, top: int) -> FittedOutput:
    """The output for the encoder as it is now. texts: of the training; dimensions: of [CLS], 0: all that they tell
    apart, which are fewer where texts of the training do not differ in as many directions."""
    cls, scores = trainer.embedded(texts)
    cls = cls.double()
    mean = cls.mean(0)
    _, deviations, directions = torch.linalg.svd(cls - mean, full_matrices=False)
    deviations = deviations / len(texts) ** 0.5
    known = int((deviations > _SMALLEST * deviations[0]).sum())
    if not known:
        raise UsageError(f"the encoder gives the same for all of {len(texts)} texts of the data")
    n = min(dimensions or known, known)
    matrix = directions[:n] / deviations[:n, None]
    found = FittedOutput(matrix.float(), -(matrix @ mean).float(), scores.mean(0), top)
    return _weighed(trainer, found, questions(texts[:_ASKED], trainer.plan.seed)) if top else found


def _weighed(trainer: EmbedderTrainer, output: FittedOutput, asked: Sequence[tuple[str, str]]) -> FittedOutput:
    """With the share of the terms by which texts are found best; half if there is nothing to find."""
    if not asked:
        return replace(output, share=0.5)
    sides = [trainer.embedded(side) for side in zip(*asked, strict=True)]
    tried = [replace(output, share=share) for share in _SHARES]
    return max(tried, key=lambda one: retrieval(*(one.vectors(*side) for side in sides)).mrr)


def measure(trainer: EmbedderTrainer, output: FittedOutput, asked: Sequence[tuple[str, str]]) -> Retrieval:
    """How well the trainer's encoder with this output finds the texts of questions."""
    if not asked:
        return Retrieval(0, 0.0, 0.0)
    return retrieval(*(output.vectors(*trainer.embedded(side)) for side in zip(*asked, strict=True)))


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
        _write(out / "1_Duplex" / "config.json", {"cls": len(matrix), "top": output.top, "share": output.share})
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
