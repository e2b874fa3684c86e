"""Searches at equal tokens: each with as many texts as draw about a given number of tokens."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from edgedec.errors import UsageError
from edgedec.plugins.words import spelt
from edgedec.search import FAMILY, parse_search

# The options that say how many texts there are, by how directly.
_NUMBERS = ("n", "width", "rollouts", "budget")
# Numbers on each side of the estimate: some are refused, as a width that its groups do not divide.
_BESIDE = 2


def at_tokens(way: str, wanted: float, measured: Callable[[str], float]) -> str:
    """The search with the number of texts that comes nearest to `wanted` tokens; as it is where it has no such option.

    measured(way): its tokens a text. Tried are the number by the rule of three and those beside it; of equals the
    fewest. best:n=4 of 100 tokens, 60 wanted: 4 * 60 / 100 is 2, so 1, 2, 3 and 4, which have 25, 50, 75 and 100.
    """
    name, options = parse_search(way)
    known = FAMILY.options(name)
    key = next((key for key in _NUMBERS if key in known), "")
    if not key:
        return way
    now = int(options.get(key, known[key].default))
    guess = max(1, round(now * wanted / max(measured(way), 1e-9)))
    tried = [f"{name}{spelt({**options, key: n})}" for n in range(max(1, guess - _BESIDE), guess + _BESIDE + 1)]
    far = {one: _distance(one, wanted, measured) for one in tried}
    best = min(tried, key=lambda one: far[one])
    return best if far[best] < inf else way


def _distance(way: str, wanted: float, measured: Callable[[str], float]) -> float:
    try:
        return abs(measured(way) - wanted)
    except UsageError:
        return inf
