"""Heads after every third layer, and a controller that says of a state there: continue, exit or stop.

Training as in the authors' code (v587su/SEC), on the text itself: the backbone stays as it is, the heads' cross
entropies are summed. The controller's class at exit j of a token: stop if no exit and not the whole model predicts it,
exit if an exit up to j does, continue otherwise; its cross entropies are weighted by j over their sum. The authors
train the controller after the heads; here both go on together, on parameters of their own, with the heads' latest
predictions as labels. The layout is edgedec's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.errors import UsageError
from edgedec.export.students import Features, StudentFacts, StudentShape, StudentTarget
from edgedec.export.students._student import Student
from edgedec.spec import ModelSpec

FACTS = StudentFacts(ahead=0)
_EVERY = 3
CONTINUE, EXIT, STOP = range(3)


def exits(n_layers: int) -> tuple[int, ...]:
    """After layers 1, 4, 7 …, without the last."""
    return tuple(range(1, n_layers, _EVERY))


class SecStudent(Student):
    def __init__(self, shape: StudentShape, target: StudentTarget) -> None:
        super().__init__()
        if len(target.ids) < shape.vocab:
            raise UsageError("sec: heads of early layers have the whole vocabulary; use --vocab-trim 0")
        self.shape, self.places = shape, exits(shape.n_layers)
        self.lm_heads = nn.ModuleList(nn.Linear(shape.hidden, shape.kept, bias=False) for _ in self.places)
        self.controller = nn.Linear(shape.hidden, 3, bias=False)
        nn.init.zeros_(self.controller.weight)
        self.register_buffer("readout", target.readout * target.norm, persistent=False)

    @staticmethod
    def depths(spec: ModelSpec, layer: int = 0) -> tuple[int, ...]:
        return exits(spec.n_layers)

    def begin(self, features: Features) -> None:
        """The heads begin as the target's on states of a usual size."""
        with torch.no_grad():
            for head, states in zip(self.lm_heads, features.states, strict=True):
                head.weight.copy_(self.readout / (states.square().mean().sqrt() + 1e-6))

    def logits(self, features: Features, depth: int) -> Tensor:
        """Of the last exit, for measuring."""
        n = len(features) - depth
        return torch.stack([self.lm_heads[-1](features.states[-1][k : k + n]) for k in range(depth)])

    def own_loss(self, features: Features) -> Tensor:
        """Of the heads and of the controller."""
        truth, total, right = features.tokens[1:], torch.zeros((), device=features.last.device), list[Tensor]()
        for head, states in zip(self.lm_heads, features.states, strict=True):
            logits = head(states[:-1])
            total = total + functional.cross_entropy(logits, truth)
            right.append(logits.detach().argmax(-1) == truth)
        labels = classes(torch.stack(right), features.said[:-1] == truth)
        weights = range(1, len(right) + 1)
        for j, (states, label) in enumerate(zip(features.states, labels, strict=True), 1):
            each = functional.cross_entropy(self.controller(states[:-1]), label)
            total = total + j / sum(weights) * each
        return total

    def published(self) -> dict[str, Tensor]:
        found = {f"lm_heads.{i}.weight": head.weight.detach() for i, head in enumerate(self.lm_heads)}
        return found | {"controller.weight": self.controller.weight.detach()}

    def config(self) -> Mapping[str, Any]:
        s = self.shape
        return {
            "architectures": ["StopExitController"],
            "hidden_size": s.hidden,
            "vocab_size": s.vocab,
            "exit_layers": list(self.places),
            "torch_dtype": "float32",
        }


def classes(right: Tensor, whole: Tensor) -> Tensor:
    """right: bool [exits, n], whether each exit predicts a token; whole [n]: whether the model does -> [exits, n].

    exits 0 1 0, whole 0 -> continue, exit, exit; exits 0 0, whole 1 -> continue twice; nobody -> stop everywhere
    """
    found = torch.where(right.cummax(0).values, EXIT, CONTINUE)
    return torch.where(right.any(0) | whole, found, STOP)


STUDENT = SecStudent
