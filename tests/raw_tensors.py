"""Tensors of any dtype in a file, as a header of safetensors would name them."""

from __future__ import annotations

from pathlib import Path

from edgedec.export.safetensors import Stored

Raw = dict[str, tuple[str, tuple[int, ...], bytes]]
"""name -> dtype, shape, bytes."""


def stored(folder: Path, raw: Raw) -> dict[str, Stored]:
    found, at = dict[str, Stored](), 0
    path = folder / "tensors"
    for name, (dtype, shape, data) in raw.items():
        found[name] = Stored(path, dtype, shape, at, len(data))
        at += len(data)
    path.write_bytes(b"".join(data for _, _, data in raw.values()))
    return found
