"""The flag that names logits processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli._flags.completing import plugins_of

if TYPE_CHECKING:
    import edgedec
    from edgedec.decoding.logits import LogitsProcessor

ProcessorWords = Annotated[
    str,
    typer.Option(
        "--processors",
        metavar="NAME:OPTION=VALUE,…",
        autocompletion=plugins_of("processors"),
        show_default=False,
        help="Change the logits before a token is chosen, as in dola:early=[2,4]: another text. "
        "`edgedec plugins processors` lists them.",
    ),
]


def processors_for(model: edgedec.Model, words: str) -> tuple[LogitsProcessor, ...]:
    """The processors that a flag names; none if it was not given."""
    from edgedec.processors import make_processors

    return make_processors(model, words) if words else ()
