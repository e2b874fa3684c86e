"""Chimera: a layer over the target's states and the tokens' trigrams, heads that read a state and the layer's output.

Read: kafkayu/Chimera, `Chimera_model.py` and `train.py`. The loss is the sum over the heads of the cross entropy to the
text's own tokens (a loss of states is computed there, but not added). From the second head on the trigram is that of
the token that the head before it finds likeliest, right or not, and what was drafted is not trained through. A head
begins with the target's readout twice. The release's mask hides the drafted states; here they are seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.export.students import Features, StudentShape, StudentTarget
from edgedec.export.students._layers import GatedMlp, RmsNorm, capped, linear, parameters
from edgedec.export.students._rows import Keys, RowAttention
from edgedec.export.students._student import Student
from edgedec.export.students.hydrapp import HydraPlusStudent
from edgedec.spec import ModelSpec


class TrigramBlock(nn.Module):
    """x + silu(Wx + b), W = 0 at first."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = linear(size, size, zero=True, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.silu(self.linear(x))


class FastLayer(nn.Module):
    def __init__(self, shape: StudentShape) -> None:
        super().__init__()
        self.self_attn, self.mlp = RowAttention(shape), GatedMlp(shape)
        self.input_layernorm = RmsNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RmsNorm(shape.hidden, shape.eps)

    def keys(self, x: Tensor, place: Tensor) -> Keys:
        return self.self_attn.keys(self.input_layernorm(x), place)

    def forward(self, x: Tensor, place: Tensor, text: Keys, sees: Tensor, own: list[Keys]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), place, text, sees, own)
        return x + self.mlp(self.post_attention_layernorm(x))


class ChimeraStudent(Student):
    def __init__(self, shape: StudentShape, target: StudentTarget) -> None:
        super().__init__()
        self.shape, self.target = shape, target
        self.trimlp = nn.Sequential(TrigramBlock(3 * shape.hidden), linear(3 * shape.hidden, shape.hidden))
        self.fast_layer1 = nn.ModuleList([FastLayer(shape)])
        self.chimera_head = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * shape.hidden, shape.kept, bias=False)) for _ in range(shape.depth)
        )
        with torch.no_grad():
            for head in self.chimera_head:
                head[0].weight.copy_(torch.cat([target.readout, target.readout], -1))

    @staticmethod
    def check(spec: ModelSpec) -> None:
        HydraPlusStudent.check(spec)

    def begin(self, features: Features) -> None:
        """Trigrams begin at the size of the states."""
        size = float(self._normed(features).square().mean().sqrt())
        with torch.no_grad():
            self.trimlp[1].weight.mul_(size / (float(features.embeddings.square().mean().sqrt()) + 1e-6))

    def logits(self, features: Features, depth: int) -> Tensor:
        return torch.stack(self._unrolled(features, depth, guessing=False))

    def own_loss(self, features: Features) -> Tensor:
        logits, n = self._unrolled(features, self.shape.depth, guessing=True), len(features) - self.shape.depth
        losses = [functional.cross_entropy(x[:-1], features.tokens[2 + k :][: n - 1]) for k, x in enumerate(logits)]
        return torch.stack(losses).sum()

    def _normed(self, features: Features) -> Tensor:
        return functional.rms_norm(features.last, (self.shape.hidden,), self.target.norm, self.shape.eps)

    def _unrolled(self, features: Features, depth: int, guessing: bool) -> list[Tensor]:
        """The logits of each head at rows 0 to T - depth - 1. guessing: the tokens between are the heads' own, not the
        text's."""
        n, layer, e = len(features) - depth, self.fast_layer1[0], features.embeddings
        h, place = self._normed(features)[:n], torch.arange(n, device=e.device)
        # Row t: the trigram that ends in token t + 1; the authors take the second token twice in the first one.
        last = (torch.cat([e[:1], e[: n - 1]]), torch.cat([e[1:2], e[1:n]]), e[1 : n + 1])
        grams, own, found = self.trimlp(torch.cat(last, -1)), list[Keys](), list[Tensor]()
        last = (last[0], e[:n], last[2])
        text, sees = self._text(h, grams, place)
        state = layer(grams, place + 1, text, sees, own)
        for k, head in enumerate(self.chimera_head[:depth]):
            found.append(capped(head(torch.cat([h, state], -1)), self.shape.softcap))
            if k == depth - 1:
                break
            token = self._embedded(found[-1].argmax(-1)) if guessing else e[2 + k : 2 + k + n]
            last = (last[1], last[2], token)
            gram = self.trimlp(torch.cat(last, -1))
            if guessing:
                gram, state = gram.detach(), state.detach()
            own += [layer.keys(state, place + k + 1), layer.keys(gram, place + k + 2)]
            state = layer(gram, place + k + 2, text, sees, own)
        return found

    def _text(self, h: Tensor, grams: Tensor, place: Tensor) -> tuple[Keys, Tensor]:
        """Keys of the states and of the trigrams, and which of them each trigram sees."""
        parts = [self.fast_layer1[0].keys(x, at) for x, at in ((h, place), (grams, place + 1))]
        earlier = torch.ones(len(h), len(h), dtype=torch.bool, device=h.device).tril()
        return (torch.cat([k for k, _ in parts], 1), torch.cat([v for _, v in parts], 1)), earlier.repeat(1, 2)

    def _embedded(self, tokens: Tensor) -> Tensor:
        bundle = self.target.bundle
        assert bundle is not None
        rows = bundle.gather("embed", tokens.cpu().numpy()) * bundle.spec.embed_scale
        return torch.from_numpy(rows).float().to(tokens.device)

    def published(self) -> dict[str, Tensor]:
        return parameters(self)

    def config(self) -> Mapping[str, Any]:
        return {"chimera_num_heads": self.shape.depth, "chimera_num_layers": 1, "base_model_name_or_path": ""}


STUDENT = ChimeraStudent
