"""Kangaroo's adapter: an attention layer without an MLP, and a norm, from the states after the first layers to the
input of the target's head. Every drafted token goes through those layers, so one guess per row is trained.

The names are those of the authors' checkpoints (`layers.0`, `norm`); `exit_layer` in its config is ours, since there
the layer stands on the command line only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.export.students import Features, StudentFacts, StudentShape, StudentTarget
from edgedec.export.students._layers import RmsNorm, Unrolled, UnrolledAttention, capped, llama_config, parameters
from edgedec.export.students._student import Student
from edgedec.spec import ModelSpec

FACTS = StudentFacts(ahead=0, early=True)


class AdapterLayer(nn.Module):
    def __init__(self, shape: StudentShape) -> None:
        super().__init__()
        self.self_attn = UnrolledAttention(shape, shape.hidden)
        self.input_layernorm = RmsNorm(shape.hidden, shape.eps)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.self_attn(self.input_layernorm(x), Unrolled())


class KangarooStudent(Student):
    def __init__(self, shape: StudentShape, target: StudentTarget) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList([AdapterLayer(shape)])
        self.norm = RmsNorm(shape.hidden, shape.eps)
        self.register_buffer("readout", target.readout, persistent=False)
        with torch.no_grad():
            self.norm.weight.copy_(target.norm)

    @staticmethod
    def depths(spec: ModelSpec, layer: int = 0) -> tuple[int, ...]:
        return (layer,)

    def logits(self, features: Features, depth: int) -> Tensor:
        n, found = len(features) - depth, []
        state = self.norm(self.layers[0](features.states[0][: n + depth - 1]))
        for k in range(depth):
            found.append(capped(functional.linear(state[k : k + n], self.readout), self.shape.softcap))
        return torch.stack(found)

    def published(self) -> dict[str, Tensor]:
        return parameters(self)

    def config(self) -> Mapping[str, Any]:
        return llama_config(self.shape, "AdapterModel") | {"exit_layer": self.shape.layer}


STUDENT = KangarooStudent
