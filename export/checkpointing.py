"""The checkpoint of a training: weights, optimizer state and the place in the text, in a file of arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from edgedec.errors import UsageError
from edgedec.export.adam8 import MOMENTS, SCALES
from edgedec.export.exits_data import Place
from edgedec.storage.files import replacing

_PARTS = (*MOMENTS, *SCALES, "momentum_buffer")


class Checkpointed:
    """The state of a training. command: named in errors about its checkpoint."""

    command: str
    weights: Mapping[str, Tensor]
    optimizers: Sequence[torch.optim.Optimizer]
    steps: int
    spent: float

    @property
    def place(self) -> Place:
        """The place in the text, by reference: changes take effect."""
        raise NotImplementedError

    def save(self, path: Path, key: str) -> None:
        """Write a checkpoint of the training that `key` names."""
        tensors = {f"w.{name}": w.detach().cpu().clone() for name, w in self.weights.items()}
        for name, w in self.weights.items():
            kept = {part: value for part, value in self._state(w).items() if part in _PARTS}
            tensors |= {f"{part}.{name}": value.cpu() for part, value in kept.items()}
        facts = {"key": key, "steps": self.steps, "spent": self.spent, "place": asdict(self.place)}
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(save(tensors, {"facts": json.dumps(facts)}))

    def load(self, path: Path, key: str) -> None:
        """Go on from a checkpoint; nothing happens if there is none."""
        if not path.exists():
            return
        try:
            with safe_open(path, "pt") as file:
                facts: dict[str, Any] = json.loads(file.metadata()["facts"])
                if facts["key"] != key:
                    raise UsageError(f"{path}: of another training (model, data or options); choose another --work")
                self._restore(file, set(file.keys()), facts)
        except (SafetensorError, TypeError, KeyError, ValueError, RuntimeError) as error:
            raise UsageError(f"{path}: not a checkpoint of {self.command} ({error}); remove it") from None

    def _restore(self, file: Any, names: set[str], facts: dict[str, Any]) -> None:
        for name, w in self.weights.items():
            w.data.copy_(file.get_tensor(f"w.{name}"))
            kept = [part for part in _PARTS if f"{part}.{name}" in names]
            self._state(w).update({part: file.get_tensor(f"{part}.{name}").to(w.device) for part in kept})
            if MOMENTS[0] in kept:
                self._state(w)["step"] = torch.tensor(float(facts["steps"]))
        self.steps, self.spent = facts["steps"], facts["spent"]
        found, place = Place(**facts["place"]), self.place
        place.turn, place.block, place.row = found.turn, found.block, found.row

    def _state(self, w: Tensor) -> dict[str, Tensor]:
        """An optimizer's state of a weight, by reference: changes take effect."""
        owner = next(
            one for one in self.optimizers if any(w is p for group in one.param_groups for p in group["params"])
        )
        found: dict[str, Tensor] = owner.state[w]
        return found
