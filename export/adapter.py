"""PEFT LoRA checkpoints -> adapter files.

A matrix of a bundle may be stacked from several of a checkpoint (q, k and v); the ranks of their adapters are then
put side by side: a is all of their A, one after another, and b has each B where its rows and its A's ranks meet,
zeros elsewhere.

Beside the weights of PEFT a folder may have `adapter_gates.safetensors` (`edgedec train-lora`): for each matrix a
vector [in], by which sets of adapters are routed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.adapter import Gates, LowRank, adaptable
from edgedec.errors import CheckpointError
from edgedec.export.links import check_links
from edgedec.export.safetensors import Stored, elements, read_header, read_json
from edgedec.models import Part, Source, architecture
from edgedec.spec import Attention, Block, Delta, ModelSpec

Array = NDArray[np.float32]
CONFIG, WEIGHTS, GATES = "adapter_config.json", "adapter_model.safetensors", "adapter_gates.safetensors"
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
    """A PEFT checkpoint: its low-rank pairs by module, and gates if it has any."""

    folder: Path
    tensors: dict[str, Stored]
    config: dict[str, Any]
    gates: dict[str, Stored]

    def scale(self, module: str, rank: int) -> float:
        """The factor of B A x."""
        alpha = _pattern(self.config.get("alpha_pattern"), module, self.config.get("lora_alpha", 8))
        if type(alpha) not in (int, float) or not isfinite(alpha):
            raise CheckpointError(f"{self.folder / CONFIG}: lora_alpha of {module}: {str(alpha)[:60]!r} is no number")
        return float(alpha) / (sqrt(rank) if self.config.get("use_rslora") else rank)

    def pair(self, module: str) -> LowRank | None:
        """A and B of a module, None if it has none; the scale is in B."""
        names = pair_names(module)
        if names[0] not in self.tensors or names[1] not in self.tensors:
            return None
        one, two = (self.tensors[name].shape for name in names)
        if len(one) != 2 or len(two) != 2 or one[0] != two[1] or not 0 < one[0] <= max(one[1], two[0]):
            raise CheckpointError(f"{self.folder}: {module}: A {list(one)} and B {list(two)} are no low-rank pair")
        a, b = (_read(name, self.tensors[name]) for name in names)
        return LowRank(a, b * np.float32(self.scale(module, len(a))))

    def gate(self, module: str, width: int) -> Array:
        """The gate of a module [width]."""
        stored = self.gates.get(gate_name(module))
        if stored is None:
            raise CheckpointError(f"{self.folder / GATES}: no gate of {module}; train the gates of all its matrices")
        if stored.shape != (width,):
            raise CheckpointError(
                f"{self.folder / GATES}: the gate of {module} is {list(stored.shape)}, not [{width}], its width"
            )
        found = _read(gate_name(module), stored)
        if not np.isfinite(found).all():
            raise CheckpointError(f"{self.folder / GATES}: the gate of {module} is not finite; train it again")
        return found


def pair_names(module: str) -> tuple[str, str]:
    """The names of a module's A and B in a PEFT checkpoint."""
    return f"{_PREFIX}{module}.lora_A.weight", f"{_PREFIX}{module}.lora_B.weight"


def gate_name(module: str) -> str:
    """The name of a module's gate in the file of gates."""
    return f"{_PREFIX}{module}.gate"


def read_peft(folder: Path, bundle: Bundle) -> dict[str, LowRank]:
    """The low-rank weights of a PEFT LoRA checkpoint, by the bundle's matrices; CheckpointError if a setting cannot be
    kept exactly."""
    peft = _opened(folder)
    sources = architecture({"model_type": bundle.spec.architecture}).weights(
        bundle.spec, bundle.manifest.source.get("config", {})
    )
    found, used = dict[str, LowRank](), set[str]()
    for name in sorted(adaptable(bundle.spec) & sources.keys()):
        low = _stacked(peft, bundle.spec, name, sources[name])
        if low is not None:
            found[name] = low
            modules = [module_of(part) for part in sources[name]]
            used |= {key for module in modules for key in (*pair_names(module), gate_name(module))}
    _check_used(peft, used, bundle.manifest.name)
    if not found:
        raise CheckpointError(f"{folder}: holds no low-rank weights")
    return found


def read_pairs(folder: Path, modules: Iterable[str]) -> dict[str, LowRank]:
    """The low-rank weights of a PEFT LoRA checkpoint by the modules of its model, without gates."""
    peft = _opened(folder)
    found = {module: pair for module in modules if (pair := peft.pair(module)) is not None}
    _check_used(peft, {key for module in found for key in (*pair_names(module), gate_name(module))}, "the model")
    return found


def _opened(folder: Path) -> _Peft:
    check_links(folder)
    config = read_json(folder / CONFIG)
    _check(folder, config)
    gates = read_header(folder / GATES) if (folder / GATES).exists() else {}
    return _Peft(folder, read_header(folder / WEIGHTS), config, gates)


def _check_used(peft: _Peft, used: set[str], model: str) -> None:
    left = sorted((peft.tensors.keys() | peft.gates.keys()) - used)
    if left:
        raise CheckpointError(f"{peft.folder}: {left[0]} belongs to no matrix of {model}; is it for another model?")


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
    pairs = [None if part.flat or part.moved or part.multiplied else peft.pair(module_of(part)) for part in source]
    if not any(pairs):
        return None
    heights, shape = _heights(spec, name, source), spec.tensors()[name]
    rank = sum(len(pair.a) for pair in pairs if pair is not None)
    a, b = np.empty((rank, shape[1]), np.float32), np.zeros((shape[0], rank), np.float32)
    parts, vectors, row, at = list[tuple[int, int, int]](), list[Array](), 0, 0
    for part, pair, height in zip(source, pairs, heights, strict=True):
        if pair is not None:
            own = pair.b if part.rows is None else pair.b[slice(*part.rows)]
            if pair.a.shape[1] != shape[1] or len(own) != height:
                raise CheckpointError(f"{peft.folder}: {part.name} has another shape than this model's")
            a[at : at + len(pair.a)] = pair.a
            b[row : row + height, at : at + len(pair.a)] = own * np.float32(part.times)
            at += len(pair.a)
            if peft.gates:
                parts.append((len(pair.a), row, height))
                vectors.append(peft.gate(module_of(part), shape[1]))
        row += height
    return LowRank(a, b, Gates(np.stack(vectors), np.array(parts, np.int32)) if peft.gates else None)


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


def module_of(part: Part) -> str:
    """model.layers.0.self_attn.q_proj.weight -> model.layers.0.self_attn.q_proj"""
    return part.name.removesuffix(".weight")


def _pattern(patterns: dict[str, Any] | None, module: str, default: Any) -> Any:
    """A setting that PEFT may override by the end of a module's name."""
    return next((value for key, value in (patterns or {}).items() if module.endswith(key)), default)


def _read(name: str, stored: Stored) -> Array:
    return elements(name, stored, 0, int(np.prod(stored.shape))).reshape(stored.shape)
