"""A Hugging Face causal model that reads a row of text with any attention, as recipes need it.

The network is transformers' own, so every family has its reference arithmetic. That it takes a mask of ours, and that
its logits are the head of the last state, is checked before training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.errors import CheckpointError
from edgedec.export.recipes._rows import TextRow, sight

_TOLERANCE = 1e-3
_NEVER = -1e9  # the logit of the mask
_LOGITS = 1 << 24  # kept at once; the rest is computed again for the gradient


@dataclass(frozen=True)
class RowReading:
    """The last states [T, H] of the row with masks, and of the row as it is (None with full context)."""

    noisy: Tensor
    plain: Tensor | None


class FillingNet:
    """frozen: the model as it was, for recipes that learn from it."""

    def __init__(self, model: Any, facts: DiffusionFacts, name: str, frozen: bool = False) -> None:
        self.model, self.facts, self.head = model, facts, model.get_output_embeddings()
        self._base = getattr(model.base_model, "language_model", model.base_model)
        config = model.config.get_text_config()
        self.context: int = config.max_position_embeddings
        self._cap = getattr(config, "final_logit_softcapping", None) or 0.0
        self._scale = getattr(config, "logits_scaling", None) or 1.0
        model.eval()
        self._check(name, config.vocab_size)
        self.frozen = _frozen(self) if frozen else None

    def read(self, row: TextRow, masked: Tensor, block: Tensor) -> RowReading:
        """masked: the row's tokens, some of them the mask."""
        t, full = len(masked), self.facts.context == "full"
        tokens = masked if full else torch.cat([masked, row.tokens])
        states = self.states(tokens, torch.arange(t).repeat(1 if full else 2), sight(block, self.facts.context))
        return RowReading(states[:t], None if full else states[t:])

    def states(self, tokens: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """tokens, positions [T], seen [T, T] -> the states [T, H] that the head reads."""
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        found: Tensor = self._base(
            input_ids=tokens[None], attention_mask=mask[None, None], position_ids=positions[None], use_cache=False
        ).last_hidden_state[0]
        return found

    def filling(self, reading: RowReading, where: Tensor) -> Tensor:
        """where [T]: masked tokens -> the states [n, H] that predict them."""
        at = where.nonzero()[:, 0]
        return reading.noisy[at - 1 if self.facts.shift else at]

    def following(self, row: TextRow, block: Tensor) -> Tensor:
        """The places of the row as it is that predict the token after theirs, which they do not see: with shift alone,
        all of them with causal context, the last ones of blocks with block context."""
        found = torch.zeros(len(block), dtype=torch.bool)
        if self.facts.shift and self.facts.context != "full":
            found[:-1] = row.learned[1:]
            if self.facts.context == "block":
                found[:-1] &= block[1:] != block[:-1]
        return found

    def logits(self, states: Tensor) -> Tensor:
        """Of every token but the mask, which no text has."""
        found = self.head(states) / self._scale
        found = self._cap * torch.tanh(found / self._cap) if self._cap else found
        never = torch.arange(found.shape[-1]) == self.facts.mask
        return found.float().masked_fill(never, _NEVER)

    def each(self, score: Callable[..., Tensor], states: Tensor, *more: Tensor) -> Tensor:
        """score(logits, *more) of each state: a few at a time, as a vocabulary may be large."""
        size = max(1, _LOGITS // self.head.weight.shape[0])
        if len(states) <= size:
            return score(self.logits(states), *more)

        def part(x: Tensor, *rest: Tensor) -> Tensor:
            return score(self.logits(x), *rest)

        found = [
            checkpoint(part, *(t[at : at + size] for t in (states, *more)), use_reentrant=False)
            for at in range(0, len(states), size)
        ]
        return torch.cat(found)

    def _check(self, name: str, vocab: int) -> None:
        """Check that the model takes a mask of ours, and that its logits are those of the head."""
        ids, place = torch.arange(1, 9) % vocab, torch.arange(8)
        everything = torch.ones(8, 8, dtype=torch.bool)
        with torch.no_grad():
            said = self.model(input_ids=ids[None], use_cache=False).logits[0]
            causal = self.states(ids, place, everything.tril())
            seen = self.states(ids, place, everything)
            found = self.head(causal) / self._scale
            found = self._cap * torch.tanh(found / self._cap) if self._cap else found
        if not torch.allclose(said, found, atol=_TOLERANCE, rtol=_TOLERANCE):
            raise CheckpointError(f"{name}: its logits are not the head of its last states; filling masks needs that")
        if torch.allclose(causal[0], seen[0], atol=1e-7):
            raise CheckpointError(f"{name}: its attention cannot see later tokens; filling masks needs that")


def _frozen(net: FillingNet) -> FillingNet:
    """A copy that does not learn."""
    found = copy.copy(net)
    found.model = copy.deepcopy(net.model).requires_grad_(False)
    found.head = found.model.get_output_embeddings()
    found._base = getattr(found.model.base_model, "language_model", found.model.base_model)
    return found


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Nats of each token."""
    return functional.cross_entropy(logits, target, reduction="none")
