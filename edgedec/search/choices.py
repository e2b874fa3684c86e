"""Several texts of one prompt, as `n` and `best_of` of OpenAI and vLLM: for the command line, batch files, the server.

Text i is what the prompt's text is with the seed + i; of a search without randomness, its i-th best text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.messages import Token
from edgedec.errors import UsageError
from edgedec.options import option, options_of
from edgedec.plugins.words import spelt
from edgedec.search.making import FAMILY, parse_search

MOST = 128
_SEEDS = 1 << 32

T = TypeVar("T")


@dataclass(frozen=True)
class Choices:
    """n: texts that are given; best_of: texts that are written, the n likeliest of which are given; 0: n."""

    n: int = option(1, "integer", "Texts of each prompt, which is read once; text i draws with the seed + i.")
    best_of: int = option(0, "integer", "Write so many texts, and give the likeliest n by the mean log-probability.")

    def __post_init__(self) -> None:
        for name, value, least in (("n", self.n, 1), ("best_of", self.best_of, 0)):
            if not least <= value <= MOST:
                raise UsageError(f"{name}: {value} is out of range; allowed: {least} to {MOST}")
        if self.best_of and self.best_of < self.n:
            raise UsageError(f"best_of: {self.best_of} is below n, which is {self.n}")

    @property
    def texts(self) -> int:
        """How many are written."""
        return self.best_of or self.n

    def given(self, data: Mapping[str, Any]) -> Choices:
        """These choices, with what `data` names replaced; of what it names alone, the other does not hold."""
        named = {name: one.parse(data[name]) for name, one in CHOICES.items() if name in data}
        return Choices(**named) if named else self

    def check(self, config: GenerationConfig) -> None:
        """UsageError for texts that would all be the same."""
        if self.texts > 1 and config.sampling.temperature == 0 and not config.search:
            raise UsageError(f"n: {self.texts} texts at temperature 0 are one text: set a temperature, or a search")

    def config(self, config: GenerationConfig, choice: int, stride: int = 1) -> GenerationConfig:
        """The config of one of the texts: with a seed, and a constraint and processors of its own; text 0 has those
        that are given."""
        if self.texts > self.n and config.logprobs is None:
            config = replace(config, logprobs=0)
        if config.sampling.seed is not None:
            config = config.override({"seed": (config.sampling.seed + choice * stride) % _SEEDS})
        if not choice:
            return config
        constraint = None if config.constraint is None else config.constraint.fork()
        processors = tuple(processor.fork() for processor in config.processors)
        return ranked(replace(config, constraint=constraint, processors=processors), choice)

    def best(self, texts: Sequence[T], score: Callable[[T], float]) -> list[T]:
        """The n texts that are given: all in their order, or the likeliest, the best first."""
        return list(texts) if self.texts == self.n else sorted(texts, key=lambda text: -score(text))[: self.n]


CHOICES = options_of(Choices)


def ranked(config: GenerationConfig, choice: int) -> GenerationConfig:
    """The config of text `choice`: a search without randomness gives each the next of its texts."""
    if not config.search or not choice:
        return config
    name, options = parse_search(config.search)
    if not FAMILY.facts(name).fixed:
        return config
    options = {**options, "rank": options.get("rank", 0) + choice}
    return replace(config, search=f"{name}{spelt(options)}")


def likelihood(tokens: Sequence[Token]) -> float:
    """The mean log-probability of the tokens of a text; 0 if none is known."""
    known = [token.logprob for token in tokens if token.logprob is not None]
    return sum(known) / len(known) if known else 0.0
