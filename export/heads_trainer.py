"""One draft head in training, with torch on the CPU: its weights, steps of Adam, a checkpoint.

Only the head is trained; the model and its readout are frozen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch.nn import functional

from edgedec.bundle.folder import Bundle
from edgedec.errors import UsageError
from edgedec.export.adam8 import MOMENTS, SCALES, Adam8
from edgedec.export.heads import Arrays, Facts
from edgedec.export.heads_data import Data, most_said
from edgedec.models.heads import HeadArchitecture, architecture
from edgedec.runtime.checks import check_bare_head
from edgedec.storage.files import replacing

WARMUP, HELD = 50, 4096
_BROAD = 1024  # the inner layer is four times the hidden size, up to this
_WIDE = 128  # from this hidden size on, matrices are stored as int8


@dataclass(frozen=True)
class TrainingPlan:
    """How to train. minutes and steps: whichever is over first (steps 0: the minutes alone); keep: tokens of the
    readout, 0 for all; width: of the inner layer, 0 to choose by the model; rate: the learning rate at its highest;
    labels: learn the model's predictions, or the text."""

    kind: str
    depth: int = 4
    layer: int = 0
    width: int = 0
    keep: int = 0
    top: int = 8
    minutes: float = 5.0
    steps: int = 0
    batch: int = 512
    rate: float = 2e-3
    seed: int = 0
    threads: int = 1
    labels: str = "model"


