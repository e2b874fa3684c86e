"""The flags of several texts of one prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edgedec.cli._flags.option import option
from edgedec.search.choices import CHOICES, MOST, Choices


@dataclass(frozen=True)
class ChoiceFlags:
    """How many texts of a prompt are written, and given."""

    n_cmpl: Annotated[
        int,
        option(
            "--n-cmpl",
            "--num-return-sequences",
            min=1,
            max=MOST,
            metavar="N",
            help=CHOICES["n"].help,
        ),
    ] = 1
    best_of: Annotated[
        int,
        option(
            "--best-of",
            min=0,
            max=MOST,
            metavar="N",
            help=CHOICES["best_of"].help,
        ),
    ] = 0

    @property
    def choices(self) -> Choices:
        return Choices(self.n_cmpl, self.best_of)
