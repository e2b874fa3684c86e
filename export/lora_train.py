"""Training of LoRA adapters, and of the gates by which a set of them is routed (PHATGOOSE, `bundle/routed.py`).

The model stays as it is. Low-rank weights beside its matrices learn the texts. Then they stay too, and each matrix
gets a gate, a vector v that starts at zero: for an input u the adapter adds sigmoid(v . u) B A u, and v learns the same
texts for 100 updates (read: r-three/phatgoose, `colm/experiments/bash_scripts/train_gate.sh`). The sigmoid is of the
training only.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from edgedec.bundle.adapter import adaptable
from edgedec.errors import CheckpointError
from edgedec.export.adapter import CONFIG, GATES, WEIGHTS, gate_name, module_of, pair_names, read_pairs
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.exits_data import Encode
from edgedec.export.exits_model import load
from edgedec.export.row_training import RowTrainer
from edgedec.models import architecture

SAVE_EVERY = 120.0  # seconds


@dataclass(frozen=True)
class LoraPlan:
    """minutes and steps: whichever is over first (steps 0: the minutes alone); rate: the learning rate at its highest;
    batch: rows of `length` tokens in an update."""

    minutes: float = 10.0
    steps: int = 0
    rate: float = 1e-3
    batch: int = 8
    length: int = 256
    seed: int = 0
    threads: int = 1


# Kinds of blocks that the CPU engine adds nothing to.
_LEFT = ("latent", "moe")


@dataclass
class LowRankPart:
    """What is added to a matrix: a [rank, in], b [out, rank]; gate [in], None before it is trained."""

    a: Tensor
    b: Tensor
    gate: Tensor | None = None

    def of(self, x: Tensor) -> Tensor:
        found = functional.linear(functional.linear(x, self.a), self.b)
        return found if self.gate is None else found * torch.sigmoid(x @ self.gate).unsqueeze(-1)


class LoraNet:
    """A network of transformers with low-rank weights beside its matrices."""

    def __init__(self, folder: Path, rank: int, seed: int, lora: Path | None = None) -> None:
        """lora: an adapter that is there already, else a new one of this rank, which adds nothing at first."""
        self.model = load(folder).requires_grad_(False).eval()
        self.context = Checkpoint.open(folder).spec().context_length
        self.layers = dict(_matrices(self.model, folder))
        torch.manual_seed(seed)
        self.parts = (
            {name: _new(layer, rank) for name, layer in self.layers.items()} if lora is None else self._read(lora)
        )
        for name, part in self.parts.items():
            self.layers[name].register_forward_hook(_adding(part))

    def _read(self, lora: Path) -> dict[str, LowRankPart]:
        found = {
            name: LowRankPart(*map(torch.from_numpy, pair[:2])) for name, pair in read_pairs(lora, self.layers).items()
        }
        for name, part in found.items():
            layer = self.layers[name]
            if part.a.shape[1] != layer.in_features or len(part.b) != layer.out_features:
                raise CheckpointError(f"{lora}: {name} has another shape than this model's")
        return found

    def low_rank(self) -> dict[str, Tensor]:
        """The weights of the adapter, to be trained."""
        named = {f"{name}.{x}": w for name, part in self.parts.items() for x, w in (("a", part.a), ("b", part.b))}
        return {name: w.requires_grad_() for name, w in named.items()}

    def new_gates(self) -> dict[str, Tensor]:
        """Gates of zeros, to be trained, beside weights that are trained no more."""
        for part in self.parts.values():
            part.a, part.b = part.a.detach(), part.b.detach()
            part.gate = torch.zeros(part.a.shape[1], requires_grad=True)
        return {name: part.gate for name, part in self.parts.items() if part.gate is not None}

    def nats(self, row: list[int]) -> Tensor:
        """The mean loss of the tokens of a row, but for the first."""
        ids = torch.tensor(row)
        logits = self.model(input_ids=ids[None, :-1], use_cache=False).logits[0]
        return functional.cross_entropy(logits, ids[1:])


class LoraTrainer(RowTrainer):
    """An adapter in training, or the gates of one."""

    command = "train-lora"
    plan: LoraPlan

    def __init__(
        self, net: LoraNet, files: list[Path], encode: Encode, plan: LoraPlan, weights: dict[str, Tensor]
    ) -> None:
        super().__init__(files, encode, plan, least=1)
        self.net = net
        self.optimize(weights)

    def row_loss(self, row: list[int], draw: random.Random, progress: float) -> Tensor:
        return self.net.nats(row)

    def measure(self) -> float:
        """Nats a token on texts held back."""
        with torch.no_grad():
            total = sum(float(self.net.nats(row)) * (len(row) - 1) for row in self.held)
        return total / sum(len(row) - 1 for row in self.held)


def write_peft(net: LoraNet, base: str, out: Path) -> None:
    """The adapter as PEFT has it, and its gates if it has any. base: the name of the model."""
    tensors, gates = dict[str, Tensor](), dict[str, Tensor]()
    for name, part in net.parts.items():
        for key, w in zip(pair_names(name), (part.a, part.b), strict=True):
            tensors[key] = w.detach().contiguous()
        if part.gate is not None:
            gates[gate_name(name)] = part.gate.detach()
    save_file(tensors, out / WEIGHTS, {"format": "pt"})
    if gates:
        save_file(gates, out / GATES, {"format": "pt"})
    # Low ranks of a checkpoint have the scale in b: alpha over rank is 1.
    ranks = {name: len(part.a) for name, part in net.parts.items()}
    most = max(ranks.values())
    others = {name: rank for name, rank in ranks.items() if rank != most}
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "bias": "none"}
    sizes = {"r": most, "lora_alpha": most, "rank_pattern": others, "alpha_pattern": others}
    (out / CONFIG).write_text(json.dumps({**config, **sizes, "target_modules": sorted(net.parts)}, indent=2) + "\n")


def _matrices(model: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """The layers of the network, by name, of which a bundle's adapters may change the matrices."""
    checkpoint = Checkpoint.open(folder)
    spec = checkpoint.spec()
    sources = architecture(checkpoint.config).weights(spec, checkpoint.config)
    left = tuple(f"blocks.{b}." for b, block in enumerate(spec.blocks) if block.kind in _LEFT)
    for name in sorted(name for name in adaptable(spec) & sources.keys() if not name.startswith(left)):
        for part in sources[name]:
            layer = _submodule(model, module_of(part))
            if not (part.flat or part.moved or part.multiplied) and isinstance(layer, torch.nn.Linear):
                yield module_of(part), layer


def _submodule(model: Any, name: str) -> Any:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _new(layer: Any, rank: int) -> LowRankPart:
    """As PEFT begins: a random a, b of zeros."""
    a = torch.empty(rank, layer.in_features)
    torch.nn.init.kaiming_uniform_(a, a=5**0.5)
    return LowRankPart(a, torch.zeros(layer.out_features, rank))


def _adding(part: LowRankPart) -> Any:
    return lambda layer, given, out: out + part.of(given[0])


def files_of(folder: Path, lora: Path | None) -> list[Path]:
    """The files that a training begins with."""
    return sorted([*folder.glob("*.safetensors"), *([] if lora is None else [lora / CONFIG, lora / WEIGHTS])])


def check_length(net: LoraNet, plan: LoraPlan) -> None:
    """CheckpointError if rows are longer than what the model reads, or it has no matrix for an adapter."""
    if not net.parts:
        raise CheckpointError("train-lora: this model has no matrix that an adapter may change")
    if plan.length > net.context:
        raise CheckpointError(f"--length {plan.length}: the model reads at most {net.context} tokens")
