"""Options that several searches have."""

from __future__ import annotations

from typing import Annotated, Literal

from edgedec.plugins import Opt

WIDEST = 256
N = Annotated[int, Opt("Texts that are written at the same time.", 1, WIDEST)]
Width = Annotated[int, Opt("Texts that run at the same time.", 1, WIDEST)]
Rank = Annotated[int, Opt("Which of the texts found is given; 0: the best.", 0, WIDEST - 1)]
LengthPenalty = Annotated[float, Opt("Sums are divided by length to this power.", -10, 10)]
Early = Annotated[
    Literal["false", "true", "never"],
    Opt("true: over once `width` texts have ended; false, never: once none that runs seems better, or can be."),
]
Command = Annotated[
    str, Opt('A program that scores texts: a line of JSON {"prompt": …, "text": …} in, a line with a number out.')
]
Timeout = Annotated[float, Opt("Seconds that a scorer may take for a text.", above=0, high=3600)]
Temperature = Annotated[float, Opt("Of what it samples, in place of the generation's.", above=0, high=10)]
TopP = Annotated[float, Opt("Of what it samples, in place of the generation's.", above=0, high=1)]
