"""All ways to decode a diffusion model: every method of every seam, beside one token a pass and beside several.

A way that takes fewer passes is compared with the plainest that takes as few: `static` filling 1, 2, 3, … of the surest
positions a pass, its right answers read off between these at the same number of passes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgedec.bench.diffusion import DecodingCost
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.words import OFF, SEAMS, parse_diffusion
from edgedec.errors import EdgedecError

COUNTS = (1, 2, 3, 4, 6)
# Ways of fitting that are given a form or a grammar.
_FORMS = "fixed", "grammar"


def static(count: int) -> str:
    return "schedule=static" if count == 1 else f"schedule=static:count={count}"


def every_way(host: DiffusionHost) -> tuple[list[str], dict[str, str]]:
    """The words of each, and of those that this model cannot be decoded with, and why."""
    facts = host.facts
    ways = [OFF] if facts.context == "causal" and facts.shift else []
    ways += [static(count) for count in COUNTS]
    skipped = dict[str, str]()
    for seam, family in SEAMS.items():
        for name in family.names():
            needs = family.facts(name).needs
            words = f"{seam}={name}" + (f",{needs}" if needs else "")
            if seam == "fits" and name in _FORMS:
                skipped[words] = f"--diffusion {words}: keeps a form, and the tasks have none"
                continue
            try:
                parse_diffusion(words, facts.context).make(host)
            except EdgedecError as error:
                skipped[words] = str(error)
            else:
                ways += [words] if words not in ways else []
    return ways, skipped


def at_equal_passes(found: Mapping[str, Mapping[str, DecodingCost]], way: str, task: str) -> float | None:
    """The share of right answers of `static` with as many passes; None if it was not measured with several counts."""
    points = sorted(
        (cost.passes, cost.right / cost.texts)
        for count in COUNTS
        if (cost := found.get(static(count), {}).get(task)) is not None
    )
    if len(points) < 2:
        return None
    passes, right = zip(*points, strict=True)
    return round(float(np.interp(found[way][task].passes, passes, right)), 3)
