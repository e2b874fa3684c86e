"""The sources of the CUDA engine, and the names of their build results."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "engine.cu"


class CudaBuildFailed(Exception):
    """A build error in one line."""


def source_files() -> list[Path]:
    """All that a build reads."""
    return sorted(path for path in HERE.iterdir() if path.suffix in (".cu", ".h", ".cpp"))


def digest() -> str:
    """A digest of the sources, the key of a build."""
    hashed = hashlib.sha256()
    for path in source_files():
        hashed.update(path.name.encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()[:16]


def stale(folder: Path) -> bool:
    """Whether a folder's kernels were compiled from other sources than these; False without kernels."""
    noted = folder / "SOURCES"
    return SOURCE.is_file() and noted.is_file() and noted.read_text("utf-8").strip() != digest()


def cubin_name(architecture: str) -> str:
    """The file that holds the engine for an architecture (sm_90: a cubin; compute_120: PTX)."""
    return f"engine.{architecture}.{'ptx' if architecture.startswith('compute') else 'cubin'}"


def cache_folder() -> Path:
    """edgedec's cache folder (as `edgedec.storage.files.cache_folder`, which cannot be imported here)."""
    own = os.environ.get("EDGEDEC_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgedec"
