"""What a search gets: the model, what it is made with, and how a scorer is reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.draft import Drafter
from edgedec.drafters.off import Off
from edgedec.opened import OpenedModel
from edgedec.runtime import Capabilities
from edgedec.text.tokenizer import Tokenizer

GivenScorer = Callable[[str, str], float]


@dataclass(frozen=True)
class SearchHost:
    """capabilities: of the engine; tokenizer(): the model's; eos: its end tokens; config: the generation's; drafter():
    a new one for each text that the decode loop writes; model: for searches that open another beside it."""

    capabilities: Capabilities
    tokenizer: Callable[[], Tokenizer]
    eos: frozenset[int] = frozenset()
    config: GenerationConfig = field(default_factory=GenerationConfig)
    drafter: Callable[[], Drafter] = Off
    model: OpenedModel | None = None
