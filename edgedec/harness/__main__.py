"""`python -m edgedec.harness`: the command `lm_eval`, with the model `edgedec` registered."""

from __future__ import annotations

import sys

from edgedec.errors import EdgedecError
from edgedec.harness import register


def main() -> int:
    """0, or 1 with one line for what is edgedec's own error; the harness ends by itself for its own."""
    try:
        register()
        from lm_eval.__main__ import cli_evaluate

        cli_evaluate()
    except EdgedecError as error:
        print(f"edgedec: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
