"""The constants of each method, as papers and public code have them, and the values that are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from edgedec.diffusion.words import SEAMS, parse_diffusion
from edgedec.errors import UsageError

# Seam, method, option, default, least and largest value.
DECLARED: list[tuple[str, str, str, Any, float | None, float | None]] = [
    ("schedule", "static", "count", 1, 1, None),
    ("schedule", "threshold", "p", 0.9, 0, 1),
    ("schedule", "bacd", "low", 0.6, 0, 1),
    ("schedule", "bacd", "high", 0.9, 0, 1),
    ("schedule", "cad", "p", 0.95, 0, 1),
    ("schedule", "cad", "most", 32, 1, None),
    ("schedule", "cad", "early", 0.3, 0, 1),
    ("schedule", "ccd", "count", 1, 1, None),
    ("schedule", "ccd", "warm", 5, 0, None),
    ("schedule", "dimple", "p", 0.95, 0, 1),
    ("schedule", "entropy", "most", 0.4, 0, None),
    ("schedule", "entropy", "slope", 0.02, 0, None),
    ("schedule", "ete", "p", 0.9, 0, 1),
    ("schedule", "ete", "bits", 1.0, 0, None),
    ("schedule", "ete", "least", 0.5, 0, 1),
    ("schedule", "learned", "p", 0.96, 0, 1),
    ("schedule", "localleap", "anchor", 0.9, 0, 1),
    ("schedule", "localleap", "near", 0.75, 0, 1),
    ("schedule", "localleap", "radius", 4, 0, None),
    ("schedule", "prophet", "gaps", (7.5, 5, 2.5), None, None),
    ("schedule", "prophet", "span", 0, 0, None),
    ("schedule", "spread", "parts", 3, 1, None),
    ("schedule", "spread", "count", 1, 1, None),
    ("blocks", "coarse_fine", "think", 0, 0, None),
    ("blocks", "coarse_fine", "answer", 0, 0, None),
    ("blocks", "coarse_fine", "close", "</think>", None, None),
    ("blocks", "deferred", "size", 0, 0, None),
    ("blocks", "deferred", "step", 4, 1, None),
    ("blocks", "deferred", "most", 16, 0, None),
    ("blocks", "deferred", "low", 0.6, 0, 1),
    ("blocks", "delimiter", "size", 0, 0, None),
    ("blocks", "delimiter", "p", 0.3, 0, 1),
    ("blocks", "fixed", "size", 0, 0, None),
    ("blocks", "sliding", "size", 0, 0, None),
    ("keep", "delayed", "every", 8, 1, None),
    ("keep", "subblock", "size", 8, 1, None),
    ("keep", "window", "every", 32, 1, None),
    ("keep", "window", "wide", 128, 1, None),
    ("keep", "window", "near", 32, 1, None),
    ("ends", "rejected", "factor", 0.4, 0, 1),
    ("verify", "ar_mode", "route", "score", None, None),
    ("verify", "ar_mode", "span", 8, 1, None),
    ("verify", "ar_mode", "cost", 1.0, 0, None),
    ("verify", "ar_mode", "least", 0.0, None, None),
    ("verify", "ar_mode", "on", 1.0, None, None),
    ("verify", "ar_mode", "off", -5.0, None, None),
    ("verify", "branches", "states", 4, 2, 64),
    ("fits", "edit", "p", 0.5, 0, 1),
    ("fits", "edit", "most", 16, 0, None),
    ("fits", "fixed", "text", "", None, None),
    ("fits", "fixed", "tokens", (), -1, None),
    ("fits", "grammar", "text", "", None, None),
    ("fits", "grammar", "tokens", (), -1, None),
]


def test_every_option_is_here() -> None:
    declared = {
        (seam, name, option)
        for seam, family in SEAMS.items()
        for name in family.names()
        for option in family.options(name)
    }
    assert declared == {row[:3] for row in DECLARED} | {("schedule", "learned", "file")}


@pytest.mark.parametrize(("seam", "name", "option", "default", "low", "high"), DECLARED)
def test_constants_and_ranges(seam: str, name: str, option: str, default: Any, low: Any, high: Any) -> None:
    family = SEAMS[seam]
    found = family.options(name)[option]
    assert (found.default, type(found.default)) == (default, type(default))
    assert (found.opt.low, found.opt.high) == (low, high)
    more = "file=x," if name == "learned" else ""
    step = 1 if isinstance(default, int) else 1e-3
    for bound, sign in ((low, -1), (high, 1)):
        if bound is None or isinstance(default, tuple):
            continue
        within, beyond = (
            f"{seam}={name}:{more}{option}={bound}",
            f"{seam}={name}:{more}{option}={bound + sign * step:g}",
        )
        parse_diffusion(within, "full")
        with pytest.raises(UsageError, match=f"{option}={bound + sign * step:g}: must be "):
            parse_diffusion(beyond, "full")
    if isinstance(default, float):
        for wrong in (math.nan, math.inf):
            with pytest.raises(UsageError, match=option):
                parse_diffusion(f"{seam}={name}:{more}{option}={wrong}", "full")
