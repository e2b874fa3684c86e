"""Every exit with every length, compared with DEL's choice: the best fixed pair, and the distance of the choice.

A fixed pair drafts a chain of `gamma` tokens at each call, regardless of their chances; DEL chooses both by itself.
Both draft chains, or both trees of `width` tokens a level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from edgedec.errors import UsageError

_SOME = 5
GAMMAS = (1, 2, 3, 4, 6)


@dataclass(frozen=True)
class ExitSweep:
    """exits: layers after which the model is left; gammas: lengths; width: tokens of a level."""

    exits: Sequence[int]
    gammas: Sequence[int]
    width: int = 1

    def check(self, n_layers: int) -> None:
        """UsageError for exits that the model does not have."""
        for layer in self.exits:
            if not 1 <= layer < n_layers:
                raise UsageError(f"--exits {layer}: the model has {n_layers} layers; leave it before the last")

    @property
    def choice(self) -> str:
        """DEL's drafter."""
        longest = max(self.gammas)
        return f"exit:gamma={longest},width={self.width},fixed={longest * self.width}"

    def pairs(self) -> dict[str, tuple[int, int]]:
        """The drafter of each exit and length."""
        return {
            f"exit:layer={e},gamma={g},width={self.width},stop=0,fixed={g * self.width}": (e, g)
            for e in self.exits
            for g in self.gammas
        }


def usual_exits(n_layers: int) -> list[int]:
    """Some layers in the first two thirds."""
    return sorted({max(1, round(n_layers * (i + 1) * 2 / 3 / _SOME)) for i in range(_SOME)} - {n_layers})


def swept(sweep: ExitSweep, found: Mapping[str, Any]) -> dict[str, Any]:
    """{"cells": one a pair, "best", "choice", "over_best"}, of the results of its drafters."""
    cells = [{"layer": e, "gamma": g, **_cell(found["drafters"][name])} for name, (e, g) in sweep.pairs().items()]
    best, choice = max(cells, key=lambda cell: cell["speed"]), _cell(found["drafters"][sweep.choice])
    return {
        "width": sweep.width,
        "cells": cells,
        "best": best,
        "choice": choice,
        "over_best": choice["speed"] / best["speed"],
    }


def _cell(drafter: Mapping[str, Any]) -> dict[str, Any]:
    """Of one drafter: speed over plain decoding (geometric mean over the prompts), tokens a call, what was accepted."""
    return {
        "speed": geometric_mean([ratio for ratio in drafter["speed_ratios"] if ratio is not None]),
        "tokens_per_call": drafter["tokens_per_call"],
        "accepted": drafter["accepted"] / max(drafter["proposed"], 1),
        "identical": drafter["identical"],
    }
