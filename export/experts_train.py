"""Splitting a dense model into experts of domains, and training them and their pre-router by turns (Read-ME).

In rounds, as the authors' `scripts/train.sh` (VITA-Group/READ-ME): the router learns for 100 updates from what the
model does without any mask; then the model, its feed-forwards masked by the router's choices, learns the texts for 200.
The learning rates of a round are 0.8 of those before, fall by half a cosine within it, and weights decay by 0.01. A
neuron that several domains keep has one weight until the bundle is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from edgedec.errors import CheckpointError, UsageError
from edgedec.export.adam8 import Adam8
from edgedec.export.adapter import module_of
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.domain_experts import (
    FILE,
    Masks,
    SplitFacts,
    check_dense,
    metadata,
    most_active,
    own_of_each,
)
from edgedec.export.exits_data import BLOCK, Encode, Place, TokenStream, documents
from edgedec.export.exits_model import load, write_model
from edgedec.export.pre_router_net import RouterNet, router_loss
from edgedec.export.row_training import RowTrainer
from edgedec.models import architecture
from edgedec.spec import Mlp

ROUND_FACTOR, _DECAY = 0.8, 0.01
_PIECE = 2048  # characters


@dataclass(frozen=True)
class StagePlan:
    """A stage of a round: the router's or the model's. rate: the learning rate at its highest; batch: rows of `length`
    tokens in an update."""

    steps: int
    rate: float
    batch: int
    length: int
    seed: int = 0
    threads: int = 1
    minutes: float = float("inf")


def pieces(path: Path) -> Iterator[str]:
    """The texts of a file, long ones cut."""
    for text in documents(path):
        for at in range(0, len(text), _PIECE):
            if piece := text[at : at + _PIECE].strip():
                yield piece


class DomainStream(TokenStream):
    """Rows of all domains, a text of each by turns."""

    read = staticmethod(pieces)

    def _blocks_from(self, first: int) -> Iterator[list[Any]]:
        texts = by_turns([self.read(path) for path in self._files])
        rest = islice(texts, first * BLOCK, None)
        while block := list(islice(rest, BLOCK)):
            yield block


def by_turns(parts: Sequence[Iterator[str]]) -> Iterator[str]:
    """a1 b1 c1 a2 b2 c2 …; one that is over is left out."""
    left = list(parts)
    while left:
        for part in list(left):
            text = next(part, None)
            if text is None:
                left.remove(part)
            else:
                yield text


class DomainNet:
    """A network of transformers whose feed-forwards may be masked, a row of tokens by its experts."""

    def __init__(self, folder: Path) -> None:
        checkpoint = Checkpoint.open(folder)
        self.spec = spec = checkpoint.spec()
        check_dense(spec, str(folder))
        self.folder, self.model = folder, load(folder)
        sources = architecture(checkpoint.config).weights(spec, checkpoint.config)
        numbers = [b for b, block in enumerate(spec.blocks) if isinstance(block, Mlp)]
        self.inputs: list[Tensor] = []
        self.experts: Tensor | None = None
        self.selected = torch.zeros(len(numbers), 0, 0)
        for layer, b in enumerate(numbers):
            self._last_matrix(sources[f"blocks.{b}.down"][0]).register_forward_pre_hook(self._hook(layer))
        config = checkpoint.config
        self.theta = float((config.get("rope_parameters") or {}).get("rope_theta") or config.get("rope_theta") or 1e4)

    def _last_matrix(self, part: Any) -> Any:
        try:
            found = self.model.get_submodule(module_of(part))
        except AttributeError:
            found = None
        if not isinstance(found, torch.nn.Linear) or part.moved or part.flat or part.product:
            raise CheckpointError(f"{self.folder}: {part.name} is no matrix of its own in transformers' network")
        return found

    def _hook(self, layer: int) -> Any:
        def masked(_: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            x = given[0]
            if self.experts is None:
                self.inputs.append(x.detach()[0])
                return given
            return (x * self.selected[layer][self.experts],)

        return masked

    def dense(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The logits of a text without masks, and the inputs of the last matrices [n, neurons] by layer."""
        self.inputs, self.experts = [], None
        logits = self.model(input_ids=ids[None], use_cache=False).logits[0]
        return logits, self.inputs

    def through(self, ids: Tensor, experts: Tensor) -> Tensor:
        """The logits of a text, each token through its expert [n]."""
        self.experts = experts
        return self.model(input_ids=ids[None], use_cache=False).logits[0]

    def activity(self, rows: Sequence[list[int]]) -> np.ndarray:
        """The mean magnitude of each neuron [layers, neurons] over rows of a domain."""
        total, count = None, 0
        with torch.no_grad():
            for row in rows:
                _, inputs = self.dense(torch.tensor(row))
                found = torch.stack([u.abs().sum(0) for u in inputs])
                total, count = found if total is None else total + found, count + len(row)
        assert total is not None
        return np.asarray((total / count).numpy())


@dataclass
class DomainSplit:
    """A network, its domains' neurons and its router."""

    net: DomainNet
    selected: Masks
    router: RouterNet
    names: tuple[str, ...]

    @property
    def own(self) -> Tensor:
        return torch.from_numpy(own_of_each(self.selected)).float()

    def facts(self) -> SplitFacts:
        return SplitFacts(self.names, self.router.heads, self.router.theta)

    def write(self, out: Path) -> None:
        """The checkpoint, with its experts beside it; `edgedec export` makes a bundle of both."""
        write_model(self.net.model, self.net.folder, out)
        tensors = {f"router.{name}": w for name, w in self.router.tensors().items()}
        save_file({"selected": torch.from_numpy(self.selected).half(), **tensors}, out / FILE, metadata(self.facts()))


