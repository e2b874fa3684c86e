"""PEFT LoRA checkpoints -> adapter files.

A matrix of a bundle may be stacked from several of a checkpoint (q, k and v); the ranks of their adapters are then
put side by side: a is all of their A, one after another, and b has each B where its rows and its A's ranks meet,
zeros elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.adapter import LowRank, adaptable
from edgedec.errors import CheckpointError
from edgedec.export.links import check_links
from edgedec.export.safetensors import Stored, elements, read_header, read_json
from edgedec.models import Part, Source, architecture
from edgedec.spec import Attention, Block, Delta, ModelSpec

Array = NDArray[np.float32]
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
# Settings that change the arithmetic and are not supported.
_REFUSED = (
    "use_dora",
    "modules_to_save",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
)


@dataclass(frozen=True)
class _Peft:
    """A PEFT checkpoint: its low-rank pairs by module."""

    folder: Path
    tensors: dict[str, Stored]
    config: dict[str, Any]

    def scale(self, module: str, rank: int) -> float:
        """The factor of B A x."""
        alpha = _pattern(self.config.get("alpha_pattern"), module, self.config.get("lora_alpha", 8))
        if type(alpha) not in (int, float) or not isfinite(alpha):
            raise CheckpointError(f"{self.folder / CONFIG}: lora_alpha of {module}: {str(alpha)[:60]!r} is no number")
        return float(alpha) / (sqrt(rank) if self.config.get("use_rslora") else rank)

    def pair(self, module: str) -> LowRank | None:
        """A and B of a module, None if it has none; the scale is in B."""
        names = [f"{_PREFIX}{module}.lora_{part}.weight" for part in "AB"]
        if names[0] not in self.tensors or names[1] not in self.tensors:
            return None
        one, two = (self.tensors[name].shape for name in names)
        if len(one) != 2 or len(two) != 2 or one[0] != two[1] or not 0 < one[0] <= max(one[1], two[0]):
            raise CheckpointError(f"{self.folder}: {module}: A {list(one)} and B {list(two)} are no low-rank pair")
        a, b = (_read(name, self.tensors[name]) for name in names)
        return LowRank(a, b * np.float32(self.scale(module, len(a))))


def read_peft(folder: Path, bundle: Bundle) -> dict[str, LowRank]:
    """The low-rank weights of a PEFT LoRA checkpoint, by the bundle's matrices; CheckpointError if a setting cannot be
    kept exactly."""
    check_links(folder)
    config = read_json(folder / CONFIG)
    _check(folder, config)
    peft = _Peft(folder, read_header(folder / WEIGHTS), config)
    sources = architecture({"model_type": bundle.spec.architecture}).weights(
        bundle.spec, bundle.manifest.source.get("config", {})
    )
    found, used = dict[str, LowRank](), set[str]()
    for name in sorted(adaptable(bundle.spec) & sources.keys()):
        low = _stacked(peft, bundle.spec, name, sources[name])
        if low is not None:
            found[name] = low
            used |= {f"{_PREFIX}{_module(part)}.lora_{x}.weight" for part in sources[name] for x in "AB"}
    left = sorted(set(peft.tensors) - used)
    if left:
        raise CheckpointError(
            f"{folder}: {left[0]} belongs to no matrix of {bundle.manifest.name}; is it for another model?"
        )
    if not found:
        raise CheckpointError(f"{folder}: holds no low-rank weights")
    return found


def _check(folder: Path, config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{folder / CONFIG}: peft_type {config.get('peft_type')!r} is not supported, only LORA")
    if config.get("bias", "none") != "none":
        raise CheckpointError(f"{folder / CONFIG}: bias {config['bias']!r} is not supported, only none")
    if not isinstance(config.get("alpha_pattern") or {}, dict):
        raise CheckpointError(f"{folder / CONFIG}: alpha_pattern is not an object")
    for key in _REFUSED:
        if config.get(key):
            raise CheckpointError(f"{folder / CONFIG}: {key} is not supported; merge the adapter and export the result")


def _stacked(peft: _Peft, spec: ModelSpec, name: str, source: Source) -> LowRank | None:
    """The low-rank weights of one matrix of the bundle, from those of the checkpoint's that it is stacked from."""
    pairs = [None if part.flat or part.moved else peft.pair(_module(part)) for part in source]
    if not any(pairs):
        return None
    heights, shape = _heights(spec, name, source), spec.tensors()[name]
    rank = sum(len(pair.a) for pair in pairs if pair is not None)
    a, b = np.empty((rank, shape[1]), np.float32), np.zeros((shape[0], rank), np.float32)
    row = at = 0
    for part, pair, height in zip(source, pairs, heights, strict=True):
        if pair is not None:
            own = pair.b if part.rows is None else pair.b[slice(*part.rows)]
            if pair.a.shape[1] != shape[1] or len(own) != height:
                raise CheckpointError(f"{peft.folder}: {part.name} has another shape than this model's")
            a[at : at + len(pair.a)] = pair.a
            b[row : row + height, at : at + len(pair.a)] = own * np.float32(part.times)
            at += len(pair.a)
        row += height
    return LowRank(a, b)


def _heights(spec: ModelSpec, name: str, source: Source) -> list[int]:
    """Rows of each part that a matrix is stacked from."""
    total = spec.tensors()[name][0]
    if all(part.rows is not None for part in source):
        return [part.rows[1] - part.rows[0] for part in source if part.rows is not None]
    block: Block | None = spec.blocks[int(name.split(".")[1])] if name.startswith("blocks.") else None
    if isinstance(block, Attention) and name.endswith(".qkv") and len(source) in (3, 4):
        return [block.q_dim, block.kv_dim, block.kv_dim, block.gate_dim][: len(source)]
    if isinstance(block, Delta) and name.endswith(".in_proj") and len(source) == 6:
        keys = block.n_groups * block.key_dim
        return [block.inner_size, keys, keys, *block.sections[1:]]
    known = [None if part.rows is None else part.rows[1] - part.rows[0] for part in source]
    rest = total - sum(height or 0 for height in known)
    return [rest // known.count(None) if height is None else height for height in known]


def _module(part: Part) -> str:
    """model.layers.0.self_attn.q_proj.weight -> model.layers.0.self_attn.q_proj"""
    return part.name.removesuffix(".weight")


def _pattern(patterns: dict[str, Any] | None, module: str, default: Any) -> Any:
    """A setting that PEFT may override by the end of a module's name."""
    return next((value for key, value in (patterns or {}).items() if module.endswith(key)), default)


def _read(name: str, stored: Stored) -> Array:
    return elements(name, stored, 0, int(np.prod(stored.shape))).reshape(stored.shape)
