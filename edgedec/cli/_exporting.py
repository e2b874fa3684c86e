"""What the verbs that write bundles share."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from edgedec.errors import RuntimeUnavailable
from edgedec.extras import install_command


def export_module(name: str, what: str) -> Any:
    """The module `name` of the exporter; RuntimeUnavailable names the extra to install if a package that it needs is
    missing."""
    try:
        return import_module(f"edgedec.export.{name}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "edgedec":
            raise
        raise RuntimeUnavailable(f"{what} needs {package}: {install_command('export')}") from None


def names(text: str) -> tuple[str, ...]:
    """The names of a comma-separated list."""
    return tuple(part.strip() for part in text.split(","))
