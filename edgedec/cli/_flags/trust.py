"""`--trust-code`: code that lies in a bundle may be run."""

from __future__ import annotations

from typing import Annotated

import typer


def _trust(value: bool) -> bool:
    if value:
        from edgedec.runtime.trust import trust_code

        trust_code(True)
    return value


TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        callback=_trust,
        show_default=False,
        help="Run compiled code that lies in the bundle (engine tvm).",
    ),
]
