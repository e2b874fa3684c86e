"""Fusion: the next token is chosen from two distributions, the model's and that of a companion beside it.

The companion (`_companion`) is a second text: another prompt, adapter or bundle, and the same tokens after it. It runs
the rows of each step, drafts included, in the step's own forward where the model is the same. So speculation stays
lossless: relative to the fused distribution, as without drafts. A fusion is a logits processor
(`edgedec.decoding.logits`); one object belongs to one generation at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from edgedec.decoding.logits import FusesDistributions, LogitsProcessor
from edgedec.errors import UsageError
from edgedec.fusion._calibration import calibrated_temperature
from edgedec.fusion._facts import FusionFacts
from edgedec.fusion._hmm_training import train_hmm
from edgedec.plugins import Family, Words
from edgedec.processors import make_processors

if TYPE_CHECKING:
    from edgedec.opened import OpenedModel

__all__ = [
    "COMMANDS",
    "FAMILY",
    "FILES",
    "MOST",
    "FusionFacts",
    "calibrated_temperature",
    "check_fusion",
    "make_fusion",
    "make_shaping",
    "train_hmm",
]

FAMILY = Family("edgedec.fusion", "fusion", where="fuse", facts=FusionFacts)
# Of one generation: each may cost a forward of the model at every token.
MOST = 4
# Options that name files, and programs.
FILES, COMMANDS = frozenset({"bundle", "adapter", "hmm"}), frozenset({"command", "base_command"})


def check_fusion(words: Words, refused: Collection[str] = (), place: str = "") -> None:
    """UsageError for words that name no fusion, or options that it does not have. refused: options that are not allowed
    in this place."""
    if not isinstance(words, str | Mapping | list | tuple):
        raise UsageError(f"fuse: must be text, an object or a list, not {type(words).__name__}")
    choices = FAMILY.parse(words) if words else []
    if len(choices) > MOST:
        raise UsageError(f"fuse: {len(choices)}; at most {MOST} are allowed")
    for name, options in choices:
        if named := sorted(set(refused) & set(options)):
            raise UsageError(f"fuse {name}: {named[0]}: not {place}")


def make_fusion(model: OpenedModel, words: Words) -> tuple[LogitsProcessor, ...]:
    """The fusions that words name, in order, for one generation of a model."""
    check_fusion(words)
    if not words:
        return ()
    if model.bundle.manifest.diffusion is not None:
        raise UsageError("fuse: a diffusion model has no next token to fuse; use an autoregressive bundle")
    if not model.runtime.capabilities.trees:
        raise UsageError(f"fuse: the engine {model.runtime.name} runs one row at a time; use --engine native")
    made: tuple[LogitsProcessor, ...] = tuple(
        FAMILY.make(name, model, options) for name, options in FAMILY.parse(words)
    )
    if sum(isinstance(each, FusesDistributions) for each in made) > 1:
        raise UsageError("fuse: two that fuse whole distributions; give one of them")
    return made


def make_shaping(model: OpenedModel, fuse: Words, processors: Words) -> tuple[LogitsProcessor, ...]:
    """Fusions and then other logits processors, for one generation of a model."""
    return (*make_fusion(model, fuse), *(make_processors(model, processors) if processors else ()))