def split(
    net: DomainNet, files: list[Path], encode: Encode, tokens: int, length: int, seed: int, sizes: Any
) -> DomainSplit:
    """Choose the neurons of each domain from so many tokens of its texts. sizes: the router's values and heads."""
    check_router(net, *sizes)
    found = [net.activity(rows_of(path, encode, tokens, length, seed)) for path in files]
    selected = most_active(np.stack(found, axis=1))
    if not own_of_each(selected).any(axis=(1, 2)).all():
        raise UsageError("a layer's neurons are the same in all domains: no experts; give texts that differ more")
    torch.manual_seed(seed)
    size, heads = sizes
    embeddings = net.model.get_input_embeddings().weight.detach()
    router = RouterNet(embeddings, size, heads, len(files), net.theta, net.spec.norm_eps)
    net.selected = torch.from_numpy(selected).float()
    return DomainSplit(net, selected, router, tuple(path.stem for path in files))


def check_router(net: DomainNet, size: int, heads: int) -> None:
    """UsageError for a router that the model's embeddings cannot begin, or of odd heads."""
    if size % heads or size // heads % 2 or size > net.spec.hidden_size:
        raise UsageError(
            f"--router-size {size} with {heads} heads: must be at most the {net.spec.hidden_size} values of an "
            "embedding, and the heads even parts of it"
        )


def rows_of(path: Path, encode: Encode, tokens: int, length: int, seed: int) -> list[list[int]]:
    """Rows of a domain's texts that are trained on, of so many tokens."""
    stream = DomainStream([path], encode, length, seed, Place())
    return [next(stream)[:length] for _ in range(max(1, tokens // length))]


class _StageTrainer(RowTrainer):
    command = "train-experts"
    rows = DomainStream

    def __init__(self, made: DomainSplit, files: list[Path], encode: Encode, plan: StagePlan, place: Place) -> None:
        super().__init__(files, encode, plan, least=1)
        self.split = made
        now = self.stream.place
        now.turn, now.block, now.row = place.turn, place.block, place.row
        self.optimize(self.trained())

    def optimize(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights
        self.optimizer = Adam8(weights.values(), lr=self.plan.rate, weight_decay=_DECAY)
        self.optimizers = (self.optimizer,)

    def share(self, progress: float) -> float:
        return (1 + cos(pi * min(1.0, progress))) / 2

    def trained(self) -> dict[str, Tensor]:
        """The weights of this stage."""
        raise NotImplementedError


class RouterTrainer(_StageTrainer):
    """The router learns; the model stays."""

    def trained(self) -> dict[str, Tensor]:
        return dict(self.split.router.named_parameters())

    def row_loss(self, row: list[int], draw: Any, progress: float) -> Tensor:
        ids, made = torch.tensor(row[:-1]), self.split
        with torch.no_grad():
            _, inputs = made.net.dense(ids)
        logits = made.router(ids)
        losses = [router_loss(logits, u, own) for u, own in zip(inputs, made.own, strict=True)]
        return torch.stack(losses).sum()


class ModelTrainer(_StageTrainer):
    """The model learns, each token through the expert that the router chooses; the router stays."""

    def trained(self) -> dict[str, Tensor]:
        return {name: w for name, w in self.split.net.model.named_parameters() if w.requires_grad}

    def row_loss(self, row: list[int], draw: Any, progress: float) -> Tensor:
        ids, made = torch.tensor(row), self.split
        with torch.no_grad():
            experts = made.router(ids[:-1]).argmax(-1)
        return functional.cross_entropy(made.net.through(ids[:-1], experts), ids[1:])


@dataclass(frozen=True)
class DomainQuality:
    """Nats a token on texts of a domain held back: of the model without masks, through the experts that the router
    chooses, and through random ones; and the share of tokens for which the router chooses the domain's own."""

    dense: float
    routed: float
    random: float
    own: float


def measure(made: DomainSplit, files: list[Path], encode: Encode, length: int, seed: int) -> dict[str, DomainQuality]:
    """The quality by domain."""
    found, draw = dict[str, DomainQuality](), torch.Generator().manual_seed(seed)
    for number, (name, path) in enumerate(zip(made.names, files, strict=True)):
        held = DomainStream([path], encode, length, seed, Place()).held()
        if not held:
            raise UsageError(f"{path}: holds too few texts to keep some back for measuring; give more")
        sums, right, count = np.zeros(3), 0, 0
        with torch.no_grad():
            for row in held:
                ids, n = torch.tensor(row), len(row) - 1
                chosen = made.router(ids[:-1]).argmax(-1)
                others = torch.randint(len(files), (n,), generator=draw)
                ways = made.net.dense(ids[:-1])[0], *(made.net.through(ids[:-1], one) for one in (chosen, others))
                for i, logits in enumerate(ways):
                    sums[i] += float(functional.cross_entropy(logits, ids[1:], reduction="sum"))
                right, count = right + int((chosen == number).sum()), count + n
        dense, routed, random = (sums / count).tolist()
        found[name] = DomainQuality(dense, routed, random, right / count)
    return found
