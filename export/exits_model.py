"""A Hugging Face model with access to its layers and readout: layers can be skipped, and hidden states read out early.

The network is transformers' own, so every family has its reference arithmetic. The required structure (a list of
layers, a last norm, a head matrix) is checked before training: the readout of the last hidden state must equal the
model's logits.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from edgedec.errors import CheckpointError
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.safetensors import read_json
from edgedec.export.shards import INDEX
from edgedec.models import architecture

KEPT = (".json", ".jinja", ".txt", ".model")
_TOLERANCE = 1e-3


def load(folder: Path) -> Any:
    """The checkpoint as a float32 torch module; only what `edgedec export` reads, every tensor there."""
    checkpoint = Checkpoint.open(folder)
    family = architecture(checkpoint.config)
    spec = family.spec(checkpoint.config)
    checkpoint.check(family.weights(spec, checkpoint.config), spec, family.FACTS.ignored)
    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False, use_safetensors=True
    )


def write(early: Early, source: Path, out: Path) -> None:
    """The model as a Hugging Face folder: weights in the type they came in, every other file as it was."""
    write_model(early.model, source, out)


def write_model(model: Any, source: Path, out: Path) -> None:
    """A network of transformers, trained from the checkpoint `source`, as `write` does."""
    config = read_json(source / "config.json")
    wanted = getattr(torch, str(config.get("dtype", config.get("torch_dtype"))), torch.float32)
    weights = {name: tensor.detach().to(wanted) for name, tensor in model.state_dict().items()}
    model.save_pretrained(out, state_dict=weights, safe_serialization=True)
    for path in source.iterdir():
        if path.is_file() and path.suffix in KEPT and path.name != INDEX:
            shutil.copyfile(path, out / path.name)


class Early:
    """A causal language model whose layers a training step may skip, and whose hidden states it reads."""

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.head = model, model.get_output_embeddings()
        self._base = base = getattr(model.base_model, "language_model", model.base_model)
        self.layers: Any = getattr(base, "layers", None)
        self.norm: Any = getattr(base, "norm", None) or getattr(base, "final_layernorm", None)
        if self.layers is None or self.norm is None or self.head is None:
            raise CheckpointError(f"{name}: no list of layers, last norm and head in this family; exits need them")
        config = model.config.get_text_config()
        self.context: int = config.max_position_embeddings
        self._cap = getattr(config, "final_logit_softcapping", None) or 0.0
        self._scale = getattr(config, "logits_scaling", None) or 1.0
        self._skipped: frozenset[int] = frozenset()
        self._wanted: set[int] = set()
        self._read: dict[int, Tensor] = {}
        self._arity: dict[int, Any] = {}  # of a layer that returns a tuple: what follows the hidden states
        for i, layer in enumerate(self.layers):
            layer.forward = self._wrapped(i, layer.forward)
        self._check(name)

    def __len__(self) -> int:
        return len(self.layers)

    def readout(self, x: Tensor) -> Tensor:
        """x [..., H], after some layer -> logits [..., V] through the model's last norm and head."""
        logits = self.head(self.norm(x)) / self._scale
        return self._cap * torch.tanh(logits / self._cap) if self._cap else logits

    def states(self, ids: Tensor, exits: Sequence[int], skipped: Sequence[int] = ()) -> Mapping[int, Tensor]:
        """ids [1, T] -> {layers computed: hidden states [T, H]} for the exits and the whole model; the layers
        `skipped` are left out."""
        wanted = {*exits, len(self)}
        with self._noted(wanted, skipped):
            self._base(input_ids=ids, use_cache=False)
            return {e: self._read[e][0] for e in sorted(wanted)}

    @contextmanager
    def _noted(self, wanted: set[int], skipped: Sequence[int]) -> Iterator[None]:
        self._wanted, self._skipped = wanted, frozenset(skipped)
        try:
            yield
        finally:
            self._skipped, self._read = frozenset(), {}

    def _wrapped(self, i: int, forward: Any) -> Any:
        def one(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            if i in self._skipped:
                found: Any = hidden_states if self._arity[i] is None else (hidden_states, *[None] * self._arity[i])
            else:
                found = forward(hidden_states, *args, **kwargs)
                self._arity[i] = len(found) - 1 if isinstance(found, tuple) else None
            if i + 1 in self._wanted:
                self._read[i + 1] = found[0] if isinstance(found, tuple) else found
            return found

        return one

    def _check(self, name: str) -> None:
        """Check that the readout of the last state equals the model's logits."""
        ids = torch.arange(1, 9)[None] % self.model.config.get_text_config().vocab_size
        self.model.eval()
        with torch.no_grad():
            said = self.model(input_ids=ids, use_cache=False).logits[0]
            found = self.readout(self.states(ids, ())[len(self)])
        if not torch.allclose(said, found, atol=_TOLERANCE, rtol=_TOLERANCE):
            raise CheckpointError(f"{name}: its logits are more than norm and head of the last layer; exits need that")
