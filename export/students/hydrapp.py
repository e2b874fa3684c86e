"""Hydra++: a layer with attention over the target's last states, then heads that read the tokens before theirs.

The prefix layer turns the normed last hidden states into one state of the whole text; head i reads it and the
embeddings of the i + 1 tokens after it. The names are those of the authors' checkpoints (`prefix-mlp`, grounded),
their spelling included. A head's readout is the target's own and stays; the layout stores it once a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.errors import UsageError
from edgedec.export.students import Features, StudentShape, StudentTarget
from edgedec.export.students._layers import GatedMlp, RmsNorm, Unrolled, UnrolledAttention, capped, parameters
from edgedec.export.students._student import Student
from edgedec.spec import Attention, Block, Mlp, ModelSpec


def _is_plain(block: Block) -> bool:
    """Whether it is like a block of Llama."""
    if isinstance(block, Attention):
        return block.qk_norm == "none" and not block.qkv_bias and not block.o_bias
    return isinstance(block, Mlp) and block.gated and block.activation == "silu" and not block.bias


class PrefixLayer(nn.Module):
    def __init__(self, shape: StudentShape) -> None:
        super().__init__()
        self.self_attn = UnrolledAttention(shape, shape.hidden)
        self.mlp = GatedMlp(shape)
        self.input_layernorm = RmsNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RmsNorm(shape.hidden, shape.eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), Unrolled())
        return x + self.mlp(self.post_attention_layernorm(x))


class PrefixStack(nn.Module):
    def __init__(self, shape: StudentShape, norm: Tensor) -> None:
        super().__init__()
        self.layers = nn.ModuleList([PrefixLayer(shape)])
        self.norm = RmsNorm(shape.hidden, shape.eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layers[0](x))


class ResBlock(nn.Module):
    """r(x) + silu(l(x)); r is a matrix where tokens are read as well."""

    def __init__(self, hidden: int, tokens: int) -> None:
        super().__init__()
        self.linear = nn.Linear((1 + tokens) * hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.res_connection = nn.Linear((1 + tokens) * hidden, hidden) if tokens else nn.Identity()
        if tokens:
            nn.init.zeros_(self.res_connection.bias)
            with torch.no_grad():
                self.res_connection.weight.copy_(torch.eye(hidden, (1 + tokens) * hidden))

    def forward(self, x: Tensor) -> Tensor:
        return self.res_connection(x) + functional.silu(self.linear(x))


class HydraPlusStudent(Student):
    def __init__(self, shape: StudentShape, target: StudentTarget) -> None:
        super().__init__()
        self.shape = shape
        self.prefix_embeding_layer = PrefixStack(shape, target.norm)
        self.hydra_mlp = nn.ModuleList(
            nn.Sequential(
                nn.Dropout(0.0),
                ResBlock(shape.hidden, i + 1),
                *([nn.Dropout(0.0), ResBlock(shape.hidden, 0)] * (shape.blocks - 1)),
            )
            for i in range(shape.depth)
        )
        self.register_buffer("readout", target.readout, persistent=False)
        self.register_buffer("final_norm", target.norm, persistent=False)

    @staticmethod
    def check(spec: ModelSpec) -> None:
        """The prefix layer is one of the target's own kind; here only the plain one is trained."""
        for block in spec.layers[0]:
            if not _is_plain(block):
                why = f"a Hydra++ layer is like the target's, whose {block.kind} is not like Llama's"
                raise UsageError(f"{spec.architecture}: {why}; train eagle3")

    def begin(self, features: Features) -> None:
        """The prefix state begins at the size of the states that the target's head reads."""
        with torch.no_grad():
            self.prefix_embeding_layer.norm.weight.copy_(self.final_norm)

    def logits(self, features: Features, depth: int) -> Tensor:
        n, shape = len(features) - depth, self.shape
        normed = functional.rms_norm(features.last[:n], (shape.hidden,), self.final_norm, shape.eps)
        read, found = [self.prefix_embeding_layer(normed)], []
        for k in range(depth):
            read.append(features.embeddings[1 + k : 1 + k + n])
            state = self.hydra_mlp[k](torch.cat(read, -1))
            found.append(capped(functional.linear(state, self.readout), shape.softcap))
        return torch.stack(found)

    def published(self) -> dict[str, Tensor]:
        found = parameters(self)
        for i in range(self.shape.depth):
            found[f"hydra_lm_head.{i}.1.weight"] = self.readout
            found[f"hydra_lm_head.{i}.1.bias"] = self.readout.new_zeros(len(self.readout))
        return found

    def config(self) -> Mapping[str, Any]:
        return {
            "hydra_num_heads": self.shape.depth,
            "hydra_num_layers": self.shape.blocks,
            "hydra_head_arch": "prefix-mlp",
            "grounded_heads": True,
            "hidden_state_offset": 0,
            "base_model_name_or_path": "",
        }


STUDENT = HydraPlusStudent
