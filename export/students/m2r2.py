"""M2R2: low-rank velocity adapters of the first layers (`models/drafts/m2r2.py` has the arithmetic).

Their output starts at zero, so that the first loss is that of the exit without them. The layout is edgedec's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.export.students import Features, StudentFacts, StudentShape, StudentTarget
from edgedec.export.students._layers import RmsNorm, capped, linear, parameters
from edgedec.export.students._student import Student
from edgedec.spec import ModelSpec

FACTS = StudentFacts(ahead=0, early=True, wide=True)


class Accelerator(nn.Module):
    """The adapter of one layer; first: no second stream enters it."""

    def __init__(self, shape: StudentShape, rank: int, first: bool) -> None:
        super().__init__()
        self.state_norm, self.state_proj = RmsNorm(shape.hidden, shape.eps), linear(shape.hidden, rank)
        self.out_proj = linear(rank, shape.hidden, zero=True)
        if not first:
            self.residual_norm, self.residual_proj = RmsNorm(shape.hidden, shape.eps), linear(shape.hidden, rank)

    def forward(self, now: Tensor, p: Tensor | None) -> Tensor:
        x = self.state_proj(self.state_norm(now))
        if p is not None:
            x = x + self.residual_proj(self.residual_norm(p))
        return self.out_proj(functional.silu(x))


class M2R2Student(Student):
    def __init__(self, shape: StudentShape, target: StudentTarget) -> None:
        super().__init__()
        self.shape, self.rank = shape, shape.width or max(16, shape.hidden // 4)
        self.accelerators = nn.ModuleList(Accelerator(shape, self.rank, i == 0) for i in range(shape.layer))
        self.size = 1.0
        self.register_buffer("norm", target.norm, persistent=False)
        self.register_buffer("readout", target.readout, persistent=False)

    @staticmethod
    def depths(spec: ModelSpec, layer: int = 0) -> tuple[int, ...]:
        """States after each of the first layers."""
        return tuple(range(1, layer + 1))

    def begin(self, features: Features) -> None:
        """What is added grows at the pace of the states' size: updates are absolute."""
        self.size = float(features.states[-1].square().mean().sqrt()) + 1e-6

    def stream(self, states: tuple[Tensor, ...]) -> Tensor:
        """States [n, H] after each layer -> p after the last."""
        p = states[0] + self.size * self.accelerators[0](states[0], None)
        for before, now, accelerator in zip(states, states[1:], list(self.accelerators)[1:], strict=False):
            p = p + (now - before) + self.size * accelerator(now, p)
        return p

    def logits(self, features: Features, depth: int) -> Tensor:
        n = len(features) - depth
        p = self.stream(tuple(state[: n + depth - 1] for state in features.states))
        state = functional.rms_norm(p, p.shape[-1:], self.norm, self.shape.eps)
        found = capped(functional.linear(state, self.readout), self.shape.softcap)
        return torch.stack([found[k : k + n] for k in range(depth)])

    def published(self) -> dict[str, Tensor]:
        return {name: self.size * t if "out_proj" in name else t for name, t in parameters(self).items()}

    def config(self) -> Mapping[str, Any]:
        s = self.shape
        return {
            "architectures": ["M2R2Accelerators"],
            "hidden_size": s.hidden,
            "rank": self.rank,
            "rms_norm_eps": s.eps,
            "vocab_size": s.vocab,
            "exit_layer": s.layer,
            "torch_dtype": "float32",
        }


STUDENT = M2R2Student
