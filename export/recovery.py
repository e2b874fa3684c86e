"""Training after a model lost key and value heads: `export --kv-heads N --recover MINUTES`.

The smaller model learns to say what the whole one says (Kullback-Leibler divergence of the next token's distribution)
on the user's text. Only the matrices that were folded are trained. The paper fine-tunes too; which loss and which
weights is our own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from edgedec.errors import UsageError
from edgedec.export.exits_data import Encode
from edgedec.export.kv_heads import Read, SmallerHeads
from edgedec.export.row_training import RowTrainer
from edgedec.export.students._layers import capped
from edgedec.export.training_loop import train
from edgedec.export.writer import Progress
from edgedec.spec import Attention, Mlp, ModelSpec


@dataclass(frozen=True)
class RecoveryPlan:
    """minutes and steps: whichever is over first (steps 0: the minutes alone)."""

    minutes: float
    steps: int = 0
    rate: float = 1e-3
    batch: int = 4
    length: int = 256
    seed: int = 0
    threads: int = 0


class TorchModel:
    """A model of plain Llama blocks, from the tensors of its specification."""

    def __init__(self, spec: ModelSpec, read: Read) -> None:
        check_plain(spec)
        self.spec = spec
        self.weights = {name: torch.tensor(np.array(read(name, 0, shape[0]))) for name, shape in spec.tensors().items()}

    def logits(self, ids: Tensor) -> Tensor:
        """ids [T] -> [T, V]"""
        spec, w = self.spec, self.weights
        x = self.through(self.embedded(ids), range(spec.n_blocks))
        return capped(
            functional.linear(self._normed(x, "final_norm"), w["embed" if spec.tied else "head"]), spec.final_softcap
        )

    def embedded(self, ids: Tensor) -> Tensor:
        """ids [T] -> what the first block reads [T, hidden_size]"""
        found: Tensor = self.weights["embed"][ids] * self.spec.embed_scale
        return found

    def through(self, x: Tensor, blocks: Iterable[int]) -> Tensor:
        """The states [T, hidden_size] after some blocks in a row."""
        for b in blocks:
            block, y = self.spec.blocks[b], self._normed(x, f"blocks.{b}.norm")
            x = x + (self._attended(b, block, y) if isinstance(block, Attention) else self._fed(b, y))
        return x

    def _normed(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weights[name].flatten(), self.spec.norm_eps)

    def _attended(self, b: int, block: Attention, x: Tensor) -> Tensor:
        w = self.weights
        qkv = functional.linear(x, w[f"blocks.{b}.qkv"], w.get(f"blocks.{b}.qkv_bias"))
        parts = qkv.split([block.q_dim, block.kv_dim, block.kv_dim], -1)
        heads = [part.view(len(x), -1, block.head_dim).transpose(0, 1) for part in parts]
        q, k = (self._turned(block, a) for a in heads[:2])
        share = block.n_heads // block.n_kv_heads
        k, v = (a.repeat_interleave(share, 0) for a in (k, heads[2]))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=block.scale)
        return functional.linear(found.transpose(0, 1).reshape(len(x), -1), w[f"blocks.{b}.o"])

    def _turned(self, block: Attention, x: Tensor) -> Tensor:
        """x [heads, T, head_dim] turned by its positions."""
        if block.rope is None:
            return x
        rope = self.spec.ropes[block.rope]
        angles = torch.from_numpy(np.asarray(rope.angles(np.arange(x.shape[1]), self.spec.original_length), np.float32))
        cos, sin, half = angles.cos() * rope.scale, angles.sin() * rope.scale, len(rope.inv_freq)
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def _fed(self, b: int, x: Tensor) -> Tensor:
        gate, up = functional.linear(x, self.weights[f"blocks.{b}.gate_up"]).chunk(2, -1)
        return functional.linear(functional.silu(gate) * up, self.weights[f"blocks.{b}.down"])


def check_plain(spec: ModelSpec, what: str = "--recover") -> None:
    """UsageError for a model that `TorchModel` does not compute. what: the flag that wants it."""
    for b, block in enumerate(spec.blocks):
        if isinstance(block, Attention):
            plain: Attention | Mlp | None = Attention(
                *(block.n_heads, block.n_kv_heads, block.head_dim, block.scale), block.rope, qkv_bias=block.qkv_bias
            )
        else:
            plain = Mlp(block.inner_size) if isinstance(block, Mlp) else None
        if block != plain or spec.final_norm != "rms" or spec.head_layer is not None:
            raise UsageError(f"{what}: block {b} of {spec.architecture} is not like Llama's; leave it out")


class Recovery(RowTrainer):
    """The training of a smaller model beside the whole one."""

    def __init__(self, heads: SmallerHeads, whole: Read, files: list[Path], encode: Encode, plan: RecoveryPlan) -> None:
        super().__init__(files, encode, plan, min(plan.length, heads.spec.context_length - 1), 2)
        self.teacher, self.student = TorchModel(heads.old, whole), TorchModel(heads.spec, heads.read)
        self.optimize({name: w.requires_grad_() for name, w in self.student.weights.items() if heads.changes(name)})

    def row_loss(self, row: list[int], draw: random.Random, progress: float) -> Tensor:
        return self.divergence(torch.tensor(row[:-1])).mean()

    def divergence(self, ids: Tensor) -> Tensor:
        """Of the smaller model's next token from the whole one's, in nats [T]."""
        with torch.no_grad():
            wanted = self.teacher.logits(ids).log_softmax(-1)
        found = self.student.logits(ids).log_softmax(-1)
        return functional.kl_div(found, wanted, reduction="none", log_target=True).sum(-1)

    def measure(self) -> float:
        """The mean divergence on texts that are not trained on."""
        with torch.no_grad():
            return float(torch.cat([self.divergence(torch.tensor(row)) for row in self.held]).mean())


def recover(
    heads: SmallerHeads, whole: Read, files: list[Path], encode: Encode, plan: RecoveryPlan, show: Progress
) -> dict[str, Any]:
    """Train the folded matrices of a smaller model, and put them in -> what the manifest says of it: steps, and the
    divergence on texts held out before and after."""
    trainer = Recovery(heads, whole, files, encode, plan)
    before = trainer.measure()
    train(trainer, None, "", show)
    after = trainer.measure()
    if not isfinite(after):
        raise UsageError("--recover: the training diverged; leave it out, or give a longer text")
    for name, w in trainer.weights.items():
        heads.put(name, w.detach().numpy())
    return {"steps": trainer.steps, "kl_before": round(before, 6), "kl_after": round(after, 6)}
