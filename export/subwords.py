"""Training of the network that makes one embedding of the subwords of a word (dynamic tokenization); the model stays.

The texts of an update are cut at random places, and what comes before is merged over all of them, to a share that is
drawn from a Gaussian. The loss is the divergence between the next-token laws of the model on the whole text and on the
merged one, KL(whole || merged), in the mean of the rows from the first joined one on: those after a joined row, which
are compared with the row of its last token, and those of the plain tokens that follow. So what is learned is what the
reading of a prompt is for. Feher et al. use a network that ZeTT trained by the language model's own loss on other
tokenizations; with the whole text at hand the laws say more than the next token alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from edgedec.bundle.folder import Bundle
from edgedec.bundle.subwords import HEADS, save_subwords
from edgedec.errors import UsageError
from edgedec.export.exits_data import Encode
from edgedec.export.heads_features import target_of
from edgedec.export.row_training import RowTrainer
from edgedec.export.students._augmented import AugmentedStack
from edgedec.export.students._subwords import SubwordModel
from edgedec.text.subwords import Joinable, Merging

SHARES = (0.0, 0.1, 0.2, 0.4)
_LEAST = 16
Make = Callable[[Sequence[Tensor]], Tensor]


@dataclass(frozen=True)
class SubwordPlan:
    """width, layers: of the network; longest: tokens of a joined row; cut: the share of the rows that merging takes
    away in the mean; ahead: tokens after a prompt that are measured; minutes and steps: whichever is over first (steps
    0: the minutes alone); rate: the highest; batch: texts of `length` tokens in an update."""

    width: int = 128
    layers: int = 2
    longest: int = 8
    cut: float = 0.3
    ahead: int = 64
    minutes: float = 10.0
    steps: int = 0
    rate: float = 1e-3
    batch: int = 4
    length: int = 256
    seed: int = 0
    threads: int = 1


class MergedReading(NamedTuple):
    """Of prompts that were merged: the share of rows saved, and of what follows the perplexity and the divergence from
    the law after the whole prompt, in nats a token."""

    saved: float
    perplexity: float
    divergence: float


class SubwordTrainer(RowTrainer):
    """A network in training, with its frozen model."""

    command = "train-subwords"
    plan: SubwordPlan

    def __init__(
        self, bundle: Bundle, files: list[Path], encode: Encode, joinable: Joinable, plan: SubwordPlan
    ) -> None:
        self.bundle, self._joinable = bundle, joinable
        length = min(plan.length, bundle.spec.context_length - 1)
        if length < _LEAST + plan.ahead:
            raise UsageError(f"--length {length}: needs {_LEAST} tokens before and {plan.ahead} that are measured")
        if plan.width % HEADS:
            raise UsageError(f"--width {plan.width}: must be a multiple of {HEADS}")
        super().__init__(files, encode, plan, length, _LEAST + plan.ahead)
        torch.manual_seed(plan.seed)
        self.stack = AugmentedStack(bundle, torch.device("cpu"))
        self.target = target_of(bundle, np.arange(bundle.spec.vocab_size), torch.device("cpu"))
        scale = float(self._embedded(self.held[0]).square().mean().sqrt()) + 1e-6
        self.model = SubwordModel(bundle.spec.hidden_size, plan.width, plan.layers, plan.longest, scale)
        self.optimize(self.model.weights)

    def losses(self, rows: Sequence[list[int]], draw: random.Random, progress: float) -> Iterator[Tensor]:
        """Of texts cut at random places, and merged before these as one batch."""
        cuts = [draw.randint(len(row) // 2, len(row) - 1) for row in rows]
        share = min(max(draw.gauss(self.plan.cut, self.plan.cut / 2), 0.02), 0.98)
        sizes = self.merged([row[:cut] for row, cut in zip(rows, cuts, strict=True)], share)
        for row, of in zip(rows, sizes, strict=True):
            ends = _ends(row, of)
            first = next((i for i, end in enumerate(ends.tolist()) if end > i + 1), None)
            if first is None:  # of a text without joins there is nothing to learn
                yield self.model.weights["up"].sum() * 0
                continue
            whole, law = self.laws(row, ends, self.model.made)
            yield _divergence(whole[first:], law[first:])

    def merged(self, prompts: Sequence[Sequence[int]], share: float) -> list[list[int]]:
        """How many tokens each row of these prompts has, merged together until a share of their rows is saved."""
        texts = Merging([self._joinable.pieces(ids) for ids in prompts], self._joinable.whole, self.plan.longest)
        texts.learn(1 << 30, ceil((1 - share) * texts.rows))
        return texts.sizes()

    def laws(self, row: Sequence[int], ends: Tensor, make: Make) -> tuple[Tensor, Tensor]:
        """The logarithms of the next-token laws [rows, vocab] where each row ends: after the whole text, and after rows
        that `make` joins."""
        x, at = self._embedded(row), ends - 1
        with torch.no_grad():
            states, _ = self.stack.after(x, torch.arange(len(row)), None)
            whole = self._law(states[at])
        starts = torch.cat([ends[:1] * 0, ends[:-1]])
        joined = torch.nonzero(ends - starts > 1).flatten()
        rows = x[at]
        if len(joined):
            parts = [x[int(starts[i]) : int(ends[i])] for i in joined]
            rows = rows.index_copy(0, joined, make(parts))
        states, _ = self.stack.after(rows, at, None)
        return whole, self._law(states)

    def _law(self, states: Tensor) -> Tensor:
        normed = functional.rms_norm(states, states.shape[-1:], self.target.norm, self.bundle.spec.norm_eps)
        logits = functional.linear(normed, self.target.readout)
        if cap := self.bundle.spec.final_softcap:
            logits = cap * torch.tanh(logits / cap)
        return logits.log_softmax(-1)

    def measure(self, shares: Sequence[float] = SHARES, mean: bool = False) -> dict[float, MergedReading]:
        """On texts held back, by the share of a prompt's rows that merging is to save. mean: with the mean of the parts
        instead of the network."""
        make: Make = (lambda parts: torch.stack([part.mean(0) for part in parts])) if mean else self.model.made
        rows = self.held
        prompts = [row[: -self.plan.ahead - 1] for row in rows]
        tokens, found = sum(map(len, prompts)), {}
        for share in shares:
            sizes = self.merged(prompts, share)
            with torch.no_grad():
                parts = [self._after(row, of, make) for row, of in zip(rows, sizes, strict=True)]
            nats, divergence = np.mean(parts, axis=0)
            saved = 1 - sum(map(len, sizes)) / tokens
            found[share] = MergedReading(saved, float(np.exp(nats)), float(divergence))
        return found

    def _after(self, row: list[int], sizes: list[int], make: Make) -> tuple[float, float]:
        """Nats a token of the last `ahead` tokens of a text, and their law's divergence."""
        whole, law = self.laws(row[:-1], _ends(row[:-1], sizes), make)
        n = self.plan.ahead
        nats = functional.nll_loss(law[-n:], torch.tensor(row[-n:]))
        return float(nats), float(_divergence(whole[-n:], law[-n:]))

    def _embedded(self, row: Sequence[int]) -> Tensor:
        scale = np.float32(self.bundle.spec.embed_scale)
        return torch.from_numpy(self.bundle.gather("embed", np.asarray(row, np.int64)) * scale)

    def write(self, path: Path) -> None:
        """The network's file."""
        arrays: dict[str, Any] = {name: w.detach().numpy() for name, w in self.model.weights.items()}
        arrays["scale"] = np.float32(self.model.scale).reshape(())
        save_subwords(path, self.bundle.spec, self.plan.layers, arrays)


def _divergence(whole: Tensor, law: Tensor) -> Tensor:
    """KL(whole || law) in nats, the mean of the rows."""
    return functional.kl_div(law, whole, reduction="batchmean", log_target=True)


def _ends(row: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """After how many tokens each row ends; those after the merged ones have one token each."""
    return torch.tensor([*sizes, *[1] * (len(row) - sum(sizes))]).cumsum(0)
