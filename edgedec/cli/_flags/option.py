"""The declaration of a flag that several verbs share."""

from __future__ import annotations

from typing import Any

import typer


def option(*flags: str, help: str, **more: Any) -> Any:  # noqa: A002
    """An option whose help text has its default."""
    return typer.Option(*flags, help=help, show_default=False, **more)
