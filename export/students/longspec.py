"""LongSpec: attention over a window, attention over the target's cache, an MLP (`models/drafts/longspec.py`).

It is trained as it drafts: guess k sees the target's keys and values up to k + 1 tokens before it and its own rows
after them. Positions are those of anchors and an offset: the first four tokens stay where they are, the others stand
anywhere in the target's context, so that short texts train all of its positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.errors import UsageError
from edgedec.export.students import Features, StudentFacts, StudentShape, StudentTarget
from edgedec.export.students._frozen import FrozenStack, require_frozen
from edgedec.export.students._layers import GatedMlp, RmsNorm, capped, linear, llama_config, parameters, rotated
from edgedec.export.students._student import Student
from edgedec.models.drafts.longspec import cross_block
from edgedec.spec import ModelSpec

ANCHORS = 4
FACTS = StudentFacts(trimmed=True, anchors=ANCHORS)
WINDOW = 512


class WindowAttention(nn.Module):
    """Grouped-query attention over the latest `window` positions and the first `ANCHORS`."""

    def __init__(self, shape: StudentShape, window: int) -> None:
        super().__init__()
        self.shape, self.window = shape, window
        self.q_proj = linear(shape.hidden, shape.n_heads * shape.head_dim)
        self.k_proj = linear(shape.hidden, shape.n_kv_heads * shape.head_dim)
        self.v_proj = linear(shape.hidden, shape.n_kv_heads * shape.head_dim)
        self.o_proj = linear(shape.n_heads * shape.head_dim, shape.hidden, zero=True)

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        """x [T, H] at places [T] -> [T, H]"""
        s, n = self.shape, len(x)
        q, k, v = (p(x).view(n, -1, s.head_dim).transpose(0, 1) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotated(q, place, s.theta), rotated(k, place, s.theta)
        k, v = (a.repeat_interleave(s.n_heads // s.n_kv_heads, 0) for a in (k, v))
        sees = (place <= place[:, None]) & ((place > place[:, None] - self.window) | (place < ANCHORS))
        mixed = functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=sees)[0]
        return self.o_proj(mixed.transpose(0, 1).reshape(n, -1))


class Layer(nn.Module):
    def __init__(self, shape: StudentShape, window: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = WindowAttention(shape, window), GatedMlp(shape)
        self.input_layernorm = RmsNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RmsNorm(shape.hidden, shape.eps)


class CrossAttention(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query, self.merge = linear(hidden, hidden), linear(2 * hidden, hidden)


class LongSpecStudent(Student):
    def __init__(self, shape: StudentShape, target: StudentTarget) -> None:
        super().__init__()
        assert target.bundle is not None
        self.shape, self.block = shape, cross_block(target.bundle.spec)
        self.window = min(WINDOW, max(shape.context // 8, 16))
        self.stack = FrozenStack(target.bundle, target.norm.device, [self.block])
        self.layers = nn.ModuleList([Layer(shape, self.window)])
        self.cross_attn = CrossAttention(shape.hidden)
        self.norm = RmsNorm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.kept, bias=False)
        self.register_buffer("d2t", target.ids - torch.arange(shape.kept))
        with torch.no_grad():
            self.norm.weight.copy_(target.norm)
            self.lm_head.weight.copy_(target.readout)

    @staticmethod
    def check(spec: ModelSpec) -> None:
        block = cross_block(spec)
        require_frozen(spec, [block])
        if spec.layer_of(block) == 0 or block != spec.span(spec.layer_of(block), spec.n_layers)[0]:
            why = f"longspec reads the cache of block {block}, which has to begin a layer after the first"
            raise UsageError(f"{spec.architecture}: {why}; train eagle3 or hydra")

    @staticmethod
    def depths(spec: ModelSpec, layer: int = 0) -> tuple[int, ...]:
        """After the layers before the block that is read through."""
        return (spec.layer_of(cross_block(spec)),)

    def begin(self, features: Features) -> None:
        """Start as the target's own block does, from embeddings at the size of its states."""
        size = [float(x.square().mean().sqrt()) + 1e-6 for x in (features.embeddings, features.states[0])]
        with torch.no_grad():
            self.cross_attn.query.weight.copy_(torch.eye(self.shape.hidden) * size[1] / size[0])
            self.cross_attn.merge.weight.copy_(torch.eye(self.shape.hidden).repeat(1, 2) * 0.5)

    def logits(self, features: Features, depth: int) -> Tensor:
        n, layer = len(features) - depth, self.layers[0]
        x = features.embeddings
        x = x + layer.self_attn(layer.input_layernorm(x), features.places)
        asked, found = self.cross_attn.query(x), []
        for k in range(depth):
            seen = self.stack.beside(self.block, asked, features.states[0], features.places, k)
            state = self.cross_attn.merge(torch.cat([x, seen], -1))[1 + k :][:n]
            state = state + layer.mlp(layer.post_attention_layernorm(state))
            found.append(capped(self.lm_head(self.norm(state)), self.shape.softcap))
        return torch.stack(found)

    def published(self) -> dict[str, Tensor]:
        return parameters(self)

    def config(self) -> Mapping[str, Any]:
        return llama_config(self.shape, "LongSpecDraft") | {
            "hidden_act": "silu",
            "sliding_window": self.window,
            "num_sinks": ANCHORS,
            "cross_block": self.block,
            "draft_vocab_size": self.shape.kept,
            "tie_word_embeddings": False,
        }


STUDENT = LongSpecStudent
