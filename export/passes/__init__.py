"""Passes: what an export does to the weights of a model before they are stored. One file here a pass.

A pass takes a model and statistics of its run on calibration text, and returns the model changed: `(spec, read,
statistics) -> (spec, read)`, where a model also has the formats that its matrices get and the integers of those that
are rounded. Passes run in the order of their stages, however they are named; a later one reads what an earlier one
made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from edgedec.bundle.adapter import LowRank
from edgedec.bundle.manifest import WeightFormat
from edgedec.errors import UsageError
from edgedec.export.passes._rounded import Rounded, RoundedStore
from edgedec.export.passes._statistics import Statistics
from edgedec.export.weights import format_of
from edgedec.plugins import Family, PluginChoice
from edgedec.runtimes.reference.numeric import Weights
from edgedec.spec import ModelSpec

__all__ = ["FAMILY", "QUALITIES", "Pass", "PassContext", "PassFacts", "PassModel", "chosen"]

Stage = Literal["structure", "equivalents", "allocation", "rounding", "additions"]
STAGES: tuple[Stage, ...] = get_args(Stage)
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class PassFacts:
    """What a file of this folder declares: when it runs. Of stages with `one`, a single pass may be named."""

    stage: Stage = "rounding"

    @property
    def one(self) -> bool:
        return self.stage in ("allocation", "rounding")


FAMILY = Family("edgedec.export.passes", "pass", where="--passes", facts=PassFacts)
# What `--quality` means.
QUALITIES: Mapping[str, str] = {"fast": "", "good": "gptq", "best": "awq+gptq:sweeps=4"}


@dataclass(frozen=True)
class PassModel:
    """A model on its way into a bundle. read: rows of a tensor as floats, of a rounded matrix the values that will be
    stored; formats: of matrices that do not have that of their part; rounded: matrices whose integers are chosen;
    low_rank: what an adapter beside the bundle adds to them."""

    spec: ModelSpec
    read: Weights
    formats: Mapping[str, WeightFormat] = field(default_factory=dict)
    rounded: Mapping[str, Rounded] = field(default_factory=dict)
    low_rank: Mapping[str, LowRank] = field(default_factory=dict)


@dataclass(frozen=True)
class PassContext:
    """What passes are made from. parts: the formats of "body", "head" and "embed"; block: weights that share a scale;
    store: matrices that this export has rounded already, perhaps before it was interrupted; fixed: matrices that are
    kept as the checkpoint has them."""

    spec: ModelSpec
    parts: Mapping[str, WeightFormat]
    block: int
    store: RoundedStore
    progress: Progress = lambda *_: None
    fixed: frozenset[str] = frozenset()

    def format_of(self, model: PassModel, name: str) -> WeightFormat:
        """The format that a tensor of the model will have."""
        parts = self.parts
        return model.formats.get(name) or format_of(self.spec, name, parts["body"], parts["head"], parts["embed"])


class Pass(Protocol):
    """What `make` of a pass returns."""

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel: ...


def chosen(words: str, quality: str = "fast") -> list[PluginChoice]:
    """The passes that `--passes` names, or else `--quality`, in the order in which they run."""
    if quality not in QUALITIES:
        raise UsageError(f"--quality {quality}: must be one of {', '.join(QUALITIES)}")
    if words and quality != "fast":
        raise UsageError("--passes and --quality: give one of them; a quality is a choice of passes")
    words = words or QUALITIES[quality]
    found = FAMILY.parse(words) if words else []
    names = [choice.name for choice in found]
    for choice in found:
        facts = FAMILY.facts(choice.name)
        rivals = [other.name for other in found if FAMILY.facts(other.name).stage == facts.stage]
        if names.count(choice.name) > 1 or (facts.one and len(rivals) > 1):
            raise UsageError(f"--passes {words}: one pass of {facts.stage} at most, and each once")
    return sorted(found, key=lambda choice: STAGES.index(FAMILY.facts(choice.name).stage))


def make_pass(choice: PluginChoice, context: PassContext) -> Pass:
    """A pass with its options."""
    made: Any = FAMILY.make(choice.name, context, choice.options)
    return made
