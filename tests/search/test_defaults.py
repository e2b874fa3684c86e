"""The constants of the papers are the defaults of their searches and companions."""

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


def defaults(function: Any) -> dict[str, Any]:
    return {name: one.default for name, one in signature(function).parameters.items()}


@pytest.mark.parametrize(
    ("family", "name", "wanted"),
    [(SEARCHES, *item) for item in PUBLISHED.items()] + [(FUSION, *item) for item in COMPANIONS.items()],
)
def test_defaults_are_the_papers(family: Any, name: str, wanted: dict[str, Any]) -> None:
    assert wanted.items() <= defaults(family.file(name).make).items()


def test_a_hidden_markov_model_is_trained_alike_by_both_doors() -> None:
    inner, outer = defaults(train), defaults(train_hmm)
    shared = {name: outer[name] for name in ("states", "rounds", "seed")}
    assert shared == {name: inner[name] for name in shared} == {"states": 32, "rounds": 20, "seed": 0}
