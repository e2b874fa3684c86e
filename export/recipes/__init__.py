"""Recipes that train a causal language model to fill masks: which masks a row of text gets, and what they cost.

A recipe knows nothing of the model's family: it masks a `TextRow`, has a `FillingNet` read it and weighs what comes
back. The names are those of the papers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.diffusion.host import Context
from edgedec.plugins import Family

if TYPE_CHECKING:
    from torch import Tensor

    from edgedec.export.recipes._net import FillingNet
    from edgedec.export.recipes._rows import Draws, TextRow


@dataclass(frozen=True)
class RecipeFacts:
    """contexts: of the models that it trains. goes_on: the checkpoint must fill masks already, it makes that faster.
    teacher: the checkpoint as it was takes part, a second copy in memory. paper: the method."""

    contexts: tuple[Context, ...] = ("causal", "block", "full")
    goes_on: bool = False
    teacher: bool = False
    paper: str = ""


class Recipe(Protocol):
    """keep: the share of the next tokens' loss that follows the model as it was; above 0 a copy of it is kept."""

    keep: float

    def loss(self, net: FillingNet, row: TextRow, draws: Draws, progress: float) -> Tensor:
        """What a row costs. progress: the share of the training that is over."""
        ...


FAMILY = Family[RecipeFacts]("edgedec.export.recipes", "recipe", where="--recipe", facts=RecipeFacts)


def made(words: str, facts: DiffusionFacts) -> tuple[str, Recipe]:
    """The recipe that words name, for a model of these facts, and its name."""
    from edgedec.errors import UsageError

    chosen = FAMILY.parse(words)
    if len(chosen) != 1:
        raise UsageError(f"--recipe {words}: give one recipe")
    name = chosen[0].name.replace("-", "_")
    contexts = FAMILY.facts(name).contexts
    if facts.context not in contexts:
        raise UsageError(f"--recipe {name}: trains models with {' or '.join(contexts)} context, not {facts.context}")
    found: Recipe = FAMILY.make(name, facts, chosen[0].options)
    return name, found
