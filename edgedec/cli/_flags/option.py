"""How a flag that several verbs share is declared."""

from __future__ import annotations

from typing import Any

import typer


def option(*flags: str, help: str, **more: Any) -> Any:  # noqa: A002
    """An option whose help says by itself what holds without it."""
    return typer.Option(*flags, help=help, show_default=False, **more)
