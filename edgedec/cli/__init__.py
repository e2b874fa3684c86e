"""The `edgedec` command. A file or folder here without an underscore is a verb, imported when used."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Importing this package imports nothing else."""
    try:
        from edgedec.cli._app import run_app

        return run_app(sys.argv[1:] if argv is None else [*argv])  # `list` is a verb here
    except KeyboardInterrupt:  # before any verb began
        return 130
