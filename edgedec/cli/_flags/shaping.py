"""The flags that name logits processors and fusions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli._flags.completing import plugins_of

if TYPE_CHECKING:
    import edgedec
    from edgedec.decoding.logits import LogitsProcessor

FuseWords = Annotated[
    str,
    typer.Option(
        "--fuse",
        metavar="NAME:OPTION=VALUE,…",
        autocompletion=plugins_of("fusion"),
        show_default=False,
        help="Choose tokens from two distributions, as in cfg:scale=1.5,negative='A dull story.': another text. "
        "`edgedec plugins fusion` lists the ways.",
    ),
]
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


@dataclass(frozen=True)
class ShapingFlags:
    """What changes the logits."""

    processors: ProcessorWords = ""
    fuse: FuseWords = ""

    def for_model(self, model: edgedec.Model) -> tuple[LogitsProcessor, ...]:
        """The processors that the flags name; none if they were not given."""
        from edgedec.fusion import make_shaping

        return make_shaping(model, self.fuse, self.processors)
