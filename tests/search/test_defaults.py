"""The constants of the papers are the defaults of their searches and companions, and every number has its range."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from edgedec.fusion import FAMILY as FUSION
from edgedec.fusion._hmm import train
from edgedec.fusion._hmm_training import train_hmm
from edgedec.search import FAMILY as SEARCHES

PUBLISHED: dict[str, dict[str, Any]] = {
    "cautious": {"n": 10, "low": 0.01, "high": 1.5, "temperature": 0.8, "top_p": 0.95},
    "lookahead": {"top": 3, "ahead": 5},
    "rank": {"beams": 2, "n": 10, "length": 20, "temperature": 1.0, "top_p": 0.9},
    "tests": {"children": 3},
    "refine": {"stop": 1.0, "feedback": True, "temperature": 0.6, "top_p": 1.0},
    "diverse": {"penalty": 0.5},
    "smc": {"threshold": 0.5},
    "latent": {"wait": 128, "switches": 5},
    "colar": {"r": 5, "most": 64, "spread": 1.0},
    "superposed": {"n": 3, "weight": 0.54, "temperature": 0.06},
}
COMPANIONS: dict[str, dict[str, Any]] = {
    "value": {"top_k": 10, "tokens": 20, "weight": 1.0},
    "search": {"alpha": 0.6, "top_k": 4},
}

# All options with numbers: the default, and what is allowed.
WIDE, RANK, SECONDS = "from 1 to 256", (0, "from 0 to 255"), (10.0, "above 0, up to 3600")
FEW, PENALTY, SHARE = "from 1 to 64", (1.0, "from -10 to 10"), "from 0 to 1"
HEAT, MASS = "above 0, up to 10", "above 0, up to 1"
SEARCH_NUMBERS: dict[str, dict[str, tuple[float, str]]] = {
    "astar": {
        "k": (3, FEW),
        "budget": (16, "from 1 to 100000"),
        "frontier": (32, WIDE),
        "step": (64, "from 1 to 4096"),
        "temperature": (0.8, HEAT),
        "top_p": (1.0, MASS),
        "timeout": SECONDS,
    },
    "beam": {"width": (4, WIDE), "length_penalty": PENALTY, "rank": RANK},
    "best": {"n": (8, WIDE), "timeout": SECONDS, "rank": RANK},
    "cautious": {
        "n": (10, FEW),
        "low": (0.01, "from 0 to 100"),
        "high": (1.5, "above 0, up to 100"),
        "temperature": (0.8, HEAT),
        "top_p": (0.95, MASS),
    },
    "colar": {"r": (5, FEW), "most": (64, "from 1 to 4096"), "spread": (1.0, "from 0 to 10")},
    "diverse": {
        "width": (4, WIDE),
        "groups": (2, FEW),
        "penalty": (0.5, "from 0 to 100"),
        "length_penalty": PENALTY,
        "rank": RANK,
    },
    "exact_extract": {"most": (16, "from 1 to 512"), "together": (8, FEW)},
    "first": {"n": (8, WIDE), "k": (1, WIDE)},
    "latent": {"wait": (128, "from 0 to 65536"), "switches": (5, "from 0 to 65536"), "top": (64, "from 1 to 4096")},
    "lookahead": {"threshold": (1.0, "from 0 to 1000000000"), "top": (3, FEW), "ahead": (5, "from 0 to 256")},
    "rank": {
        "beams": (2, FEW),
        "n": (10, FEW),
        "length": (20, "from 0 to 65536"),
        "temperature": (1.0, HEAT),
        "top_p": (0.9, MASS),
        "timeout": SECONDS,
    },
    "refine": {
        "n": (4, WIDE),
        "rounds": (3, FEW),
        "stop": (1.0, ""),
        "temperature": (0.6, HEAT),
        "top_p": (1.0, MASS),
        "timeout": SECONDS,
    },
    "select": {},
    "smc": {"n": (16, WIDE), "threshold": (0.5, SHARE)},
    "superposed": {"n": (3, FEW), "weight": (0.54, SHARE), "temperature": (0.06, HEAT), "rank": RANK},
    "tests": {
        "rollouts": (32, "from 1 to 10000"),
        "children": (3, FEW),
        "seconds": (2.0, "above 0, up to 600"),
        "timeout": SECONDS,
    },
}
FUSION_NUMBERS: dict[str, dict[str, tuple[float, str]]] = {
    "anchor": {"debt": (0, "0 or more")},
    "cfg": {"scale": (1.5, "0 or more")},
    "contrast": {"weight": (0.5, "0 or more"), "alpha": (0.1, SHARE), "temperature": (1.0, "above 0")},
    "format": {"within": (64, "from 1 to 4096"), "mass": (1.0, MASS)},
    "late": {"own": (1.0, "from 0.1 to 10"), "other": (1.0, "from 0.1 to 10"), "weight": (1.0, "0 or more")},
    "search": {"alpha": (0.6, SHARE), "top_k": (4, FEW)},
    "value": {
        "weight": (1.0, "0 or more"),
        "top_k": (10, FEW),
        "tokens": (20, "from 0 to 256"),
        "timeout": (60.0, "above 0"),
    },
}


def defaults(function: Any) -> dict[str, Any]:
    return {name: one.default for name, one in signature(function).parameters.items()}


@pytest.mark.parametrize(
    ("family", "name", "wanted"),
    [(SEARCHES, *item) for item in PUBLISHED.items()] + [(FUSION, *item) for item in COMPANIONS.items()],
)
def test_defaults_are_the_papers(family: Any, name: str, wanted: dict[str, Any]) -> None:
    assert wanted.items() <= defaults(family.file(name).make).items()


@pytest.mark.parametrize(("family", "wanted"), [(SEARCHES, SEARCH_NUMBERS), (FUSION, FUSION_NUMBERS)])
def test_every_number_has_its_default_and_its_range(family: Any, wanted: dict[str, Any]) -> None:
    assert set(family.names()) == set(wanted)
    for name in family.names():
        numbers = {
            key: (option.default, option.opt.range())
            for key, option in family.options(name).items()
            if option.type in (int, float) and not option.required
        }
        assert numbers == wanted[name], name


def test_a_hidden_markov_model_is_trained_alike_by_both_doors() -> None:
    inner, outer = defaults(train), defaults(train_hmm)
    shared = {name: outer[name] for name in ("states", "rounds", "seed")}
    assert shared == {name: inner[name] for name in shared} == {"states": 32, "rounds": 20, "seed": 0}
    assert (outer["texts"], outer["tokens"]) == (200, 64)
