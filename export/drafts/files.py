"""Published draft checkpoints: a config, and safetensors or torch files.

A torch file is a pickle: it is read with `weights_only`, which builds tensors only.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.cached import HubName
from edgedec.errors import BadTensor, CheckpointError, RuntimeUnavailable
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.download import download
from edgedec.export.links import check_links
from edgedec.export.safetensors import Array, read_header, read_json
from edgedec.export.shards import INDEX, SINGLE
from edgedec.extras import install_command

_TORCH = ("pytorch_model.bin", "medusa_lm_head.pt", "hydra_lm_head.pt")
_SAFE = ("medusa_lm_head.safetensors", "hydra_lm_head.safetensors")


@dataclass(frozen=True)
class InMemory:
    """A tensor of a file that torch wrote."""

    array: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def require_readable(self, name: str) -> None:
        if self.array.dtype != np.float32:
            raise BadTensor(f"{name}: {self.array.dtype} is not a matrix of floats")

    def values(self, name: str, first: int, shape: tuple[int, ...]) -> Array:
        """Rows from `first` on: float32 of `shape`."""
        self.require_readable(name)
        width = math.prod(shape[1:])
        found: Array = self.array.reshape(-1)[first * width : first * width + math.prod(shape)].reshape(shape)
        return found


class DraftCheckpoint(Checkpoint):
    """A checkpoint with access to whole tensors by name."""

    def whole(self, name: str) -> Array:
        """One tensor as float32."""
        if name not in self.tensors:
            raise BadTensor(f"{name}: missing from {self.folder}")
        tensor = self.tensors[name]
        tensor.require_readable(name)
        found: Array = tensor.values(name, 0, tensor.shape)
        if not np.isfinite(found).all():
            raise BadTensor(f"{name}: holds values that are not finite")
        return found

    def integers(self, name: str) -> NDArray[np.int64]:
        """One tensor of whole numbers."""
        tensor: Any = self.tensors[name]
        if isinstance(tensor, InMemory):
            found = tensor.array
        elif tensor.dtype in ("I64", "I32"):
            dtype = np.dtype("<i8" if tensor.dtype == "I64" else "<i4")
            found = np.fromfile(tensor.file, dtype, math.prod(tensor.shape), offset=tensor.offset)
        else:
            raise BadTensor(f"{name}: {tensor.dtype}, expected whole numbers")
        if found.dtype.kind != "i" or found.ndim != 1:
            raise BadTensor(f"{name}: {found.dtype} {found.shape}, expected a list of whole numbers")
        return found.astype(np.int64)


def open_draft(place: str | Path) -> DraftCheckpoint:
    """The draft checkpoint in a folder or, failing that, under an id of the Hugging Face Hub."""
    folder = Path(place)
    if not folder.is_dir():
        if folder.exists() or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(place)):
            raise CheckpointError(f"{place}: neither a folder with a config.json and weights of a draft nor a Hub id")
        folder = download(HubName.parse(str(place)), torch_files=_TORCH).folder
    check_links(folder)
    config = read_json(folder / "config.json")
    if (folder / SINGLE).is_file() or (folder / INDEX).is_file():
        opened = Checkpoint.open(folder)
        return DraftCheckpoint(folder, opened.config, opened.tensors, quantization=opened.quantization)
    for name in _SAFE:
        if (folder / name).is_file():
            return DraftCheckpoint(folder, config, read_header(folder / name))
    for name in _TORCH:
        if (folder / name).is_file():
            tensors: dict[str, Any] = torch_tensors(folder / name)
            return DraftCheckpoint(folder, config, tensors)
    raise CheckpointError(f"{folder}: holds no weights; expected one of {', '.join((SINGLE, *_SAFE, *_TORCH))}")


def torch_tensors(path: Path) -> dict[str, InMemory]:
    """The tensors of a file that torch wrote, floats as float32."""
    try:
        import torch
    except ImportError:
        why = f"{path}: a file of torch, to be read by torch: {install_command('train')}"
        raise RuntimeUnavailable(f"{why}; or save it as safetensors") from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds: pickle, zip, torch
        raise CheckpointError(f"{path}: not a file of tensors ({' '.join(str(error).split())[:200]})") from None
    if not isinstance(found, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in found.values()):
        raise CheckpointError(f"{path}: expected tensors by name")
    return {
        str(name): InMemory((tensor.float() if tensor.is_floating_point() else tensor).numpy())
        for name, tensor in found.items()
    }
