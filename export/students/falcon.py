"""Falcon: an LSTM over embeddings and states, one layer in which the rows of a block see each other; two tokens a pass.

Read: Bestpay-inc/Falcon, `train/glance.py` and `models/cnets.py`. Row i takes the state at token i and the embedding of
token i + 1, and learns the state at token i + k: SmoothL1 to that state, plus 0.1 (0.9 KL to the target's distribution
at a temperature of 0.95 + 0.1 cross entropy to a token drawn from it). Glancing: after a first pass, lambda times as
many of the blocks' first rows as the pass got wrong take the truth k ahead as their input, state and token; lambda
falls from 0.45 to 0.1. Uniform noise is on the states, 0.2 of their size at a row of 512 tokens.

The release's LSTM sees each row alone (it lacks `batch_first`); here it runs along the text. Its dropout of 0.1, the
noise and the draws follow from the text, so that a run cut short goes on as it would have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.export.students import Features, StudentShape, StudentTarget
from edgedec.export.students._layers import GatedMlp, RmsNorm, capped, linear, llama_config, parameters
from edgedec.export.students._rows import Keys, RowAttention
from edgedec.export.students._student import Student

# Tokens of a block; weights of the losses; the temperature of the KL; lambda at first and at the end.
SIZE, TOKENS, SOFT, HARD, HEAT = 2, 0.1, 0.9, 0.1, 0.95
LAMBDA = (0.45, 0.1)
_NOISE, _NOISE_ROWS, _DROPOUT = 0.2, 512, 0.1


class FalconLayer(nn.Module):
    """A Llama layer without a norm before its attention."""

    def __init__(self, shape: StudentShape) -> None:
        super().__init__()
        self.self_attn, self.mlp = RowAttention(shape), GatedMlp(shape)
        self.post_attention_layernorm = RmsNorm(shape.hidden, shape.eps)

    def forward(self, x: Tensor, place: Tensor, text: Keys, sees: Tensor, own: list[Keys]) -> Tensor:
        x = x + self.self_attn(x, place, text, sees, own)
        return x + self.mlp(self.post_attention_layernorm(x))


class LstmCell(nn.Module):
    """One layer of an LSTM, with torch's gates."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight_ih, self.weight_hh = linear(inputs, 4 * hidden).weight, linear(hidden, 4 * hidden).weight
        self.bias_ih, self.bias_hh = nn.Parameter(torch.zeros(4 * hidden)), nn.Parameter(torch.zeros(4 * hidden))
        self.hidden = hidden

    @property
    def weights(self) -> list[Tensor]:
        return [self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]

    def forward(self, x: Tensor) -> Tensor:
        """x [n, inputs], along the text -> [n, H]"""
        zero = x.new_zeros(1, 1, self.hidden)
        found: Tensor = torch._VF.lstm(x[:, None], (zero, zero), self.weights, True, 1, 0.0, False, False, False)[0]
        return found[:, 0]

    def step(self, x: Tensor, before: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """x [n, inputs] and the states before it -> those after it: [n, H] each."""
        h, c = torch.lstm_cell(x, before, *self.weights)
        return h, c


class FalconStudent(Student):
    def __init__(self, shape: StudentShape, target: StudentTarget) -> None:
        super().__init__()
        self.shape, self.target = shape, target
        self.lstm = nn.ModuleList([LstmCell(2 * shape.hidden, shape.hidden), LstmCell(shape.hidden, shape.hidden)])
        self.layers = nn.ModuleList([FalconLayer(shape)])

    def _states(self, features: Features) -> Tensor:
        """The states that the target's readout reads."""
        return functional.rms_norm(features.last, (self.shape.hidden,), self.target.norm, self.shape.eps)

    def _read(self, states: Tensor) -> Tensor:
        return capped(functional.linear(states, self.target.readout), self.shape.softcap)

    # ---- the loss

    def own_loss(self, features: Features) -> Tensor:
        torch_rng = torch.Generator(features.tokens.device).manual_seed(int(features.tokens.sum()) + len(features))
        states, e, n = self._states(features), features.embeddings, len(features) - SIZE
        wanted = states[SIZE:][:n]
        with torch.no_grad():
            said = self._read(wanted)
        size = _NOISE * (_NOISE_ROWS / n) * states.square().mean().sqrt()
        noisy = states[:n] + size * (torch.rand(n, states.shape[1], generator=torch_rng, device=e.device) - 0.5)
        following = e[1 : n + 1]
        with torch.no_grad():
            wrong = self._read(self._through(noisy, following, torch_rng)).argmax(-1) != said.argmax(-1)
        given = self._glanced(int(wrong.sum()), n, torch_rng)
        ahead = torch.cat([e[1 + SIZE :], e[:1]])[:n]  # of the last row there is no token that far ahead
        noisy = torch.where(given[:, None], wanted, noisy)
        following = torch.where(given[:, None], ahead, following)
        found = self._through(noisy, following, torch_rng)
        return functional.smooth_l1_loss(found, wanted) + TOKENS * self._of_tokens(self._read(found), said, torch_rng)

    def _glanced(self, wrong: int, n: int, rng: torch.Generator) -> Tensor:
        """Which rows take the truth as their input: lambda times as many as were wrong, first rows of blocks."""
        first, last = LAMBDA
        count = int(wrong * (first + (last - first) * self.progress))
        starts = torch.arange(0, n - 1, SIZE, device=rng.device)
        chosen = starts[torch.randperm(len(starts), generator=rng, device=rng.device)[:count]]
        return torch.zeros(n, dtype=torch.bool, device=rng.device).index_fill(0, chosen, True)

    def _of_tokens(self, logits: Tensor, said: Tensor, rng: torch.Generator) -> Tensor:
        target = said.softmax(-1)
        apart = (said / HEAT).log_softmax(-1) - (logits / HEAT).log_softmax(-1)
        drawn = torch.multinomial(target, 1, generator=rng)[:, 0]
        hard = functional.cross_entropy(logits, drawn)
        return SOFT * (target * apart).sum(-1).mean() + HARD * hard

    def _through(self, states: Tensor, following: Tensor, rng: torch.Generator) -> Tensor:
        """The outputs of rows in blocks from the first row on, each of which sees its whole block."""
        x = self.lstm[0](torch.cat([following, states], -1))
        kept = torch.rand(x.shape, generator=rng, device=x.device) >= _DROPOUT
        x = self.lstm[1](x * kept / (1 - _DROPOUT))
        place = torch.arange(len(x), device=x.device)
        sees = place // SIZE <= place[:, None] // SIZE
        layer = self.layers[0]
        found: Tensor = layer(x, place, layer.self_attn.keys(x, place), sees, [])
        return found

    # ---- what is drafted

    def logits(self, features: Features, depth: int) -> Tensor:
        """Blocks that end in each row, and those below them with the text's tokens."""
        n, layer, e = len(features) - depth, self.layers[0], features.embeddings
        states, place, found = self._states(features), torch.arange(n, device=e.device), list[Tensor]()
        rows = torch.cat([e[1 : n + 1], states[:n]], -1)
        x, memory = self._along(rows)
        text, own = layer.self_attn.keys(x, place), list[Keys]()
        sees = torch.ones(n, n, dtype=torch.bool, device=e.device).tril()
        at = [(place - (SIZE - 1 - j)).clamp(min=0) for j in range(SIZE)]
        block = [x[rows] for rows in at]
        while True:
            out = [layer(one, where, text, sees, own) for one, where in zip(block, at, strict=True)]
            found += [self._read(one) for one in out]
            if len(found) >= depth:
                return torch.stack(found[:depth])
            start = 2 + len(found) - SIZE
            block, memory = self._below(out, [e[start + j : start + j + n] for j in range(SIZE)], memory)
            at = [place + start - 1 + j for j in range(SIZE)]
            own += [layer.self_attn.keys(one, where) for one, where in zip(block, at, strict=True)]

    def _along(self, rows: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The LSTM's outputs along the text, and its states after each row, by layer."""
        x, memory = rows, list[tuple[Tensor, Tensor]]()
        for cell in self.lstm:
            state, states = (x.new_zeros(1, self.shape.hidden),) * 2, list[tuple[Tensor, Tensor]]()
            for i in range(len(x)):
                state = cell.step(x[i : i + 1], state)
                states.append(state)
            memory.append((torch.cat([h for h, _ in states]), torch.cat([c for _, c in states])))
            x = memory[-1][0]
        return x, memory

    def _below(
        self, states: list[Tensor], following: list[Tensor], memory: list[tuple[Tensor, Tensor]]
    ) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        """The LSTM through a block below each row."""
        found, memory = list[Tensor](), list(memory)
        for state, embedding in zip(states, following, strict=True):
            x = torch.cat([embedding, state], -1)
            for i, cell in enumerate(self.lstm):
                memory[i] = cell.step(x, memory[i])
                x = memory[i][0]
            found.append(x)
        return found, memory

    def published(self) -> dict[str, Tensor]:
        found = parameters(self)
        for i in range(len(self.lstm)):
            for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                found[f"lstm.{part}_l{i}"] = found.pop(f"lstm.{i}.{part}")
        return found

    def config(self) -> Mapping[str, Any]:
        return llama_config(self.shape, "FalconDrafter") | {"k_mask": SIZE, "hidden_act": "silu"}


STUDENT = FalconStudent