class TorchOps:
    """`models.heads.Ops` on tensors."""

    def __init__(self, weights: dict[str, torch.Tensor], eps: float) -> None:
        self.weights, self.eps = weights, eps

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.weights[name].T

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weights[name], self.eps)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return functional.silu(x)

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class HeadTrainer:
    """One head in training: weights, frozen readout, samples."""

    def __init__(self, bundle: Bundle, data: Data, plan: TrainingPlan) -> None:
        torch.set_num_threads(plan.threads)
        spec, self.data, self.plan = bundle.spec, data, plan
        check_bare_head(spec, "train-heads")
        self.network: HeadArchitecture = architecture(plan.kind)
        depth = plan.depth if self.network.FACTS.ahead else 1
        self.facts = Facts(
            kind=plan.kind,
            hidden=spec.hidden_size,
            width=plan.width or max(spec.hidden_size, min(4 * spec.hidden_size, _BROAD)),
            depth=depth,
            eps=spec.norm_eps,
            layer=plan.layer,
            softcap=spec.final_softcap,
            format="int8" if spec.hidden_size >= _WIDE else "f32",
        )
        self.ids = most_said(data, spec.vocab_size, plan.keep)
        if self.network.FACTS.ahead:
            self.facts = replace(self.facts, top=min(plan.top, len(self.ids)))
        self.frozen = {
            "final_norm": bundle.rows("final_norm"),
            "readout": bundle.gather("embed" if spec.tied else "head", self.ids),
        }
        self.embed, self.embed_scale = bundle, spec.embed_scale
        self.places = np.full(spec.vocab_size, -100, np.int64)
        self.places[self.ids] = np.arange(len(self.ids))
        self._split(depth)
        self.weights = self._begin(plan.seed)
        self.ops = TorchOps(self.weights | {n: torch.from_numpy(a) for n, a in self.frozen.items()}, spec.norm_eps)
        size = float(np.sqrt(np.mean(np.square(data.hidden[self.train[:4096]], dtype=np.float32)))) or 1.0
        # The head's output has to reach the size of hidden states, but steps of Adam have a fixed size: the learning
        # rate is multiplied by that size.
        groups = [
            {"params": [w], "lr": 1.0, "pace": size if name.endswith("down") else 1.0}
            for name, w in self.weights.items()
        ]
        self.optimizer = Adam8(groups, betas=(0.9, 0.98))
        self.steps, self.spent = 0, 0.0

    def _split(self, depth: int) -> None:
        """Rows with enough text after them; the last ones are held out for the report."""
        # With the text as labels, the token after the last row is needed, too.
        usable = np.flatnonzero(self.data.left >= depth + (self.plan.labels == "text"))
        held = min(HELD, len(usable) // 10)
        self.train, self.held = usable[: len(usable) - held], usable[len(usable) - held :]
        if not len(self.held):
            raise UsageError(f"{len(usable)} tokens to learn from: too few; give more text")

    def _begin(self, seed: int) -> dict[str, torch.Tensor]:
        rng, found = np.random.default_rng(seed), {}
        for name, shape in self.network.shapes(self.facts.hidden, self.facts.width, self.facts.depth).items():
            if len(shape) == 1:
                value = np.ones(shape, np.float32)
            elif name.endswith("down"):
                value = np.zeros(shape, np.float32)
            else:
                value = rng.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5)
            found[name] = torch.from_numpy(value).requires_grad_()
        return found

    def logits(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """Rows [n] of the data -> logits [depth, n, kept]."""
        depth = self.facts.depth
        hidden = torch.from_numpy(self.data.hidden[rows].astype(np.float32))
        embeddings = [
            self._embedded(self.data.tokens[rows + 1 + i]) for i in range(depth if self.network.FACTS.reads else 0)
        ]
        states = torch.stack(self.network.states(self.ops, hidden, embeddings, depth))
        logits = self.ops.linear(self.ops.norm(states, "final_norm"), "readout")
        cap = self.facts.softcap
        return cap * torch.tanh(logits / cap) if cap else logits

    def _embedded(self, tokens: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(self.embed.gather("embed", tokens) * np.float32(self.embed_scale))

    def targets(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """Rows [n] -> int64 [depth, n]: places in the readout, -100 for tokens that are not in it."""
        said = self.data.labels if self.plan.labels == "model" else np.roll(self.data.tokens, -1)
        found = [self.places[said[rows + self.network.FACTS.ahead + i]] for i in range(self.facts.depth)]
        return torch.from_numpy(np.stack(found))

    def step(self, progress: float) -> float:
        rng = np.random.default_rng((self.plan.seed, self.steps))
        rows = rng.choice(self.train, self.plan.batch)
        self.steps += 1
        rate = self.plan.rate * min(1.0, self.steps / WARMUP) * max(0.0, 1.0 - progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["pace"]
        loss = functional.cross_entropy(self.logits(rows).flatten(0, 1), self.targets(rows).flatten())
        if not torch.isfinite(loss):
            return float(loss.detach())  # no token of the batch is known to the readout
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def measure(self) -> tuple[float, ...]:
        """Per depth, the share of first guesses that equal the model's prediction (or the text)."""
        right = torch.zeros(self.facts.depth)
        with torch.no_grad():
            for part in np.array_split(self.held, -(-len(self.held) // 512)):
                right += (self.logits(part).argmax(-1) == self.targets(part)).sum(-1)
        return tuple((right / len(self.held)).tolist())

    def arrays(self) -> Arrays:
        found: Arrays = {name: w.detach().numpy().copy() for name, w in self.weights.items()}
        return found | self.frozen | {"vocab": self.ids} if self.facts.top else found

    # ---- the checkpoint: weights and Adam's two moments, a file of plain arrays

    def save(self, path: Path, key: str) -> None:
        tensors = {f"w.{name}": w.detach().clone() for name, w in self.weights.items()}
        for name, w in self.weights.items():
            state = self.optimizer.state.get(w, {})
            tensors |= {f"{part}.{name}": state[part].clone() for part in (*MOMENTS, *SCALES) if part in state}
        facts = json.dumps({"key": key, "steps": self.steps, "spent": self.spent})
        with replacing(path) as file:
            file.write(save(tensors, {"facts": facts}))

    def load(self, path: Path, key: str) -> None:
        """Go on from a checkpoint; nothing happens if there is none."""
        if not path.exists():
            return
        try:
            with safe_open(path, "pt") as file:
                facts = json.loads(file.metadata()["facts"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, TypeError, KeyError, ValueError) as error:
            raise UsageError(f"{path}: not a checkpoint of train-heads ({error}); remove it") from None
        if facts["key"] != key:
            raise UsageError(f"{path}: of another training (data, kind or sizes); choose another --work")
        for name, w in self.weights.items():
            w.data.copy_(tensors[f"w.{name}"])
            if f"exp_avg.{name}" in tensors:
                parts = [part for part in (*MOMENTS, *SCALES) if f"{part}.{name}" in tensors]
                self.optimizer.state[w] = {part: tensors[f"{part}.{name}"] for part in parts}
                self.optimizer.state[w]["step"] = torch.tensor(float(facts["steps"]))
        self.steps, self.spent = facts["steps"], facts["spent"]
