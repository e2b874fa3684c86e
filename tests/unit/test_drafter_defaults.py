"""Options of all drafters as they are documented: defaults and ranges."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from edgedec.drafters import FAMILY

# name: option, default (None: must be given), least, most (None: no bound; "over", "under": excluded)
Row = tuple[str, Any, Any, Any]
OPTIONS: dict[str, list[Row]] = {
    "block": [("length", 0, 0, 256), ("rows", 24, 1, None)],
    "chimera": [("length", 0, 0, 64), ("beam", 4, 1, None)],
    "copy": [("ngram", 4, 1, 8), ("length", 32, 1, 256)],
    "datastore": [("path", None, None, None), ("least", 2, 1, 12)],
    "ead": [
        ("path", "", None, None),
        ("tau", 1.0, 0, None),
        ("window", 5, 1, 64),
        ("stay", 10, 1, None),
        ("length", 16, 1, 64),
        ("threads", 0, 0, 1024),
        ("kv", "", None, None),
    ],
    "eagle": [("length", 0, 0, 64), ("beam", 8, 1, None), ("k", 8, 1, None)],
    "eagle3": [("length", 0, 0, 64), ("beam", 5, 1, None), ("k", 8, 1, None)],
    "exit": [
        ("layer", 0, 0, None),
        ("length", 6, 1, 64),
        ("threshold", 0.0, 0, 1),
        ("width", 3, 1, 4),
        ("trim", 0.25, "over 0", 1),
        ("adapter", "", None, None),
        ("stop", True, None, None),
    ],
    "falcon": [("length", 0, 0, 64), ("beam", 5, 1, None), ("k", 8, 1, None)],
    "hiddentransfer": [("length", 0, 0, 64), ("rows", 24, 1, None)],
    "hierarchy": [
        ("path", "", None, None),
        ("length", 8, 1, 64),
        ("inner", "recycling/suffix", None, None),
        ("nodes", 8, 1, 64),
        ("threads", 0, 0, 1024),
    ],
    "hydra": [("length", 0, 0, 64), ("beam", 4, 1, None), ("online", False, None, None)],
    "hydrapp": [("length", 0, 0, 64), ("beam", 4, 1, None)],
    "jacobi": [("window", 16, 2, 64), ("fresh", "random", None, None)],
    "kangaroo": [("length", 0, 0, 64), ("threshold", 0.0, 0, 1), ("width", 3, 1, 4), ("trim", 0.25, "over 0", 1)],
    "longspec": [("length", 0, 0, 64), ("beam", 4, 1, None), ("k", 8, 1, None), ("least", 0, 0, None)],
    "lud": [("beta", 0.9, "over 0", 1), ("length", 0, 0, 64)],
    "m2r2": [("length", 0, 0, 64), ("threshold", 0.0, 0, 1), ("width", 3, 1, 4), ("trim", 0.25, "over 0", 1)],
    "medusa": [("length", 0, 0, 64), ("choices", "", None, None)],
    "model": [
        ("path", "", None, None),
        ("threads", 0, 0, 1024),
        ("length", 8, 1, 64),
        ("width", 0, 0, 16),
        ("verify", "match", None, None),
        ("kv", "", None, None),
        ("beam", 0, 0, 16),
        ("accept", "claims", None, None),
        ("stop", 0.0, 0, "under 1"),
        ("trim", 0.25, "over 0", 1),
    ],
    "mtp": [("length", 0, 0, 64), ("beam", 4, 1, None), ("k", 4, 1, None)],
    "nested": [
        ("path", "", None, None),
        ("threads", 0, 0, 1024),
        ("layers", "", None, None),
        ("threshold", 0.5, 0, 1),
        ("length", 8, 1, 64),
    ],
    "pearl": [
        ("path", "", None, None),
        ("length", 8, 1, 64),
        ("threads", 0, 0, 1024),
        ("overlap", "auto", None, None),
        ("kv", "", None, None),
        ("device", "", None, None),
    ],
    "prompt": [("length", 0, 0, 64), ("rows", 24, 1, None)],
    "rapid": [
        ("path", "", None, None),
        ("budget", 512, 1, None),
        ("chunk", 64, 8, None),
        ("least", 2048, 0, None),
        ("refresh", 512, 1, None),
        ("length", 8, 1, 64),
        ("trim", 0.25, "over 0", 1),
        ("encoder", "", None, None),
        ("transfer", 0.0, 0, None),
        ("verify", "match", None, None),
    ],
    "recycling": [("nodes", 16, 1, None), ("k", 8, 1, None), ("prompt", 0, 0, None)],
    "sec": [("leave", 0.9, 0, 1), ("stop", 1.0, 0, 1), ("length", 8, 1, 64)],
    "skip": [
        ("skip", 0.45, "over 0", "under 1"),
        ("length", 6, 1, 64),
        ("search", "thompson", None, None),
        ("share", 0.03, 0, None),
        ("task", "", None, None),
        ("width", 3, 1, 4),
        ("trim", 0.25, "over 0", 1),
    ],
    "sparse": [
        ("policy", "", None, None),
        ("budget", 0.05, "over 0", None),
        ("least", 2048, 1, None),
        ("refresh", 256, 1, None),
        ("pages", 12, 0, None),
        ("recent", 128, 1, None),
        ("length", 8, 1, 64),
        ("trim", 0.25, "over 0", 1),
    ],
    "stand": [
        ("nodes", 16, 1, None),
        ("k", 8, 1, None),
        ("verify", "match", None, None),
        ("prompt", 0, 0, None),
        ("choices", "", None, None),
    ],
    "suffix": [("store", "", None, None)],
    "trigram": [
        ("nodes", 16, 1, None),
        ("k", 8, 1, None),
        ("rate", 0.3, "over 0", 1),
        ("explore", 0.05, 0, 1),
        ("corpus", "", None, None),
    ],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_defaults_and_ranges(name: str) -> None:
    found = list[Row]()
    for option, about in FAMILY.options(name).items():
        if option == "fixed":  # the governor's, of all drafters
            continue
        low = about.opt.low if about.opt.above is None else f"over {about.opt.above:g}"
        high = about.opt.high if about.opt.below is None else f"under {about.opt.below:g}"
        default = None if about.default is inspect.Parameter.empty else about.default
        found.append((option, default, low, high))
    assert found == OPTIONS[name]


def test_every_drafter_with_options_is_listed() -> None:
    assert set(OPTIONS) == set(FAMILY.names()) - {"off", "forced"}
