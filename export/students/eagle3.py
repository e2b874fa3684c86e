"""EAGLE-3: one layer over the token's embedding and a fusion of the target's hidden states after three depths.

After its first guess it continues from its own state, and is trained so (training-time test): guess k reads the states
of the guesses before it. Its vocabulary has `kept` tokens; `d2t` is the difference of the target's number and its own,
`t2d` marks these tokens in the target's vocabulary. The names are those of SafeAILab's checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from edgedec.export.students import Features, StudentFacts, StudentShape, StudentTarget
from edgedec.export.students._layers import (
    GatedMlp,
    RmsNorm,
    Unrolled,
    UnrolledAttention,
    linear,
    llama_config,
    parameters,
)
from edgedec.export.students._student import Student
from edgedec.spec import ModelSpec

FACTS = StudentFacts(trimmed=True)


def levels(n_layers: int) -> tuple[int, ...]:
    """Low, middle, high: after 2 layers, half of them and all but 3; of few layers, near that."""
    low = min(2, n_layers)
    return low, max(low, n_layers // 2), max(low, n_layers - 3)


class Midlayer(nn.Module):
    def __init__(self, shape: StudentShape) -> None:
        super().__init__()
        self.self_attn = UnrolledAttention(shape, 2 * shape.hidden)
        self.mlp = GatedMlp(shape)
        self.hidden_norm = RmsNorm(shape.hidden, shape.eps)
        self.input_layernorm = RmsNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RmsNorm(shape.hidden, shape.eps)

    def forward(self, embedding: Tensor, state: Tensor, past: Unrolled) -> Tensor:
        x = torch.cat([self.input_layernorm(embedding), self.hidden_norm(state)], -1)
        state = state + self.self_attn(x, past)
        return state + self.mlp(self.post_attention_layernorm(state))


class Eagle3Student(Student):
    def __init__(self, shape: StudentShape, target: StudentTarget) -> None:
        super().__init__()
        self.shape = shape
        self.fc = linear(3 * shape.hidden, shape.hidden)
        self.midlayer = Midlayer(shape)
        self.norm = RmsNorm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.kept, bias=False)
        self.register_buffer("d2t", target.ids - torch.arange(shape.kept))
        self.register_buffer("t2d", torch.zeros(shape.vocab, dtype=torch.bool).index_fill(0, target.ids, True))
        with torch.no_grad():
            self.norm.weight.copy_(target.norm)
            self.lm_head.weight.copy_(target.readout)

    @staticmethod
    def depths(spec: ModelSpec, layer: int = 0) -> tuple[int, ...]:
        return levels(spec.n_layers)

    def begin(self, features: Features) -> None:
        """Start from the highest of the three states, at about size 1."""
        high, low = (float(state.square().mean().sqrt()) + 1e-6 for state in (features.states[-1], features.states[0]))
        with torch.no_grad():
            self.fc.weight.mul_(0.1 / low)
            self.fc.weight[:, -self.shape.hidden :] = torch.eye(self.shape.hidden) / high

    def logits(self, features: Features, depth: int) -> Tensor:
        n, past, found = len(features) - depth, Unrolled(), []
        state = self.fc(torch.cat(features.states, -1)[:n])
        for k in range(depth):
            state = self.midlayer(features.embeddings[1 + k : 1 + k + n], state, past)
            found.append(self.lm_head(self.norm(state)))
        return torch.stack(found)

    def published(self) -> dict[str, Tensor]:
        return parameters(self)

    def config(self) -> Mapping[str, Any]:
        return llama_config(self.shape, "LlamaForCausalLMEagle3") | {
            "hidden_act": "silu",
            "rope_scaling": None,
            "draft_vocab_size": self.shape.kept,
            "tie_word_embeddings": False,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(levels(self.shape.n_layers))},
        }


STUDENT = Eagle3Student
