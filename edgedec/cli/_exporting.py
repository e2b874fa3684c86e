"""Shared by the verbs that write bundles."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.extras import install_command


def export_module(name: str, what: str, extra: str = "export") -> Any:
    """The module `name` of the exporter; RuntimeUnavailable names the extra to install if a package that it needs is
    missing."""
    try:
        return import_module(f"edgedec.export.{name}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "edgedec":
            raise
        raise RuntimeUnavailable(f"{what} needs {package}: {install_command(extra)}") from None


def changeable(bundle: str) -> Path:
    """The folder of a bundle that is to be changed; UsageError for a bundled model, which all programs share."""
    from edgedec.bundle.locate import BUNDLED, find

    folder = find(bundle)
    if bundle in BUNDLED and folder.name != bundle:
        raise UsageError(f"{bundle}: is part of the installed package; change a copy: cp -r {folder} ./{bundle}-own")
    return folder


def encoder_of(folder: Path, verb: str) -> Any:
    """Text -> ids, as the checkpoint's own tokenizer gives them. verb: what reads texts."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UsageError(f"{path}: missing; {verb} reads texts with it")
    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: tokenizer.encode(text).ids


def names(text: str) -> tuple[str, ...]:
    """The names of a comma-separated list."""
    return tuple(part.strip() for part in text.split(","))
