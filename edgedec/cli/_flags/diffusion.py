"""`--diffusion`: the methods of a diffusion language model."""

from __future__ import annotations

from typing import Annotated

import typer


def _complete(incomplete: str) -> list[str]:
    """Seams, and the methods of one, at the end of what is typed.

    >>> _complete("schedule=stat"), _complete("schedule=static,blo")
    (['schedule=static'], ['schedule=static,blocks='])
    """
    from edgedec.diffusion.words import OFF, SEAMS

    before, comma, last = incomplete.rpartition(",")
    seam, equals, start = last.partition("=")
    if not equals:
        names = [*(f"{name}=" for name in SEAMS), "steps=", *([] if comma else [OFF])]
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]
    names = list(SEAMS[seam].names()) if seam in SEAMS else []
    return [f"{before}{comma}{seam}={name}" for name in names if name.startswith(start)]


DiffusionWords = Annotated[
    str,
    typer.Option(
        "--diffusion",
        metavar="SEAM=METHOD,…",
        autocompletion=_complete,
        show_default=False,
        help="How a diffusion model fills its blocks, as in schedule=threshold:p=0.8,keep=block,steps=8; by default as "
        "its bundle says. off: one token after another, if it can (docs/diffusion.md).",
    ),
]
