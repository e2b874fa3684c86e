"""The tensors of a checkpoint's safetensors files: one file, or the shards of an index."""

from __future__ import annotations

import re
from pathlib import Path

from edgedec.errors import BadTensor, CheckpointError
from edgedec.export.safetensors import Stored, read_header, read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of the folder, from its one file or from the shards of its index."""
    if (folder / SINGLE).is_file():
        return read_header(folder / SINGLE)
    if not (folder / INDEX).is_file():
        raise CheckpointError(f"{folder}: no {SINGLE} and no {INDEX}; {_advice(folder)}")
    placed = read_json(folder / INDEX).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(shard, str) for shard in placed.values()):
        raise CheckpointError(f"{folder / INDEX}: weight_map must give a file for every tensor")
    found: dict[str, Stored] = {}
    for shard in sorted(set(placed.values())):
        if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", shard):
            raise CheckpointError(f"{folder / INDEX}: {shard!r} is not a plain file name")
        for name, stored in read_header(folder / shard).items():
            if placed.get(name, shard) != shard or name in found:
                raise BadTensor(f"{name}: in {shard}, though the index or another shard places it elsewhere")
            found[name] = stored
    for name, shard in placed.items():
        if name not in found:
            raise BadTensor(f"{name}: not in {shard}, where the index places it")
    return found


def _advice(folder: Path) -> str:
    if not folder.is_dir():
        return "there is no such folder"
    if any(folder.glob("*.gguf")):
        return "to export a GGUF file, name the file itself"
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        return "save the model as safetensors first: model.save_pretrained(folder)"
    return "expected a Hugging Face model folder"
