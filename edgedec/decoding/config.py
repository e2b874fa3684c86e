"""GenerationConfig: the options of a generation as one value, for the CLI, Python programs, the server and batch
jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from edgedec.decoding.constraint import Constraint
from edgedec.decoding.logits import LogitsProcessor
from edgedec.errors import UsageError
from edgedec.options import option, options_of
from edgedec.sampling import Sampling


@dataclass(frozen=True)
class GenerationConfig:
    """sampling: how a token is chosen. max_tokens: None for no limit but the context; min_tokens: end tokens are masked
    before so many. stop: strings and stop_tokens: tokens that end the text; ignore_eos: the model's own end tokens do
    not end it. logprobs: how many of the likeliest tokens are reported with each token. constraint: the form of the
    text (`edgedec.constraints`). processors: applied to the logits first, in this order. breakers: the tokens of
    `Sampling.dry_sequence_breakers`, which a session sets."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = option(None, "integer", "Most tokens to generate; no limit if left out.")
    min_tokens: int = option(0, "integer", "Do not end before so many tokens.")
    stop: tuple[str, ...] = option((), "strings", "End before any of these texts.")
    stop_tokens: frozenset[int] = option(frozenset(), "tokens", "End at any of these token ids.")
    ignore_eos: bool = option(False, "boolean", "Go on after the model's end token.")
    logprobs: int | None = None
    constraint: Constraint | None = field(default=None, compare=False)
    processors: tuple[LogitsProcessor, ...] = field(default=(), compare=False)
    breakers: tuple[tuple[int, ...], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        given: Any = self.stop
        stop = (given,) if isinstance(given, str) else tuple(given)
        if not all(map(_is_text, stop)):
            raise UsageError(f"stop strings: {stop!r} is out of range; allowed: a list of non-empty strings")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_tokens", frozenset(map(int, self.stop_tokens)))
        if self.max_tokens is not None and self.max_tokens < 0:
            raise UsageError(f"max_tokens {self.max_tokens}: must be 0 or more")
        if self.min_tokens < 0:
            raise UsageError(f"min_tokens {self.min_tokens}: must be 0 or more")
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise UsageError(f"logprobs {self.logprobs}: must be from 0 to 100")

    def override(self, options: Mapping[str, Any]) -> GenerationConfig:
        """This config with some options replaced, those of its sampling too; UsageError for an unknown option."""
        known = [f.name for f in fields(self)]
        unknown = sorted(set(options) - {*known, *SAMPLING})
        if unknown:
            raise UsageError(f"no option {unknown[0]!r}; there are: {', '.join([*known, *SAMPLING])}")
        own = {name: value for name, value in options.items() if name in known}
        drawn = {name: value for name, value in options.items() if name in SAMPLING}
        if drawn:
            own["sampling"] = replace(own.get("sampling", self.sampling), **drawn)
        return replace(self, **own) if own else self

    def ends(self, eos: frozenset[int]) -> frozenset[int]:
        """The tokens that end the text of a model with these end tokens."""
        return self.stop_tokens if self.ignore_eos else self.stop_tokens | eos

    @property
    def takes_largest(self) -> bool:
        """Whether only the token of the largest logit is needed."""
        changed = self.constraint is not None or self.min_tokens or self.processors
        return self.sampling.takes_largest and self.logprobs is None and not changed


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


SAMPLING = options_of(Sampling)
"""The options of sampling, by name."""
OPTIONS = {**SAMPLING, **options_of(GenerationConfig)}
"""All options that a flag, a request or a row of a batch may set, by name."""


def parse_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those members of `given` that are options, as values of the config; UsageError for one of another type."""
    return {name: option.parse(given[name]) for name, option in OPTIONS.items() if name in given}
