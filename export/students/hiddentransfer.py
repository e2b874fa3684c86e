"""Hidden Transfer: matrices that make pseudo states of tokens to come from the state after one of the target's layers.

Matrix k makes the state of the token after the next k ones; it runs through the frozen layers that follow, and the
target's own head reads it. The loss is the divergence from what the model itself says there. Depth and layer are ours,
the paper's were not to be found: after a third of the layers by default. The layout is edgedec's.
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

# As of `prompt`: each row of a text is run `depth` times. It reads an early layer, but follows the whole model.
FACTS = StudentFacts(length=128, early=True, ahead=1)


class TransferStudent(Student):
    def __init__(self, shape: StudentShape, target: StudentTarget) -> None:
        super().__init__()
        assert target.bundle is not None
        self.shape, self.stack = shape, FrozenStack(target.bundle, target.norm.device)
        self.first = target.bundle.spec.span(0, shape.layer).stop
        self.transfers = nn.ModuleList(nn.Linear(shape.hidden, shape.hidden, bias=False) for _ in range(shape.depth))
        for one in self.transfers:
            nn.init.eye_(one.weight)
        self.register_buffer("norm", target.norm, persistent=False)
        self.register_buffer("readout", target.readout, persistent=False)

    @staticmethod
    def check(spec: ModelSpec) -> None:
        require_frozen(spec)

    @staticmethod
    def depths(spec: ModelSpec, layer: int = 0) -> tuple[int, ...]:
        return (layer,)

    def logits(self, features: Features, depth: int) -> Tensor:
        n = len(features) - depth
        past = self.stack.read(features.embeddings[:n])
        x = torch.stack([self.transfers[k](features.states[0][:n]) for k in range(depth)], 1)
        states = self.stack.ahead(x, past, self.first).transpose(0, 1)
        normed = functional.rms_norm(states, states.shape[-1:], self.norm, self.shape.eps)
        return capped(functional.linear(normed, self.readout), self.shape.softcap)

    def published(self) -> dict[str, Tensor]:
        return {f"transfers.{k}.weight": one.weight.detach() for k, one in enumerate(self.transfers)}

    def config(self) -> Mapping[str, Any]:
        s = self.shape
        return {
            "architectures": ["HiddenTransfer"],
            "hidden_size": s.hidden,
            "vocab_size": s.vocab,
            "transfer_layer": s.layer,
            "torch_dtype": "float32",
        }


STUDENT = TransferStudent
