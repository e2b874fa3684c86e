"""Prompt tokens of parallel prompt decoding (PPD): embeddings that the target itself turns into guesses.

Prompt token k after a row takes the place of the k-th next token; the target's prediction after it is guess k. Only
these embeddings are trained, through the frozen target: `depth` times the hidden size parameters. The layout is
edgedec's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.export.students import Features, StudentFacts, StudentShape, StudentTarget
from edgedec.export.students._frozen import FrozenStack, require_frozen
from edgedec.export.students._layers import capped
from edgedec.export.students._student import Student
from edgedec.spec import ModelSpec

# Rows of a text in an update: each is run `depth` times through all layers, and back.
FACTS = StudentFacts(length=128)


class PromptStudent(Student):
    def __init__(self, shape: StudentShape, target: StudentTarget) -> None:
        super().__init__()
        assert target.bundle is not None
        self.shape, self.stack = shape, FrozenStack(target.bundle, target.norm.device)
        self.prompts = nn.Embedding(shape.depth, shape.hidden)
        self.register_buffer("norm", target.norm, persistent=False)
        self.register_buffer("readout", target.readout, persistent=False)
        self.size = 1.0

    @staticmethod
    def check(spec: ModelSpec) -> None:
        require_frozen(spec)

    def begin(self, features: Features) -> None:
        """Start near the mean embedding, at a usual size; updates are as large as embeddings are."""
        self.size = float(features.embeddings.std()) + 1e-6
        with torch.no_grad():
            mean = features.embeddings.mean(0) / self.size
            self.prompts.weight.copy_(mean + 0.5 * torch.randn_like(self.prompts.weight))

    def logits(self, features: Features, depth: int) -> Tensor:
        n = len(features) - depth
        past = self.stack.read(features.embeddings[:n])
        x = (self.size * self.prompts.weight[:depth]).expand(n, depth, -1)
        states = self.stack.ahead(x, past).transpose(0, 1)
        normed = functional.rms_norm(states, states.shape[-1:], self.norm, self.shape.eps)
        return capped(functional.linear(normed, self.readout), self.shape.softcap)

    def published(self) -> dict[str, Tensor]:
        return {"prompts.weight": self.size * self.prompts.weight.detach()}

    def config(self) -> Mapping[str, Any]:
        s = self.shape
        return {
            "architectures": ["PromptTokens"],
            "hidden_size": s.hidden,
            "num_prompt_tokens": s.depth,
            "vocab_size": s.vocab,
            "torch_dtype": "float32",
        }


STUDENT = PromptStudent
