"""Graphs compiled for an NPU, by SoC: from the bundle, else from the cache folder, else compiled now.

A folder holds one graph at one shape: `graph_ctx.onnx` names the binary beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import onnxruntime as ort

from edgedec.bundle import Bundle
from edgedec.runtimes.ort.device_shapes import CallShape
from edgedec.runtimes.ort.providers import Placed
from edgedec.runtimes.ort.shipped import key, shipped_contexts
from edgedec.storage.files import cache_folder

_MODEL = "graph_ctx.onnx"
_FORMAT = 1


class Contexts:
    """The compiled graphs of a bundle for one SoC."""

    def __init__(self, bundle: Bundle, placed: Placed) -> None:
        self._bundle, self._placed, self.compiled = bundle, placed, 0
        self._shipped = shipped_contexts(bundle, placed.device)

    def open(self, name: str, shape: CallShape, options: ort.SessionOptions) -> Any:
        """A session of a graph at a shape, compiled if no compiled form is found."""
        shipped = self._shipped.get(key(name, shape))
        if shipped is not None:
            options.add_session_config_entry("ep.share_ep_contexts", "1")
            return self._placed.open(str(self._bundle.file(shipped)), options)
        folder = self.folder(name, shape)
        if (folder / _MODEL).is_file():
            return self._placed.open(str(folder / _MODEL), options)
        self.compiled += 1
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            staging = Path(mkdtemp(prefix=".compiling-", dir=folder.parent))
        except OSError:  # a folder that cannot be written: compiled at each start
            return self._placed.open(str(self._bundle.file(name)), options)
        try:
            options.add_session_config_entry("ep.context_enable", "1")
            options.add_session_config_entry("ep.context_file_path", str(staging / _MODEL))
            options.add_session_config_entry("ep.context_embed_mode", "0")
            session = self._placed.open(str(self._bundle.file(name)), options)
            if not folder.exists():
                os.replace(staging, folder)
            return session
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def folder(self, name: str, shape: CallShape) -> Path:
        """The folder of the compiled graph; its name is a hash of everything the result depends on."""
        facts = [
            _FORMAT,
            self._bundle.manifest.files[name].sha256,
            self._bundle.manifest.files[self._bundle.manifest.weights].sha256,
            list(shape),
            str(self._placed.device),
            self._placed.options,
            ort.__version__,
            _version(self._placed.provider.package),
        ]
        key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
        return cache_folder() / "contexts" / key


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
